#include "common/base/mem.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static _Atomic long fail_in;
static _Atomic long live;
#ifdef BT_DEBUG
static _Thread_local int serving;
#endif

static int
refuse(void)
{
#ifdef BT_DEBUG
    assert(serving == 0 && "a serving thread allocates");
#endif
    if (atomic_load_explicit(&fail_in, memory_order_relaxed) == 0) {
        return 0;
    }
    return atomic_fetch_sub(&fail_in, 1) == 1;
}

static void *
counted(void *memory)
{
    if (memory != NULL) {
        atomic_fetch_add_explicit(&live, 1, memory_order_relaxed);
    }
    return memory;
}

void *
bt_alloc(size_t bytes)
{
    return refuse() ? NULL : counted(calloc(1, bytes != 0 ? bytes : 1));
}

void *
bt_alloc_array(size_t count, size_t bytes)
{
    size_t total;

    return __builtin_mul_overflow(count, bytes, &total) ? NULL : bt_alloc(total);
}

void *
bt_realloc(void *old, size_t bytes)
{
    if (old == NULL) {
        return bt_alloc(bytes);
    }
    return refuse() ? NULL : realloc(old, bytes != 0 ? bytes : 1);
}

char *
bt_strdup(const char *text)
{
    size_t bytes = strlen(text) + 1;
    char *copy = bt_alloc(bytes);

    return copy != NULL ? memcpy(copy, text, bytes) : NULL;
}

void
bt_free(void *memory)
{
    if (memory != NULL) {
        atomic_fetch_sub_explicit(&live, 1, memory_order_relaxed);
        free(memory);
    }
}

#define HUGE_PAGE ((size_t)2 << 20)

static size_t
page_rounded(size_t bytes)
{
    size_t page = bytes >= HUGE_PAGE ? HUGE_PAGE : 4096;

    return (bytes + page - 1) / page * page;
}

void *
bt_alloc_pages(size_t bytes)
{
    size_t rounded = page_rounded(bytes != 0 ? bytes : 1);
    size_t slack = rounded >= HUGE_PAGE ? HUGE_PAGE : 0;
    uint8_t *memory, *aligned;

    if (rounded < bytes || refuse()) {
        return NULL;
    }
    memory = mmap(NULL, rounded + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        return NULL;
    }
    aligned = memory;
    if (slack != 0) {
        // Trim to a huge-page boundary, or the kernel cannot use huge pages at either end.
        aligned = (uint8_t *)(((uintptr_t)memory + HUGE_PAGE - 1) & ~(uintptr_t)(HUGE_PAGE - 1));
        if (aligned != memory) {
            munmap(memory, (size_t)(aligned - memory));
        }
        if (aligned + rounded != memory + rounded + slack) {
            munmap(aligned + rounded, (size_t)(memory + rounded + slack - (aligned + rounded)));
        }
        madvise(aligned, rounded, MADV_HUGEPAGE);
    }
    return counted(aligned);
}

void
bt_free_pages(void *memory, size_t bytes)
{
    if (memory != NULL) {
        atomic_fetch_sub_explicit(&live, 1, memory_order_relaxed);
        munmap(memory, page_rounded(bytes != 0 ? bytes : 1));
    }
}

void
bt_mem_serving_begin(void)
{
#ifdef BT_DEBUG
    serving++;
#endif
}

void
bt_mem_serving_end(void)
{
#ifdef BT_DEBUG
    serving--;
#endif
}

void
bt_mem_fail_nth(long nth)
{
    atomic_store(&fail_in, nth);
}

long
bt_mem_live(void)
{
    return atomic_load(&live);
}

struct bt_arena_block {
    bt_arena_block *next;
    size_t used, size;
    _Alignas(16) uint8_t bytes[];
};

void
bt_arena_init(bt_arena *arena, size_t limit)
{
    *arena = (bt_arena){.limit = limit};
}

void *
bt_arena_alloc(bt_arena *arena, size_t bytes)
{
    bt_arena_block *block = arena->blocks;
    size_t rounded = (bytes + 15) & ~(size_t)15;
    void *out;

    if (rounded < bytes || rounded > arena->limit - arena->used) {
        return NULL;
    }
    if (block == NULL || rounded > block->size - block->used) {
        size_t size = rounded > 4096 - sizeof *block ? rounded : 4096 - sizeof *block;

        if (block != NULL && size < 2 * block->size && block->size < ((size_t)1 << 20)) {
            size = 2 * block->size;
        }
        block = bt_alloc(sizeof *block + size);
        if (block == NULL) {
            return NULL;
        }
        block->size = size;
        block->next = arena->blocks;
        arena->blocks = block;
    }
    out = block->bytes + block->used;
    block->used += rounded;
    arena->used += rounded;
    return out;
}

char *
bt_arena_copy(bt_arena *arena, const char *bytes, size_t count)
{
    char *copy = count < SIZE_MAX ? bt_arena_alloc(arena, count + 1) : NULL;

    if (copy != NULL && count != 0) {
        memcpy(copy, bytes, count);
    }
    return copy;
}

void
bt_arena_fini(bt_arena *arena)
{
    while (arena->blocks != NULL) {
        bt_arena_block *next = arena->blocks->next;

        bt_free(arena->blocks);
        arena->blocks = next;
    }
    arena->used = 0;
}
