// Linear layers with integer weights on tensor cores, every sum in the order of kernels/cpu/ref/linear.c.
//
// A block of threads has `tiles` row tiles × `groups` runs of K. A warp takes one tile (16 rows) over `run` segments of 1,024 columns,
// for NT × 8 tokens, 128 columns at a time, which come through shared memory by cp.async: the warp's own weights and, shared by the warps
// of a group, activations and their scales. The segments' sums meet in shared memory, are added as the balanced tree, and each
// (row, token) is finished by one thread. Which grid it was changes nothing.
#pragma once

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/linear_call.cuh"
#include "kernels/cuda/ptx.cuh"

#define UNIT 128u

template <int BITS, int BLOCK, bool ASYM> struct shape {
    static const int blocks = BLOCK == 0 ? 1 : 128 / (BLOCK ? BLOCK : 1); // of a unit
    static const int row_bytes = 128 + 16;                                // 8 bits: without bank conflicts
    static const int code_bytes = BITS == 4 ? 1024 : 16 * row_bytes;
    static const int scale_bytes = BLOCK == 0 ? 0 : blocks * 32;
    static const int tile_bytes = code_bytes + scale_bytes * (ASYM ? 2 : 1);
};

template <int NT> struct depth { // stages
    static const int value = NT <= 2 ? 6 : NT == 4 ? 4 : 3;
};

// Where a warp's tile lies.
typedef struct {
    const uint8_t *codes;
    const __half *scales, *minima;
    uint32_t blocks;
    bool row_scale;
} tile_at;

template <int BITS>
static __device__ __forceinline__ tile_at
find_tile(const bt_cuda_matrix &m, uint32_t tile)
{
    tile_at at;

    at.codes = m.codes + (size_t)tile * 16 * m.padded / (BITS == 4 ? 2 : 1);
    at.scales = m.scales + (size_t)tile * m.blocks * 16;
    at.minima = m.minima + (size_t)tile * m.blocks * 16;
    at.blocks = m.blocks;
    at.row_scale = m.block == BT_BLOCK_ROW;
    return at;
}

// The warps of a group wait for each other.
static __device__ __forceinline__ void
group_sync(const linear_call &c, uint32_t group)
{
    if (c.tiles == 1) {
        __syncwarp();
    } else {
        bt_bar_sync(1 + group, c.tiles * 32);
    }
}

// ---- what comes ----

template <int BITS, int BLOCK, bool ASYM>
static __device__ __forceinline__ void
fetch_weights(const linear_call &c, const tile_at &at, uint32_t k, uint32_t padded, uint32_t lane, uint8_t *to)
{
    typedef shape<BITS, BLOCK, ASYM> S;

    if (BITS == 4) {
        const uint8_t *from = at.codes + (size_t)k * 8 + lane * 16;

        bt_copy16(to + lane * 16, from, true);
        bt_copy16(to + 512 + lane * 16, from + 512, true);
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t row = lane / 8 + i * 4, piece = lane % 8 * 16;
            bool there = k + piece < padded;

            bt_copy16(to + row * S::row_bytes + piece, at.codes + (size_t)row * padded + (there ? k + piece : 0),
                      there);
        }
    }
    if (BLOCK != 0 && lane < S::blocks * 2) {
        uint32_t block = at.row_scale ? 0 : k / (BLOCK ? BLOCK : 1) + lane / 2;
        size_t from = (size_t)(block < at.blocks ? block : 0) * 16 + lane % 2 * 8;

        bt_copy16(to + S::code_bytes + lane * 16, at.scales + from, true);
        if (ASYM) {
            bt_copy16(to + S::code_bytes + S::scale_bytes + lane * 16, at.minima + from, true);
        }
    }
}

