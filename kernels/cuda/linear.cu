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

template <int BITS> struct unit { // columns whose codes are loaded together
    static const int steps = BITS == 4 ? 4 : 2;
};

// The words of A of one unit: [step][4].
template <int BITS, bool ASYM>
static __device__ __forceinline__ void
load_unit(const bt_cuda_matrix &m, uint32_t tile, uint32_t k, uint32_t lane, uint32_t a[unit<BITS>::steps][4])
{
    if (BITS == 4) {
        const uint8_t *from = m.codes + ((size_t)tile * (m.padded / 128) + k / 128) * 1024 + lane * 16;

#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint4 v = bt_load_once(from + half * 512);
            uint32_t w[4] = {v.x, v.y, v.z, v.w};

#pragma unroll
            for (int i = 0; i < 2; i++) {
                int s = half * 2 + i;

                a[s][0] = w[2 * i], a[s][1] = w[2 * i + 1];
            }
        }
    } else {
        const uint8_t *from = m.codes + (size_t)(tile * 16 + lane / 4) * m.padded + k + lane % 4 * 8;

#pragma unroll
        for (int s = 0; s < unit<BITS>::steps; s++) {
            uint2 low = *(const uint2 *)(from + s * 32), high = *(const uint2 *)(from + 8 * (size_t)m.padded + s * 32);

            a[s][0] = low.x, a[s][1] = high.x, a[s][2] = low.y, a[s][3] = high.y;
        }
    }
}

// Nibbles to bytes: symmetric ones as 16 times themselves.
template <int BITS, bool ASYM>
static __device__ __forceinline__ void
spread(const uint32_t packed[4], uint32_t a[4])
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

// acc += scale · dot, and min += minimum · sum, of one block.
template <int BITS, int BLOCK, bool ASYM, int NT>
static __device__ __forceinline__ void
add_block(const linear_call &c, const bt_cuda_matrix &m, uint32_t tile, uint32_t k, uint32_t lane, uint32_t first_token,
          int32_t dot[NT][4], sums<NT> *s)
{
    uint32_t block = m.block == BT_BLOCK_ROW ? 0 : k / m.block, act = m.act_block == BT_BLOCK_ROW ? 0 : k / m.act_block;
    const __half *scales = m.scales + ((size_t)tile * m.blocks + block) * 16 + lane / 4;
    float unit16 = BITS == 4 && !ASYM ? 0.0625f : 1.0f; // exact
    float sw[2] = {__half2float(scales[0]) * unit16, __half2float(scales[8]) * unit16}, minimum[2];

    if (ASYM) {
        const __half *minima = m.minima + ((size_t)tile * m.blocks + block) * 16 + lane / 4;

        minimum[0] = __half2float(minima[0]), minimum[1] = __half2float(minima[8]);
    }
#pragma unroll
    for (int nt = 0; nt < NT; nt++) {
        uint32_t token = first_token + nt * 8 + lane % 4 * 2;
        float2 sa = *(const float2 *)(c.sa + act * c.sa_stride + token);
        float of[2] = {sa.x, sa.y};

#pragma unroll
        for (int i = 0; i < 4; i++) {
            s->acc[nt][i] = fmaf(sw[i / 2] * of[i % 2], (float)dot[nt][i], s->acc[nt][i]);
            dot[nt][i] = 0;
        }
        if (ASYM) {
            int sum[2] = {0, 0};

#pragma unroll
            for (int b = 0; b < BLOCK / 32; b++) {
                if (k + b * 32 < c.padded) {
                    int2 of32 = *(const int2 *)(c.sums + (k / 32 + b) * c.sa_stride + token);

                    sum[0] += of32.x, sum[1] += of32.y;
                }
            }
#pragma unroll
            for (int i = 0; i < 4; i++) {
                s->min[nt][i] = fmaf(minimum[i / 2], of[i % 2] * (float)sum[i % 2], s->min[nt][i]);
            }
        }
    }
}

template <int BITS, bool ASYM, int NT>
static __device__ __forceinline__ void
multiply(const linear_call &c, const uint32_t packed[4], uint32_t k, uint32_t lane, uint32_t first_token,
         int32_t dot[NT][4])
{
    const int8_t *b8 = c.a8 + (size_t)(first_token + lane / 4) * c.a8_stride + k + lane % 4 * 8;
    uint32_t a[4];

    spread<BITS, ASYM>(packed, a);
#pragma unroll
    for (int nt = 0; nt < NT; nt++) {
        uint2 b = *(const uint2 *)(b8 + (size_t)nt * 8 * c.a8_stride);

        if (BITS == 4 && ASYM) {
            bt_mma_u8(dot[nt], a, b.x, b.y);
        } else {
            bt_mma_s8(dot[nt], a, b.x, b.y);
        }
    }
}

