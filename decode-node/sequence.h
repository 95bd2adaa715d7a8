// A decode node's sequences: a fixed table of slots, each with its ids and its block table. Private to the node's core. One thread.
#pragma once

#include "common/kv/prefix.h"
#include "common/kv/table.h"
#include "common/wire/message.h"

typedef enum {
    BT_SEQUENCE_FREE,
    BT_SEQUENCE_WAITING,    // in the queue for room
    BT_SEQUENCE_GRANTED,    // has room, awaits START, AWAIT or an OFFER
    BT_SEQUENCE_FETCHING,   // a prefill node reads the prompt; its blocks come from there
    BT_SEQUENCE_PREFILLING, // more than the last id is not in the cache yet
    BT_SEQUENCE_DECODING,
    BT_SEQUENCE_ENDING, // over, but the step that runs or a fetch uses its blocks
} bt_sequence_state;

#define BT_SEQUENCE_NONE UINT32_MAX

// How far the blocks of a prompt are that come from a prefill node (fetch.c).
typedef struct {
    uint32_t source; // its peer
    uint64_t epoch;  // of that program: another one under the same number is another node
    uint32_t list;   // of the offered blocks (fetch.h)
    uint32_t first;  // block of the table that the first offered one goes to
    uint32_t offered, landed;
    uint32_t flying; // of the fetch in progress; 0 = none
    uint32_t bad_at; // block that came bad once; BT_SEQUENCE_NONE = none
    bool last;       // all are offered
    bool has_token;
    bt_token_result token;
    bt_phases phases;
    uint32_t cached_tokens; // that the prefill node found
    bt_time last_offer;
} bt_sequence_fetch;

typedef struct {
    bt_sequence_state state;
    uint32_t generation;
    uint32_t peer;
    bt_request_id request;
    char name[BT_JOB_NAME_MAX + 1]; // of the client's request
    uint64_t serial;                // order of arrival

    int32_t *ids; // [context] prompt, answer replayed, answer drawn
    uint32_t prompt_count;
    uint32_t count;      // ids known
    uint32_t computed;   // of them in the cache
    uint32_t max_tokens; // of the answer
    bool prompt_logprobs;
    bt_sampling sampling;
    uint32_t end_count;
    int32_t end_ids[BT_END_IDS_MAX];

    bt_kv_table table;
    uint32_t worst;     // blocks it may come to hold; worst − table.count are promised to it
    bt_kv_prefix_at at; // where its next full block stands in the prefix index
    uint32_t indexed;   // blocks of the table that are in the index
    bool unindexed;     // the chain broke: later blocks cannot be indexed
    uint32_t indexable; // tokens that were written by the weights which the prefix index speaks of
    uint32_t cached_tokens;

    bt_sequence_fetch fetch;
    bool in_step;
    uint64_t started_step; // steps that had been begun at START, for ageing
    bt_time deadline, received, granted, started, prefill_begun;
    bt_phases phases; // as far as they are known
    bool first_token_sent;

    uint32_t next; // in the queue, or the list of free slots
} bt_sequence;

// Answer tokens known, those replayed included.
static inline uint32_t
bt_sequence_answer(const bt_sequence *sequence)
{
    return sequence->count - sequence->prompt_count;
}

// Does it hold room (blocks, or the promise of them)?
static inline bool
bt_sequence_has_room(const bt_sequence *sequence)
{
    return sequence->state >= BT_SEQUENCE_GRANTED;
}

typedef struct {
    bt_sequence *slots; // [capacity]
    int32_t *ids;       // [capacity, context]
    uint32_t capacity, context;
    uint32_t free;
    uint32_t queue_first, queue_last, queued;
    uint32_t with_room;
    uint64_t serial;
} bt_sequences;

bt_err bt_sequences_init(bt_sequences *sequences, uint32_t capacity, uint32_t context, uint32_t block_tokens);
void bt_sequences_fini(bt_sequences *sequences); // accepts a zeroed one; blocks must have been given back

// A slot at the end of the queue, in state WAITING, filled from the job; NULL when none is free.
bt_sequence *bt_sequences_enqueue(bt_sequences *sequences, bt_time now, uint32_t peer, const bt_job *job);
// The first of the queue leaves it with room.
void bt_sequences_grant_first(bt_sequences *sequences);
// The slot becomes free, from any state. Its table is empty.
void bt_sequences_release(bt_sequences *sequences, bt_sequence *sequence);
// NULL = none. One that is ENDING is over: a router that was started anew may use its id again while a step or a fetch still runs.
bt_sequence *bt_sequences_find(bt_sequences *sequences, uint32_t peer, bt_request_id request);
