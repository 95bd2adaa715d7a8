// How each type lays out its blocks, written once as "codes and scales"; values and our formats both follow from these.
//
// https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h describes the blocks. Loops have constant counts and
// no branches, so that the compiler turns them into vector code: a load reads every weight of a model through here.
#include "common/quant/ggml.h"
#include "common/tensor/dtype.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#define BLOCK_MAX 256
#define SUBS_MAX 16

// value = scale[sub] · (code − zero), or scale[sub] · code + minimum[sub] where a type has minima.
typedef struct {
    bt_format format;
    bt_ggml_loss loss;
    uint8_t zero;
    uint8_t sub; // columns that share a scale
    bool halves; // a block is one sub-block and begins with its fp16 scale, then its minimum: copied as they are
    void (*codes)(const uint8_t *block, uint8_t *codes);
    void (*scales)(const uint8_t *block, float *scales, float *minima); // NULL with `halves`
} layout;

static uint16_t
half_bits(const uint8_t *at)
{
    return (uint16_t)(at[0] | at[1] << 8);
}

static float
half_at(const uint8_t *at)
{
    return bt_f16_to_f32(half_bits(at));
}

// 16 bytes hold columns 0–15 in their low halves and 16–31 in their high ones.
static inline void
nibbles(const uint8_t *restrict from, uint8_t *restrict codes)
{
    for (int i = 0; i < 16; i++) {
        codes[i] = from[i] & 15;
        codes[i + 16] = from[i] >> 4;
    }
}

// Bit i of a 32-bit word is the fifth bit of column i.
static inline void
fifth_bits(const uint8_t *from, uint8_t *codes)
{
    for (int i = 0; i < 32; i++) {
        codes[i] |= (uint8_t)((from[i / 8] >> (i % 8) & 1) << 4);
    }
}

static void
codes_q4_0(const uint8_t *block, uint8_t *codes)
{
    nibbles(block + 2, codes);
}

static void
codes_q4_1(const uint8_t *block, uint8_t *codes)
{
    nibbles(block + 4, codes);
}

static void
codes_q5_0(const uint8_t *block, uint8_t *codes)
{
    nibbles(block + 6, codes);
    fifth_bits(block + 2, codes);
}

static void
codes_q5_1(const uint8_t *block, uint8_t *codes)
{
    nibbles(block + 8, codes);
    fifth_bits(block + 4, codes);
}

static void
codes_q8_0(const uint8_t *restrict block, uint8_t *restrict codes)
{
    for (int i = 0; i < 32; i++) {
        codes[i] = block[2 + i] ^ 0x80;
    }
}

// scales[16] (4 bits scale, 4 bits minimum), qs[64], d, dmin
static void
codes_q2_k(const uint8_t *restrict block, uint8_t *restrict codes)
{
    for (int half = 0; half < 2; half++) {
        for (int plane = 0; plane < 4; plane++) {
            for (int i = 0; i < 32; i++) {
                codes[128 * half + 32 * plane + i] = block[16 + 32 * half + i] >> 2 * plane & 3;
            }
        }
    }
}

static void
scales_q2_k(const uint8_t *block, float *scales, float *minima)
{
    float d = half_at(block + 80), dmin = half_at(block + 82);

    for (int i = 0; i < 16; i++) {
        scales[i] = d * (float)(block[i] & 15);
        minima[i] = -(dmin * (float)(block[i] >> 4));
    }
}

// hmask[32], qs[64], scales[12] (16 × 6 bits), d
static void
codes_q3_k(const uint8_t *restrict block, uint8_t *restrict codes)
{
    for (int half = 0; half < 2; half++) {
        for (int plane = 0; plane < 4; plane++) {
            for (int i = 0; i < 32; i++) {
                codes[128 * half + 32 * plane + i] =
                    (uint8_t)((block[32 + 32 * half + i] >> 2 * plane & 3) | (block[i] >> (4 * half + plane) & 1) << 2);
            }
        }
    }
}

static void
scales_q3_k(const uint8_t *block, float *scales, float *minima)
{
    const uint8_t *packed = block + 96;
    float d = half_at(block + 108);

    (void)minima;
    for (int i = 0; i < 16; i++) {
        int low = i < 8 ? packed[i] & 15 : packed[i - 8] >> 4;
        int high = packed[8 + i % 4] >> 2 * (i / 4) & 3;

        scales[i] = d * (float)((low | high << 4) - 32);
    }
}