// Columns first … end − 1 of one tile: the blocks of one segment, or with BLOCK 0 one exact dot.
template <int BITS, int BLOCK, bool ASYM, int NT>
static __device__ __forceinline__ void
run_columns(const linear_call &c, const bt_cuda_matrix &m, uint32_t tile, uint32_t first, uint32_t end, uint32_t lane,
            uint32_t first_token, int32_t dot[NT][4], sums<NT> *s)
{
    const int steps = unit<BITS>::steps, ahead = NT == 1 ? 4 : NT == 2 ? 2 : 1;
    uint32_t a[ahead][steps][4];

#pragma unroll
    for (int i = 0; i < ahead; i++) {
        if (first + i * steps * 32 < end) {
            load_unit<BITS, ASYM>(m, tile, first + i * steps * 32, lane, a[i]);
        }
    }
#pragma unroll 1
    for (uint32_t group = first; group < end; group += ahead * steps * 32) {
#pragma unroll
        for (int i = 0; i < ahead; i++) {
            uint32_t k = group + i * steps * 32, next = k + ahead * steps * 32;
            uint32_t now[steps][4];

            if (k >= end) {
                break;
            }
#pragma unroll
            for (int st = 0; st < steps; st++) {
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    now[st][j] = a[i][st][j];
                }
            }
            if (next < end) {
                load_unit<BITS, ASYM>(m, tile, next, lane, a[i]);
            }
#pragma unroll
            for (int st = 0; st < steps; st++) {
                if (k + st * 32 < c.padded) {
                    multiply<BITS, ASYM, NT>(c, now[st], k + st * 32, lane, first_token, dot);
                    if (BLOCK != 0 && BLOCK <= steps * 32 && ((st + 1) * 32) % (BLOCK ? BLOCK : 1) == 0) {
                        add_block<BITS, BLOCK, ASYM, NT>(c, m, tile, k + (st + 1) * 32 - BLOCK, lane, first_token, dot,
                                                         s);
                    }
                }
            }
            // A block that this unit ends, or that K ends.
            if (BLOCK > steps * 32 && ((k + steps * 32) % (BLOCK ? BLOCK : 1) == 0 || k + steps * 32 >= c.padded)) {
                add_block<BITS, BLOCK, ASYM, NT>(c, m, tile, k / (BLOCK ? BLOCK : 1) * BLOCK, lane, first_token, dot,
                                                 s);
            } else if (BLOCK != 0 && BLOCK <= steps * 32 && c.padded - k < steps * 32 &&
                       (c.padded - k) % (BLOCK ? BLOCK : 1) != 0) {
                add_block<BITS, BLOCK, ASYM, NT>(c, m, tile, (c.padded - 1) / (BLOCK ? BLOCK : 1) * BLOCK, lane,
                                                 first_token, dot, s);
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

static __device__ __forceinline__ float
outlier_sum(const linear_call &c, const bt_cuda_matrix &m, uint32_t row, uint32_t token)
{
    float sum = 0.0f;

    for (uint32_t i = m.row_start[row]; i < m.row_start[row + 1]; i++) {
        uint32_t k = m.outlier_cols[i];
        float scale = c.sa[(m.act_block == BT_BLOCK_ROW ? 0 : k / m.act_block) * c.sa_stride + token];

        sum = fmaf(__half2float(m.deltas[i]), scale * (float)c.a8[token * c.a8_stride + k], sum);
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
static __global__ void __launch_bounds__(512) linear_kernel(const __grid_constant__ linear_call c)
{
    extern __shared__ float shared[];
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, here = warp % c.tiles, group = warp / c.tiles;
    uint32_t first_tile = blockIdx.x * c.tiles, tile = first_tile + here, first_token = blockIdx.y * NT * 8;
    int32_t dot[NT][4] = {};
    sums<NT> all = {};

    if (tile < c.tiles_all) {
        const bt_cuda_matrix &m = c.part[part_of(c, &tile)];

#pragma unroll
        for (int r = 0; r < RUN; r++) {
            uint32_t first = (group * RUN + r) * SEGMENT, end = first + SEGMENT < c.padded ? first + SEGMENT : c.padded;
            sums<NT> s = {};

            if (first < end) {
                run_columns<BITS, BLOCK, ASYM, NT>(c, m, tile, first, end, lane, first_token, dot, &s);
                if (BLOCK != 0) {
#pragma unroll
                    for (int i = 0; i < NT * 4; i++) {
                        all.acc[i / 4][i % 4] =
                            r == 0 ? s.acc[i / 4][i % 4] : all.acc[i / 4][i % 4] + s.acc[i / 4][i % 4];
                        if (ASYM) {
                            all.min[i / 4][i % 4] =
                                r == 0 ? s.min[i / 4][i % 4] : all.min[i / 4][i % 4] + s.min[i / 4][i % 4];
                        }
                    }
                }
            }
        }
    }
    if (BLOCK == 0) {
        put<NT>(c, (int32_t *)shared, group, here, lane, dot);
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
                int a = c.a8[token * c.a8_stride + i];

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
    c->tiles = 16 / c->groups;
    c->tiles = c->tiles >= 8 ? 8 : c->tiles >= 4 ? 4 : c->tiles >= 2 || c->paired ? 2 : 1;
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
launch_cublas(bt_cuda *cuda, const linear_call *c, bt_err *err)
{
    size_t rows_all = 0;

    for (uint32_t i = 0; i < c->part_count; i++) {
        const bt_cuda_matrix *m = &c->part[i];

        if (m->kind != BT_WEIGHT_INT || m->block != BT_BLOCK_ROW || m->act_block != BT_BLOCK_ROW || m->rows % 16 != 0) {
            return false;
        }
        rows_all += m->rows;
    }
    if (cuda->cublas == NULL || c->tokens < 128 || rows_all > 4 * (size_t)cuda->limits.cols) {
        return false;
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
    bt_err err = bt_cuda_prologue(cuda, args);
    uint32_t rows = 0;

    if (err != BT_OK || launch_cublas(cuda, &c, &err)) {
        return err;
    }
    if (!launch_mma(cuda, &c)) {
        for (uint32_t i = 0; i < c.part_count; i++) {
            rows += c.paired && i > 0 ? 0 : c.part[i].rows;
        }
        plain_kernel<<<dim3((rows + 127) / 128, c.tokens), 128, 0, cuda->stream>>>(c, cuda->normed);
    }
    return bt_cuda_launched(cuda, "linear");
}
