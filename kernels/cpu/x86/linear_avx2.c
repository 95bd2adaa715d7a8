// Integer dot products with AVX2, without dot-product instructions: 8 rows at a time × up to 4 tokens.
//
// vpmaddubsw multiplies unsigned codes by signed activations and adds pairs into 16 bits. For codes up to 5 bits the four
// vectors of a unit fit there together (4 · 2 · 31 · 127 < 2^15), for 6 bits two of them; then vpmaddwd widens. 8-bit codes
// are taken as sign and magnitude: |w| ≤ 128 unsigned, the activation with w's sign (2 · 128 · 127 < 2^15).
#include "kernels/cpu/x86/linear_x86.h"

#include "kernels/cpu/tree.h"
#include "kernels/cpu/x86/math_avx2.h"

#include <assert.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#define TOKENS 4u

INLINE __m256i
load(const uint8_t *p)
{
    return _mm256_loadu_si256((const void *)p);
}

// The field of `plane` that begins at bit `from`, moved to bit `at` and masked.
INLINE __m256i
field(__m256i plane, int from, int at, int mask)
{
    int shift = at - from;
    __m256i moved = shift >= 0 ? _mm256_slli_epi16(plane, shift) : _mm256_srli_epi16(plane, -shift);

    return _mm256_and_si256(moved, _mm256_set1_epi8((char)mask));
}

// Half `half` (8 rows) of the four vectors of a unit.
INLINE void
load_unit(const uint8_t *p, unsigned bits, int half, __m256i v[4])
{
    const uint8_t *rest = p + (bits >= 4 ? 128 : 64);

#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        if (bits == 8) {
            v[j] = load(p + 64 * j + 32 * half);
        } else if (bits >= 4) {
            v[j] = field(load(p + 64 * (j / 2) + 32 * half), 4 * (j % 2), 0, 15);
        } else {
            v[j] = field(load(p + 32 * half), 2 * j, 0, 3);
        }
        if (bits == 6) {
            v[j] = _mm256_or_si256(v[j], field(load(rest + 32 * half), 2 * j, 4, 0x30));
        } else if (bits == 5) {
            v[j] = _mm256_or_si256(v[j], field(load(rest), 2 * j + half, 4, 0x10));
        } else if (bits == 3) {
            v[j] = _mm256_or_si256(v[j], field(load(rest), 2 * j + half, 2, 4));
        }
    }
}

INLINE __m256i
activations(const int8_t *a)
{
    int32_t four;

    memcpy(&four, a, 4);
    return _mm256_set1_epi32(four);
}

// Σ over a unit of codes · activations, for 8 rows and one token whose first four activations are at `a`.
INLINE __m256i
dot_unit(const __m256i v[4], unsigned bits, const int8_t *a, uint32_t step)
{
    __m256i ones = _mm256_set1_epi16(1), pairs[4];

#pragma GCC unroll 4
    for (uint32_t j = 0; j < 4; j++) {
        __m256i x = activations(a + j * step);

        if (bits == 8) {
            __m256i w = _mm256_xor_si256(v[j], _mm256_set1_epi8((char)0x80));

            pairs[j] = _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w)), ones);
        } else {
            pairs[j] = _mm256_maddubs_epi16(v[j], x);
        }
    }
    if (bits == 8) {
        return _mm256_add_epi32(_mm256_add_epi32(pairs[0], pairs[1]), _mm256_add_epi32(pairs[2], pairs[3]));
    }
    pairs[0] = _mm256_add_epi16(pairs[0], pairs[1]);
    pairs[2] = _mm256_add_epi16(pairs[2], pairs[3]);
    if (bits == 6) {
        return _mm256_add_epi32(_mm256_madd_epi16(pairs[0], ones), _mm256_madd_epi16(pairs[2], ones));
    }
    return _mm256_madd_epi16(_mm256_add_epi16(pairs[0], pairs[2]), ones);
}

INLINE __m256
load_scales(const uint16_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const void *)p));
}

