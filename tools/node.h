// What `baton prefill` and `baton decode` have in common: one program whose kind is in a table.
//
//     loop thread      link, core, status HTTP; everything but what follows
//     loader           opens the model while the loop answers /health, then ends
//     engine thread    runs steps (common/node/worker.h), with the threads of its device
//     plane thread     moves blocks (common/node/plane.h)
//
// The link listens once the model is loaded: whoever waits for this node dials again until then. All addresses are tried at the start, so
// that a wrong one is known before the model is read.
#pragma once

#include "common/json/write.h"
#include "decode-node/main.h"
#include "prefill-node/main.h"
#include "tools/cluster_config.h"
#include "tools/machine.h"
#include "tools/program.h"

#include <pthread.h>
#include <stdatomic.h>

typedef struct bt_node_program bt_node_program;

typedef struct {
    const char *command, *event; // "baton decode", "DECODE"
    const char *usage, *about, *example;
    bt_node_role role;
    // Before the model is read, on the loader's thread: what the machine needs beyond the settings.
    bt_err (*prepare)(bt_node_program *p, bt_machine_options *options, bt_why *why);
    bt_err (*open)(bt_node_program *p, bt_why *why); // on machine and link
    void (*close)(bt_node_program *p);
    bt_time (*turn)(bt_node_program *p, bt_time now);
    void (*drain)(bt_node_program *p, bt_time now);
    bool (*idle)(const bt_node_program *p);
    bool (*broken)(const bt_node_program *p); // its device: the program leaves
    void (*metrics)(const bt_node_program *p, bt_buf *out, const char *labels);
    void (*tell)(const bt_node_program *p, bt_json_writer *w); // members of /v1/node
} bt_node_kind;

struct bt_node_program {
    const bt_node_kind *kind;
    bt_cluster_config cluster;
    const bt_node_config *config; // our own node of it
    bt_program program;
    uint64_t epoch;
    bt_http *status; // NULL: none
    bt_cluster_addresses addresses;
    bt_link *link;
    // The loader's, until `loaded`.
    pthread_t loader;
    atomic_bool loaded;
    bool loader_runs;
    bt_err load_err;
    bt_why load_why;
    bt_machine machine;
    uint64_t prompt_weights; // of a decode node
    // Then:
    bool opened; // it takes part
    bool broken;
    bt_decode_node *decode;
    bt_prefill_node *prefill;
};

int bt_node_main(const bt_node_kind *kind, int argc, char **argv);

// node_status.c: GET /health, /ready, /metrics, /v1/node. Without an address in the settings it opens nothing.
bt_err bt_node_status_open(bt_node_program *p, bt_why *why);
