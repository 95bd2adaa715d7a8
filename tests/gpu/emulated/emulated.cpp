// Threads and blocks of threads, in turns that are drawn. See emulated.h.
#include "state.h"

#define STACK (128 * 1024)
#define GUARD 1024u     // behind shared memory, and not written
#define IDLE_MOST 4000u // rounds in which nobody gets on; emu_dawdle takes up to 3,000

uint3 emu_thread, emu_block;
dim3 emu_block_dim, emu_grid_dim;
uint8_t *emu_shared;
bool emu_eager;
uint32_t emu_slots = 1;
int emu_clusters[17];
emu_slot emu_all[EMU_SLOTS];
uint32_t emu_s, emu_now, emu_shared_bytes, emu_cluster_size, emu_threads;

static ucontext_t scheduler;
static jmp_buf schedule;
static uint64_t progress, dice = 88172645463325252ull;
static const std::function<void()> *body;
static uint32_t blocks_so_far;

void
emu_fail(const char *what)
{
    const uint3 *b = &emu_all[emu_s].index;

    fprintf(stderr, "block %u,%u,%u thread %u: %s\n", b->x, b->y, b->z, emu_now, what);
    abort();
}

uint32_t
emu_rolled(void)
{
    dice ^= dice << 13, dice ^= dice >> 7, dice ^= dice << 17;
    return (uint32_t)(dice >> 32);
}

void
emu_progress(void)
{
    progress++;
}

void
emu_yield(void)
{
    if (_setjmp(emu_self()->at) == 0) { // without a system call each time
        _longjmp(schedule, 1);
    }
}

void
emu_dawdle(void)
{
    for (uint32_t turns = emu_rolled() % 8 == 0 ? emu_rolled() % 3000 : 0; turns > 0; turns--) {
        emu_yield();
    }
}

// ---- meetings ----

void
emu_warp(void)
{
    emu_warp_state *w = &emu_all[emu_s].warps[emu_now / 32];
    uint32_t times = w->times;

    progress++;
    if (++w->arrived == 32) {
        w->arrived = 0, w->times++;
        return;
    }
    while (w->times == times) {
        emu_yield();
    }
}

uint32_t *
emu_words(uint32_t lane)
{
    emu_warp_state *w = &emu_all[emu_s].warps[emu_now / 32];

    return w->words[w->times & 1][lane];
}

uint32_t
emu_shuffle(uint32_t v, uint32_t from)
{
    uint32_t *there = emu_words(from % 32);

    *emu_words(emu_now % 32) = v;
    emu_warp();
    return *there;
}

static void
arrive(emu_meeting *m, uint32_t wanted)
{
    progress++;
    if (++m->arrived == wanted) {
        m->arrived = 0, m->times++;
    }
}

void
emu_barrier(uint32_t id, uint32_t threads, bool wait)
{
    emu_meeting *m = &emu_all[emu_s].meetings[id];
    uint32_t times = m->times;

    arrive(m, threads);
    while (wait && m->times == times) {
        emu_yield();
    }
}

bool
emu_any(bool yes)
{
    emu_slot *s = &emu_all[emu_s];
    uint32_t turn = emu_self()->or_times++ % 3;

    s->any[turn] |= yes;
    s->any[(turn + 1) % 3] = false; // of the last but one, which all have read before they came to the last
    emu_barrier(0, emu_threads, true);
    return s->any[turn];
}

void
emu_cluster_arrive(void)
{
    emu_meeting *m = &emu_all[emu_all[emu_s].first].cluster;

    emu_self()->cluster_seen = m->times;
    arrive(m, emu_threads * emu_cluster_size);
}

void
emu_cluster_wait(void)
{
    while (emu_all[emu_all[emu_s].first].cluster.times == emu_self()->cluster_seen) {
        emu_yield();
    }
}

// ---- turns ----

static void
begin(void)
{
    (*body)();
    emu_self()->done = true;
    progress++;
    _longjmp(schedule, 1);
}

// A fiber's turn, until it waits.
static void
resume(emu_fiber *f)
{
    if (_setjmp(schedule) != 0) {
        return;
    }
    if (f->begun) {
        _longjmp(f->at, 1);
    }
    f->begun = true;
    swapcontext(&scheduler, &f->context);
}

static void
start_fiber(emu_slot *s, uint32_t i)
{
    emu_fiber *f = &s->fibers[i];

    f->begun = f->done = false, f->or_times = 0;
    f->copies.clear(), f->copy_groups.clear(), f->stores.clear(), f->products.clear(), f->product_groups.clear();
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = s->stacks + (size_t)i * STACK, f->context.uc_stack.ss_size = STACK;
    f->context.uc_link = NULL;
    makecontext(&f->context, begin, 0);
}

