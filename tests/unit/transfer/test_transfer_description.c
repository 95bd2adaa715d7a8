#include "tests/support/test.h"

#include "common/transfer/description.h"

#include <string.h>

static uint8_t address[300], key[40], bytes[4096];
static size_t length;

static const bt_description sample = {
    .transport = 2,
    .window = 4,
    .blocks = 100,
    .epoch = 0x1122334455667788u,
    .identity = 9,
    .layout = 10,
    .block_bytes = 4096,
    .base = 0x7f0000000000u,
    .address_bytes = sizeof address,
    .key_bytes = sizeof key,
    .address = address,
    .key = key,
};

static void
set_up(void)
{
    memset(address, 0xab, sizeof address);
    memset(key, 0xcd, sizeof key);
    ck_assert_int_eq(bt_description_encode(&sample, bytes, sizeof bytes, &length), BT_OK);
}

START_TEST(what_was_encoded_comes_back)
{
    bt_description d;

    ck_assert_int_eq(bt_description_decode(&d, bytes, length, NULL), BT_OK);
    ck_assert_uint_eq(d.transport, 2);
    ck_assert_uint_eq(d.window, 4);
    ck_assert_uint_eq(d.blocks, 100);
    ck_assert_uint_eq(d.epoch, sample.epoch);
    ck_assert_uint_eq(d.identity, 9);
    ck_assert_uint_eq(d.layout, 10);
    ck_assert_uint_eq(d.block_bytes, 4096);
    ck_assert_uint_eq(d.base, sample.base);
    ck_assert_uint_eq(d.address_bytes, sizeof address);
    ck_assert_mem_eq(d.address, address, sizeof address);
    ck_assert_uint_eq(d.key_bytes, sizeof key);
    ck_assert_mem_eq(d.key, key, sizeof key);
}
END_TEST

START_TEST(any_changed_byte_and_any_other_length_is_refused)
{
    bt_description d;

    for (size_t i = 0; i < length; i++) {
        bt_why why = {{0}};

        bytes[i] ^= 0x10;
        ck_assert_int_ne(bt_description_decode(&d, bytes, length, &why), BT_OK);
        ck_assert_uint_gt(strlen(why.text), 0);
        bytes[i] ^= 0x10;
        ck_assert_int_eq(bt_description_decode(&d, bytes, i, NULL), BT_ERR_INVALID);
    }
    ck_assert_int_eq(bt_description_decode(&d, bytes, length + 1, NULL), BT_ERR_INVALID);
}
END_TEST

static void
refused(bt_description d)
{
    ck_assert_int_eq(bt_description_encode(&d, bytes, sizeof bytes, &length), BT_OK);
    ck_assert_int_eq(bt_description_decode(&d, bytes, length, NULL), BT_ERR_INVALID);
}

START_TEST(numbers_that_cannot_be_are_refused)
{
    bt_description d;

    d = sample, d.epoch = 0, refused(d);
    d = sample, d.window = 0, refused(d);
    d = sample, d.blocks = 0, refused(d);
    d = sample, d.block_bytes = 0, refused(d);
    d = sample, d.block_bytes = 100, refused(d);
    d = sample, d.block_bytes = UINT64_MAX / 2 / 64 * 64, refused(d);
    d = sample, d.base = UINT64_MAX - 100, refused(d);
}
END_TEST

START_TEST(what_does_not_fit_is_an_error)
{
    bt_description d = sample;
    size_t unused = 77;

    ck_assert_int_eq(bt_description_encode(&d, bytes, length - 1, &unused), BT_ERR_TOO_LONG);
    ck_assert_uint_eq(unused, 77);
    d.key_bytes = BT_DESCRIPTION_KEY_MAX + 1;
    ck_assert_int_eq(bt_description_encode(&d, bytes, sizeof bytes, &unused), BT_ERR_TOO_LONG);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("description");
    TCase *tcase = tcase_create("description");

    tcase_add_checked_fixture(tcase, set_up, NULL);
    tcase_add_test(tcase, what_was_encoded_comes_back);
    tcase_add_test(tcase, any_changed_byte_and_any_other_length_is_refused);
    tcase_add_test(tcase, numbers_that_cannot_be_are_refused);
    tcase_add_test(tcase, what_does_not_fit_is_an_error);
    suite_add_tcase(suite, tcase);
    return bt_test_run(suite);
}
