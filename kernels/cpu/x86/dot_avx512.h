// Integer dot products with AVX-512 VNNI: 16 rows of a panel × up to 12 tokens. A template: dot_avx512_q4.c and its siblings
// include it once for each width, so that a compiler sees constants.
//
//     for each block:           sum[t] = where the token's record says
//       for each unit (16 columns × 16 rows):
//         4 vectors of codes    loaded, or put together from planes in registers
//         sum[t] += dot of 4    vpdpbusd: unsigned codes · 4 activations of token t, broadcast from memory
//       acc[t] = fmaf(sw · sa[t], (float)sum[t], acc[t])
//
// For 12 tokens 24 accumulators stay in registers and a vector of codes is used 12 times. One block of 32 columns costs 8
// multiplies and 2 float operations a token that share their ports, so at most 80 % of the vpdpbusd peak.
#pragma once

#include "kernels/cpu/x86/linear_x86.h"

#include "kernels/cpu/tree.h"
#include "kernels/cpu/x86/math_avx512.h"

#define INLINE static inline __attribute__((always_inline))

// acc += the dot of 4 unsigned bytes of `w` with the 4 signed bytes at `a`, in each of 16 rows.
INLINE __m512i
dot4(__m512i acc, __m512i w, const int8_t *a)
{
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(w), "m"(*(const int32_t *)(const void *)a));
    return acc;
}

// Four vectors with the two bits of `plane`'s fields moved to bits `at` and `at + 1` and masked. 16-bit shifts carry
// bits from byte to byte; the mask drops them.
INLINE __m512i
field(__m512i plane, unsigned vector, int at, __m512i mask)
{
    int shift = at - 2 * (int)vector;
    __m512i moved = shift >= 0 ? _mm512_slli_epi16(plane, (unsigned)shift) : _mm512_srli_epi16(plane, (unsigned)-shift);

    return _mm512_and_si512(moved, mask);
}

// (a & mask) | rest in one instruction.
INLINE __m512i
join(__m512i plane, unsigned vector, int at, __m512i mask, __m512i rest)
{
    int shift = at - 2 * (int)vector;
    __m512i moved = shift >= 0 ? _mm512_slli_epi16(plane, (unsigned)shift) : _mm512_srli_epi16(plane, (unsigned)-shift);

    return _mm512_ternarylogic_epi64(moved, mask, rest, 0xea);
}

// The one-bit plane: 32 bytes whose bit 2j + h belongs to byte i + 32 h of vector j; the upper half is moved down by one.
INLINE __m512i
load_bits(const uint8_t *p)
{
    __m512i both = _mm512_broadcast_i64x4(_mm256_loadu_si256((const void *)p));
    __m512i shifts = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16(1), 1);

    return _mm512_srlv_epi16(both, shifts);
}

// The second plane of a unit, which belongs to all four vectors.
INLINE __m512i
load_rest(const uint8_t *p, unsigned bits)
{
    const uint8_t *rest = p + (bits >= 4 ? 128 : 64);

    return bits == 6 ? _mm512_loadu_si512(rest) : bits == 5 || bits == 3 ? load_bits(rest) : _mm512_setzero_si512();
}

// The codes of vector j of a unit.
INLINE __m512i
load_vector(const uint8_t *p, unsigned bits, unsigned j, __m512i rest)
{
    __m512i v;

    if (bits == 8) {
        return _mm512_loadu_si512(p + 64 * j);
    }
    if (bits >= 4) {
        v = _mm512_loadu_si512(p + 64 * (j / 2));
        v = _mm512_and_si512(j % 2 == 0 ? v : _mm512_srli_epi16(v, 4), _mm512_set1_epi8(15));
    } else {
        v = field(_mm512_loadu_si512(p), j, 0, _mm512_set1_epi8(3));
    }
    switch (bits) {
    case 6:
        return join(rest, j, 4, _mm512_set1_epi8(0x30), v);
    case 5:
        return join(rest, j, 4, _mm512_set1_epi8(0x10), v);
    case 3:
        return join(rest, j, 2, _mm512_set1_epi8(4), v);
    default:
        return v;
    }
}

