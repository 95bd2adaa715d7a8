// Between fetch.c, which knows fetches, and the transports, which know how bytes move. Private to this folder.
//
// fetch.c cuts fetches into pieces (runs of blocks adjacent on both sides), gives them to a transport as far as the peer's
// window allows, and looks at what has landed. A transport sets `state` and never calls back.
#pragma once

#include "common/transfer/description.h"
#include "common/transfer/transfer.h"

typedef enum { BT_PIECE_FREE, BT_PIECE_MOVING, BT_PIECE_DONE } bt_piece_state;

typedef struct bt_piece {
    bt_piece_state state;
    bt_err err;        // DONE
    bool refused;      // DONE with an error: the owner said so
    uint32_t peer;     // slot
    uint32_t from, to; // first block at the owner and here
    uint32_t count;    // blocks
    bool proof;        // from, to: the proof block there and the landing behind our own pool
    uint64_t *sums;    // [count] checksum sums, filled when `summed`
    bool summed;       // by a transport that copies itself
    bt_kv_trailer
        *trailers;      // [count] of a pool that this process cannot read: what the transport found there; else NULL
    bt_time took;       // DONE: how long it moved, 0 = not known
    bt_time began, due; // of the transport; due: of loopback, BT_TIME_NEVER: never done
    bt_transfer_fault fault;
    uint32_t tag;                   // of ucx: which of the answers is ours
    void *arrived;                  // of ucx: an answer that waits to be received
    struct bt_transport *transport; // of ucx, for its callbacks
    struct bt_piece *next;          // of cuda: in the same batch
    bool posted;                    // of ucx: the library may write to the landing blocks
    uint32_t fetch, first;          // of fetch.c
} bt_piece;

typedef struct bt_transport bt_transport;

typedef struct {
    const char *name;
    uint16_t id;       // in descriptions
    unsigned memories; // that it serves: bits by bt_transfer_memory
    // Allocates `bytes` of zeroed pool memory at a page boundary.
    bt_err (*open)(bt_transport **out, const bt_transfer_options *options, size_t bytes, uint8_t **memory, bt_why *why);
    void (*close)(bt_transport *t); // pieces are all forgotten
    bt_err (*describe)(bt_transport *t, bt_description *out);
    bt_err (*connect)(bt_transport *t, uint32_t peer, const bt_description *description, bt_why *why);
    // Every piece of the peer ends, now or in a later progress, and `idle` says when the slot is free of the library's hands.
    void (*disconnect)(bt_transport *t, uint32_t peer);
    bool (*idle)(bt_transport *t, uint32_t peer);
    bool (*up)(bt_transport *t, uint32_t peer); // false: lost
    // Begins to move a piece whose state is MOVING; it may be DONE on return.
    void (*move)(bt_transport *t, bt_piece *piece, bt_time now);
    // The caller has no more use for the piece. True: its landing blocks are let go (state DONE); false: only disconnecting the
    // peer can end it.
    bool (*drop)(bt_transport *t, bt_piece *piece);
    void (*progress)(bt_transport *t, bt_time now);
    int (*fd)(const bt_transport *t);
    bool (*arm)(bt_transport *t);
    bt_transfer_path (*path)(const bt_transport *t, uint32_t peer, char *name, size_t bytes);
    void (*stats)(const bt_transport *t, bt_transfer_stats *out); // the owner's part
} bt_transport_ops;

struct bt_transport {
    const bt_transport_ops *ops;
};

// Blocks of the longest piece.
static inline uint32_t
bt_piece_blocks(const bt_transfer_options *o)
{
    size_t blocks = o->piece_bytes / o->layout.block_bytes;

    return blocks == 0 ? 1 : blocks < o->fetch_blocks_max ? (uint32_t)blocks : o->fetch_blocks_max;
}

// Pieces of all peers.
static inline uint32_t
bt_piece_count(const bt_transfer_options *o)
{
    return o->peers_max * o->window < 4096 ? o->peers_max * o->window : 4096;
}

extern const bt_transport_ops bt_transport_cuda;
extern const bt_transport_ops bt_transport_loopback;
extern const bt_transport_ops bt_transport_host;
extern const bt_transport_ops bt_transport_ucx; // where BT_HAVE_UCX

// The copy of a transport that moves bytes itself: `piece` from `source` (its first block) to `target`, trailers after the bytes they vouch for.
void bt_piece_copy(bt_piece *piece, const bt_kv_layout *layout, bool checksum, uint8_t *target, const uint8_t *source);
