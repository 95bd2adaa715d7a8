// What the files of the decode core share: core.c (opening, time, what comes next), hear.c (messages), outcome.c (results of a step),
// fetch.c (prefill nodes and what comes from them).
// Nobody else includes this.
#pragma once

#include "decode-node/batch.h"
#include "decode-node/core.h"
#include "decode-node/room.h"

typedef struct {
    bool up;    // the link
    bool known; // it said HELLO: it may have sequences here
    uint64_t epoch;
    uint64_t proved;        // of a prefill node: epoch of the program whose memory can be read; 0 = none
    bt_time lease_end;      // of a router; for a prefill node: when it counts as lost
    uint64_t tokens_number; // of the last TOKENS message since our HELLO
    char name[BT_NODE_NAME_MAX];
} bt_decode_peer;

// What has been offered, in memory for as many sequences as can hold room.
typedef struct {
    bt_offer_block *blocks; // [sequences, list_max]
    uint32_t list_max;
    uint32_t *free; // [sequences] lists that nobody uses
    uint32_t free_count;
    bt_transfer_block *wanted; // [fetch_blocks] behind the action
    bt_token_result token;     // behind the news of a sequence that joined
} bt_decode_fetches;

struct bt_decode_core {
    bt_decode_limits limits;
    bt_sequences sequences;
    bt_room room;
    bt_batcher batcher;
    bt_decode_peer peers[BT_DECODE_PEERS_MAX];
    bt_decode_fetches fetches;
    bt_decode_actions *out; // of this call
    bt_decode_stats stats;
    bool stepping; // a step runs
    bool draining;
    bool unfinished; // the sends were full; a TICK goes on
    bt_time last_step, next_heartbeat, next_expiry;
    uint64_t heartbeats;
    uint64_t sources[BT_SOURCES_MAX]; // as routers were told last
    uint32_t source_count;

    // News of this call, sent at its end: one TOKENS message a router.
    bt_tokens_entry *news, *sorted; // [news_max]
    uint32_t *news_peer;            // [news_max]
    uint32_t news_count, news_max;
};

bt_message *bt_decode_say(bt_decode_core *core, bt_decode_actions *out, uint32_t peer, bt_message_kind kind);
void bt_decode_greet(bt_decode_core *core, bt_decode_actions *out, uint32_t peer);
void bt_decode_beat(bt_decode_core *core, bt_decode_actions *out, uint32_t peer);

// The sequence whose room the ticket names; NULL when that is over.
bt_sequence *bt_decode_by_ticket(bt_decode_core *core, const bt_ticket *ticket);

// A new entry of this call's news about the sequence; NULL when its router is not there to hear.
bt_tokens_entry *bt_decode_news(bt_decode_core *core, const bt_sequence *sequence);
// The sequence is over: its router hears so (if `tell`), its room is given back now or when the step that uses it is over.
void bt_decode_end(bt_decode_core *core, bt_sequence *sequence, bt_finish finish, bt_err err, bool tell);
// All sequences of a router are over, silently.
void bt_decode_end_peer(bt_decode_core *core, uint32_t peer);
// Frees a sequence that is ENDING when neither a step nor a fetch uses its blocks any more.
void bt_decode_free_unused(bt_decode_core *core, bt_sequence *sequence);

// hear.c
void bt_decode_hear(bt_decode_core *core, bt_time now, uint32_t peer, const bt_message *message,
                    bt_decode_actions *out);
// outcome.c
bool bt_decode_is_end_token(const bt_sequence *sequence, int32_t id);
void bt_decode_stepped(bt_decode_core *core, bt_time now, bt_err err);
