// What transfer.c (opening, peers) and fetch.c (everything that moves) share. Private to this folder.
#pragma once

#include "common/transfer/impl.h"

#define BT_PROOF_GENERATION 1

typedef struct {
    bool used, proof;
    uint32_t peer, count;
    uint32_t next;   // first block that no piece was cut for
    uint32_t pieces; // in flight
    uint32_t good;   // the first block known to be bad
    bt_err err;      // not BT_OK: no more pieces
    bt_transfer_cause cause;
    bt_time deadline;
    uint64_t user;
    bt_time best; // of a proof: fastest round
    bt_transfer_block *blocks;
    uint64_t *sums;
    bt_kv_trailer *trailers; // NULL where the host reads the pool
} bt_fetch;

typedef struct {
    bool used, lost, told, closing;
    bool broken; // we gave it up: an operation did not end in time
    uint32_t flying;
    uint32_t window, blocks;
    uint64_t epoch, bytes;
    bt_time proof_took;
} bt_peer_slot;

struct bt_transfer {
    bt_transfer_options o;
    const bt_transport_ops *ops;
    bt_transport *transport;
    uint8_t *memory;
    uint32_t piece_blocks, piece_count;
    bt_fetch *fetches;
    uint32_t *queue; // fetches in use, oldest first
    uint32_t queued;
    bt_peer_slot *peers;
    bt_piece *pieces;
    bt_transfer_block *blocks; // of all fetches
    uint64_t *sums;
    bt_kv_trailer *trailers;
    bt_transfer_stats stats;
};

uint8_t *bt_transfer_block_at(const bt_transfer *transfer, uint32_t block);
bt_peer_slot *bt_transfer_slot(const bt_transfer *transfer,
                               uint32_t peer); // NULL: not connected, or being disconnected
bool bt_transfer_slot_up(const bt_transfer *transfer, uint32_t peer);
