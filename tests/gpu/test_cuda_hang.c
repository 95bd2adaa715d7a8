// A GPU that gives no answer: who waits for it hears so in time, and can leave. A slow one is waited for.
#include "common/base/log.h"
#include "common/base/time.h"
#include "kernels/ops.h"
#include "tests/gpu/gpu.h"

#include <pthread.h>
#include <unistd.h>

// hang.cu
typedef struct hanging hanging;
hanging *hang(bt_device *device, bt_time patience);
void hang_end(hanging *h);
bool hang_has_ended(const hanging *h);
void hang_in_steps(bt_device *device, bt_time patience, uint32_t steps, bt_time each);

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
    hanging *h;

    ck_assert_int_eq(bt_device_write(device, memory, &byte, 1), BT_OK);
    h = hang(device, 300 * BT_MILLISECOND);
    ck_assert_ptr_nonnull(h);
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
    bt_device_free(device, memory, 1 << 20);
    bt_device_close(device);
    ck_assert(!hang_has_ended(h)); // none of these has waited for it
    bt_log_set_level(BT_LOG_ERROR);
    hang_end(h);
    while (!hang_has_ended(h)) {
        usleep(1000);
    }
}
END_TEST

static void *
end_soon(void *h)
{
    usleep(500000);
    hang_end(h);
    return NULL;
}

START_TEST(a_slow_answer_is_waited_for)
{
    bt_device *device = open_gpu();
    uint8_t *memory = bt_device_alloc(device, 1 << 20), byte = 7, back = 0;
    pthread_t thread;
    hanging *h;

    ck_assert_int_eq(bt_device_write(device, memory, &byte, 1), BT_OK);
    h = hang(device, 0);
    ck_assert_ptr_nonnull(h);
    ck_assert_int_eq(pthread_create(&thread, NULL, end_soon, h), 0);
    ck_assert_int_eq(bt_device_read(device, &back, memory, 1), BT_OK);
    ck_assert(hang_has_ended(h));
    ck_assert_int_eq(back, byte);
    ck_assert(!bt_device_is_broken(device));
    pthread_join(thread, NULL);
    bt_device_free(device, memory, 1 << 20);
    bt_device_close(device);
}
END_TEST

// Layer by layer it answers in time, all of them together do not.
START_TEST(a_long_step_that_comes_forward_is_waited_for)
{
    bt_device *device = open_gpu();
    bt_time began = bt_time_now();

    hang_in_steps(device, 8 * BT_SECOND, 20, 500 * BT_MILLISECOND);
    ck_assert_int_eq(bt_device_ops(device)->end(device), BT_OK);
    ck_assert_int_ge(bt_time_now() - began, 10 * BT_SECOND);
    ck_assert(!bt_device_is_broken(device));
    bt_device_close(device);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("cuda_hang");
    TCase *all = tcase_create("all");

    tcase_add_test(all, a_slow_answer_is_waited_for);
    tcase_add_test(all, a_long_step_that_comes_forward_is_waited_for);
    tcase_add_loop_test(all, a_device_that_does_not_answer_in_time_is_broken_and_lets_go, 0, 2);
    suite_add_tcase(suite, all);
    return bt_gpu_run(suite);
}
