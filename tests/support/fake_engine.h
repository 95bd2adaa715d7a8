// An engine whose every token tells whether the cache was right: a cell of the cache holds a hash of all tokens up to its own, made
// from the cell before it as found in the cache, and a drawn token is a hash of all cells attended to. One wrong, stale or missing cell
// anywhere changes the answer. No weights, no time. Asserts by itself what an engine may ask of its batches.
#pragma once

#include "common/engine/engine.h"

typedef struct {
    uint64_t *cells; // [blocks, block_tokens]
    uint32_t blocks, block_tokens, vocab;
    uint32_t sequences, chunk_tokens, logit_rows; // limits of a step
    uint64_t weights; // goes into every cell it writes: two engines agree when theirs are equal
} fake_engine;

void fake_engine_init(fake_engine *engine); // the sizes are filled in; allocates the cells, full of rubbish
void fake_engine_fini(fake_engine *engine);
void fake_engine_step(fake_engine *engine, const bt_batch_item *items, uint32_t count, const bt_step_result *result);

// The same from ids alone, without a cache: the token after ids[0 .. count), and the score of `id` there.
bt_token_result fake_engine_draw(const int32_t *ids, uint32_t count, uint64_t seed, uint32_t vocab);
// The same where the first `prompt` cells were written by one engine's weights and the rest by another's.
bt_token_result fake_engine_draw_of(const int32_t *ids, uint32_t prompt, uint32_t count, uint64_t prompt_weights,
                                    uint64_t weights, uint64_t seed, uint32_t vocab);
bt_token_result fake_engine_score(const int32_t *ids, uint32_t count, int32_t id);
