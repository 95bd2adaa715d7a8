// What a block of attention_squad.cu has in shared memory, as its tensor cores read it, and how tiles of keys and the rows' Q come there.
//
// A tile of 64 keys: K in rows of a key's 128 bytes, V in rows of a dim's 64 keys. Cache blocks have V as words of four keys of one dim, so V is
// turned by copying words: no thread has any of it in registers. A warpgroup of its own does nothing but bring tiles, for all others of the block.
//   K   column 8j + 2t + e of the scores is key 16 (j / 2) + 4t + 2 (j % 2) + e, as in attention_prompt.cuh: a lane's sixteen scores are the
//       keys 16 i + 4t + b, whose codes are words of A as they lie.
//   V   row 16c + 8a + 2t + e is dim 16c + 4t + 2a + e: of a row of the sums a lane has four neighbours of each sixteen dims.
#pragma once

#include "kernels/cuda/prompt_load.cuh"
#include "kernels/cuda/ptx_wgmma.cuh"

#define SQUAD_DIM 128u
#define SQUAD_STAGES 3u
#define SQUAD_BIAS 2064640 // what all scores begin with, see squad_softmax.cuh
#define SQUAD_BRINGERS 128u

typedef struct {
    uint8_t k[64 * SQUAD_DIM]; // [column][dims], 128-byte swizzle
    uint8_t v[SQUAD_DIM * 64]; // [row][keys], 64-byte swizzle
} squad_stage;

// What a block is at: a squad's rows and a KV head, and its tiles, from key `tile` to `end`. No rows: there is nothing more.
typedef struct {
    prompt_item item;
    uint32_t tile, end;
} squad_task;

template <int WARPGROUPS> struct squad_shared {
    squad_stage stages[SQUAD_STAGES];
    uint8_t q[2][WARPGROUPS * 64 * SQUAD_DIM]; // of tasks by turns: [row][dims], 128-byte swizzle
    uint8_t bias[64 * 32];                     // both factors of SQUAD_BIAS: all of its sixteens of bytes are the same
    prompt_scales scales[SQUAD_STAGES];
    float4 sums[2][WARPGROUPS * 128]; // l of both rows, where no register is left for it
    uint2 ends[WARPGROUPS * 128];     // of what both rows see
    uint2 whole[WARPGROUPS * 4];      // of a warp: where what all of its rows see ends, and where it begins
    float4 factors[WARPGROUPS * 128]; // w and minus_w of a thread's state
    prompt_total totals[WARPGROUPS * 128][2];
    float4 merged[2][SQUAD_DIM / 16][WARPGROUPS * 128]; // acc of the splits before, of both rows
    uint32_t halves[SQUAD_STAGES][64];                  // scales as they come: 32 pairs of K's, 32 of V's
    // Four times, as one word of all lanes would be waited for at once: the last tile there of which a scale is no number, or one of V's not above 0,
    // plus 1.
    uint4 uneven[SQUAD_STAGES];
    uint64_t full[SQUAD_STAGES], empty[SQUAD_STAGES]; // all is there; everybody is done with it
    uint64_t known[2], done[2];                       // the same of tasks (but Q: that is there with the first tile)
    squad_task tasks[2];
};

// The block's task number n. Tasks are in order of their keys, and blocks take them there and back, so that all get about as many keys.
static __device__ __forceinline__ squad_task
squad_task_of(const attention_call &c, const bt_cuda_tile *squads, uint32_t tasks, uint32_t n)
{
    uint32_t number = n * gridDim.x + (n % 2 == 0 ? blockIdx.x : gridDim.x - 1 - blockIdx.x);
    squad_task t = {};
    uint32_t from, to;

    if (number < tasks) {
        t.item = prompt_item_of(c, squads, number);
        t.tile = t.item.first / 64 * 64, t.end = t.item.end;
        from = t.item.split * BT_ATTENTION_SPLIT, to = from + BT_ATTENTION_SPLIT;
        if (c.splits != 0) {
            t.tile = t.tile > from ? t.tile : from, t.end = t.end < to ? t.end : to;
        }
    }
    return t;
}

// ---- what brings tiles: SQUAD_BRINGERS threads ----

