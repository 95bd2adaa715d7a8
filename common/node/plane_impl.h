// What plane.c (the loop's side) and plane_thread.c share. Private to this folder.
//
// Connections and fetches lie in slots. The loop fills one in and posts its number; from then on its request is constant until the loop
// takes its last event (GONE, FETCHED) and may use it anew. So a number in a queue always means the tenant that both sides think of:
// requests are handled in order, and what the loop still asks of an older tenant stands before the newer one's first.
#pragma once

#include "common/net/mailbox.h"
#include "common/node/plane.h"

#include <pthread.h>

#define BT_PLANE_NONE UINT32_MAX
#define BT_PLANE_LANES 2u
#define BT_PLANE_PART_HEAD 2u          // bytes before each lane's part of a description: its length
#define BT_PLANE_EVENTS_A_CONNECTION 4 // CONNECTED, PROVED, LOST, GONE
// CONNECT, DISCONNECT; FETCH, CANCEL; and the second of these of the tenant before, when the thread ended it by itself meanwhile.
#define BT_PLANE_ASKS_A_SLOT 3

typedef enum {
    BT_PLANE_ASK_CONNECT,
    BT_PLANE_ASK_DISCONNECT,
    BT_PLANE_ASK_FETCH,
    BT_PLANE_ASK_CANCEL
} bt_plane_ask_kind;

typedef struct {
    bt_plane_ask_kind kind;
    uint32_t slot;
    bt_time at;
} bt_plane_ask;

typedef struct {
    bt_plane_event event;
    uint32_t slot; // of the connection, or of the fetch
    bool gone;     // of a connection: nothing more comes from the slot; there is no event
} bt_plane_told;

typedef enum { BT_PLANE_CLOSED, BT_PLANE_OPEN, BT_PLANE_PROOF_ENDS } bt_plane_state;

typedef struct {
    bool used; // the loop's
    // Of the request:
    uint32_t peer;
    uint64_t epoch;
    bt_time prove_deadline, asked;
    uint32_t bytes;
    uint8_t description[BT_TRANSFER_DESCRIPTION_MAX];
    // The thread's. PROOF_ENDS: closed, but the event of its proof is still to come.
    bt_plane_state state;
    bool proving;
    uint32_t via;                           // the lane that is fetched by
    uint32_t transfer_peer[BT_PLANE_LANES]; // BT_TRANSFER_PEER_NONE: not of this lane
} bt_plane_connection;

typedef struct {
    bool used, cancelled; // the loop's
    // Of the request:
    uint32_t connection; // slot, or BT_PLANE_NONE
    uint32_t peer, count;
    uint64_t epoch, user;
    bt_time deadline, asked;
    bt_transfer_block *blocks; // [fetch_blocks_max]
} bt_plane_fetch_slot;

// What has landed of the fetch in the slot of the same number, while it is staged. The thread's alone.
typedef struct {
    bool staging;
    uint32_t lane;
    uint64_t ticket;
    bt_transfer_event event; // that is told when it is through
    bt_time since;
} bt_plane_landing;

// A pool, and what becomes of blocks that land in it.
typedef struct {
    bt_transfer *transfer; // the thread's, once it runs
    bt_plane_stage stage;
    bt_watch watch, stage_watch;
} bt_plane_lane;

struct bt_plane {
    bt_plane_options options;
    bt_plane_lane lanes[BT_PLANE_LANES];
    uint32_t lane_count;
    uint8_t description[BT_TRANSFER_DESCRIPTION_MAX];
    size_t description_bytes;
    bt_plane_connection *connections; // [connection_count]
    uint32_t connection_count;
    bt_plane_fetch_slot *fetches; // [fetches_max]
    bt_transfer_block *blocks;    // of all fetches
    bt_plane_landing *landings;   // [fetches_max]
    bt_mailbox *asks, *told;
    // The loop's:
    uint32_t *current; // [peers_max] the connection of each peer, or BT_PLANE_NONE
    uint32_t fetches_out;
    // The thread's:
    pthread_t thread;
    bool runs;
    bt_loop *loop;
    bt_turn turn;
    bool news;        // something was told in this turn
    uint32_t staging; // fetches
    bt_plane_stats stats;
    bt_time published_at;
    // Both, under the lock:
    pthread_mutex_t lock;
    bt_plane_stats published;
    bt_plane_peer *peers; // [connection_count] epoch 0: not connected
};

// plane_thread.c
bt_err bt_plane_thread_begin(bt_plane *plane, bt_why *why);
void bt_plane_thread_end(bt_plane *plane); // also when it was not begun
