// Prompts that a prefill node reads: its offers are checked, its blocks fetched into ours, and the sequence joins the next step when
// all are here. Private to the node's core. One thread.
//
//     OFFER(first, blocks) ──in order, this ticket, this epoch──▶ list ──▶ fetch (one a sequence) ──FETCHED──▶ TAKEN(count)
//                                                                            └─ bad: once more, then the sequence ends (PEER)
//
// All landing blocks of a prompt are taken when it begins, next to each other where they can be. They are given back only when their
// own fetch is over. An offer for a ticket that is not good any more is answered with a TAKEN that says so: the prefill node frees at once.
#pragma once

#include "decode-node/inside.h"

bt_err bt_fetch_init(bt_decode_fetches *fetches, const bt_decode_limits *limits);
void bt_fetch_fini(bt_decode_fetches *fetches); // accepts a zeroed one

void bt_fetch_hear(bt_decode_core *core, bt_time now, uint32_t peer, const bt_message *message); // from a prefill node
void bt_fetch_await(bt_decode_core *core, bt_sequence *sequence, const bt_await *await);
void bt_fetch_done(bt_decode_core *core, bt_time now, uint64_t user, bt_err err, uint32_t good);

// The sequence, FETCHING, is over: its fetch is cancelled, its source told.
void bt_fetch_stop(bt_decode_core *core, bt_sequence *sequence);

// The prefill node is out of reach. Sequences that miss offers end; those that have all of them may still get their blocks.
void bt_fetch_lose(bt_decode_core *core, uint32_t peer);

// Heartbeats, greetings not answered yet, and prefill nodes that fell silent.
void bt_fetch_beat(bt_decode_core *core, bt_time now);
