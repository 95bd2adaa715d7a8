// The copier of a CUDA device: streams of its own, an event a batch, and the kernels of copier.cuh.
//
//     main   copy 1 | stamp 2 | fetch 4 ……… | copy of 5 | copy of 6     everything that has an order
//     side             | fetch 3 ……… |                  | sums of 5     every other fetch by kernel, so that one begins in the other's
//                                                                       last wave; what an engine has copied is summed here
//     notes  ·······················  who is about to sleep on `fd` will be woken from here: no copy waits for a call
#include "kernels/cuda/copier.cuh"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

typedef struct {
    cudaEvent_t done, moved;
} slot;

typedef struct {
    bt_copier_head head;
    bt_cuda *cuda;
    cudaStream_t main, side, notes;
    slot *slots;      // [batches]
    uint64_t *totals; // device [batches][blocks], zeros between batches
    uint32_t *counts; // the same: pieces that are done
    uint64_t begun, through, told, armed;
    uint64_t ordered, aside; // the last batch that is no fetch; the last one that ends in `side`
    int fd;
    cudaError_t broken; // sticky
} cuda_copier;

// ---- batches ----

static cuda_copier *
copier_of(const bt_copier *copier)
{
    return (cuda_copier *)(void *)(uintptr_t)copier;
}

static bt_err
check(cuda_copier *c, cudaError_t error, const char *what)
{
    if (error == cudaSuccess) {
        return BT_OK;
    }
    if (c->broken == cudaSuccess) {
        bt_log_error("CUDA-FAILED", "%s: copier: %s: %s", c->cuda->name, what, cudaGetErrorString(error));
    }
    c->broken = error;
    return BT_ERR_DEVICE;
}

static slot *
slot_of(cuda_copier *c, uint64_t ticket)
{
    return &c->slots[ticket % c->head.options.batches];
}

static bt_err
look(cuda_copier *c)
{
    while (c->broken == cudaSuccess && c->through < c->begun) {
        cudaError_t error = cudaEventQuery(slot_of(c, c->through + 1)->done);

        if (error == cudaErrorNotReady) {
            cudaGetLastError();
            return BT_OK;
        }
        if (check(c, error, "a batch") == BT_OK) {
            c->through++;
        }
    }
    return c->broken == cudaSuccess ? BT_OK : BT_ERR_DEVICE;
}

static bt_err
copier_through(bt_copier *copier, uint64_t *ticket)
{
    cuda_copier *c = copier_of(copier);
    uint64_t ended;
    bt_err err;

    cudaSetDevice(c->cuda->index);
    if (c->fd >= 0) {
        ssize_t got = read(c->fd, &ended, sizeof ended); // before looking, so that no end goes unseen

        (void)got;
    }
    if ((err = look(c)) == BT_OK) {
        *ticket = c->told = c->through;
    }
    return err;
}

static void CUDART_CB
wake(void *copier)
{
    const uint64_t one = 1;
    ssize_t put = write(((cuda_copier *)copier)->fd, &one, sizeof one);

    (void)put;
}

static bool
copier_arm(bt_copier *copier)
{
    cuda_copier *c = copier_of(copier);
    cudaError_t error;

    cudaSetDevice(c->cuda->index);
    if (look(c) != BT_OK || c->told != c->through) {
        return false;
    }
    if (c->fd < 0 || c->through == c->begun || c->armed > c->through) {
        return true;
    }
    error = cudaStreamWaitEvent(c->notes, slot_of(c, c->through + 1)->done, 0);
    if (error == cudaSuccess) {
        error = cudaLaunchHostFunc(c->notes, wake, c);
    }
    c->armed = c->through + 1;
    return check(c, error, "arm") == BT_OK;
}

static int
copier_fd(const bt_copier *copier)
{
    return copier_of(copier)->fd;
}

// A place for one more batch.
static bt_err
begin(cuda_copier *c, uint64_t *ticket)
{
    bt_err err = BT_OK;

    cudaSetDevice(c->cuda->index);
    if (c->broken != cudaSuccess) {
        return BT_ERR_DEVICE;
    }
    if (c->begun - c->through == c->head.options.batches && (err = look(c)) != BT_OK) {
        return err;
    }
    if (c->begun - c->through == c->head.options.batches) {
        return BT_ERR_BUSY;
    }
    *ticket = c->begun + 1;
    return BT_OK;
}

