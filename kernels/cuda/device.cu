// A CUDA device: its life and its memory.
#include "kernels/cuda/cuda.cuh"

#include "kernels/cpu/ref/attention.h"
#include "kernels/cuda/row.cuh"

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PAGE ((size_t)2 << 20)    // of the device's memory
#define PATIENCE (30 * BT_SECOND) // no layer, and no step of few tokens, takes as long, also where many share the GPU

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

void
bt_cuda_lock_launch(bool lock)
{
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    int error = lock ? pthread_mutex_lock(&mutex) : pthread_mutex_unlock(&mutex);

    assert(error == 0);
    (void)error;
}

void
bt_cuda_mark(bt_cuda *cuda)
{
    if (cuda->tokens >= BT_CUDA_MARK_TOKENS && !cuda->recording && cuda->mark_count < BT_CUDA_MARKS_MAX &&
        cudaEventRecord(cuda->marks[cuda->mark_count], cuda->stream) == cudaSuccess) {
        cuda->mark_count++;
    }
}

// Has the step come forward since? Marks before `reached` had been.
static bool
comes_forward(const bt_cuda *cuda, uint32_t *reached)
{
    uint32_t before = *reached;

    while (*reached < cuda->mark_count && cudaEventQuery(cuda->marks[*reached]) == cudaSuccess) {
        (*reached)++;
    }
    return *reached > before;
}

