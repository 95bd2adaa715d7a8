// What the cases of test_peer_*.c share: a world moved by hand whose limits are given, clients of given sizes, and what is asked at the end of
// each. Each program has one world.
#pragma once

#include "tests/sim/world.h"

#include "decode-node/inside.h"
#include "prefill-node/inside.h"
#include "router/inside.h"

#include <check.h>

#define ROUTER 0u
#define PREFILL(n) (WORLD_PREFILL_0 + (n))
#define DECODE(n) (WORLD_DECODE_0 + (n))

extern world *const at; // the world of the case

// Sizes of a case; zero = the default beside it.
typedef struct {
    uint32_t routers, prefills, decodes; // 1, 0, 1
    uint32_t requests, queue;            // of the router; 64
    uint32_t prompts, prefill_blocks;    // of a prefill node; 8, 64
    uint32_t prefill_chunk;              // 8
    uint32_t sequences, waiting, blocks; // of a decode node; 4, 4, 64
    uint32_t fetch_blocks;               // 24
    bool differs;
    bt_place_policy place;
    uint64_t prefill_layout; // 2
    bt_time degrade_after;   // 50 ms
    bt_time hold_max;        // of a prefill node; ten leases
    uint32_t one_in[WORLD_FAULTS];
} case_sizes;

// Opens the world and lets everybody meet.
void case_open(const case_sizes *sizes);
// Its faults end, its clients have had an answer within a minute, blocks are home within a second after; closes it.
void case_close(void);

// Asks for `max_tokens` after `prompt` tokens that begin as others of the family do; family 0 = like no other. Returns the client's number.
uint32_t case_ask(uint32_t prompt, uint32_t max_tokens, uint32_t family);
uint32_t case_ask_as(world_client client, uint32_t family); // other fields as given
void case_settle(void);                                     // until no client waits

bool case_alive(uint32_t client);
uint32_t case_heard(uint32_t client); // tokens
bt_request_state case_state(uint32_t client);
// Goes on until the client's request is in that state; fails when it is not within ten seconds.
void case_until_state(uint32_t client, bt_request_state state);
void case_until(bool (*holds)(void)); // the same for anything

bt_router_stats case_router(uint32_t router);
bt_prefill_stats case_prefill(uint32_t n);
bt_decode_stats case_decode(uint32_t n);
uint32_t case_peer(uint32_t member); // as the first router numbers it
