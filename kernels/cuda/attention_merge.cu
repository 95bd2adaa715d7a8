// The merge of rows with many splits, from the left as ever: a block a (row, head, 16 dims).
//
// Only acc and l are chains: the largest so far is a scan, which changes no bit, and what it makes of a split's numbers needs no other.
// So all is read at once, scanned, weighed, and then added by sixteen threads for acc and one for l, a product a split.
#include "kernels/cuda/attention_decode_math.cuh"

#define DIMS 16u   // small enough to wait beside the blocks in front
#define CHUNK 128u // splits at a time, one a thread
#define FOURS (DIMS / 4)

typedef struct {
    float values[CHUNK][DIMS]; // times b
    float a[CHUNK], b[CHUNK], sums[CHUNK], warps[CHUNK / 32];
    float so_far, l; // the largest of all that came; what they sum to
} merge_shared;

// The largest of `before` and m of the threads up to this one; *to_left: that of those before it.
static __device__ __forceinline__ float
largest_so_far(merge_shared &s, float m, float before, float *to_left)
{
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float own = m, left;

#pragma unroll
    for (int j = 1; j < 32; j *= 2) {
        float other = __shfl_up_sync(0xffffffffu, own, j);

        own = (int)lane >= j ? larger(own, other) : own;
    }
    left = __shfl_up_sync(0xffffffffu, own, 1);
    left = lane == 0 ? before : larger(before, left);
    if (lane == 31) {
        s.warps[warp] = own;
    }
    __syncthreads();
#pragma unroll
    for (uint32_t i = 0; i < CHUNK / 32 - 1; i++) {
        left = i < warp ? larger(left, s.warps[i]) : left;
    }
    *to_left = left;
    return larger(left, m);
}

// Threads 0 … 15 of the chunk: acc; thread 32: l.
static __device__ __forceinline__ float
add_chunk(const merge_shared &s, uint32_t count, bool is_first, float x)
{
    const float *from = threadIdx.x < DIMS ? &s.values[0][threadIdx.x] : s.sums;
    uint32_t step = threadIdx.x < DIMS ? DIMS : 1, k = 0;

    if (is_first) {
        x = from[0], k = 1;
    }
#pragma unroll 8
    for (; k < count; k++) {
        x = fmaf(x, s.a[k], from[k * step]);
    }
    return x;
}

static __global__ void
__launch_bounds__(CHUNK) merge_apart_kernel(const __grid_constant__ attention_call c)
{
    __shared__ __align__(16) merge_shared s;
    uint32_t index = blockIdx.y, head = blockIdx.x, first_dim = blockIdx.z * DIMS, i = threadIdx.x;
    uint32_t splits = splits_seen(c, index), item = 0, dims = c.a.head_dim;
    float x = 0.0f, before = -INFINITY;
    bool coarse = run_is_coarse(c, splits_of_all(c) * c.a.kv_heads);

    for (uint32_t k = i % 32; k < index; k += 32) {
        item += splits_seen(c, k);
    }
    item = __reduce_add_sync(0xffffffffu, item) * c.a.kv_heads + head / c.group * splits;
    bt_let_next();
    bt_wait_before();
    if (coarse) {
        return; // all were merged
    }
    for (uint32_t first = 0; first < splits; first += CHUNK) {
        uint32_t count = splits - first < CHUNK ? splits - first : CHUNK;
        const float *own = partial_at(c, item + first + (i < count ? i : 0), head % c.group, dims);
        float m = own[BT_PARTIAL_MAX], sum = own[BT_PARTIAL_SUM], left, so_far, b;
        float4 v[FOURS];

#pragma unroll
        for (uint32_t n = 0; n < FOURS; n++) {
            uint32_t split = (n * CHUNK + i) / FOURS, d = i % FOURS * 4;

            v[n] = *(const float4 *)(partial_at(c, item + first + (split < count ? split : 0), head % c.group, dims) +
                                     BT_PARTIAL_HEAD + first_dim + d);
        }
        so_far = largest_so_far(s, i < count ? m : -INFINITY, before, &left);
        b = first + i == 0 ? 1.0f : exp2_of(m - so_far);
        s.a[i] = exp2_of(left - so_far), s.b[i] = b, s.sums[i] = sum * b;
        if (i == CHUNK - 1) {
            s.so_far = so_far;
        }
        __syncthreads();
        before = s.so_far;
#pragma unroll
        for (uint32_t n = 0; n < FOURS; n++) {
            uint32_t split = (n * CHUNK + i) / FOURS, d = i % FOURS * 4;
            float by = s.b[split];

            *(float4 *)&s.values[split][d] = make_float4(v[n].x * by, v[n].y * by, v[n].z * by, v[n].w * by);
        }
        __syncthreads();
        if (i < DIMS || i == 32) {
            x = add_chunk(s, count, first == 0, x);
        }
        __syncthreads();
    }
    if (i == 32) {
        s.l = x;
    }
    __syncthreads();
    if (i < DIMS) {
        c.a.out[decode_row(c, index) * c.a.out_stride + (size_t)head * dims + first_dim + i] = x * (1.0f / s.l);
    }
}

// ---- launch ----

bt_err
bt_cuda_merge_apart(bt_cuda *cuda, const attention_call *c)
{
    cudaError_t error = bt_cuda_go(cuda, merge_apart_kernel, dim3(c->a.heads, c->single_count, c->a.head_dim / DIMS),
                                   dim3(CHUNK), 0, *c);

    return bt_cuda_check(cuda, error, "attention, merge");
}
