// What follows the dot products of a panel: outliers, bias, activation, residual. The order is that of kernels/cpu/ref/linear.c.
#include "kernels/cpu/x86/linear_x86.h"

#include "common/tensor/dtype.h"
#include "kernels/cpu/x86/math_avx512.h"

// The outliers of one row for all tokens of the tile, one lane a token. Codes of a column lie one token beside the
// other, a group apart.
static void
add_outliers(const bt_weight *w, const bt_tile *tile, uint32_t row, float *r)
{
    const bt_outliers *o = &w->outliers;
    __mmask16 m = bt_avx512_mask(tile->tokens);
    __m512i token = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    __m512i places = _mm512_mullo_epi32(_mm512_set1_epi32((int)tile->group), token);
    __m512i outputs = _mm512_slli_epi32(token, 4);
    __m512 sum = _mm512_setzero_ps(), zero = sum;

    for (uint32_t i = o->row_start[row]; i < o->row_start[row + 1]; i++) {
        uint32_t k = o->cols[i], act = w->format.act_block == BT_BLOCK_ROW ? 0 : k / w->format.act_block;
        const int8_t *codes = tile->a8 + bt_tile_code(tile, k - k % 4, 0);
        __m512i four = _mm512_mask_i32gather_epi32(_mm512_setzero_si512(), m, places, codes, 1);
        __m512i code = _mm512_srai_epi32(_mm512_sll_epi32(four, _mm_cvtsi32_si128((int)(24 - 8 * (k % 4)))), 24);
        __m512 scale = _mm512_maskz_loadu_ps(m, tile->scales + (size_t)act * tile->tokens);
        __m512 delta = _mm512_set1_ps(bt_f16_to_f32(o->deltas[i]));

        sum = _mm512_fmadd_ps(delta, _mm512_mul_ps(scale, _mm512_cvtepi32_ps(code)), sum);
    }
    sum = _mm512_add_ps(_mm512_mask_i32gather_ps(zero, m, outputs, r, 4), sum);
    _mm512_mask_i32scatter_ps(r, m, outputs, sum, 4);
}

static void
add_outliers_of_panel(const bt_weight *w, const bt_tile *tile, uint32_t panel, float *r)
{
    for (uint32_t i = 0; i < BT_PANEL_ROWS; i++) {
        if (bt_row_has_outliers(w, panel * BT_PANEL_ROWS + i)) {
            add_outliers(w, tile, panel * BT_PANEL_ROWS + i, r + i);
        }
    }
}

static __m512
biased(const float *bias, __mmask16 m, const float *r)
{
    __m512 value = _mm512_loadu_ps(r);

    return bias == NULL ? value : _mm512_add_ps(value, _mm512_maskz_loadu_ps(m, bias));
}

void
bt_avx512_finish(const bt_finish_args *f)
{
    const bt_linear_args *args = f->args;
    const bt_weight *w = args->weights[f->part];
    uint32_t row = f->panel * BT_PANEL_ROWS;
    __mmask16 m = bt_avx512_mask(w->rows - row);
    const float *bias = args->biases[f->part] != NULL ? args->biases[f->part] + row : NULL;
    const float *up_bias = f->up != NULL && args->biases[1] != NULL ? args->biases[1] + row : NULL;

    add_outliers_of_panel(w, f->tile, f->panel, f->r);
    if (f->up != NULL) {
        add_outliers_of_panel(args->weights[1], f->tile, f->panel, f->up);
    }
    for (uint32_t t = 0; t < f->tile->tokens; t++) {
        float *y = args->y + (f->tile->first_token + t) * args->y_stride + f->y_col;
        __m512 r = biased(bias, m, f->r + 16 * t);

        if (args->softcap > 0.0f) {
            r = bt_avx512_softcap(r, args->softcap);
        }
        if (f->up != NULL) {
            __m512 up = biased(up_bias, m, f->up + 16 * t);

            if (args->softcap > 0.0f) {
                up = bt_avx512_softcap(up, args->softcap);
            }
            r = args->epilogue == BT_LINEAR_SILU_MUL ? bt_avx512_silu(r) : bt_avx512_gelu_tanh(r);
            r = _mm512_mul_ps(r, up);
        } else if (args->epilogue == BT_LINEAR_ADD) {
            r = _mm512_fmadd_ps(_mm512_set1_ps(args->scale), r, _mm512_maskz_loadu_ps(m, y));
        } else {
            r = _mm512_mul_ps(_mm512_set1_ps(args->scale), r);
        }
        _mm512_mask_storeu_ps(y, m, r);
    }
}
