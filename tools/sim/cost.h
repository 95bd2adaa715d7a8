// How long a step takes, without an engine: a few figures a machine and model, and the batch.
//
//     step = base + max(weights, prompt tokens · prompt) + pairs · pair      pairs: prompt token × token before it
//                 + answers · answer + context of the answers · read
//
// `weights` is the time to read all weights once, below which no prompt gets, `read` the time to read one token of the KV cache. An engine
// that was measured (`baton bench engine --json`) gives all of them by least squares; the named ones say where they come from.
#pragma once

#include "common/base/err.h"
#include "common/base/time.h"
#include "common/engine/engine.h"

typedef struct {
    double base_us, weights_us, prompt_us, pair_ns, answer_us, read_ns;
} sim_cost;

typedef struct {
    char name[64];
    const char *about; // where the figures come from
    sim_cost prefill, decode;
    uint32_t prefill_chunk, decode_chunk; // tokens of a step
    uint32_t decode_prompt;               // of them for prompts while answers are written
    uint32_t sequences;                   // of a decode node
    uint64_t prefill_kv, decode_kv;       // tokens of the pools
    double kv_bytes;                      // of a token, as it travels
    double gb_s;                          // of a node's way to the others, each direction
} sim_profile;

// A name, or a file of `baton bench engine --json` lines with points of several batches and depths. The error lists the names.
bt_err sim_profile_find(sim_profile *profile, const char *name, bt_why *why);
bt_err sim_profile_fit(sim_cost *cost, const char *lines, bt_why *why); // from the text of such a file

// `unit`: real tokens that one token of the batch stands for. An answer's token is then as many steps.
bt_time sim_cost_step(const sim_cost *cost, const bt_batch_item *items, uint32_t count, uint32_t unit);
