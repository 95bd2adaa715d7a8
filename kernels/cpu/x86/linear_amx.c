// Integer dot products with AMX-INT8: 16 tokens × 16 rows × 64 columns an instruction, for calls of many tokens. The rest
// of the path is that of AVX-512.
//
// A panel unpacked to signed codes (zero at 0) is what the second operand wants, 16 vectors of 64 bytes for 64 columns; a
// tile's activations lie as [64 columns][token][64] for the first. Two things were measured on a Xeon (kernels/README.md):
// tile registers are not renamed, so a load waits for the multiply that read its register before: three pairs of operands
// and two results take turns; and what has just been stored from a tile cannot be read back at once: six blocks are multiplied
// while the six before them are taken into the float accumulators.
#include "kernels/cpu/x86/linear_x86.h"

#include "kernels/cpu/tree.h"
#include "kernels/cpu/x86/amx.h"
#include "kernels/cpu/x86/math_avx512.h"

#include <assert.h>

#define INLINE static inline __attribute__((always_inline))
#define GROUP 6u // blocks at a time: two results × three pairs of operands

// Results of a group of blocks.
typedef struct {
    _Alignas(64) int32_t sums[GROUP][BT_TILE_TOKENS][BT_PANEL_ROWS];
} block_sums;

// result += activations · codes of the 64 (or 32) columns from `unit` on, by way of a pair of operands. Register numbers
// are written out, since they are part of the instructions.
#define STEP(at, result, a, b, unit)                                                                                   \
    do {                                                                                                               \
        BT_AMX_LOAD(a, activations(at, unit), 64);                                                                     \
        BT_AMX_LOAD(b, (at)->codes + (size_t)(unit)*256, 64);                                                          \
        BT_AMX_DOT(result, a, b);                                                                                      \
    } while (0)

// Block i of a group in one step.
#define BLOCK_OF_ONE(i, result, a, b)                                                                                  \
    if (i < blocks) {                                                                                                  \
        BT_AMX_ZERO(result);                                                                                           \
        STEP(at, result, a, b, at->first_unit + i * at->block_units);                                                  \
        BT_AMX_STORE(result, out->sums[i], 64);                                                                        \
    }

// In two, the second of which may lie beyond K.
#define BLOCK_OF_TWO(i, result, a, b, a2, b2)                                                                          \
    if (i < blocks) {                                                                                                  \
        BT_AMX_ZERO(result);                                                                                           \
        STEP(at, result, a, b, at->first_unit + i * at->block_units);                                                  \
        if (at->first_unit + i * at->block_units + 4 < at->units) {                                                    \
            STEP(at, result, a2, b2, at->first_unit + i * at->block_units + 4);                                        \
        }                                                                                                              \
        BT_AMX_STORE(result, out->sums[i], 64);                                                                        \
    }

INLINE const int8_t *
activations(const bt_dot_args *at, uint32_t unit)
{
    uint32_t col = unit * BT_UNIT_COLS;

    return at->a8 + (size_t)(col / 64) * 64 * at->tokens + col % 64;
}

// The `blocks` ≤ GROUP blocks from at->first_unit, of 2, 4 or 8 units each, into `out`.
INLINE void
dot_group(const bt_dot_args *at, uint32_t blocks, block_sums *out)
{
    if (at->block_units <= 4) {
        BLOCK_OF_ONE(0, 0, 2, 3)
        BLOCK_OF_ONE(1, 1, 4, 5)
        BLOCK_OF_ONE(2, 0, 6, 7)
        BLOCK_OF_ONE(3, 1, 2, 3)
        BLOCK_OF_ONE(4, 0, 4, 5)
        BLOCK_OF_ONE(5, 1, 6, 7)
    } else {
        BLOCK_OF_TWO(0, 0, 2, 3, 4, 5)
        BLOCK_OF_TWO(1, 1, 6, 7, 2, 3)
        BLOCK_OF_TWO(2, 0, 4, 5, 6, 7)
        BLOCK_OF_TWO(3, 1, 2, 3, 4, 5)
        BLOCK_OF_TWO(4, 0, 6, 7, 2, 3)
        BLOCK_OF_TWO(5, 1, 4, 5, 6, 7)
    }
}

INLINE __m512
load_scales(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)p));
}

// Takes `blocks` block sums into acc [tokens][16] and, asymmetric, the minima's behind it, in the order of the blocks.
// Moves `at`'s scales and records on.
INLINE void
scale_blocks(bt_dot_args *at, const int32_t (*sums)[BT_TILE_TOKENS][BT_PANEL_ROWS], uint32_t blocks, bool asymmetric,
             float *acc)
{
    uint32_t tokens = at->tokens;
    __m512 sw[GROUP], minimum[GROUP];

#pragma GCC unroll 6
    for (uint32_t b = 0; b < blocks; b++) {
        sw[b] = load_scales(at->scales + b * at->scale_step);
        minimum[b] = asymmetric ? load_scales(at->scales + b * at->scale_step + BT_PANEL_ROWS) : _mm512_setzero_ps();
    }
    for (uint32_t t = 0; t < tokens; t++) {
        __m512 sum = _mm512_load_ps(acc + 16 * t);
        __m512 sum_min = asymmetric ? _mm512_load_ps(acc + 16 * (tokens + t)) : _mm512_setzero_ps();

#pragma GCC unroll 6
        for (uint32_t b = 0; b < blocks; b++) {
            const uint32_t *record = at->records + b * 2 * tokens + t;
            __m512 scale = _mm512_mul_ps(sw[b], _mm512_set1_ps(bt_float_of_bits(record[0])));

            sum = _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(_mm512_load_si512(sums[b][t])), sum);
            if (asymmetric) {
                sum_min = _mm512_fmadd_ps(minimum[b], _mm512_set1_ps(bt_float_of_bits(record[tokens])), sum_min);
            }
        }
        _mm512_store_ps(acc + 16 * t, sum);
        if (asymmetric) {
            _mm512_store_ps(acc + 16 * (tokens + t), sum_min);
        }
    }
    at->scales += blocks * at->scale_step;
    at->records += blocks * 2 * tokens;
}