template <int NT>
static __device__ __forceinline__ void
fetch_activations(const linear_call &c, uint32_t k, uint32_t first_token, uint32_t thread, uint8_t *to)
{
    const int8_t *from = c.a8 + ((size_t)(first_token / 8) * (c.a8_stride / 128) + k / 128) * 1024;

    for (uint32_t i = thread; i < NT * 64; i += c.tiles * 32) {
        bt_copy16(to + i * 16, from + (size_t)(i / 64) * (c.a8_stride / 128) * 1024 + i % 64 * 16, true);
    }
    for (uint32_t i = thread; i < c.act_rows * NT * 2; i += c.tiles * 32) {
        uint32_t row = (c.act_shift < 31 ? k >> c.act_shift : 0) + i / (NT * 2);

        bt_copy16(to + NT * 1024 + i * 16, c.sa + row * c.sa_stride + first_token + i % (NT * 2) * 4, true);
    }
}

// ---- a warp's share ----

template <int NT> struct sums {
    float acc[NT][4], min[NT][4];
};

// Nibbles to bytes: symmetric ones as 16 times themselves.
template <bool ASYM>
static __device__ __forceinline__ void
spread(uint32_t low_rows, uint32_t high_rows, uint32_t a[4])
{
    if (ASYM) {
        a[0] = low_rows & 0x0f0f0f0fu, a[2] = low_rows >> 4 & 0x0f0f0f0fu;
        a[1] = high_rows & 0x0f0f0f0fu, a[3] = high_rows >> 4 & 0x0f0f0f0fu;
    } else {
        a[0] = low_rows << 4 & 0xf0f0f0f0u, a[2] = low_rows & 0xf0f0f0f0u;
        a[1] = high_rows << 4 & 0xf0f0f0f0u, a[3] = high_rows & 0xf0f0f0f0u;
    }
}

template <int BITS, bool ASYM>
static __device__ __forceinline__ void
read_codes(const uint8_t *from, uint32_t lane, uint32_t a[4][4])
{
    if (BITS == 4) {
        uint4 low = *(const uint4 *)(from + lane * 16), high = *(const uint4 *)(from + 512 + lane * 16);

        spread<ASYM>(low.x, low.y, a[0]);
        spread<ASYM>(low.z, low.w, a[1]);
        spread<ASYM>(high.x, high.y, a[2]);
        spread<ASYM>(high.z, high.w, a[3]);
    } else {
        const uint8_t *row = from + lane / 4 * 144 + lane % 4 * 8;

#pragma unroll
        for (int s = 0; s < 4; s++) {
            uint2 low = *(const uint2 *)(row + s * 32), high = *(const uint2 *)(row + 8 * 144 + s * 32);

            a[s][0] = low.x, a[s][1] = high.x, a[s][2] = low.y, a[s][3] = high.y;
        }
    }
}

// Σ a8 of a block for two tokens.
template <int BLOCK>
static __device__ __forceinline__ float2
sum_of(const linear_call &c, uint32_t k, uint32_t token)
{
    int sum[2] = {0, 0};

#pragma unroll
    for (int b = 0; b < (BLOCK ? BLOCK : 32) / 32; b++) {
        if (k + b * 32 < c.padded) {
            int2 of32 = *(const int2 *)(c.sums + (k / 32 + b) * c.sa_stride + token);

            sum[0] += of32.x, sum[1] += of32.y;
        }
    }
    return make_float2((float)sum[0], (float)sum[1]);
}

