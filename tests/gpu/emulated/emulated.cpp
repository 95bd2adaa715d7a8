// See emulated.h.
#include "emulated.h"

#include <map>
#include <setjmp.h>
#include <ucontext.h>
#include <vector>

#define STACK (128 * 1024)
#define THREADS_MAX 1024

alignas(128) uint8_t few_memory[EMULATED_SHARED];
uint3 emulated_thread, emulated_block;
dim3 emulated_block_dim;
bool emulated_eager;

struct copy { void *to; const void *from; uint32_t bytes; };
struct fiber { ucontext_t context; jmp_buf at; bool begun, done; std::vector<copy> open; std::vector<std::vector<copy>> groups; };
struct warp { uint32_t arrived, times, words[2][32][16]; };
struct meeting { uint32_t arrived, times; };
struct phases { uint32_t count, arrived, times; int64_t bytes; };
struct bulk { uint32_t to; const void *from; uint32_t bytes, barrier; };

static fiber fibers[THREADS_MAX];
static warp warps[THREADS_MAX / 32];
static meeting meetings[16];
static std::map<uint32_t, phases> barriers;
static std::vector<bulk> bulks;
static ucontext_t scheduler;
static jmp_buf schedule;
static uint32_t now, shared_bytes;
static uint64_t progress, dice = 88172645463325252ull;
static const std::function<void()> *body;
static char *stacks;

static void
fail(const char *what)
{
    fprintf(stderr, "block %u thread %u: %s\n", emulated_block.x, now, what);
    abort();
}

static uint32_t
rolled(void)
{
    dice ^= dice << 13, dice ^= dice >> 7, dice ^= dice << 17;
    return (uint32_t)(dice >> 32);
}

void
emulated_yield(void)
{
    if (_setjmp(fibers[now].at) == 0) { // without a system call each time
        _longjmp(schedule, 1);
    }
}

void
emulated_warp(void)
{
    warp *w = &warps[now / 32];
    uint32_t times = w->times;

    progress++;
    if (++w->arrived == 32) {
        w->arrived = 0, w->times++;
        return;
    }
    while (w->times == times) {
        emulated_yield();
    }
}

uint32_t *
emulated_words(uint32_t lane)
{
    warp *w = &warps[now / 32];

    return w->words[w->times & 1][lane];
}

uint32_t
emulated_shuffle(uint32_t v, uint32_t from)
{
    uint32_t *there = emulated_words(from % 32);

    *emulated_words(now % 32) = v;
    emulated_warp();
    return *there;
}

void
emulated_arrive(uint32_t id, uint32_t threads)
{
    meeting *m = &meetings[id];

    progress++;
    if (++m->arrived == threads) {
        m->arrived = 0, m->times++;
    }
}

void
emulated_barrier(uint32_t id, uint32_t threads)
{
    meeting *m = &meetings[id];
    uint32_t times = m->times;

    emulated_arrive(id, threads);
    while (m->times == times) {
        emulated_yield();
    }
}

static int
byte_of(uint32_t word, uint32_t i, bool is_unsigned)
{
    return is_unsigned ? (int)(word >> 8 * i & 0xff) : (int8_t)(word >> 8 * i);
}

void
emulated_mma(int32_t d[4], const uint32_t a[4], uint32_t b0, uint32_t b1, const int32_t c[4], bool a_unsigned,
             bool b_unsigned)
{
    uint32_t lane = now % 32, *mine = emulated_words(lane), *all = emulated_words(0);
    int32_t r[4];

    memcpy(mine, a, 16), mine[4] = b0, mine[5] = b1;
    emulated_warp();
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t row = lane / 4 + i / 2 * 8, col = lane % 4 * 2 + i % 2;

        r[i] = c[i];
        for (uint32_t k = 0; k < 32; k++) {
            uint32_t x = all[(row % 8 * 4 + k % 16 / 4) * 16 + row / 8 + k / 16 * 2];
            uint32_t y = all[(col * 4 + k % 16 / 4) * 16 + 4 + k / 16];

            r[i] += byte_of(x, k % 4, a_unsigned) * byte_of(y, k % 4, b_unsigned);
        }
    }
    memcpy(d, r, 16);
}

static void
check(const void *to, uint32_t bytes)
{
    if ((const uint8_t *)to < few_memory || (const uint8_t *)to + bytes > few_memory + shared_bytes ||
        (uintptr_t)to % (bytes < 16 ? bytes : 16) != 0) {
        fail("a copy beyond shared memory, or to an odd place");
    }
}

