// Decode nodes that compute nothing, for `baton bench router`: the real core behind a real link, with an engine that answers at once.
//
// Their own time is noted request by request, so that it can be taken off what a client waited for. They run in a process of their own.
#pragma once

#include "common/base/err.h"
#include "common/base/time.h"

#include <stdatomic.h>
#include <stdint.h>

#define BT_MOCK_NODES_MAX 8
#define BT_MOCK_CONTEXT 4096

// By the seed that a request draws with: nanoseconds that nodes spent on it, from hearing a message to having answered it. Shared memory.
typedef struct {
    uint32_t count;
    _Atomic int64_t spent[]; // [count]
} bt_mock_ledger;

typedef struct {
    uint32_t count; // of nodes
    const char *secret;
    uint64_t model, weights, layout; // what the router expects of a node
    uint32_t kv_format;
    uint32_t vocab;
    bt_mock_ledger *ledger;
    int ports_fd; // gets `count` ports as uint16_t once all listen
} bt_mock_options;

// Serves until the process is killed; returns an exit code only when it could not begin.
int bt_mock_nodes_run(const bt_mock_options *options);
