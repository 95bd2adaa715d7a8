// cuBLASLt's INT8 product, by dlopen: a program built with CUDA starts without it, and multiplies by itself.
#include "kernels/cuda/cuda.cuh"

#include <cublasLt.h>
#include <dlfcn.h>
#include <stdlib.h>

#define PLANS_MAX 64
#define WORKSPACE ((size_t)32 << 20)

typedef struct {
    uint32_t rows, cols, tokens;
    size_t ld, a8_stride, out_stride;
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulAlgo_t algo;
} plan;

struct bt_cublas {
    void *library;
    cublasLtHandle_t handle;
    void *workspace;
    plan plans[PLANS_MAX];
    uint32_t count;
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

bt_cublas *
bt_cublas_open(bt_cuda *cuda)
{
    bt_cublas *b = (bt_cublas *)calloc(1, sizeof *b);

    if (b == NULL) {
        return NULL;
    }
    b->library = dlopen("libcublasLt.so.13", RTLD_NOW | RTLD_LOCAL);
    b->library = b->library != NULL ? b->library : dlopen("libcublasLt.so.12", RTLD_NOW | RTLD_LOCAL);
    if (b->library == NULL || !find_functions(b) || b->Create(&b->handle) != CUBLAS_STATUS_SUCCESS ||
        cudaMalloc(&b->workspace, WORKSPACE) != cudaSuccess) {
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
        b->MatrixLayoutDestroy(b->plans[i].a);
        b->MatrixLayoutDestroy(b->plans[i].b);
        b->MatrixLayoutDestroy(b->plans[i].d);
        b->MatmulDescDestroy(b->plans[i].operation);
    }
    cudaFree(b->workspace);
    if (b->handle != NULL) {
        b->Destroy(b->handle);
    }
    if (b->library != NULL) {
        dlclose(b->library);
    }
    free(b);
}

static bool
choose(bt_cublas *b, plan *p)
{
    cublasLtMatmulHeuristicResult_t found;
    cublasLtMatmulPreference_t preference;
    size_t workspace = WORKSPACE;
    int count = 0;
    bool good;

    if (b->MatmulPreferenceCreate(&preference) != CUBLAS_STATUS_SUCCESS) {
        return false;
    }
    good = b->MatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                           sizeof workspace) == CUBLAS_STATUS_SUCCESS &&
           b->MatmulAlgoGetHeuristic(b->handle, p->operation, p->a, p->b, p->d, p->d, preference, 1, &found, &count) ==
               CUBLAS_STATUS_SUCCESS &&
           count == 1;
    b->MatmulPreferenceDestroy(preference);
    if (good) {
        p->algo = found.algo;
    }
    return good;
}

static bool
make(bt_cublas *b, plan *p)
{
    cublasOperation_t transpose = CUBLAS_OP_T;

    return b->MatmulDescCreate(&p->operation, CUBLAS_COMPUTE_32I, CUDA_R_32I) == CUBLAS_STATUS_SUCCESS &&
           b->MatmulDescSetAttribute(p->operation, CUBLASLT_MATMUL_DESC_TRANSA, &transpose, sizeof transpose) ==
               CUBLAS_STATUS_SUCCESS &&
           b->MatrixLayoutCreate(&p->a, CUDA_R_8I, p->cols, p->rows, (int64_t)p->ld) == CUBLAS_STATUS_SUCCESS &&
           b->MatrixLayoutCreate(&p->b, CUDA_R_8I, p->cols, p->tokens, (int64_t)p->a8_stride) ==
               CUBLAS_STATUS_SUCCESS &&
           b->MatrixLayoutCreate(&p->d, CUDA_R_32I, p->rows, p->tokens, (int64_t)p->out_stride) ==
               CUBLAS_STATUS_SUCCESS &&
           choose(b, p);
}

// The plan of a shape, made when it is met first. Tokens are rounded up to 64 (rows beyond are there and harmless), so that shapes
// are few.
static plan *
plan_of(bt_cublas *b, const plan *want)
{
    for (uint32_t i = 0; i < b->count; i++) {
        plan *p = &b->plans[i];

        if (p->rows == want->rows && p->cols == want->cols && p->tokens == want->tokens && p->ld == want->ld &&
            p->a8_stride == want->a8_stride && p->out_stride == want->out_stride) {
            return p;
        }
    }
    if (b->count == PLANS_MAX) {
        return NULL;
    }
    b->plans[b->count] = *want;
    return make(b, &b->plans[b->count]) ? &b->plans[b->count++] : NULL;
}

bool
bt_cublas_s8(bt_cublas *b, bt_cuda *cuda, const int8_t *codes, uint32_t rows, uint32_t cols, size_t ld, uint32_t tokens,
             const int8_t *a8, size_t a8_stride, int32_t *out, size_t out_stride)
{
    plan want = {};
    int32_t one = 1, zero = 0;
    plan *p;

    want.rows = rows, want.cols = cols, want.ld = ld, want.a8_stride = a8_stride, want.out_stride = out_stride;
    want.tokens = (tokens + 63) / 64 * 64;
    p = plan_of(b, &want);
    return p != NULL && b->Matmul(b->handle, p->operation, &one, codes, p->a, a8, p->b, &zero, out, p->d, out, p->d,
                                  &p->algo, b->workspace, WORKSPACE, cuda->stream) == CUBLAS_STATUS_SUCCESS;
}
