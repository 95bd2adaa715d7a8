#include "tools/session.h"

#include "common/base/mem.h"

#include <string.h>

bt_err
bt_session_open(bt_session *session, bt_engine *engine, uint32_t chunk_tokens)
{
    uint32_t block_tokens = bt_engine_kv_layout(engine)->block_tokens, blocks = bt_engine_kv_blocks(engine);
    uint64_t room = (uint64_t)blocks * block_tokens;

    *session = (bt_session){.engine = engine, .chunk_tokens = chunk_tokens, .cap = bt_engine_context(engine)};
    if (room < session->cap) {
        session->cap = (uint32_t)room;
    }
    session->ids = bt_alloc_array(session->cap, sizeof *session->ids);
    session->blocks = bt_alloc_array(blocks, sizeof *session->blocks);
    if (session->ids == NULL || session->blocks == NULL) {
        bt_session_close(session);
        return BT_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < blocks; i++) {
        session->blocks[i] = i; // the engine is ours alone: block i holds tokens i · block_tokens …
    }
    return BT_OK;
}

void
bt_session_close(bt_session *session)
{
    bt_free(session->ids);
    bt_free(session->blocks);
    memset(session, 0, sizeof *session);
}

bt_err
bt_session_prompt(bt_session *session, const int32_t *ids, uint32_t count, uint32_t *reused, bt_why *why)
{
    uint32_t same = 0;

    if (count == 0) {
        return bt_fail(why, BT_ERR_INVALID, "the prompt has no tokens");
    }
    if (count >= session->cap) {
        return bt_fail(why, BT_ERR_TOO_LONG, "the prompt has %u tokens, the context holds %u with the answer", count,
                       session->cap);
    }
    while (same < session->cached && same + 1 < count && session->ids[same] == ids[same]) {
        same++;
    }
    memcpy(session->ids, ids, count * sizeof *ids);
    session->count = session->prompt_count = count;
    session->cached = same;
    *reused = same;
    return BT_OK;
}

bt_err
bt_session_next(bt_session *session, const bt_sampling *sampling, bt_token_result *drawn)
{
    bt_step_result result = {.drawn = drawn};

    if (session->count >= session->cap) {
        return BT_ERR_TOO_LONG;
    }
    while (session->cached < session->count) {
        uint32_t left = session->count - session->cached;
        bt_batch_item item = {
            .ids = session->ids + session->cached,
            .count = left < session->chunk_tokens ? left : session->chunk_tokens,
            .position = session->cached,
            .blocks = session->blocks,
            .sampling = sampling,
            .history = session->ids,
            .prompt_count = session->prompt_count,
            .next_id = -1,
        };
        bt_err err;

        item.want = item.count == left ? BT_LOGITS_LAST : BT_LOGITS_NONE;
        if ((err = bt_engine_step(session->engine, &item, 1, &result)) != BT_OK) {
            return err;
        }
        session->cached += item.count;
    }
    session->ids[session->count++] = drawn->id;
    return BT_OK;
}