void
emulated_copy(void *to, const void *from, uint32_t bytes)
{
    check(to, bytes);
    if ((uintptr_t)from % bytes != 0) {
        fail("a copy from an odd place");
    }
    if (emulated_eager) {
        memcpy(to, from, bytes);
    } else {
        fibers[now].open.push_back({to, from, bytes});
    }
}

void
emulated_commit(void)
{
    fibers[now].groups.push_back(std::move(fibers[now].open));
    fibers[now].open.clear();
}

void
emulated_wait(uint32_t left)
{
    auto &g = fibers[now].groups;

    while (g.size() > left) {
        for (const copy &c : g.front()) {
            memcpy(c.to, c.from, c.bytes);
        }
        g.erase(g.begin());
    }
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
emulated_barrier_init(uint32_t barrier, uint32_t arrivals)
{
    if (barrier % 8 != 0) {
        fail("a barrier at an odd place");
    }
    barriers[barrier] = {arrivals, 0, 0, 0};
}

static phases *
phases_of(uint32_t barrier)
{
    auto p = barriers.find(barrier);

    if (p == barriers.end()) {
        fail("a barrier that nobody made");
    }
    return &p->second;
}

void
emulated_barrier_arrive(uint32_t barrier, uint32_t count, uint32_t bytes)
{
    phases *p = phases_of(barrier);

    progress++;
    p->bytes += bytes;
    p->arrived += count;
    if (p->arrived > p->count) {
        fail("too many arrivals");
    }
    turn(p);
}

bool
emulated_barrier_over(uint32_t barrier, uint32_t parity)
{
    return (phases_of(barrier)->times & 1) != parity;
}

static void
deliver(const bulk &b)
{
    phases *p = phases_of(b.barrier);

    memcpy(few_memory + b.to, b.from, b.bytes);
    p->bytes -= b.bytes;
    turn(p);
}

void
emulated_bulk(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier)
{
    check(few_memory + to, bytes);
    if ((uintptr_t)from % 16 != 0 || to % 16 != 0 || bytes % 16 != 0) {
        fail("a bulk copy at an odd place");
    }
    progress++;
    if (emulated_eager) {
        deliver({to, from, bytes, barrier});
    } else {
        bulks.push_back({to, from, bytes, barrier});
    }
}

static void
begin(void)
{
    (*body)();
    fibers[now].done = true;
    progress++;
    _longjmp(schedule, 1);
}

// A fiber's turn, until it waits.
static void
resume(fiber *f)
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

void
emulated_run(uint32_t block, uint32_t threads, size_t shared, const std::function<void()> &kernel)
{
    uint32_t left = threads;
    uint64_t idle = 0, before;

    if (shared > EMULATED_SHARED) {
        fail("too much shared memory");
    }
    stacks = stacks != NULL ? stacks : (char *)malloc((size_t)STACK * THREADS_MAX);
    memset(few_memory, 0xff, sizeof few_memory); // NaN, −1
    memset(warps, 0, sizeof warps), memset(meetings, 0, sizeof meetings);
    barriers.clear();
    body = &kernel, shared_bytes = (uint32_t)shared;
    emulated_block = {block, 0, 0}, emulated_block_dim = dim3(threads);
    for (uint32_t i = 0; i < threads; i++) {
        fiber *f = &fibers[i];

        f->begun = f->done = false, f->open.clear(), f->groups.clear();
        getcontext(&f->context);
        f->context.uc_stack.ss_sp = stacks + (size_t)i * STACK, f->context.uc_stack.ss_size = STACK;
        f->context.uc_link = NULL;
        makecontext(&f->context, begin, 0);
    }
    while (left > 0) {
        uint32_t first = rolled() % (threads / 32) * 32;

        before = progress;
        for (uint32_t n = 0; n < threads; n++) {
            now = (first + n) % threads;
            if (!fibers[now].done) {
                emulated_thread = {now, 0, 0};
                resume(&fibers[now]);
                left -= fibers[now].done;
            }
        }
        while (!bulks.empty() && (progress == before || rolled() % 4 == 0)) {
            size_t i = rolled() % bulks.size();
            bulk b = bulks[i];

            bulks.erase(bulks.begin() + (long)i);
            deliver(b);
            progress++;
        }
        idle = progress == before ? idle + 1 : 0;
        if (idle > 100) {
            fail("nobody gets on");
        }
    }
    if (!bulks.empty()) {
        fail("bulk copies after the end");
    }
    for (uint32_t i = 0; i < threads; i++) {
        for (const auto &g : fibers[i].groups) {
            if (!g.empty()) {
                now = i, fail("copies that nobody waited for");
            }
        }
    }
}
