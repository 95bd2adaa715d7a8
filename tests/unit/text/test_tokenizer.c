#include "tests/support/test.h"

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "tests/unit/text/small_vocab.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

START_TEST(the_best_merge_comes_first_and_of_equals_the_leftmost)
{
    bt_tokenizer *tokenizer = small_bpe("gpt-2");

    ck_assert_str_eq(encoded(tokenizer, "the", 0), "257");
    ck_assert_str_eq(encoded(tokenizer, " the", 0), "258");
    // t h merges before h e could; five a's make aa aa a from the left, and then aaa is worth only on "aa a".
    ck_assert_str_eq(encoded(tokenizer, "aaaaa", 0), "259 260");
    ck_assert_str_eq(encoded(tokenizer, "", 0), "");
    bt_tokenizer_close(tokenizer);
}
END_TEST

START_TEST(a_higher_score_merges_first)
{
    bt_tokenizer *tokenizer = small_spm(true, false);
    int32_t a = bt_tokenizer_find(tokenizer, bt_str_of("a")), bc = bt_tokenizer_find(tokenizer, bt_str_of("bc"));
    int32_t abc = bt_tokenizer_find(tokenizer, bt_str_of("abc"));
    char expected[64];

    snprintf(expected, sizeof expected, "%d", abc); // a + bc spell abc too
    ck_assert_str_eq(encoded(tokenizer, "abc", 0), expected);
    snprintf(expected, sizeof expected, "%d %d", bt_tokenizer_find(tokenizer, bt_str_of("ab")), bc);
    ck_assert_str_eq(encoded(tokenizer, "abbc", 0), expected);
    snprintf(expected, sizeof expected, "%d %d", a, a);
    ck_assert_str_eq(encoded(tokenizer, "aa", 0), expected);
    bt_tokenizer_close(tokenizer);
}
END_TEST

// The plain algorithm: look at every pair, merge the best, begin again.
static size_t
merge_plainly(const bt_tokenizer *tokenizer, const bt_vocab *vocab, int32_t *ids, size_t count)
{
    for (;;) {
        size_t best = SIZE_MAX;
        float best_score = -INFINITY;
        int32_t merged = -1;

        for (size_t i = 0; i + 1 < count; i++) {
            bt_str left = bt_tokenizer_token_text(tokenizer, ids[i]),
                   right = bt_tokenizer_token_text(tokenizer, ids[i + 1]);
            char both[64];
            int32_t id;

            memcpy(both, left.data, left.len);
            memcpy(both + left.len, right.data, right.len);
            id = bt_tokenizer_find(tokenizer, (bt_str){both, left.len + right.len});
            if (id > 2 && vocab->scores[id] > best_score) {
                best_score = vocab->scores[id];
                best = i;
                merged = id;
            }
        }
        if (best == SIZE_MAX) {
            return count;
        }
        ids[best] = merged;
        memmove(ids + best + 1, ids + best + 2, (count - best - 2) * sizeof *ids);
        count--;
    }
}

START_TEST(any_text_merges_as_the_plain_algorithm_does)
{
    bt_vocab vocab = small_spm_vocab(true, false);
    bt_tokenizer *tokenizer = small_spm(true, false);
    bt_rng rng = {2026};

    for (unsigned round = 0; round < 2000; round++) {
        static const char *const units[] = {"a", "b", "c", " ", "\xc3\xa9"};
        char text[256] = "";
        int32_t ids[128];
        size_t length = bt_rng_below(&rng, 40), count;
        const int32_t *got;

        for (size_t i = 0; i < length; i++) {
            const char *unit = units[bt_rng_below(&rng, 5)];

            strcat(text, unit);
            ids[i] = bt_tokenizer_find(tokenizer, bt_str_of(unit[0] == ' ' ? "\xe2\x96\x81" : unit));
        }
        length = merge_plainly(tokenizer, &vocab, ids, length);
        got = encode(tokenizer, text, 0, &count);
        ck_assert_msg(count == length && memcmp(got, ids, count * sizeof *ids) == 0, "'%s'", text);
    }
    bt_tokenizer_close(tokenizer);
}
END_TEST