INLINE __m512
load_scales(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)p));
}

INLINE float
word_float(const uint32_t *word)
{
    return bt_float_of_bits(*word);
}

// One unit into sum[t]. With one or two tokens its vectors have accumulators of their own (`more`), lest each multiply wait
// for the one before.
INLINE void
dot_unit(const uint8_t *p, const int8_t *a, unsigned bits, uint32_t tokens, __m512i *sum, __m512i *more)
{
    uint32_t chains = tokens == 1 ? 4 : tokens == 2 ? 2 : 1;
    __m512i rest = load_rest(p, bits);

#pragma GCC unroll 4
    for (unsigned line = 0; line < (bits + 1) / 2; line++) {
        _mm_prefetch(p + BT_PREFETCH_BYTES + 64 * line, _MM_HINT_T0);
    }
#pragma GCC unroll 4
    for (uint32_t j = 0; j < 4; j++) {
        __m512i v = load_vector(p, bits, j, rest);

#pragma GCC unroll 12
        for (uint32_t t = 0; t < tokens; t++) {
            __m512i *to = j % chains == 0 ? &sum[t] : &more[tokens == 1 ? j : 2 + t];

            *to = dot4(*to, v, a + 4 * (j * tokens + t));
        }
    }
}

// `units` ≥ 1 units of one block. Moves both pointers on.
INLINE void
dot_units(const uint8_t **codes, const int8_t **a8, uint32_t units, unsigned bits, uint32_t tokens, __m512i *sum)
{
    __m512i more[4] = {_mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512()};
    const uint8_t *p = *codes, *end = p + units * 32 * bits;
    const int8_t *a = *a8;

    do {
        dot_unit(p, a, bits, tokens, sum, more);
        p += 32 * bits;
        a += 16 * tokens;
    } while (p != end);
    if (tokens == 1) {
        sum[0] = _mm512_add_epi32(_mm512_add_epi32(sum[0], more[1]), _mm512_add_epi32(more[2], more[3]));
    } else if (tokens == 2) {
        sum[0] = _mm512_add_epi32(sum[0], more[2]);
        sum[1] = _mm512_add_epi32(sum[1], more[3]);
    }
    *codes = p;
    *a8 = a;
}

// A block's sums to its accumulators.
INLINE void
scale_block(const bt_dot_args *args, bool asymmetric, uint32_t tokens, const __m512i *sum, __m512 *acc, __m512 *acc_min)
{
    __m512 sw = load_scales(args->scales);

#pragma GCC unroll 12
    for (uint32_t t = 0; t < tokens; t++) {
        __m512 scale = _mm512_mul_ps(sw, _mm512_set1_ps(word_float(&args->records[t])));

        acc[t] = _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(sum[t]), acc[t]);
    }
    if (asymmetric) {
        __m512 minimum = load_scales(args->scales + BT_PANEL_ROWS);

#pragma GCC unroll 12
        for (uint32_t t = 0; t < tokens; t++) {
            __m512 scaled = _mm512_set1_ps(word_float(&args->records[tokens + t]));

            acc_min[t] = _mm512_fmadd_ps(minimum, scaled, acc_min[t]);
        }
    }
}

