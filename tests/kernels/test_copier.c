// The copier of the CPU, which is what others are measured by.
#include "tests/kernels/copier_case.h"
#include "tests/support/test.h"

START_TEST(sums_of_blocks_of_every_shape_are_those_of_the_specification)
{
    for (size_t shape = 0; shape < COPIER_SHAPES; shape++) {
        copier_case_sums(BT_DEVICE_CPU, shape);
    }
}
END_TEST

START_TEST(a_fetch_either_way_brings_the_bytes_their_sums_and_their_trailers)
{
    for (size_t shape = 0; shape < COPIER_SHAPES; shape++) {
        copier_case_fetches(BT_DEVICE_CPU, shape);
    }
}
END_TEST

START_TEST(stamped_blocks_are_good_and_cleared_ones_are_not)
{
    for (size_t shape = 0; shape < COPIER_SHAPES; shape++) {
        copier_case_stamps(BT_DEVICE_CPU, shape);
    }
}
END_TEST

START_TEST(copies_of_any_kind_come_in_order)
{
    copier_case_copies(BT_DEVICE_CPU);
}
END_TEST

START_TEST(more_blocks_than_were_said_at_open_are_refused)
{
    copier_world w = {0};
    bt_kv_layout layout = {.block_bytes = 64};
    uint64_t ticket = 42;

    copier_world_open_device(&w, BT_DEVICE_CPU, true);
    ck_assert_int_eq(bt_copier_sum(w.copier, &layout, NULL, 2049, &ticket), BT_ERR_INVALID);
    ck_assert_int_eq(bt_copier_clear(w.copier, &layout, NULL, NULL, 2049, &ticket), BT_ERR_INVALID);
    ck_assert_uint_eq(ticket, 42);
    ck_assert_int_eq(bt_copier_fd(w.copier), -1);
    ck_assert(bt_copier_arm(w.copier));
    bt_copier_close(w.copier);
    bt_device_close(w.device);
}
END_TEST

START_TEST(waiting_for_no_batch_is_refused)
{
    copier_world w = {0};

    copier_world_open_device(&w, BT_DEVICE_CPU, false);
    ck_assert_int_eq(bt_copier_wait(w.copier, 0, COPIER_SOON), BT_ERR_INVALID);
    bt_copier_close(w.copier);
    bt_device_close(w.device);
}
END_TEST

START_TEST(the_cpu_says_that_it_lends_no_memory)
{
    copier_world w = {0};
    bt_device_shared shared = {{0}, {0}};
    const void *memory;
    bool same;
    bt_why why;

    copier_world_open_device(&w, BT_DEVICE_CPU, false);
    ck_assert_int_eq(bt_device_share(w.device, &w, &shared, &why), BT_ERR_UNSUPPORTED);
    ck_assert_int_eq(bt_device_open_shared(w.device, &shared, &memory, &same, &why), BT_ERR_UNSUPPORTED);
    bt_copier_close(w.copier);
    bt_device_close(w.device);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("copier");
    TCase *tcase = tcase_create("copier");

    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, sums_of_blocks_of_every_shape_are_those_of_the_specification);
    tcase_add_test(tcase, a_fetch_either_way_brings_the_bytes_their_sums_and_their_trailers);
    tcase_add_test(tcase, stamped_blocks_are_good_and_cleared_ones_are_not);
    tcase_add_test(tcase, copies_of_any_kind_come_in_order);
    tcase_add_test(tcase, more_blocks_than_were_said_at_open_are_refused);
    tcase_add_test(tcase, waiting_for_no_batch_is_refused);
    tcase_add_test(tcase, the_cpu_says_that_it_lends_no_memory);
    suite_add_tcase(suite, tcase);
    return bt_test_run(suite);
}
