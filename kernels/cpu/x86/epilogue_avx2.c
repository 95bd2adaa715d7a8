// What follows the dot products of a panel, with AVX2: outliers, bias, activation, residual, as in kernels/cpu/ref/linear.c.
#include "kernels/cpu/x86/linear_x86.h"

#include "common/tensor/dtype.h"
#include "kernels/cpu/x86/math_avx2.h"

static void
add_outliers_of_panel(const bt_weight *w, const bt_tile *tile, uint32_t panel, float *r)
{
    const bt_outliers *o = &w->outliers;

    for (uint32_t i = 0; i < BT_PANEL_ROWS; i++) {
        uint32_t row = panel * BT_PANEL_ROWS + i;

        for (uint32_t t = 0; bt_row_has_outliers(w, row) && t < tile->tokens; t++) {
            float sum = 0.0f;

            for (uint32_t n = o->row_start[row]; n < o->row_start[row + 1]; n++) {
                uint32_t k = o->cols[n], act = w->format.act_block == BT_BLOCK_ROW ? 0 : k / w->format.act_block;
                float code = (float)tile->a8[bt_tile_code(tile, k, t)];

                sum = fmaf(bt_f16_to_f32(o->deltas[n]), tile->scales[act * tile->tokens + t] * code, sum);
            }
            r[16 * t + i] += sum;
        }
    }
}

static inline __m256
biased(const float *bias, __m256i m, const float *r, float softcap)
{
    __m256 value = _mm256_loadu_ps(r);

    if (bias != NULL) {
        value = _mm256_add_ps(value, _mm256_maskload_ps(bias, m));
    }
    return softcap > 0.0f ? bt_avx2_softcap(value, softcap) : value;
}

// Eight rows from `row` of one token.
static void
finish_half(const bt_finish_args *f, uint32_t token, uint32_t half)
{
    const bt_linear_args *args = f->args;
    const bt_weight *w = args->weights[f->part];
    uint32_t row = f->panel * BT_PANEL_ROWS + 8 * half, at = 16 * token + 8 * half;
    __m256i m = bt_avx2_mask(row < w->rows ? w->rows - row : 0);
    const float *bias = args->biases[f->part] != NULL ? args->biases[f->part] + row : NULL;
    const float *up_bias = f->up != NULL && args->biases[1] != NULL ? args->biases[1] + row : NULL;
    float *y = args->y + (f->tile->first_token + token) * args->y_stride + f->y_col + 8 * half;
    __m256 r = biased(bias, m, f->r + at, args->softcap);

    if (f->up != NULL) {
        r = args->epilogue == BT_LINEAR_SILU_MUL ? bt_avx2_silu(r) : bt_avx2_gelu_tanh(r);
        r = _mm256_mul_ps(r, biased(up_bias, m, f->up + at, args->softcap));
    } else if (args->epilogue == BT_LINEAR_ADD) {
        r = _mm256_fmadd_ps(_mm256_set1_ps(args->scale), r, _mm256_maskload_ps(y, m));
    } else {
        r = _mm256_mul_ps(_mm256_set1_ps(args->scale), r);
    }
    _mm256_maskstore_ps(y, m, r);
}

void
bt_avx2_finish(const bt_finish_args *f)
{
    const bt_weight *w = f->args->weights[f->part];

    add_outliers_of_panel(w, f->tile, f->panel, f->r);
    if (f->up != NULL) {
        add_outliers_of_panel(f->args->weights[1], f->tile, f->panel, f->up);
    }
    for (uint32_t t = 0; t < f->tile->tokens; t++) {
        finish_half(f, t, 0);
        if (f->panel * BT_PANEL_ROWS + 8 < w->rows) {
            finish_half(f, t, 1);
        }
    }
}
