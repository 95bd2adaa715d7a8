// Angles of RoPE: position · inv_freq rounded to f32, as the models' own training code has it, then sine and cosine in
// double. One form for every instruction set (ref/math.h); once a step, so its share of the time is small.
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/ref/math.h"

typedef struct {
    const bt_rope_args *args;
    bt_work *work;
} rope_job;

static void
rope_row(const bt_rope_args *args, uint32_t token)
{
    float position = (float)args->positions[token];

    for (uint32_t i = 0; i < args->pairs; i++) {
        size_t at = (size_t)token * args->pairs + i;
        float sine, cosine;

        bt_ref_sincos(position * args->inv_freq[i], &sine, &cosine);
        args->sin[at] = sine * args->factor;
        args->cos[at] = cosine * args->factor;
    }
}

static void
rope_thread(void *arg, uint32_t thread, uint32_t threads)
{
    rope_job *job = arg;
    uint32_t first = 0, end = 0;

    (void)threads;
    while (bt_work_take(job->work, thread, &first, &end)) {
        for (uint32_t t = first; t < end; t++) {
            rope_row(job->args, t);
        }
    }
}

bt_err
bt_cpu_rope(bt_device *device, const bt_rope_args *args)
{
    rope_job job = {.args = args};

    job.work = &device->work[0];
    bt_work_init(job.work, device->threads, args->tokens, 4);
    bt_pool_help(device->pool, rope_thread, &job);
    return BT_OK;
}
