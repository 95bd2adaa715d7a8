#include "tests/support/test.h"

#include "common/base/buf.h"
#include "common/base/mem.h"
#include "common/model/gguf.h"
#include "common/quant/ggml.h"
#include "tests/support/tiny_gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// A file in the making: three keys, an array of strings, one tensor.
static void
put(bt_buf *buf, const void *bytes, size_t count)
{
    bt_buf_append(buf, bytes, count);
}

static void
put_u32(bt_buf *buf, uint32_t value)
{
    put(buf, &value, 4);
}

static void
put_u64(bt_buf *buf, uint64_t value)
{
    put(buf, &value, 8);
}

static void
put_text(bt_buf *buf, const char *text)
{
    put_u64(buf, strlen(text));
    bt_buf_append_text(buf, text);
}

static void
put_header(bt_buf *buf, uint64_t tensors, uint64_t values)
{
    bt_buf_init(buf, 1 << 20);
    bt_buf_append_text(buf, "GGUF");
    put_u32(buf, 3);
    put_u64(buf, tensors);
    put_u64(buf, values);
}

static void
put_small_file(bt_buf *buf, uint64_t cols)
{
    put_header(buf, 1, 4);
    put_text(buf, "answer");
    put_u32(buf, BT_GGUF_I8);
    bt_buf_append_char(buf, 42);
    put_text(buf, "below");
    put_u32(buf, BT_GGUF_I32);
    put_u32(buf, (uint32_t)-1);
    put_text(buf, "name");
    put_u32(buf, BT_GGUF_STRING);
    put_text(buf, "baton");
    put_text(buf, "words");
    put_u32(buf, BT_GGUF_ARRAY);
    put_u32(buf, BT_GGUF_STRING);
    put_u64(buf, 3);
    put_text(buf, "one");
    put_text(buf, "");
    put_text(buf, "three");
    put_text(buf, "w");
    put_u32(buf, 2);
    put_u64(buf, cols);
    put_u64(buf, 2);
    put_u32(buf, BT_GGML_Q4_0);
    put_u64(buf, 0);
    while (buf->len % 32 != 0) {
        bt_buf_append_char(buf, 0);
    }
    for (int i = 0; i < 64; i++) { // 36 bytes of rows, and padding
        bt_buf_append_char(buf, (char)i);
    }
}

static bt_err
parse(const bt_buf *buf, bool metadata_only, bt_why *why)
{
    bt_gguf *gguf = NULL;
    bt_err err = bt_gguf_parse(&gguf, buf->data, buf->len, "test", metadata_only, why);

    bt_gguf_close(gguf);
    return err;
}

START_TEST(values_and_tensors_are_found_by_name)
{
    bt_gguf *gguf = NULL;
    const bt_gguf_tensor *tensor;
    uint32_t number = 7;
    bt_str text = {0};
    bt_buf buf;

    put_small_file(&buf, 32);
    ck_assert_int_eq(bt_gguf_parse(&gguf, buf.data, buf.len, "test", false, NULL), BT_OK);
    ck_assert_uint_eq(bt_gguf_value_count(gguf), 4);
    ck_assert(bt_gguf_get_u32(gguf, "answer", &number) && number == 42);
    ck_assert(!bt_gguf_get_u32(gguf, "below", &number) && number == 42);
    ck_assert(!bt_gguf_get_u32(gguf, "absent", &number));
    ck_assert(bt_gguf_get_str(gguf, "name", &text) && bt_str_is(text, "baton"));
    tensor = bt_gguf_find_tensor(gguf, "w");
    ck_assert_ptr_nonnull(tensor);
    ck_assert_uint_eq(tensor->bytes, 36);
    ck_assert_int_eq(tensor->data[35], 35);
    ck_assert_ptr_null(bt_gguf_find_tensor(gguf, "v"));
    bt_gguf_close(gguf);
    bt_buf_fini(&buf);
}
END_TEST

START_TEST(an_array_of_strings_is_walked_to_its_end)
{
    static const char *const words[] = {"one", "", "three"};
    bt_gguf *gguf = NULL;
    size_t cursor = 0, count = 0;
    bt_str word;
    bt_buf buf;

    put_small_file(&buf, 32);
    ck_assert_int_eq(bt_gguf_parse(&gguf, buf.data, buf.len, "test", false, NULL), BT_OK);
    while (bt_gguf_next_string(bt_gguf_find(gguf, "words"), &cursor, &word)) {
        ck_assert(count < 3 && bt_str_is(word, words[count]));
        count++;
    }
    ck_assert_uint_eq(count, 3);
    cursor = 0;
    ck_assert(!bt_gguf_next_string(bt_gguf_find(gguf, "name"), &cursor, &word));
    bt_gguf_close(gguf);
    bt_buf_fini(&buf);
}
END_TEST

