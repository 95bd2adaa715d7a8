// Float weights with AVX-512: a dot product is 16 lanes by index mod 16, so a register holds the lanes of one (row, token).
// 4 rows × 6 tokens = 24 accumulators: each load of x serves 4 multiplies, each of w 6.
#include "kernels/cpu/x86/linear_x86.h"

#include "kernels/cpu/x86/math_avx512.h"

#define INLINE static inline __attribute__((always_inline))

INLINE __m512
load_weights(bt_weight_kind kind, const void *w, size_t at)
{
    if (kind == BT_WEIGHT_F32) {
        return _mm512_loadu_ps((const float *)w + at);
    }
    __m256i half = _mm256_loadu_si256((const void *)((const uint16_t *)w + at));

    return kind == BT_WEIGHT_F16 ? _mm512_cvtph_ps(half)
                                 : _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

// Rows `row` … + 3 against `tokens` rows of x.
INLINE void
dot_rows(const bt_float_dot_args *args, bt_weight_kind kind, uint32_t row, uint32_t token, uint32_t tokens)
{
    const float *x = args->x + (size_t)token * args->cols;
    size_t cols = args->cols, first = row * cols;
    __m512 acc[6][4];

#pragma GCC unroll 6
    for (uint32_t t = 0; t < tokens; t++) {
#pragma GCC unroll 4
        for (uint32_t i = 0; i < 4; i++) {
            acc[t][i] = _mm512_setzero_ps();
        }
    }
    for (size_t k = 0; k < cols; k += 16) {
        __m512 w[4];

#pragma GCC unroll 4
        for (uint32_t i = 0; i < 4; i++) {
            w[i] = load_weights(kind, args->w, first + i * cols + k);
        }
#pragma GCC unroll 6
        for (uint32_t t = 0; t < tokens; t++) {
            __m512 v = _mm512_loadu_ps(x + t * cols + k);

#pragma GCC unroll 4
            for (uint32_t i = 0; i < 4; i++) {
                acc[t][i] = _mm512_fmadd_ps(w[i], v, acc[t][i]);
            }
        }
    }
#pragma GCC unroll 6
    for (uint32_t t = 0; t < tokens; t++) {
#pragma GCC unroll 4
        for (uint32_t i = 0; i < 4; i++) {
            args->r[16 * (token + t) + row + i] = bt_avx512_tree16(acc[t][i]);
        }
    }
}

INLINE void
dot_kind(const bt_float_dot_args *args, bt_weight_kind kind)
{
    for (uint32_t row = 0; row < 16; row += 4) {
        uint32_t token = 0;

        for (; token + 6 <= args->tokens; token += 6) {
            dot_rows(args, kind, row, token, 6);
        }
        switch (args->tokens - token) {
        case 5:
            dot_rows(args, kind, row, token, 5);
            break;
        case 4:
            dot_rows(args, kind, row, token, 4);
            break;
        case 3:
            dot_rows(args, kind, row, token, 3);
            break;
        case 2:
            dot_rows(args, kind, row, token, 2);
            break;
        case 1:
            dot_rows(args, kind, row, token, 1);
            break;
        default:
            break;
        }
    }
}

void
bt_avx512_float_dot(const bt_float_dot_args *args)
{
    if (args->kind == BT_WEIGHT_F32) {
        dot_kind(args, BT_WEIGHT_F32);
    } else if (args->kind == BT_WEIGHT_F16) {
        dot_kind(args, BT_WEIGHT_F16);
    } else {
        dot_kind(args, BT_WEIGHT_BF16);
    }
}