// `stream` goes on after what batch `ticket` has done.
static cudaError_t
go_after(cuda_copier *c, cudaStream_t stream, uint64_t ticket)
{
    return ticket > c->through ? cudaStreamWaitEvent(stream, slot_of(c, ticket)->done, 0) : cudaSuccess;
}

// A batch in `main`, behind everything.
static bt_err
begin_ordered(cuda_copier *c, uint64_t *ticket)
{
    bt_err err = begin(c, ticket);

    if (err == BT_OK) {
        c->ordered = *ticket;
        err = check(c, go_after(c, c->main, c->aside), "order");
    }
    return err;
}

// What was queued is batch `ticket`; it is done when `stream` is, and the batches before.
static bt_err
end(cuda_copier *c, cudaError_t error, uint64_t ticket, cudaStream_t stream, const char *what, uint64_t *out)
{
    if (error == cudaSuccess) {
        error = cudaEventRecord(slot_of(c, ticket)->done, stream);
    }
    if (check(c, error, what) != BT_OK) {
        return BT_ERR_DEVICE;
    }
    c->begun = ticket;
    *out = ticket;
    return BT_OK;
}

// ---- what batches do ----

static bt_err
copier_copy(bt_copier *copier, const bt_copier_run *runs, uint32_t count, uint64_t *out)
{
    cuda_copier *c = copier_of(copier);
    cudaError_t error = cudaSuccess;
    uint64_t ticket;
    bt_err err = begin_ordered(c, &ticket);

    for (uint32_t i = 0; i < count && err == BT_OK && error == cudaSuccess; i++) {
        error = cudaMemcpyAsync(runs[i].to, runs[i].from, runs[i].bytes, cudaMemcpyDefault, c->main);
    }
    return err != BT_OK ? err : end(c, error, ticket, c->main, "copy", out);
}

static bt_sum_args
args_for(cuda_copier *c, const bt_kv_layout *layout, uint64_t ticket)
{
    bt_sum_args a = {};
    size_t row = (size_t)(ticket % c->head.options.batches) * c->head.options.blocks;

    a.block_bytes = layout->block_bytes;
    a.trailer_offset = layout->trailer_offset;
    a.pieces = (uint32_t)((layout->trailer_offset / 16 + BT_SUM_PIECE_VECTORS - 1) / BT_SUM_PIECE_VECTORS);
    a.totals = c->totals + row;
    a.counts = c->counts + row;
    a.landed = bt_copier_landing(&c->head, ticket);
    return a;
}

static bt_err
copier_clear(bt_copier *copier, const bt_kv_layout *layout, void *pool, const uint32_t *blocks, uint32_t count,
             uint64_t *out)
{
    cuda_copier *c = copier_of(copier);
    uint64_t ticket;
    bt_sum_args a;
    bt_err err = begin_ordered(c, &ticket);

    if (err != BT_OK) {
        return err;
    }
    a = args_for(c, layout, ticket);
    for (uint32_t at = 0, n; at < count; at += n) {
        bt_sum_named which = {(uint8_t *)pool};

        n = count - at < BT_SUM_NAMED_MAX ? count - at : BT_SUM_NAMED_MAX;
        memcpy(which.blocks, blocks + at, n * sizeof *blocks);
        bt_sum_clear<<<1, n, 0, c->main>>>(a, which);
    }
    return end(c, cudaGetLastError(), ticket, c->main, "clear", out);
}

static bt_err
copier_stamp(bt_copier *copier, const bt_kv_layout *layout, void *pool, uint64_t epoch,
             const bt_copier_stamping *stampings, uint32_t count, uint64_t *out)
{
    cuda_copier *c = copier_of(copier);
    uint64_t ticket;
    bt_sum_args a;
    bt_err err = begin_ordered(c, &ticket);

    if (err != BT_OK) {
        return err;
    }
    a = args_for(c, layout, ticket);
    for (uint32_t at = 0, n; at < count; at += n, a.totals += n, a.counts += n) {
        bt_sum_named which = {(uint8_t *)pool, epoch};

        n = count - at < BT_SUM_NAMED_MAX ? count - at : BT_SUM_NAMED_MAX;
        for (uint32_t i = 0; i < n; i++) {
            which.blocks[i] = stampings[at + i].block;
            which.generations[i] = stampings[at + i].generation;
        }
        bt_sum_stamp<<<a.pieces * n, BT_SUM_THREADS, 0, c->main>>>(a, which);
    }
    return end(c, cudaGetLastError(), ticket, c->main, "stamp", out);
}

