// The cuda transport's parts: cuda.c opens and moves, cuda_peer.c knows who can be read from. Private to this folder.
//
//     owner                                              receiver
//       pool on its GPU, lent by a handle (CUDA IPC)        opens the handle: the pool in its own address space
//       mark: a page of host memory (shared.h) ──────────▶  maps it: same host, same program as described; has it closed?
//       its process ─────────────────────────────────────▶  pidfd: does it live?
//
// What is in flight is the copier's: a few batches, told apart by their tickets. Pieces that find all in flight wait, and those that wait go
// together in the next: long pieces alone, short ones up to sixteen, since a batch costs as much as moving several blocks. A batch cannot be
// taken back, and need not be: it ends by itself within a millisecond, whatever the owner does.
#pragma once

#include "common/transfer/impl.h"
#include "common/transfer/shared.h"
#include "kernels/copier.h"

#include <stdatomic.h>

// What the owner tells by its mark.
typedef struct {
    atomic_uint closed;
} bt_cuda_mark;

// `address` of a description: which host, as far as memory can be named across it.
typedef struct {
    uint8_t boot[16];       // its boot id
    uint64_t pid_namespace; // in which pids mean the same
} bt_cuda_host;

// `key` of a description.
typedef struct {
    bt_shared_key mark;
    bt_device_shared pool;
} bt_cuda_key;

typedef struct {
    bool used, lost;
    bool same; // the pool is memory of our own GPU
    uint64_t epoch;
    const uint8_t *pool;
    const uint8_t *mark;
    bt_shared_key mark_key;
    int pidfd;       // −1: this kernel has none, it is asked by pid
    uint32_t flying; // batches
} bt_cuda_peer;

typedef struct {
    bt_transport base;
    bt_transfer_options o;
    uint64_t identity;
    bt_cuda_host host;
    bt_cuda_key key;
    bt_shared mark;
    uint8_t *pool;
    size_t pool_bytes;
    bt_copier *copier;
    bool broken;              // the copier says that the GPU has failed
    uint32_t batches, blocks; // in flight at most; of one
    uint64_t begun, through;  // tickets so far; those whose landing has been taken
    bt_piece **flights;       // [batches] by ticket
    bt_piece **waiting;       // [pieces] for which there was no batch, oldest first
    uint32_t waiting_count, waiting_blocks;
    bt_cuda_peer *peers; // [peers_max]
    int epoll;
} bt_cuda_transport;

// cuda_peer.c
void bt_cuda_host_here(bt_cuda_host *out);
bt_err bt_cuda_peer_open(bt_cuda_transport *c, uint32_t slot, const bt_description *description, bt_why *why);
void bt_cuda_peer_close(bt_cuda_transport *c, uint32_t slot); // no batch of it is in flight
// Has it ended, or closed its pool? Notes that it is lost.
void bt_cuda_peer_look(bt_cuda_transport *c, uint32_t slot);
