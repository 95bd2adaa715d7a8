// Which GPU it is, whether this program can use it, and which kernels it gets.
#include "kernels/cuda/cuda.cuh"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HOPPER_SHARED ((size_t)227 << 10) // of a block of threads

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

// Kernels that BATON_CUDA_WITHOUT=few,wide leaves out, for finding out which one is at fault. All ways give the same bits.
enum { FEW, WIDE, DEEP, GEMM, DECODE, SINGLE, STREAM, MEET, PROMPT, SQUAD, KERNELS };
static const char *const kernels[KERNELS] = {"few",    "wide",   "deep", "gemm",   "decode",
                                             "single", "stream", "meet", "prompt", "squad"};

static bt_err
no_kernel(const char *name, size_t length, bt_why *why)
{
    char all[128] = "";

    for (const char *kernel : kernels) {
        snprintf(all + strlen(all), sizeof all - strlen(all), "%s%s", all[0] != 0 ? ", " : "", kernel);
    }
    return bt_fail(why, BT_ERR_INVALID, "BATON_CUDA_WITHOUT: expected some of %s, not '%.*s'", all, (int)length, name);
}

// A bit for each. A name that is misspelt would leave nothing out, and whoever looks for a fault would be led astray.
static bt_err
read_without(uint32_t *without, bt_why *why)
{
    const char *at = getenv("BATON_CUDA_WITHOUT");

    *without = 0;
    while (at != NULL && *at != 0) {
        size_t length = strcspn(at, ",");
        uint32_t kernel = 0;

        while (kernel < KERNELS && (strlen(kernels[kernel]) != length || memcmp(at, kernels[kernel], length) != 0)) {
            kernel++;
        }
        if (kernel == KERNELS) {
            return no_kernel(at, length, why);
        }
        *without |= 1u << kernel;
        at += length + (at[length] == ',');
    }
    return BT_OK;
}

static bool
left_out(uint32_t without, uint32_t kernel)
{
    if ((without >> kernel & 1) != 0) {
        bt_log_warn("CUDA-WITHOUT", "the %s kernels are left out, as BATON_CUDA_WITHOUT says", kernels[kernel]);
    }
    return (without >> kernel & 1) != 0;
}

// ---- as which GPU it is used ----

// BATON_CUDA_AS=8.9: kernels and their sizes are chosen as on a GPU of that compute capability, which this GPU has at least. 0: not said.
static bt_err
read_as(int *as, bt_why *why)
{
    const char *text = getenv("BATON_CUDA_AS");
    int major = 0, minor = 0, end = 0;

    *as = 0;
    if (text == NULL || *text == 0) {
        return BT_OK;
    }
    if (sscanf(text, "%2d.%1d%n", &major, &minor, &end) != 2 || text[end] != 0 || major < 8) {
        return bt_fail(why, BT_ERR_INVALID,
                       "BATON_CUDA_AS: expected a compute capability from 8.0 on, as in 8.9, not '%s'", text);
    }
    *as = major * 10 + minor;
    return BT_OK;
}

// BATON_CUDA_PATIENCE=600: so many seconds without an answer, where it is said. Under a debugger a kernel stands still, and under
// compute-sanitizer it takes a hundred times as long.
static bt_err
read_patience(bt_time *patience, bt_why *why)
{
    const char *text = getenv("BATON_CUDA_PATIENCE");
    unsigned seconds = 0;
    int end = 0;

    if (text == NULL || *text == 0) {
        return BT_OK;
    }
    if (sscanf(text, "%5u%n", &seconds, &end) != 1 || text[end] != 0 || text[0] < '0' || seconds == 0) {
        return bt_fail(why, BT_ERR_INVALID, "BATON_CUDA_PATIENCE: expected seconds, 1 to 99999, not '%s'", text);
    }
    *patience = seconds * (bt_time)BT_SECOND;
    return BT_OK;
}

// Bytes of shared memory that a block of threads may ask for where the compute capability is `as`; the least of all where that is not known.
// (12.0 knows programmatic dependence, as 9.0 does, and gives 99 KiB.)
static size_t
shared_of(int as)
{
    return as == 80 || as == 87 ? (size_t)163 << 10 : as >= 90 && as < 120 ? HOPPER_SHARED : BT_CUDA_SHARED_LEAST;
}

// What there is code for: this GPU, or an older one, whose PTX the driver translated. Such code is that of the older GPU in everything:
// kernels of newer ones are empty, and none waits for the one before it, so that none may be launched early. 0: there is no code.
static int
code_for(void)
{
    struct cudaFuncAttributes found;

    if (cudaFuncGetAttributes(&found, some_code) != cudaSuccess) {
        cudaGetLastError();
        return 0;
    }
    return found.ptxVersion;
}