START_TEST(an_empty_text_may_have_no_data)
{
    bt_tokenizer *tokenizers[] = {small_bpe("gpt-2"), small_bpe("qwen2"), small_spm(true, true)};

    for (size_t i = 0; i < sizeof tokenizers / sizeof *tokenizers; i++) {
        int32_t ids[2];
        size_t count = 1;

        ck_assert_int_eq(bt_tokenizer_encode(tokenizers[i], (bt_str){0}, 0, ids, 2, &count, NULL), BT_OK);
        ck_assert_uint_eq(count, 0);
        ck_assert_int_eq(bt_tokenizer_find(tokenizers[i], (bt_str){0}), -1);
        bt_tokenizer_close(tokenizers[i]);
    }
}
END_TEST

START_TEST(a_typed_control_token_is_plain_text_unless_asked_for)
{
    bt_tokenizer *tokenizer = small_bpe("gpt-2");
    char out[64];
    size_t count;
    const int32_t *ids;

    ck_assert_str_eq(encoded(tokenizer, "a<|im_end|>a", BT_ENCODE_SPECIAL), "97 263 97");
    ids = encode(tokenizer, "a<|im_end|>a", 0, &count);
    ck_assert_uint_eq(count, 12);
    ck_assert_uint_eq(decode(tokenizer, ids, count, out, sizeof out), 12);
    bt_tokenizer_close(tokenizer);
}
END_TEST

START_TEST(a_user_defined_token_is_found_in_both_modes_and_the_longest_counts)
{
    bt_tokenizer *tokenizer = small_bpe("gpt-2");

    ck_assert_str_eq(encoded(tokenizer, "a<b>a", 0), "97 265 97");
    ck_assert_str_eq(encoded(tokenizer, "<b><b><b>", 0), "266 265");
    ck_assert_str_eq(encoded(tokenizer, "<b><b", BT_ENCODE_SPECIAL), "265 60 98");
    bt_tokenizer_close(tokenizer);
}
END_TEST

START_TEST(bos_comes_first_where_it_is_asked_for_and_wanted)
{
    bt_vocab vocab = small_bpe_vocab("gpt-2");
    bt_tokenizer *tokenizer = small_bpe("gpt-2"), *without = NULL;

    ck_assert_str_eq(encoded(tokenizer, "a", BT_ENCODE_BOS), "264 97");
    ck_assert_str_eq(encoded(tokenizer, "", BT_ENCODE_BOS), "264");
    vocab.add_bos = false;
    ck_assert_int_eq(bt_tokenizer_open(&without, &vocab, NULL), BT_OK);
    ck_assert_str_eq(encoded(without, "a", BT_ENCODE_BOS), "97");
    bt_tokenizer_close(tokenizer);
    bt_tokenizer_close(without);
}
END_TEST

START_TEST(a_character_without_a_token_is_written_in_bytes)
{
    bt_tokenizer *tokenizer = small_spm(true, false);
    char expected[64];

    snprintf(expected, sizeof expected, "%d %d %d", 3 + 0xe4, 3 + 0xb8, 3 + 0xad);
    ck_assert_str_eq(encoded(tokenizer, "中", 0), expected);
    bt_tokenizer_close(tokenizer);
}
END_TEST

START_TEST(unknown_characters_side_by_side_are_one_unknown_token_where_there_are_no_bytes)
{
    bt_tokenizer *tokenizer = small_spm(false, false);
    char expected[64];

    snprintf(expected, sizeof expected, "0 %d 0", bt_tokenizer_find(tokenizer, bt_str_of("a")));
    ck_assert_str_eq(encoded(tokenizer, "中文a中", 0), expected);
    bt_tokenizer_close(tokenizer);
}
END_TEST

START_TEST(sentencepiece_puts_a_space_in_front)
{
    bt_tokenizer *tokenizer = small_spm(true, true), *bare = small_spm(true, false);

    ck_assert_str_eq(encoded(tokenizer, "a", 0), encoded(bare, " a", 0));
    ck_assert_str_eq(encoded(tokenizer, "", 0), "");
    ck_assert(bt_tokenizer_drops_first_space(tokenizer));
    ck_assert(!bt_tokenizer_drops_first_space(bare));
    bt_tokenizer_close(tokenizer);
    bt_tokenizer_close(bare);
}
END_TEST

