// Float weights with AVX2: the 16 lanes of one (row, token) are two registers; 2 rows × 3 tokens = 12 accumulators.
#include "kernels/cpu/x86/linear_x86.h"

#include "kernels/cpu/x86/math_avx2.h"

#define INLINE static inline __attribute__((always_inline))

INLINE __m256
load_weights(bt_weight_kind kind, const void *w, size_t at)
{
    if (kind == BT_WEIGHT_F32) {
        return _mm256_loadu_ps((const float *)w + at);
    }
    __m128i half = _mm_loadu_si128((const void *)((const uint16_t *)w + at));

    return kind == BT_WEIGHT_F16 ? _mm256_cvtph_ps(half)
                                 : _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

INLINE void
dot_rows(const bt_float_dot_args *args, bt_weight_kind kind, uint32_t row, uint32_t token, uint32_t tokens)
{
    const float *x = args->x + (size_t)token * args->cols;
    size_t cols = args->cols, first = row * cols;
    __m256 acc[3][2][2];

#pragma GCC unroll 3
    for (uint32_t t = 0; t < tokens; t++) {
#pragma GCC unroll 2
        for (uint32_t i = 0; i < 2; i++) {
            acc[t][i][0] = acc[t][i][1] = _mm256_setzero_ps();
        }
    }
    for (size_t k = 0; k < cols; k += 16) {
#pragma GCC unroll 2
        for (uint32_t h = 0; h < 2; h++) {
            __m256 w0 = load_weights(kind, args->w, first + k + 8 * h);
            __m256 w1 = load_weights(kind, args->w, first + cols + k + 8 * h);

#pragma GCC unroll 3
            for (uint32_t t = 0; t < tokens; t++) {
                __m256 v = _mm256_loadu_ps(x + t * cols + k + 8 * h);

                acc[t][0][h] = _mm256_fmadd_ps(w0, v, acc[t][0][h]);
                acc[t][1][h] = _mm256_fmadd_ps(w1, v, acc[t][1][h]);
            }
        }
    }
#pragma GCC unroll 3
    for (uint32_t t = 0; t < tokens; t++) {
        args->r[16 * (token + t) + row] = bt_avx2_tree16(acc[t][0][0], acc[t][0][1]);
        args->r[16 * (token + t) + row + 1] = bt_avx2_tree16(acc[t][1][0], acc[t][1][1]);
    }
}

INLINE void
dot_kind(const bt_float_dot_args *args, bt_weight_kind kind)
{
    for (uint32_t row = 0; row < BT_PANEL_ROWS; row += 2) {
        uint32_t token = 0;

        for (; token + 3 <= args->tokens; token += 3) {
            dot_rows(args, kind, row, token, 3);
        }
        if (args->tokens - token == 2) {
            dot_rows(args, kind, row, token, 2);
        } else if (args->tokens - token == 1) {
            dot_rows(args, kind, row, token, 1);
        }
    }
}

void
bt_avx2_float_dot(const bt_float_dot_args *args)
{
    if (args->kind == BT_WEIGHT_F32) {
        dot_kind(args, BT_WEIGHT_F32);
    } else if (args->kind == BT_WEIGHT_F16) {
        dot_kind(args, BT_WEIGHT_F16);
    } else {
        dot_kind(args, BT_WEIGHT_BF16);
    }
}
