#include "tests/support/fake_gpu.h"

#include "common/base/mem.h"
#include "common/transfer/shared.h"
#include "kernels/device_impl.h"

#include <assert.h>
#include <string.h>

#define MEMORIES 8
#define OPENED 64

typedef struct {
    bt_device_head head;
    fake_gpu_ways ways;
    uint64_t identities;
    bt_shared memories[MEMORIES];
    uint64_t of[MEMORIES]; // their identities
    struct {
        const uint8_t *memory;
        bt_shared_key key;
    } opened[OPENED];
} fake_gpu;

// What a handle is made of.
typedef struct {
    bt_shared_key key;
    uint64_t identity;
} fake_handle;

static fake_gpu *
gpu_of(const bt_device *device)
{
    return (fake_gpu *)(void *)(uintptr_t)device;
}

static void
gpu_close(bt_device *device)
{
    bt_free(device);
}

static void *
gpu_alloc(bt_device *device, size_t bytes)
{
    fake_gpu *g = gpu_of(device);

    for (size_t i = 0; i < MEMORIES; i++) {
        if (g->memories[i].memory == NULL) {
            g->of[i] = (uint64_t)(uintptr_t)g << 8 ^ ++g->identities;
            return bt_shared_open(&g->memories[i], bytes, g->of[i], NULL) == BT_OK ? g->memories[i].memory : NULL;
        }
    }
    return NULL;
}

static bt_shared *
find(fake_gpu *g, const void *memory)
{
    for (size_t i = 0; i < MEMORIES; i++) {
        if (g->memories[i].memory == memory) {
            return &g->memories[i];
        }
    }
    return NULL;
}

static void
gpu_free(bt_device *device, void *memory, size_t bytes)
{
    bt_shared *shared = find(gpu_of(device), memory);

    (void)bytes;
    assert(shared != NULL);
    bt_shared_close(shared);
}

static bt_err
gpu_copy(bt_device *device, void *to, const void *from, size_t bytes)
{
    (void)device;
    memcpy(to, from, bytes);
    return BT_OK;
}

static size_t
gpu_available(const bt_device *device)
{
    (void)device;
    return SIZE_MAX;
}

static bt_err
gpu_share(bt_device *device, void *memory, bt_device_shared *out, bt_why *why)
{
    fake_gpu *g = gpu_of(device);
    bt_shared *shared = find(g, memory);
    fake_handle handle;

    (void)why;
    assert(shared != NULL);
    handle = (fake_handle){shared->key, g->of[shared - g->memories]};
    *out = (bt_device_shared){{0}, {0}};
    memcpy(out->handle, &handle, sizeof handle);
    out->uuid[0] = g->ways.uuid;
    return BT_OK;
}

static bt_err
gpu_open_shared(bt_device *device, const bt_device_shared *shared, const void **memory, bool *same, bt_why *why)
{
    fake_gpu *g = gpu_of(device);
    const uint8_t *mapped;
    fake_handle handle;
    size_t i = 0;

    if (g->ways.blind_to != 0 && shared->uuid[0] == g->ways.blind_to) {
        return bt_fail(why, BT_ERR_UNSUPPORTED, "fake GPU %u: no peer access to %u", g->ways.uuid, shared->uuid[0]);
    }
    memcpy(&handle, shared->handle, sizeof handle);
    if (bt_shared_map(&mapped, &handle.key, handle.identity) != BT_OK) {
        return bt_fail(why, BT_ERR_PEER, "fake GPU %u: no such memory", g->ways.uuid);
    }
    while (g->opened[i].memory != NULL) {
        i++;
        assert(i < OPENED);
    }
    g->opened[i].memory = mapped;
    g->opened[i].key = handle.key;
    *memory = mapped;
    *same = shared->uuid[0] == g->ways.uuid;
    return BT_OK;
}

static void
gpu_close_shared(bt_device *device, const void *memory)
{
    fake_gpu *g = gpu_of(device);

    for (size_t i = 0; i < OPENED; i++) {
        if (g->opened[i].memory == memory) {
            bt_shared_unmap(memory, &g->opened[i].key);
            g->opened[i].memory = NULL;
            return;
        }
    }
    assert(false);
}

// ---- the copier: the CPU's does the work, when its time has come ----

typedef struct {
    bt_kv_layout layout;
    bt_copier_blocks runs[BT_COPIER_RUNS_MAX];
    uint32_t count;
} fake_fetch;

typedef struct {
    bt_copier_head head;
    fake_gpu *gpu;
    bt_copier *cpu;
    fake_fetch *fetches; // [batches]
    uint64_t begun, through, told;
    uint32_t asked;
} fake_copier;

static fake_copier *
copier_of(const bt_copier *copier)
{
    return (fake_copier *)(void *)(uintptr_t)copier;
}

static void
end_batch(fake_copier *c)
{
    uint64_t ticket = c->through + 1, unused;
    const fake_fetch *f = &c->fetches[ticket % c->head.options.batches];

    if (f->count != 0) {
        bt_copier_fetch(c->cpu, &f->layout, f->runs, f->count, BT_COPIER_BY_KERNEL, &unused);
        memcpy(bt_copier_landing(&c->head, ticket), bt_copier_landed_of(c->cpu, unused),
               c->head.options.blocks * sizeof(bt_copier_landed));
    }
    c->through = ticket;
    c->asked = 0;
}

static void
look(fake_copier *c)
{
    if (c->through < c->begun && !c->gpu->ways.hangs && ++c->asked >= c->gpu->ways.asks_a_batch) {
        end_batch(c);
    }
}