// One unit: for each eight tokens the exact dot of each block, then acc += scale · dot (BLOCK 0: all dots are one).
template <int BITS, int BLOCK, bool ASYM, int NT>
static __device__ __forceinline__ void
multiply(const linear_call &c, const uint8_t *weights, const uint8_t *shared, uint32_t k, uint32_t lane,
         uint32_t first_token, int32_t dots[NT][4], sums<NT> *s)
{
    typedef shape<BITS, BLOCK, ASYM> S;
    const __half *scales = (const __half *)(weights + S::code_bytes) + lane / 4;
    const float *sa = (const float *)(shared + NT * 1024) + lane % 4 * 2;
    const float unit16 = BITS == 4 && !ASYM ? 0.0625f : 1.0f; // (wide_scale)
    float sw[S::blocks][2], sm[ASYM ? S::blocks : 1][2];
    uint32_t a[4][4];

    read_codes<BITS, ASYM>(weights, lane, a);
#pragma unroll
    for (int b = 0; b < S::blocks; b++) {
        if (BLOCK != 0) {
            sw[b][0] = __half2float(scales[b * 16]) * unit16, sw[b][1] = __half2float(scales[b * 16 + 8]) * unit16;
        }
        if (ASYM) {
            sm[ASYM ? b : 0][0] = __half2float(scales[S::scale_bytes / 2 + b * 16]);
            sm[ASYM ? b : 0][1] = __half2float(scales[S::scale_bytes / 2 + b * 16 + 8]);
        }
    }
#pragma unroll
    for (int nt = 0; nt < NT; nt++) {
        uint4 low = *(const uint4 *)(shared + nt * 1024 + lane * 16),
              high = *(const uint4 *)(shared + nt * 1024 + 512 + lane * 16);
        uint32_t b8[4][2] = {{low.x, low.y}, {low.z, low.w}, {high.x, high.y}, {high.z, high.w}};

#pragma unroll
        for (int b = 0; b < S::blocks; b++) {
            int32_t dot[4] = {0, 0, 0, 0};
            uint32_t at = k + b * BLOCK;

            if (BLOCK != 0 && at >= c.padded) {
                continue;
            }
#pragma unroll
            for (int st = b * 4 / S::blocks; st < (b + 1) * 4 / S::blocks; st++) {
                if (BITS == 4 && ASYM) {
                    bt_mma_u8(BLOCK == 0 ? dots[nt] : dot, a[st], b8[st][0], b8[st][1]);
                } else {
                    bt_mma_s8(BLOCK == 0 ? dots[nt] : dot, a[st], b8[st][0], b8[st][1]);
                }
            }
            if (BLOCK != 0) {
                float2 sx = *(const float2 *)(sa + (c.act_shift < 31 ? b * BLOCK >> c.act_shift : 0) * NT * 8 + nt * 8);

                s->acc[nt][0] = fmaf(sw[b][0] * sx.x, (float)dot[0], s->acc[nt][0]);
                s->acc[nt][1] = fmaf(sw[b][0] * sx.y, (float)dot[1], s->acc[nt][1]);
                s->acc[nt][2] = fmaf(sw[b][1] * sx.x, (float)dot[2], s->acc[nt][2]);
                s->acc[nt][3] = fmaf(sw[b][1] * sx.y, (float)dot[3], s->acc[nt][3]);
                if (ASYM) {
                    float2 sum = sum_of<BLOCK>(c, at, first_token + nt * 8 + lane % 4 * 2);
                    const float *m = sm[ASYM ? b : 0];

                    s->min[nt][0] = fmaf(m[0], sx.x * sum.x, s->min[nt][0]);
                    s->min[nt][1] = fmaf(m[0], sx.y * sum.y, s->min[nt][1]);
                    s->min[nt][2] = fmaf(m[1], sx.x * sum.x, s->min[nt][2]);
                    s->min[nt][3] = fmaf(m[1], sx.y * sum.y, s->min[nt][3]);
                }
            }
        }
    }
}

// A segment is over: its sums join those before it, pairs first (`run` is 1, 2 or 4).
template <bool ASYM, int NT>
static __device__ __forceinline__ void
join_segment(uint32_t r, sums<NT> *s, sums<NT> *pair, sums<NT> *other)
{
#pragma unroll
    for (int i = 0; i < NT * (ASYM ? 8 : 4); i++) {
        int j = i % (NT * 4);
        float *of = i < NT * 4 ? &s->acc[j / 4][j % 4] : &s->min[j / 4][j % 4];
        float *p = i < NT * 4 ? &pair->acc[j / 4][j % 4] : &pair->min[j / 4][j % 4];
        float *q = i < NT * 4 ? &other->acc[j / 4][j % 4] : &other->min[j / 4][j % 4];

        if (NT > 2) { // no more than two
            *p = r == 0 ? *of : *p + *of;
        } else {
            *p = r == 0 ? *of : r == 1 ? *p + *of : *p;
            *q = r == 2 ? *of : r == 3 ? *q + *of : *q;
        }
        *of = 0.0f;
    }
}

