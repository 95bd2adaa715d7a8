// Linear layers with integer weights on tensor cores, every sum in the order of kernels/cpu/ref/linear.c.
//
// A block of threads has `tiles` row tiles × `groups` runs of K. A warp takes one tile (16 rows) over RUN segments of 1,024 columns,
// for NT × 8 tokens: A from the weights in lane order, B (eight neighbouring bytes of a token a lane) from L1. The segments' sums meet in
// shared memory, are added as the balanced tree, and each (row, token) is finished by one thread. Which grid it was changes nothing.
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/weight.cuh"

#include <assert.h>

#define SEGMENT 1024u
#define GROUPS_MAX 16u

typedef struct {
    bt_cuda_matrix part[3];
    const float *bias[3];
    uint32_t part_count, tiles_all; // of all parts
    bool paired;
    uint32_t tokens, padded; // padded: columns that are summed, a multiple of 64
    const int8_t *a8;
    const float *sa;
    const int32_t *sums;
    size_t a8_stride, sa_stride;
    float *y;
    size_t y_stride;
    bt_linear_epilogue epilogue;
    float scale, softcap;
    uint32_t tiles, groups; // of a block of threads
    bool plain;             // a8 row by row
} linear_call;

// Tile `index` of all parts: paired calls alternate between gate and up.
static __device__ __forceinline__ uint32_t
part_of(const linear_call &c, uint32_t *index)
{
    uint32_t part = 0;

    if (c.paired) {
        part = *index & 1;
        *index >>= 1;
        return part;
    }
    while (part + 1 < c.part_count && *index >= c.part[part].tiles) {
        *index -= c.part[part++].tiles;
    }
    return part;
}

// ---- a warp's share ----

// A unit: the columns whose codes are loaded together; no block of weights ends within another unit.
template <int BITS, int BLOCK> struct unit {
    static const int cols = BITS == 4 || BLOCK == 128 || BLOCK == 0 ? 128 : 64;
    static const int steps = cols / 32;                                    // of the tensor core
    static const int blocks = BLOCK == 0 ? 1 : cols / (BLOCK ? BLOCK : 1); // of weights
    static const int words = BITS == 4 ? 2 : 4;                            // a step, as stored
};

template <int BITS, int BLOCK, bool ASYM> struct unit_regs {
    uint32_t a[unit<BITS, BLOCK>::steps][unit<BITS, BLOCK>::words];
    __half scale[unit<BITS, BLOCK>::blocks][2], minimum[ASYM ? unit<BITS, BLOCK>::blocks : 1][2];
};

// Where a lane finds its tile.
typedef struct {
    const uint8_t *codes;
    const __half *scales, *minima;
    size_t row8; // eight rows on
} tile_at;

template <int BITS>
static __device__ __forceinline__ tile_at
find_tile(const bt_cuda_matrix &m, uint32_t tile, uint32_t lane)
{
    size_t scales = (size_t)tile * m.blocks * 16 + lane / 4;
    tile_at at;

    at.codes = BITS == 4 ? m.codes + (size_t)tile * (m.padded / 128) * 1024 + lane * 16
                         : m.codes + (size_t)(tile * 16 + lane / 4) * m.padded + lane % 4 * 8;
    at.scales = m.scales + scales;
    at.minima = m.minima + scales;
    at.row8 = 8 * (size_t)m.padded;
    return at;
}

