// Decides what a prefill node does: whose prompt is read in the next step, what is offered to whom, how long it is held. Knows no
// sockets, no clock, no engine and no memory: its edge gives it each event and carries out its actions. One thread. Everything is
// allocated at open.
//
//     WAITING ──blocks──▶ READING ──last chunk──▶ HOLDING ──TAKEN, or end of the lease──▶ gone
//        └──────────── abort, router lost, deadline: gone, or ENDING while a step uses its blocks
//
//     router                          prefill node                              decode node
//       |  HELLO ⇄ HELLO                   |   HELLO ⇄ HELLO, then DESCRIPTION        |   both speak first here
//       |  PREFILL(job, ticket) ---------> |  a step …  stamp, OFFER ---------------> |   chunk by chunk
//       |                                  |  a step …  stamp, OFFER(last, token) --> |
//       |  <--- TOKENS(first token, end)   |  <------------------------ TAKEN(count)  |
//
// What a router hears of a PREFILL is one entry with its end, in a TOKENS message: LENGTH with the first token (where one was to be
// drawn): the prompt is read and offered; ERROR: it is not (PEER: the ticket's decode node is not connected here, or said no);
// CANCELLED: its ABORT. The decode node reports the first token once more, so that the loss of either message costs nothing.
//
// All blocks of a prompt are taken when it begins, as adjacent as they can be, so that they travel in few reads. A finished block is
// stamped before it is offered and not written again. Blocks are held for a decode node as long as it sends heartbeats and at most
// `hold_max`; for one whose link is down, until the end of the lease. Releasing early is safe in any case: a late read finds another
// generation.
#pragma once

#include "common/engine/engine.h"
#include "common/kv/pool.h"
#include "common/wire/message.h"

#define BT_PREFILL_PEERS_MAX 80 // routers and decode nodes
#define BT_PREFILL_ACTIONS_MAX 512

typedef struct {
    char name[BT_NODE_NAME_MAX];
    uint64_t epoch;                  // not 0
    uint64_t model, weights, layout; // digests; a decode node with another model or layout is refused
    uint32_t kv_format;              // for HELLO: 1 + bt_kv_format
    uint32_t sequences;              // items of a step; the engine's max_sequences
    uint32_t prompts;                // here at once: waiting, read or held
    uint32_t chunk_tokens;           // of a step
    uint32_t logit_rows;             // the engine's logit_rows_max; 0 = sequences
    uint32_t blocks, block_tokens;   // of the engine's pool
    uint32_t context, vocab;
    bt_time lease;              // 0 = 30 s
    bt_time hold_max;           // 0 = 10 leases
    bt_time heartbeat;          // 0 = 1 s
    const uint8_t *description; // how the pool is read from outside (bt_transfer_describe); borrowed
    uint32_t description_bytes;
} bt_prefill_limits;

typedef enum {
    BT_PREFILL_LINK_UP,
    BT_PREFILL_LINK_DOWN,
    BT_PREFILL_MESSAGE,
    BT_PREFILL_STEPPED, // the step that was begun is over; results are where its batch said
    BT_PREFILL_DRAIN,
    BT_PREFILL_TICK,
} bt_prefill_event_kind;

typedef struct {
    bt_prefill_event_kind kind;
    uint32_t peer;             // LINK_…, MESSAGE: < BT_PREFILL_PEERS_MAX
    const bt_message *message; // MESSAGE
    bt_err err;                // STEPPED
    bt_time duration;          // STEPPED
} bt_prefill_event;

typedef struct {
    uint32_t peer;
    bt_message message;
} bt_prefill_send;

// A prompt that is over, for the log.
typedef struct {
    char name[BT_JOB_NAME_MAX + 1]; // of the client's request
    bt_finish finish;               // LENGTH: read, and taken by its decode node
    bt_err err;
    uint32_t tokens, cached_tokens, computed_tokens;
    bt_phases phases;
    bt_time total; // since it came
} bt_prefill_ended;

#define BT_PREFILL_ENDED_MAX 64 // said of one call; a peer that is lost may end more

// To be carried out in this order: stamps, sends, clears, step.
typedef struct {
    uint32_t ended_count; // more than BT_PREFILL_ENDED_MAX: those after it are not there
    bt_prefill_ended ended[BT_PREFILL_ENDED_MAX];
    const bt_offer_block *stamps; // trailers to be written: these blocks are finished
    uint32_t stamp_count;
    uint32_t send_count;
    bt_prefill_send send[BT_PREFILL_ACTIONS_MAX];
    const bt_block *clears; // trailers to be voided: these blocks were lent anew
    uint32_t clear_count;
    const bt_batch *step; // for the engine; unchanged until STEPPED. NULL = none to begin
} bt_prefill_actions;

typedef struct bt_prefill_core bt_prefill_core;

bt_err bt_prefill_core_open(bt_prefill_core **out, const bt_prefill_limits *limits, bt_why *why);
void bt_prefill_core_close(bt_prefill_core *core); // NULL is fine

void bt_prefill_core_step(bt_prefill_core *core, bt_time now, const bt_prefill_event *event, bt_prefill_actions *out);
bt_time bt_prefill_core_next_deadline(const bt_prefill_core *core);

typedef struct {
    // Now:
    uint32_t waiting, reading, holding, ending;
    uint32_t blocks, blocks_free,
        blocks_cached; // free: on no table and in no cache; cached: in the prefix cache and unheld
    int64_t leak;      // blocks that nobody accounts for; zero, always
    // Since open:
    uint64_t steps, step_items, step_tokens;
    bt_time step_time;
    uint64_t prompt_tokens; // computed
    uint64_t cached_tokens; // of prompts, found here
    uint64_t offered_blocks, offers;
    uint64_t begun, refused_busy, refused_other, read, taken, aborted, expired, failed_steps;
    uint64_t late_messages; // for prompts that are gone
    uint64_t bad_messages;
    uint64_t refused_peers; // decode nodes of another model or layout
} bt_prefill_stats;

void bt_prefill_core_get_stats(const bt_prefill_core *core, bt_prefill_stats *out);

// For checkers in tests: are states, tables and holds in agreement?
bool bt_prefill_core_sound(const bt_prefill_core *core, bt_why *why);
