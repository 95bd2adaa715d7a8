// The launcher of linear layers: checks shapes, picks the path, shares the work out.
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/panel.h"
#include "kernels/cpu/ref/linear.h"
#include "kernels/cpu/tiled.h"

#include <assert.h>

#define AMX_TOKENS 48u

static bool
is_paired(const bt_linear_args *args)
{
    return args->epilogue == BT_LINEAR_SILU_MUL || args->epilogue == BT_LINEAR_GELU_MUL;
}

static uint32_t
rows_of(const bt_linear_args *args)
{
    uint32_t rows = 0;

    for (uint32_t i = 0; i < args->weight_count; i++) {
        rows += args->weights[i]->rows;
    }
    return is_paired(args) ? args->weights[0]->rows : rows;
}

static void
check(const bt_device *device, const bt_linear_args *args)
{
    const bt_weight *first = args->weights[0];

    assert(args->weight_count >= 1 && args->weight_count <= 3);
    assert(args->tokens <= device->limits.tokens && first->cols <= device->limits.cols);
    assert(args->x_stride >= first->cols || args->tokens <= 1);
    assert(args->y_stride >= rows_of(args) || args->tokens <= 1);
    assert(!is_paired(args) || (args->weight_count == 2 && args->weights[1]->rows == first->rows));
    for (uint32_t i = 0; i < args->weight_count; i++) {
        const bt_format *f = &args->weights[i]->format;

        assert(args->weights[i]->cols == first->cols &&
               (f->kind == BT_WEIGHT_INT) == (first->format.kind == BT_WEIGHT_INT));
        assert(f->kind != BT_WEIGHT_INT || f->act_block == first->format.act_block);
        // A dot over all of K with one scale stays below 2^31.
        assert(f->kind != BT_WEIGHT_INT || f->block != BT_BLOCK_ROW || first->cols <= 131072);
    }
}

bt_cpu_scratch
bt_cpu_linear_scratch(const bt_device_limits *limits, uint32_t threads)
{
    bt_cpu_scratch need = bt_tiled_scratch(limits);
    size_t ref = bt_ref_linear_scratch(limits->cols);

    (void)threads;
    need.private_bytes = need.private_bytes > ref ? need.private_bytes : ref;
    return need;
}

typedef struct {
    bt_device *device;
    const bt_linear_args *args;
    bt_work *work;
} linear_job;

// Items of work are (token, 16 rows), tokens outside: the row of a token is quantised anew for each chunk, which costs ref
// nothing that matters.
static void
ref_thread(void *arg, uint32_t thread, uint32_t threads)
{
    linear_job *job = arg;
    uint32_t rows = rows_of(job->args), first = 0, end = 0;

    (void)threads;
    while (bt_work_take(job->work, thread, &first, &end)) {
        for (uint32_t token = 0; token < job->args->tokens; token++) {
            bt_ref_linear_rows(job->args, token, first * 16, end * 16 < rows ? end * 16 : rows,
                               bt_cpu_private(job->device, thread));
        }
    }
}

static void
ref_linear(bt_device *device, const bt_linear_args *args)
{
    linear_job job = {.device = device, .args = args};
    uint32_t items = (rows_of(args) + 15) / 16;

    job.work = &device->work[0];
    bt_work_init(job.work, device->threads, items, items / (8 * device->threads));
    bt_pool_help(device->pool, ref_thread, &job);
}

#if defined(__x86_64__)
// Where AMX was faster than VNNI (kernels/README.md): many tokens, and few float updates a multiply.
static bool
is_for_amx(const bt_linear_args *args)
{
    bool is_wide = args->tokens >= AMX_TOKENS;

    for (uint32_t i = 0; i < args->weight_count; i++) {
        bt_format f = args->weights[i]->format;
        uint32_t least = f.asymmetric ? 128 : 32;

        is_wide = is_wide && f.kind == BT_WEIGHT_INT && (f.block == BT_BLOCK_ROW || f.block >= least);
    }
    return is_wide;
}
#endif

// NULL is ref.
static const bt_linear_path *
path_of(bt_cpu_isa isa, const bt_linear_args *args)
{
#if defined(__x86_64__)
    switch (isa) {
    case BT_CPU_REF:
        return NULL;
    case BT_CPU_AVX2:
        return &bt_linear_avx2;
    case BT_CPU_AMX:
        return is_for_amx(args) ? &bt_linear_amx : &bt_linear_avx512;
    default:
        return &bt_linear_avx512;
    }
#else
    (void)isa, (void)args;
    return NULL;
#endif
}

bt_err
bt_cpu_linear(bt_device *device, const bt_linear_args *args)
{
    const bt_linear_path *path = path_of(device->isa, args);

    check(device, args);
    if (args->tokens == 0) {
        return BT_OK;
    }
    if (path != NULL) {
        bt_tiled_linear(device, path, args);
    } else {
        ref_linear(device, args);
    }
    return BT_OK;
}
