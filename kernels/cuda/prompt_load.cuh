// What a block of attention_prompt.cuh has in shared memory, and how tiles of keys and the rows' Q come there.
#pragma once

#include "kernels/cuda/prompt_softmax.cuh"

#define PROMPT_THREADS 128u
#define PROMPT_ROWS BT_CUDA_TILE_COLUMNS

template <int DIM> struct prompt_stage { // a tile of 64 keys
    static const uint32_t v_pitch = DIM * 4 + 32;
    static const uint32_t count =
        DIM == 256 ? 2 : 3; // stages that a block has: with two, 92 KiB, of which an sm_89 has 99

    __align__(16) uint8_t k[64 * DIM];     // [key][dims]; of odd keys, 64-byte halves of 128 dims change places
    __align__(16) uint8_t v[16 * v_pitch]; // [key / 4][dim][4]
    prompt_scales scales;
};

// What a block works on. Blocks of one tile and split lie side by side, a KV head each.
typedef struct {
    uint32_t row, count, rows, kv_head, split; // count tokens, rows = (token, head)
    uint32_t position, end, first;             // of its first token; keys first … end − 1 are seen by some row
    uint32_t table, shift;                     // where the sequence's block table begins, and log2 of a block's tokens
} prompt_item;

// The merged splits of a row, each lane's for itself.
typedef struct {
    float m, l;
} prompt_total;

// What a thread copies of every tile: 16 bytes of K and of V of each sixteen keys (DIM 64: of every second sixteen; 256: 32 bytes). In shared
// memory, as registers are short.
typedef struct {
    __align__(16) const uint8_t *k; // its piece of K of key 0 of block 0
    int32_t to_v;                   // from there to its piece of V
    uint16_t k_to, v_to;            // in the stage
} prompt_source;

template <int DIM> struct prompt_shared {
    prompt_stage<DIM> stages[prompt_stage<DIM>::count];
    uint4 q[PROMPT_THREADS / 32][DIM / 32][32]; // A of each warp's rows, a lane's four words together
    prompt_total totals[PROMPT_THREADS][2];
    prompt_source sources[PROMPT_THREADS];
    uint4 blocks[8];        // of tiles by turns, their sixteens' cache blocks
    uint32_t halves[4][64]; // of tiles by turns, scales as they come: 32 pairs of K's, 32 of V's
    prompt_item item;
};

static __device__ __forceinline__ prompt_item
prompt_item_of(const attention_call &c, const bt_cuda_tile *tiles, uint32_t number)
{
    uint32_t rest = number / c.a.kv_heads, apart = c.splits != 0 ? c.splits : 1;
    bt_cuda_tile tile = tiles[rest / apart];
    prompt_item item;

    item.kv_head = number % c.a.kv_heads, item.split = rest % apart;
    item.row = tile.row, item.count = tile.count, item.rows = tile.count * c.group;
    item.position = c.positions[tile.row], item.table = c.tables[tile.row];
    item.shift = __ffs((int)c.l.block_tokens) - 1;
    item.end = item.position + tile.count;
    item.first = c.a.window == 0 || item.position + 1 <= c.a.window ? 0 : item.position + 1 - c.a.window;
    return item;
}

// ---- tiles ----

template <int DIM>
static __device__ __forceinline__ prompt_source
prompt_source_of(const attention_call &c, const prompt_item &item)
{
    uint32_t at = threadIdx.x % DIM, sixteen = threadIdx.x / DIM;
    uint32_t k_key = at / (DIM / 16), k_piece = at % (DIM / 16), v_four = at / (DIM / 4), v_piece = at % (DIM / 4);
    prompt_source s;

    s.k = c.a.pool + c.a.layer * c.l.layer_bytes + item.kv_head * c.l.k_head_bytes + k_key * DIM + k_piece * 16;
    s.to_v = (int32_t)c.l.v_offset + (int32_t)(v_four * DIM * 4 + v_piece * 16) - (int32_t)(k_key * DIM + k_piece * 16);
    s.k_to = (uint16_t)((sixteen * 16 + k_key) * DIM + prompt_k_at<DIM>(k_key, k_piece * 16));
    s.v_to = (uint16_t)((sixteen * 4 + v_four) * prompt_stage<DIM>::v_pitch + v_piece * 16);
    return s;
}

// The cache block of the tile's sixteen keys number `sixteen`. What nobody sees may be gone: another block stands in for it.
static __device__ __forceinline__ const uint32_t *
prompt_find(const attention_call &c, const prompt_item &item, uint32_t tile, uint32_t sixteen)
{
    uint32_t key = tile + sixteen * 16, low = item.first / 16 * 16, high = item.end - 1;

    key = key < low ? low : key;
    key = key > high ? high : key;
    return c.blocks + item.table + (key >> item.shift);
}

// The thread's pieces of K and V of sixteen keys, `k` its piece of K.
template <int DIM>
static __device__ __forceinline__ void
prompt_copy(const prompt_source &from, prompt_stage<DIM> &stage, uint32_t sixteen, const uint8_t *k)
{
#pragma unroll
    for (uint32_t half = 0; half < (DIM == 256 ? 2 : 1); half++) {
        bt_copy16(stage.k + from.k_to + (sixteen * 16 + half * 8) * DIM, k + half * 8 * DIM, true);
        bt_copy16(stage.v + from.v_to + (sixteen * 4 + half * 2) * stage.v_pitch, k + from.to_v + half * 8 * DIM, true);
    }
}

