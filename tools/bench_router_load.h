// Tiny requests to an HTTP server at a given rate, for `baton bench router`.
//
// Requests leave by a Poisson process over keep-alive connections. A request's time runs from just before it is handed to the kernel to
// the moment at which the kernel had the last byte of its answer (SO_TIMESTAMPING): what the generator itself waits for a CPU, before
// or after, is not in it. Half of them are streamed, half are chats.
#pragma once

#include "common/base/err.h"
#include "common/base/time.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    uint16_t port; // on 127.0.0.1
    uint32_t connections;
    uint32_t count; // requests
    float rate;     // a second
    uint32_t max_tokens;
    uint64_t seed;
} bt_load_options;

typedef struct {
    bt_time took;
    bool streamed, failed;
} bt_load_result;

typedef struct {
    double seconds;
    uint32_t errors;
    uint32_t late; // requests that found no idle connection when they were due
    char first_error[200];
} bt_load_summary;

// Request i asks with seed i and fills results[i].
bt_err bt_load_run(const bt_load_options *options, bt_load_result *results, bt_load_summary *out, bt_why *why);
