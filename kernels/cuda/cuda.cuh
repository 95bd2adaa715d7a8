// What the files of the CUDA device share.
//
// A step runs in one stream, in the order of the calls; beside it are copies of what it finished (bt_device_read_beside) and copiers, in
// streams of their own. Of a step's calls `end` waits, and a linear layer whose shape cuBLASLt meets first (cublas.cu). A kernel's results
// do not depend on the grid it was launched with.
#pragma once

#include <assert.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <pthread.h>

extern "C" {
#include "common/base/err.h"
#include "common/base/log.h"
#include "common/base/rng.h"
#include "common/base/time.h"
#include "common/kv/layout.h"
#include "common/kv/trailer.h"
}
#include "kernels/cuda/layout.h"
#include "kernels/device_impl.h"

#define BT_CUDA_GRAPHS_MAX 384
#define BT_CUDA_MARKS_MAX 128
#define BT_CUDA_MARK_TOKENS 2048u
#define BT_CUDA_TILE_COLUMNS 64u // (token, head) rows that a block of threads takes through the keys of a prompt
#define BT_CUDA_DRAW_PIECES 64u  // blocks that share a row of logits
// What attention takes, of any format: numbers of a head, and query heads that share a KV head.
#define BT_CUDA_HEAD_DIM_MAX 512u
#define BT_CUDA_GROUP_MAX 16u
#define BT_CUDA_MEETINGS 4096u // of blocks of threads of a linear layer
#define BT_CUBLAS_WORKSPACE ((size_t)32 << 20)
#define BT_CUDA_TOKENS_PAD 64u // rows of activations that may be read beyond those there are
#define BT_CUDA_SHARED_LEAST                                                                                           \
    ((size_t)99 << 10)         // bytes of shared memory that any GPU from 8.0 on gives a block of threads
#define BT_CUDA_TURNED_PAD 96u // floats behind `normed` that linear_wide_outliers.cuh may read

// What a step draws on the device.
typedef enum {
    BT_CUDA_DRAWS_NONE,
    BT_CUDA_DRAWS_LARGEST, // all its rows are greedy
    BT_CUDA_DRAWS_SCORES,
} bt_cuda_draws;

// A step shape whose operations were recorded.
typedef struct {
    uint32_t tokens, splits;
    bt_cuda_draws draws;
    cudaGraphExec_t exec;
    uint64_t used;
} bt_cuda_graph;

// Neighbouring tokens of one sequence whose queries share keys.
typedef struct {
    uint32_t row, count;
} bt_cuda_tile;

// A token and what speaks for it: a logit, or a score.
typedef struct {
    float score;
    int32_t id;
} bt_cuda_best;

// The ends of bt_step_args.
typedef struct {
    uint32_t count;
    int32_t ids[BT_DRAW_ENDS_MAX];
} bt_cuda_ends;

// What a step brings, on the device, one array behind the other as they are copied there: at places that never change, which recorded steps
// name.
typedef struct {
    uint32_t room;       // tokens of a step that lies here
    int32_t *ids;        // [room]
    uint32_t *positions; // [room]
    uint32_t *tables;    // [room] where the token's block table begins in `blocks`
    uint32_t *rows;      // [logit rows]
    bt_draw *draws;      // [logit rows]
    bt_cuda_ends *ends;
    bt_cuda_tile *singles; // [room] of sequences that bring one token
    bt_cuda_tile *tiles;   // [room] of the others, `tile_tokens` each at most, those with the most keys first
    bt_cuda_tile *squads;  // [room] the same in tiles of `squad_tiles` of those, for attention_squad.cu
    uint32_t *blocks;      // all spans' tables, end to end
} bt_cuda_arrays;

// `few` is for steps of so few tokens that all may want logits: those that answer copy what they bring, and not 48 bytes for each token that
// a prompt may have. `many` is for the others.
typedef struct {
    bt_cuda_arrays at; // of the step in progress: one of the two
    bt_cuda_arrays few, many;
    uint8_t *host; // pinned: both, as they are copied
    size_t bytes;  // of both
    uint32_t blocks_max;
    uint32_t single_count, tile_count, tile_tokens;
    uint32_t squad_count, squad_tiles; // squad_count is 0 where squads would be hollow
    int32_t *drawn;                    // [logit rows] pinned: kernels write them to where the host reads them
    bt_cuda_best *best_logits;         // [logit rows, pieces]
    bt_cuda_best *best_scores;         // the same
    uint32_t *arrivals;                // [logit rows] pieces that are done, 0 between kernels
} bt_cuda_step;

