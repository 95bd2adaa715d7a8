// A CUDA device: its life and its memory.
#include "kernels/cuda/cuda.cuh"

#include "kernels/cpu/ref/attention.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PARTIAL_BYTES ((size_t)256 << 20)
#define S32_TOKENS 2048u
#define PAGE ((size_t)2 << 20)    // of the device's memory
#define PATIENCE (30 * BT_SECOND) // no step takes as long

bt_err
bt_cuda_check(bt_cuda *cuda, cudaError_t error, const char *what)
{
    if (error == cudaSuccess) {
        return BT_OK;
    }
    bt_log_error("CUDA-FAILED", "%s: %s: %s", cuda->name, what, cudaGetErrorString(error));
    cuda->broken = error;
    return BT_ERR_DEVICE;
}

bt_err
bt_cuda_settle_stream(bt_cuda *cuda, cudaStream_t stream, const char *what)
{
    bt_time end = bt_time_now() + cuda->patience;
    cudaError_t error;

    if (cuda->hangs) {
        return BT_ERR_DEVICE;
    }
    while ((error = cudaStreamQuery(stream)) == cudaErrorNotReady) {
        if (bt_time_now() > end) {
            cuda->hangs = true;
            bt_log_error("CUDA-HANGS", "%s: %s: no answer in %.1f s", cuda->name, what,
                         (double)cuda->patience / BT_SECOND);
            cuda->broken = cudaErrorLaunchTimeout;
            return BT_ERR_DEVICE;
        }
        sched_yield();
    }
    return bt_cuda_check(cuda, error, what);
}

static void
free_scratch(bt_cuda *cuda)
{
    bt_cuda_drop_graphs(cuda); // they name it
    cudaFree(cuda->scratch);
    cudaFreeHost(cuda->step.host);
    cudaFreeHost(cuda->step.host_drawn);
    cuda->scratch = NULL;
    cuda->step.host = NULL;
    cuda->step.host_drawn = NULL;
    cuda->scratch_bytes = 0;
}

static void
cuda_close(bt_device *device)
{
    bt_cuda *cuda = bt_cuda_of(device);

    if (cuda->stream != NULL) { // before it nothing was opened
        cudaSetDevice(cuda->index);
        if (cuda->broken == cudaSuccess) {
            bt_cuda_settle(cuda, "close");
        }
        if (cuda->hangs) {
            return; // whatever is asked of it now waits for ever: the end of the process takes it all
        }
        free_scratch(cuda);
        bt_cublas_close(cuda->cublas);
        cudaStreamDestroy(cuda->stream);
    }
    if (cuda->beside != NULL) {
        cudaStreamDestroy(cuda->beside);
    }
    if (cuda->begun != NULL) {
        cudaEventDestroy(cuda->begun);
    }
    if (cuda->copied != NULL) {
        cudaEventDestroy(cuda->copied);
    }
    free(cuda);
}

static uint32_t
cuda_threads(const bt_device *device)
{
    (void)device;
    return 1;
}

static const char *
cuda_isa(const bt_device *device)
{
    return ((const bt_cuda *)(const void *)device)->name;
}

// ---- scratch ----

typedef struct {
    uint8_t *base; // NULL: only counts
    size_t used;
} carve;

static void *
take(carve *c, size_t bytes)
{
    size_t at = c->used;

    c->used = at + (bytes + 255) / 256 * 256;
    return c->base == NULL ? NULL : c->base + at;
}

