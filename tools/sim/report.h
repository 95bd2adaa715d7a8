// What came of a run, in figures: what `baton sim` prints, writes as JSON and draws.
#pragma once

#include "common/base/buf.h"
#include "tools/sim/world.h"

#define SIM_RUNS_MAX 12
#define SIM_CURVE 200 // points of a distribution

typedef struct {
    double p50, p90, p99, mean;
} sim_spread;

typedef struct {
    const char *policy;
    bool disaggregated;
    uint32_t prefills, decodes;
    uint32_t done, refused, lost, good; // requests; good: done within both limits
    sim_spread ttft_ms, tpot_ms;
    double seconds;                   // from the first arrival to the last end
    double good_share, good_s;        // of all requests; a second
    double answer_tokens_s;           // real ones
    double hit_rate;                  // prompt tokens that no engine computed
    double remote_share;              // prompts read at a prefill node
    double prefill_busy, decode_busy; // mean share of the time in steps
    double transfer_gb;
    uint64_t moved, kills, events;
    double ttft_curve[SIM_CURVE]; // ms at the shares (i + 1) / SIM_CURVE of those with a first token
    double busy[SIM_NODES_MAX];   // of each node, prefill nodes first
    uint32_t waiting[SIM_SAMPLES_MAX];
    uint32_t sample_count;
    double sample_s; // between samples
} sim_summary;

typedef struct {
    const sim_setup *setup; // of all runs but for policy and pools
    const char *trace_name;
    double slo_ttft_ms, slo_tpot_ms;
    double reuse_node, reuse_pool,
        reuse_endless; // what one node's cache, all as one, and one without end would have found
    double kv_node;    // tokens of that node's
    sim_summary *runs; // [run_count]
    uint32_t run_count;
} sim_report;

const char *sim_policy_name(bt_place_policy policy); // "ours", "least-load", "random"

// BT_ERR_NO_MEMORY at worst.
bt_err sim_summarize(const sim_report *report, const sim_setup *setup, const sim_result *result, sim_summary *out);

void sim_report_json(const sim_report *report, bt_buf *out); // one object
void sim_report_text(const sim_report *report, bt_buf *out); // a table for a person
void sim_report_html(const sim_report *report, bt_buf *out); // a page of its own, drawings inside (plot.c)
