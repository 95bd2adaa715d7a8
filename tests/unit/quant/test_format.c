#include "tests/support/test.h"

#include "common/quant/format.h"
#include "common/quant/ggml.h"

static bt_format
integer(unsigned bits, bool asymmetric, unsigned block, unsigned act_block)
{
    return (bt_format){BT_WEIGHT_INT, (uint8_t)bits, asymmetric, (uint16_t)block, (uint16_t)act_block};
}

START_TEST(names_tell_formats_apart)
{
    char name[24];

    ck_assert_str_eq(bt_format_name((bt_format){.kind = BT_WEIGHT_BF16}, name), "bf16");
    ck_assert_str_eq(bt_format_name(integer(4, false, 32, 32), name), "q4_32");
    ck_assert_str_eq(bt_format_name(integer(5, true, 128, 128), name), "q5a_128");
    ck_assert_str_eq(bt_format_name(integer(8, false, BT_BLOCK_ROW, BT_BLOCK_ROW), name), "w8");
    ck_assert_str_eq(bt_format_name(integer(8, false, BT_BLOCK_ROW, 128), name), "w8_g128");
}
END_TEST

START_TEST(only_members_of_the_family_are_valid)
{
    ck_assert(bt_format_valid((bt_format){.kind = BT_WEIGHT_F16}));
    ck_assert(bt_format_valid(integer(4, true, 32, 32)));
    ck_assert(bt_format_valid(integer(4, false, 32, 128)));
    ck_assert(bt_format_valid(integer(6, false, 16, 32)));
    ck_assert(bt_format_valid(integer(8, false, BT_BLOCK_ROW, BT_BLOCK_ROW)));
    ck_assert(!bt_format_valid((bt_format){.kind = 4}));
    ck_assert(!bt_format_valid(integer(7, false, 32, 32)));
    ck_assert(!bt_format_valid(integer(8, true, 32, 32)));
    ck_assert(!bt_format_valid(integer(4, false, 128, 32)));
    ck_assert(!bt_format_valid(integer(4, false, 48, 96)));
    ck_assert(!bt_format_valid(integer(4, false, 32, BT_BLOCK_ROW)));
    ck_assert(!bt_format_valid(integer(4, false, BT_BLOCK_ROW, BT_BLOCK_ROW)));
}
END_TEST

START_TEST(bits_count_scales_and_minima)
{
    ck_assert_double_eq(bt_format_bits((bt_format){.kind = BT_WEIGHT_F32}), 32);
    ck_assert_double_eq(bt_format_bits(integer(4, false, 32, 32)), 4.5);
    ck_assert_double_eq(bt_format_bits(integer(4, true, 32, 32)), 5);
    ck_assert_double_eq(bt_format_bits(integer(4, false, 128, 128)), 4.125);
}
END_TEST

START_TEST(ggml_rows_have_the_size_of_their_blocks)
{
    ck_assert_str_eq(bt_ggml_name(BT_GGML_Q4_K), "Q4_K");
    ck_assert_str_eq(bt_ggml_name(4), "unknown");
    ck_assert_str_eq(bt_ggml_name(UINT32_MAX), "unknown");
    ck_assert_uint_eq(bt_ggml_row_bytes(BT_GGML_Q4_1, 64), 40);
    ck_assert_uint_eq(bt_ggml_row_bytes(BT_GGML_Q6_K, 512), 420);
    ck_assert_uint_eq(bt_ggml_row_bytes(31, 512), 0);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("format");
    TCase *tests = tcase_create("format");

    tcase_add_test(tests, names_tell_formats_apart);
    tcase_add_test(tests, only_members_of_the_family_are_valid);
    tcase_add_test(tests, bits_count_scales_and_minima);
    tcase_add_test(tests, ggml_rows_have_the_size_of_their_blocks);
    suite_add_tcase(suite, tests);
    return bt_test_run(suite);
}