// d, dmin, scales[12] (8 × 6 bits scale, 8 × 6 bits minimum), …
static void
scales_q4_k(const uint8_t *block, float *scales, float *minima)
{
    const uint8_t *packed = block + 4;
    float d = half_at(block), dmin = half_at(block + 2);

    for (int i = 0; i < 4; i++) {
        scales[i] = d * (float)(packed[i] & 63);
        minima[i] = -(dmin * (float)(packed[i + 4] & 63));
        scales[i + 4] = d * (float)((packed[i + 8] & 15) | packed[i] >> 6 << 4);
        minima[i + 4] = -(dmin * (float)(packed[i + 8] >> 4 | packed[i + 4] >> 6 << 4));
    }
}

// 32 bytes hold 32 columns in their low halves and the next 32 in their high ones.
static inline void
wide_nibbles(const uint8_t *restrict from, uint8_t *restrict codes)
{
    for (int pair = 0; pair < 4; pair++) {
        for (int i = 0; i < 32; i++) {
            codes[64 * pair + i] = from[32 * pair + i] & 15;
            codes[64 * pair + 32 + i] = from[32 * pair + i] >> 4;
        }
    }
}

static void
codes_q4_k(const uint8_t *block, uint8_t *codes)
{
    wide_nibbles(block + 16, codes);
}

// …, qh[32], qs[128]
static void
codes_q5_k(const uint8_t *restrict block, uint8_t *restrict codes)
{
    wide_nibbles(block + 48, codes);
    for (int sub = 0; sub < 8; sub++) {
        for (int i = 0; i < 32; i++) {
            codes[32 * sub + i] |= (uint8_t)((block[16 + i] >> sub & 1) << 4);
        }
    }
}

// ql[128], qh[64], scales[16] i8, d
static void
codes_q6_k(const uint8_t *restrict block, uint8_t *restrict codes)
{
    for (int half = 0; half < 2; half++) {
        const uint8_t *low = block + 64 * half, *high = block + 128 + 32 * half;
        uint8_t *out = codes + 128 * half;

        for (int i = 0; i < 32; i++) {
            out[i] = (uint8_t)((low[i] & 15) | (high[i] & 3) << 4);
            out[32 + i] = (uint8_t)((low[32 + i] & 15) | (high[i] >> 2 & 3) << 4);
            out[64 + i] = (uint8_t)(low[i] >> 4 | (high[i] >> 4 & 3) << 4);
            out[96 + i] = (uint8_t)(low[32 + i] >> 4 | high[i] >> 6 << 4);
        }
    }
}

static void
scales_q6_k(const uint8_t *block, float *scales, float *minima)
{
    float d = half_at(block + 208);

    (void)minima;
    for (int i = 0; i < 16; i++) {
        scales[i] = d * (float)(int8_t)block[192 + i];
    }
}

// The IQ4 types index a table of 16 signed bytes. Written as 8-bit codes with zero at 128 they need no table.
static inline void
look_up(const uint8_t *restrict from, uint8_t *restrict codes)
{
    static const uint8_t grid[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};

    for (int i = 0; i < 16; i++) {
        codes[i] = grid[from[i] & 15];
        codes[i + 16] = grid[from[i] >> 4];
    }
}

static void
codes_iq4_nl(const uint8_t *block, uint8_t *codes)
{
    look_up(block + 2, codes);
}

// d, high bits of scales u16, low bits [4], qs[128]
static void
codes_iq4_xs(const uint8_t *block, uint8_t *codes)
{
    for (int sub = 0; sub < 8; sub++) {
        look_up(block + 8 + 16 * sub, codes + 32 * sub);
    }
}

static void
scales_iq4_xs(const uint8_t *block, float *scales, float *minima)
{
    unsigned high = half_bits(block + 2);
    float d = half_at(block);

    (void)minima;
    for (int i = 0; i < 8; i++) {
        unsigned low = block[4 + i / 2] >> 4 * (i % 2) & 15;

        scales[i] = d * (float)((int)(low | (high >> 2 * i & 3) << 4) - 32);
    }
}

#define INT_32(width, offset)                                                                                          \
    {                                                                                                                  \
        BT_WEIGHT_INT, width, offset, 32, 32                                                                           \
    }

