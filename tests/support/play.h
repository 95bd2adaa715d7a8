// Plays requests on an engine as a node would, with the pool, tables and prefix index: what the tests of token streams
// share. Everything that must not matter is an option.
#pragma once

#include "common/engine/engine.h"

typedef struct {
    const int32_t *prompt;
    uint32_t prompt_count, answer_count; // tokens wanted; ends are not looked at
    const bt_sampling *sampling;         // NULL = greedy
    int32_t *answer;                     // [answer_count]
    float *logprobs;                     // [answer_count] when the sampling asks for them, or NULL
    uint32_t cached;                     // out: prompt tokens that the prefix index gave
} bt_play_request;

typedef struct {
    uint32_t batch; // sequences at a time
    uint32_t chunk; // tokens a step
    bool prefix;    // index finished blocks and look prompts up
} bt_play_options;

// Fails the test on any error, and when a block is not given back.
void bt_play(bt_engine *engine, bt_play_request *requests, uint32_t count, const bt_play_options *options);

// Opens with defaults for tests (context and pool as small as fits): fails the test with the engine's words.
bt_engine *bt_play_open(const bt_engine_options *options);
