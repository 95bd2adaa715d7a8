// What router and nodes say to each other, as bounded C structs. common/wire turns them into protobuf bytes; inside one process
// they are copied as they are.
//
//     router                                   decode node
//       |  HELLO -------------------------------> |   who I am; whatever you hold of mine is void
//       |  <------------------------------ HELLO  |   who I am, epoch, capacity, fingerprint; my TOKENS count from 1 again
//       |  RESERVE(job) ------------------------> |   queue, then room for the worst case
//       |  <----------------------------- TICKET  |   granted (cached tokens named), or why not
//       |  START(ticket) -----------------------> |   the node reads the prompt itself (later: or awaits offers of a prefill node)
//       |  <----------------------------- TOKENS  |   one numbered message a step: every sequence's new tokens and ends
//       |  ABORT -------------------------------> |   acknowledged by the sequence's end in a TOKENS message
//       |  HEARTBEAT ⇄ HEARTBEAT                  |   router: renews the leases of all its sequences; node: its load
//
// Arrays behind pointers are borrowed: they belong to whoever hands the message over and are good until that call returns (a core's
// action: until its next step). bt_message_copy makes a message that owns all of it.
// A `bt_request_id` is the router's; nodes only return it. Together with the link's peer it names a sequence.
#pragma once

#include "common/base/err.h"
#include "common/base/time.h"
#include "common/engine/sampling.h"

#include <stddef.h>

#define BT_END_IDS_MAX 16
#define BT_MESSAGE_ENTRIES_MAX 256    // sequences a TOKENS message speaks of
#define BT_MESSAGE_IDS_MAX (1u << 20) // of a job
#define BT_NODE_NAME_MAX 64
#define BT_JOB_NAME_MAX 64    // as BT_REQUEST_NAME_MAX
#define BT_PROTOCOL_VERSION 1 // another one where programs must not work together; new fields alone do not ask for it
#define BT_OFFER_BLOCKS_MAX 4096      // of one OFFER
#define BT_DESCRIPTION_BYTES_MAX 8192 // a transfer library's words on one pool of memory
#define BT_SOURCES_MAX 64             // prefill nodes that a decode node fetches from

// A slot of the router and the count of requests it has held: a late message for an earlier tenant is told apart. Towards nodes it
// also counts the RESERVEs of this request, so that what an earlier attempt still says is told apart too; 0 in the router's own handle.
typedef struct {
    uint32_t slot, generation, attempt;
} bt_request_id;

static inline bool
bt_request_id_equal(bt_request_id a, bt_request_id b)
{
    return a.slot == b.slot && a.generation == b.generation && a.attempt == b.attempt;
}

typedef enum {
    BT_FINISH_NONE, // goes on
    BT_FINISH_STOP, // an end token (it is the answer's last token, and counted), or a stop string found by the text edge
    BT_FINISH_LENGTH,    // max_tokens
    BT_FINISH_CANCELLED, // by the client or its edge
    BT_FINISH_ERROR,     // see err
} bt_finish;

const char *bt_finish_name(bt_finish finish); // "stop", "length", …

typedef struct {
    uint32_t prompt_tokens;
    uint32_t completion_tokens;
    uint32_t cached_tokens; // of the prompt, found in a prefix cache and not computed
} bt_usage;

// Where the time to the first token went (DESIGN 8). Nodes report what they measure on their own clocks; the router adds its own and what
// is left, so that its sum is the time to the first token to the nanosecond (router/phases.c):
//
//     route          in the router, until the RESERVE that led to the token: text, its queue, and nodes that failed before
//     queue_decode   from there until the TICKET: waiting for room at the decode node
//     queue_prefill  at the node that reads: from START or PREFILL until its first step
//     prefill        its steps, until the first token is drawn
//     transfer       from the last offer until all blocks are at the decode node, where the token came by way of that node
//     transfer_wait  what is left then: messages under way, and blocks that were not offered yet
//     first_token    what is left else, where the token came straight from the node that drew it: messages under way
typedef struct {
    bt_time route, queue_prefill, prefill, transfer_wait, transfer, queue_decode, first_token;
} bt_phases;

