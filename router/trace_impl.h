// What the files of the trace share: trace.c (the ring) and trace_write.c (the picture).
#pragma once

#include "router/trace.h"

typedef struct {
    uint32_t choice;
    bt_time submitted;
    bt_router_attempt what; // its pointers are not kept
    char decode[BT_NODE_NAME_MAX], prefill[BT_NODE_NAME_MAX];
} bt_trace_seen;

typedef struct {
    uint64_t mark; // 0 = nothing here
    char name[BT_REQUEST_NAME_MAX + 1], outcome[48];
    bt_time arrived, prepared, ended; // 0 = not yet
    uint32_t attempt_count;           // seen; the first ones are kept
    bt_trace_seen attempts[BT_TRACE_ATTEMPTS_MAX];
} bt_trace_record;

struct bt_trace {
    uint32_t capacity;
    uint64_t marks; // given out
    char router[BT_NODE_NAME_MAX];
    bt_trace_record *records; // [capacity]
};
