// What the files of the decode core share: core.c (opening, time, what comes next), hear.c (messages), outcome.c (results of a step).
// Nobody else includes this.
#pragma once

#include "decode-node/batch.h"
#include "decode-node/core.h"
#include "decode-node/room.h"

typedef struct {
    bool up;    // the link
    bool known; // it said HELLO: it may have sequences here
    uint64_t epoch;
    bt_time lease_end;
    uint64_t tokens_number; // of the last TOKENS message since our HELLO
} bt_decode_peer;

struct bt_decode_core {
    bt_decode_limits limits;
    bt_sequences sequences;
    bt_room room;
    bt_batcher batcher;
    bt_decode_peer peers[BT_DECODE_ROUTERS_MAX];
    bt_decode_stats stats;
    bool stepping; // a step runs
    bool draining;
    bool unfinished; // the sends were full; a TICK goes on
    bt_time last_step, next_heartbeat, next_expiry;
    uint64_t heartbeats;

    // News of this call, sent at its end: one TOKENS message a router.
    bt_tokens_entry *news, *sorted; // [news_max]
    uint32_t *news_peer;            // [news_max]
    uint32_t news_count, news_max;
};

bt_message *bt_decode_say(bt_decode_core *core, bt_decode_actions *out, uint32_t peer, bt_message_kind kind);
void bt_decode_greet(bt_decode_core *core, bt_decode_actions *out, uint32_t peer);

// A new entry of this call's news about the sequence; NULL when its router is not there to hear.
bt_tokens_entry *bt_decode_news(bt_decode_core *core, const bt_sequence *sequence);
// The sequence is over: its router hears so (if `tell`), its room is given back now or when the step that uses it is over.
void bt_decode_end(bt_decode_core *core, bt_sequence *sequence, bt_finish finish, bt_err err, bool tell);
// All sequences of a router are over, silently.
void bt_decode_end_peer(bt_decode_core *core, uint32_t peer);
void bt_decode_free(bt_decode_core *core, bt_sequence *sequence);

// hear.c
void bt_decode_hear(bt_decode_core *core, bt_time now, uint32_t peer, const bt_message *message,
                    bt_decode_actions *out);
// outcome.c
void bt_decode_stepped(bt_decode_core *core, bt_time now, bt_err err);