START_TEST(unigram_takes_the_way_with_the_highest_sum)
{
    static const bt_str tokens[] = {{"<unk>", 5}, {"a", 1}, {"b", 1}, {"ab", 2}, {"ba", 2}, {"bab", 3}};
    static const float scores[] = {0, -2, -2, -3, -3.5f, -9};
    static const uint8_t types[] = {2, 1, 1, 1, 1, 1};
    bt_vocab vocab = {.kind = BT_VOCAB_UNIGRAM,
                      .count = 6,
                      .tokens = tokens,
                      .scores = scores,
                      .types = types,
                      .bos = -1,
                      .eos = -1,
                      .unknown = 0,
                      .pad = -1};
    bt_tokenizer *tokenizer = NULL;

    ck_assert_int_eq(bt_tokenizer_open(&tokenizer, &vocab, NULL), BT_OK);
    ck_assert_str_eq(encoded(tokenizer, "ab", 0), "3");       // −3 against −4
    ck_assert_str_eq(encoded(tokenizer, "bab", 0), "2 3");    // −5 against −5.5 and −9
    ck_assert_str_eq(encoded(tokenizer, "aZZb", 0), "1 0 2"); // two unknown ones are fused
    bt_tokenizer_close(tokenizer);
}
END_TEST

START_TEST(digits_are_split_where_the_pre_tokenizer_says_so)
{
    bt_tokenizer *joined = small_bpe("gpt-2"), *single = small_bpe("smollm");

    ck_assert_str_eq(encoded(joined, "12", 0), "262");
    ck_assert_str_eq(encoded(single, "12", 0), "49 50");
    bt_tokenizer_close(joined);
    bt_tokenizer_close(single);
}
END_TEST

START_TEST(qwen2_composes_characters_first)
{
    bt_tokenizer *composing = small_bpe("qwen2"), *plain = small_bpe("qwen35");

    ck_assert_str_eq(encoded(composing, "e\xcc\x81", 0), "261");
    ck_assert_str_eq(encoded(plain, "e\xcc\x81", 0), "101 204 129");
    bt_tokenizer_close(composing);
    bt_tokenizer_close(plain);
}
END_TEST

START_TEST(text_that_is_not_utf8_is_refused_with_the_offset)
{
    bt_tokenizer *tokenizer = small_bpe("gpt-2");
    int32_t ids[8];
    size_t count = 77;
    bt_why why;

    ck_assert_int_eq(bt_tokenizer_encode(tokenizer, (bt_str){"ab\xff", 3}, 0, ids, 8, &count, &why), BT_ERR_INVALID);
    ck_assert_msg(strstr(why.text, "byte 2") != NULL, "%s", why.text);
    bt_tokenizer_close(tokenizer);
}
END_TEST

START_TEST(too_many_tokens_say_how_many_there_are)
{
    bt_tokenizer *tokenizer = small_bpe("gpt-2");
    int32_t ids[4] = {-7, -7, -7, -7};
    size_t count = 0;

    ck_assert_int_eq(bt_tokenizer_encode(tokenizer, bt_str_of("bcdef"), 0, ids, 3, &count, NULL), BT_ERR_TOO_LONG);
    ck_assert_uint_eq(count, 5);
    ck_assert_int_eq(ids[2], 'd');
    ck_assert_int_eq(ids[3], -7);
    ck_assert_int_eq(bt_tokenizer_encode(tokenizer, bt_str_of("bcdef"), 0, NULL, 0, &count, NULL), BT_ERR_TOO_LONG);
    ck_assert_uint_eq(count, 5);
    bt_tokenizer_close(tokenizer);
}
END_TEST

static void
append_character(char *text, size_t *used, uint32_t c)
{
    *used += bt_utf8_encode(c, text + *used);
}

