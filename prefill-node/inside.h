// What the files of the prefill core share: core.c (opening, time, what comes next), hear.c (messages), outcome.c (results of a step),
// offer.c (what decode nodes are told, and how long it holds). Nobody else includes this.
#pragma once

#include "prefill-node/chunk.h"
#include "prefill-node/core.h"
#include "prefill-node/job.h"

typedef struct {
    bool up;    // the link
    bool known; // it said HELLO
    bt_node_role role;
    char name[BT_NODE_NAME_MAX];
    uint64_t epoch;
    bt_time lease_end;
    uint64_t tokens_number; // of the last TOKENS message since our HELLO
} bt_prefill_peer;

struct bt_prefill_core {
    bt_prefill_limits limits;
    bt_prompts prompts;
    bt_kv_pool *pool;
    bt_kv_prefix *prefix;
    bt_chunker chunker;
    bt_prefill_peer peers[BT_PREFILL_PEERS_MAX];
    bt_prefill_stats stats;
    bool stepping; // a step runs
    bool draining;
    bool unfinished; // the actions were full; a TICK goes on
    bt_time last_step, next_heartbeat, next_expiry;
    uint64_t heartbeats;

    // Of this call:
    bt_prefill_actions *out;
    bt_offer_block *stamps; // [blocks]
    bt_block *clears;       // [blocks]
    bt_offer_block *offers; // [BT_OFFER_BLOCKS_MAX] behind the offers of this call
    uint32_t offer_count;
    bt_tokens_entry *news, *sorted; // [news_max]
    bt_token_result *news_tokens;   // [news_max]
    uint32_t *news_peer;            // [news_max]
    uint32_t news_count, news_max;
};

bt_message *bt_prefill_say(bt_prefill_actions *out, uint32_t peer, bt_message_kind kind);
void bt_prefill_greet(bt_prefill_core *core, bt_prefill_actions *out, uint32_t peer);
bool bt_prefill_full(const bt_prefill_actions *out); // no send may be added but those of the call's end

// A new entry of this call's news about the request; NULL when its router is not there to hear.
bt_tokens_entry *bt_prefill_news(bt_prefill_core *core, uint32_t router, bt_request_id request);
// The prompt is over: its router hears so unless it heard before, its blocks are given back now or when the step that uses them is over.
void bt_prefill_end(bt_prefill_core *core, bt_prompt *prompt, bt_finish finish, bt_err err);
void bt_prefill_free(bt_prefill_core *core, bt_prompt *prompt);
void bt_prefill_note_end(bt_prefill_core *core, const bt_prompt *prompt, bt_finish finish, bt_err err); // for the log
void bt_prefill_expires(bt_prefill_core *core, bt_time at); // a sweep is due then

// hear.c
void bt_prefill_hear(bt_prefill_core *core, bt_time now, uint32_t peer, const bt_message *message,
                     bt_prefill_actions *out);
void bt_prefill_lose(bt_prefill_core *core, bt_time now, uint32_t peer); // whatever depends on this peer

// outcome.c
void bt_prefill_stepped(bt_prefill_core *core, bt_time now, bt_err err, bt_prefill_actions *out);
