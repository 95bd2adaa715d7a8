// What the router counts. Names are vLLM's, with baton: for vllm:, where the meaning is the same.
#pragma once

#include "common/metrics/metrics.h"
#include "common/node/link.h"
#include "router/core.h"

typedef struct {
    // Requests by what became of them. A request with n answers is one.
    uint64_t done_stop, done_length, done_mixed, cancelled, failed;
    uint64_t rejected_invalid, rejected_too_long, rejected_busy, rejected_auth, rejected_not_ready;
    uint64_t prompt_tokens, cached_tokens, generation_tokens;
    uint64_t degraded;
    uint64_t http_2xx, http_4xx, http_5xx;
    bt_histogram ttft, inter_token, per_output_token, total, queue, prefill, decode, transfer, text;
    bt_histogram phases[7]; // as in bt_phases
    bt_histogram prompt_length, generation_length;
    // Set when the text is written:
    bt_router_stats core;
    double nodes, running, waiting, calls, choices, connections, ready, leak, resident_bytes, uptime;
} bt_router_metrics;

extern const bt_metric bt_router_metrics_table[];

// One answer's phases.
void bt_router_metrics_note_phases(bt_router_metrics *metrics, const bt_phases *phases);