static size_t
rounded(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

static void
lay_out(bt_cuda *cuda, carve *c)
{
    const bt_device_limits *l = &cuda->limits;
    size_t tokens = rounded(l->tokens, BT_CUDA_TOKENS_PAD), sequences = l->sequences != 0 ? l->sequences : l->tokens;
    size_t logit_rows = bt_cuda_rows_max(cuda), heads = (size_t)l->tokens * l->heads;
    size_t block_tokens = l->block_tokens != 0 ? l->block_tokens : 32;
    bt_cuda_step *s = &cuda->step;
    size_t begin = c->used;

    s->blocks_max = (uint32_t)(sequences * (l->context / block_tokens + 1));
    s->ids = (int32_t *)take(c, l->tokens * 4);
    s->positions = (uint32_t *)take(c, l->tokens * 4);
    s->tables = (uint32_t *)take(c, l->tokens * 4);
    s->rows = (uint32_t *)take(c, logit_rows * 4);
    s->draws = (bt_draw *)take(c, logit_rows * sizeof(bt_draw));
    s->ends = (bt_cuda_ends *)take(c, sizeof(bt_cuda_ends));
    s->singles = (bt_cuda_tile *)take(c, l->tokens * sizeof(bt_cuda_tile));
    s->tiles = (bt_cuda_tile *)take(c, l->tokens * sizeof(bt_cuda_tile));
    s->tile_tokens = l->kv_heads != 0 ? BT_CUDA_TILE_COLUMNS / (l->heads / l->kv_heads) : 1;
    s->tile_tokens = s->tile_tokens != 0 ? s->tile_tokens : 1;
    s->blocks_offset = c->used - begin;
    s->blocks = (uint32_t *)take(c, (size_t)s->blocks_max * 4);
    s->bytes = c->used - begin;
    s->drawn = (int32_t *)take(c, logit_rows * 4);
    s->best_logits = (bt_cuda_best *)take(c, logit_rows * BT_CUDA_DRAW_PIECES * sizeof(bt_cuda_best));
    s->best_scores = (bt_cuda_best *)take(c, logit_rows * BT_CUDA_DRAW_PIECES * sizeof(bt_cuda_best));

    cuda->a8_stride = bt_cuda_a8_columns(l->cols);
    cuda->sa_stride = tokens;
    cuda->a8 = (int8_t *)take(c, tokens * cuda->a8_stride);
    cuda->sa = (float *)take(c, cuda->a8_stride / 32 * tokens * 4);
    cuda->a8_next = (int8_t *)take(c, l->tokens < 128 ? 0 : tokens * cuda->a8_stride);
    cuda->sa_next = (float *)take(c, l->tokens < 128 ? 0 : cuda->a8_stride / 32 * tokens * 4);
    cuda->amax = (uint32_t *)take(c, tokens * sizeof *cuda->amax);
    cuda->sums = (int32_t *)take(c, cuda->a8_stride / 32 * tokens * 4);
    cuda->normed = (float *)take(c, tokens * cuda->a8_stride * 4);
    cuda->s32_tokens = (uint32_t)(tokens < S32_TOKENS ? tokens : S32_TOKENS); // whole sixty-fours
    // The head's rows are wanted of few tokens, which do not go by cuBLASLt.
    cuda->s32 = (int32_t *)take(c, l->tokens < 128 ? 0 : (size_t)cuda->s32_tokens * 4 * l->cols * 4);
    cuda->q32 = (float *)take(c, heads * l->head_dim * 4);
    cuda->q8 = (int8_t *)cuda->q32;
    cuda->q_scale = (float *)take(c, heads * 4);
    cuda->whole = (float *)take(c, (size_t)l->tokens * 8);
    cuda->partial_floats = PARTIAL_BYTES / 4;
    {
        size_t most = heads * (l->context / BT_ATTENTION_SPLIT + 1) * bt_attention_partial_floats(l->head_dim);

        cuda->partial_floats = most < cuda->partial_floats ? most : cuda->partial_floats;
    }
    cuda->partials = (float *)take(c, cuda->partial_floats * 4);
    cuda->arrivals = (uint32_t *)take(c, (size_t)l->tokens * l->kv_heads * 4);
    cuda->workspace = (uint8_t *)take(c, BT_CUBLAS_WORKSPACE);
}

// In our stream and to its end: cudaMemset would clear whenever the default stream comes to it, after what was written meanwhile (seen as
// weights of zeros where two processes shared the GPU).
static bool
clear(bt_cuda *cuda, void *memory, size_t bytes)
{
    return cudaMemsetAsync(memory, 0, bytes, cuda->stream) == cudaSuccess &&
           bt_cuda_settle(cuda, "clear memory") == BT_OK;
}

static bt_err
cuda_reserve(bt_device *device, const bt_device_limits *limits, bt_why *why)
{
    bt_cuda *cuda = bt_cuda_of(device);
    carve c = {NULL, 0};

    cudaSetDevice(cuda->index);
    free_scratch(cuda);
    cuda->limits = *limits;
    lay_out(cuda, &c);
    cuda->scratch_bytes = c.used;
    if (cudaMalloc((void **)&cuda->scratch, c.used) != cudaSuccess ||
        cudaMallocHost((void **)&cuda->step.host, cuda->step.bytes) != cudaSuccess ||
        cudaMallocHost((void **)&cuda->step.host_drawn, bt_cuda_rows_max(cuda) * 4) != cudaSuccess) {
        cudaGetLastError();
        free_scratch(cuda);
        return bt_fail(why, BT_ERR_NO_MEMORY, "%s: cannot allocate %.1f MiB of scratch: %.1f MiB are free", cuda->name,
                       (double)c.used / 0x1p20, (double)bt_device_available(device) / 0x1p20);
    }
    // What is read beyond the tokens of a call must be numbers.
    if (!clear(cuda, cuda->scratch, c.used)) {
        return bt_fail(why, BT_ERR_DEVICE, "%s: cannot clear memory", cuda->name);
    }
    c = (carve){cuda->scratch, 0};
    lay_out(cuda, &c);
    return BT_OK;
}

static size_t
cuda_scratch_bytes(const bt_device *device)
{
    return ((const bt_cuda *)(const void *)device)->scratch_bytes;
}

static void
cuda_parallel(bt_device *device, void (*run)(void *arg, uint32_t thread, uint32_t threads), void *arg)
{
    (void)device;
    run(arg, 0, 1);
}

// ---- memory ----

// Of a device that hangs nothing is freed, which would wait for it.
static void
cuda_free(bt_device *device, void *memory, size_t bytes)
{
    (void)bytes;
    cudaSetDevice(bt_cuda_of(device)->index);
    if (!bt_cuda_of(device)->hangs) {
        cudaFree(memory);
    }
}

static void *
cuda_alloc(bt_device *device, size_t bytes)
{
    void *memory = NULL;

    bytes = rounded(bytes != 0 ? bytes : 1, PAGE); // what is so large lies at such a boundary
    cudaSetDevice(bt_cuda_of(device)->index);
    if (cudaMalloc(&memory, bytes) != cudaSuccess) {
        cudaGetLastError();
        return NULL;
    }
    if (!clear(bt_cuda_of(device), memory, bytes)) {
        cudaGetLastError();
        cuda_free(device, memory, bytes);
        return NULL;
    }
    return memory;
}

// What was asked before is waited for first: a copy to memory that is not pinned waits for it by itself, without an end.
static bt_err
copy(bt_device *device, void *to, const void *from, size_t bytes, cudaMemcpyKind way)
{
    bt_cuda *cuda = bt_cuda_of(device);
    bt_err err = cuda->broken == cudaSuccess ? bt_cuda_settle(cuda, "copy") : BT_ERR_DEVICE;

    if (err == BT_OK) {
        err = bt_cuda_check(cuda, cudaMemcpyAsync(to, from, bytes, way, cuda->stream), "copy");
    }
    return err == BT_OK ? bt_cuda_settle(cuda, "copy") : err;
}

static bt_err
cuda_write(bt_device *device, void *to, const void *from, size_t bytes)
{
    bt_cuda_forget(bt_cuda_of(device), NULL);
    return copy(device, to, from, bytes, cudaMemcpyHostToDevice);
}

static bt_err
cuda_read(bt_device *device, void *to, const void *from, size_t bytes)
{
    return copy(device, to, from, bytes, cudaMemcpyDeviceToHost);
}

static bt_err
cuda_read_beside(bt_device *device, uint8_t *to, const uint8_t *from, const bt_device_rows *runs, uint32_t run_count,
                 size_t bytes, size_t stride)
{
    bt_cuda *cuda = bt_cuda_of(device);
    cudaError_t error = cudaEventRecord(cuda->begun, cuda->stream);

    if (error == cudaSuccess) {
        error = cudaStreamWaitEvent(cuda->beside, cuda->begun, 0);
    }
    for (uint32_t i = 0; i < run_count && error == cudaSuccess; i++) {
        error = cudaMemcpy2DAsync(to + runs[i].at, stride, from + runs[i].at, stride, bytes, runs[i].rows,
                                  cudaMemcpyDeviceToHost, cuda->beside);
    }
    cuda->copies = true;
    return bt_cuda_check(cuda, error, "copy beside a step");
}

static bool
cuda_is_broken(const bt_device *device)
{
    return ((const bt_cuda *)(const void *)device)->broken != cudaSuccess;
}

static size_t
cuda_available(const bt_device *device)
{
    size_t free_bytes = 0, total = 0;

    cudaSetDevice(((const bt_cuda *)(const void *)device)->index);
    return cudaMemGetInfo(&free_bytes, &total) == cudaSuccess ? free_bytes : 0;
}

// ---- open ----

static const bt_ops ops_cuda = {
    .name = "cuda",
    .weight_bytes = bt_cuda_weight_bytes,
    .weight_pack = bt_cuda_weight_pack,
    .weight_pack_floats = bt_cuda_weight_pack_floats,
    .weight_pack_f32 = bt_cuda_weight_pack_f32,
    .weight_row = NULL,
    .weight_row_floats = NULL,
    .begin = bt_cuda_begin,
    .end = bt_cuda_end,
    .gather = bt_cuda_gather,
    .embed = bt_cuda_embed,
    .rope = bt_cuda_rope,
    .linear = bt_cuda_linear,
    .attention = bt_cuda_attention,
    .add_norm = bt_cuda_add_norm,
    .draw = bt_cuda_draw,
    .drawn = bt_cuda_drawn,
};

static const bt_device_class cuda_class = {
    .host = false,
    .close = cuda_close,
    .threads = cuda_threads,
    .isa = cuda_isa,
    .reserve = cuda_reserve,
    .scratch_bytes = cuda_scratch_bytes,
    .parallel = cuda_parallel,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .write = cuda_write,
    .read = cuda_read,
    .read_beside = cuda_read_beside,
    .is_broken = cuda_is_broken,
    .available = cuda_available,
    .pin = bt_cuda_pin,
    .unpin = bt_cuda_unpin,
    .share = bt_cuda_share,
    .open_shared = bt_cuda_open_shared,
    .close_shared = bt_cuda_close_shared,
    .copier_open = bt_cuda_copier_open,
};

// A step's graph, measured (kernels/README.md): so many bytes of the device a kernel, and the operations of a step.
#define GRAPH_NODE_BYTES 1536u
#define GRAPH_NODES_LAYER 16u
#define GRAPH_NODES_STEP 16u

// Shapes of steps that write answers: tokens, splits by powers of two, drawn here or by the host.
static size_t
graphs_most(const bt_device_limits *l)
{
    size_t sequences = l->sequences != 0 ? l->sequences : l->tokens, splits = 1, most;

    for (uint64_t keys = BT_ATTENTION_SPLIT; keys < l->context; keys *= 2) {
        splits++;
    }
    most = sequences * splits * 2;
    return most < BT_CUDA_GRAPHS_MAX ? most : BT_CUDA_GRAPHS_MAX;
}

bt_err
bt_cuda_foresee(bt_device_needs *out, const bt_device_limits *limits, bt_why *why)
{
    bt_cuda *cuda = (bt_cuda *)calloc(1, sizeof *cuda); // one that is nowhere: what it would take is counted
    carve c = {NULL, 0};

    if (cuda == NULL) {
        return bt_fail(why, BT_ERR_NO_MEMORY, "device: out of memory");
    }
    cuda->limits = *limits;
    lay_out(cuda, &c);
    free(cuda);
    *out = (bt_device_needs){};
    out->ops = &ops_cuda;
    out->scratch = c.used;
    out->graphs = graphs_most(limits) * (limits->layers * GRAPH_NODES_LAYER + GRAPH_NODES_STEP) * GRAPH_NODE_BYTES;
    out->granule = PAGE;
    out->threads = 1;
    return BT_OK;
}

// Is there a driver that knows this program's CUDA, and the device? One line says what is missing.
static bt_err
find_device(const bt_device_options *options, bt_why *why)
{
    int driver = 0, count = 0;
    cudaError_t error;

    if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) {
        return bt_fail(why, BT_ERR_UNSUPPORTED, "device cuda:%u: no NVIDIA driver here (libcuda.so.1)", options->index);
    }
    error = cudaGetDeviceCount(&count);
    if (error == cudaErrorInsufficientDriver) {
        return bt_fail(why, BT_ERR_UNSUPPORTED,
                       "device cuda:%u: the driver here knows CUDA %d.%d, this program was built with %d.%d",
                       options->index, driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000,
                       CUDART_VERSION % 1000 / 10);
    }
    if (error != cudaSuccess || count == 0) {
        return bt_fail(why, BT_ERR_UNSUPPORTED, "device cuda:%u: no CUDA device here (%s)", options->index,
                       error != cudaSuccess ? cudaGetErrorString(error) : "the driver sees none");
    }
    if (options->index >= (uint32_t)count && count == 1) {
        return bt_fail(why, BT_ERR_UNSUPPORTED, "device cuda:%u: this machine has cuda:0 alone", options->index);
    }
    if (options->index >= (uint32_t)count) {
        return bt_fail(why, BT_ERR_UNSUPPORTED, "device cuda:%u: this machine has cuda:0 … cuda:%d", options->index,
                       count - 1);
    }
    return BT_OK;
}

