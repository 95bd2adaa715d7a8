#include "tests/support/test.h"

#include "common/base/mem.h"
#include "common/model/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

// A file of this header and `data` zero bytes, judged.
static bt_err
judge(const char *header, size_t data, bt_why *why)
{
    static char file[4096];
    uint64_t length = strlen(header);
    bt_safetensors *files = NULL;
    bt_err err;

    memset(file, 0, sizeof file);
    memcpy(file, &length, 8);
    memcpy(file + 8, header, length);
    err = bt_safetensors_parse(&files, file, 8 + length + data, "test", why);
    bt_safetensors_close(files);
    return err;
}

#define A "\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}"

START_TEST(a_tensor_is_found_with_its_shape)
{
    static const char header[] =
        "{\"__metadata__\":{\"format\":\"pt\"}," A ",\"b\":{\"dtype\":\"BF16\",\"shape\":[],\"data_offsets\":[24,26]}}";
    char file[300] = {(char)strlen(header)};
    bt_safetensors *files = NULL;
    const bt_safetensor *tensor;

    memcpy(file + 8, header, sizeof header);
    ck_assert_int_eq(bt_safetensors_parse(&files, file, 8 + strlen(header) + 26, "test", NULL), BT_OK);
    ck_assert_uint_eq(bt_safetensors_count(files), 2);
    tensor = bt_safetensors_find(files, "a");
    ck_assert(tensor->dims == 2 && tensor->shape[0] == 2 && tensor->shape[1] == 3 && tensor->type == BT_GGML_F32);
    tensor = bt_safetensors_find(files, "b");
    ck_assert(tensor->dims == 0 && tensor->bytes == 2 && tensor->type == BT_GGML_BF16);
    ck_assert_ptr_null(bt_safetensors_find(files, "__metadata__"));
    bt_safetensors_close(files);
}
END_TEST

START_TEST(extents_fill_the_data_without_gap_or_overlap)
{
    bt_why why;

    ck_assert_int_eq(judge("{" A "}", 24, &why), BT_OK);
    ck_assert_int_eq(judge("{" A "}", 25, &why), BT_ERR_INVALID);
    ck_assert_str_eq(why.text, "test: 1 bytes lie behind the last tensor");
    ck_assert_int_eq(judge("{" A "}", 23, &why), BT_ERR_INVALID);
    ck_assert_int_eq(judge("{" A ",\"b\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[20,28]}}", 28, &why),
                     BT_ERR_INVALID);
    ck_assert_str_eq(why.text, "test: 'b': expected to begin at byte 24 of the data, found 20 (overlap)");
    ck_assert_int_eq(judge("{" A ",\"b\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[26,34]}}", 34, &why),
                     BT_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(why.text, "(gap)"));
}
END_TEST

START_TEST(a_file_without_tensors_is_a_file)
{
    ck_assert_int_eq(judge("{}", 0, NULL), BT_OK);
    ck_assert_int_eq(judge("{}", 1, NULL), BT_ERR_INVALID);
}
END_TEST

