// Memory: allocation that tests can make fail and that serving may not do, and arenas.
//
// All of our code allocates through these. After bt_mem_serving_begin() a thread that allocates is caught by an
// assertion in debug builds: everything is planned and opened at start (DESIGN 1.9). Any thread.
#pragma once

#include <stddef.h>
#include <stdint.h>

// NULL when memory is out or the test's turn to fail has come. bt_alloc returns zeroed memory.
void *bt_alloc(size_t bytes) __attribute__((malloc, warn_unused_result));
void *bt_alloc_array(size_t count, size_t bytes) __attribute__((malloc, warn_unused_result)); // NULL on overflow too
void *bt_realloc(void *old, size_t bytes) __attribute__((warn_unused_result));
char *bt_strdup(const char *text) __attribute__((warn_unused_result));
void bt_free(void *memory); // NULL is fine

// Page-backed memory at a 64-byte boundary or better, zeroed, huge pages asked for above 2 MiB. Free with the same size.
void *bt_alloc_pages(size_t bytes) __attribute__((warn_unused_result));
void bt_free_pages(void *memory, size_t bytes);

// The calling thread promises to allocate nothing until the matching end. Counted only in debug builds (BT_DEBUG).
void bt_mem_serving_begin(void);
void bt_mem_serving_end(void);

// Tests only: the nth allocation from now (1 = the next) returns NULL, later ones succeed; 0 switches this off.
void bt_mem_fail_nth(long nth);
// Tests only: allocations that have not been freed.
long bt_mem_live(void);

// An arena: many small allocations freed at once. Zeroed memory, 16-byte aligned. Blocks grow until `limit` bytes in
// all, then NULL. One thread.
typedef struct bt_arena_block bt_arena_block;
typedef struct {
    bt_arena_block *blocks;
    size_t used, limit;
} bt_arena;

void bt_arena_init(bt_arena *arena, size_t limit);
void *bt_arena_alloc(bt_arena *arena, size_t bytes) __attribute__((warn_unused_result));
char *bt_arena_copy(bt_arena *arena, const char *bytes, size_t count) __attribute__((warn_unused_result)); // NUL added
void bt_arena_fini(bt_arena *arena); // accepts a zeroed arena; afterwards it is as after init with the same limit
