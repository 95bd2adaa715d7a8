// Copies and products: made as late as they may be, those that are told at a barrier in a drawn order. See emulated.h.
#include "state.h"

#include "kernels/cuda/boxes.cuh"

// Something on its way into shared memory, which counts at a barrier.
typedef struct {
    uint32_t slot, to, bytes, barrier; // of slot `slot`
    const void *from;                  // NULL: a box, a number, or copies of sixteen bytes
    const CUtensorMap *map;
    uint32_t x, y;
    float number;
    std::vector<emu_one_copy> copies;
} flight;

static std::vector<flight> flights;

// ---- barriers ----

static emu_phases *
phases_of(uint32_t slot, uint32_t barrier)
{
    emu_phases *p = &emu_all[slot].barriers[barrier / 8];

    if (barrier >= emu_shared_bytes || p->made != emu_all[slot].number) {
        emu_fail("a barrier that nobody made");
    }
    return p;
}

static void
turn(emu_phases *p)
{
    if (p->arrived == p->count && p->bytes == 0) {
        p->arrived = 0, p->times++;
        emu_progress();
    }
}

void
emu_barrier_init(uint32_t barrier, uint32_t arrivals)
{
    if (barrier % 8 != 0 || barrier >= emu_shared_bytes) {
        emu_fail("a barrier at an odd place");
    }
    emu_all[emu_s].barriers[barrier / 8] = {emu_all[emu_s].number, arrivals, 0, 0, 0};
}

static void
arrive(uint32_t slot, uint32_t barrier, uint32_t count, int64_t bytes)
{
    emu_phases *p = phases_of(slot, barrier);

    p->bytes += bytes, p->arrived += count;
    if (p->arrived > p->count) {
        emu_fail("too many arrivals");
    }
    turn(p);
    emu_progress();
}

void
emu_barrier_arrive(uint32_t barrier, uint32_t count, uint32_t bytes)
{
    arrive(emu_s, barrier, count, bytes);
}

bool
emu_barrier_over(uint32_t barrier, uint32_t parity)
{
    return (phases_of(emu_s, barrier)->times & 1) != parity;
}

// ---- clusters ----

static uint32_t
slot_at(uint32_t at)
{
    uint32_t slot = at >> 31 == 0 ? emu_s : emu_all[emu_s].first + EMU_RANK(at);

    if (at >> 31 != 0 && (EMU_RANK(at) >= emu_cluster_size || !emu_all[slot].used)) {
        emu_fail("a block of the cluster that is not there");
    }
    return slot;
}

uint8_t *
emu_memory_at(uint32_t at)
{
    uint32_t slot = slot_at(at);

    if (emu_all[slot].left == 0 || (at & 0xffffff) >= emu_shared_bytes) {
        emu_fail("shared memory of a block that has ended, or beyond its end");
    }
    return emu_all[slot].memory + (at & 0xffffff);
}

// ---- copies by a thread ----

static void
check(const void *to, const void *from, uint32_t bytes)
{
    const uint8_t *at = (const uint8_t *)to;

    if (at < emu_shared || at + bytes > emu_shared + emu_shared_bytes) {
        emu_fail("a copy beyond shared memory");
    }
    if ((uintptr_t)to % (bytes < 16 ? bytes : 16) != 0 || (uintptr_t)from % (bytes < 16 ? bytes : 16) != 0) {
        emu_fail("a copy from or to an odd place");
    }
}

static void
make(const std::vector<emu_one_copy> &copies)
{
    for (const emu_one_copy &c : copies) {
        memcpy(c.to, c.from, c.bytes);
    }
}

void
emu_copy(void *to, const void *from, uint32_t bytes)
{
    check(to, from, bytes);
    if (emu_eager) {
        memcpy(to, from, bytes);
    } else {
        emu_self()->copies.push_back({to, from, bytes});
    }
}

void
emu_copy_commit(void)
{
    emu_self()->copy_groups.push_back(std::move(emu_self()->copies));
    emu_self()->copies.clear();
}

void
emu_copy_wait(uint32_t left)
{
    auto &groups = emu_self()->copy_groups;

    while (groups.size() > left) {
        make(groups.front());
        groups.erase(groups.begin());
    }
}

void
emu_copy_arrive(uint32_t barrier)
{
    flight f = {};

    if (!emu_self()->copy_groups.empty()) {
        emu_fail("copies in groups, and at a barrier");
    }
    f.slot = emu_s, f.barrier = barrier, f.copies = std::move(emu_self()->copies);
    emu_self()->copies.clear();
    if (f.copies.empty()) {
        arrive(emu_s, barrier, 1, 0);
    } else {
        flights.push_back(f);
    }
}

void
emu_store(void *to, uint32_t from, uint32_t bytes)
{
    if (((uintptr_t)to | from | bytes) % 16 != 0) {
        emu_fail("a bulk store at an odd place");
    }
    emu_self()->stores.push_back({to, emu_shared + from, bytes});
}

void
emu_stored(void)
{
    make(emu_self()->stores);
    emu_self()->stores.clear();
}

bool
emu_is_waited_for(const emu_fiber *f)
{
    bool left = !f->copies.empty() || !f->stores.empty() || !f->products.empty();

    for (const auto &group : f->copy_groups) {
        left = left || !group.empty();
    }
    return left || !f->product_groups.empty();
}

// ---- copies that are told at a barrier ----

