// What an engine will take in memory, told before it takes it.
#pragma once

#include "common/base/err.h"

#include <stddef.h>
#include <stdint.h>

typedef struct {
    char where[16];                  // "cuda:0"; "" = this machine
    size_t weights, scratch, logits; // scratch: the device's and the activations, without the logits
    size_t graphs;                   // a GPU's: steps that it will have recorded
    size_t block_bytes;
    size_t granule;         // the pool is taken in multiples of so many bytes; 0 = 1
    uint32_t blocks_wanted; // max_sequences × context
    uint32_t blocks_fixed;  // given by the config; 0 = as many as fit, at most blocks_wanted
    uint32_t blocks_least;  // fewer are of no use
    size_t memory_max;      // 0 = what `available` says
    size_t available;       // what the device had free before anything was loaded
    size_t spare;           // of it, what shall stay free
    // Derived by bt_engine_plan_make:
    uint32_t blocks;
    size_t kv, total, limit;
} bt_engine_plan;

// Bytes this process may still take: the machine's MemAvailable or what its control group leaves, whichever is less.
// SIZE_MAX where neither can be read.
size_t bt_engine_plan_available(void);

// Decides the blocks. BT_ERR_NO_MEMORY with all figures and the part that does not fit.
bt_err bt_engine_plan_make(bt_engine_plan *plan, bt_why *why);
// Four lines, ENGINE-PLAN.
void bt_engine_plan_log(const bt_engine_plan *plan);
