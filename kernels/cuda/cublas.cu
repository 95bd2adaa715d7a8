// cuBLASLt's INT8 product, by dlopen: a program built with CUDA starts without it, and multiplies by itself.
#include "kernels/cuda/cuda.cuh"

#include <cublasLt.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#define PLANS_MAX 64

typedef struct {
    bt_cublas_shape shape;
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulAlgo_t algo;
} plan;

struct bt_cublas {
    void *library;
    cublasLtHandle_t handle;
    plan plans[PLANS_MAX];
    uint32_t count, oldest; // of plans; who gives way when all places are taken
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

bt_cublas *
bt_cublas_open(bt_cuda *cuda)
{
    bt_cublas *b = (bt_cublas *)calloc(1, sizeof *b);

    if (b == NULL) {
        return NULL;
    }
    b->library = dlopen("libcublasLt.so.13", RTLD_NOW | RTLD_LOCAL);
    b->library = b->library != NULL ? b->library : dlopen("libcublasLt.so.12", RTLD_NOW | RTLD_LOCAL);
    if (b->library == NULL || !find_functions(b) || b->Create(&b->handle) != CUBLAS_STATUS_SUCCESS) {
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
    size_t workspace = BT_CUBLAS_WORKSPACE;
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
    const bt_cublas_shape *s = &p->shape;
    cublasOperation_t transpose = CUBLAS_OP_T;

    return b->MatmulDescCreate(&p->operation, CUBLAS_COMPUTE_32I, CUDA_R_32I) == CUBLAS_STATUS_SUCCESS &&
           b->MatmulDescSetAttribute(p->operation, CUBLASLT_MATMUL_DESC_TRANSA, &transpose, sizeof transpose) ==
               CUBLAS_STATUS_SUCCESS &&
           b->MatrixLayoutCreate(&p->a, CUDA_R_8I, s->cols, s->rows, (int64_t)s->codes_stride) ==
               CUBLAS_STATUS_SUCCESS &&
           b->MatrixLayoutCreate(&p->b, CUDA_R_8I, s->cols, s->tokens, (int64_t)s->a8_stride) ==
               CUBLAS_STATUS_SUCCESS &&
           b->MatrixLayoutCreate(&p->d, CUDA_R_32I, s->rows, s->tokens, (int64_t)s->out_stride) ==
               CUBLAS_STATUS_SUCCESS &&
           choose(b, p);
}

// The plan of a shape, made when it is met first; NULL where cuBLASLt has nothing for it.
static plan *
plan_of(bt_cublas *b, const bt_cublas_shape *shape)
{
    plan made = {};
    uint32_t at;

    for (uint32_t i = 0; i < b->count; i++) {
        if (memcmp(&b->plans[i].shape, shape, sizeof *shape) == 0) {
            return &b->plans[i];
        }
    }
    made.shape = *shape;
    if (!make(b, &made)) {
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
bt_cublas_has(bt_cublas *b, const bt_cublas_shape *shape)
{
    return plan_of(b, shape) != NULL;
}

bt_err
bt_cublas_s8(bt_cublas *b, bt_cuda *cuda, const bt_cublas_shape *shape, const int8_t *codes, const int8_t *a8,
             int32_t *out)
{
    int32_t one = 1, zero = 0;
    plan *p = plan_of(b, shape);

    if (p == NULL || b->Matmul(b->handle, p->operation, &one, codes, p->a, a8, p->b, &zero, out, p->d, out, p->d,
                               &p->algo, cuda->workspace, BT_CUBLAS_WORKSPACE, cuda->stream) != CUBLAS_STATUS_SUCCESS) {
        bt_log_error("CUDA-CUBLAS", "%s: cuBLASLt failed on %llu x %llu x %llu", cuda->name,
                     (unsigned long long)shape->rows, (unsigned long long)shape->cols,
                     (unsigned long long)shape->tokens);
        return BT_ERR_DEVICE;
    }
    return BT_OK;
}
