// See emulated.h.
#include "emulated.h"
#include "kernels/cuda/boxes.cuh"
#include <map>
#include <setjmp.h>
#include <ucontext.h>
#include <vector>
#define STACK (96 * 1024)
#define SLOTS 16
#define THREADS_MAX 640
uint3 emu_thread, emu_block;
dim3 emu_block_dim, emu_grid_dim;
bool emu_eager;
uint32_t emu_slots = 4;
int emu_clusters[9];
struct product {
    uint32_t n;
    int32_t *d;
    uint8_t a[2][32];
    bool shared;
    uint64_t a_desc, b;
    int add;
    bool u8;
};
struct store {
    void *to;
    uint32_t from, bytes;
};
struct fiber {
    ucontext_t context;
    jmp_buf at;
    bool begun, done;
    uint32_t seen;
    std::vector<product> open;
    std::vector<std::vector<product>> groups;
    std::vector<store> stores;
};
struct warp_t {
    uint32_t arrived, times, words[2][32][16];
};
struct meeting {
    uint32_t arrived, times;
};
struct phases {
    uint32_t count, arrived, times;
    int64_t bytes;
};
struct box {
    uint32_t slot, to, x, y, barrier;
    const CUtensorMap *map;
};
struct slot_t {
    bool used;
    uint3 index;
    uint32_t cluster_first, rank, left;
    uint8_t *memory;
    fiber *fibers;
    warp_t warps[THREADS_MAX / 32];
    meeting meetings[16];
    std::map<uint32_t, phases> barriers;
    meeting cluster;
    char *stacks;
};
static slot_t slots[SLOTS];
static uint32_t S, now, threads, cluster_size, shared_bytes;
static std::vector<box> boxes;
static ucontext_t scheduler;
static jmp_buf schedule;
static uint64_t progress, dice = 88172645463325252ull;
static const std::function<void()> *body;
static void
fail(const char *what)
{
    fprintf(stderr, "block %u,%u,%u thread %u: %s\n", slots[S].index.x, slots[S].index.y, slots[S].index.z, now, what);
    abort();
}
static uint32_t
rolled(void)
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
emu_dawdle(void)
{
    for (uint32_t turns = rolled() % 8 == 0 ? rolled() % 3000 : 0; turns > 0; turns--) {
        emu_yield();
    }
}
uint8_t *
emu_memory(void)
{
    return slots[S].memory;
}
uint8_t *
emu_memory_of(uint32_t rank)
{
    slot_t *s = &slots[slots[S].cluster_first + rank];
    if (!s->used || rank >= cluster_size)
        fail("a block of the cluster that is not there");
    return s->memory;
}
void
emu_yield(void)
{
    if (_setjmp(slots[S].fibers[now].at) == 0)
        _longjmp(schedule, 1);
}
void
emu_warp(void)
{
    warp_t *w = &slots[S].warps[now / 32];
    uint32_t times = w->times;
    progress++;
    if (++w->arrived == 32) {
        w->arrived = 0, w->times++;
        return;
    }
    while (w->times == times)
        emu_yield();
}
uint32_t *
emu_words(uint32_t lane)
{
    warp_t *w = &slots[S].warps[now / 32];
    return w->words[w->times & 1][lane];
}
uint32_t
emu_shuffle(uint32_t v, uint32_t from)
{
    uint32_t *there = emu_words(from % 32);
    *emu_words(now % 32) = v;
    emu_warp();
    return *there;
}
void
emu_barrier(uint32_t id, uint32_t n, bool wait)
{
    meeting *m = &slots[S].meetings[id];
    uint32_t times = m->times;
    progress++;
    if (++m->arrived == n) {
        m->arrived = 0, m->times++;
        return;
    }
    while (wait && m->times == times)
        emu_yield();
}
void
emu_cluster_arrive(void)
{
    meeting *m = &slots[slots[S].cluster_first].cluster;
    slots[S].fibers[now].seen = m->times;
    progress++;
    if (++m->arrived == threads * cluster_size)
        m->arrived = 0, m->times++;
}
void
emu_cluster_wait(void)
{
    meeting *m = &slots[slots[S].cluster_first].cluster;
    while (m->times == slots[S].fibers[now].seen)
        emu_yield();
}
static phases *
phases_of(uint32_t s, uint32_t b)
{
    auto p = slots[s].barriers.find(b);
    if (p == slots[s].barriers.end())
        fail("a barrier that nobody made");
    return &p->second;
}
static void
turn(phases *p)
{
    if (p->arrived == p->count && p->bytes == 0) {
        p->arrived = 0, p->times++;
        progress++;
    }
}
void
emu_barrier_init(uint32_t b, uint32_t n)
{
    if (b % 8)
        fail("barrier at an odd place");
    slots[S].barriers[b] = {n, 0, 0, 0};
}
void
emu_barrier_arrive(uint32_t b, uint32_t count, uint32_t bytes)
{
    phases *p = phases_of(S, b);
    progress++;
    p->bytes += bytes, p->arrived += count;
    if (p->arrived > p->count)
        fail("too many arrivals");
    turn(p);
}
bool
emu_barrier_over(uint32_t b, uint32_t parity)
{
    return (phases_of(S, b)->times & 1) != parity;
}
// maps
struct plane {
    const uint8_t *at;
    uint64_t width, rows, stride;
    uint32_t box_width, box_rows, size, swizzle;
};
bool
bt_cuda_has_boxes(void)
{
    return true;
}
bool
bt_cuda_plane(CUtensorMap *map, CUtensorMapDataType type, const void *at, uint64_t width, uint64_t rows,
              uint64_t stride, uint32_t bw, uint32_t br, CUtensorMapSwizzle swizzle)
{
    plane p = {(const uint8_t *)at,
               width,
               rows,
               stride,
               bw,
               br,
               type == CU_TENSOR_MAP_DATA_TYPE_UINT8    ? 1u
               : type == CU_TENSOR_MAP_DATA_TYPE_UINT16 ? 2u
                                                        : 4u,
               swizzle == CU_TENSOR_MAP_SWIZZLE_128B};
    if ((uintptr_t)at % 16 || stride % 16 || bw > 256 || br > 256 || (uint64_t)bw * p.size % 16 ||
        (p.swizzle && bw * p.size > 128)) {
        fprintf(stderr, "a map that the driver refuses\n");
        return false;
    }
    memcpy(map, &p, sizeof p);
    return true;
}
static void
deliver(const box &b)
{
    plane p;
    phases *f = phases_of(b.slot, b.barrier);
    uint8_t *m = slots[b.slot].memory;
    memcpy(&p, b.map, sizeof p);
    for (uint32_t r = 0; r < p.box_rows; r++)
        for (uint32_t w = 0; w < p.box_width; w++) {
            uint32_t at = b.to + (r * p.box_width + w) * p.size;
            uint64_t x = b.x + w, y = b.y + r;
            if (p.swizzle)
                at ^= (at >> 7 & 7) << 4;
            if (at + p.size > shared_bytes) {
                S = b.slot;
                fail("a box beyond shared memory");
            }
            if (x < p.width && y < p.rows)
                memcpy(m + at, p.at + y * p.stride + x * p.size, p.size);
            else
                memset(m + at, 0, p.size);
        }
    f->bytes -= (int64_t)p.box_rows * p.box_width * p.size;
    turn(f);
}
void
emu_box(uint32_t to, const CUtensorMap *map, uint32_t x, uint32_t y, uint32_t barrier)
{
    box b = {S, to, x, y, barrier, map};
    progress++;
    if (to % 128)
        fail("a box at an odd place");
    if (emu_eager)
        deliver(b);
    else
        boxes.push_back(b);
}
void
emu_store(void *to, uint32_t from, uint32_t bytes)
{
    if (((uintptr_t)to | from | bytes) % 16)
        fail("odd bulk store");
    slots[S].fibers[now].stores.push_back({to, from, bytes});
}
void
emu_stored(void)
{
    auto &s = slots[S].fibers[now].stores;
    for (auto &x : s)
        memcpy(x.to, emu_memory() + x.from, x.bytes);
    s.clear();
}
static int8_t
byte_at(uint64_t desc, uint32_t row, uint32_t k)
{
    uint32_t at = (uint32_t)desc * 16 + row * 128 + k;
    at ^= (at >> 7 & 7) << 4;
    return (int8_t)emu_memory()[at];
}
static void
multiply(const product &p)
{
    uint32_t g = now % 32 / 4, t = now % 4, first = now / 32 % 4 * 16;
    for (uint32_t half = 0; half < 2; half++) {
        int a[32];
        for (uint32_t k = 0; k < 32; k++)
            a[k] = p.shared ? byte_at(p.a_desc, first + g + half * 8, k) : p.u8 ? p.a[half][k] : (int8_t)p.a[half][k];
        for (uint32_t j = 0; j < p.n / 8; j++)
            for (uint32_t i = 0; i < 2; i++) {
                int32_t *d = &p.d[j * 4 + half * 2 + i], sum = p.add ? *d : 0;
                for (uint32_t k = 0; k < 32; k++)
                    sum += a[k] * byte_at(p.b, j * 8 + t * 2 + i, k);
                *d = sum;
            }
    }
}
void
emu_gmma(uint32_t n, int32_t *d, const uint32_t *a, uint64_t a_desc, uint64_t b, int add, bool u8)
{
    product p = {n, d, {}, a == NULL, a_desc, b, add, u8};
    uint32_t lane = now % 32, *mine = emu_words(lane), *all = emu_words(0);
    if (a != NULL) {
        memcpy(mine, a, 16);
        emu_warp();
        for (uint32_t half = 0; half < 2; half++)
            for (uint32_t k = 0; k < 32; k++)
                p.a[half][k] = (uint8_t)(all[(lane / 4 * 4 + k % 16 / 4) * 16 + half + k / 16 * 2] >> 8 * (k % 4));
        emu_warp();
    }
    if (emu_eager)
        multiply(p);
    else {
        for (uint32_t i = 0; !add && i < n / 2; i++)
            d[i] = 0x55555555;
        slots[S].fibers[now].open.push_back(p);
    }
}
void
emu_gmma_commit(void)
{
    fiber *f = &slots[S].fibers[now];
    f->groups.push_back(std::move(f->open));
    f->open.clear();
}
void
emu_gmma_wait(uint32_t left)
{
    auto &g = slots[S].fibers[now].groups;
    while (g.size() > left) {
        for (auto &p : g.front())
            multiply(p);
        g.erase(g.begin());
    }
}
static void
begin(void)
{
    (*body)();
    slots[S].fibers[now].done = true;
    progress++;
    _longjmp(schedule, 1);
}
static void
resume(fiber *f)
{
    if (_setjmp(schedule) != 0)
        return;
    if (f->begun)
        _longjmp(f->at, 1);
    f->begun = true;
    swapcontext(&scheduler, &f->context);
}
static void
start(uint32_t s, uint64_t block, uint32_t rank)
{
    slot_t *t = &slots[s];
    if (t->memory == NULL) {
        t->memory = (uint8_t *)aligned_alloc(1024, EMU_SHARED + 1024);
        t->fibers = new fiber[THREADS_MAX];
        t->stacks = (char *)malloc((size_t)STACK * THREADS_MAX);
    }
    t->used = true, t->rank = rank, t->cluster_first = s - rank, t->left = threads;
    t->index = {(uint32_t)(block % emu_grid_dim.x), (uint32_t)(block / emu_grid_dim.x % emu_grid_dim.y),
                (uint32_t)(block / emu_grid_dim.x / emu_grid_dim.y)};
    memset(t->memory, 0xff, EMU_SHARED), memset(t->warps, 0, sizeof t->warps),
        memset(t->meetings, 0, sizeof t->meetings), memset(&t->cluster, 0, sizeof t->cluster);
    t->barriers.clear();
    for (uint32_t i = 0; i < threads; i++) {
        fiber *f = &t->fibers[i];
        f->begun = f->done = false, f->open.clear(), f->groups.clear(), f->stores.clear();
        getcontext(&f->context);
        f->context.uc_stack.ss_sp = t->stacks + (size_t)i * STACK, f->context.uc_stack.ss_size = STACK,
        f->context.uc_link = NULL;
        makecontext(&f->context, begin, 0);
    }
}
void
emu_run(dim3 grid, dim3 block, size_t shared, uint32_t cluster, const std::function<void()> &kernel)
{
    uint64_t blocks = (uint64_t)grid.x * grid.y * grid.z, next = 0, left = blocks, idle = 0;
    uint32_t room = max(emu_slots, cluster) / cluster * cluster;
    if (shared == 0)
        room = 1; // its shared memory is static here
    if (shared > EMU_SHARED)
        fail("too much shared memory");
    emu_grid_dim = grid, emu_block_dim = block, threads = block.x, cluster_size = cluster, body = &kernel,
    shared_bytes = (uint32_t)shared;
    for (uint32_t s = 0; s < SLOTS; s++)
        slots[s].used = false;
    while (left > 0) {
        for (uint32_t s = 0; s < room && next < blocks; s += cluster) {
            bool all = true;
            for (uint32_t r = 0; r < cluster; r++)
                all = all && (!slots[s + r].used || slots[s + r].left == 0);
            for (uint32_t r = 0; all && r < cluster; r++)
                start(s + r, next++, r);
        }
        uint64_t before = progress;
        uint32_t first_slot = rolled() % room;
        for (uint32_t q = 0; q < room; q++) {
            S = (first_slot + q) % room;
            if (!slots[S].used || slots[S].left == 0)
                continue;
            uint32_t first = rolled() % (threads / 32) * 32;
            emu_block = slots[S].index;
            for (uint32_t n = 0; n < threads; n++) {
                now = (first + n) % threads;
                if (slots[S].fibers[now].done)
                    continue;
                emu_thread = {now, 0, 0};
                resume(&slots[S].fibers[now]);
                if (slots[S].fibers[now].done) {
                    slots[S].left--;
                    if (slots[S].left == 0)
                        left--;
                    if (!slots[S].fibers[now].open.empty() || !slots[S].fibers[now].groups.empty() ||
                        !slots[S].fibers[now].stores.empty())
                        fail("things that nobody waited for");
                }
            }
        }
        while (!boxes.empty() && (progress == before || rolled() % 4 == 0)) {
            size_t i = rolled() % boxes.size();
            box b = boxes[i];
            boxes.erase(boxes.begin() + (long)i);
            deliver(b);
            progress++;
        }
        idle = progress == before ? idle + 1 : 0;
        if (idle > 4000)
            fail("nobody gets on");
    }
    if (!boxes.empty())
        fail("boxes after the end");
}
