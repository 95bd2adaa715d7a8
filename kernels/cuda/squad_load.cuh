// What a block of attention_squad.cu has in shared memory, as its tensor cores read it, and how tiles of keys and the rows' Q come there.
//
// A tile of 64 keys: K in rows of a key's 128 bytes, V in rows of a dim's 64 keys. Cache blocks have V as words of four keys of one dim, so V is
// turned by copying words: no thread has any of it in registers.
//   K   column 8j + 2t + e of the scores is key 16 (j / 2) + 4t + 2 (j % 2) + e, as in attention_prompt.cuh: a lane's sixteen scores are the
//       keys 16 i + 4t + b, whose codes are words of A as they lie.
//   V   row 16c + 8a + 2t + e is dim 16c + 4t + 2a + e: of a row of the sums a lane has four neighbours of each sixteen dims.
#pragma once

#include "kernels/cuda/prompt_load.cuh"
#include "kernels/cuda/ptx_wgmma.cuh"

#define SQUAD_DIM 128u
#define SQUAD_STAGES 3u
#define SQUAD_BIAS 2064640 // what all scores begin with, see squad_softmax.cuh

typedef struct {
    uint8_t k[64 * SQUAD_DIM]; // [column][dims], 128-byte swizzle
    uint8_t v[SQUAD_DIM * 64]; // [row][keys], 64-byte swizzle
} squad_stage;

// What a thread copies: sixteen bytes of K of each sixteen keys, of V words 4 apart in both: of two sixteens of dims (`v_to` 1,024 bytes on), each
// of two fours of keys (8 bytes on), and two keys' scales. What lies at sixteen 0 of V moves to another by exclusive or.
typedef struct {
    __align__(16) const uint8_t *k; // its piece of K of key 0 of block 0, and
    const uint8_t *scales;          // the first of the scales that it brings two of
    int32_t to_v;                   // from k to its piece of V
    uint16_t k_to, v_to;            // in the stage
} squad_source;

typedef struct {
    squad_stage stages[SQUAD_STAGES];
    uint8_t q[64 * SQUAD_DIM]; // [row][dims], 128-byte swizzle
    uint8_t bias[64 * 32];     // both factors of SQUAD_BIAS: all of its sixteens of bytes are the same
    prompt_scales scales[SQUAD_STAGES];
    prompt_total totals[PROMPT_THREADS][2];
    float4 sums[2][PROMPT_THREADS]; // l of both rows, where no register is left for it
    squad_source sources[PROMPT_THREADS];
    uint4 blocks[8]; // as prompt_shared has them
    uint32_t halves[4][64];
    prompt_item item;
} squad_shared;

// Who brings scales and numbers of blocks: the first threads, or by turns of blocks those of the other two warps, since the warps of a
// multiprocessor's blocks that have the same number share a scheduler.
static __device__ __forceinline__ uint32_t
squad_helper(void)
{
    return threadIdx.x ^ blockIdx.x % 2 * 64;
}

static __device__ __forceinline__ squad_source
squad_source_of(const attention_call &c, const prompt_item &item)
{
    uint32_t lane = threadIdx.x % 32, key = threadIdx.x / 8, piece = threadIdx.x % 8;
    uint32_t column = key % 4 / 2 * 8 + key / 4 * 2 + key % 2, four = lane / 16,
             dim = threadIdx.x / 32 * 32 + lane % 16;
    uint32_t t = lane % 16 / 4, row = threadIdx.x / 32 * 32 + dim / 2 % 2 * 8 + t * 2 + dim % 2;
    size_t scales = squad_helper() < 32 ? c.l.k_scale_offset + item.kv_head * c.l.k_scale_head_bytes
                                        : c.l.v_scale_offset + item.kv_head * c.l.v_scale_head_bytes;
    squad_source s;

    s.scales = c.a.pool + c.a.layer * c.l.layer_bytes + scales;
    s.k = c.a.pool + c.a.layer * c.l.layer_bytes + item.kv_head * c.l.k_head_bytes + key * SQUAD_DIM + piece * 16;
    s.to_v = (int32_t)c.l.v_offset + (int32_t)(item.kv_head * (c.l.v_head_bytes - c.l.k_head_bytes)) +
             (int32_t)(four * SQUAD_DIM * 4 + dim * 4) - (int32_t)(key * SQUAD_DIM + piece * 16);
    s.k_to = (uint16_t)(column * SQUAD_DIM + ((piece ^ column % 8) * 16));
    s.v_to = (uint16_t)(row * 64 + t * 16 + four * 4);
    return s;
}