START_TEST(any_text_comes_back)
{
    static const char *const pres[] = {"gpt-2",        "smollm",         "llama-bpe",   "qwen35", "falcon",
                                       "deepseek-llm", "deepseek-coder", "deepseek-v3", "tekken", "gpt-4o"};
    bt_rng rng = {7};

    for (size_t p = 0; p < sizeof pres / sizeof *pres; p++) {
        bt_tokenizer *tokenizer = small_bpe(pres[p]);

        for (unsigned round = 0; round < 200; round++) {
            char text[1024], out[1024];
            size_t used = 0, count, length = bt_rng_below(&rng, 200);
            const int32_t *ids;

            for (size_t i = 0; i < length; i++) {
                uint32_t bound = (uint32_t[]){0x80, 0x80, 0x100, 0x3100, 0x110000}[bt_rng_below(&rng, 5)];

                append_character(text, &used, 1 + (uint32_t)bt_rng_below(&rng, bound - 1));
            }
            text[used] = 0;
            ids = encode(tokenizer, text, 0, &count);
            ck_assert_uint_eq(decode(tokenizer, ids, count, out, sizeof out), used);
            ck_assert_mem_eq(out, text, used);
        }
        bt_tokenizer_close(tokenizer);
    }
}
END_TEST

// A megabyte of `unit` must end, and come back.
static void
check_long(const bt_tokenizer *tokenizer, const char *unit)
{
    size_t bytes = 1 << 20, len = strlen(unit), count = 0, used;
    char *text = malloc(bytes + 16), *out = malloc(bytes + 16);
    int32_t *ids = malloc((bytes + 16) * sizeof *ids);

    for (used = 0; used + len <= bytes; used += len) {
        memcpy(text + used, unit, len);
    }
    ck_assert_int_eq(bt_tokenizer_encode(tokenizer, (bt_str){text, used}, 0, ids, bytes + 16, &count, NULL), BT_OK);
    ck_assert_uint_eq(decode(tokenizer, ids, count, out, bytes + 16), used);
    ck_assert_mem_eq(out, text, used);
    free(text);
    free(out);
    free(ids);
}

START_TEST(a_megabyte_of_one_thing_ends_and_comes_back)
{
    static const char *const units[] = {" ", "a", "the", "\n", " \n", "1", "中"};
    static const char *const pres[] = {"llama-bpe", "deepseek-llm", "deepseek-v3"};
    bt_tokenizer *spm = small_spm(true, false), *bpe = small_bpe("gpt-2");

    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        check_long(bpe, units[i]);
        check_long(spm, units[i]);
    }
    for (size_t p = 0; p < sizeof pres / sizeof *pres; p++) {
        bt_tokenizer *tokenizer = small_bpe(pres[p]);

        check_long(tokenizer, " ");
        check_long(tokenizer, "a");
        bt_tokenizer_close(tokenizer);
    }
    bt_tokenizer_close(spm);
    bt_tokenizer_close(bpe);
}
END_TEST

START_TEST(a_megabyte_of_combining_marks_in_the_wrong_order_ends)
{
    bt_tokenizer *tokenizer = small_bpe("qwen2");
    size_t bytes = 1 << 20, count = 0;
    char *text = malloc(bytes);
    int32_t *ids = malloc(bytes * sizeof *ids);

    for (size_t i = 0; i + 4 <= bytes; i += 4) {
        memcpy(text + i, "\xcc\x95\xcc\x96", 4); // classes 232 and 220
    }
    ck_assert_int_eq(bt_tokenizer_encode(tokenizer, (bt_str){text, bytes}, 0, ids, bytes, &count, NULL), BT_OK);
    ck_assert_uint_eq(count, bytes);
    ck_assert_int_eq(ids[1], 0x96); // the lower class comes first now
    ck_assert_int_eq(ids[bytes - 1], 0x95);
    free(text);
    free(ids);
    bt_tokenizer_close(tokenizer);
}
END_TEST