// What a tensor map is here.
typedef struct {
    const uint8_t *at;
    uint64_t width, rows, stride;
    uint32_t box_width, box_rows, size, swizzled;
} plane;

bool
bt_cuda_has_boxes(void)
{
    return true;
}

bool
bt_cuda_plane(CUtensorMap *map, CUtensorMapDataType type, const void *at, uint64_t width, uint64_t rows,
              uint64_t stride, uint32_t box_width, uint32_t box_rows, CUtensorMapSwizzle swizzle)
{
    plane p = {(const uint8_t *)at, width, rows, stride, box_width, box_rows, 4, swizzle == CU_TENSOR_MAP_SWIZZLE_128B};

    p.size = type == CU_TENSOR_MAP_DATA_TYPE_UINT8 ? 1 : type == CU_TENSOR_MAP_DATA_TYPE_UINT16 ? 2 : 4;
    if ((uintptr_t)at % 16 != 0 || stride % 16 != 0 || box_width > 256 || box_rows > 256 ||
        box_width * p.size % 16 != 0 || (p.swizzled && box_width * p.size > 128)) {
        fprintf(stderr, "a map that the driver refuses\n");
        return false;
    }
    memcpy(map, &p, sizeof p);
    return true;
}

// Where byte `at` of rows of 128 lies, if they are swizzled.
static uint32_t
swizzled(uint32_t at)
{
    return at ^ (at >> 7 & 7) << 4;
}

static void
land_box(const flight &f, uint8_t *memory, const plane &p)
{
    for (uint32_t r = 0; r < p.box_rows; r++) {
        for (uint32_t w = 0; w < p.box_width; w++) {
            uint32_t to = f.to + (r * p.box_width + w) * p.size;
            uint64_t x = f.x + w, y = f.y + r;

            to = p.swizzled ? swizzled(to) : to;
            if (to + p.size > emu_shared_bytes) {
                emu_fail("a box beyond shared memory");
            }
            if (x < p.width && y < p.rows) {
                memcpy(memory + to, p.at + y * p.stride + x * p.size, p.size);
            } else {
                memset(memory + to, 0, p.size);
            }
        }
    }
}

static void
deliver(const flight &f)
{
    uint8_t *memory = emu_all[f.slot].memory;
    int64_t bytes = f.bytes;

    emu_s = f.slot;
    if (emu_all[f.slot].left == 0) {
        emu_fail("a copy into a block that has ended");
    }
    if (f.map != NULL) {
        plane p;

        memcpy(&p, f.map, sizeof p);
        land_box(f, memory, p);
        bytes = (int64_t)p.box_rows * p.box_width * p.size;
    } else if (f.from != NULL) {
        memcpy(memory + f.to, f.from, f.bytes);
    } else if (f.bytes != 0) {
        memcpy(memory + f.to, &f.number, sizeof f.number);
    }
    make(f.copies);
    arrive(f.slot, f.barrier, f.copies.empty() ? 0 : 1, -bytes);
}

static void
send(const flight &f)
{
    emu_progress();
    if (emu_eager) {
        uint32_t own = emu_s;

        deliver(f);
        emu_s = own;
    } else {
        flights.push_back(f);
    }
}

bool
emu_in_flight(void)
{
    return !flights.empty();
}

void
emu_deliver_one(void)
{
    size_t i = emu_rolled() % flights.size();
    flight f = std::move(flights[i]);

    flights.erase(flights.begin() + (long)i);
    deliver(f);
}

void
emu_bulk(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier)
{
    flight f = {};

    check(emu_shared + to, from, bytes);
    if (bytes % 16 != 0) {
        emu_fail("a bulk copy of an odd size");
    }
    f.slot = emu_s, f.to = to, f.bytes = bytes, f.barrier = barrier, f.from = from;
    send(f);
}

void
emu_box(uint32_t to, const CUtensorMap *map, uint32_t x, uint32_t y, uint32_t barrier)
{
    flight f = {};

    if (to % 128 != 0) {
        emu_fail("a box at an odd place");
    }
    f.slot = emu_s, f.to = to, f.barrier = barrier, f.map = map, f.x = x, f.y = y;
    send(f);
}

// To all blocks of the cluster in `mask`.
void
emu_box_all(uint32_t to, const CUtensorMap *map, uint32_t x, uint32_t y, uint32_t barrier, uint32_t mask)
{
    uint32_t own = emu_s, first = emu_all[emu_s].first;

    for (uint32_t rank = 0; rank < emu_cluster_size; rank++) {
        if ((mask >> rank & 1) != 0) {
            emu_s = first + rank;
            emu_box(to, map, x, y, barrier);
            emu_s = own;
        }
    }
}

uint32_t
emu_cluster_rank(void)
{
    return emu_all[emu_s].rank;
}

void
emu_cluster_barrier_arrive(uint32_t barrier)
{
    emu_memory_at(barrier);
    arrive(slot_at(barrier), barrier & 0xffffff, 1, 0);
}

void
emu_cluster_send(uint32_t at, float v, uint32_t barrier)
{
    flight f = {};

    if (slot_at(at) != slot_at(barrier)) {
        emu_fail("a number that counts at another block's barrier");
    }
    emu_memory_at(at);
    f.slot = slot_at(at), f.to = at & 0xffffff, f.bytes = 4, f.barrier = barrier & 0xffffff, f.number = v;
    send(f);
}