typedef struct bt_cublas bt_cublas;

// How INT8 activations lie.
typedef enum {
    BT_A8_FRAGMENTS, // as mma.m16n8k32 reads them, see bt_cuda_a8_at
    BT_A8_ROWS,      // [tokens, a8_stride], as cuBLASLt reads them
    BT_A8_ROWS_PAIRED, // the same with each 32 columns in the order of a nibble tile: what column 8t + 4h + j is lies at 16h + 4t + j
} bt_cuda_a8_order;

// What a call left for the next one: rows of x as that call will want them, INT8 in a8_next and sa_next (ready.cuh), or bf16 in halves_next
// (linear_half.cu).
typedef struct {
    const float *x;      // NULL: nothing
    bt_weight_kind kind; // of the weights that they are for
    size_t x_stride;
    uint32_t tokens, cols;
    const float *norm;
    float norm_eps;
    bool alone;             // x itself was not written
    uint32_t act_block;     // of INT8, and
    bt_cuda_a8_order order; // as it lies
} bt_cuda_ready;

typedef struct {
    bt_device_head head;
    int index, sms;
    size_t shared_max; // bytes of shared memory that a block of threads may ask for
    bool early_launch; // this GPU, and the code for it, know programmatic dependence (launch.cuh)
    // Kernels that it may use (BATON_CUDA_WITHOUT leaves some out, and BATON_CUDA_AS those of newer GPUs than it says):
    bool few, wide, deep, gemm;  // linear_few.cuh, linear_wide.cuh, linear_deep.cuh, linear_prompt.cuh
    bool decode, prompts, squad; // attention_decode.cuh, attention_prompt.cuh, attention_squad.cu
    bool single, streams, meets; // attention_single.cu, attention_stream.cuh, attention_meet.cu
    // At work at once, of so many blocks with a multiprocessor each; 0: not asked yet (linear_wide_launch.cuh):
    uint32_t clusters[9];
    char name[160];
    cudaStream_t stream;
    cudaError_t broken; // sticky: the device cannot be used any more
    bt_time patience;   // without an answer for so long it hangs:
    bool hangs;         // nothing that waits for it may be called any more
    // Copies beside a step (bt_device_read_beside): they begin behind `begun` of the stream, and the step ends behind `copied`.
    cudaStream_t beside;
    cudaEvent_t begun, copied;
    bool copies;
    bt_device_limits limits;
    bt_cuda_step step;
    uint32_t tokens, splits; // of the step in progress: splits of the longest sequence, rounded up to a power of two
    bool recording, known;
    bt_cuda_draws draws;
    bool unrecorded; // there was no memory for a graph: steps are run one operation after the other from then on
    bt_cuda_graph graphs[BT_CUDA_GRAPHS_MAX];
    uint32_t graph_count, graph_now;
    uint64_t clock;
    bt_cublas *cublas; // NULL: not there
    // Scratch:
    uint8_t *scratch;
    size_t scratch_bytes;
    int8_t *a8;    // [tokens padded, a8_stride] of the linear layer in progress
    float *sa;     // [act blocks][bt_cuda_sa_stride]
    int32_t *sums; // [blocks of 32][bt_cuda_sa_stride] of a8
    // [tokens, a8_stride] for float weights, and BT_CUDA_TURNED_PAD; of integer ones activations turned for outliers (linear_wide_turn.cuh)
    float *normed;
    uint16_t *halves,
        *halves_next; // halves of its memory: [tokens, a8_stride] F16 or BF16, and the same of the next layer
    size_t a8_stride, sa_stride;
    int8_t *a8_next; // as a8 and sa, of the next layer
    float *sa_next;
    uint32_t *amax; // [tokens] the largest of a row, as bits
    bt_cuda_ready ready;
    int32_t *s32; // [s32_tokens, rows] products of cuBLASLt
    uint32_t s32_tokens;
    int8_t *q8;     // [tokens, heads, head_dim]
    float *q32;     // the same memory
    float *q_scale; // [tokens, heads]
    float *whole;   // [tokens, 2]
    float *partials;
    size_t partial_floats;
    uint8_t *workspace; // cuBLASLt's
    uint32_t *arrivals; // [tokens, kv_heads] of attention's partials, 0 between calls
    uint32_t *meetings; // [BT_CUDA_MEETINGS] of linear layers' blocks of threads, 0 between calls
    // What a step of many tokens leaves on its way, once a layer: each that is reached renews the patience.
    cudaEvent_t marks[BT_CUDA_MARKS_MAX];
    uint32_t mark_count;
} bt_cuda;

