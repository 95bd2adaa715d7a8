// What `baton top` shows: a view of a cluster, made of two looks at it (watch.h), written as a picture of text or as JSON.
#pragma once

#include "common/base/buf.h"
#include "common/base/time.h"

#include <stdint.h>

#define BT_TOP_NODES_MAX 256

typedef struct {
    char name[64], role[12], state[12], breaker[12];
    char transport[80], sources[160]; // of a decode node: how blocks come, and whose
    bool measured;                    // its own /metrics answered, twice: the rates are known
    double running, queued, blocks, blocks_used;
    double tokens_per_s; // decode: of answers; prefill: of prompts, computed
    double gb_per_s, gb_per_s_of_proof;
    double hit_rate; // of its prefix cache since its start; −1 = not known
} bt_top_node;

typedef struct {
    char cluster[64], router[64], model[128], state[16];
    double uptime_s, running, queued;
    bool measured; // the rates are known
    double requests_per_s, tokens_per_s, prompt_tokens_per_s;
    // Seconds; of the last ten looks, or where nothing came meanwhile since the router's start.
    bool recent;
    double ttft_count, ttft_p50, ttft_p99, token_p50, token_p99;
    double failed, rejected, cancelled, moves, retries, degraded; // since the router's start
    uint32_t node_count;
    bt_top_node nodes[BT_TOP_NODES_MAX];
} bt_top_view;

// One object, without a line end.
void bt_top_write_json(const bt_top_view *view, bt_buf *out);
// Lines of at most `columns` characters, at most `rows` of them (0 = as many as there are), each ended by `line_end`. `note`: NULL, or
// what is wrong now. `colors`: with ANSI colours.
void bt_top_write_text(const bt_top_view *view, const char *note, unsigned columns, unsigned rows, bool colors,
                       const char *line_end, bt_buf *out);
