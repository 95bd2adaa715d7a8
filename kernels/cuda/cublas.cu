// cuBLASLt's products, by dlopen: a program built with CUDA starts without it, and multiplies by itself.
//
// Its own first choice of an algorithm is often far from the best of the eight that it names (H200: 1024 x 4096, 2,048 tokens 26.5 us
// against 16.0; 28672 x 4096, 512 tokens 131 against 95), so all eight are run when a shape is met first: about 5 ms, once. The
// products of INT8 are exact: which one it is changes no bit.
#include "kernels/cuda/cuda.cuh"

#include <cublasLt.h>
#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define PLANS_MAX 512
#define PLACES 1024u
#define CANDIDATES 8
#define ROUNDS 2

typedef struct {
    bt_cublas_shape shape;
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulAlgo_t algo;
} plan;

struct bt_cublas {
    void *library;
    cublasLtHandle_t handle;
    bt_cuda *cuda;
    cudaStream_t stream; // to try algorithms in
    cudaEvent_t begin, end;
    plan plans[PLANS_MAX];
    uint16_t places[PLACES]; // where a shape was found last
    uint32_t count, oldest;  // of plans; who gives way when all places are taken
#define FUNCTION(name) decltype(&cublasLt##name) name
    FUNCTION(Create);
    FUNCTION(Destroy);
    FUNCTION(Matmul);
    FUNCTION(MatmulDescCreate);
    FUNCTION(MatmulDescDestroy);
    FUNCTION(MatmulDescSetAttribute);
    FUNCTION(MatrixLayoutCreate);
    FUNCTION(MatrixLayoutDestroy);
    FUNCTION(MatmulPreferenceCreate);
    FUNCTION(MatmulPreferenceDestroy);
    FUNCTION(MatmulPreferenceSetAttribute);
    FUNCTION(MatmulAlgoGetHeuristic);
#undef FUNCTION
};

