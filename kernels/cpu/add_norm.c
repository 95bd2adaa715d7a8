// The residual stream's post-norms: rows shared out among threads.
#include "kernels/cpu/add_norm.h"

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/ref/math.h"

#include <assert.h>

typedef struct {
    const bt_add_norm_args *args;
    void (*row)(const bt_add_norm_args *args, uint32_t token);
    bt_work *work;
} add_norm_job;

void
bt_ref_add_norm_row(const bt_add_norm_args *args, uint32_t token)
{
    float *x = args->x + token * args->x_stride;
    const float *y = args->y + token * args->y_stride;
    float factor =
        bt_ref_rms_factor(args->norm == NULL ? 0.0f : bt_ref_sumsq16(y, args->cols), args->cols, args->norm_eps);

    for (uint32_t i = 0; i < args->cols; i++) {
        x[i] = fmaf(args->scale, args->norm == NULL ? y[i] : y[i] * factor * args->norm[i], x[i]);
    }
}

static void
add_norm_thread(void *arg, uint32_t thread, uint32_t threads)
{
    add_norm_job *job = arg;
    uint32_t first = 0, end = 0;

    (void)threads;
    while (bt_work_take(job->work, thread, &first, &end)) {
        for (uint32_t t = first; t < end; t++) {
            job->row(job->args, t);
        }
    }
}

bt_err
bt_cpu_add_norm(bt_device *device, const bt_add_norm_args *args)
{
    add_norm_job job = {.args = args, .row = bt_ref_add_norm_row};

    assert(args->x_stride >= args->cols || args->tokens <= 1);
#if defined(__x86_64__)
    job.row = device->isa >= BT_CPU_AVX512 ? bt_avx512_add_norm_row
              : device->isa == BT_CPU_AVX2 ? bt_avx2_add_norm_row
                                           : bt_ref_add_norm_row;
#endif
    job.work = &device->work[0];
    bt_work_init(job.work, device->threads, args->tokens, 4);
    bt_pool_help(device->pool, add_norm_thread, &job);
    return BT_OK;
}
