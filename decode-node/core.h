// Decides what a decode node does: who gets room, who is in the next step, when a sequence ends. Knows no sockets, no clock and no
// engine: the edge (decode-node/main.h) gives it each event and carries out its actions. One thread. Everything is allocated at open.
//
//     WAITING ──room──▶ GRANTED ──START──▶ PREFILLING ──last chunk──▶ DECODING ──▶ gone
//        |                 └──AWAIT, OFFER──▶ FETCHING ──all here────────▲
//        └─────── abort, lease, link, deadline: from every phase ──▶ gone, or ENDING while a step or a fetch uses its blocks
//
// Room is granted for the worst case, prompt + max_tokens, in the order of arrival, so that a sequence once granted never waits for
// blocks. Blocks are taken as they are needed: what is promised and not yet taken stays lent to the prefix cache.
//
// Peers below BT_DECODE_ROUTERS_MAX are routers, those from there on prefill nodes, to which this node speaks first (fetch.h).
#pragma once

#include "common/engine/engine.h"
#include "common/transfer/transfer.h"
#include "common/wire/message.h"

#define BT_DECODE_ROUTERS_MAX 16
#define BT_DECODE_SOURCES_MAX BT_SOURCES_MAX // prefill nodes
#define BT_DECODE_PEERS_MAX (BT_DECODE_ROUTERS_MAX + BT_DECODE_SOURCES_MAX)
#define BT_DECODE_ACTIONS_MAX 512

typedef struct {
    char name[BT_NODE_NAME_MAX];
    uint64_t epoch;                  // not 0
    uint64_t model, weights, layout; // digests for HELLO; weights are also part of the prefix key
    uint32_t kv_format;              // for HELLO: 1 + bt_kv_format
    uint32_t sequences;              // that hold room at once; the engine's max_sequences
    uint32_t queue_max;              // reserves that wait for room
    uint32_t chunk_tokens;           // of a step
    uint32_t prefill_tokens;         // of a step that prompts may take while answers are written; 0 = chunk_tokens / 2
    uint32_t logit_rows;             // the engine's logit_rows_max; 0 = sequences
    uint32_t blocks, block_tokens;   // of the engine's pool
    uint32_t context, vocab;
    bt_time lease;     // 0 = 30 s
    bt_time heartbeat; // 0 = 1 s
    // Of nodes that fetch what prefill nodes have read:
    bool fetches;             // false: no memory for it, offers are refused
    uint64_t prompt_weights;  // digest of those that read prompts; 0 = weights
    uint32_t fetch_blocks;    // of one fetch; 0 = 1024
    bt_time fetch_time;       // that a fetch may take, and
    bt_time fetch_time_block; // for each of its blocks and those on their way already; 0 = 2 s and 20 ms
    bt_time source_silence;   // after which a prefill node counts as lost; 0 = 10 s
} bt_decode_limits;

typedef enum {
    BT_DECODE_LINK_UP,
    BT_DECODE_LINK_DOWN,
    BT_DECODE_MESSAGE,
    BT_DECODE_STEPPED, // the step that was begun is over; results are where its batch said
    BT_DECODE_FETCHED, // a fetch is over: nothing touches its landing blocks any more
    // A prefill node's memory was connected and a real block of it found good, or that is lost. Routers hear of it at once and send
    // prompts by way of such nodes alone. A link that goes or a HELLO of another epoch needs no event of its own.
    BT_DECODE_SOURCE,
    BT_DECODE_DRAIN,
    BT_DECODE_TICK,
} bt_decode_event_kind;

typedef struct {
    bt_decode_event_kind kind;
    uint32_t peer;             // LINK_…, MESSAGE: < BT_DECODE_PEERS_MAX; SOURCE: ≥ BT_DECODE_ROUTERS_MAX
    const bt_message *message; // MESSAGE
    bt_err err;                // STEPPED, FETCHED
    bt_time duration;          // STEPPED: how long the step took
    uint64_t user;             // FETCHED: as in the action
    uint32_t good;             // FETCHED with an err: so many of its first blocks are here and good
    uint64_t epoch;            // SOURCE: of the program that was proved or lost
    bool up;                   // SOURCE
} bt_decode_event;