// The scales of a tile, as they come, two keys a thread: of K for the first 32, of V for 32 more.
static __device__ __forceinline__ void
squad_load_scales(const attention_call &c, squad_shared &s, uint32_t tile)
{
    uint32_t pair = threadIdx.x % 32, block = ((const uint32_t *)&s.blocks[tile / 64 % 8])[pair / 8];

    bt_copy4(&s.halves[tile / 64 % 4][squad_helper()], s.sources[threadIdx.x].scales +
                                                           (uint64_t)block * (uint32_t)c.l.block_bytes +
                                                           ((tile + pair * 2) & (c.l.block_tokens - 1)) * 2);
}

// The thread's pieces of sixteen keys to their places in a stage: k and v are its pieces.
static __device__ __forceinline__ void
squad_copy(const squad_source &from, squad_stage &stage, uint32_t sixteen, const uint8_t *k, const uint8_t *v)
{
    uint8_t *to = stage.v + (from.v_to ^ sixteen * 16);

    bt_copy16(stage.k + from.k_to + sixteen * 16 * SQUAD_DIM, k, true);
#pragma unroll
    for (uint32_t j = 0; j < 4; j++) {
        bt_copy4(to + j / 2 * 1024 + j % 2 * 8, v + j / 2 * 64 + j % 2 * 2 * SQUAD_DIM * 4);
    }
}

// As prompt_load: one tile on its way, with the scales of the next and the numbers of the blocks of the one after two more.
static __device__ __forceinline__ void
squad_load(const attention_call &c, squad_shared &s, squad_stage &stage, uint32_t tile)
{
    const squad_source from = s.sources[threadIdx.x];
    uint4 four = s.blocks[tile / 64 % 8];
    uint32_t blocks[4] = {four.x, four.y, four.z, four.w}, mask = c.l.block_tokens - 1;
    uint32_t block_bytes = (uint32_t)c.l.block_bytes;

    if (mask >= 31) { // neighbouring sixteens lie together
#pragma unroll
        for (uint32_t i = 0; i < 4; i += 2) {
            const uint8_t *k = from.k + (uint64_t)blocks[i] * block_bytes + ((tile + i * 16) & mask) * SQUAD_DIM;
            const uint8_t *v = k + from.to_v;

            squad_copy(from, stage, i, k, v);
            squad_copy(from, stage, i + 1, k + 16 * SQUAD_DIM, v + 16 * SQUAD_DIM);
        }
    } else {
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            const uint8_t *k = from.k + (uint64_t)blocks[i] * block_bytes;

            squad_copy(from, stage, i, k, k + from.to_v);
        }
    }
    if (squad_helper() < 64) {
        squad_load_scales(c, s, tile + 64);
    } else if (squad_helper() < 68) {
        uint32_t sixteen = threadIdx.x % 4;

        bt_copy4((uint32_t *)&s.blocks[(tile / 64 + 3) % 8] + sixteen, prompt_find(c, s.item, tile + 192, sixteen));
    }
}

// One of the tile's scales as a float, of a key of K (in units of 2^-110, squad_softmax.cuh) or V; 0 for keys that nobody sees. They have been
// here since the tile before was. Says whether it is a number, and V's above 0.
static __device__ __forceinline__ bool
squad_turn_scale(squad_shared &s, prompt_scales &scales, uint32_t tile)
{
    uint32_t in_tile = threadIdx.x % 64, key = tile + in_tile;
    float scale = __half2float(((const __half *)s.halves[tile / 64 % 4])[threadIdx.x]);

    scale = key >= s.item.first && key < s.item.end ? scale : 0.0f;
    if (threadIdx.x < 64) {
        scales.k[in_tile] = scale * 0x1p110f;
        scales.k_magic[in_tile] = scale * (-SQUAD_BIAS * 0x1p-39f);
        return fabsf(scale) < INFINITY;
    }
    scales.v[in_tile] = scale;
    return scale > 0.0f && scale < INFINITY;
}

// Q of the rows, zeros for rows that are none, and what makes SQUAD_BIAS.
static __device__ __forceinline__ void
squad_load_queries(const attention_call &c, const prompt_item &item, squad_shared &s)
{
    uint32_t piece = threadIdx.x % 8;

#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t n = i * 16 + threadIdx.x / 8;
        size_t at = (size_t)(item.row + n / c.group) * c.a.heads + item.kv_head * c.group + n % c.group;
        uint4 x = make_uint4(0, 0, 0, 0);

        if (n < item.rows) {
            x = *(const uint4 *)(c.q8 + at * SQUAD_DIM + piece * 16);
        }
        *(uint4 *)(s.q + n * SQUAD_DIM + (piece ^ n % 8) * 16) = x;
    }
    // 247, four times 253 and eleven times 255: the sum of their squares, twice.
    *(uint4 *)(s.bias + threadIdx.x * 16) = make_uint4(0xfdfdfdf7, 0xfffffffd, 0xffffffff, 0xffffffff);
}
