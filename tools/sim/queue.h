// What is to happen, in order of time; what was put in first goes first among equals, so that a run repeats.
#pragma once

#include "common/base/err.h"
#include "common/base/time.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    bt_time at;
    uint64_t serial; // set by push
    uint32_t kind, node, life;
    void *what;
} sim_event;

typedef struct {
    sim_event *events; // a binary heap
    size_t count, max;
    uint64_t serial;
} sim_queue;

bt_err sim_queue_push(sim_queue *queue, sim_event event);
bool sim_queue_pop(sim_queue *queue, sim_event *out); // false when empty
void sim_queue_free(sim_queue *queue);                // not what the events point to