START_TEST(sizes_must_agree_with_shapes)
{
    bt_why why;

    ck_assert_int_eq(judge("{\"a\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0,24]}}", 24, &why),
                     BT_ERR_INVALID);
    ck_assert_str_eq(why.text, "test: a: 4 elements of 32 bits do not fill 24 bytes");
    ck_assert_int_eq(judge("{\"a\":{\"dtype\":\"F31\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, &why),
                     BT_ERR_INVALID);
    ck_assert_str_eq(why.text, "test: a.dtype: unknown type F31");
    ck_assert_int_eq(judge("{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,8]}}", 8, &why),
                     BT_ERR_INVALID);
    ck_assert_int_eq(judge("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}", 8, &why),
                     BT_ERR_INVALID);
    ck_assert_int_eq(judge("{" A "," A "}", 24, &why), BT_ERR_INVALID);
}
END_TEST

START_TEST(any_failing_allocation_is_reported_and_leaks_nothing)
{
    long live = bt_mem_live(), nth = 0;
    bt_err err;

    do {
        bt_mem_fail_nth(++nth);
        err = judge("{" A "}", 24, NULL);
        bt_mem_fail_nth(0);
        // jansson reports some of its own failing allocations as bad syntax.
        ck_assert(err == BT_OK || err == BT_ERR_NO_MEMORY || err == BT_ERR_INVALID);
    } while (err != BT_OK);
    ck_assert_int_gt(nth, 3);
    ck_assert_int_eq(bt_mem_live(), live);
}
END_TEST

static void
check_verdict(const char *folder, const char *file, bool accept)
{
    char path[600];
    bt_safetensors *files = NULL;
    bt_why why = {"accepted"};
    size_t bytes;
    char *data;

    snprintf(path, sizeof path, "%s/%s", folder, file);
    data = bt_test_read(path, &bytes);
    ck_assert_msg((bt_safetensors_parse(&files, data, bytes, file, &why) == BT_OK) == accept, "%s: %s", file, why.text);
    bt_safetensors_close(files);
    free(data);
}

START_TEST(the_reference_implementations_files_are_judged_alike)
{
    static const char *const valid[] = {"B", "H", "I", "b", "d", "e", "f", "h", "i", "overall"};
    char path[100], name[100], verdict[100], *oracle, *line, *rest = NULL;
    const char *folder;
    int count = 0;

    if (bt_test_data() == NULL) {
        bt_test_skip("malformed/safetensors");
        return;
    }
    folder = bt_test_unpack(bt_test_path("malformed/safetensors/tensor_rs_vectors.tar.gz"));
    snprintf(path, sizeof path, "%s/EXPECTED.tsv", folder);
    oracle = bt_test_read(path, NULL);
    for (line = strtok_r(oracle, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest), count++) {
        ck_assert_int_eq(sscanf(line, "%99s %99s", name, verdict), 2);
        check_verdict(folder, name, strcmp(verdict, "accept") == 0);
    }
    ck_assert_int_eq(count, 16);
    free(oracle);
    bt_test_remove(folder);
    folder = bt_test_unpack(bt_test_path("malformed/safetensors/valid_samples.tar.gz"));
    for (size_t i = 0; i < 10; i++) {
        snprintf(name, sizeof name, "%s.safetensors", valid[i]);
        check_verdict(folder, name, true);
    }
    bt_test_remove(folder);
}
END_TEST

START_TEST(shards_are_joined_by_their_index)
{
    bt_safetensors *files = NULL;
    bt_why why = {""};

    if (bt_test_data() == NULL) {
        bt_test_skip("golden/tiny");
        return;
    }
    ck_assert_msg(bt_safetensors_open(&files, bt_test_path("golden/tiny/llama-2shard-bf16"), &why) == BT_OK, "%s",
                  why.text);
    ck_assert_uint_eq(bt_safetensors_count(files), 21);
    ck_assert_ptr_nonnull(bt_safetensors_find(files, "model.layers.1.mlp.up_proj.weight"));
    bt_safetensors_close(files);
}
END_TEST

static void
write_text(const char *folder, const char *name, const char *text)
{
    char path[200];
    FILE *file;

    snprintf(path, sizeof path, "%s/%s", folder, name);
    file = fopen(path, "wb");
    ck_assert(file != NULL && fputs(text, file) >= 0 && fclose(file) == 0);
}

START_TEST(an_index_cannot_lead_out_of_its_folder)
{
    char folder[] = "/tmp/baton-test-XXXXXX";
    bt_safetensors *files = NULL;
    bt_why why;

    ck_assert_ptr_nonnull(mkdtemp(folder));
    ck_assert_int_eq(bt_safetensors_open(&files, folder, &why), BT_ERR_NOT_FOUND);
    write_text(folder, "model.safetensors.index.json", "{\"weight_map\":{\"a\":\"../../etc/passwd\"}}");
    ck_assert_int_eq(bt_safetensors_open(&files, folder, &why), BT_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(why.text, "weight_map.a: expected the name of a file in this folder"));
    bt_test_remove(folder);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("safetensors");
    TCase *tests = tcase_create("safetensors");

    tcase_add_test(tests, a_tensor_is_found_with_its_shape);
    tcase_add_test(tests, extents_fill_the_data_without_gap_or_overlap);
    tcase_add_test(tests, a_file_without_tensors_is_a_file);
    tcase_add_test(tests, sizes_must_agree_with_shapes);
    tcase_add_test(tests, any_failing_allocation_is_reported_and_leaks_nothing);
    tcase_add_test(tests, the_reference_implementations_files_are_judged_alike);
    tcase_add_test(tests, shards_are_joined_by_their_index);
    tcase_add_test(tests, an_index_cannot_lead_out_of_its_folder);
    suite_add_tcase(suite, tests);
    return bt_test_run(suite);
}