// The scales of a tile, as they come, two keys a thread: of K for the first 32, of V for 32 more.
template <int DIM>
static __device__ __forceinline__ void
prompt_load_scales(const attention_call &c, prompt_shared<DIM> &s, uint32_t tile)
{
    uint32_t lane = threadIdx.x % 32, block = ((const uint32_t *)&s.blocks[tile / 64 % 8])[lane / 8];
    size_t offset = threadIdx.x < 32 ? c.l.k_scale_offset + s.item.kv_head * c.l.k_scale_head_bytes
                                     : c.l.v_scale_offset + s.item.kv_head * c.l.v_scale_head_bytes;

    bt_copy4(&s.halves[tile / 64 % 4][threadIdx.x], c.a.pool + (uint64_t)block * (uint32_t)c.l.block_bytes +
                                                        c.a.layer * c.l.layer_bytes + offset +
                                                        ((tile + lane * 2) & (c.l.block_tokens - 1)) * 2);
}

// One tile on its way, with the scales of the next, so that they are floats before the tile's turn, and the numbers of the blocks of the one
// after two more. Blocks and sixteens of keys lie at multiples of 64 bytes.
template <int DIM>
static __device__ __forceinline__ void
prompt_load(const attention_call &c, prompt_shared<DIM> &s, prompt_stage<DIM> &stage, uint32_t tile)
{
    const prompt_source from = s.sources[threadIdx.x];
    uint4 four = s.blocks[tile / 64 % 8];
    uint32_t blocks[4] = {four.x, four.y, four.z, four.w}, mask = c.l.block_tokens - 1;
    uint32_t block_bytes = (uint32_t)c.l.block_bytes;

#pragma unroll
    for (uint32_t i = 0; i < 4; i += DIM == 64 ? 2 : 1) {
        uint32_t sixteen = DIM == 64 ? i + threadIdx.x / 64 : i;
        uint32_t block = DIM == 64 && threadIdx.x >= 64 ? blocks[i + 1] : blocks[i];

        prompt_copy<DIM>(from, stage, i, from.k + (uint64_t)block * block_bytes + ((tile + sixteen * 16) & mask) * DIM);
    }
    if (threadIdx.x < 64) {
        prompt_load_scales<DIM>(c, s, tile + 64);
    } else if (threadIdx.x < 68) {
        uint32_t sixteen = threadIdx.x % 4;

        bt_copy4((uint32_t *)&s.blocks[(tile / 64 + 3) % 8] + sixteen, prompt_find(c, s.item, tile + 192, sixteen));
    }
}

// The two scales that the thread brought, as floats; 0 for keys that nobody sees. Says whether all are numbers.
template <int DIM>
static __device__ __forceinline__ bool
prompt_turn_scales(prompt_shared<DIM> &s, prompt_stage<DIM> &stage, uint32_t tile)
{
    uint32_t pair = threadIdx.x % 32, key = tile + pair * 2, halves;
    float low, high;

    if (threadIdx.x >= 64) {
        return true;
    }
    halves = s.halves[tile / 64 % 4][threadIdx.x];
    low = __half2float(__ushort_as_half((uint16_t)halves));
    high = __half2float(__ushort_as_half((uint16_t)(halves >> 16)));
    low = key >= s.item.first && key < s.item.end ? low : 0.0f;
    high = key + 1 >= s.item.first && key + 1 < s.item.end ? high : 0.0f;
    if (threadIdx.x < 32) {
        *(float2 *)&stage.scales.k[pair * 2] = make_float2(low, high);
        *(float2 *)&stage.scales.k_magic[pair * 2] = make_float2(-BT_ROUND_MAGIC * low, -BT_ROUND_MAGIC * high);
    } else {
        *(float2 *)&stage.scales.v[pair * 2] = make_float2(low, high);
    }
    return fabsf(low) < INFINITY && fabsf(high) < INFINITY;
}

// Lane (g, t) takes the dims 64 p + 16 t … + 15 of its rows: words 0 and 1 of them in step 2p, 2 and 3 in step 2p + 1. K is read likewise.
template <int DIM>
static __device__ __forceinline__ void
prompt_load_queries(const attention_call &c, const prompt_item &item, prompt_shared<DIM> &s)
{
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint4 x[2][DIM / 64];

#pragma unroll
    for (uint32_t h = 0; h < 2; h++) {
        uint32_t n = warp * 16 + h * 8 + lane / 4;
        size_t at = (size_t)(item.row + n / c.group) * c.a.heads + item.kv_head * c.group + n % c.group;

#pragma unroll
        for (uint32_t p = 0; p < DIM / 64; p++) {
            x[h][p] = make_uint4(0, 0, 0, 0);
            if (n < item.rows) {
                x[h][p] = *(const uint4 *)(c.q8 + at * DIM + p * 64 + lane % 4 * 16);
            }
        }
    }
#pragma unroll
    for (uint32_t p = 0; p < DIM / 64; p++) {
        s.q[warp][p * 2][lane] = make_uint4(x[0][p].x, x[1][p].x, x[0][p].y, x[1][p].y);
        s.q[warp][p * 2 + 1][lane] = make_uint4(x[0][p].z, x[1][p].z, x[0][p].w, x[1][p].w);
    }
}