static void
start_block(uint32_t slot, uint64_t block, uint32_t rank)
{
    emu_slot *s = &emu_all[slot];

    if (s->memory == NULL) {
        s->memory = (uint8_t *)aligned_alloc(1024, EMU_SHARED + GUARD);
        s->stacks = (char *)malloc((size_t)STACK * EMU_THREADS);
        s->fibers = new emu_fiber[EMU_THREADS];
        s->barriers = (emu_phases *)calloc(EMU_SHARED / 8, sizeof *s->barriers);
    }
    s->used = true, s->rank = rank, s->first = slot - rank, s->left = emu_threads, s->number = ++blocks_so_far;
    s->index.x = (uint32_t)(block % emu_grid_dim.x);
    s->index.y = (uint32_t)(block / emu_grid_dim.x % emu_grid_dim.y);
    s->index.z = (uint32_t)(block / emu_grid_dim.x / emu_grid_dim.y);
    memset(s->memory, 0xff, emu_shared_bytes + GUARD); // NaN, −1
    memset(s->warps, 0, sizeof s->warps), memset(s->meetings, 0, sizeof s->meetings);
    memset(&s->cluster, 0, sizeof s->cluster), memset(s->any, 0, sizeof s->any);
    for (uint32_t i = 0; i < emu_threads; i++) {
        start_fiber(s, i);
    }
}

// A turn for each thread of a block. True when the block has ended.
static bool
run_block(emu_slot *s)
{
    uint32_t first = emu_rolled() % (emu_threads / 32) * 32;

    emu_block = s->index, emu_shared = s->memory;
    for (uint32_t n = 0; n < emu_threads; n++) {
        emu_now = (first + n) % emu_threads;
        if (emu_self()->done) {
            continue;
        }
        emu_thread = {emu_now, 0, 0};
        resume(emu_self());
        s->left -= emu_self()->done;
        if (emu_self()->done && emu_is_waited_for(emu_self())) {
            emu_fail("copies, stores or products that nobody waited for");
        }
    }
    for (uint32_t i = 0; s->left == 0 && i < GUARD; i++) {
        if (s->memory[emu_shared_bytes + i] != 0xff) {
            emu_fail("a write beyond shared memory");
        }
    }
    return s->left == 0;
}

// As many clusters as there is room for.
static void
fill_slots(uint32_t room, uint64_t blocks, uint64_t *next)
{
    for (uint32_t s = 0; s < room && *next < blocks; s += emu_cluster_size) {
        bool free = true;

        for (uint32_t r = 0; r < emu_cluster_size; r++) {
            free = free && (!emu_all[s + r].used || emu_all[s + r].left == 0);
        }
        for (uint32_t r = 0; free && r < emu_cluster_size; r++) {
            start_block(s + r, (*next)++, r);
        }
    }
}

void
emu_run(dim3 grid, dim3 block, size_t shared, uint32_t cluster, const std::function<void()> &kernel)
{
    uint64_t blocks = (uint64_t)grid.x * grid.y * grid.z, next = 0, left = blocks, before;
    uint32_t room = shared == 0 ? 1 : max(emu_slots, cluster) / cluster * cluster, idle = 0, first;

    emu_grid_dim = grid, emu_block_dim = block, emu_threads = block.x, emu_cluster_size = cluster, body = &kernel;
    emu_shared_bytes = (uint32_t)shared;
    if (shared > EMU_SHARED || block.x > EMU_THREADS || block.x % 32 != 0 || block.y * block.z != 1 ||
        grid.x % cluster != 0 || room > EMU_SLOTS) {
        emu_fail("a launch that is not for this emulator");
    }
    for (emu_slot &s : emu_all) {
        s.used = false;
    }
    while (left > 0) {
        fill_slots(room, blocks, &next);
        before = progress, first = emu_rolled();
        for (uint32_t i = 0; i < room; i++) {
            emu_s = (first + i) % room;
            if (emu_all[emu_s].used && emu_all[emu_s].left != 0) {
                left -= run_block(&emu_all[emu_s]);
            }
        }
        while (emu_in_flight() && (progress == before || emu_rolled() % 4 == 0)) {
            emu_deliver_one();
            progress++;
        }
        idle = progress == before ? idle + 1 : 0;
        if (idle > IDLE_MOST) {
            emu_fail("nobody gets on");
        }
    }
    if (emu_in_flight()) {
        emu_fail("copies after the end");
    }
}
