#include "tests/support/test.h"

#include "common/base/mem.h"
#include "common/model/gguf_vocab.h"
#include "tests/support/tiny_gguf.h"

#include <stdlib.h>

static bt_err
open_tokenizer(bt_tokenizer **out, const char *file, size_t bytes, bt_why *why)
{
    bt_gguf_vocab *vocab = NULL;
    bt_gguf *gguf = NULL;
    bt_err err = bt_gguf_parse(&gguf, file, bytes, "tiny", true, why);

    if (err == BT_OK && (err = bt_gguf_vocab_open(&vocab, gguf, why)) == BT_OK) {
        err = bt_tokenizer_open(out, &vocab->vocab, why);
    }
    bt_gguf_vocab_close(vocab);
    bt_gguf_close(gguf);
    return err;
}

START_TEST(a_files_tokenizer_outlives_the_file)
{
    size_t bytes, count = 0, used = 0;
    char *file = bt_test_tiny_gguf(BT_TINY_F32, &bytes), text[64];
    bt_tokenizer *tokenizer = NULL;
    int32_t ids[64];
    bt_why why = {{0}};

    ck_assert_msg(open_tokenizer(&tokenizer, file, bytes, &why) == BT_OK, "%s", why.text);
    memset(file, 0, bytes);
    free(file);
    ck_assert_uint_eq(bt_tokenizer_vocab_size(tokenizer), BT_TINY_VOCAB);
    ck_assert_int_eq(bt_tokenizer_bos(tokenizer), 1);
    ck_assert_int_eq(bt_tokenizer_eos(tokenizer), 2);
    ck_assert(bt_tokenizer_adds_bos(tokenizer));
    ck_assert(bt_tokenizer_is_end(tokenizer, 4));
    ck_assert_str_eq(bt_tokenizer_chat_template(tokenizer), BT_TINY_CHAT_TEMPLATE);
    ck_assert_int_eq(bt_tokenizer_encode(tokenizer, bt_str_of("<|im_end|>"), BT_ENCODE_SPECIAL | BT_ENCODE_BOS, ids, 64,
                                         &count, NULL),
                     BT_OK);
    ck_assert_uint_eq(count, 2);
    ck_assert_int_eq(ids[1], 4);
    ck_assert_int_eq(bt_tokenizer_encode(tokenizer, bt_str_of("once, 中!"), 0, ids, 64, &count, NULL), BT_OK);
    for (size_t i = 0; i < count; i++) {
        bt_str piece = bt_tokenizer_bytes(tokenizer, ids[i], false);

        memcpy(text + used, piece.data, piece.len);
        used += piece.len;
    }
    text[used] = 0;
    ck_assert_str_eq(text + (text[0] == ' '), "once, 中!");
    bt_tokenizer_close(tokenizer);
}
END_TEST

// The file with the first `from` after the key replaced by `to`, of the same length.
static bt_err
open_changed(const char *key, const char *from, const char *to, bt_why *why)
{
    size_t bytes, len = strlen(from);
    char *file = bt_test_tiny_gguf(BT_TINY_F32, &bytes), *at = memmem(file, bytes, key, strlen(key));
    bt_tokenizer *tokenizer = NULL;
    bt_err err;

    ck_assert_ptr_nonnull(at);
    at = memmem(at, bytes - (size_t)(at - file), from, len);
    ck_assert_ptr_nonnull(at);
    memcpy(at, to, len);
    err = open_tokenizer(&tokenizer, file, bytes, why);
    bt_tokenizer_close(tokenizer);
    free(file);
    return err;
}

START_TEST(what_a_file_lacks_or_has_otherwise_is_named)
{
    bt_why why = {{0}};

    ck_assert_int_eq(open_changed("tokenizer.ggml.model", "llama", "rwkv!", &why), BT_ERR_UNSUPPORTED);
    ck_assert_msg(strstr(why.text, "'rwkv!'") != NULL, "%s", why.text);
    ck_assert_int_eq(open_changed("general.architecture", "tokenizer.ggml.model", "tokenizer.ggml.nodel", &why),
                     BT_ERR_INVALID);
    ck_assert_msg(strstr(why.text, "tokenizer.ggml.model") != NULL, "%s", why.text);
    ck_assert_int_eq(open_changed("general.architecture", "tokenizer.ggml.tokens", "tokenizer.ggml.bokens", &why),
                     BT_ERR_NOT_FOUND);
    ck_assert_int_eq(open_changed("general.architecture", "tokenizer.ggml.scores", "tokenizer.ggml.stores", &why),
                     BT_ERR_INVALID);
    ck_assert_msg(strstr(why.text, "scores") != NULL, "%s", why.text);
}
END_TEST

START_TEST(opening_survives_any_allocation_that_fails)
{
    size_t bytes;
    char *file = bt_test_tiny_gguf(BT_TINY_F32, &bytes);
    unsigned refused = 0;

    for (long n = 1; n <= 80; n++) {
        bt_tokenizer *tokenizer = NULL;
        long live = bt_mem_live();
        bt_err err;

        bt_mem_fail_nth(n);
        err = open_tokenizer(&tokenizer, file, bytes, NULL);
        bt_mem_fail_nth(0);
        ck_assert(err == BT_OK || err == BT_ERR_NO_MEMORY);
        refused += err != BT_OK;
        bt_tokenizer_close(tokenizer);
        ck_assert_int_eq(bt_mem_live(), live);
    }
    ck_assert_uint_ge(refused, 15);
    free(file);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("gguf_vocab");
    TCase *all = tcase_create("all");

    tcase_add_test(all, a_files_tokenizer_outlives_the_file);
    tcase_add_test(all, what_a_file_lacks_or_has_otherwise_is_named);
    tcase_add_test(all, opening_survives_any_allocation_that_fails);
    suite_add_tcase(suite, all);
    return bt_test_run(suite);
}
