// Norm and INT8 of a token's row with AVX-512: the steps of kernels/cpu/ref/quantise.c, sixteen columns at a time.
#include "kernels/cpu/x86/linear_x86.h"

#include "kernels/cpu/x86/math_avx512.h"

#include <string.h>

void
bt_avx512_norm(const bt_linear_args *args, uint32_t token, float *row)
{
    uint32_t cols = args->weights[0]->cols;
    const float *x = args->x + token * args->x_stride;
    __m512 factor = _mm512_set1_ps(1.0f);

    if (args->norm != NULL) {
        factor = _mm512_set1_ps(bt_ref_rms_factor(bt_avx512_dot16(x, x, cols), cols, args->norm_eps));
    }
    for (uint32_t k = 0; k < bt_cols_padded(cols); k += 16) {
        __mmask16 m = k < cols ? bt_avx512_mask(cols - k) : 0;
        __m512 value = _mm512_maskz_loadu_ps(m, x + k);

        if (args->norm != NULL) {
            value = _mm512_maskz_mul_ps(m, _mm512_mul_ps(value, factor), _mm512_maskz_loadu_ps(m, args->norm + k));
        }
        _mm512_storeu_ps(row + k, value);
    }
}

// Sixteen codes to their place or four places in the tile, and their sum.
static inline int32_t
put_codes(const bt_tile *tile, uint32_t slot, uint32_t k, __m512i codes)
{
    __m128i bytes = _mm512_cvtepi32_epi8(codes);
    int8_t *to = tile->a8 + bt_tile_code(tile, k, slot);
    size_t step = (size_t)tile->tokens * 4;
    int32_t four[4] = {_mm_cvtsi128_si32(bytes), _mm_extract_epi32(bytes, 1), _mm_extract_epi32(bytes, 2),
                       _mm_extract_epi32(bytes, 3)};

    if (tile->group > 16) {
        _mm_storeu_si128((void *)to, bytes);
        return _mm512_reduce_add_epi32(codes);
    }
    memcpy(to, &four[0], 4);
    memcpy(to + step, &four[1], 4);
    memcpy(to + 2 * step, &four[2], 4);
    memcpy(to + 3 * step, &four[3], 4);
    return _mm512_reduce_add_epi32(codes);
}

void
bt_avx512_quantise(const bt_linear_args *args, uint32_t token, const bt_tile *tile, uint32_t slot, float *row,
                   int32_t *unit_sums)
{
    uint32_t padded = bt_cols_padded(args->weights[0]->cols), act_block = args->weights[0]->format.act_block;
    uint32_t width = act_block == BT_BLOCK_ROW ? padded : act_block;

    bt_avx512_norm(args, token, row);
    for (uint32_t first = 0, block = 0; first < padded; first += width, block++) {
        uint32_t count = padded - first < width ? padded - first : width;
        bt_int8_scale s = bt_ref_int8_scale(bt_avx512_amax_bits(row + first, count));
        __m512 inverse = _mm512_set1_ps(s.inverse);

        tile->scales[block * tile->tokens + slot] = s.scale;
        for (uint32_t k = first; k < first + count; k += 16) {
            __m512 v = _mm512_mul_ps(_mm512_loadu_ps(row + k), inverse);
            __m512i codes;

            v = _mm512_min_ps(_mm512_set1_ps(127.0f), v);
            v = _mm512_max_ps(_mm512_set1_ps(-127.0f), v);
            // A block of no use (zero, or holding NaN or infinity) has codes 0.
            codes = s.inverse != 0.0f ? _mm512_cvtps_epi32(v) : _mm512_setzero_si512();
            unit_sums[k / BT_UNIT_COLS] = put_codes(tile, slot, k, codes);
        }
    }
}
