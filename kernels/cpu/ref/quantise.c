#include "kernels/cpu/ref/quantise.h"

#include "kernels/cpu/ref/math.h"

void
bt_ref_norm_row(const float *x, uint32_t cols, const float *norm, float eps, float *out)
{
    float factor = norm != NULL ? bt_ref_rms_factor(bt_ref_sumsq16(x, cols), cols, eps) : 1.0f;

    for (uint32_t k = 0; k < bt_cols_padded(cols); k++) {
        out[k] = k >= cols ? 0.0f : norm != NULL ? x[k] * factor * norm[k] : x[k];
    }
}

uint32_t
bt_ref_act_blocks(uint32_t act_block, uint32_t cols)
{
    return act_block == BT_BLOCK_ROW ? 1 : (bt_cols_padded(cols) + act_block - 1) / act_block;
}

void
bt_ref_quantise_row(const float *x, uint32_t cols, uint32_t act_block, int8_t *codes, float *scales)
{
    uint32_t padded = bt_cols_padded(cols), width = act_block == BT_BLOCK_ROW ? padded : act_block;

    for (uint32_t first = 0; first < padded; first += width) {
        uint32_t count = padded - first < width ? padded - first : width;
        bt_int8_scale s = bt_ref_int8_scale(bt_ref_amax_bits(x + first, count));

        *scales++ = s.scale;
        for (uint32_t k = first; k < first + count; k++) {
            codes[k] = bt_ref_int8_code(x[k], s.inverse);
        }
    }
}