static const layout layouts[BT_GGML_TYPE_COUNT] = {
    [BT_GGML_Q4_0] = {INT_32(4, false), BT_GGML_LOSSLESS, 8, 32, true, codes_q4_0, NULL},
    [BT_GGML_Q4_1] = {INT_32(4, true), BT_GGML_LOSSLESS, 0, 32, true, codes_q4_1, NULL},
    [BT_GGML_Q5_0] = {INT_32(5, false), BT_GGML_LOSSLESS, 16, 32, true, codes_q5_0, NULL},
    [BT_GGML_Q5_1] = {INT_32(5, true), BT_GGML_LOSSLESS, 0, 32, true, codes_q5_1, NULL},
    [BT_GGML_Q8_0] = {INT_32(8, false), BT_GGML_LOSSLESS, 128, 32, true, codes_q8_0, NULL},
    [BT_GGML_IQ4_NL] = {INT_32(8, false), BT_GGML_LOSSLESS, 128, 32, true, codes_iq4_nl, NULL},
    [BT_GGML_Q2_K] = {INT_32(8, false), BT_GGML_REQUANTISED, 0, 16, false, codes_q2_k, scales_q2_k},
    [BT_GGML_Q3_K] = {INT_32(8, false), BT_GGML_REQUANTISED, 4, 16, false, codes_q3_k, scales_q3_k},
    [BT_GGML_Q4_K] = {INT_32(4, true), BT_GGML_SCALES, 0, 32, false, codes_q4_k, scales_q4_k},
    [BT_GGML_Q5_K] = {INT_32(5, true), BT_GGML_SCALES, 0, 32, false, codes_q5_k, scales_q4_k},
    [BT_GGML_Q6_K] = {INT_32(8, false), BT_GGML_REQUANTISED, 32, 16, false, codes_q6_k, scales_q6_k},
    [BT_GGML_IQ4_XS] = {INT_32(8, false), BT_GGML_SCALES, 128, 32, false, codes_iq4_xs, scales_iq4_xs},
};

bool
bt_ggml_readable(uint32_t type)
{
    return type < BT_GGML_TYPE_COUNT &&
           (layouts[type].codes != NULL || type == BT_GGML_F32 || type == BT_GGML_F16 || type == BT_GGML_BF16);
}

bt_format
bt_ggml_format(uint32_t type, bt_ggml_loss *loss)
{
    static const bt_format floats[] = {
        [BT_GGML_F32] = {.kind = BT_WEIGHT_F32}, [BT_GGML_F16] = {.kind = BT_WEIGHT_F16}};

    assert(bt_ggml_readable(type));
    if (loss != NULL) {
        *loss = layouts[type].loss;
    }
    if (layouts[type].codes != NULL) {
        return layouts[type].format;
    }
    return type == BT_GGML_BF16 ? (bt_format){.kind = BT_WEIGHT_BF16} : floats[type];
}

static bool
has_minima(const layout *from)
{
    return from->zero == 0;
}

static void
read_scales(const layout *from, const uint8_t *block, float *scales, float *minima)
{
    if (!from->halves) {
        from->scales(block, scales, minima);
        return;
    }
    scales[0] = half_at(block);
    minima[0] = has_minima(from) ? half_at(block + 2) : 0;
}

static void
block_values(const layout *from, uint32_t cols, const uint8_t *block, float *restrict out)
{
    uint8_t codes[BLOCK_MAX];
    float scales[SUBS_MAX], minima[SUBS_MAX];

    from->codes(block, codes);
    read_scales(from, block, scales, minima);
    for (uint32_t i = 0; i < cols; i++) {
        uint32_t sub = i / from->sub;

        out[i] = has_minima(from) ? scales[sub] * (float)codes[i] + minima[sub]
                                  : scales[sub] * (float)(codes[i] - from->zero);
    }
}

static void
float_values(uint32_t type, const uint8_t *row, uint32_t cols, float *out)
{
    if (type == BT_GGML_F32) {
        memcpy(out, row, (size_t)cols * 4);
        return;
    }
    for (uint32_t i = 0; i < cols; i++) {
        uint16_t bits = half_bits(row + 2 * (size_t)i);

        out[i] = type == BT_GGML_F16 ? bt_f16_to_f32(bits) : bt_bf16_to_f32(bits);
    }
}

void
bt_ggml_dequantise(uint32_t type, const void *row, uint32_t cols, float *out)
{
    uint32_t block_cols = bt_ggml_block_cols(type), block_bytes = bt_ggml_block_bytes(type);
    const uint8_t *block = row;

    assert(bt_ggml_readable(type) && cols % block_cols == 0);
    if (layouts[type].codes == NULL) {
        float_values(type, row, cols, out);
        return;
    }
    for (uint32_t at = 0; at < cols; at += block_cols, block += block_bytes) {
        block_values(&layouts[type], block_cols, block, out + at);
    }
}

// Rounds to nearest even by the float adder, in vector code. |x| < 2^22; other values (NaN from a broken file) give some
// integer.
static inline int32_t
nearest(float x)
{
    float shifted = x + 12582912.0f; // 1.5 · 2^23
    uint32_t bits;

    memcpy(&bits, &shifted, 4);
    return (int32_t)(bits & 0x7fffff) - 0x400000;
}

