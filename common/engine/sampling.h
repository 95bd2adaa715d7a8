// How tokens are drawn and what comes of it: plain data that engine, messages and router share. It has no address of anything
// and may be copied, sent and stored.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define BT_LOGIT_BIAS_MAX 300
#define BT_TOP_LOGPROBS_MAX 20

// How a request's tokens are drawn (DESIGN 7): Gumbel-max with noise keyed by (seed, position, token id), ties to the lower
// id; top-p sums over (logit falling, id rising). Plain data, travels with the job.
typedef struct {
    float temperature;                         // 0 = greedy
    float top_p;                               // 1 = off
    float min_p;                               // 0 = off
    uint32_t top_k;                            // 0 = off
    float repetition_penalty;                  // 1 = off; over prompt and answer
    float presence_penalty, frequency_penalty; // 0 = off; over the answer
    uint64_t seed;
    uint32_t top_logprobs; // alternatives to report, ≤ BT_TOP_LOGPROBS_MAX
    bool logprobs;         // report the drawn token's log-probability (of the raw logits, as vLLM and OpenAI do)
    bool ignore_eos;       // never draws an end token
    uint32_t bias_count;
    int32_t bias_ids[BT_LOGIT_BIAS_MAX];
    float bias_values[BT_LOGIT_BIAS_MAX];
} bt_sampling;

// A token and how likely it was.
typedef struct {
    int32_t id;
    float logprob;
    uint32_t top_count;
    int32_t top_ids[BT_TOP_LOGPROBS_MAX];
    float top_logprobs[BT_TOP_LOGPROBS_MAX]; // falling, ties to the lower id
} bt_token_result;