typedef enum { BT_NODE_DECODE, BT_NODE_PREFILL, BT_NODE_ROUTER } bt_node_role;

const char *bt_node_role_name(bt_node_role role); // "decode", …

// The router's opens or reopens a relation: it has nothing at the node any more, and repeats until the node answers with its own. A
// node's says what it is and that it numbers TOKENS from 1 again; also sent when it begins to drain.
typedef struct {
    char name[BT_NODE_NAME_MAX];
    bt_node_role role;
    uint32_t version; // BT_PROTOCOL_VERSION of the program
    uint64_t epoch;   // drawn at every start of a program, never 0
    // Nodes:
    uint64_t model, weights, layout; // digests; compared field by field before anything is sent
    uint32_t kv_format; // 1 + bt_kv_format; 0 = it does not say (an older program): part of layout, here by its name
    uint32_t sequences; // that may hold room at once
    uint32_t queue;     // reserves that may wait for room
    uint32_t blocks, block_tokens; // of the KV pool
    uint32_t context;              // longest sequence
    bool draining;                 // admits nothing new
} bt_hello;

typedef struct {
    uint64_t number; // counts up
    // Nodes; routers leave it zero.
    uint64_t tokens_number; // of the last TOKENS message to this router: the loss of the very last one shows here
    uint32_t running, queued;
    uint32_t blocks_free; // unheld, those of the prefix cache included
    // Decode nodes: epochs of the prefill nodes' programs of which a real block was fetched and found good. Prompts come from those
    // alone. One is sent at once when they change.
    uint32_t source_count;
    const uint64_t *sources; // [source_count] ≤ BT_SOURCES_MAX, none 0
} bt_heartbeat;

// What is to be done, complete: prompt, and where the request moved here from another node, the answer so far.
typedef struct {
    bt_request_id request;
    const int32_t *ids;          // [prompt_count + answer_count]
    uint32_t prompt_count;       // ≥ 1
    uint32_t answer_count;       // tokens the client already has: replayed as they are, never drawn again
    uint32_t max_tokens;         // of the whole answer, those included; 0 = only read (and score) the prompt
    const bt_sampling *sampling; // logprobs and alternatives are asked for here
    bool prompt_logprobs;        // score the prompt too: no prefix reuse
    uint32_t end_count;
    int32_t end_ids[BT_END_IDS_MAX];
    bt_time time_left; // until the request's deadline (a duration: clocks are not shared), BT_TIME_NEVER = none
    char name[BT_JOB_NAME_MAX + 1]; // the client's X-Request-Id or what was drawn for it, for logs; "" = it has none
} bt_job;

// Names the room that a decode node lends. Another epoch or generation is another room.
typedef struct {
    uint64_t epoch;
    uint32_t slot, generation; // of the node
    uint64_t layout;           // fingerprint
} bt_ticket;

typedef struct {
    bt_request_id request;
    bt_err err; // BT_OK: granted. BUSY: queue full. CLOSED: draining. TOO_LONG, INVALID: refuse the request
    bt_ticket ticket;
    uint32_t cached_tokens; // already here, by prefix
    bt_time lease;          // how long the room outlives the last heartbeat
} bt_ticket_reply;

typedef struct {
    bt_request_id request;
    bt_ticket ticket;
} bt_start;

typedef struct {
    bt_request_id request; // by the router's id: an abort may cross the ticket
} bt_abort;

// To a decode node that has granted `ticket`: the prompt comes from this prefill node, in offers that name the ticket.
typedef struct {
    bt_request_id request;
    bt_ticket ticket;
    char prefill[BT_NODE_NAME_MAX];
    uint64_t prefill_epoch;
} bt_await;

// To a prefill node: read the prompt, offer its blocks to the holder of the ticket, and draw the first token, unless the job brings
// tokens of an answer (they are forced at the decode node). Tokens before `cached_tokens` are there already.
typedef struct {
    bt_job job;
    bt_ticket ticket;
    char decode[BT_NODE_NAME_MAX];
    uint32_t cached_tokens; // whole blocks of the prompt, from its first
} bt_prefill;