// Two sub-blocks on one symmetric 8-bit grid, by their values.
static void
requantise_values(const uint8_t *codes, const float *scales, const float *minima, uint8_t *restrict out,
                  uint16_t *scale)
{
    float values[32], amax = 0, step, inverse;

    for (int i = 0; i < 32; i++) {
        values[i] = scales[i / 16] * (float)codes[i] + minima[i / 16];
        amax = fmaxf(amax, fabsf(values[i]));
    }
    *scale = bt_f32_to_f16(amax / 127);
    step = bt_f16_to_f32(*scale);
    inverse = step != 0 ? 1 / step : 0;
    for (int i = 0; i < 32; i++) {
        int32_t code = nearest(values[i] * inverse);

        out[i] = (uint8_t)(128 + (code > 127 ? 127 : code < -128 ? -128 : code));
    }
}

// The same without minima. The grid is the coarser sub-block's own, split into `fine` steps, so that this one stays exact
// (but for the rounding of its scale) and only the finer one is rounded: half the error of a grid by the largest value.
static void
requantise_codes(const uint8_t *codes, int zero, const float *scales, uint8_t *restrict out, uint16_t *scale)
{
    float coarse = fabsf(scales[0]) >= fabsf(scales[1]) ? scales[0] : scales[1];
    float step, ratio[2];
    int above = 1, below = 1, fine;

    for (int i = 0; i < 32; i++) {
        int code = codes[i] - zero;

        above = code > above ? code : above;
        below = -code > below ? -code : below;
    }
    fine = 127 / above < 128 / below ? 127 / above : 128 / below; // Q6_K: 4, its codes go from -32 to 31
    *scale = bt_f32_to_f16(coarse / (float)fine);
    step = bt_f16_to_f32(*scale);
    ratio[0] = step != 0 ? scales[0] / step : 0;
    ratio[1] = step != 0 ? scales[1] / step : 0;
    for (int i = 0; i < 32; i++) {
        int32_t code = nearest((float)(codes[i] - zero) * ratio[i / 16]);

        out[i] = (uint8_t)(128 + (code > 127 ? 127 : code < -128 ? -128 : code));
    }
}

static void
requantise_block(const layout *from, const uint8_t *block, uint8_t *out, uint16_t *halves)
{
    uint8_t codes[BLOCK_MAX];
    float scales[SUBS_MAX], minima[SUBS_MAX];

    from->codes(block, codes);
    from->scales(block, scales, minima);
    for (int i = 0; i < 8; i++) {
        if (has_minima(from)) {
            requantise_values(codes + 32 * i, scales + 2 * i, minima + 2 * i, out + 32 * i, halves + i);
        } else {
            requantise_codes(codes + 32 * i, from->zero, scales + 2 * i, out + 32 * i, halves + i);
        }
    }
}

static void
copy_block(const layout *from, const uint8_t *block, uint8_t *out, uint16_t *halves, uint16_t *low_halves)
{
    float scales[SUBS_MAX], minima[SUBS_MAX];

    from->codes(block, out);
    if (from->halves) {
        halves[0] = half_bits(block);
        if (from->format.asymmetric) {
            low_halves[0] = half_bits(block + 2);
        }
        return;
    }
    from->scales(block, scales, minima);
    for (int i = 0; i < 8; i++) {
        halves[i] = bt_f32_to_f16(scales[i]);
        if (from->format.asymmetric) {
            low_halves[i] = bt_f32_to_f16(minima[i]);
        }
    }
}

void
bt_ggml_codes(uint32_t type, const void *row, uint32_t cols, uint8_t *codes, uint16_t *scales, uint16_t *minima)
{
    uint32_t block_cols = bt_ggml_block_cols(type), block_bytes = bt_ggml_block_bytes(type), at;
    const layout *from = &layouts[type];
    const uint8_t *block = row;

    assert(from->codes != NULL && cols % block_cols == 0);
    for (at = 0; at < cols; at += block_cols, block += block_bytes) {
        if (from->loss == BT_GGML_REQUANTISED) {
            requantise_block(from, block, codes + at, scales + at / 32);
        } else {
            copy_block(from, block, codes + at, scales + at / 32, from->format.asymmetric ? minima + at / 32 : NULL);
        }
    }
    if (at < bt_cols_padded(cols)) { // half a unit of 64 is left
        memset(codes + at, from->format.asymmetric ? 0 : 1 << (from->format.bits - 1), 32);
        scales[at / 32] = 0;
        if (from->format.asymmetric) {
            minima[at / 32] = 0;
        }
    }
}
