// What emulated.cpp (threads and blocks) and memory.cpp (copies and products) know of each other.
#pragma once

#include "ptx.h"

#include <setjmp.h>
#include <ucontext.h>
#include <vector>

typedef struct {
    void *to;
    const void *from;
    uint32_t bytes;
} emu_one_copy;

typedef struct {
    uint32_t n;
    int32_t *d;
    uint8_t a[2][32]; // rows g and g + 8
    bool shared, a_unsigned, b_unsigned;
    uint64_t a_desc, b;
    int add;
} emu_product;

typedef struct {
    ucontext_t context;
    jmp_buf at;
    bool begun, done;
    uint32_t cluster_seen, or_times;
    std::vector<emu_one_copy> copies, stores;
    std::vector<std::vector<emu_one_copy>> copy_groups;
    std::vector<emu_product> products;
    std::vector<std::vector<emu_product>> product_groups;
} emu_fiber;

typedef struct {
    uint32_t arrived, times;
} emu_meeting;

typedef struct {
    uint32_t made; // by which block: of others, it is none
    uint32_t count, arrived, times;
    int64_t bytes;
} emu_phases;

typedef struct {
    uint32_t arrived, times, words[2][32][16];
} emu_warp_state;

typedef struct {
    bool used;
    uint3 index;
    uint32_t number, first, rank, left; // `first`: the slot of the cluster's block 0
    uint8_t *memory;
    char *stacks;
    emu_fiber *fibers;
    emu_phases *barriers; // [EMU_SHARED / 8]
    emu_warp_state warps[EMU_THREADS / 32];
    emu_meeting meetings[16], cluster;
    bool any[3]; // of __syncthreads_or, by turns
} emu_slot;

extern emu_slot emu_all[EMU_SLOTS];
extern uint32_t emu_s, emu_now, emu_shared_bytes, emu_cluster_size,
    emu_threads; // the slot and the thread whose turn it is

static inline emu_fiber *
emu_self(void)
{
    return &emu_all[emu_s].fibers[emu_now];
}

uint32_t emu_rolled(void);
bool emu_in_flight(void);
void emu_deliver_one(void);                 // any of what is in flight
bool emu_is_waited_for(const emu_fiber *f); // something that it began was left