static bt_err
fake_through(bt_copier *copier, uint64_t *ticket)
{
    fake_copier *c = copier_of(copier);

    if (c->gpu->ways.failed) {
        return BT_ERR_DEVICE;
    }
    look(c);
    *ticket = c->told = c->through;
    return BT_OK;
}

static void
fake_close(bt_copier *copier)
{
    fake_copier *c = copier_of(copier);

    while (c->through < c->begun && !c->gpu->ways.failed) { // waits, as a real one does
        end_batch(c);
    }
    bt_copier_close(c->cpu);
    bt_free(c->fetches);
    bt_free(c->head.landed);
    bt_free(c);
}

static int
fake_fd(const bt_copier *copier)
{
    (void)copier;
    return -1;
}

static bool
fake_arm(bt_copier *copier)
{
    const fake_copier *c = copier_of(copier);

    return c->through == c->begun; // else ask again, for there is no descriptor
}

static bt_err
begin_batch(fake_copier *c, uint64_t *ticket)
{
    if (c->gpu->ways.failed) {
        return BT_ERR_DEVICE;
    }
    if (c->begun - c->through == c->head.options.batches) {
        look(c); // as a real one: what has ended meanwhile makes room, told or not
    }
    if (c->begun - c->through == c->head.options.batches) {
        return BT_ERR_BUSY;
    }
    *ticket = ++c->begun;
    c->fetches[c->begun % c->head.options.batches].count = 0;
    return BT_OK;
}

static bt_err
fake_copy(bt_copier *copier, const bt_copier_run *runs, uint32_t count, uint64_t *ticket)
{
    fake_copier *c = copier_of(copier);
    uint64_t unused;
    bt_err err = begin_batch(c, ticket);

    return err != BT_OK ? err : bt_copier_copy(c->cpu, runs, count, &unused);
}

static bt_err
fake_clear(bt_copier *copier, const bt_kv_layout *layout, void *pool, const uint32_t *blocks, uint32_t count,
           uint64_t *ticket)
{
    fake_copier *c = copier_of(copier);
    uint64_t unused;
    bt_err err = begin_batch(c, ticket);

    return err != BT_OK ? err : bt_copier_clear(c->cpu, layout, pool, blocks, count, &unused);
}

static bt_err
fake_stamp(bt_copier *copier, const bt_kv_layout *layout, void *pool, uint64_t epoch,
           const bt_copier_stamping *stampings, uint32_t count, uint64_t *ticket)
{
    fake_copier *c = copier_of(copier);
    uint64_t unused;
    bt_err err = begin_batch(c, ticket);

    return err != BT_OK ? err : bt_copier_stamp(c->cpu, layout, pool, epoch, stampings, count, &unused);
}

static bt_err
fake_fetch_blocks(bt_copier *copier, const bt_kv_layout *layout, const bt_copier_blocks *runs, uint32_t run_count,
                  bt_copier_way way, uint64_t *ticket)
{
    fake_copier *c = copier_of(copier);
    bt_err err = begin_batch(c, ticket);

    (void)way;
    if (err == BT_OK) {
        fake_fetch *f = &c->fetches[*ticket % c->head.options.batches];

        f->layout = *layout;
        f->count = run_count;
        memcpy(f->runs, runs, run_count * sizeof *runs);
    }
    return err;
}

static const bt_copier_class fake_copier_class = {
    .close = fake_close,
    .through = fake_through,
    .fd = fake_fd,
    .arm = fake_arm,
    .copy = fake_copy,
    .clear = fake_clear,
    .stamp = fake_stamp,
    .fetch = fake_fetch_blocks,
};

static bt_err
gpu_copier_open(bt_copier **out, bt_device *device, const bt_copier_options *options, bt_why *why)
{
    fake_copier *c = bt_alloc(sizeof *c);
    bt_err err = c != NULL ? bt_cpu_copier_open(&c->cpu, device, options, why) : BT_ERR_NO_MEMORY;

    if (err == BT_OK) {
        c->head = (bt_copier_head){&fake_copier_class, *options, NULL};
        c->gpu = gpu_of(device);
        c->head.landed = bt_alloc_array((size_t)options->batches * options->blocks, sizeof *c->head.landed);
        c->fetches = bt_alloc_array(options->batches, sizeof *c->fetches);
        *out = (bt_copier *)(void *)c;
        if (c->head.landed != NULL && c->fetches != NULL) {
            return BT_OK;
        }
        fake_close(*out);
        return bt_fail(why, BT_ERR_NO_MEMORY, "fake GPU: no memory");
    }
    bt_free(c);
    return err;
}

static const bt_device_class fake_gpu_class = {
    .host = false,
    .close = gpu_close,
    .alloc = gpu_alloc,
    .free = gpu_free,
    .write = gpu_copy,
    .read = gpu_copy,
    .available = gpu_available,
    .share = gpu_share,
    .open_shared = gpu_open_shared,
    .close_shared = gpu_close_shared,
    .copier_open = gpu_copier_open,
};

bt_device *
fake_gpu_open(uint8_t uuid)
{
    fake_gpu *g = bt_alloc(sizeof *g);

    assert(g != NULL);
    g->head.kind = &fake_gpu_class;
    g->ways.uuid = uuid;
    return (bt_device *)(void *)g;
}

fake_gpu_ways *
fake_gpu_ways_of(bt_device *device)
{
    return &gpu_of(device)->ways;
}