static inline bt_cuda *
bt_cuda_of(bt_device *device)
{
    return (bt_cuda *)(void *)device;
}

// BT_OK, or logs what failed and returns BT_ERR_DEVICE.
bt_err bt_cuda_check(bt_cuda *cuda, cudaError_t error, const char *what);
// Waits for all that was asked of a stream; a GPU that does not come to its end is broken.
bt_err bt_cuda_settle_stream(bt_cuda *cuda, cudaStream_t stream, const char *what);

// Of the device's.
static inline bt_err
bt_cuda_settle(bt_cuda *cuda, const char *what)
{
    return bt_cuda_settle_stream(cuda, cuda->stream, what);
}

// Behind what was asked of the stream so far in a step of BT_CUDA_MARK_TOKENS and more.
void bt_cuda_mark(bt_cuda *cuda);

// One thread of the process at a time between true and false (launch.cuh).
void bt_cuda_lock_launch(bool lock);

static inline bt_err
bt_cuda_launched(bt_cuda *cuda, const char *what)
{
    return bt_cuda_check(cuda, cudaGetLastError(), what);
}

// Activations are written, or read by a call for which nothing was left: x is what it reads, NULL = none of them.
static inline void
bt_cuda_forget(bt_cuda *cuda, const float *x)
{
    assert(x == NULL || x != cuda->ready.x || !cuda->ready.alone); // bt_linear_next.only was not true
    cuda->ready.x = NULL;
}

// Floats from the scales of a block of activations to those of the next: those of few tokens lie together, so that one copy brings many.
static inline size_t
bt_cuda_sa_stride(const bt_cuda *cuda, uint32_t tokens)
{
    return tokens <= 8 ? 8 : tokens <= 16 ? 16 : cuda->sa_stride;
}

// Rows of logits that a step may want.
static inline size_t
bt_cuda_rows_max(const bt_cuda *cuda)
{
    return cuda->limits.logit_rows != 0 ? cuda->limits.logit_rows : cuda->limits.tokens;
}

// choose.cu: fills in what this GPU is and can. BT_ERR_UNSUPPORTED: there is none, or this program cannot use it. BT_ERR_INVALID: a name in
// BATON_CUDA_WITHOUT that is none, or BATON_CUDA_AS is no compute capability, or more than the GPU's.
bt_err bt_cuda_choose(bt_cuda *cuda, const bt_device_options *options, bt_why *why);
// scratch.cu: the bytes that `limits` ask for; what the device names lies at `base` from now on (NULL: it is only counted).
size_t bt_cuda_lay_out(bt_cuda *cuda, uint8_t *base);

// step.cu
bt_err bt_cuda_begin(bt_device *device, const bt_step_args *args, bool *known);
bt_err bt_cuda_end(bt_device *device);
const int32_t *bt_cuda_drawn(const bt_device *device);
void bt_cuda_drop_graphs(bt_cuda *cuda); // before what they name is freed
// After a step that has not come to bt_cuda_end, since an operation failed: a stream that records takes neither copies nor a next step.
void bt_cuda_drop_recording(bt_cuda *cuda);

bt_err bt_cuda_embed(bt_device *device, const bt_embed_args *args);
bt_err bt_cuda_rope(bt_device *device, const bt_rope_args *args);
bt_err bt_cuda_linear(bt_device *device, const bt_linear_args *args);
bt_err bt_cuda_attention(bt_device *device, const bt_attention_args *args);
bt_err bt_cuda_add_norm(bt_device *device, const bt_add_norm_args *args);
bt_err bt_cuda_gather(bt_device *device, const bt_gather_args *args);
bt_err bt_cuda_draw(bt_device *device, const bt_draw_args *args);

// share.cu
bt_err bt_cuda_pin(bt_device *device, void *memory, size_t bytes, bt_why *why);
void bt_cuda_unpin(bt_device *device, void *memory, size_t bytes);
bt_err bt_cuda_share(bt_device *device, void *memory, bt_device_shared *out, bt_why *why);
bt_err bt_cuda_open_shared(bt_device *device, const bt_device_shared *shared, const void **memory, bool *same,
                           bt_why *why);
