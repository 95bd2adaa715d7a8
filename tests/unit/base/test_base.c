#include "tests/support/test.h"

#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/base/mem.h"
#include "common/base/str.h"
#include "common/tensor/dtype.h"

#include <math.h>

START_TEST(every_error_has_a_name)
{
    for (int err = 0; err < BT_ERR_COUNT; err++) {
        ck_assert_str_ne(bt_err_name((bt_err)err), "UNKNOWN");
    }
    ck_assert_str_eq(bt_err_name(BT_ERR_COUNT), "UNKNOWN");
}
END_TEST

START_TEST(the_nth_allocation_fails_and_only_that_one)
{
    void *first, *second, *third;

    bt_mem_fail_nth(2);
    first = bt_alloc(8);
    second = bt_alloc(8);
    third = bt_alloc(8);
    ck_assert_ptr_nonnull(first);
    ck_assert_ptr_null(second);
    ck_assert_ptr_nonnull(third);
    bt_free(first);
    bt_free(third);
}
END_TEST

START_TEST(an_arena_stops_at_its_limit)
{
    bt_arena arena;
    size_t taken = 0;

    bt_arena_init(&arena, 10000);
    while (bt_arena_alloc(&arena, 100) != NULL) {
        taken += 112;
    }
    ck_assert_uint_le(taken, 10000);
    ck_assert_uint_gt(taken, 10000 - 112);
    bt_arena_fini(&arena);
    ck_assert_ptr_nonnull(bt_arena_alloc(&arena, 100));
    bt_arena_fini(&arena);
}
END_TEST

START_TEST(pages_are_zeroed_and_aligned)
{
    size_t sizes[] = {1, 4096, 3u << 20};

    for (size_t i = 0; i < 3; i++) {
        char *pages = bt_alloc_pages(sizes[i]);

        ck_assert_ptr_nonnull(pages);
        ck_assert_uint_eq((size_t)pages % 64, 0);
        ck_assert_int_eq(pages[sizes[i] - 1], 0);
        bt_free_pages(pages, sizes[i]);
    }
}
END_TEST

START_TEST(a_buffer_over_its_limit_says_so_once_at_the_end)
{
    bt_buf buf;

    bt_buf_init(&buf, 10);
    bt_buf_append_text(&buf, "hello");
    bt_buf_printf(&buf, "%d", 12345);
    ck_assert(!buf.failed);
    ck_assert_str_eq(buf.data, "hello12345");
    bt_buf_append_char(&buf, 'x');
    ck_assert(buf.failed);
    ck_assert_str_eq(buf.data, "hello12345");
    bt_buf_fini(&buf);
}
END_TEST

START_TEST(utf8_refuses_overlong_surrogate_and_cut_forms)
{
    static const char *const bad[] = {"\xc0\x80", "\xe0\x80\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80",
                                      "\xe2\x82", "\x80",         "\xff"};

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        uint32_t c;

        ck_assert_uint_eq(bt_utf8_decode(bad[i], strlen(bad[i]), &c), 0);
    }
    for (uint32_t c = 0; c <= 0x10ffff; c++) {
        char bytes[4];
        uint32_t back = 0;
        size_t count = bt_utf8_encode(c, bytes);

        if (c >= 0xd800 && c < 0xe000) {
            ck_assert_uint_eq(count, 0);
            continue;
        }
        ck_assert_uint_eq(bt_utf8_decode(bytes, count, &back), count);
        ck_assert_uint_eq(back, c);
    }
    ck_assert_uint_eq(bt_utf8_valid_prefix("ab\xff", 3), 2);
}
END_TEST

START_TEST(half_floats_survive_a_round_trip)
{
    for (uint32_t bits = 0; bits < 65536; bits++) {
        float wide = bt_f16_to_f32((uint16_t)bits);

        if (isnan(wide)) {
            ck_assert(isnan(bt_f16_to_f32(bt_f32_to_f16(wide))));
            continue;
        }
        ck_assert_uint_eq(bt_f32_to_f16(wide), bits);
    }
    ck_assert_uint_eq(bt_f32_to_f16(65519.0f), 0x7bff);
    ck_assert_uint_eq(bt_f32_to_f16(65520.0f), 0x7c00);
    ck_assert_uint_eq(bt_f32_to_f16(0x1p-25f), 0);
    ck_assert_uint_eq(bt_f32_to_f16(0x1.8p-25f), 1);
    ck_assert_uint_eq(bt_f32_to_bf16(1.00390625f), 0x3f80);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("base");
    TCase *all = tcase_create("all");

    tcase_add_test(all, every_error_has_a_name);
    tcase_add_test(all, the_nth_allocation_fails_and_only_that_one);
    tcase_add_test(all, an_arena_stops_at_its_limit);
    tcase_add_test(all, pages_are_zeroed_and_aligned);
    tcase_add_test(all, a_buffer_over_its_limit_says_so_once_at_the_end);
    tcase_add_test(all, utf8_refuses_overlong_surrogate_and_cut_forms);
    tcase_add_test(all, half_floats_survive_a_round_trip);
    suite_add_tcase(suite, all);
    return bt_test_run(suite);
}
