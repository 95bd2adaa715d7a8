// Draws the next token from a row of logits, and scores given ones (DESIGN 7).
//
// In this order: logit bias, banned ends, repetition penalty (prompt and answer), frequency and presence penalty (answer),
// temperature, min-p, top-k, top-p, Gumbel-max. Top-p weighs in whole numbers (row.h) what min-p and top-k left, and keeps the shortest run by (logit
// falling, id rising) that reaches its share. Temperatures below 1e-5 are greedy. What a row gives depends on the row, the
// settings and the history alone. Log-probabilities are of the raw logits.
#pragma once

#include "common/engine/engine.h"

#include <stddef.h>

typedef struct {
    const float *logits; // [vocab], left as it is
    uint32_t vocab;
    const bt_sampling *sampling; // NULL = greedy
    uint32_t position;           // of the token to draw
    const int32_t *history;      // [history_count], NULL when no penalty is on
    uint32_t history_count, prompt_count;
    const int32_t *ends; // tokens that ignore_eos bans
    uint32_t end_count;
} bt_sample_args;

// Scratch of one thread and one vocabulary, at a 64-byte boundary, zeroed once before its first use.
size_t bt_sample_scratch_bytes(uint32_t vocab);

// BT_ERR_DEVICE when no logit of the row is a number that may be drawn.
bt_err bt_sample(const bt_sample_args *args, void *scratch, bt_token_result *out);

// How a device would draw the same token by itself: false when it takes more than the row as it is (penalties, biases, top-k, top-p, min-p,
// log-probabilities).
bool bt_sample_as_draw(const bt_sampling *sampling, uint32_t vocab, uint32_t position, bool has_history, bt_draw *out);

// The log-probability of `id`, and the `top` best.
bt_err bt_sample_score(const float *logits, uint32_t vocab, int32_t id, uint32_t top, void *scratch,
                       bt_token_result *out);