typedef struct {
    uint32_t peer;
    bt_message message;
} bt_decode_send;

// Fetch these blocks and answer with FETCHED, always; the edge has as many fetches in progress at most as sequences. Blocks adjacent
// on both sides stand together and travel as one. When the peer is not connected for transfer, FETCHED says BT_ERR_PEER.
typedef struct {
    uint32_t peer;  // the prefill node
    uint64_t epoch; // of its program; when the peer connected for transfer is of another, FETCHED says BT_ERR_PEER
    uint64_t user;
    const bt_transfer_block *blocks; // [count] good until the next step
    uint32_t count;
    bt_time deadline;
} bt_decode_fetch;

// A sequence that is over, for the log.
typedef struct {
    char name[BT_JOB_NAME_MAX + 1]; // of the client's request
    uint32_t peer;                  // its router
    uint32_t source;                // the prefill node that its prompt came from; BT_DECODE_PEERS_MAX = none
    bt_finish finish;
    bt_err err;
    uint32_t prompt_tokens, cached_tokens, answer_tokens;
    bt_phases phases; // as told to its router; queue_decode: until it had room
    bt_time total;    // since its RESERVE came
} bt_decode_ended;

#define BT_DECODE_ENDED_MAX 64 // said of one call; a router that is lost may end more

// Carry out the sends before the step: they may point at the results of the step before.
typedef struct {
    uint32_t ended_count; // more than BT_DECODE_ENDED_MAX: those after it are not there
    bt_decode_ended ended[BT_DECODE_ENDED_MAX];
    bool has_fetch;
    bt_decode_fetch fetch;
    uint32_t cancel_count; // fetches to end early; their FETCHED still comes
    uint64_t cancel[BT_MESSAGE_ENTRIES_MAX];
    uint32_t send_count;
    bt_decode_send send[BT_DECODE_ACTIONS_MAX];
    const bt_batch *step; // for the engine; unchanged until STEPPED. NULL = none to begin
} bt_decode_actions;

typedef struct bt_decode_core bt_decode_core;

bt_err bt_decode_core_open(bt_decode_core **out, const bt_decode_limits *limits, bt_why *why);
void bt_decode_core_close(bt_decode_core *core); // NULL is fine

void bt_decode_core_step(bt_decode_core *core, bt_time now, const bt_decode_event *event, bt_decode_actions *out);
bt_time bt_decode_core_next_deadline(const bt_decode_core *core);

typedef struct {
    // Now:
    uint32_t waiting, granted, fetching, prefilling, decoding, ending;
    uint32_t sources; // prefill nodes that can be fetched from
    uint32_t blocks, blocks_free,
        blocks_cached;        // free: on no table and in no cache; cached: in the prefix cache and unheld
    uint32_t blocks_promised; // granted and not yet taken
    int64_t leak;             // blocks that nobody accounts for; zero, always
    // Since open:
    uint64_t steps, step_items, step_tokens; // batch fill = items / steps
    bt_time step_time;
    uint64_t prompt_tokens;  // computed
    uint64_t cached_tokens;  // of prompts, found
    uint64_t answer_tokens;  // drawn
    uint64_t dropped_tokens; // drawn for a sequence that had ended meanwhile
    uint64_t reserved, refused_busy, refused_other, finished, aborted, expired, failed_steps;
    uint64_t late_messages; // for sequences that are gone
    uint64_t bad_messages;
    uint64_t fetches, fetched_blocks, fetched_sequences;
    bt_time handover_time;    // of those sequences: from the last offer until all was here
    uint64_t refetches;       // of blocks that came bad or not at all
    uint64_t lost_fetches;    // sequences that ended because their blocks did not come
    uint64_t refused_sources; // prefill nodes of another model or layout
} bt_decode_stats;

void bt_decode_core_get_stats(const bt_decode_core *core, bt_decode_stats *out);

// For checkers in tests: does every block have exactly the holds that tables and prefix cache account for?
bool bt_decode_core_sound(const bt_decode_core *core, bt_why *why);
