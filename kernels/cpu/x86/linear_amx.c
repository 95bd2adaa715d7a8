// Integer dot products with AMX-INT8: 16 tokens × 16 rows × 64 columns an instruction, for calls of many tokens. The rest
// of the path is that of AVX-512.
//
// A panel unpacked to 8-bit codes is what the second operand wants, 16 vectors of 64 bytes for 64 columns; a tile's
// activations lie as [64 columns][token][64] for the first. Up to four blocks go into result tiles of their own, which are
// stored and taken into the float accumulators together: an accumulator is then read and written once for four blocks.
#include "kernels/cpu/x86/linear_x86.h"

#include "kernels/cpu/tree.h"
#include "kernels/cpu/x86/amx.h"
#include "kernels/cpu/x86/math_avx512.h"

#include <assert.h>

#define INLINE static inline __attribute__((always_inline))
#define GROUP 4u // blocks at a time

// Results of a group of blocks.
typedef struct {
    _Alignas(64) int32_t sums[GROUP][BT_TILE_TOKENS][BT_PANEL_ROWS];
} block_sums;

// Result tile `index`, by way of tiles a and b: numbers are written, since they are part of the instructions.
// The sums of one block `units` units (64 or 32 columns a step), stored.
#define DOT_BLOCK(index, a, b)                                                                                         \
    static inline void dot_block_##index(const uint8_t *codes, const int8_t *a8, uint32_t tokens, uint32_t units,      \
                                         uint32_t at_unit, uint32_t step, block_sums *out)                             \
    {                                                                                                                  \
        BT_AMX_ZERO(index);                                                                                            \
        for (uint32_t u = 0; u < units; u += step) {                                                                   \
            uint32_t col = (at_unit + u) * BT_UNIT_COLS;                                                               \
                                                                                                                       \
            BT_AMX_LOAD(a, a8 + (size_t)(col / 64) * 64 * tokens + col % 64, 64);                                      \
            BT_AMX_LOAD(b, codes + (size_t)(at_unit + u) * 256, 64);                                                   \
            BT_AMX_DOT(index, a, b);                                                                                   \
        }                                                                                                              \
        BT_AMX_STORE(index, out->sums[index], 64);                                                                     \
    }

DOT_BLOCK(0, 4, 6)
DOT_BLOCK(1, 5, 7)
DOT_BLOCK(2, 4, 6)
DOT_BLOCK(3, 5, 7)

INLINE __m512
load_scales(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)p));
}

// Takes `blocks` block sums into acc [tokens][16] and, asymmetric, the minima's behind it, in the order of the blocks.
INLINE void
scale_blocks(const bt_dot_args *at, const block_sums *sums, uint32_t blocks, bool asymmetric, float *acc)
{
    uint32_t tokens = at->tokens;
    __m512 sw[GROUP], minimum[GROUP];

    for (uint32_t b = 0; b < blocks; b++) {
        sw[b] = load_scales(at->scales + b * at->scale_step);
        minimum[b] = asymmetric ? load_scales(at->scales + b * at->scale_step + BT_PANEL_ROWS) : _mm512_setzero_ps();
    }
    for (uint32_t t = 0; t < tokens; t++) {
        __m512 sum = _mm512_load_ps(acc + 16 * t);
        __m512 sum_min = asymmetric ? _mm512_load_ps(acc + 16 * (tokens + t)) : _mm512_setzero_ps();

        for (uint32_t b = 0; b < blocks; b++) {
            const uint32_t *record = at->records + b * 2 * tokens + t;
            __m512i dot = _mm512_load_si512(sums->sums[b][t]);
            __m512 scale = _mm512_mul_ps(sw[b], _mm512_set1_ps(bt_float_of_bits(record[0])));

            if (asymmetric) {
                sum_min = _mm512_fmadd_ps(minimum[b], _mm512_set1_ps(bt_float_of_bits(record[tokens])), sum_min);
            } else {
                dot = _mm512_add_epi32(dot, _mm512_set1_epi32((int32_t)record[tokens]));
            }
            sum = _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(dot), sum);
        }
        _mm512_store_ps(acc + 16 * t, sum);
        if (asymmetric) {
            _mm512_store_ps(acc + 16 * (tokens + t), sum_min);
        }
    }
}

INLINE void
dot_group(const bt_dot_args *at, uint32_t units, uint32_t step, block_sums *sums)
{
    uint32_t b = at->block_units;

    dot_block_0(at->codes, at->a8, at->tokens, units < b ? units : b, at->first_unit, step, sums);
    if (units > b) {
        dot_block_1(at->codes, at->a8, at->tokens, units < 2 * b ? units - b : b, at->first_unit + b, step, sums);
    }
    if (units > 2 * b) {
        dot_block_2(at->codes, at->a8, at->tokens, units < 3 * b ? units - 2 * b : b, at->first_unit + 2 * b, step,
                    sums);
    }
    if (units > 3 * b) {
        dot_block_3(at->codes, at->a8, at->tokens, units < 4 * b ? units - 3 * b : b, at->first_unit + 3 * b, step,
                    sums);
    }
}

// One segment of `units` units into acc; moves `at` on.
INLINE void
dot_segment(bt_dot_args *at, uint32_t units, uint32_t step, bool asymmetric, block_sums *sums, float *acc)
{
    memset(acc, 0, (asymmetric ? 2 : 1) * at->tokens * BT_PANEL_ROWS * sizeof(float));
    while (units > 0) {
        uint32_t most = GROUP * at->block_units, now = units < most ? units : most;
        uint32_t blocks = (now + at->block_units - 1) / at->block_units;

        dot_group(at, now, step, sums);
        if (blocks == GROUP) {
            scale_blocks(at, sums, GROUP, asymmetric, acc);
        } else {
            scale_blocks(at, sums, blocks, asymmetric, acc);
        }
        units -= now;
        at->first_unit += now;
        at->scales += blocks * at->scale_step;
        at->records += blocks * 2 * at->tokens;
    }
}

INLINE void
dot_panel(const bt_dot_args *args, bool asymmetric, float *r)
{
    uint32_t step = args->block_units >= 4 ? 4 : 2, floats = BT_PANEL_ROWS * args->tokens;
    bt_amx_config config = bt_amx_shapes(args->tokens, step * BT_UNIT_COLS);
    bt_dot_args at = *args;
    block_sums sums;
    bt_tree tree;

    bt_amx_configure(&config);
    bt_tree_init(&tree);
    for (uint32_t left = args->units; left > 0;) {
        uint32_t segment = left < args->segment_units ? left : args->segment_units;

        dot_segment(&at, segment, step, asymmetric, &sums, tree.sums[tree.depth]);
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
    .unpack = bt_avx512_unpack,
    .float_dot = bt_avx512_float_dot,
    .finish = bt_avx512_finish,
};