template <int BITS, int BLOCK, bool ASYM>
static __device__ __forceinline__ void
load_unit(const linear_call &c, const tile_at &at, uint32_t k, bool row_scale, unit_regs<BITS, BLOCK, ASYM> *r)
{
    typedef unit<BITS, BLOCK> U;

    if (BITS == 4) {
#pragma unroll
        for (int half = 0; half < U::steps / 2; half++) {
            uint4 v = bt_load_once(at.codes + (size_t)k * 8 + half * 512);

            r->a[half * 2][0] = v.x, r->a[half * 2][1] = v.y, r->a[half * 2 + 1][0] = v.z, r->a[half * 2 + 1][1] = v.w;
        }
    } else {
#pragma unroll
        for (int s = 0; s < U::steps; s++) {
            uint2 low = {0, 0}, high = {0, 0};

            if (k + s * 32 < c.padded) {
                low = *(const uint2 *)(at.codes + k + s * 32);
                high = *(const uint2 *)(at.codes + at.row8 + k + s * 32);
            }
            r->a[s][0] = low.x, r->a[s][1] = high.x, r->a[s][U::words - 2] = low.y, r->a[s][U::words - 1] = high.y;
        }
    }
    if (BLOCK != 0) {
#pragma unroll
        for (int b = 0; b < U::blocks; b++) {
            uint32_t block = row_scale ? 0 : k / (BLOCK ? BLOCK : 1) + b;

            if (k + b * BLOCK < c.padded) {
                r->scale[b][0] = at.scales[block * 16], r->scale[b][1] = at.scales[block * 16 + 8];
                if (ASYM) {
                    r->minimum[ASYM ? b : 0][0] = at.minima[block * 16];
                    r->minimum[ASYM ? b : 0][1] = at.minima[block * 16 + 8];
                }
            }
        }
    }
}

// Nibbles to bytes: symmetric ones as 16 times themselves.
template <int BITS, bool ASYM>
static __device__ __forceinline__ void
spread(const uint32_t *packed, uint32_t a[4])
{
    if (BITS != 4) {
        a[0] = packed[0], a[1] = packed[1], a[2] = packed[2], a[3] = packed[3];
    } else if (ASYM) {
        a[0] = packed[0] & 0x0f0f0f0fu, a[2] = packed[0] >> 4 & 0x0f0f0f0fu;
        a[1] = packed[1] & 0x0f0f0f0fu, a[3] = packed[1] >> 4 & 0x0f0f0f0fu;
    } else {
        a[0] = packed[0] << 4 & 0xf0f0f0f0u, a[2] = packed[0] & 0xf0f0f0f0u;
        a[1] = packed[1] << 4 & 0xf0f0f0f0u, a[3] = packed[1] & 0xf0f0f0f0u;
    }
}

template <int NT> struct sums {
    float acc[NT][4], min[NT][4];
};

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
multiply(const linear_call &c, const unit_regs<BITS, BLOCK, ASYM> &r, uint32_t act_shift, uint32_t k, uint32_t lane,
         uint32_t first_token, int32_t dots[NT][4], sums<NT> *s)
{
    typedef unit<BITS, BLOCK> U;
    uint32_t a[U::steps][4];
    const int8_t *b8 =
        c.a8 + ((size_t)(first_token / 8) * (c.a8_stride / 128) + k / 128) * 1024 + k % 128 / 64 * 512 + lane * 16;

#pragma unroll
    for (int st = 0; st < U::steps; st++) {
        spread<BITS, ASYM>(r.a[st], a[st]);
    }
#pragma unroll
    for (int nt = 0; nt < NT; nt++) {
        uint32_t token = first_token + nt * 8 + lane % 4 * 2;
        uint32_t b[U::steps][2];

#pragma unroll
        for (int half = 0; half < U::steps / 2; half++) {
            uint4 v = *(const uint4 *)(b8 + (size_t)nt * (c.a8_stride / 128) * 1024 + half * 512);

            b[half * 2][0] = v.x, b[half * 2][1] = v.y, b[half * 2 + 1][0] = v.z, b[half * 2 + 1][1] = v.w;
        }
#pragma unroll
        for (int block = 0; block < U::blocks; block++) {
            int32_t dot[4] = {0, 0, 0, 0};
            uint32_t at = k + block * BLOCK;

            if (BLOCK != 0 && at >= c.padded) {
                continue;
            }
#pragma unroll
            for (int st = block * U::steps / U::blocks; st < (block + 1) * U::steps / U::blocks; st++) {
                if (BITS == 4 && ASYM) {
                    bt_mma_u8(BLOCK == 0 ? dots[nt] : dot, a[st], b[st][0], b[st][1]);
                } else {
                    bt_mma_s8(BLOCK == 0 ? dots[nt] : dot, a[st], b[st][0], b[st][1]);
                }
            }
            if (BLOCK != 0) {
                const float of16 = BITS == 4 && !ASYM ? 0.0625f : 1.0f; // exact
                float sw[2] = {__half2float(r.scale[block][0]) * of16, __half2float(r.scale[block][1]) * of16};
                float2 sa = *(const float2 *)(c.sa + (size_t)(at >> act_shift) * c.sa_stride + token);

                s->acc[nt][0] = fmaf(sw[0] * sa.x, (float)dot[0], s->acc[nt][0]);
                s->acc[nt][1] = fmaf(sw[0] * sa.y, (float)dot[1], s->acc[nt][1]);
                s->acc[nt][2] = fmaf(sw[1] * sa.x, (float)dot[2], s->acc[nt][2]);
                s->acc[nt][3] = fmaf(sw[1] * sa.y, (float)dot[3], s->acc[nt][3]);
                if (ASYM) {
                    float2 sum = sum_of<BLOCK>(c, at, token);
                    float m[2] = {__half2float(r.minimum[ASYM ? block : 0][0]),
                                  __half2float(r.minimum[ASYM ? block : 0][1])};

                    s->min[nt][0] = fmaf(m[0], sa.x * sum.x, s->min[nt][0]);
                    s->min[nt][1] = fmaf(m[0], sa.y * sum.y, s->min[nt][1]);
                    s->min[nt][2] = fmaf(m[1], sa.x * sum.x, s->min[nt][2]);
                    s->min[nt][3] = fmaf(m[1], sa.y * sum.y, s->min[nt][3]);
                }
            }
        }
    }
}

