// The kernel of attention_stream.cuh, and its launch.
#include "kernels/cuda/attention_stream_split.cuh"

// total ∪= the split.
template <typename D>
static __device__ __forceinline__ void
stream_merge(stream_state<D> &q, bool is_first)
{
    float other[2], of[D::pairs];

    stream_share<D>(q.odd, q.m, other);
    stream_to_pairs<D>(other, of);
#pragma unroll
    for (int col = 0; col < 2; col++) {
        float m = larger(q.total_m[col], other[col]), a = exp2_of(q.total_m[col] - m), b = exp2_of(other[col] - m);

#pragma unroll
        for (int n = 0; n < D::steps * 2 * D::halves; n++) {
            int j = n / (2 * D::halves), tile = n / D::halves % 2, i = n % D::halves * 2 + col;
            float &to = q.total[j][tile][i], x = q.acc[j][tile][i];

            to = is_first ? x : fmaf(to, a, x * b);
        }
        q.total_m[col] = is_first ? other[col] : m;
    }
#pragma unroll
    for (int n = 0; n < D::pairs; n++) {
        float l = split_l(q.l[n]), m = larger(q.total_lm[n], of[n]);

        q.total_l[n] = is_first ? l : fmaf(q.total_l[n], exp2_of(q.total_lm[n] - m), l * exp2_of(of[n] - m));
        q.total_lm[n] = is_first ? of[n] : m;
    }
}

template <typename D>
static __device__ __forceinline__ void
stream_store(const attention_call &c, stream_warp<D> &s, const stream_state<D> &q, const decode_unit &u)
{
    uint32_t lane = threadIdx.x % 32;
    float inverse[2];

    __syncwarp(); // weights were read
#pragma unroll
    for (int n = 0; n < D::pairs; n++) {
        if (lane % 16 == 0) {
            s.p[0][lane / 16 + 2 * n] = 1.0f / q.total_l[n];
        }
    }
    __syncwarp();
    inverse[0] = s.p[0][stream_query<D>(0)], inverse[1] = s.p[0][stream_query<D>(1)];
    __syncwarp();
    stream_each<D>(c, q.total, [&](uint32_t query, uint32_t dim, float x) {
        out_at(c, u, query, D::dims)[dim] = x * (query % 2 == 0 ? inverse[0] : inverse[1]);
    });
}

#define MERGED 4  // splits on their way at once
#define ABREAST 2 // and vectors of four dims of a lane: more than that do not stay in registers

// The merge of a (sequence, KV head) by the warp that arrived last, from the left. Of [group, dims / 4] a lane has the vectors lane,
// lane + 32 … .
template <typename D>
static __device__ __noinline__ void
stream_merge_parts(const attention_call &c, const decode_unit &u, const float *partials, uint32_t splits)
{
    const uint32_t row = D::dims / 4;
    uint32_t stride = c.group * (BT_PARTIAL_HEAD + D::dims);

#pragma unroll 1
    for (uint32_t first = threadIdx.x % 32; first < c.group * row; first += 32 * ABREAST) {
        stream_merged sum[ABREAST] = {};
        const float *from[ABREAST];

#pragma unroll
        for (uint32_t n = 0; n < ABREAST; n++) { // (what is not there is read of the last query, and left out)
            uint32_t e = first + n * 32, query = e / row < c.group ? e / row : c.group - 1;

            from[n] = partials + query * (BT_PARTIAL_HEAD + D::dims);
        }
#pragma unroll 1
        for (uint32_t split = 0; split < splits; split += MERGED) {
            float2 of[MERGED][ABREAST];
            float4 x[MERGED][ABREAST];

#pragma unroll
            for (uint32_t i = 0; i < MERGED; i++) {
#pragma unroll
                for (uint32_t n = 0; n < ABREAST; n++) {
                    const float *at = from[n] + (size_t)(split + i < splits ? split + i : split) * stride;

                    of[i][n] = *(const float2 *)at;
                    x[i][n] = ((const float4 *)(at + BT_PARTIAL_HEAD))[(first + n * 32) % row];
                }
            }
#pragma unroll
            for (uint32_t i = 0; i < MERGED; i++) {
#pragma unroll
                for (uint32_t n = 0; n < ABREAST && split + i < splits; n++) {
                    stream_merge_one(sum[n], of[i][n], x[i][n], split + i == 0);
                }
            }
        }
#pragma unroll
        for (uint32_t n = 0; n < ABREAST; n++) {
            uint32_t e = first + n * 32;
            float inverse = 1.0f / sum[n].l;

            for (int k = 0; k < 4 && e < c.group * row; k++) {
                out_at(c, u, e / row, D::dims)[e % row * 4 + k] = sum[n].acc[k] * inverse;
            }
        }
    }
}