INLINE void
scale_group(bt_dot_args *at, const block_sums *sums, uint32_t blocks, bool asymmetric, float *acc)
{
    if (blocks == GROUP) {
        scale_blocks(at, sums->sums, GROUP, asymmetric, acc);
    } else {
        for (uint32_t b = 0; b < blocks; b++) {
            scale_blocks(at, &sums->sums[b], 1, asymmetric, acc);
        }
    }
}

// One segment of `units` units into acc; moves `at` on.
INLINE void
dot_segment(bt_dot_args *at, uint32_t units, bool asymmetric, block_sums sums[2], float *acc)
{
    uint32_t left = (units + at->block_units - 1) / at->block_units, before = 0, turn = 0;

    memset(acc, 0, (asymmetric ? 2 : 1) * at->tokens * BT_PANEL_ROWS * sizeof(float));
    while (left > 0) {
        uint32_t now = left < GROUP ? left : GROUP;

        dot_group(at, now, &sums[turn]);
        if (before > 0) {
            scale_group(at, &sums[1 - turn], before, asymmetric, acc);
        }
        at->first_unit += now * at->block_units;
        left -= now;
        before = now;
        turn = 1 - turn;
    }
    scale_group(at, &sums[1 - turn], before, asymmetric, acc);
}

// One block of all of K: both results take turns and are added in the end.
INLINE void
dot_whole(bt_dot_args *at, block_sums *out, float *acc)
{
    uint32_t unit = 0;

    BT_AMX_ZERO(0);
    BT_AMX_ZERO(1);
    for (; unit + 24 <= at->units; unit += 24) {
        STEP(at, 0, 2, 3, unit);
        STEP(at, 1, 4, 5, unit + 4);
        STEP(at, 0, 6, 7, unit + 8);
        STEP(at, 1, 2, 3, unit + 12);
        STEP(at, 0, 4, 5, unit + 16);
        STEP(at, 1, 6, 7, unit + 20);
    }
    for (; unit < at->units; unit += 4) {
        STEP(at, 0, 2, 3, unit);
    }
    BT_AMX_STORE(0, out->sums[0], 64);
    BT_AMX_STORE(1, out->sums[1], 64);
    for (uint32_t t = 0; t < at->tokens; t++) {
        for (uint32_t i = 0; i < BT_PANEL_ROWS; i++) {
            out->sums[0][t][i] += out->sums[1][t][i];
        }
    }
    memset(acc, 0, at->tokens * BT_PANEL_ROWS * sizeof(float));
    scale_blocks(at, out->sums, 1, false, acc);
}

INLINE void
dot_panel(const bt_dot_args *args, bool asymmetric, float *r)
{
    uint32_t floats = BT_PANEL_ROWS * args->tokens;
    bt_amx_config config = bt_amx_shapes(args->tokens, args->block_units >= 4 ? 64 : 32);
    bool is_whole = args->block_units == args->units && args->segment_units == args->units && !asymmetric;
    bt_dot_args at = *args;
    block_sums sums[2];
    bt_tree tree;

    bt_amx_configure(&config);
    bt_tree_init(&tree);
    for (uint32_t left = args->units; left > 0;) {
        uint32_t segment = left < args->segment_units ? left : args->segment_units;

        if (is_whole) {
            dot_whole(&at, &sums[0], tree.sums[tree.depth]);
        } else {
            dot_segment(&at, segment, asymmetric, sums, tree.sums[tree.depth]);
        }
        bt_tree_carry(&tree, asymmetric ? 2 * floats : floats);
        left -= segment;
    }
    bt_tree_finish(&tree, asymmetric ? 2 * floats : floats);
    for (uint32_t i = 0; i < floats; i++) {
        r[i] = asymmetric ? tree.sums[0][i] + tree.sums[0][floats + i] : tree.sums[0][i];
    }
    bt_amx_release();
}

static void
dot_symmetric(const bt_dot_args *args, float *r)
{
    dot_panel(args, false, r);
}

static void
dot_asymmetric(const bt_dot_args *args, float *r)
{
    dot_panel(args, true, r);
}

// Codes as the tiles take them, signed.
static void
unpack(const uint8_t *codes, bt_format format, uint32_t units, uint8_t *out)
{
    bt_avx512_unpack_around(codes, format, units, 0, out);
}

static bt_dot_fn *
pick_dot(unsigned bits, bool asymmetric, uint32_t tokens)
{
    assert(bits == 8 && tokens <= BT_TILE_TOKENS);
    (void)bits, (void)tokens;
    return asymmetric ? dot_asymmetric : dot_symmetric;
}

#ifdef BT_AMX_EMULATE
const bt_linear_path bt_linear_amx_emulated = {
#else
const bt_linear_path bt_linear_amx = {
#endif
    .tile_symmetric = 16,
    .tile_asymmetric = 16,
    .direct_tokens = 0,
    .direct_tiles = 0,
    .code_group = 64,
    .quantise = bt_avx512_quantise,
    .norm = bt_avx512_norm,
    .dot = pick_dot,
    .unpack_bytes = true,
    .unpack = unpack,
    .float_dot = bt_avx512_float_dot,
    .finish = bt_avx512_finish,
};
