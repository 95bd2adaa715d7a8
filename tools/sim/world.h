// A cluster in virtual time that answers a trace: the cores of router, prefill and decode nodes as they are in the programs, links that take a
// while, transfers that share each node's bandwidth, and engines that are a cost (cost.h). Nothing here waits, and one setup gives one result.
//
// Nodes of both kinds are linked in islands: a decode node fetches from the prefill nodes of its island alone, since it knows at most 64 of
// them. The router has links to all.
//
// What is asked of every run, else it fails with BT_ERR_BUG: each request ends, its tokens come once and in order, a fetch is believed only with
// the right epoch and generation, and when all is over no block is lent and no load is counted.
#pragma once

#include "common/base/err.h"
#include "common/base/time.h"
#include "router/core.h"
#include "tools/sim/cost.h"
#include "tools/sim/trace.h"

typedef struct {
    const sim_trace *trace;
    const sim_profile *profile;
    uint32_t prefills, decodes; // nodes; without prefill nodes nothing is disaggregated
    uint32_t unit;              // real tokens that one simulated token stands for
    uint32_t island;            // prefill nodes of an island; 0 = as many as fit
    uint32_t requests_max;      // in the router at once
    uint32_t kv_tokens;         // of a node's pool, real ones; 0 = the profile's
    double rate;                // requests come so many times as fast as in the trace
    double kills_per_hour;      // of the cluster; a killed node is back with another epoch after 10 to 30 s
    bt_time link;               // one way
    bool two_weights;           // prompts must be read at prefill nodes
    bool inexact;               // with two weights: by whichever is sooner after all
    bt_place_policy place;
    uint64_t seed;
} sim_setup;

typedef enum { SIM_OPEN, SIM_DONE, SIM_REFUSED, SIM_LOST } sim_end;

typedef struct {
    bt_time arrived, first, last; // first and last token
    uint32_t tokens;              // simulated ones
    uint32_t moves;
    sim_end end;
} sim_outcome;

#define SIM_SAMPLES_MAX 480
#define SIM_NODES_MAX 1000

typedef struct {
    sim_outcome *outcomes; // [rows of the trace]
    uint32_t count;
    uint32_t waiting[SIM_SAMPLES_MAX], answering[SIM_SAMPLES_MAX]; // requests without, and with, their first token
    uint32_t sample_count;
    bt_time sample_gap, begins, ends; // first arrival, last end
    bt_time *busy;                    // [nodes] prefill nodes first; in steps
    uint32_t nodes;
    uint64_t prompt_tokens, computed_tokens; // of requests that were done; by engines, all
    uint64_t remote, moved, kills, events, fetched_bytes;
} sim_result;

bt_err sim_run(const sim_setup *setup, sim_result *result, bt_why *why);
void sim_result_free(sim_result *result); // accepts a zeroed one
