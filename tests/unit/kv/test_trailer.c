#include "tests/support/test.h"

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/kv/trailer.h"

#include <string.h>

static bt_kv_layout layout;
static uint8_t *block;

static void
set_up(void)
{
    bt_rng rng = {7};

    ck_assert_int_eq(bt_kv_layout_init(&layout, BT_KV_INT8, 3, 2, 64, 16, 64, NULL), BT_OK);
    block = bt_alloc_pages(layout.block_bytes);
    for (size_t i = 0; i < layout.trailer_offset; i++) {
        block[i] = (uint8_t)bt_rng_next(&rng);
    }
}

static void
tear_down(void)
{
    bt_kv_checksum_limit(2);
    bt_free_pages(block, layout.block_bytes);
}

// The header's formula, word by word.
static uint64_t
sum_by_hand(const uint8_t *data, size_t bytes, uint64_t first)
{
    uint64_t sum = 0;

    for (size_t i = 0; i < bytes / 8; i++) {
        uint64_t w = 0, x;

        for (int b = 7; b >= 0; b--) {
            w = w << 8 | data[8 * i + b];
        }
        x = w ^ (i + first + 1) * 0x9e3779b97f4a7c15u;
        sum += w + (uint64_t)(uint32_t)x * (uint32_t)(x >> 32);
    }
    return sum;
}

START_TEST(every_form_gives_the_header_s_sum_for_every_length_and_place)
{
    static uint64_t from[400], to[400];
    bt_rng rng = {1};

    for (size_t i = 0; i < 400; i++) {
        from[i] = bt_rng_next(&rng);
    }
    for (int form = 0; form <= 2; form++) {
        bt_kv_checksum_limit(form);
        for (size_t words = 0; words < 70; words++) {
            for (size_t at = 0; at < 9; at++) {
                uint64_t expected = sum_by_hand((const uint8_t *)(from + at), 8 * words, 11 * at);

                memset(to, 0x5a, sizeof to);
                ck_assert_uint_eq(bt_kv_checksum_part(from + at, 8 * words, 11 * at), expected);
                ck_assert_uint_eq(bt_kv_checksum_copy(to + 8 - at, from + at, 8 * words, 11 * at), expected);
                ck_assert_mem_eq(to + 8 - at, from + at, 8 * words);
                ck_assert_uint_eq(to[8 - at + words], 0x5a5a5a5a5a5a5a5au);
                ck_assert_uint_eq(to[7 - at < 8 ? 7 - at : 399], 0x5a5a5a5a5a5a5a5au);
            }
        }
    }
}
END_TEST

START_TEST(the_value_of_a_known_block_never_changes)
{
    uint64_t words[4] = {0, 1, UINT64_MAX, 0x0123456789abcdefu};

    // Computed apart from this code, by the formula in Python: a change here is a change of format.
    ck_assert_uint_eq(bt_kv_checksum_end(bt_kv_checksum_part(words, sizeof words, 0), sizeof words),
                      0x148370c90c0a0538u);
}
END_TEST

START_TEST(parts_in_any_order_add_up_to_the_whole)
{
    uint64_t whole = bt_kv_checksum_part(block, layout.trailer_offset, 0), sum = 0;
    size_t cut = 8 * 37;

    sum += bt_kv_checksum_part(block + cut, layout.trailer_offset - cut, cut / 8);
    sum += bt_kv_checksum_part(block, cut, 0);
    ck_assert_uint_eq(sum, whole);
}
END_TEST

START_TEST(any_flipped_bit_and_any_swapped_words_are_seen)
{
    bt_kv_trailer_stamp(&layout, block, 5, 6);
    for (size_t bit = 0; bit < layout.trailer_offset * 8; bit += 3) {
        block[bit / 8] ^= (uint8_t)(1u << bit % 8);
        ck_assert_int_eq(bt_kv_trailer_check(&layout, block, 5, 6, NULL), BT_KV_BAD_CHECKSUM);
        block[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    for (size_t i = 8; i < 2000; i += 8) {
        uint64_t a, b;

        memcpy(&a, block, 8);
        memcpy(&b, block + i, 8);
        memcpy(block, &b, 8);
        memcpy(block + i, &a, 8);
        ck_assert_int_eq(bt_kv_trailer_check(&layout, block, 5, 6, NULL), BT_KV_BAD_CHECKSUM);
        memcpy(block, &a, 8);
        memcpy(block + i, &b, 8);
    }
    ck_assert_int_eq(bt_kv_trailer_check(&layout, block, 5, 6, NULL), BT_KV_GOOD);
}
END_TEST

START_TEST(a_check_names_what_is_wrong)
{
    uint64_t sum = bt_kv_checksum_part(block, layout.trailer_offset, 0), wrong = sum + 1;

    bt_kv_trailer_stamp(&layout, block, 5, 6);
    ck_assert_int_eq(bt_kv_trailer_check(&layout, block, 5, 6, &sum), BT_KV_GOOD);
    ck_assert_int_eq(bt_kv_trailer_check(&layout, block, 5, 6, &wrong), BT_KV_BAD_CHECKSUM);
    ck_assert_int_eq(bt_kv_trailer_check(&layout, block, 4, 6, NULL), BT_KV_BAD_EPOCH);
    ck_assert_int_eq(bt_kv_trailer_check(&layout, block, 5, 7, NULL), BT_KV_BAD_GENERATION);
    block[3] ^= 1;
    ck_assert_int_eq(bt_kv_trailer_check_names(&layout, block, 5, 6), BT_KV_GOOD);
}
END_TEST

START_TEST(a_cleared_block_is_nobody_s)
{
    bt_kv_trailer_stamp(&layout, block, 5, 6);
    bt_kv_trailer_clear(&layout, block);
    ck_assert_int_eq(bt_kv_trailer_check(&layout, block, 5, 6, NULL), BT_KV_BAD_EPOCH);
    ck_assert_int_ne(bt_kv_trailer_check_names(&layout, block, 0, 0), BT_KV_GOOD);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("trailer");
    TCase *tcase = tcase_create("trailer");

    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_add_test(tcase, every_form_gives_the_header_s_sum_for_every_length_and_place);
    tcase_add_test(tcase, the_value_of_a_known_block_never_changes);
    tcase_add_test(tcase, parts_in_any_order_add_up_to_the_whole);
    tcase_add_test(tcase, any_flipped_bit_and_any_swapped_words_are_seen);
    tcase_add_test(tcase, a_check_names_what_is_wrong);
    tcase_add_test(tcase, a_cleared_block_is_nobody_s);
    suite_add_tcase(suite, tcase);
    return bt_test_run(suite);
}
