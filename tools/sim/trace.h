// A trace of requests: when each came, how long prompt and answer were, and, where the trace tells, which prompts begin alike.
//
// Three forms, told apart by how the file begins, each plain or as .gz:
//     Mooncake   JSON lines {"timestamp": ms, "input_length", "output_length", "hash_ids": one for each 512 tokens}
//     Azure      CSV with TIMESTAMP,ContextTokens,GeneratedTokens
//     Vidur      CSV with arrived_at,num_prefill_tokens,num_decode_tokens
// A hash id stands for its 512 tokens and all before them: prompts with equal ids begin with equal tokens.
#pragma once

#include "common/base/err.h"
#include "common/base/time.h"

#include <stdint.h>

#define SIM_HASH_TOKENS 512u
#define SIM_HASH_NONE UINT32_MAX

typedef struct {
    bt_time at;              // since the first request
    uint32_t prompt, answer; // tokens, ≥ 1
    uint32_t
        hash; // first of its ids in `hashes`, ceil(prompt / 512) of them; SIM_HASH_NONE: the prompt is like no other
} sim_row;

typedef struct {
    sim_row *rows; // by time
    uint64_t *hashes;
    uint32_t count, count_max, hash_count, hash_max;
} sim_trace;

// At most `requests` rows are kept (0 = all). Errors name file and line.
bt_err sim_trace_read(sim_trace *trace, const char *path, uint32_t requests, bt_why *why);
// The same from text in memory; `name` is for errors.
bt_err sim_trace_parse(sim_trace *trace, const char *text, const char *name, uint32_t requests, bt_why *why);
void sim_trace_free(sim_trace *trace); // accepts a zeroed one

// The longest prompt with its answer, in tokens.
uint32_t sim_trace_longest(const sim_trace *trace);

// The share of prompt tokens, 0 to 1, that one cache of so many tokens, dropping the longest unused 512 first, would have when all requests
// came to it in order; `tokens` 0 = a cache without end. In whole hash blocks. BT_ERR_NO_MEMORY at worst.
bt_err sim_trace_reuse(const sim_trace *trace, uint64_t tokens, double *share);

// Token `position` of a row's prompt: below 2^30, equal where hash ids are.
int32_t sim_trace_id(const sim_trace *trace, uint32_t row, uint32_t position);
