// Integer dot products with AVX-512 VNNI: 16 rows of a panel × up to 12 tokens.
//
//     for each block:           sum[t] = where the token's record says
//       for each unit (16 columns × 16 rows):
//         4 vectors of codes    loaded, or put together from planes in registers
//         sum[t] += dot of 4    vpdpbusd: unsigned codes · 4 activations of token t, broadcast from memory
//       acc[t] = fmaf(sw · sa[t], (float)sum[t], acc[t])
//
// For 12 tokens 24 accumulators stay in registers and a vector of codes is used 12 times. One block of 32 columns costs 8 multiplies
// and 2 float operations a token that share their ports, so at most 80 % of the vpdpbusd peak.
#include "kernels/cpu/x86/linear_x86.h"

#include "kernels/cpu/tree.h"
#include "kernels/cpu/x86/math_avx512.h"

#include <assert.h>

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

// The codes of a unit as four vectors.
INLINE void
load_unit(const uint8_t *p, unsigned bits, __m512i v[4])
{
    __m512i low = _mm512_set1_epi8(bits >= 4 ? 15 : 3), plane;

    if (bits == 8) {
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
            v[j] = _mm512_loadu_si512(p + 64 * j);
        }
        return;
    }
    if (bits >= 4) {
#pragma GCC unroll 2
        for (int j = 0; j < 2; j++) {
            __m512i pair = _mm512_loadu_si512(p + 64 * j);

            v[2 * j] = _mm512_and_si512(pair, low);
            v[2 * j + 1] = _mm512_and_si512(_mm512_srli_epi16(pair, 4), low);
        }
        p += 128;
    } else {
        plane = _mm512_loadu_si512(p);
#pragma GCC unroll 4
        for (unsigned j = 0; j < 4; j++) {
            v[j] = field(plane, j, 0, low);
        }
        p += 64;
    }
    if (bits == 6) {
        plane = _mm512_loadu_si512(p);
#pragma GCC unroll 4
        for (unsigned j = 0; j < 4; j++) {
            v[j] = join(plane, j, 4, _mm512_set1_epi8(0x30), v[j]);
        }
    } else if (bits == 5 || bits == 3) {
        plane = load_bits(p);
#pragma GCC unroll 4
        for (unsigned j = 0; j < 4; j++) {
            v[j] = join(plane, j, bits == 5 ? 4 : 2, _mm512_set1_epi8(bits == 5 ? 0x10 : 4), v[j]);
        }
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

// Units `first` … `end` of one block into sum[t]. With one or two tokens the vectors of a unit have accumulators of their own, lest each multiply
// wait for the one before.
INLINE void
dot_units(const uint8_t **codes, const int8_t **a8, uint32_t units, unsigned bits, uint32_t tokens, __m512i *sum)
{
    uint32_t chains = tokens == 1 ? 4 : tokens == 2 ? 2 : 1;
    __m512i more[4] = {_mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512()};
    const uint8_t *p = *codes;
    const int8_t *a = *a8;

    for (uint32_t u = 0; u < units; u++) {
        __m512i v[4];

        load_unit(p, bits, v);
        if (tokens <= 4) {
#pragma GCC unroll 4
            for (unsigned line = 0; line < (bits + 1) / 2; line++) {
                _mm_prefetch(p + BT_PREFETCH_BYTES + 64 * line, _MM_HINT_T0);
            }
        }
#pragma GCC unroll 4
        for (uint32_t j = 0; j < 4; j++) {
#pragma GCC unroll 12
            for (uint32_t t = 0; t < tokens; t++) {
                __m512i *to = j % chains == 0 ? &sum[t] : &more[tokens == 1 ? j : 2 + t];

                *to = dot4(*to, v[j], a + 4 * (j * tokens + t));
            }
        }
        p += 32 * bits;
        a += 16 * tokens;
    }
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

// `units` units from where `at` points, into out [tokens] and, asymmetric, [tokens] more. Moves `at` on.
INLINE void
dot_segment(bt_dot_args *at, uint32_t units, unsigned bits, bool asymmetric, uint32_t tokens, float *out)
{
    __m512 acc[BT_TILE_TOKENS], acc_min[BT_TILE_TOKENS];

#pragma GCC unroll 12
    for (uint32_t t = 0; t < tokens; t++) {
        acc[t] = acc_min[t] = _mm512_setzero_ps();
    }
    while (units > 0) {
        uint32_t block = units < at->block_units ? units : at->block_units;
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
    }
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

        dot_segment(&at, segment, bits, asymmetric, tokens, tree.sums[tree.depth]);
        bt_tree_carry(&tree, floats);
        left -= segment;
    }
    bt_tree_finish(&tree, floats);
    for (uint32_t i = 0; i < BT_PANEL_ROWS * tokens; i++) {
        r[i] = asymmetric ? tree.sums[0][i] + tree.sums[0][BT_PANEL_ROWS * tokens + i] : tree.sums[0][i];
    }
}

#define DOT(bits, tokens)                                                                                              \
    static void dot_##bits##_##tokens(const bt_dot_args *args, float *r)                                               \
    {                                                                                                                  \
        dot_panel(args, bits, false, tokens, r);                                                                       \
    }                                                                                                                  \
    static void dot_##bits##a_##tokens(const bt_dot_args *args, float *r)                                              \
    {                                                                                                                  \
        dot_panel(args, bits, true, tokens, r);                                                                        \
    }
#define DOT_FEW(bits) DOT(bits, 1) DOT(bits, 2) DOT(bits, 3) DOT(bits, 4)
#define DOT_FEW_NAMES(bits)                                                                                            \
    {dot_##bits##_1, dot_##bits##_2, dot_##bits##_3, dot_##bits##_4},                                                  \
    {                                                                                                                  \
        dot_##bits##a_1, dot_##bits##a_2, dot_##bits##a_3, dot_##bits##a_4                                             \
    }

DOT_FEW(2)
DOT_FEW(3)
DOT_FEW(4)
DOT_FEW(5)
DOT_FEW(6)
DOT_FEW(8)
DOT(8, 5)
DOT(8, 6)
DOT(8, 7)
DOT(8, 8)
DOT(8, 9)
DOT(8, 10)
DOT(8, 11)
DOT(8, 12)

static bt_dot_fn *
pick_dot(unsigned bits, bool asymmetric, uint32_t tokens)
{
    static bt_dot_fn *const few[7][2][4] = {{DOT_FEW_NAMES(2)}, {DOT_FEW_NAMES(3)}, {DOT_FEW_NAMES(4)},
                                            {DOT_FEW_NAMES(5)}, {DOT_FEW_NAMES(6)}, {{0}},
                                            {DOT_FEW_NAMES(8)}};
    static bt_dot_fn *const many[2][8] = {
        {dot_8_5, dot_8_6, dot_8_7, dot_8_8, dot_8_9, dot_8_10, dot_8_11, dot_8_12},
        {dot_8a_5, dot_8a_6, dot_8a_7, dot_8a_8, dot_8a_9, dot_8a_10, dot_8a_11, dot_8a_12},
    };

    assert(tokens >= 1 && tokens <= BT_TILE_TOKENS && (tokens <= 4 || bits == 8));
    return tokens <= 4 ? few[bits - 2][asymmetric][tokens - 1] : many[asymmetric][tokens - 5];
}

INLINE void
unpack_units(const uint8_t *codes, unsigned bits, uint8_t more, uint32_t units, uint8_t *out)
{
    __m512i add = _mm512_set1_epi8((char)more);

    for (uint32_t u = 0; u < units; u++, codes += 32 * bits, out += 256) {
        __m512i v[4];

        load_unit(codes, bits, v);
        _mm_prefetch(codes + BT_PREFETCH_BYTES, _MM_HINT_T0);
        if (bits > 2) {
            _mm_prefetch(codes + BT_PREFETCH_BYTES + 64, _MM_HINT_T0);
        }
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
            _mm512_store_si512(out + 64 * j, _mm512_add_epi8(v[j], add));
        }
    }
}

static void
unpack(const uint8_t *codes, bt_format format, uint32_t units, uint8_t *out)
{
    uint8_t more = format.asymmetric ? 0 : (uint8_t)(128 - (1 << (format.bits - 1)));

    switch (format.bits) {
    case 2:
        unpack_units(codes, 2, more, units, out);
        break;
    case 3:
        unpack_units(codes, 3, more, units, out);
        break;
    case 4:
        unpack_units(codes, 4, more, units, out);
        break;
    case 5:
        unpack_units(codes, 5, more, units, out);
        break;
    default:
        assert(format.bits == 6);
        unpack_units(codes, 6, more, units, out);
    }
}

const bt_linear_path bt_linear_avx512 = {
    .tile_symmetric = 12,
    .tile_asymmetric = 8,
    .direct_tokens = 4,
    .quantise = bt_avx512_quantise,
    .norm = bt_avx512_norm,
    .dot = pick_dot,
    .unpack = unpack,
    .float_dot = bt_avx512_float_dot,
    .finish = bt_avx512_finish,
};