static bool
find_functions(bt_cublas *b)
{
#define FIND(name)                                                                                                     \
    if ((b->name = (decltype(&cublasLt##name))dlsym(b->library, "cublasLt" #name)) == NULL) {                          \
        return false;                                                                                                  \
    }
    FIND(Create)
    FIND(Destroy)
    FIND(Matmul)
    FIND(MatmulDescCreate)
    FIND(MatmulDescDestroy)
    FIND(MatmulDescSetAttribute)
    FIND(MatrixLayoutCreate)
    FIND(MatrixLayoutDestroy)
    FIND(MatmulPreferenceCreate)
    FIND(MatmulPreferenceDestroy)
    FIND(MatmulPreferenceSetAttribute)
    FIND(MatmulAlgoGetHeuristic)
#undef FIND
    return true;
}

// Also what was only half made.
static void
drop(bt_cublas *b, plan *p)
{
    cublasLtMatrixLayout_t layouts[] = {p->a, p->b, p->d};

    for (int i = 0; i < 3; i++) {
        if (layouts[i] != NULL) {
            b->MatrixLayoutDestroy(layouts[i]);
        }
    }
    if (p->operation != NULL) {
        b->MatmulDescDestroy(p->operation);
    }
}

static void *
load_library(void *none)
{
    void *library = dlopen("libcublasLt.so.13", RTLD_NOW | RTLD_LOCAL);

    (void)none;
    return library != NULL ? library : dlopen("libcublasLt.so.12", RTLD_NOW | RTLD_LOCAL);
}

void
bt_cublas_load_begin(bt_cublas_loading *loading)
{
    loading->begun = pthread_create(&loading->thread, NULL, load_library, NULL) == 0;
}

void *
bt_cublas_load_end(bt_cublas_loading *loading)
{
    void *library = NULL;

    if (!loading->begun) {
        return load_library(NULL);
    }
    loading->begun = false;
    return pthread_join(loading->thread, &library) == 0 ? library : NULL;
}

bt_cublas *
bt_cublas_open(bt_cuda *cuda, void *library)
{
    bt_cublas *b = (bt_cublas *)calloc(1, sizeof *b);

    if (b == NULL) {
        return NULL;
    }
    b->library = library;
    b->cuda = cuda;
    if (b->library == NULL || !find_functions(b) || b->Create(&b->handle) != CUBLAS_STATUS_SUCCESS ||
        cudaStreamCreateWithFlags(&b->stream, cudaStreamNonBlocking) != cudaSuccess ||
        cudaEventCreate(&b->begin) != cudaSuccess || cudaEventCreate(&b->end) != cudaSuccess) {
        cudaGetLastError();
        bt_log_warn("CUDA-CUBLAS", "%s: no cuBLASLt here (libcublasLt.so.13): long prompts are read more slowly",
                    cuda->name);
        bt_cublas_close(b);
        return NULL;
    }
    return b;
}

void
bt_cublas_close(bt_cublas *b)
{
    if (b == NULL) {
        return;
    }
    for (uint32_t i = 0; i < b->count; i++) {
        drop(b, &b->plans[i]);
    }
    if (b->begin != NULL) {
        cudaEventDestroy(b->begin);
    }
    if (b->end != NULL) {
        cudaEventDestroy(b->end);
    }
    if (b->stream != NULL) {
        cudaStreamDestroy(b->stream);
    }
    if (b->handle != NULL) {
        b->Destroy(b->handle);
    }
    if (b->library != NULL) {
        dlclose(b->library);
    }
    free(b);
}

static bool
run(bt_cublas *b, plan *p, const cublasLtMatmulAlgo_t *algo, const void *codes, const void *a8, void *out,
    cudaStream_t stream)
{
    const int32_t one = 1, zero = 0;
    const float one_float = 1; // 0 has the same bits
    const void *alpha = p->shape.floats ? (const void *)&one_float : &one;

    return b->Matmul(b->handle, p->operation, alpha, codes, p->a, a8, p->b, &zero, out, p->d, out, p->d, algo,
                     b->cuda->workspace, BT_CUBLAS_WORKSPACE, stream) == CUBLAS_STATUS_SUCCESS;
}

// Milliseconds of one product into scratch; INFINITY where it cannot be.
static float
time_of(bt_cublas *b, plan *p, const cublasLtMatmulAlgo_t *algo, const void *codes)
{
    float ms;

    if (cudaEventRecord(b->begin, b->stream) != cudaSuccess ||
        !run(b, p, algo, codes, b->cuda->a8, b->cuda->s32, b->stream) ||
        cudaEventRecord(b->end, b->stream) != cudaSuccess ||
        bt_cuda_settle_stream(b->cuda, b->stream, "cuBLASLt, tried") != BT_OK ||
        cudaEventElapsedTime(&ms, b->begin, b->end) != cudaSuccess) {
        cudaGetLastError();
        return INFINITY;
    }
    return ms;
}

// The fastest of those found, with these weights and whatever activations lie there. The device's stream may be being recorded; if not, what
// is queued there, which may use the same scratch, is waited for.
static int
fastest(bt_cublas *b, plan *p, const cublasLtMatmulHeuristicResult_t *found, int count, const void *codes)
{
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    float best = INFINITY;
    int chosen = 0;

    cudaThreadExchangeStreamCaptureMode(&mode);
    if (cudaStreamIsCapturing(b->cuda->stream, &status) == cudaSuccess && status == cudaStreamCaptureStatusNone) {
        bt_cuda_settle(b->cuda, "cuBLASLt, before it is tried");
    }
    for (int round = -1; round < ROUNDS; round++) { // the first warms up
        for (int i = 0; i < count; i++) {
            float ms = time_of(b, p, &found[i].algo, codes);

            if (round >= 0 && ms < best) {
                best = ms;
                chosen = i;
            }
        }
    }
    cudaThreadExchangeStreamCaptureMode(&mode);
    return chosen;
}

// Is there scratch enough to try this shape?
static bool
can_try(const bt_cublas *b, const bt_cublas_shape *s)
{
    const bt_cuda *cuda = b->cuda;

    return s->tokens <= cuda->s32_tokens && s->a8_stride <= cuda->a8_stride &&
           s->out_stride <= 4 * (size_t)cuda->limits.cols;
}

static bool
choose(bt_cublas *b, plan *p, const void *codes)
{
    cublasLtMatmulHeuristicResult_t found[CANDIDATES];
    cublasLtMatmulPreference_t preference;
    size_t workspace = BT_CUBLAS_WORKSPACE;
    int count = 0, best = 0;
    bool good;

    if (b->MatmulPreferenceCreate(&preference) != CUBLAS_STATUS_SUCCESS) {
        return false;
    }
    good = b->MatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                           sizeof workspace) == CUBLAS_STATUS_SUCCESS &&
           b->MatmulAlgoGetHeuristic(b->handle, p->operation, p->a, p->b, p->d, p->d, preference, CANDIDATES, found,
                                     &count) == CUBLAS_STATUS_SUCCESS &&
           count >= 1;
    b->MatmulPreferenceDestroy(preference);
    if (good && count > 1 && codes != NULL && can_try(b, &p->shape)) {
        best = fastest(b, p, found, count, codes);
    }
    if (good) {
        p->algo = found[best].algo;
    }
    return good;
}

static bool
make(bt_cublas *b, plan *p, const void *codes)
{
    const bt_cublas_shape *s = &p->shape;
    cublasOperation_t transpose = CUBLAS_OP_T;
    cudaDataType_t in = s->floats ? CUDA_R_16BF : CUDA_R_8I, sums = s->floats ? CUDA_R_32F : CUDA_R_32I;

    return b->MatmulDescCreate(&p->operation, s->floats ? CUBLAS_COMPUTE_32F : CUBLAS_COMPUTE_32I, sums) ==
               CUBLAS_STATUS_SUCCESS &&
           b->MatmulDescSetAttribute(p->operation, CUBLASLT_MATMUL_DESC_TRANSA, &transpose, sizeof transpose) ==
               CUBLAS_STATUS_SUCCESS &&
           b->MatrixLayoutCreate(&p->a, in, s->cols, s->rows, (int64_t)s->codes_stride) == CUBLAS_STATUS_SUCCESS &&
           b->MatrixLayoutCreate(&p->b, in, s->cols, s->tokens, (int64_t)s->a8_stride) == CUBLAS_STATUS_SUCCESS &&
           b->MatrixLayoutCreate(&p->d, sums, s->rows, s->tokens, (int64_t)s->out_stride) == CUBLAS_STATUS_SUCCESS &&
           choose(b, p, codes);
}

static uint16_t *
place_of(bt_cublas *b, const bt_cublas_shape *s)
{
    uint64_t mixed = ((s->rows * 31 + s->cols) * 31 + s->tokens / 64) * 31 + s->out_stride;

    return &b->places[(mixed * 0x9e3779b97f4a7c15u) >> 54];
}

static plan *
find(bt_cublas *b, const bt_cublas_shape *shape)
{
    uint16_t *place = place_of(b, shape);

    if (*place < b->count && memcmp(&b->plans[*place].shape, shape, sizeof *shape) == 0) {
        return &b->plans[*place];
    }
    for (uint32_t i = 0; i < b->count; i++) {
        if (memcmp(&b->plans[i].shape, shape, sizeof *shape) == 0) {
            *place = (uint16_t)i;
            return &b->plans[i];
        }
    }
    return NULL;
}

// The plan of a shape, made when it is met first, by trying where `codes` are given; NULL where cuBLASLt has nothing for it.
static plan *
plan_of(bt_cublas *b, const bt_cublas_shape *shape, const void *codes)
{
    plan made = {}, *known = find(b, shape);
    uint32_t at;

    if (known != NULL) {
        return known;
    }
    made.shape = *shape;
    if (!make(b, &made, codes)) {
        drop(b, &made);
        return NULL;
    }
    at = b->count < PLANS_MAX ? b->count++ : b->oldest++ % PLANS_MAX;
    if (b->plans[at].operation != NULL) {
        drop(b, &b->plans[at]);
    }
    b->plans[at] = made;
    return &b->plans[at];
}

bool
bt_cublas_has(bt_cublas *b, const bt_cublas_shape *shape, const void *codes)
{
    return plan_of(b, shape, codes) != NULL;
}

bt_err
bt_cublas_product(bt_cublas *b, const bt_cublas_shape *shape, const void *codes, const void *a8, void *out)
{
    plan *p = plan_of(b, shape, NULL);

    if (p == NULL || !run(b, p, &p->algo, codes, a8, out, b->cuda->stream)) {
        bt_log_error("CUDA-CUBLAS", "%s: cuBLASLt failed on %llu x %llu x %llu", b->cuda->name,
                     (unsigned long long)shape->rows, (unsigned long long)shape->cols,
                     (unsigned long long)shape->tokens);
        return BT_ERR_DEVICE;
    }
    return BT_OK;
}
