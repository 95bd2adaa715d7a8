// Two data planes in one process, an owner of blocks and a receiver, each with its thread: for the cases in test_plane.c (what comes) and
// test_plane_ends.c (how it ends). Over the host transport: shared memory and sockets.
#pragma once

#include "common/node/plane.h"
#include "tests/support/test.h"

#define BLOCKS 96
#define FETCHES 4
#define PEERS 3
#define OWNER 2 // the owner's number at the receiver
#define SOON (bt_time_now() + 20 * BT_SECOND)

extern const bt_transfer_path paths[]; // by AUTO, which is shared memory here, and by stream
#define PATHS 2

extern const char *library, *tls; // of the transfers that are opened from now on; NULL = host

typedef struct {
    bt_plane *plane;
    uint8_t *pool;
    uint64_t epoch;
    int woken; // eventfd
} node;

extern bt_kv_layout layout;
extern node owner, receiver;

void open_node(node *n, bt_transfer_path path, uint64_t epoch);
void close_node(node *n);
bt_transfer *open_transfer(node *n, bt_transfer_path path, uint64_t epoch); // fills in pool and epoch
bt_plane_options plane_options(node *n);
void write_blocks(node *n); // block b in life b + 1

// The owner, of epoch 11, with blocks, and the receiver, of epoch 22.
void open_both(bt_transfer_path path);
void close_both(void);
void describe_to(node *from, node *to, uint32_t peer, bt_time prove);
void join(void); // they are connected, the owner is proved

// The next event within `wait`; sleeps until the plane wakes us, so that a wake that does not come is a failure.
bool event_within(node *n, bt_plane_event *out, bt_time wait);
bt_plane_event expect(node *n, bt_plane_event_kind kind, bt_err err);
void expect_silence(node *n, bt_time wait);

// Blocks `first` … of the owner land in the same places here.
bt_err fetch(uint32_t first, uint32_t count, uint64_t epoch, bt_time deadline, uint64_t user);