START_TEST(every_shorter_file_is_refused)
{
    bt_buf buf;
    size_t whole;

    put_small_file(&buf, 32);
    for (whole = buf.len; buf.len > 0; buf.len--) {
        ck_assert_msg((parse(&buf, false, NULL) == BT_OK) == (buf.len == whole), "%zu of %zu bytes", buf.len, whole);
    }
    bt_buf_fini(&buf);
}
END_TEST

START_TEST(a_row_that_is_no_multiple_of_its_block_is_refused_by_name)
{
    bt_why why;
    bt_buf buf;

    put_small_file(&buf, 33);
    ck_assert_int_eq(parse(&buf, false, &why), BT_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(why.text, "test: byte "));
    ck_assert_ptr_nonnull(strstr(why.text, "'w': rows of Q4_0 hold a multiple of 32 elements, found 33"));
    bt_buf_fini(&buf);
}
END_TEST

START_TEST(claimed_counts_allocate_nothing)
{
    static const uint64_t counts[] = {1u << 20, (1u << 20) + 1, UINT64_MAX, UINT64_MAX / 48};
    bt_buf buf;

    for (size_t i = 0; i < 4; i++) {
        put_header(&buf, counts[i], 0);
        ck_assert_int_eq(parse(&buf, true, NULL), BT_ERR_INVALID);
        bt_buf_fini(&buf);
        put_header(&buf, 0, counts[i]);
        put_text(&buf, "k");
        put_u32(&buf, BT_GGUF_ARRAY);
        put_u32(&buf, BT_GGUF_U64);
        put_u64(&buf, counts[i]);
        ck_assert_int_eq(parse(&buf, true, NULL), BT_ERR_INVALID);
        bt_buf_fini(&buf);
    }
}
END_TEST

START_TEST(any_failing_allocation_is_reported_and_leaks_nothing)
{
    long live = bt_mem_live(), nth = 0;
    bt_buf buf;
    bt_err err;

    put_small_file(&buf, 32);
    do {
        bt_mem_fail_nth(++nth);
        err = parse(&buf, false, NULL);
        bt_mem_fail_nth(0);
        ck_assert(err == BT_OK || err == BT_ERR_NO_MEMORY);
    } while (err != BT_OK);
    ck_assert_int_gt(nth, 4);
    bt_buf_fini(&buf);
    ck_assert_int_eq(bt_mem_live(), live);
}
END_TEST

START_TEST(hostile_names_are_printed_harmlessly)
{
    bt_why why;
    bt_buf buf;

    put_header(&buf, 0, 1);
    put_text(&buf, "\033[2Jkey");
    put_u32(&buf, 99);
    ck_assert_int_eq(parse(&buf, true, &why), BT_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(why.text, "'?[2Jkey': unknown value type"));
    bt_buf_fini(&buf);
}
END_TEST

static void
check_verdict(const char *folder, const char *line)
{
    char name[128], expected[16], path[600];
    bt_why why = {"accepted"};
    size_t bytes;
    bt_gguf *gguf = NULL;
    char *data;
    bt_err err;

    ck_assert_int_eq(sscanf(line, "%127s %15s", name, expected), 2);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    data = bt_test_read(path, &bytes);
    err = bt_gguf_parse(&gguf, data, bytes, name, strncmp(name, "DATA_", 5) != 0, &why);
    ck_assert_msg((err == BT_OK) == (strcmp(expected, "accept") == 0), "%s: expected %s: %s", name, expected, why.text);
    bt_gguf_close(gguf);
    free(data);
}

START_TEST(handcrafted_files_are_judged_as_their_oracle_says)
{
    const char *folder;
    char *oracle, *line, *rest, path[100];
    int count = 0;

    if (bt_test_data() == NULL) {
        bt_test_skip("malformed/gguf");
        return;
    }
    folder = bt_test_unpack(bt_test_path("malformed/gguf/llama.cpp_handcrafted.tar.gz"));
    snprintf(path, sizeof path, "%s/EXPECTED.tsv", folder);
    oracle = bt_test_read(path, NULL);
    for (line = strtok_r(oracle, "\n", &rest); (line = strtok_r(NULL, "\n", &rest)) != NULL; count++) {
        check_verdict(folder, line);
    }
    ck_assert_int_eq(count, 61);
    free(oracle);
    bt_test_remove(folder);
}
END_TEST

START_TEST(mangled_files_are_refused)
{
    static const char *const files[] = {"crlf-mangled-ggml-vocab-bert-bge.gguf.gz",
                                        "crlf-mangled-ggml-vocab-llama-spm.gguf.gz", "ollama-api-test.gguf"};
    bt_gguf *gguf = NULL;

    if (bt_test_data() == NULL) {
        bt_test_skip("malformed/gguf");
        return;
    }
    for (size_t i = 0; i < 3; i++) {
        size_t bytes;
        char *data = bt_test_read(bt_test_path("malformed/gguf/%s", files[i]), &bytes);

        ck_assert_int_eq(bt_gguf_parse(&gguf, data, bytes, files[i], true, NULL), BT_ERR_INVALID);
        free(data);
    }
}
END_TEST