// What a thread copies: sixteen bytes of K of each sixteen keys, of V words 4 apart in both: of two sixteens of dims (`v_to` 1,024 bytes on), each
// of two fours of keys (8 bytes on), and two keys' scales. What lies at sixteen 0 of V moves to another by exclusive or.
typedef struct {
    const uint8_t *k;       // its piece of K of key 0 of block 0
    uint32_t k_to, v_to;    // in the stage
    int32_t to_v, to_scale; // from k to its piece of V, and to the scales of its two keys (of the first 64 threads)
} squad_source;

static __device__ __forceinline__ uint32_t
squad_bringer(void)
{
    return threadIdx.x % SQUAD_BRINGERS;
}

static __device__ __forceinline__ squad_source
squad_source_of(const attention_call &c, const prompt_item &item)
{
    uint32_t self = squad_bringer(), lane = self % 32, key = self / 8, piece = self % 8;
    uint32_t column = key % 4 / 2 * 8 + key / 4 * 2 + key % 2, four = lane / 16, dim = self / 32 * 32 + lane % 16;
    uint32_t t = lane % 16 / 4, row = self / 32 * 32 + dim / 2 % 2 * 8 + t * 2 + dim % 2;
    size_t k = item.kv_head * c.l.k_head_bytes + key * SQUAD_DIM + piece * 16;
    size_t v = c.l.v_offset + item.kv_head * c.l.v_head_bytes + four * SQUAD_DIM * 4 + dim * 4;
    size_t scales = self < 32 ? c.l.k_scale_offset + item.kv_head * c.l.k_scale_head_bytes
                              : c.l.v_scale_offset + item.kv_head * c.l.v_scale_head_bytes;
    squad_source s;

    s.k = c.a.pool + c.a.layer * c.l.layer_bytes + k;
    s.to_v = (int32_t)v - (int32_t)k, s.to_scale = (int32_t)scales - (int32_t)k;
    s.k_to = column * SQUAD_DIM + ((piece ^ column % 8) * 16);
    s.v_to = row * 64 + t * 16 + four * 4;
    return s;
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

// A tile and its scales on their way. `blocks`: the cache blocks of its sixteens.
template <int WARPGROUPS>
static __device__ __forceinline__ void
squad_load(const attention_call &c, squad_shared<WARPGROUPS> &s, const squad_source &from, uint32_t slot, uint32_t tile,
           const uint32_t blocks[4])
{
    uint32_t mask = c.l.block_tokens - 1, self = squad_bringer(), pair = self % 32 * 2;
    uint32_t block_bytes = (uint32_t)c.l.block_bytes;
    squad_stage &stage = s.stages[slot];

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
    if (self < 64) {
        uint32_t low = pair < 16 ? blocks[0] : blocks[1], high = pair < 48 ? blocks[2] : blocks[3];

        bt_copy4(&s.halves[slot][self], from.k + from.to_scale + (uint64_t)(pair < 32 ? low : high) * block_bytes +
                                            ((tile + pair) & mask) * 2);
    }
}

// Q of the task's rows on its way, zeros for rows that are none.
template <int WARPGROUPS>
static __device__ __forceinline__ void
squad_load_queries(const attention_call &c, squad_shared<WARPGROUPS> &s, const prompt_item &item, uint8_t *to)
{
    uint32_t piece = squad_bringer() % 8;

    for (uint32_t n = squad_bringer() / 8; n < WARPGROUPS * 64; n += SQUAD_BRINGERS / 8) {
        uint32_t row = n < item.rows ? n : 0;
        size_t at = (size_t)(item.row + row / c.group) * c.a.heads + item.kv_head * c.group + row % c.group;

        bt_copy16(to + n * SQUAD_DIM + (piece ^ n % 8) * 16, c.q8 + at * SQUAD_DIM + piece * 16, n < item.rows);
    }
}

// The two scales that the thread brought, as floats, of keys of K (in units of 2^-110, squad_softmax.cuh) or V; 0 for keys that nobody sees.
template <int WARPGROUPS>
static __device__ __forceinline__ void
squad_turn_scales(squad_shared<WARPGROUPS> &s, const prompt_item &item, uint32_t slot, uint32_t tile)
{
    uint32_t self = squad_bringer(), pair = self % 32, key = tile + pair * 2, halves;
    float low, high;

    if (self >= 64) {
        return;
    }
    halves = s.halves[slot][self];
    low = __half2float(__ushort_as_half((uint16_t)halves));
    high = __half2float(__ushort_as_half((uint16_t)(halves >> 16)));
    low = key >= item.first && key < item.end ? low : 0.0f;
    high = key + 1 >= item.first && key + 1 < item.end ? high : 0.0f;
    if (self < 32) {
        const float magic = -SQUAD_BIAS * 0x1p-39f;

        *(float2 *)&s.scales[slot].k[pair * 2] = make_float2(low * 0x1p110f, high * 0x1p110f);
        *(float2 *)&s.scales[slot].k_magic[pair * 2] = make_float2(low * magic, high * magic);
    } else {
        *(float2 *)&s.scales[slot].v[pair * 2] = make_float2(low, high);
    }
    if (!(fabsf(low) < INFINITY && fabsf(high) < INFINITY) || (self >= 32 && !(low > 0.0f && high > 0.0f))) {
        s.uneven[slot] = make_uint4(tile + 1, tile + 1, tile + 1, tile + 1);
    }
}

// The cache blocks of a tile's sixteens.
static __device__ __forceinline__ void
squad_find(const attention_call &c, const prompt_item &item, uint32_t tile, uint32_t blocks[4])
{
    bool pairs = c.l.block_tokens >= 32;

#pragma unroll
    for (uint32_t i = 0; i < 4; i += 2) {
        blocks[i] = *prompt_find(c, item, tile, i);
        blocks[i + 1] = pairs ? blocks[i] : *prompt_find(c, item, tile, i + 1);
    }
}

// What has come of a tile is there for all.
template <int WARPGROUPS>
static __device__ __forceinline__ void
squad_hand_over(squad_shared<WARPGROUPS> &s, const prompt_item &item, uint32_t slot, uint32_t tile)
{
    squad_turn_scales(s, item, slot, tile);
    bt_fence_async();
    bt_barrier_arrive(bt_shared_at(&s.full[slot]));
}

// Which stage is next; `parity` turns when all have been.
typedef struct {
    uint32_t slot, parity;
} squad_turn;

static __device__ __forceinline__ void
squad_go_on(squad_turn &t)
{
    t.slot = t.slot == SQUAD_STAGES - 1 ? 0 : t.slot + 1;
    t.parity ^= t.slot == 0;
}

// All tiles of a task, as stages become free.
template <int WARPGROUPS>
static __device__ __forceinline__ void
squad_bring(const attention_call &c, squad_shared<WARPGROUPS> &s, const squad_task &task, squad_turn &at)
{
    squad_source from = squad_source_of(c, task.item);
    uint32_t blocks[4];

    squad_find(c, task.item, task.tile, blocks);
    for (uint32_t tile = task.tile; tile < task.end; tile += 64) {
        bt_barrier_wait(bt_shared_at(&s.empty[at.slot]), at.parity ^ 1);
        squad_load(c, s, from, at.slot, tile, blocks);
        bt_copy_commit();
        squad_find(c, task.item, tile + 64, blocks);
        bt_copy_wait<0>();
        squad_hand_over(s, task.item, at.slot, tile);
        squad_go_on(at);
    }
}

// All that the block works on, and a task without rows behind it.
template <int WARPGROUPS>
static __device__ __forceinline__ void
squad_bring_all(const attention_call &c, squad_shared<WARPGROUPS> &s, const bt_cuda_tile *squads, uint32_t tasks)
{
    squad_turn at = {0, 0};

    for (uint32_t n = 0, rows = 1; rows != 0; n++) {
        squad_task task = squad_task_of(c, squads, tasks, n);

        bt_barrier_wait(bt_shared_at(&s.done[n % 2]), n / 2 % 2 ^ 1);
        if (squad_bringer() == 0) {
            s.tasks[n % 2] = task;
        }
        bt_barrier_arrive(bt_shared_at(&s.known[n % 2]));
        rows = task.item.rows;
        if (task.tile < task.end) {
            squad_load_queries(c, s, task.item, s.q[n % 2]);
            squad_bring(c, s, task, at);
        }
    }
}