// ---- a block of threads ----

// Where the sums of (group, tile, row, token) lie.
template <int NT>
static __device__ __forceinline__ uint32_t
place(const linear_call &c, uint32_t group, uint32_t tile, uint32_t row, uint32_t token)
{
    return ((group * c.tiles + tile) * 16 + row) * (NT * 8 + 1) + token;
}

template <int NT, typename T>
static __device__ __forceinline__ void
put(const linear_call &c, T *shared, uint32_t group, uint32_t tile, uint32_t lane, const T v[NT][4])
{
#pragma unroll
    for (int nt = 0; nt < NT; nt++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            shared[place<NT>(c, group, tile, lane / 4 + i / 2 * 8, nt * 8 + lane % 4 * 2 + i % 2)] = v[nt][i];
        }
    }
}

// The balanced tree over what the groups have, which are aligned runs of it.
template <int NT>
static __device__ __forceinline__ float
tree(const linear_call &c, const float *shared, uint32_t tile, uint32_t row, uint32_t token)
{
    float v[GROUPS_MAX];

#pragma unroll
    for (uint32_t i = 0; i < GROUPS_MAX; i++) {
        v[i] = i < c.groups ? shared[place<NT>(c, i, tile, row, token)] : 0.0f;
    }
#pragma unroll
    for (uint32_t stride = 1; stride < GROUPS_MAX; stride *= 2) {
#pragma unroll
        for (uint32_t i = 0; i + stride < GROUPS_MAX; i += 2 * stride) {
            if (i + stride < c.groups) {
                v[i] += v[i + stride];
            }
        }
    }
    return v[0];
}

// r of (tile of this block of threads, row, token) from shared memory.
template <int BLOCK, bool ASYM, int NT>
static __device__ __forceinline__ float
total(const linear_call &c, const float *shared, uint32_t part, uint32_t tile_here, uint32_t row, uint32_t row_all,
      uint32_t token_here, uint32_t token)
{
    if (BLOCK == 0) {
        int32_t dot = 0;
        float sw = bt_cuda_scale(&c.part[part], c.part[part].scales, row_all, 0);

        for (uint32_t g = 0; g < c.groups; g++) {
            dot += ((const int32_t *)shared)[place<NT>(c, g, tile_here, row, token_here)];
        }
        return fmaf(sw * c.sa[token], (float)dot, 0.0f);
    }
    if (ASYM) {
        return tree<NT>(c, shared, tile_here, row, token_here) +
               tree<NT>(c, shared + place<NT>(c, c.groups, 0, 0, 0), tile_here, row, token_here);
    }
    return tree<NT>(c, shared, tile_here, row, token_here);
}

template <int BLOCK, bool ASYM, int NT>
static __device__ __forceinline__ void
epilogue(const linear_call &c, const float *shared, uint32_t first_tile, uint32_t first_token)
{
    uint32_t tokens = c.tokens - first_token < NT * 8 ? c.tokens - first_token : NT * 8;
    uint32_t step = c.paired ? 2 : 1, rows = c.tiles / step * 16;

    for (uint32_t e = threadIdx.x; e < rows * tokens; e += blockDim.x) {
        uint32_t row = e % 16, here = e % rows / 16 * step, token_here = e / rows, index = first_tile + here;
        uint32_t part, token = first_token + token_here, row_all;
        float r;

        if (index >= c.tiles_all) {
            continue;
        }
        part = part_of(c, &index);
        row_all = index * 16 + row;
        if (row_all >= c.part[part].rows) {
            continue;
        }
        r = finish(c, part, row_all, token,
                   total<BLOCK, ASYM, NT>(c, shared, part, here, row, row_all, token_here, token));
        if (c.paired) {
            float up = finish(c, 1, row_all, token,
                              total<BLOCK, ASYM, NT>(c, shared, 1, here + 1, row, row_all, token_here, token));

            store_pair(c, row_all, token, r, up);
        } else {
            store(c, start_of(c, part) + row_all, token, r);
        }
    }
}

