#include "kernels/cpu/cpu.h"
#include "kernels/cpu/panel.h"

#include "common/tensor/dtype.h"

#include <assert.h>
#include <math.h>

// A weight is scale · (code − zero), exact in f32, or fmaf(scale, code, minimum); an outlier's delta is added to it; the
// sum times args->scale is rounded once more.
static void
embed_int(const bt_weight *w, uint32_t row, uint8_t *codes, float *out)
{
    bt_panel_layout layout = bt_panel_layout_of(w->format, w->rows, w->cols);
    const uint16_t *scales = bt_panel_scales(&layout, w->data, row / BT_PANEL_ROWS) + row % BT_PANEL_ROWS;
    uint32_t block = w->format.block == BT_BLOCK_ROW ? bt_cols_padded(w->cols) : w->format.block;
    int zero = 1 << (w->format.bits - 1);

    bt_panel_row_codes(w, row, codes);
    for (uint32_t k = 0; k < w->cols; k += block, scales += layout.scale_block) {
        float scale = bt_f16_to_f32(scales[0]);
        float minimum = w->format.asymmetric ? bt_f16_to_f32(scales[BT_PANEL_ROWS]) : 0.0f;

        for (uint32_t i = k; i < w->cols && i < k + block; i++) {
            out[i] = w->format.asymmetric ? fmaf(scale, (float)codes[i], minimum) : scale * (float)(codes[i] - zero);
        }
    }
    if (w->outliers.row_start != NULL) {
        for (uint32_t i = w->outliers.row_start[row]; i < w->outliers.row_start[row + 1]; i++) {
            out[w->outliers.cols[i]] += bt_f16_to_f32(w->outliers.deltas[i]);
        }
    }
}

typedef struct {
    bt_device *device;
    const bt_embed_args *args;
    bt_work *work;
} embed_job;

static void
embed_token(const embed_job *job, uint32_t token, uint8_t *codes)
{
    const bt_embed_args *args = job->args;
    const bt_weight *w = args->table;
    float *out = args->out + token * args->out_stride;
    uint32_t row = (uint32_t)args->ids[token];

    assert(args->ids[token] >= 0 && row < w->rows);
    if (w->format.kind == BT_WEIGHT_INT) {
        embed_int(w, row, codes, out);
    }
    for (uint32_t k = 0; k < w->cols; k++) {
        out[k] = args->scale * (w->format.kind == BT_WEIGHT_INT ? out[k] : bt_panel_float(w, row, k));
    }
}

static void
embed_thread(void *arg, uint32_t thread, uint32_t threads)
{
    embed_job *job = arg;
    uint32_t first = 0, end = 0;

    (void)threads;
    while (bt_work_take(job->work, thread, &first, &end)) {
        for (uint32_t t = first; t < end; t++) {
            embed_token(job, t, bt_cpu_private(job->device, thread));
        }
    }
}

bt_err
bt_cpu_embed(bt_device *device, const bt_embed_args *args)
{
    embed_job job = {.device = device, .args = args};

    assert(device->private_bytes >= bt_cols_padded(args->table->cols));
    job.work = &device->work[0];
    bt_work_init(job.work, device->threads, args->tokens, 4);
    if (args->tokens <= 4) { // not worth waking anyone
        embed_thread(&job, 0, 1);
    } else {
        bt_pool_help(device->pool, embed_thread, &job);
    }
    return BT_OK;
}
