// Norm and INT8 of a token's row with AVX2: the steps of kernels/cpu/ref/quantise.c, eight columns at a time.
#include "kernels/cpu/x86/linear_x86.h"

#include "kernels/cpu/x86/math_avx2.h"

#include <string.h>

void
bt_avx2_norm(const bt_linear_args *args, uint32_t token, float *row)
{
    uint32_t cols = args->weights[0]->cols, k = 0;
    const float *x = args->x + token * args->x_stride;
    float factor = 1.0f;

    if (args->norm == NULL) {
        memcpy(row, x, cols * sizeof(float));
        k = cols;
    } else {
        factor = bt_ref_rms_factor(bt_avx2_dot16(x, x, cols), cols, args->norm_eps);
    }
    for (; k + 8 <= cols; k += 8) {
        __m256 value = _mm256_mul_ps(_mm256_loadu_ps(x + k), _mm256_set1_ps(factor));

        _mm256_storeu_ps(row + k, _mm256_mul_ps(value, _mm256_loadu_ps(args->norm + k)));
    }
    for (; k < cols; k++) {
        row[k] = x[k] * factor * args->norm[k];
    }
    memset(row + cols, 0, (bt_cols_padded(cols) - cols) * sizeof(float));
}

// Eight codes, as 32-bit integers, to their two places in the tile.
static inline void
put_codes(const bt_tile *tile, uint32_t slot, uint32_t k, __m256i codes)
{
    __m256i words = _mm256_packs_epi32(codes, codes), bytes = _mm256_packs_epi16(words, words);
    int8_t *to = tile->a8 + ((size_t)(k / 4) * tile->tokens + slot) * 4;
    int32_t low = _mm_cvtsi128_si32(_mm256_castsi256_si128(bytes));
    int32_t high = _mm_cvtsi128_si32(_mm256_extracti128_si256(bytes, 1));

    memcpy(to, &low, 4);
    memcpy(to + (size_t)tile->tokens * 4, &high, 4);
}

static inline int32_t
sum8(__m256i v)
{
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));

    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}

static inline __m256i
codes_of(const float *row, float inverse)
{
    __m256 v = _mm256_mul_ps(_mm256_loadu_ps(row), _mm256_set1_ps(inverse));

    if (inverse == 0.0f) { // a block of zeros, or one that holds NaN or infinity
        return _mm256_setzero_si256();
    }
    v = _mm256_min_ps(_mm256_set1_ps(127.0f), v);
    return _mm256_cvtps_epi32(_mm256_max_ps(_mm256_set1_ps(-127.0f), v));
}

void
bt_avx2_quantise(const bt_linear_args *args, uint32_t token, const bt_tile *tile, uint32_t slot, float *row,
                 int32_t *unit_sums)
{
    uint32_t padded = bt_cols_padded(args->weights[0]->cols), act_block = args->weights[0]->format.act_block;
    uint32_t width = act_block == BT_BLOCK_ROW ? padded : act_block;

    bt_avx2_norm(args, token, row);
    for (uint32_t first = 0, block = 0; first < padded; first += width, block++) {
        uint32_t count = padded - first < width ? padded - first : width;
        bt_int8_scale s = bt_ref_int8_scale(bt_avx2_amax_bits(row + first, count));

        tile->scales[block * tile->tokens + slot] = s.scale;
        for (uint32_t k = first; k < first + count; k += 16) {
            __m256i low = codes_of(row + k, s.inverse), high = codes_of(row + k + 8, s.inverse);

            put_codes(tile, slot, k, low);
            put_codes(tile, slot, k + 8, high);
            unit_sums[k / BT_UNIT_COLS] = sum8(_mm256_add_epi32(low, high));
        }
    }
}