template <int BITS, int BLOCK, bool ASYM, int NT>
static __global__ void __launch_bounds__(512) linear_kernel(const __grid_constant__ linear_call c)
{
    typedef shape<BITS, BLOCK, ASYM> S;
    const int DEPTH = depth<NT>::value;
    extern __shared__ __align__(16) uint8_t memory[];
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, here = warp % c.tiles, group = warp / c.tiles;
    uint32_t first_tile = blockIdx.x * c.tiles, tile = first_tile + here, first_token = blockIdx.y * NT * 8;
    uint32_t first = group * c.run * SEGMENT,
             end = first + c.run * SEGMENT < c.padded ? first + c.run * SEGMENT : c.padded;
    uint32_t units = end > first ? (end - first + UNIT - 1) / UNIT : 0, segment = 0;
    uint8_t *stages = memory + (size_t)group * c.stage_bytes * DEPTH;
    uint32_t own = NT * 1024 + c.sa_bytes + here * S::tile_bytes;
    int32_t dots[NT][4] = {};
    sums<NT> s = {}, pair = {}, other = {};

    tile = tile < c.tiles_all ? tile : c.tiles_all - 1; // warps beyond the last tile keep their group company
    const bt_cuda_matrix &m = c.part[part_of(c, &tile)];
    tile_at at = find_tile<BITS>(m, tile);

    // Weights are there before the activations of the kernel before are: they belong to the first group of copies.
#pragma unroll
    for (int u = 0; u < DEPTH - 1; u++) {
        if (u < (int)units) {
            fetch_weights<BITS, BLOCK, ASYM>(c, at, first + u * UNIT, m.padded, lane, stages + u * c.stage_bytes + own);
        }
    }
    bt_let_next();
    bt_wait_before();
#pragma unroll
    for (int u = 0; u < DEPTH - 1; u++) {
        if (u < (int)units) {
            fetch_activations<NT>(c, first + u * UNIT, first_token, here * 32 + lane, stages + u * c.stage_bytes);
        }
        bt_copy_commit();
    }
    for (uint32_t u = 0, slot = 0; u < units; u++, slot = slot + 1 == DEPTH ? 0 : slot + 1) {
        uint32_t next = u + DEPTH - 1, k = first + u * UNIT;
        uint8_t *stage = stages + slot * c.stage_bytes,
                *free_stage = stages + (slot == 0 ? DEPTH - 1 : slot - 1) * c.stage_bytes;

        bt_copy_wait<DEPTH - 2>();
        group_sync(c, group); // all see this stage, and all are done with the one that is filled next
        if (next < units) {
            fetch_activations<NT>(c, first + next * UNIT, first_token, here * 32 + lane, free_stage);
            fetch_weights<BITS, BLOCK, ASYM>(c, at, first + next * UNIT, m.padded, lane, free_stage + own);
        }
        bt_copy_commit();
        multiply<BITS, BLOCK, ASYM, NT>(c, stage + own, stage, k, lane, first_token, dots, &s);
        if (BLOCK != 0 && ((k + UNIT) % SEGMENT == 0 || u + 1 == units)) {
            join_segment<ASYM, NT>(segment++, &s, &pair, &other);
        }
    }
    if (NT <= 2 && segment > 2) {
#pragma unroll
        for (int i = 0; i < NT * 4; i++) {
            pair.acc[i / 4][i % 4] += other.acc[i / 4][i % 4];
            pair.min[i / 4][i % 4] += other.min[i / 4][i % 4];
        }
    }
    bt_copy_wait<0>();
    __syncthreads(); // the stages are read: partial sums lie over them
    float *shared = (float *)memory;

    if (BLOCK == 0) {
        put<NT>(c, (int32_t *)shared, group, here, lane, dots);
    } else {
        put<NT>(c, shared, group, here, lane, pair.acc);
        if (ASYM) {
            put<NT>(c, shared + place<NT>(c, c.groups, 0, 0, 0), group, here, lane, pair.min);
        }
    }
    __syncthreads();
    epilogue<BLOCK, ASYM, NT>(c, shared, first_tile, first_token);
}
