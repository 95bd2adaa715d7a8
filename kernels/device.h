// What operations run on: a processor with its threads (or streams) and scratch. One engine opens one device.
//
// Calls on a device come from one thread at a time, its owner. On the CPU the owner is thread 0 of the pool.
#pragma once

#include "common/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct bt_ops bt_ops;
typedef struct bt_device bt_device;

typedef enum { BT_DEVICE_CPU, BT_DEVICE_CUDA } bt_device_kind;

typedef struct {
    bt_device_kind kind;
    uint32_t index; // which GPU
    bool
        float_activations; // CUDA: 16-bit weights meet f32 activations, as on the CPU: its bits, slowly. Else see bt_device_rounds
    uint32_t threads;     // CPU: 0 = all cores of this process's affinity mask
    uint32_t break_after; // CPU, for tests: it is broken after so many steps; 0 = never
    const char *isa; // CPU: "auto", "ref", "avx2", "avx512", "amx"; NULL = auto. What the machine lacks is an error
} bt_device_options;

// "cpu" or "cuda:N" ("cuda" = cuda:0) into kind and index; BT_ERR_INVALID says what was expected.
bt_err bt_device_parse(bt_device_options *options, const char *text, bt_why *why);

bt_err bt_device_open(bt_device **out, const bt_device_options *options, bt_why *why);
void bt_device_close(bt_device *device);

// Are activations that meet 16-bit weights rounded to 16 bits, so that linear layers with such weights give other numbers than the CPU's?
// What options ask for, and what a device does: of GPUs that have no way to do it (it takes compute capability 9.0) the second is false.
static inline bool
bt_device_would_round(const bt_device_options *options)
{
    return options->kind == BT_DEVICE_CUDA && !options->float_activations;
}
bool bt_device_rounds(const bt_device *device);

const bt_ops *bt_device_ops(const bt_device *device);
uint32_t bt_device_threads(const bt_device *device);
const char *bt_device_isa(const bt_device *device); // the path in use, as in "avx512"

// The largest shapes that operations will be called with; scratch is allocated here, never later.
typedef struct {
    uint32_t tokens;     // of one step
    uint32_t sequences;  // of one step; 0 = as many as tokens
    uint32_t logit_rows; // that one step may want; 0 = as many as tokens
    uint32_t cols;       // K of any linear layer
    uint32_t rows;       // outputs of any one linear call (all its parts)
    uint32_t heads, kv_heads, head_dim;
    uint32_t context; // keys of one sequence
    uint32_t block_tokens;
    uint32_t layers; // how many times a step calls its operations; looked at by bt_device_foresee alone
} bt_device_limits;

bt_err bt_device_reserve(bt_device *device, const bt_device_limits *limits, bt_why *why);
size_t bt_device_scratch_bytes(const bt_device *device);

// What a device takes for itself, told without one: no GPU has to be there, only a build that knows its kind. BT_ERR_UNSUPPORTED, as of
// bt_device_reserve: it has no kernel for such shapes.
typedef struct {
    const bt_ops *ops; // what needs no device: weight_bytes and the packers
    size_t scratch;    // by bt_device_reserve with these limits
    size_t graphs;     // steps that it will have recorded, at most: taken bit by bit when a step's shape is new
    size_t granule;    // bt_device_alloc takes multiples of so many bytes
    uint32_t threads;
    bool host;
} bt_device_needs;
bt_err bt_device_foresee(bt_device_needs *out, const bt_device_options *options, const bt_device_limits *limits,
                         bt_why *why);

// Runs `run(arg, thread, threads)` on every thread of the pool and returns when all have (loading, repacking, sampling).
void bt_device_parallel(bt_device *device, void (*run)(void *arg, uint32_t thread, uint32_t threads), void *arg);

// Is the memory of operations this process's own?
bool bt_device_is_host(const bt_device *device);
// Memory that operations read and write: this process's own on the CPU (whoever calls may look into it), the GPU's on CUDA.
// Zeroed, in whole pages, on CUDA of 2 MiB and at such a boundary; NULL when there is not so much.
void *bt_device_alloc(bt_device *device, size_t bytes);
void bt_device_free(bt_device *device, void *memory, size_t bytes); // NULL is fine
// Copies into and out of it, in order with the operations; both return when the caller's memory is its own again.
bt_err bt_device_write(bt_device *device, void *to, const void *from, size_t bytes);
bt_err bt_device_read(bt_device *device, void *to, const void *from, size_t bytes);
// Host memory that is copied to and from the device often: copies of it then run at the bus's rate and beside steps (kernels/copier.h).
// `memory` is whole pages. Any thread; unpin before it is given back. On the CPU they do nothing.
bt_err bt_device_pin(bt_device *device, void *memory, size_t bytes, bt_why *why);
void bt_device_unpin(bt_device *device, void *memory, size_t bytes); // NULL, and what was not pinned, is fine

// Rows that lie alike in two memories: the first at `at`, the others `stride` apart.
typedef struct {
    size_t at;
    uint32_t rows;
} bt_device_rows;

// Of a step, between its operations: copies rows of `bytes` out of the device's memory into the program's (pinned, or it is slow),
// behind what was asked before and beside what is asked after. The bytes are there when the step's `end` has returned. The step was begun
// as `plain` (kernels/ops.h).
bt_err bt_device_read_beside(bt_device *device, uint8_t *to, const uint8_t *from, const bt_device_rows *runs,
                             uint32_t run_count, size_t bytes, size_t stride);
// True once a call has failed in a way that leaves the device of no use to this process: every later call fails too, and what remains is
// to leave. On the CPU only where `break_after` asks for it.
bool bt_device_is_broken(const bt_device *device);
// Bytes that can still be taken; SIZE_MAX where the device cannot say (the CPU: see the engine's plan).
size_t bt_device_available(const bt_device *device);

// Memory of bt_device_alloc, of 2 MiB or more, for other processes of this host, which read it (CUDA IPC). Any thread. The memory stays
// until all who opened it have closed it or ended, also when its owner is killed (tests/gpu/test_cuda_copy).
typedef struct {
    uint8_t handle[64];
    uint8_t uuid[16]; // of the GPU
} bt_device_shared;
// BT_ERR_UNSUPPORTED: this device has nothing of the kind.
bt_err bt_device_share(bt_device *device, void *memory, bt_device_shared *out, bt_why *why);
// In another process than the owner's: where its memory lies in ours; `same`: it is memory of this very GPU. BT_ERR_UNSUPPORTED says which GPU
// it is and why it cannot be read from here; BT_ERR_PEER: its owner is gone. Close with bt_device_close_shared when no copy reads it.
bt_err bt_device_open_shared(bt_device *device, const bt_device_shared *shared, const void **memory, bool *same,
                             bt_why *why);
void bt_device_close_shared(bt_device *device, const void *memory); // NULL is fine

// Copies from memory of `other`, a GPU of this process too, go straight to this one from now on, and not by way of the host.
// BT_ERR_UNSUPPORTED says which two cannot.
bt_err bt_device_reach(bt_device *device, bt_device *other, bt_why *why);

#ifdef __cplusplus
}
#endif