static cudaError_t
launch_kernel(cuda_copier *c, const bt_sum_args &a, const bt_sum_runs &r, uint32_t blocks, cudaStream_t stream)
{
    cudaError_t error = stream == c->side ? go_after(c, c->side, c->ordered) : cudaSuccess;

    if (error == cudaSuccess) {
        bt_sum_land<true><<<a.pieces * blocks, BT_SUM_THREADS, 0, stream>>>(a, r);
        error = cudaGetLastError();
    }
    return error;
}

// A copy of many blocks keeps no order within itself: the trailers come with the sums, after it.
static cudaError_t
launch_engine(cuda_copier *c, const bt_sum_args &a, bt_sum_runs *r, uint32_t blocks, cudaEvent_t moved)
{
    cudaError_t error = cudaSuccess;

    for (uint32_t i = 0; i < r->count && error == cudaSuccess; i++) {
        uint32_t end = i + 1 < r->count ? r->runs[i + 1].first : blocks;

        error = cudaMemcpyAsync(r->runs[i].to, r->runs[i].from, (end - r->runs[i].first) * a.block_bytes,
                                cudaMemcpyDefault, c->main);
        r->runs[i].from = r->runs[i].to;
    }
    if (error == cudaSuccess && (error = cudaEventRecord(moved, c->main)) == cudaSuccess) {
        error = cudaStreamWaitEvent(c->side, moved, 0);
    }
    if (error == cudaSuccess) {
        bt_sum_land<false><<<a.pieces * blocks, BT_SUM_THREADS, 0, c->side>>>(a, *r);
        error = cudaGetLastError();
    }
    return error;
}

static bt_sum_runs
runs_for(const bt_copier_blocks *runs, uint32_t run_count, uint32_t *blocks)
{
    bt_sum_runs r = {};

    *blocks = 0;
    for (uint32_t i = 0; i < run_count; i++) {
        const uint8_t *from = (const uint8_t *)runs[i].from;

        if (runs[i].count != 0) {
            r.runs[r.count++] = bt_sum_run{(uint8_t *)runs[i].to, from, from, *blocks};
            *blocks += runs[i].count;
        }
    }
    return r;
}

static bt_err
copier_fetch(bt_copier *copier, const bt_kv_layout *layout, const bt_copier_blocks *runs, uint32_t run_count,
             bt_copier_way way, uint64_t *out)
{
    cuda_copier *c = copier_of(copier);
    uint32_t blocks;
    bt_sum_runs r = runs_for(runs, run_count, &blocks);
    bool sums_alone = blocks == 0 || r.runs[0].to == NULL;
    cudaStream_t stream = c->main;
    cudaError_t error = cudaSuccess;
    uint64_t ticket;
    bt_sum_args a;
    bt_err err = sums_alone ? begin_ordered(c, &ticket) : begin(c, &ticket);

    if (err != BT_OK) {
        return err;
    }
    a = args_for(c, layout, ticket);
    if (sums_alone && blocks != 0) {
        bt_sum_land<false><<<a.pieces * blocks, BT_SUM_THREADS, 0, stream>>>(a, r);
        error = cudaGetLastError();
    } else if (!sums_alone && way == BT_COPIER_BY_KERNEL) {
        stream = ticket % 2 == 0 ? c->main : c->side;
        error = launch_kernel(c, a, r, blocks, stream);
    } else if (!sums_alone) {
        stream = c->side;
        error = launch_engine(c, a, &r, blocks, slot_of(c, ticket)->moved);
    }
    c->aside = stream == c->side ? ticket : c->aside;
    return end(c, error, ticket, stream, "fetch", out);
}

// ---- open and close ----