// `units` ≥ 1 units from where `at` points, into out [tokens] and, asymmetric, [tokens] more. Moves `at` on.
INLINE void
dot_segment(bt_dot_args *at, uint32_t units, uint32_t block_units, unsigned bits, bool asymmetric, uint32_t tokens,
            float *out)
{
    __m512 acc[BT_TILE_TOKENS], acc_min[BT_TILE_TOKENS];

#pragma GCC unroll 12
    for (uint32_t t = 0; t < tokens; t++) {
        acc[t] = acc_min[t] = _mm512_setzero_ps();
    }
    do {
        uint32_t block = __builtin_constant_p(block_units) || units >= block_units ? block_units : units;
        __m512i sum[BT_TILE_TOKENS];

#pragma GCC unroll 12
        for (uint32_t t = 0; t < tokens; t++) {
            sum[t] =
                asymmetric ? _mm512_setzero_si512() : _mm512_set1_epi32((int32_t)at->records[tokens + t] >> (8 - bits));
        }
        dot_units(&at->codes, &at->a8, block, bits, tokens, sum);
        scale_block(at, asymmetric, tokens, sum, acc, acc_min);
        units -= block;
        at->scales += at->scale_step;
        at->records += 2 * tokens;
    } while (units > 0);
#pragma GCC unroll 12
    for (uint32_t t = 0; t < tokens; t++) {
        _mm512_store_ps(out + 16 * t, acc[t]);
        if (asymmetric) {
            _mm512_store_ps(out + 16 * (tokens + t), acc_min[t]);
        }
    }
}

INLINE void
dot_panel(const bt_dot_args *args, unsigned bits, bool asymmetric, uint32_t tokens, float *r)
{
    bt_dot_args at = *args;
    uint32_t floats = BT_PANEL_ROWS * (asymmetric ? 2 * tokens : tokens);
    bt_tree tree;

    bt_tree_init(&tree);
    for (uint32_t left = args->units; left > 0;) {
        uint32_t segment = left < args->segment_units ? left : args->segment_units;

        if (args->block_units == 2 &&
            segment % 2 == 0) { // most blocks by far: a constant, so that the unit loop is gone
            dot_segment(&at, segment, 2, bits, asymmetric, tokens, tree.sums[tree.depth]);
        } else {
            dot_segment(&at, segment, args->block_units, bits, asymmetric, tokens, tree.sums[tree.depth]);
        }
        bt_tree_carry(&tree, floats);
        left -= segment;
    }
    bt_tree_finish(&tree, floats);
    for (uint32_t i = 0; i < BT_PANEL_ROWS * tokens; i++) {
        r[i] = asymmetric ? tree.sums[0][i] + tree.sums[0][BT_PANEL_ROWS * tokens + i] : tree.sums[0][i];
    }
}

#define DOT(bits, tokens)                                                                                              \
    static void dot_##tokens(const bt_dot_args *args, float *r)                                                        \
    {                                                                                                                  \
        dot_panel(args, bits, false, tokens, r);                                                                       \
    }
#define DOT_ASYMMETRIC(bits, tokens)                                                                                   \
    static void dot_a_##tokens(const bt_dot_args *args, float *r)                                                      \
    {                                                                                                                  \
        dot_panel(args, bits, true, tokens, r);                                                                        \
    }

// Everything of one width, as the table `name` [asymmetric][tokens − 1].
// clang-format off
#define DOT_TABLE(name, bits)                                                                                          \
    DOT(bits, 1) DOT(bits, 2) DOT(bits, 3) DOT(bits, 4) DOT(bits, 5) DOT(bits, 6) DOT(bits, 7) DOT(bits, 8)            \
    DOT(bits, 9) DOT(bits, 10) DOT(bits, 11) DOT(bits, 12)                                                             \
    DOT_ASYMMETRIC(bits, 1) DOT_ASYMMETRIC(bits, 2) DOT_ASYMMETRIC(bits, 3) DOT_ASYMMETRIC(bits, 4)                    \
    DOT_ASYMMETRIC(bits, 5) DOT_ASYMMETRIC(bits, 6) DOT_ASYMMETRIC(bits, 7) DOT_ASYMMETRIC(bits, 8)                    \
    bt_dot_fn *const name[2][BT_TILE_TOKENS] = {                                                                       \
        {dot_1, dot_2, dot_3, dot_4, dot_5, dot_6, dot_7, dot_8, dot_9, dot_10, dot_11, dot_12},                       \
        {dot_a_1, dot_a_2, dot_a_3, dot_a_4, dot_a_5, dot_a_6, dot_a_7, dot_a_8},                                      \
    };
// clang-format on
