// A GPU that gives no answer: who waits for it hears so in time, and can leave.
#include "common/base/log.h"
#include "common/base/time.h"
#include "kernels/ops.h"
#include "tests/gpu/gpu.h"

void hang(bt_device *device, bt_time patience, double seconds);

static bt_device *
open_gpu(void)
{
    bt_device_options options = {.kind = BT_DEVICE_CUDA};
    bt_device *device = NULL;
    bt_why why;

    ck_assert_msg(bt_device_open(&device, &options, &why) == BT_OK, "%s", why.text);
    return device;
}

// In the wait for a step, and for a copy.
START_TEST(a_device_that_does_not_answer_in_time_is_broken_and_lets_go)
{
    bt_device *device = open_gpu();
    uint8_t *memory = bt_device_alloc(device, 1 << 20), byte = 1;
    bt_time began;

    ck_assert_int_eq(bt_device_write(device, memory, &byte, 1), BT_OK);
    hang(device, 300 * BT_MILLISECOND, 3);
    bt_log_set_level(BT_LOG_NONE);
    began = bt_time_now();
    ck_assert_int_eq(_i == 0 ? bt_device_ops(device)->end(device) : bt_device_read(device, &byte, memory, 1),
                     BT_ERR_DEVICE);
    ck_assert_int_ge(bt_time_now() - began, 300 * BT_MILLISECOND);
    ck_assert(bt_device_is_broken(device));
    for (int i = 0; i < 10; i++) {
        ck_assert_int_eq(bt_device_read(device, &byte, memory, 1), BT_ERR_DEVICE);
        ck_assert_int_eq(bt_device_write(device, memory, &byte, 1), BT_ERR_DEVICE);
    }
    bt_device_close(device);
    ck_assert_int_lt(bt_time_now() - began, BT_SECOND);
}
END_TEST

START_TEST(a_slow_answer_is_waited_for)
{
    bt_device *device = open_gpu();
    uint8_t *memory = bt_device_alloc(device, 1 << 20), byte = 7, back = 0;

    ck_assert_int_eq(bt_device_write(device, memory, &byte, 1), BT_OK);
    hang(device, 5 * BT_SECOND, 0.5);
    ck_assert_int_eq(bt_device_read(device, &back, memory, 1), BT_OK);
    ck_assert_int_eq(back, byte);
    ck_assert(!bt_device_is_broken(device));
    bt_device_free(device, memory, 1 << 20);
    bt_device_close(device);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("cuda_hang");
    TCase *all = tcase_create("all");

    tcase_add_test(all, a_slow_answer_is_waited_for);
    tcase_add_loop_test(all, a_device_that_does_not_answer_in_time_is_broken_and_lets_go, 0, 2);
    tcase_set_timeout(all, 60);
    suite_add_tcase(suite, all);
    return bt_gpu_run(suite);
}
