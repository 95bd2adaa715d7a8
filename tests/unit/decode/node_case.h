// A decode core with the fake engine, one event at a time, for the cases of this folder.
#pragma once

#include "decode-node/core.h"
#include "tests/support/fake_engine.h"

#define CASE_VOCAB 50

extern bt_decode_core *core;
extern bt_decode_actions *acts; // of the last event
extern const bt_batch *running; // the step that was begun
extern bt_time now;
extern fake_engine engine;

// Block of 4 tokens, context 64; zero limits get: 2 sequences, 2 waiting, chunk 16, 32 blocks.
void case_open(bt_decode_limits limits);
void case_close(void);

void feed(const bt_decode_event *event);
void tick(void);
void meet(uint32_t peer); // link up and HELLO

// A job with a prompt 1, 2, 3, … and no end tokens.
bt_job a_job(uint32_t slot, uint32_t prompt_count, uint32_t max_tokens);
void reserve(uint32_t peer, const bt_job *job);
void start(uint32_t peer, const bt_ticket_reply *ticket);
void abort_request(uint32_t peer, uint32_t slot);
// Reserve, ticket and start; returns the ticket.
bt_ticket_reply begin(uint32_t peer, const bt_job *job);

// The step that runs comes to its end.
void finish_step(void);

const bt_ticket_reply *find_ticket(uint32_t slot);     // NULL = none among the last sends
const bt_tokens_entry *find_entry(uint32_t slot);      // the same
const bt_batch_item *find_item(uint32_t prompt_count); // of the step that runs, by length of its prompt
bt_decode_stats stats(void);                           // asserts that the core is sound
void expect_idle(void);                                // nothing runs, waits or is held