START_TEST(a_real_model_is_read)
{
    bt_gguf *gguf = NULL;
    uint32_t number = 0;
    bt_why why = {""};

    if (bt_test_data() == NULL) {
        bt_test_skip("models/stories260K");
        return;
    }
    ck_assert_msg(bt_gguf_open(&gguf, bt_test_path("models/stories260K/gguf/stories260K-f32.gguf"), &why) == BT_OK,
                  "%s", why.text);
    ck_assert_uint_eq(bt_gguf_tensor_count(gguf), 48);
    ck_assert(bt_gguf_get_u32(gguf, "llama.block_count", &number) && number == 5);
    bt_gguf_close(gguf);
}
END_TEST

START_TEST(the_tiny_model_is_read)
{
    static const uint32_t types[] = {BT_TINY_F32, BT_TINY_Q4_0, BT_TINY_Q8_0};

    for (size_t i = 0; i < 3; i++) {
        bt_gguf *gguf = NULL;
        bt_why why = {""};
        size_t bytes;
        char *data = bt_test_tiny_gguf(types[i], &bytes);

        ck_assert_msg(bt_gguf_parse(&gguf, data, bytes, "tiny", false, &why) == BT_OK, "%s", why.text);
        ck_assert_uint_eq(bt_gguf_find_tensor(gguf, "blk.1.ffn_down.weight")->type, types[i]);
        bt_gguf_close(gguf);
        free(data);
    }
}
END_TEST

START_TEST(the_committed_tiny_model_is_what_its_generator_writes)
{
    size_t bytes, committed_bytes;
    char *data = bt_test_tiny_gguf(BT_TINY_Q8_0, &bytes);
    char *committed = bt_test_read("tests/data/tiny-q8_0.gguf", &committed_bytes);

    ck_assert_uint_eq(bytes, committed_bytes);
    ck_assert(memcmp(data, committed, bytes) == 0);
    free(data);
    free(committed);
}
END_TEST

START_TEST(a_missing_file_is_not_found)
{
    bt_gguf *gguf = NULL;
    bt_why why;

    ck_assert_int_eq(bt_gguf_open(&gguf, "/nonexistent.gguf", &why), BT_ERR_NOT_FOUND);
    ck_assert_str_eq(why.text, "/nonexistent.gguf: No such file or directory");
    ck_assert_int_eq(bt_gguf_open(&gguf, "/", &why), BT_ERR_INVALID);
}
END_TEST

START_TEST(a_file_that_is_cut_anywhere_is_named)
{
    char path[] = "/tmp/baton-cut-XXXXXX";
    size_t bytes, prefix = strlen(path);
    char *tiny = bt_test_read("tests/data/tiny-q8_0.gguf", &bytes);
    int fd = mkstemp(path);

    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, tiny, bytes), (ssize_t)bytes);
    // From the last byte to none: keys, values, names and shapes of tensors, the data.
    for (size_t len = bytes; len != 0; len = len > 20000 ? len - 997 : len - 1) {
        bt_gguf *gguf = NULL;
        bt_why why = {""};

        ck_assert_int_eq(ftruncate(fd, (off_t)len - 1), 0);
        ck_assert_int_eq(bt_gguf_open(&gguf, path, &why), BT_ERR_INVALID);
        ck_assert_msg(strncmp(why.text, path, prefix) == 0 && strlen(why.text) > prefix + 2, "%zu bytes: %s", len - 1,
                      why.text);
    }
    close(fd);
    unlink(path);
    free(tiny);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("gguf");
    TCase *tests = tcase_create("gguf");

    tcase_add_test(tests, values_and_tensors_are_found_by_name);
    tcase_add_test(tests, an_array_of_strings_is_walked_to_its_end);
    tcase_add_test(tests, every_shorter_file_is_refused);
    tcase_add_test(tests, a_row_that_is_no_multiple_of_its_block_is_refused_by_name);
    tcase_add_test(tests, claimed_counts_allocate_nothing);
    tcase_add_test(tests, any_failing_allocation_is_reported_and_leaks_nothing);
    tcase_add_test(tests, hostile_names_are_printed_harmlessly);
    tcase_add_test(tests, handcrafted_files_are_judged_as_their_oracle_says);
    tcase_add_test(tests, mangled_files_are_refused);
    tcase_add_test(tests, a_real_model_is_read);
    tcase_add_test(tests, the_tiny_model_is_read);
    tcase_add_test(tests, the_committed_tiny_model_is_what_its_generator_writes);
    tcase_add_test(tests, a_missing_file_is_not_found);
    tcase_add_test(tests, a_file_that_is_cut_anywhere_is_named);
    suite_add_tcase(suite, tests);
    return bt_test_run(suite);
}
