#include "tests/support/test.h"

#include "common/kv/layout.h"

#include <stdlib.h>
#include <string.h>

static const uint32_t dims[] = {4, 8, 24, 32, 64, 80, 96, 128, 256, 512};
static const uint32_t tokens[] = {16, 32, 64};

// Every byte of a block's layers belongs to one part, in the order of the header's picture, each part 64-byte aligned.
static void
check_parts(const bt_kv_layout *l)
{
    uint8_t *block = malloc(l->block_bytes);
    uint32_t last = l->kv_heads - 1;
    uint8_t *layer1 = block + l->layer_bytes * (l->layers > 1);
    uint32_t layer = l->layers > 1;

    ck_assert_ptr_eq(bt_kv_k(l, block, layer, 0), layer1);
    ck_assert_ptr_eq((uint8_t *)bt_kv_k_scales(l, block, layer, 0), layer1 + l->k_scale_offset);
    ck_assert_ptr_eq(bt_kv_v(l, block, layer, last), layer1 + l->v_offset + last * l->v_head_bytes);
    ck_assert_ptr_eq((uint8_t *)bt_kv_v_scales(l, block, layer, 0), layer1 + l->v_scale_offset);
    ck_assert_uint_ge(l->k_scale_offset, l->kv_heads * l->k_head_bytes);
    ck_assert_uint_ge(l->v_offset, l->k_scale_offset + l->kv_heads * l->k_scale_head_bytes);
    ck_assert_uint_ge(l->v_scale_offset, l->v_offset + l->kv_heads * l->v_head_bytes);
    ck_assert_uint_ge(l->layer_bytes, l->v_scale_offset + l->kv_heads * l->v_scale_head_bytes);
    ck_assert_uint_eq((l->k_scale_offset | l->v_offset | l->v_scale_offset | l->layer_bytes | l->block_bytes) % 64, 0);
    ck_assert_uint_eq(l->trailer_offset, l->layers * l->layer_bytes);
    ck_assert_uint_ge(l->block_bytes, l->trailer_offset + sizeof(bt_kv_trailer));
    free(block);
}

START_TEST(parts_follow_each_other_without_overlap)
{
    for (size_t d = 0; d < sizeof dims / sizeof *dims; d++) {
        for (int t = 0; t < 3; t++) {
            for (int format = BT_KV_INT8; format <= BT_KV_F32; format++) {
                bt_kv_layout l;

                ck_assert_int_eq(bt_kv_layout_init(&l, (bt_kv_format)format, 2, 3, dims[d], tokens[t], dims[d], NULL),
                                 BT_OK);
                check_parts(&l);
            }
        }
    }
}
END_TEST

START_TEST(an_int8_block_has_the_bytes_that_a_person_counts)
{
    bt_kv_layout l;

    ck_assert_int_eq(bt_kv_layout_init(&l, BT_KV_INT8, 30, 3, 64, 32, 64, NULL), BT_OK);
    ck_assert_uint_eq(l.k_head_bytes, 2048);
    ck_assert_uint_eq(l.k_scale_head_bytes, 64);
    ck_assert_uint_eq(l.layer_bytes, 2 * (3 * 2048 + 3 * 64));
    ck_assert_uint_eq(l.block_bytes, 30 * l.layer_bytes + 64);
    ck_assert_int_eq(bt_kv_layout_init(&l, BT_KV_INT8, 1, 1, 128, 16, 32, NULL), BT_OK);
    ck_assert_uint_eq(l.k_scale_head_bytes, 16 * 4 * 2);
}
END_TEST

static void
refused(bt_kv_format format, uint32_t layers, uint32_t heads, uint32_t dim, uint32_t block, uint32_t group)
{
    bt_kv_layout l;
    bt_why why = {{0}};

    memset(&l, 0x5a, sizeof l);
    ck_assert_int_eq(bt_kv_layout_init(&l, format, layers, heads, dim, block, group, &why), BT_ERR_INVALID);
    ck_assert_uint_gt(strlen(why.text), 0);
    ck_assert_uint_eq(l.layers, 0x5a5a5a5au); // untouched
    ck_assert_int_eq(bt_kv_layout_init(&l, format, layers, heads, dim, block, group, NULL), BT_ERR_INVALID);
}

START_TEST(sizes_outside_are_refused_with_a_reason)
{
    refused((bt_kv_format)7, 1, 1, 64, 32, 64);
    refused(BT_KV_INT8, 0, 1, 64, 32, 64);
    refused(BT_KV_INT8, 1, 0, 64, 32, 64);
    refused(BT_KV_INT8, 1, 1, 66, 32, 66);
    refused(BT_KV_INT8, 1, 1, 0, 32, 0);
    refused(BT_KV_INT8, 1, 1, 516, 32, 516);
    refused(BT_KV_INT8, 1, 1, 64, 48, 64);
    refused(BT_KV_INT8, 1, 1, 64, 32, 16);
    refused(BT_KV_INT8, 1, 1, 80, 32, 32);
    refused(BT_KV_F16, UINT32_MAX, UINT32_MAX, 64, 32, 64);
}
END_TEST

START_TEST(the_fingerprint_tells_any_two_layouts_apart)
{
    uint64_t seen[200];
    size_t count = 0;

    for (int format = BT_KV_INT8; format <= BT_KV_F32; format++) {
        for (uint32_t layers = 1; layers <= 2; layers++) {
            for (uint32_t dim = 32; dim <= 64; dim += 32) {
                for (int t = 0; t < 3; t++) {
                    for (uint32_t heads = 1; heads <= 3; heads++) {
                        bt_kv_layout l;

                        ck_assert_int_eq(
                            bt_kv_layout_init(&l, (bt_kv_format)format, layers, heads, dim, tokens[t], dim, NULL),
                            BT_OK);
                        seen[count++] = bt_kv_layout_fingerprint(&l);
                    }
                }
            }
        }
    }
    for (size_t i = 0; i < count; i++) {
        for (size_t j = 0; j < i; j++) {
            ck_assert_uint_ne(seen[i], seen[j]);
        }
    }
}
END_TEST

START_TEST(a_scale_group_matters_only_where_there_are_scales)
{
    bt_kv_layout a, b;

    ck_assert_int_eq(bt_kv_layout_init(&a, BT_KV_F16, 1, 1, 64, 32, 64, NULL), BT_OK);
    ck_assert_int_eq(bt_kv_layout_init(&b, BT_KV_F16, 1, 1, 64, 32, 32, NULL), BT_OK);
    ck_assert_uint_eq(bt_kv_layout_fingerprint(&a), bt_kv_layout_fingerprint(&b));
    ck_assert_int_eq(bt_kv_layout_init(&a, BT_KV_INT8, 1, 1, 64, 32, 64, NULL), BT_OK);
    ck_assert_int_eq(bt_kv_layout_init(&b, BT_KV_INT8, 1, 1, 64, 32, 32, NULL), BT_OK);
    ck_assert_uint_ne(bt_kv_layout_fingerprint(&a), bt_kv_layout_fingerprint(&b));
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("layout");
    TCase *tcase = tcase_create("layout");

    tcase_add_test(tcase, parts_follow_each_other_without_overlap);
    tcase_add_test(tcase, an_int8_block_has_the_bytes_that_a_person_counts);
    tcase_add_test(tcase, sizes_outside_are_refused_with_a_reason);
    tcase_add_test(tcase, the_fingerprint_tells_any_two_layouts_apart);
    tcase_add_test(tcase, a_scale_group_matters_only_where_there_are_scales);
    suite_add_tcase(suite, tcase);
    return bt_test_run(suite);
}
