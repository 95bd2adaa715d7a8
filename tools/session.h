// One stream on an engine of its own, for the commands that talk to a single person: the ids so far, the blocks that
// hold them, and the next draw. Ids that the cache already holds are not computed again.
#pragma once

#include "common/engine/engine.h"

typedef struct {
    bt_engine *engine;
    int32_t *ids; // [cap] everything so far
    uint32_t *blocks;
    uint32_t count;  // ids known
    uint32_t cached; // of them in the cache
    uint32_t cap;    // context, or fewer when the pool holds fewer tokens
    uint32_t prompt_count;
    uint32_t chunk_tokens;
} bt_session;

// `engine` is borrowed.
bt_err bt_session_open(bt_session *session, bt_engine *engine, uint32_t chunk_tokens);
void bt_session_close(bt_session *session); // accepts a zeroed one

// Makes `ids` the prompt: what it shares with the ids so far stays cached (at least one id is left to compute).
// *reused is the number of ids that were. BT_ERR_TOO_LONG when they and one answer token do not fit.
bt_err bt_session_prompt(bt_session *session, const int32_t *ids, uint32_t count, uint32_t *reused, bt_why *why);

// Computes what is not cached yet and draws the next id, which is appended. BT_ERR_TOO_LONG when the context is full.
bt_err bt_session_next(bt_session *session, const bt_sampling *sampling, bt_token_result *drawn);