// Columns first … end − 1 of one tile, within a segment; `ahead` units are on their way while one is multiplied.
template <int BITS, int BLOCK, bool ASYM, int NT>
static __device__ __forceinline__ void
run_columns(const linear_call &c, const tile_at &at, bool row_scale, uint32_t act_shift, uint32_t first, uint32_t end,
            uint32_t lane, uint32_t first_token, int32_t dots[NT][4], sums<NT> *s)
{
    const int cols = unit<BITS, BLOCK>::cols, ahead = (NT <= 2 ? 4 : 2) * (BITS == 4 ? 1 : cols == 64 ? 1 : 1);
    unit_regs<BITS, BLOCK, ASYM> ring[ahead];

#pragma unroll
    for (int i = 0; i < ahead; i++) {
        if (first + i * cols < end) {
            load_unit<BITS, BLOCK, ASYM>(c, at, first + i * cols, row_scale, &ring[i]);
        }
    }
#pragma unroll 1
    for (uint32_t group = first; group < end; group += ahead * cols) {
#pragma unroll
        for (int i = 0; i < ahead; i++) {
            uint32_t k = group + i * cols;

            if (k < end) {
                unit_regs<BITS, BLOCK, ASYM> now = ring[i];

                if (k + ahead * cols < end) {
                    load_unit<BITS, BLOCK, ASYM>(c, at, k + ahead * cols, row_scale, &ring[i]);
                }
                multiply<BITS, BLOCK, ASYM, NT>(c, now, act_shift, k, lane, first_token, dots, s);
            }
        }
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

static __device__ __forceinline__ size_t
a8_at(const linear_call &c, uint32_t token, uint32_t k)
{
    return c.plain ? token * c.a8_stride + k : bt_cuda_a8_at(c.a8_stride, token, k);
}

static __device__ __forceinline__ float
outlier_sum(const linear_call &c, const bt_cuda_matrix &m, uint32_t row, uint32_t token)
{
    float sum = 0.0f;

    for (uint32_t i = m.row_start[row]; i < m.row_start[row + 1]; i++) {
        uint32_t k = m.outlier_cols[i];
        float scale = c.sa[(m.act_block == BT_BLOCK_ROW ? 0 : k / m.act_block) * c.sa_stride + token];

        sum = fmaf(__half2float(m.deltas[i]), scale * (float)c.a8[a8_at(c, token, k)], sum);
    }
    return sum;
}

// What follows a row's dot: outliers, bias, softcap.
static __device__ __forceinline__ float
finish(const linear_call &c, uint32_t part, uint32_t row, uint32_t token, float r)
{
    const bt_cuda_matrix &m = c.part[part];

    if (m.row_start != NULL && m.row_start[row + 1] > m.row_start[row]) {
        r += outlier_sum(c, m, row, token);
    }
    if (c.bias[part] != NULL) {
        r += c.bias[part][row];
    }
    return c.softcap > 0.0f ? bt_ref_softcap(r, c.softcap) : r;
}

static __device__ __forceinline__ void
store(const linear_call &c, uint32_t row, uint32_t token, float r)
{
    float *y = c.y + token * c.y_stride + row;

    *y = c.epilogue == BT_LINEAR_ADD ? fmaf(c.scale, r, *y) : c.scale * r;
}

static __device__ __forceinline__ void
store_pair(const linear_call &c, uint32_t row, uint32_t token, float gate, float up)
{
    c.y[token * c.y_stride + row] =
        (c.epilogue == BT_LINEAR_SILU_MUL ? bt_ref_silu(gate) : bt_ref_gelu_tanh(gate)) * up;
}

// The first row of a part in y.
static __device__ __forceinline__ uint32_t
start_of(const linear_call &c, uint32_t part)
{
    uint32_t start = 0;

    for (uint32_t i = 0; i < part; i++) {
        start += c.part[i].rows;
    }
    return start;
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

template <int BITS, int BLOCK, bool ASYM, int NT, int RUN>
static __global__ void __launch_bounds__(512, NT <= 2 ? 2 : 1) linear_kernel(const __grid_constant__ linear_call c)
{
    extern __shared__ float shared[];
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, here = warp % c.tiles, group = warp / c.tiles;
    uint32_t first_tile = blockIdx.x * c.tiles, tile = first_tile + here, first_token = blockIdx.y * NT * 8;
    int32_t dots[NT][4] = {};
    sums<NT> all = {};

    if (tile < c.tiles_all) {
        const bt_cuda_matrix &m = c.part[part_of(c, &tile)];
        tile_at at = find_tile<BITS>(m, tile, lane);
        uint32_t act_shift = m.act_block == BT_BLOCK_ROW ? 31 : 31 - __clz(m.act_block);

#pragma unroll
        for (int r = 0; r < RUN; r++) {
            uint32_t first = (group * RUN + r) * SEGMENT, end = first + SEGMENT < c.padded ? first + SEGMENT : c.padded;
            sums<NT> s = {};

            if (first < end) {
                run_columns<BITS, BLOCK, ASYM, NT>(c, at, m.block == BT_BLOCK_ROW, act_shift, first, end, lane,
                                                   first_token, dots, &s);
                if (BLOCK != 0) {
#pragma unroll
                    for (int i = 0; i < NT * 4; i++) {
                        float *acc = &all.acc[i / 4][i % 4], *min = &all.min[i / 4][i % 4];

                        *acc = r == 0 ? s.acc[i / 4][i % 4] : *acc + s.acc[i / 4][i % 4];
                        if (ASYM) {
                            *min = r == 0 ? s.min[i / 4][i % 4] : *min + s.min[i / 4][i % 4];
                        }
                    }
                }
            }
        }
    }
    if (BLOCK == 0) {
        put<NT>(c, (int32_t *)shared, group, here, lane, dots);
    } else {
        put<NT>(c, shared, group, here, lane, all.acc);
        if (ASYM) {
            put<NT>(c, shared + place<NT>(c, c.groups, 0, 0, 0), group, here, lane, all.min);
        }
    }
    __syncthreads();
    epilogue<BLOCK, ASYM, NT>(c, shared, first_tile, first_token);
}

// ---- any format, one thread an output: the specification once more ----

static __device__ float
plain_dot(const linear_call &c, const bt_cuda_matrix &m, uint32_t row, uint32_t token)
{
    uint32_t block = m.block != BT_BLOCK_ROW ? m.block : m.act_block != BT_BLOCK_ROW ? m.act_block : c.padded;
    uint32_t segment = m.block == BT_BLOCK_ROW && m.act_block == BT_BLOCK_ROW ? c.padded : SEGMENT;
    float stack[2][24];
    uint32_t depth = 0, count = 0;

    for (uint32_t first = 0; first < c.padded; first += segment) {
        float acc = 0.0f, accm = 0.0f;

        for (uint32_t k = first; k < c.padded && k < first + segment; k += block) {
            uint32_t b = m.block == BT_BLOCK_ROW ? 0 : k / m.block;
            float sa = c.sa[(m.act_block == BT_BLOCK_ROW ? 0 : k / m.act_block) * c.sa_stride + token];
            int32_t dot = 0, sum = 0;

            for (uint32_t i = k; i < c.padded && i < k + block; i++) {
                int a = c.a8[a8_at(c, token, i)];

                dot += bt_cuda_code(&m, row, i) * a;
                sum += a;
            }
            acc = fmaf(bt_cuda_scale(&m, m.scales, row, b) * sa, (float)dot, acc);
            if (m.asymmetric) {
                accm = fmaf(bt_cuda_scale(&m, m.minima, row, b), sa * (float)sum, accm);
            }
        }
        count++;
        for (uint32_t n = count; n % 2 == 0; n /= 2) {
            depth--;
            acc = stack[0][depth] + acc;
            accm = stack[1][depth] + accm;
        }
        stack[0][depth] = acc;
        stack[1][depth++] = accm;
    }
    while (--depth > 0) {
        stack[0][depth - 1] += stack[0][depth];
        stack[1][depth - 1] += stack[1][depth];
    }
    return m.asymmetric ? stack[0][0] + stack[1][0] : stack[0][0];
}

// Sixteen lanes and their tree, as ref has it, one after the other.
static __device__ float
plain_float_dot(const bt_cuda_matrix &m, uint32_t row, const float *x)
{
    float lanes[16] = {};

    for (uint32_t k = 0; k < m.padded; k++) {
        lanes[k % 16] = fmaf(bt_cuda_float(&m, row, k), x[k], lanes[k % 16]);
    }
    return bt_ref_tree16(lanes);
}

static __global__ void
plain_kernel(const __grid_constant__ linear_call c, const float *normed)
{
    uint32_t row = blockIdx.x * blockDim.x + threadIdx.x, token = blockIdx.y, part = 0, start = 0;
    bool ints = c.part[0].kind == BT_WEIGHT_INT;
    const float *x = normed + token * c.a8_stride;
    float r[2];

    if (!c.paired) {
        while (part < c.part_count && row - start >= c.part[part].rows) {
            start += c.part[part++].rows;
        }
    }
    if (part == c.part_count || row - start >= c.part[part].rows) {
        return;
    }
    for (uint32_t i = 0; i < (c.paired ? 2u : 1u); i++) {
        const bt_cuda_matrix &m = c.part[part + i];

        r[i] = finish(c, part + i, row - start, token,
                      ints ? plain_dot(c, m, row - start, token) : plain_float_dot(m, row - start, x));
    }
    if (c.paired) {
        store_pair(c, row, token, r[0], r[1]);
    } else {
        store(c, row, token, r[0]);
    }
}

// ---- products of cuBLASLt, finished ----

static __global__ void
s32_kernel(const __grid_constant__ linear_call c, const int32_t *s32, size_t stride, uint32_t first_token,
           uint32_t up_at)
{
    uint32_t row = blockIdx.x * blockDim.x + threadIdx.x, token = first_token + blockIdx.y, part = 0, start = 0;
    const int32_t *from = s32 + blockIdx.y * stride;
    float r[2];

    if (!c.paired) {
        while (part < c.part_count && row - start >= c.part[part].rows) {
            start += c.part[part++].rows;
        }
    }
    if (part == c.part_count || row - start >= c.part[part].rows) {
        return;
    }
    for (uint32_t i = 0; i < (c.paired ? 2u : 1u); i++) {
        float sw = bt_cuda_scale(&c.part[part + i], c.part[part + i].scales, row - start, 0);

        r[i] = finish(c, part + i, row - start, token, fmaf(sw * c.sa[token], (float)from[row + i * up_at], 0.0f));
    }
    if (c.paired) {
        store_pair(c, row, token, r[0], r[1]);
    } else {
        store(c, row, token, r[0]);
    }
}

// ---- launch ----

static linear_call
call_of(const bt_cuda *cuda, const bt_linear_args *a)
{
    linear_call c;

    memset(&c, 0, sizeof c);
    for (uint32_t i = 0; i < a->weight_count; i++) {
        c.part[i] = bt_cuda_matrix_of(a->weights[i]);
        c.bias[i] = a->biases[i];
        c.tiles_all += c.part[i].tiles;
    }
    c.part_count = a->weight_count;
    c.paired = a->epilogue == BT_LINEAR_SILU_MUL || a->epilogue == BT_LINEAR_GELU_MUL;
    c.tokens = a->tokens;
    c.padded = bt_cols_padded(a->weights[0]->cols);
    c.a8 = cuda->a8, c.sa = cuda->sa, c.sums = cuda->sums;
    c.a8_stride = (a->weights[0]->cols + 127) / 128 * 128, c.sa_stride = cuda->sa_stride;
    c.y = a->y, c.y_stride = a->y_stride, c.epilogue = a->epilogue, c.scale = a->scale, c.softcap = a->softcap;
    return c;
}

template <int BITS, int BLOCK, bool ASYM, int NT, int RUN>
static void
launch(bt_cuda *cuda, linear_call *c)
{
    uint32_t segments = (c->padded + SEGMENT - 1) / SEGMENT, warps;
    size_t bytes;
    dim3 grid;

    c->groups = (segments + RUN - 1) / RUN;
    c->tiles = c->groups >= 16 ? 1 : c->groups > 8 ? 1 : c->groups > 4 ? 2 : c->groups > 2 ? 4 : 8;
    c->tiles = c->paired && c->tiles < 2 ? 2 : c->tiles;
    // Small matrices: rather more blocks of threads than more warps in each.
    while (c->tiles > (c->paired ? 2u : 1u) && c->tiles_all / c->tiles < (uint32_t)cuda->sms) {
        c->tiles /= 2;
    }
    warps = c->tiles * c->groups;
    bytes = (size_t)warps * 16 * (NT * 8 + 1) * 4 * (ASYM ? 2 : 1);
    if (bytes > 48 * 1024) {
        cudaFuncSetAttribute(linear_kernel<BITS, BLOCK, ASYM, NT, RUN>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             (int)bytes);
    }
    grid = dim3((c->tiles_all + c->tiles - 1) / c->tiles, (c->tokens + NT * 8 - 1) / (NT * 8));
    linear_kernel<BITS, BLOCK, ASYM, NT, RUN><<<grid, warps * 32, bytes, cuda->stream>>>(*c);
}

template <int BITS, int BLOCK, bool ASYM, int NT>
static bool
launch_run(bt_cuda *cuda, linear_call *c)
{
    uint32_t segments = (c->padded + SEGMENT - 1) / SEGMENT, groups_max = c->paired ? 8 : 16;

    if (segments <= (NT >= 4 ? 4u : 8u)) {
        launch<BITS, BLOCK, ASYM, NT, 1>(cuda, c);
    } else if (segments <= 2 * groups_max) {
        launch<BITS, BLOCK, ASYM, NT, 2>(cuda, c);
    } else {
        return false;
    }
    return true;
}

template <int BITS, int BLOCK, bool ASYM>
static bool
launch_tokens(bt_cuda *cuda, linear_call *c)
{
    return c->tokens <= 8    ? launch_run<BITS, BLOCK, ASYM, 1>(cuda, c)
           : c->tokens <= 16 ? launch_run<BITS, BLOCK, ASYM, 2>(cuda, c)
           : c->tokens <= 32 ? launch_run<BITS, BLOCK, ASYM, 4>(cuda, c)
                             : launch_run<BITS, BLOCK, ASYM, 8>(cuda, c);
}

template <int BITS, bool ASYM>
static bool
launch_block(bt_cuda *cuda, linear_call *c, uint32_t block)
{
    switch (block) {
    case 32:
        return launch_tokens<BITS, 32, ASYM>(cuda, c);
    case 64:
        return launch_tokens<BITS, 64, ASYM>(cuda, c);
    case 128:
        return launch_tokens<BITS, 128, ASYM>(cuda, c);
    default:
        return false;
    }
}

static bool
launch_mma(bt_cuda *cuda, linear_call *c)
{
    const bt_cuda_matrix *m = &c->part[0];
    uint32_t block = m->block != BT_BLOCK_ROW ? m->block : m->act_block;

    for (uint32_t i = 1; i < c->part_count; i++) { // one kernel for all parts, or a plain one
        const bt_cuda_matrix *other = &c->part[i];

        if (other->kind != m->kind || other->nibbles != m->nibbles || other->asymmetric != m->asymmetric ||
            other->block != m->block) {
            return false;
        }
    }
    if (m->kind != BT_WEIGHT_INT) {
        return false;
    }
    if (block == BT_BLOCK_ROW) {
        return !m->nibbles && launch_tokens<8, 0, false>(cuda, c);
    }
    if (m->nibbles) {
        return m->asymmetric ? launch_block<4, true>(cuda, c, block) : launch_block<4, false>(cuda, c, block);
    }
    return m->asymmetric ? launch_block<8, true>(cuda, c, block) : launch_block<8, false>(cuda, c, block);
}

// Many tokens and one exact dot an output: cuBLASLt multiplies, the rest is ours.
static bool
wants_cublas(const bt_cuda *cuda, const linear_call *c)
{
    size_t rows_all = 0;

    for (uint32_t i = 0; i < c->part_count; i++) {
        const bt_cuda_matrix *m = &c->part[i];

        if (m->kind != BT_WEIGHT_INT || m->block != BT_BLOCK_ROW || m->act_block != BT_BLOCK_ROW || m->rows % 16 != 0) {
            return false;
        }
        rows_all += m->rows;
    }
    return cuda->cublas != NULL && c->tokens >= 128 && rows_all <= 4 * (size_t)cuda->limits.cols;
}

// False: cuBLASLt has nothing for this shape, and nothing was done.
static bool
launch_cublas(bt_cuda *cuda, const linear_call *c, bt_err *err)
{
    size_t rows_all = 0;

    for (uint32_t i = 0; i < c->part_count; i++) {
        rows_all += c->part[i].rows;
    }
    for (uint32_t first = 0; first < c->tokens; first += cuda->s32_tokens) {
        uint32_t tokens = c->tokens - first < cuda->s32_tokens ? c->tokens - first : cuda->s32_tokens;
        size_t at = 0;

        for (uint32_t i = 0; i < c->part_count; i++) {
            if (!bt_cublas_s8(cuda->cublas, cuda, (const int8_t *)c->part[i].codes, c->part[i].rows, c->padded,
                              c->part[i].padded, tokens, c->a8 + first * c->a8_stride, c->a8_stride, cuda->s32 + at,
                              rows_all)) {
                if (first == 0) {
                    return false; // nothing was stored yet
                }
                *err = BT_ERR_DEVICE;
                return true;
            }
            at += c->part[i].rows;
        }
        rows_all = at;
        s32_kernel<<<dim3(((c->paired ? c->part[0].rows : (uint32_t)rows_all) + 255) / 256, tokens), 256, 0,
                     cuda->stream>>>(*c, cuda->s32, rows_all, first, c->part[0].rows);
    }
    *err = bt_cuda_launched(cuda, "linear, cuBLASLt");
    return true;
}

bt_err
bt_cuda_linear(bt_device *device, const bt_linear_args *args)
{
    bt_cuda *cuda = bt_cuda_of(device);
    linear_call c = call_of(cuda, args);
    bt_err err;
    uint32_t rows = 0;

    c.plain = wants_cublas(cuda, &c);
    if ((err = bt_cuda_prologue(cuda, args, c.plain)) != BT_OK) {
        return err;
    }
    if (c.plain && launch_cublas(cuda, &c, &err)) {
        return err;
    }
    if (c.plain) {
        c.plain = false;
        if ((err = bt_cuda_prologue(cuda, args, false)) != BT_OK) {
            return err;
        }
    }
    if (!launch_mma(cuda, &c)) {
        for (uint32_t i = 0; i < c.part_count; i++) {
            rows += c.paired && i > 0 ? 0 : c.part[i].rows;
        }
        plain_kernel<<<dim3((rows + 127) / 128, c.tokens), 128, 0, cuda->stream>>>(c, cuda->normed);
    }
    return bt_cuda_launched(cuda, "linear");
}