void bt_cuda_close_shared(bt_device *device, const void *memory);
bt_err bt_cuda_reach(bt_device *device, bt_device *other, bt_why *why);
// copier.cu
bt_err bt_cuda_copier_open(bt_copier **out, bt_device *device, const bt_copier_options *options, bt_why *why);

// Norm and INT8 of all tokens of a call, into cuda->a8, sa and sums (or cuda->normed).
bt_err bt_cuda_prologue(bt_cuda *cuda, const bt_linear_args *args, bt_cuda_a8_order order);
// The same to cuda->halves for 16-bit weights; of F16 also what rows were divided by, to cuda->sa (half_rows.cu).
bt_err bt_cuda_half_rows(bt_cuda *cuda, const bt_linear_args *args);

// Bytes of a row of a8: of the call's own columns, not of the widest, so that what lies behind a row's end is never older than the call.
static inline uint32_t
bt_cuda_a8_columns(uint32_t cols)
{
    return (cols + 127) / 128 * 128;
}

// Rows of activations that boxes are said to find where there are so many tokens: whole tiles of 64, or of clusters. What reaches beyond a
// matrix's end is slow.
static inline uint32_t
bt_cuda_box_tokens(uint32_t tokens)
{
    return tokens <= 64 ? (tokens + 7) / 8 * 8 : (tokens + 255) / 256 * 256;
}

// BT_A8_FRAGMENTS: where the code of (token, column) lies: [tile of 8 tokens][128 columns][64 columns][lane][16 bytes], so that a lane of mma.m16n8k32 finds
// the eight columns 8t … of two steps of 32 beside each other and a warp reads 512 bytes at once.
static __host__ __device__ __forceinline__ size_t
bt_cuda_a8_at(size_t a8_stride, uint32_t token, uint32_t k)
{
    return ((size_t)(token / 8) * (a8_stride / 128) + k / 128) * 1024 + k % 128 / 64 * 512 +
           (token % 8 * 4 + k % 32 / 8) * 16 + k % 64 / 32 * 8 + k % 8;
}

// The same of any order.
static __host__ __device__ __forceinline__ size_t
bt_cuda_a8_in(bt_cuda_a8_order order, size_t a8_stride, uint32_t token, uint32_t k)
{
    if (order == BT_A8_FRAGMENTS) {
        return bt_cuda_a8_at(a8_stride, token, k);
    }
    return token * a8_stride + (order == BT_A8_ROWS ? k : k / 32 * 32 + k % 8 / 4 * 16 + k % 32 / 8 * 4 + k % 4);
}

// Was this program built for this GPU's warpgroups (sm_90a), and does the driver know the copy engine's maps? Of the current device.
bool bt_cuda_has_prompt(void);

// cuBLASLt, loaded when the device is opened, where it is there: by a thread of its own, since the library's half a GiB takes 60 ms, and
// the driver, which wakes up meanwhile, 230. Every begin has its end.
typedef struct {
    pthread_t thread;
    bool begun;
} bt_cublas_loading;

void bt_cublas_load_begin(bt_cublas_loading *loading);
void *bt_cublas_load_end(bt_cublas_loading *loading); // NULL: it is not there
bt_cublas *bt_cublas_open(bt_cuda *cuda, void *library);
void bt_cublas_close(bt_cublas *cublas);
// Rows of all three matrices lie so many elements apart.
typedef struct {
    uint64_t rows, cols;
    uint64_t tokens; // a multiple of 64, so that shapes are few: what lies beyond those there are is read and written
    uint64_t codes_stride, a8_stride, out_stride;
    uint64_t floats; // 0: INT8 to s32, 1: bf16 to f32 (to measure with: linear_half.cuh says why no layer goes by it)
} bt_cublas_shape;

// Can it? The answer is remembered. A shape that is met first is tried with these weights (NULL: not tried), which writes to cuda->s32 and
// waits for the device.
bool bt_cublas_has(bt_cublas *cublas, const bt_cublas_shape *shape, const void *codes);
// out [tokens, rows] = a8 [tokens, cols] · codes [rows, cols] transposed; of INT8 exact.
bt_err bt_cublas_product(bt_cublas *cublas, const bt_cublas_shape *shape, const void *codes, const void *a8, void *out);