// The warp's part of a (sequence, KV head) is in `partials`: whoever is last merges all.
template <typename D>
static __device__ __forceinline__ void
stream_arrive(const attention_call &c, const decode_unit &u, const decode_part &p)
{
    uint32_t last = 0;

    __syncwarp();
    if (threadIdx.x % 32 == 0) {
        last = count_arrival(c, u, p);
    }
    last = __shfl_sync(0xffffffffu, last, 0);
    __syncwarp();
    if (last != 0) {
        stream_merge_parts<D>(c, decode_unit(u), partial_at(c, p.item, 0, D::dims), p.splits);
    }
}

// The queries of a (sequence, KV head), and its new K and V if the run has the last split.
template <typename D, typename F>
static __device__ __forceinline__ void
stream_make_ready(const attention_call &c, stream_warp<D> &s, const decode_unit &u, bool with_new, F meanwhile)
{
    const uint32_t columns = D::columns;
    uint32_t block = with_new ? stream_new_block(c, u) : 0;

    stream_ready<D, D::columns + 2>(c, s, u, 0, 1, with_new ? columns + 2 : columns, meanwhile,
                                    [&](uint32_t i, const float x[D::steps]) {
                                        if (i < columns) {
                                            stream_keep_query<D>(c, &s, 1, i, x);
                                        } else {
                                            stream_keep_new<D>(c, s, u, block, i > columns, x);
                                        }
                                    });
    __syncwarp();
}

template <typename D>
static __global__ void
__launch_bounds__(D::threads, D::blocks_each) stream_kernel(const __grid_constant__ attention_call c)
{
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    extern __shared__ __align__(128) uint8_t memory[];
    stream_warp<D> &s = ((stream_warp<D> *)memory)[threadIdx.x / 32];
    stream_state<D> q;
    stream_at at = {0, 0};
    stream_plan plan = {};
    bool begins = true;
    stream_cursor ahead;
    decode_unit u;

    if (threadIdx.x % 32 == 0) {
        for (int i = 0; i < D::slots; i++) {
            bt_barrier_init(bt_shared_at(&s.full[i]), 1);
        }
        bt_barrier_init_done();
    }
    __syncwarp();
    ahead = stream_run<D>(c, &plan);
    u = ahead.u;
    stream_begin<D>(c, s, ahead, u, u.left != 0);
    while (u.left != 0) {
        decode_part part = part_of(u, plan.item);
        bool whole = part.done == part.splits && !plan.apart;
        uint32_t first = u.split;

        stream_make_ready<D>(c, s, u, u.left > last_split(u) - u.split, [&] {
            if (begins) { // the third piece comes after what the first queries wait for
                stream_ask_k<D>(c, s, ahead, 2);
            }
        });
        begins = false;
        stream_open<D>(c, s, q);
        for (; u.split < first + part.done; u.split++) {
            stream_split<D>(c, s, q, u, ahead, at);
            if (whole) {
                stream_merge<D>(q, u.split == first);
            } else {
                stream_leave<D>(c, q, partial_at(c, plan.item + u.split - first, 0, D::dims));
            }
        }
        if (whole) {
            stream_store<D>(c, s, q, u);
        } else if (!plan.apart) {
            stream_arrive<D>(c, u, part);
        }
        __syncwarp(); // the weights are read: queries lie there next
        plan.item += part.done;
        u.left -= part.done;
        if (u.left != 0) {
            stream_next_head(c, u);
        }
    }
#endif
}

// ---- launch ----

template <typename D>
static bt_err
stream_launch(bt_cuda *cuda, const attention_call &c, size_t items)
{
    size_t most = (size_t)cuda->sms * D::blocks_each, blocks = (items + D::warps - 1) / D::warps;
    cudaError_t error = bt_cuda_go(cuda, stream_kernel<D>, dim3((unsigned)(blocks < most ? blocks : most)),
                                   dim3(D::threads), sizeof(stream_warp<D>) * D::warps, c);

    return bt_cuda_check(cuda, error, "attention of many splits");
}

bool
bt_cuda_attention_streams(const bt_cuda *cuda, const attention_call *c)
{
    return cuda->streams && c->group <= 8 && (c->a.head_dim == 64 || c->a.head_dim == 128);
}

bt_err
bt_cuda_attention_stream(bt_cuda *cuda, const attention_call *c, size_t items)
{
    if (c->a.head_dim == 64) {
        return c->group <= 4 ? stream_launch<stream_shape<2, 4>>(cuda, *c, items)
                             : stream_launch<stream_shape<2, 8>>(cuda, *c, items);
    }
    return c->group <= 4 ? stream_launch<stream_shape<4, 4>>(cuda, *c, items)
                         : stream_launch<stream_shape<4, 8>>(cuda, *c, items);
}
