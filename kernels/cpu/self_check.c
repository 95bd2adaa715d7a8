#include "kernels/cpu/self_check.h"

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "kernels/cpu/panel.h"

#include <string.h>

#define ROWS 48u
#define COLS 1216u // more than a segment, and a last block that is cut
#define TOKENS 53u

// Random codes; scales are random fp16 of moderate size.
static void
fill(bt_weight *w, bt_rng *rng)
{
    bt_panel_layout layout = bt_panel_layout_of(w->format, w->rows, w->cols);

    for (size_t i = 0; i < w->bytes; i++) {
        w->data[i] = (uint8_t)bt_rng_next(rng);
    }
    for (size_t i = 0; i < (size_t)layout.panels * layout.blocks * layout.scale_block; i++) {
        uint16_t half = (uint16_t)((bt_rng_next(rng) & 0x83ff) | 0x2000);

        memcpy(w->data + 2 * i, &half, 2);
    }
}

static bt_err
format_agrees(bt_device *device, bt_format format, float *x, float *y, float *want, bool *agrees)
{
    bt_cpu_isa isa = device->isa;
    bt_weight w = {.format = format, .rows = ROWS, .cols = COLS, .bytes = bt_panel_bytes(format, ROWS, COLS)};
    bt_linear_args args = {.weights = {&w},
                           .weight_count = 1,
                           .tokens = TOKENS,
                           .x = x,
                           .x_stride = COLS,
                           .y = want,
                           .y_stride = ROWS,
                           .scale = 1.0f};
    bt_rng rng = {format.bits};
    bt_err err;

    if ((w.data = bt_alloc_pages(w.bytes)) == NULL) {
        return BT_ERR_NO_MEMORY;
    }
    fill(&w, &rng);
    for (size_t i = 0; i < (size_t)TOKENS * COLS; i++) {
        x[i] = bt_rng_float(&rng) - 0.5f;
    }
    device->isa = BT_CPU_REF;
    err = bt_cpu_linear(device, &args);
    device->isa = isa;
    args.y = y;
    err = err == BT_OK ? bt_cpu_linear(device, &args) : err;
    *agrees = err == BT_OK && memcmp(y, want, TOKENS * ROWS * sizeof(float)) == 0;
    bt_free_pages(w.data, w.bytes);
    return err;
}

bt_err
bt_cpu_agrees_with_ref(bt_device *device, bool *agrees)
{
    static const bt_format formats[] = {{BT_WEIGHT_INT, 4, false, 32, 32},
                                        {BT_WEIGHT_INT, 5, true, 128, 128},
                                        {BT_WEIGHT_INT, 8, false, BT_BLOCK_ROW, BT_BLOCK_ROW}};
    bt_device_limits limits = {.tokens = TOKENS,
                               .cols = COLS,
                               .rows = ROWS,
                               .heads = 1,
                               .kv_heads = 1,
                               .head_dim = 64,
                               .context = 64,
                               .block_tokens = 32};
    float *x = bt_alloc_array(TOKENS * COLS, sizeof(float)), *y = bt_alloc_array(2 * TOKENS * ROWS, sizeof(float));
    bt_err err = x != NULL && y != NULL ? bt_device_reserve(device, &limits, NULL) : BT_ERR_NO_MEMORY;

    *agrees = err == BT_OK;
    for (size_t i = 0; err == BT_OK && *agrees && i < sizeof formats / sizeof *formats; i++) {
        err = format_agrees(device, formats[i], x, y, y + TOKENS * ROWS, agrees);
    }
    bt_free(x);
    bt_free(y);
    return err;
}
