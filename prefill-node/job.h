// The prompts that are at a prefill node: a fixed table of slots, each with its ids and its block table, and the queue of those that
// wait for blocks. Private to the node's core. One thread.
#pragma once

#include "common/kv/prefix.h"
#include "common/kv/table.h"
#include "common/wire/message.h"

typedef enum {
    BT_PROMPT_FREE,
    BT_PROMPT_WAITING, // for blocks, in order of arrival
    BT_PROMPT_READING,
    BT_PROMPT_HOLDING, // read and reported; its blocks are held for the decode node
    BT_PROMPT_ENDING,  // over, but the step that runs uses its blocks
} bt_prompt_state;

#define BT_PROMPT_NONE UINT32_MAX

typedef struct {
    bt_prompt_state state;
    uint32_t router; // peer; BT_PROMPT_NONE: nobody is to be told
    uint32_t decode; // peer, the ticket's holder; BT_PROMPT_NONE: its link is down, `hold_end` decides
    bt_request_id request;
    char name[BT_JOB_NAME_MAX + 1]; // of the client's request
    bt_ticket ticket;
    uint64_t serial; // order of arrival

    int32_t *ids;   // [context]
    uint32_t count; // of the prompt
    uint32_t computed;
    bool draws; // the first token of the answer
    bool scores;
    bt_sampling sampling;

    bt_kv_table table;
    bt_kv_prefix_at at;
    uint32_t indexed; // blocks of the table that are in the prefix index
    bool unindexed;   // the chain broke: later blocks cannot be indexed
    uint32_t cached_tokens;
    uint32_t finished;       // blocks of the table that are stamped
    uint32_t offered;        // of the table; begins after those that the decode node has
    uint32_t offered_before; // those
    bool has_token;
    bt_token_result token;
    bt_phases phases;

    bool in_step;
    uint64_t started_step;
    bt_time deadline, received, begun, hold_end;

    uint32_t next; // in the queue or the list of free slots
} bt_prompt;

typedef struct {
    bt_prompt *slots; // [capacity]
    int32_t *ids;     // [capacity, context]
    uint32_t capacity, free;
    uint32_t queue_first, queue_last, queued;
    uint64_t serial;
} bt_prompts;

bt_err bt_prompts_init(bt_prompts *prompts, uint32_t capacity, uint32_t context, uint32_t block_tokens);
void bt_prompts_fini(bt_prompts *prompts); // accepts a zeroed one; blocks must have been given back

// A slot at the end of the queue, filled from the message; NULL when none is free.
bt_prompt *bt_prompts_enqueue(bt_prompts *prompts, bt_time now, uint32_t router, uint32_t decode,
                              const bt_prefill *prefill, uint32_t block_tokens);
void bt_prompts_begin_first(bt_prompts *prompts); // the first of the queue leaves it, READING
// The slot becomes free, from any state. Its table is empty.
void bt_prompts_release(bt_prompts *prompts, bt_prompt *prompt);
// NULL = none. One that is ENDING is over: its id may be used again while a step still runs.
bt_prompt *bt_prompts_find(bt_prompts *prompts, uint32_t router, bt_request_id request);
bt_prompt *bt_prompts_find_ticket(bt_prompts *prompts, uint32_t decode, const bt_ticket *ticket); // NULL = none