// From a prefill node, before its first offer to a peer: how its pool of blocks is read from outside. Void with the epoch.
typedef struct {
    uint64_t epoch, layout;
    uint32_t blocks; // of the pool
    uint32_t byte_count;
    const uint8_t *bytes; // [byte_count] of common/transfer
} bt_description;

// What the trailer of the block must say, and where it lies in the pool of the description.
typedef struct {
    uint32_t block;
    uint64_t generation;
} bt_offer_block;

// From a prefill node: these blocks are finished and held until TAKEN or the end of the lease. Offers of one ticket follow each other
// without a gap: `first_position` is where the one before ended, the first's is the tokens cached at the decode node.
typedef struct {
    bt_ticket ticket;
    uint64_t epoch; // of the prefill node, as in the blocks' trailers
    uint32_t first_position;
    uint32_t token_count; // that the blocks hold, the last may be partly filled
    uint32_t block_count;
    const bt_offer_block *blocks; // [block_count]
    bool last;                    // the prompt ends here
    bool has_token;               // with `last`: the first token was drawn here
    bt_token_result token;
    bt_phases phases;       // with `last`: queue_prefill and prefill, on the prefill node's clock
    uint32_t cached_tokens; // with `last`: of the prompt, that the prefill node found in its prefix cache
} bt_offer;

// From a decode node: the ticket's first `block_count` offered blocks were fetched and found good.
typedef struct {
    bt_ticket ticket;
    uint32_t block_count;
    bt_err err; // not BT_OK: no more will be fetched, whatever is held for the ticket is free
} bt_taken;

// News of one sequence. `first` and `scored_first` number the results, so that each is accepted in order and once.
typedef struct {
    bt_request_id request;
    uint32_t first; // index of results[0] in the answer
    uint32_t count;
    const bt_token_result *results; // [count]
    uint32_t scored_first;          // position in the prompt of scored[0], ≥ 1: the first token follows nothing
    uint32_t scored_count;
    const bt_token_result *scored; // [scored_count]
    bt_finish finish;              // not NONE: nothing more comes for this request
    bt_err err;                    // with BT_FINISH_ERROR
    uint32_t cached_tokens;
    bt_phases phases; // with the first token: the node's durations
} bt_tokens_entry;

typedef struct {
    uint64_t number; // from 1, counts up by one a message of this node to this router since the node's HELLO
    uint32_t entry_count;
    const bt_tokens_entry *entries; // [entry_count]
} bt_tokens;

typedef enum {
    BT_MESSAGE_NONE,
    BT_MESSAGE_HELLO,
    BT_MESSAGE_HEARTBEAT,
    BT_MESSAGE_RESERVE,
    BT_MESSAGE_TICKET,
    BT_MESSAGE_START,
    BT_MESSAGE_ABORT,
    BT_MESSAGE_TOKENS,
    BT_MESSAGE_AWAIT,
    BT_MESSAGE_PREFILL,
    BT_MESSAGE_DESCRIPTION,
    BT_MESSAGE_OFFER,
    BT_MESSAGE_TAKEN,
    BT_MESSAGE_KINDS
} bt_message_kind;

const char *bt_message_kind_name(bt_message_kind kind);

typedef struct {
    bt_message_kind kind;
    union {
        bt_hello hello;
        bt_heartbeat heartbeat;
        bt_job reserve;
        bt_ticket_reply ticket;
        bt_start start;
        bt_abort abort;
        bt_tokens tokens;
        bt_await await;
        bt_prefill prefill;
        bt_description description;
        bt_offer offer;
        bt_taken taken;
    };
} bt_message;

// Is it within the limits above, are counts and pointers consistent? A receiver asks before it looks further.
bt_err bt_message_check(const bt_message *message);

// Bytes that a copy with everything behind its pointers takes, a multiple of 16.
size_t bt_message_size(const bt_message *message);

// Copies into `memory` (16-byte aligned, bt_message_size bytes): the result lies at its start and points into it only.
bt_message *bt_message_copy(void *memory, const bt_message *message);