static void
copier_close(bt_copier *copier)
{
    cuda_copier *c = copier_of(copier);
    const cudaStream_t streams[] = {c->main, c->side, c->notes};

    if (c->cuda->hangs) {
        return; // as the device's own close
    }
    cudaSetDevice(c->cuda->index);
    for (cudaStream_t stream : streams) {
        if (stream != NULL) {
            cudaStreamSynchronize(stream);
            cudaStreamDestroy(stream);
        }
    }
    for (uint32_t i = 0; c->slots != NULL && i < c->head.options.batches; i++) {
        if (c->slots[i].done != NULL) {
            cudaEventDestroy(c->slots[i].done);
        }
        if (c->slots[i].moved != NULL) {
            cudaEventDestroy(c->slots[i].moved);
        }
    }
    cudaFree(c->totals);
    cudaFree(c->counts);
    cudaFreeHost(c->head.landed);
    cudaGetLastError();
    if (c->fd >= 0) {
        close(c->fd);
    }
    free(c->slots);
    free(c);
}

// Ahead of a step's kernels where both wait for a processor: these are short, and someone waits for them.
static cudaError_t
open_streams(cuda_copier *c)
{
    cudaStream_t *const streams[] = {&c->main, &c->side, &c->notes};
    int least, greatest;
    cudaError_t error = cudaDeviceGetStreamPriorityRange(&least, &greatest);

    for (cudaStream_t *stream : streams) {
        error = error != cudaSuccess ? error : cudaStreamCreateWithPriority(stream, cudaStreamNonBlocking, greatest);
    }
    for (uint32_t i = 0; i < c->head.options.batches && error == cudaSuccess; i++) {
        if ((error = cudaEventCreateWithFlags(&c->slots[i].done, cudaEventDisableTiming)) == cudaSuccess) {
            error = cudaEventCreateWithFlags(&c->slots[i].moved, cudaEventDisableTiming);
        }
    }
    return error;
}

static cudaError_t
open_memory(cuda_copier *c)
{
    size_t all = (size_t)c->head.options.batches * c->head.options.blocks;
    cudaError_t error;

    if ((error = cudaMallocHost((void **)&c->head.landed, all * sizeof *c->head.landed)) != cudaSuccess ||
        (error = cudaMalloc((void **)&c->totals, all * sizeof *c->totals)) != cudaSuccess ||
        (error = cudaMalloc((void **)&c->counts, all * sizeof *c->counts)) != cudaSuccess ||
        (error = cudaMemset(c->totals, 0, all * sizeof *c->totals)) != cudaSuccess) {
        return error;
    }
    error = cudaMemset(c->counts, 0, all * sizeof *c->counts);
    return error != cudaSuccess ? error : cudaStreamSynchronize(cudaStreamLegacy);
}

static const bt_copier_class cuda_copier_class = {
    .close = copier_close,
    .through = copier_through,
    .fd = copier_fd,
    .arm = copier_arm,
    .copy = copier_copy,
    .clear = copier_clear,
    .stamp = copier_stamp,
    .fetch = copier_fetch,
};

bt_err
bt_cuda_copier_open(bt_copier **out, bt_device *device, const bt_copier_options *options, bt_why *why)
{
    bt_cuda *cuda = bt_cuda_of(device);
    cuda_copier *c = (cuda_copier *)calloc(1, sizeof *c);
    cudaError_t error;

    if (c == NULL || (c->slots = (slot *)calloc(options->batches, sizeof *c->slots)) == NULL) {
        free(c);
        return bt_fail(why, BT_ERR_NO_MEMORY, "%s: copier: no memory", cuda->name);
    }
    c->head = (bt_copier_head){&cuda_copier_class, *options, NULL};
    c->cuda = cuda;
    c->fd = -1;
    cudaSetDevice(cuda->index);
    if ((error = open_streams(c)) != cudaSuccess || (error = open_memory(c)) != cudaSuccess) {
        copier_close((bt_copier *)(void *)c);
        return bt_fail(why, error == cudaErrorMemoryAllocation ? BT_ERR_NO_MEMORY : BT_ERR_DEVICE, "%s: copier: %s",
                       cuda->name, cudaGetErrorString(error));
    }
    if (options->notify && (c->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) < 0) {
        copier_close((bt_copier *)(void *)c);
        return bt_fail(why, BT_ERR_IO, "%s: copier: eventfd: %s", cuda->name, strerror(errno));
    }
    *out = (bt_copier *)(void *)c;
    return BT_OK;
}