static __global__ void
some_code(void)
{
}

static cudaError_t
open_streams(bt_cuda *cuda)
{
    cudaError_t error = cudaStreamCreateWithFlags(&cuda->stream, cudaStreamNonBlocking);

    if (error == cudaSuccess) {
        error = cudaStreamCreateWithFlags(&cuda->beside, cudaStreamNonBlocking);
    }
    if (error == cudaSuccess) {
        error = cudaEventCreateWithFlags(&cuda->begun, cudaEventDisableTiming);
    }
    return error == cudaSuccess ? cudaEventCreateWithFlags(&cuda->copied, cudaEventDisableTiming) : error;
}

// BATON_CUDA_WITHOUT=few,wide,gemm,decode,prompt: kernels to do without, for finding out which one is at fault. All ways give the same bits.
static bool
left_out(const char *kernel)
{
    const char *at = getenv("BATON_CUDA_WITHOUT");
    size_t length = strlen(kernel);

    for (; at != NULL; at = strchr(at, ','), at = at != NULL ? at + 1 : NULL) {
        if (strncmp(at, kernel, length) == 0 && (at[length] == ',' || at[length] == '\0')) {
            bt_log_warn("CUDA-WITHOUT", "the %s kernels are left out, as BATON_CUDA_WITHOUT says", kernel);
            return true;
        }
    }
    return false;
}