bt_err
bt_cuda_settle_stream(bt_cuda *cuda, cudaStream_t stream, const char *what)
{
    bt_time end = bt_time_now() + cuda->patience;
    uint32_t reached = 0;
    cudaError_t error;

    if (cuda->hangs) {
        return BT_ERR_DEVICE;
    }
    while ((error = cudaStreamQuery(stream)) == cudaErrorNotReady) {
        if (bt_time_now() > end && comes_forward(cuda, &reached)) {
            end = bt_time_now() + cuda->patience;
        } else if (bt_time_now() > end) {
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
    cudaFreeHost(cuda->step.drawn);
    cuda->scratch = NULL;
    cuda->step.host = NULL;
    cuda->step.drawn = NULL;
    cuda->scratch_bytes = 0;
}

static void
cuda_close(bt_device *device)
{
    bt_cuda *cuda = bt_cuda_of(device);

    if (cuda->stream != NULL) { // before it nothing was opened
        cudaSetDevice(cuda->index);
        bt_cuda_drop_recording(cuda);
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
    for (uint32_t i = 0; i < BT_CUDA_MARKS_MAX && cuda->marks[i] != NULL; i++) {
        cudaEventDestroy(cuda->marks[i]);
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

// In our stream and to its end: cudaMemset would clear whenever the default stream comes to it, after what was written meanwhile (seen as
// weights of zeros where two processes shared the GPU).
static bool
clear(bt_cuda *cuda, void *memory, size_t bytes)
{
    return cudaMemsetAsync(memory, 0, bytes, cuda->stream) == cudaSuccess &&
           bt_cuda_settle(cuda, "clear memory") == BT_OK;
}

// A model that there is no kernel for is refused before it is loaded, and not by its first step.
static bt_err
check_shapes(const bt_device_limits *l, bt_why *why)
{
    uint32_t group = l->kv_heads != 0 ? l->heads / l->kv_heads : 0;

    if (group > BT_CUDA_GROUP_MAX || l->head_dim > BT_CUDA_HEAD_DIM_MAX) {
        return bt_fail(why, BT_ERR_UNSUPPORTED,
                       "device cuda: attention takes up to %u query heads that share a KV head, of up to %u numbers: "
                       "this model has %u of %u",
                       BT_CUDA_GROUP_MAX, BT_CUDA_HEAD_DIM_MAX, group, l->head_dim);
    }
    return l->cols <= BT_ROW_COLS_MAX
               ? BT_OK
               : bt_fail(why, BT_ERR_UNSUPPORTED,
                         "device cuda: linear layers take up to %u columns: this model has one of %u", BT_ROW_COLS_MAX,
                         l->cols);
}

static bt_err
cuda_reserve(bt_device *device, const bt_device_limits *limits, bt_why *why)
{
    bt_cuda *cuda = bt_cuda_of(device);
    bt_err err = check_shapes(limits, why);

    if (err != BT_OK) {
        return err;
    }
    cudaSetDevice(cuda->index);
    free_scratch(cuda);
    cuda->limits = *limits;
    cuda->scratch_bytes = bt_cuda_lay_out(cuda, NULL);
    if (cudaMalloc((void **)&cuda->scratch, cuda->scratch_bytes) != cudaSuccess ||
        cudaMallocHost((void **)&cuda->step.host, cuda->step.bytes) != cudaSuccess ||
        cudaMallocHost((void **)&cuda->step.drawn, bt_cuda_rows_max(cuda) * 4) != cudaSuccess) {
        double wanted = (double)cuda->scratch_bytes;

        cudaGetLastError();
        free_scratch(cuda);
        return bt_fail(why, BT_ERR_NO_MEMORY, "%s: cannot allocate %.1f MiB of scratch: %.1f MiB are free", cuda->name,
                       wanted / 0x1p20, (double)bt_device_available(device) / 0x1p20);
    }
    // What is read beyond the tokens of a call must be numbers.
    if (!clear(cuda, cuda->scratch, cuda->scratch_bytes)) {
        return bt_fail(why, BT_ERR_DEVICE, "%s: cannot clear memory", cuda->name);
    }
    bt_cuda_lay_out(cuda, cuda->scratch);
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

    bytes = ((bytes != 0 ? bytes : 1) + PAGE - 1) / PAGE * PAGE; // what is so large lies at such a boundary
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
    bt_err err;

    cudaSetDevice(cuda->index); // a thread that never did would open a context on the first GPU
    bt_cuda_drop_recording(cuda);
    err = cuda->broken == cudaSuccess ? bt_cuda_settle(cuda, "copy") : BT_ERR_DEVICE;
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
    .reach = bt_cuda_reach,
    .copier_open = bt_cuda_copier_open,
};

// A step's graph, measured (kernels/README.md): so many bytes of the device a kernel, and the operations of a step.
#define GRAPH_NODE_BYTES 1536u
#define GRAPH_NODES_LAYER 16u
#define GRAPH_NODES_STEP 16u

// Shapes of steps that write answers: tokens, splits by powers of two, drawn greedily or not. (None of an engine's leaves drawing out.)
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
    bt_err err = check_shapes(limits, why);
    bt_cuda *cuda;

    if (err != BT_OK) {
        return err;
    }
    cuda = (bt_cuda *)calloc(1, sizeof *cuda); // one that is nowhere: what it would take is counted
    if (cuda == NULL) {
        return bt_fail(why, BT_ERR_NO_MEMORY, "device: out of memory");
    }
    cuda->limits = *limits;
    *out = (bt_device_needs){};
    out->ops = &ops_cuda;
    out->scratch = bt_cuda_lay_out(cuda, NULL);
    free(cuda);
    out->graphs = graphs_most(limits) * (limits->layers * GRAPH_NODES_LAYER + GRAPH_NODES_STEP) * GRAPH_NODE_BYTES;
    out->granule = PAGE;
    out->threads = 1;
    return BT_OK;
}

static bt_err
open_streams(bt_cuda *cuda, bt_why *why)
{
    cudaError_t error = cudaStreamCreateWithFlags(&cuda->stream, cudaStreamNonBlocking);

    if (error == cudaSuccess) {
        error = cudaStreamCreateWithFlags(&cuda->beside, cudaStreamNonBlocking);
    }
    if (error == cudaSuccess) {
        error = cudaEventCreateWithFlags(&cuda->begun, cudaEventDisableTiming);
    }
    if (error == cudaSuccess) {
        error = cudaEventCreateWithFlags(&cuda->copied, cudaEventDisableTiming);
    }
    for (uint32_t i = 0; i < BT_CUDA_MARKS_MAX && error == cudaSuccess; i++) {
        error = cudaEventCreateWithFlags(&cuda->marks[i], cudaEventDisableTiming);
    }
    return error == cudaSuccess ? BT_OK : bt_fail(why, BT_ERR_DEVICE, "%s: %s", cuda->name, cudaGetErrorString(error));
}

bt_err
bt_cuda_open(bt_device **out, const bt_device_options *options, bt_why *why)
{
    bt_cuda *cuda = (bt_cuda *)calloc(1, sizeof *cuda);
    bt_cublas_loading loading = {};
    void *library;
    int driver = 0;
    bt_err err;

    if (cuda == NULL) {
        return bt_fail(why, BT_ERR_NO_MEMORY, "device: out of memory");
    }
    cuda->head = (bt_device_head){&cuda_class, &ops_cuda, false};
    cuda->patience = PATIENCE;
    cudaDriverGetVersion(&driver); // loads the driver, which would else wait for the other library
    bt_cublas_load_begin(&loading);
    err = bt_cuda_choose(cuda, options, why);
    err = err == BT_OK ? open_streams(cuda, why) : err;
    library = bt_cublas_load_end(&loading);
    if (err != BT_OK) {
        if (library != NULL) {
            dlclose(library);
        }
        cuda_close((bt_device *)(void *)cuda);
        return err;
    }
    cuda->cublas = bt_cublas_open(cuda, library);
    *out = (bt_device *)(void *)cuda;
    return BT_OK;
}