// One block of `units` units for 8 rows of all tokens: acc [tokens][16] floats, then the minima's.
INLINE void
dot_block(const bt_dot_args *at, uint32_t units, unsigned bits, bool asymmetric, uint32_t tokens, int half, float *acc)
{
    const uint8_t *codes = at->codes;
    const int8_t *a = at->a8;
    __m256i sum[TOKENS];
    __m256 sw = load_scales(at->scales + 8 * half);

#pragma GCC unroll 4
    for (uint32_t t = 0; t < tokens; t++) { // 8-bit codes are signed here, so nothing is to be taken off
        bool is_plain = asymmetric || bits == 8;

        sum[t] = is_plain ? _mm256_setzero_si256() : _mm256_set1_epi32((int32_t)at->records[tokens + t] >> (8 - bits));
    }
    for (uint32_t u = 0; u < units; u++, codes += 32 * bits, a += 16 * tokens) {
        __m256i v[4];

        load_unit(codes, bits, half, v);
        if (half == 0) {
#pragma GCC unroll 4
            for (unsigned line = 0; line < (bits + 1) / 2; line++) {
                _mm_prefetch((const char *)codes + BT_PREFETCH_BYTES + 64 * line, _MM_HINT_T0);
            }
        }
#pragma GCC unroll 4
        for (uint32_t t = 0; t < tokens; t++) {
            sum[t] = _mm256_add_epi32(sum[t], dot_unit(v, bits, a + 4 * t, 4 * tokens));
        }
    }
#pragma GCC unroll 4
    for (uint32_t t = 0; t < tokens; t++) {
        float *to = acc + 16 * t + 8 * half;
        __m256 scale = _mm256_mul_ps(sw, _mm256_set1_ps(bt_float_of_bits(at->records[t])));

        _mm256_storeu_ps(to, _mm256_fmadd_ps(scale, _mm256_cvtepi32_ps(sum[t]), _mm256_loadu_ps(to)));
        if (asymmetric) {
            __m256 scaled = _mm256_set1_ps(bt_float_of_bits(at->records[tokens + t]));

            to += 16 * tokens;
            _mm256_storeu_ps(
                to, _mm256_fmadd_ps(load_scales(at->scales + BT_PANEL_ROWS + 8 * half), scaled, _mm256_loadu_ps(to)));
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
        float *acc = tree.sums[tree.depth];

        left -= segment;
        memset(acc, 0, floats * sizeof(float));
        while (segment > 0) {
            uint32_t units = segment < args->block_units ? segment : args->block_units;

            dot_block(&at, units, bits, asymmetric, tokens, 0, acc);
            dot_block(&at, units, bits, asymmetric, tokens, 1, acc);
            segment -= units;
            at.codes += units * 32 * bits;
            at.a8 += units * 16 * tokens;
            at.scales += at.scale_step;
            at.records += 2 * tokens;
        }
        bt_tree_carry(&tree, floats);
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
#define DOT_ALL(bits) DOT(bits, 1) DOT(bits, 2) DOT(bits, 3) DOT(bits, 4)
#define DOT_NAMES(bits)                                                                                                \
    {                                                                                                                  \
        {dot_##bits##_1, dot_##bits##_2, dot_##bits##_3, dot_##bits##_4},                                              \
        {                                                                                                              \
            dot_##bits##a_1, dot_##bits##a_2, dot_##bits##a_3, dot_##bits##a_4                                         \
        }                                                                                                              \
    }

DOT_ALL(2)
DOT_ALL(3)
DOT_ALL(4)
DOT_ALL(5)
DOT_ALL(6)
DOT_ALL(8)

static bt_dot_fn *
pick_dot(unsigned bits, bool asymmetric, uint32_t tokens)
{
    static bt_dot_fn *const table[7][2][4] = {DOT_NAMES(2), DOT_NAMES(3), DOT_NAMES(4), DOT_NAMES(5),
                                              DOT_NAMES(6), {{0}},        DOT_NAMES(8)};

    assert(tokens >= 1 && tokens <= TOKENS && !(bits == 8 && asymmetric));
    return table[bits - 2][asymmetric][tokens - 1];
}

const bt_linear_path bt_linear_avx2 = {
    .tile_symmetric = TOKENS,
    .tile_asymmetric = TOKENS,
    .direct_tokens = TOKENS,
    .direct_tiles = UINT32_MAX,
    .code_group = 4,
    .quantise = bt_avx2_quantise,
    .norm = bt_avx2_norm,
    .dot = pick_dot,
    .unpack = NULL,
    .float_dot = bt_avx2_float_dot,
    .finish = bt_avx2_finish,
};