START_TEST(the_end_of_a_turn_is_known_by_name)
{
    bt_tokenizer *bpe = small_bpe("gpt-2"), *spm = small_spm(true, true);

    ck_assert(bt_tokenizer_is_end(bpe, SMALL_CONTROL));
    ck_assert(!bt_tokenizer_is_end(bpe, SMALL_BOS));
    ck_assert(!bt_tokenizer_is_end(bpe, 'a'));
    ck_assert(!bt_tokenizer_is_end(bpe, -1));
    ck_assert(bt_tokenizer_is_end(spm, 2)); // eos
    bt_tokenizer_close(bpe);
    bt_tokenizer_close(spm);
}
END_TEST

START_TEST(ids_out_of_range_have_no_text)
{
    bt_tokenizer *tokenizer = small_bpe("gpt-2");

    ck_assert_uint_eq(bt_tokenizer_bytes(tokenizer, -1, true).len, 0);
    ck_assert_uint_eq(bt_tokenizer_bytes(tokenizer, SMALL_COUNT, true).len, 0);
    ck_assert_uint_eq(bt_tokenizer_token_text(tokenizer, INT32_MAX).len, 0);
    ck_assert_int_eq(bt_tokenizer_find(tokenizer, bt_str_of("nothing so named")), -1);
    bt_tokenizer_close(tokenizer);
}
END_TEST

static void
check_refused(bt_vocab vocab, bt_err expected, const char *words)
{
    bt_tokenizer *tokenizer = NULL;
    long live = bt_mem_live();
    bt_why why = {{0}};

    ck_assert_int_eq(bt_tokenizer_open(&tokenizer, &vocab, &why), expected);
    ck_assert_msg(strstr(why.text, words) != NULL, "%s", why.text);
    ck_assert_int_eq(bt_mem_live(), live);
}

START_TEST(a_spoilt_vocabulary_is_refused_with_a_reason)
{
    static const bt_str one_word[] = {{"th", 2}};
    static float scores[300];
    bt_vocab vocab = small_bpe_vocab("no-such-name");

    check_refused(vocab, BT_ERR_UNSUPPORTED, "'no-such-name'");
    vocab = small_bpe_vocab("gpt-2");
    vocab.eos = SMALL_COUNT;
    check_refused(vocab, BT_ERR_INVALID, "special token id");
    vocab = small_bpe_vocab("gpt-2");
    vocab.merges = one_word;
    vocab.merge_count = 1;
    check_refused(vocab, BT_ERR_INVALID, "merge 0");
    vocab.count = 0;
    check_refused(vocab, BT_ERR_INVALID, "0 tokens");
    vocab = small_spm_vocab(true, true);
    vocab.scores = NULL;
    check_refused(vocab, BT_ERR_INVALID, "scores");
    scores[5] = NAN;
    vocab.scores = scores;
    check_refused(vocab, BT_ERR_INVALID, "token 5");
}
END_TEST

static void
fail_everywhere(const bt_vocab *vocab)
{
    unsigned refused = 0;

    for (long n = 1; n <= 120; n++) {
        bt_tokenizer *tokenizer = NULL;
        long live = bt_mem_live();
        bt_err err;

        bt_mem_fail_nth(n);
        err = bt_tokenizer_open(&tokenizer, vocab, NULL);
        bt_mem_fail_nth(0);
        ck_assert(err == BT_OK || err == BT_ERR_NO_MEMORY);
        refused += err != BT_OK;
        bt_tokenizer_close(tokenizer);
        ck_assert_int_eq(bt_mem_live(), live);
    }
    ck_assert_uint_ge(refused, 8);
}

START_TEST(opening_survives_any_allocation_that_fails)
{
    bt_vocab bpe = small_bpe_vocab("qwen2"), spm = small_spm_vocab(true, true), unigram = small_spm_vocab(false, true);

    bpe.chat_template = "{{ x }}";
    fail_everywhere(&bpe);
    fail_everywhere(&spm);
    unigram.kind = BT_VOCAB_UNIGRAM;
    unigram.remove_extra_spaces = true;
    fail_everywhere(&unigram);
}
END_TEST