static bt_err
choose(bt_cuda *cuda, const bt_device_options *options, bt_why *why)
{
    struct cudaDeviceProp p;
    struct cudaFuncAttributes found;
    cudaError_t error;
    bt_err err;

    if ((err = find_device(options, why)) != BT_OK) {
        return err;
    }
    cuda->index = (int)options->index;
    if ((error = cudaSetDevice(cuda->index)) != cudaSuccess ||
        (error = cudaGetDeviceProperties(&p, cuda->index)) != cudaSuccess) {
        return bt_fail(why, error == cudaErrorMemoryAllocation ? BT_ERR_NO_MEMORY : BT_ERR_DEVICE,
                       "device cuda:%d: cannot be opened: %s%s", cuda->index, cudaGetErrorString(error),
                       error == cudaErrorMemoryAllocation ? " (do others fill it?)" : "");
    }
    if (p.major < 8) {
        return bt_fail(why, BT_ERR_UNSUPPORTED, "device cuda:%d: %s has compute capability %d.%d, 8.0 is needed",
                       cuda->index, p.name, p.major, p.minor);
    }
    if (cudaFuncGetAttributes(&found, some_code) != cudaSuccess) {
        cudaGetLastError();
        return bt_fail(why, BT_ERR_UNSUPPORTED,
                       "device cuda:%d: this program has no code for %s (cmake -DBT_CUDA_ARCHITECTURES=%d%d-real)",
                       cuda->index, p.name, p.major, p.minor);
    }
    cuda->sms = p.multiProcessorCount;
    cuda->shared_max = p.sharedMemPerBlockOptin;
    cuda->patience = PATIENCE;
    cuda->early_launch = p.major >= 9;
    cuda->few = cuda->early_launch && !left_out("few");
    cuda->decode = cuda->early_launch && !left_out("decode");
    cuda->prompts = !left_out("prompt");
#ifdef BT_CUDA_WARPGROUPS
    cuda->wide = p.major == 9 && !left_out("wide");
    cuda->gemm = bt_cuda_has_prompt() && !left_out("gemm");
#endif
    snprintf(cuda->name, sizeof cuda->name, "cuda:%d %.80s", cuda->index, p.name);
    if ((error = open_streams(cuda)) != cudaSuccess) {
        return bt_fail(why, BT_ERR_DEVICE, "%s: %s", cuda->name, cudaGetErrorString(error));
    }
    return BT_OK;
}

bt_err
bt_cuda_open(bt_device **out, const bt_device_options *options, bt_why *why)
{
    bt_cuda *cuda = (bt_cuda *)calloc(1, sizeof *cuda);
    bt_err err;

    if (cuda == NULL) {
        return bt_fail(why, BT_ERR_NO_MEMORY, "device: out of memory");
    }
    cuda->head = (bt_device_head){&cuda_class, &ops_cuda};
    if ((err = choose(cuda, options, why)) != BT_OK) {
        cuda_close((bt_device *)(void *)cuda);
        return err;
    }
    cuda->cublas = bt_cublas_open(cuda);
    *out = (bt_device *)(void *)cuda;
    return BT_OK;
}
