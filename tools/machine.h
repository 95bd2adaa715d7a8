// An engine whose KV pool other nodes may fetch from, and the plane that moves blocks: what a node stands on, whether it is a program of
// its own or one of several in `baton local`.
//
//     bt_machine_load(&machine, &options, why)    any thread; seconds to minutes
//     bt_machine_start(&machine, why)             the loop's: the plane's thread begins
//     … bt_decode_node_open(…, machine.engine, link, machine.plane, …) …
//     bt_machine_close(&machine)                  after the node
#pragma once

#include "common/engine/engine.h"
#include "common/node/plane.h"

// Which pools of a GPU others fetch from or into.
typedef enum {
    BT_MACHINE_STAGED,      // one in host memory beside the GPU's own; and of a CPU
    BT_MACHINE_DIRECT,      // the GPU's own (CUDA IPC), and for peers for which that does not do, one in host memory
    BT_MACHINE_DIRECT_ONLY, // the GPU's own
} bt_machine_direct;

typedef struct {
    bt_engine_options engine; // but its pools, which load sets. kv_out: others fetch from here, and nothing is fetched
    bool shared; // false: the pool is the engine's own, there is no plane, and what follows is not looked at
    bt_machine_direct direct;
    bt_transfer_options transfer; // of host memory: epoch (of both), transport, listen; the rest is load's
    bt_plane_options plane;
} bt_machine_options;

typedef struct {
    bt_machine_options options;
    bt_engine *engine;
    bt_transfer *transfer, *direct; // until start
    bt_plane *plane;                // NULL: not shared
    uint32_t *landed;               // [plane.fetch_blocks_max] of a fetch, where the pool is not the engine's own
} bt_machine;

// `options` is copied, what it borrows is not. On an error close it.
bt_err bt_machine_load(bt_machine *machine, const bt_machine_options *options, bt_why *why);
bt_err bt_machine_start(bt_machine *machine, bt_why *why);
void bt_machine_close(bt_machine *machine); // accepts a zeroed one