START_TEST(encoding_survives_any_allocation_that_fails)
{
    bt_tokenizer *tokenizers[] = {small_bpe("qwen2"), small_bpe("llama-bpe"), small_spm(true, true)};
    char text[512] = "e\xcc\x81 the";

    memset(text + 8, 'a', 300); // longer than the first scratch
    for (size_t i = 0; i < 3; i++) {
        unsigned refused = 0;

        for (long n = 1; n <= 40; n++) {
            int32_t ids[512];
            size_t count = 0;
            long live = bt_mem_live();
            bt_err err;

            bt_mem_fail_nth(n);
            err = bt_tokenizer_encode(tokenizers[i], bt_str_of(text), 0, ids, 512, &count, NULL);
            bt_mem_fail_nth(0);
            ck_assert(err == BT_OK || err == BT_ERR_NO_MEMORY);
            refused += err != BT_OK;
            ck_assert_int_eq(bt_mem_live(), live);
        }
        ck_assert_uint_ge(refused, 4);
        bt_tokenizer_close(tokenizers[i]);
    }
}
END_TEST

static void *
encode_often(void *context)
{
    const bt_tokenizer *tokenizer = context;

    for (unsigned i = 0; i < 500; i++) {
        int32_t ids[64];
        size_t count = 0;

        if (bt_tokenizer_encode(tokenizer, bt_str_of("e\xcc\x81 the the <b> 12"), BT_ENCODE_BOS, ids, 64, &count,
                                NULL) != BT_OK ||
            ids[0] != SMALL_BOS || ids[1] != SMALL_E_ACUTE) {
            return context;
        }
    }
    return NULL;
}

START_TEST(threads_share_a_tokenizer)
{
    bt_tokenizer *tokenizer = small_bpe("qwen2");
    pthread_t threads[4];

    for (size_t i = 0; i < 4; i++) {
        ck_assert_int_eq(pthread_create(&threads[i], NULL, encode_often, tokenizer), 0);
    }
    for (size_t i = 0; i < 4; i++) {
        void *wrong;

        pthread_join(threads[i], &wrong);
        ck_assert_ptr_null(wrong);
    }
    bt_tokenizer_close(tokenizer);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("tokenizer");
    TCase *all = tcase_create("all");

    tcase_set_timeout(all, 120);
    tcase_add_test(all, the_best_merge_comes_first_and_of_equals_the_leftmost);
    tcase_add_test(all, a_higher_score_merges_first);
    tcase_add_test(all, any_text_merges_as_the_plain_algorithm_does);
    tcase_add_test(all, an_empty_text_may_have_no_data);
    tcase_add_test(all, a_typed_control_token_is_plain_text_unless_asked_for);
    tcase_add_test(all, a_user_defined_token_is_found_in_both_modes_and_the_longest_counts);
    tcase_add_test(all, bos_comes_first_where_it_is_asked_for_and_wanted);
    tcase_add_test(all, a_character_without_a_token_is_written_in_bytes);
    tcase_add_test(all, unknown_characters_side_by_side_are_one_unknown_token_where_there_are_no_bytes);
    tcase_add_test(all, sentencepiece_puts_a_space_in_front);
    tcase_add_test(all, unigram_takes_the_way_with_the_highest_sum);
    tcase_add_test(all, digits_are_split_where_the_pre_tokenizer_says_so);
    tcase_add_test(all, qwen2_composes_characters_first);
    tcase_add_test(all, text_that_is_not_utf8_is_refused_with_the_offset);
    tcase_add_test(all, too_many_tokens_say_how_many_there_are);
    tcase_add_test(all, any_text_comes_back);
    tcase_add_test(all, a_megabyte_of_one_thing_ends_and_comes_back);
    tcase_add_test(all, a_megabyte_of_combining_marks_in_the_wrong_order_ends);
    tcase_add_test(all, the_end_of_a_turn_is_known_by_name);
    tcase_add_test(all, ids_out_of_range_have_no_text);
    tcase_add_test(all, a_spoilt_vocabulary_is_refused_with_a_reason);
    tcase_add_test(all, opening_survives_any_allocation_that_fails);
    tcase_add_test(all, encoding_survives_any_allocation_that_fails);
    tcase_add_test(all, threads_share_a_tokenizer);
    suite_add_tcase(suite, all);
    return bt_test_run(suite);
}