static bt_err
refuse_device(const bt_cuda *cuda, const struct cudaDeviceProp *p, int code, int as, bt_why *why)
{
    if (p->major < 8) {
        return bt_fail(why, BT_ERR_UNSUPPORTED, "device cuda:%d: %s has compute capability %d.%d, 8.0 is needed",
                       cuda->index, p->name, p->major, p->minor);
    }
    if (as > p->major * 10 + p->minor) {
        return bt_fail(why, BT_ERR_INVALID,
                       "BATON_CUDA_AS: device cuda:%d has compute capability %d.%d, less than %d.%d", cuda->index,
                       p->major, p->minor, as / 10, as % 10);
    }
    return code != 0
               ? BT_OK
               : bt_fail(why, BT_ERR_UNSUPPORTED,
                         "device cuda:%d: this program has no code for %s (cmake -DBT_CUDA_ARCHITECTURES=%d%d%s-real)",
                         cuda->index, p->name, p->major, p->minor, p->major == 9 ? "a" : "");
}

static void
choose_kernels(bt_cuda *cuda, const bt_device_options *options, int capability, uint32_t without)
{
    bool roomy;

    cuda->early_launch = capability >= 90;
    roomy = cuda->early_launch && cuda->shared_max >= HOPPER_SHARED;
    cuda->few = roomy && !left_out(without, FEW);
    cuda->decode = roomy && !left_out(without, DECODE);
    cuda->single = roomy && !left_out(without, SINGLE);
    cuda->streams = roomy && !left_out(without, STREAM);
    cuda->meets = cuda->streams && !left_out(without, MEET);
    cuda->prompts = !left_out(without, PROMPT);
#ifdef BT_CUDA_WARPGROUPS
    if (roomy && bt_cuda_has_prompt()) {
        cuda->wide = !left_out(without, WIDE);
        cuda->deep = !left_out(without, DEEP);
        cuda->gemm = !left_out(without, GEMM);
        cuda->squad = cuda->prompts && !left_out(without, SQUAD);
        cuda->head.rounds = bt_device_would_round(options);
    }
#endif
    (void)options;
}

bt_err
bt_cuda_choose(bt_cuda *cuda, const bt_device_options *options, bt_why *why)
{
    struct cudaDeviceProp p;
    cudaError_t error;
    uint32_t without;
    int code, as, capability;
    bt_err err;

    if ((err = read_without(&without, why)) != BT_OK || (err = read_as(&as, why)) != BT_OK ||
        (err = read_patience(&cuda->patience, why)) != BT_OK || (err = find_device(options, why)) != BT_OK) {
        return err;
    }
    cuda->index = (int)options->index;
    if ((error = cudaSetDevice(cuda->index)) != cudaSuccess ||
        (error = cudaGetDeviceProperties(&p, cuda->index)) != cudaSuccess) {
        return bt_fail(why, error == cudaErrorMemoryAllocation ? BT_ERR_NO_MEMORY : BT_ERR_DEVICE,
                       "device cuda:%d: cannot be opened: %s%s", cuda->index, cudaGetErrorString(error),
                       error == cudaErrorMemoryAllocation ? " (do others fill it?)" : "");
    }
    code = code_for();
    if ((err = refuse_device(cuda, &p, code, as, why)) != BT_OK) {
        return err;
    }
    capability = as != 0 ? as : p.major * 10 + p.minor;
    cuda->sms = p.multiProcessorCount;
    cuda->shared_max = p.sharedMemPerBlockOptin;
    if (as != 0) {
        bt_log_warn("CUDA-AS", "kernels are chosen as for compute capability %d.%d, as BATON_CUDA_AS says", as / 10,
                    as % 10);
        cuda->shared_max = cuda->shared_max < shared_of(as) ? cuda->shared_max : shared_of(as);
    } else if (code / 10 < p.major) {
        bt_log_warn("CUDA-OLDER",
                    "this program's code is for compute capability %d.%d: on %s that is slow (cmake "
                    "-DBT_CUDA_ARCHITECTURES=%d%d%s-real)",
                    code / 10, code % 10, p.name, p.major, p.minor, p.major == 9 ? "a" : "");
    }
    choose_kernels(cuda, options, code < capability ? code : capability, without);
    snprintf(cuda->name, sizeof cuda->name, "cuda:%d %.80s", cuda->index, p.name);
    return BT_OK;
}
