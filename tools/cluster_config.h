// The one file that describes a cluster (deploy/cluster.example.yaml), as its programs read it. Every setting may stand at the top of
// the file, in a pool (routers, prefill, decode) or at a node of its `nodes:`; the nearest wins, and --set goes over all of them for
// the program that runs.
//
//     static bt_cluster_config cluster;                       large
//     bt_cluster_config_read(&cluster, &(bt_cluster_ask){.path = "cluster.yaml", .role = BT_NODE_DECODE, .name = "d1"}, &why);
//     const bt_node_config *self = bt_cluster_node(&cluster);
//
// What is checked: every value's type and range, names and addresses (their form, and that none is there twice; 0.0.0.0 may be), that all
// nodes share kv.format and kv.block_tokens and those of a pool their weights; for the program that runs also that it has a model and a
// secret, and its files. Errors say FILE:line:column and what was expected.
#pragma once

#include "common/net/nng_link.h"
#include "common/wire/message.h"
#include "tools/machine.h"
#include "tools/program.h"
#include "tools/settings.h"

#define BT_CLUSTER_ROUTERS_MAX 16
#define BT_CLUSTER_NODES_MAX 64 // prefill and decode nodes together

// cluster.*
typedef struct {
    char name[64];
    char secret[130];       // cluster.secret; for the program that runs here also what secret_file holds
    char secret_file[1024]; // a file that only its owner can read; one line
    char ca_file[1024], cert_key_file[1024];
} bt_cluster_settings;

// A prefill or decode node.
typedef struct {
    char name[BT_NODE_NAME_MAX];
    bt_node_role role;                // by the pool
    char link[160], link_listen[160]; // what others dial; where it listens (filled in: `link` where the file has none)
    char tls_name[128];     // that the node's certificate must have; filled in with the host of `link` for tls+tcp
    char transfer[128];     // bt_transfer_options.listen; "" = all addresses, any port
    char transport[16];     // auto, host, cuda or ucx
    uint32_t transfer_path; // bt_transfer_path
    char status[128];       // HOST:PORT of its own HTTP; "" = none
    char model[1024];
    bt_cluster_settings cluster;
    bt_engine_settings engine;
    uint32_t queue; // prompts or reservations that wait for room; 0 = the node's own default
    bt_time lease, drain_time;
    uint32_t log_level;
} bt_node_config;

typedef struct {
    char name[BT_NODE_NAME_MAX];
    char listen[128], gateway[160]; // gateway "" = none
    char model[1024], model_name[128];
    bt_cluster_settings cluster;
    bt_http_settings http;
    struct {
        bool exact;
        uint32_t remote_tokens_min;
        bt_time heartbeat, node_silence, degrade_after, slo_ttft;
    } placement;
    uint32_t log_level;
} bt_router_config;

typedef struct {
    bt_node_role self_role;
    uint32_t self; // index into the array of that role
    uint32_t router_count, prefill_count, decode_count;
    bt_router_config routers[BT_CLUSTER_ROUTERS_MAX];
    bt_node_config prefill[BT_CLUSTER_NODES_MAX], decode[BT_CLUSTER_NODES_MAX]; // as listed
} bt_cluster_config;

typedef struct {
    const char *path;
    bt_node_role role;
    const char *name;        // NULL: the pool's only node
    const char *const *sets; // [set_count] "key=value", for this program alone
    uint32_t set_count;
    bool
        here; // it is to run on this machine: its files (secret, certificates, model, keys) are looked at, secret and keys read
} bt_cluster_ask;

// BT_ERR_INVALID with the place in `why`, BT_ERR_IO when the file cannot be read, BT_ERR_NOT_FOUND when the pool has no such node.
bt_err bt_cluster_config_read(bt_cluster_config *out, const bt_cluster_ask *ask, bt_why *why);
// The same by the options of a command line (tools/program.h), which may ask for no more than a look: -1 to go on, or the exit code.
int bt_cluster_begin(bt_cluster_config *out, const char *command, bt_node_role role, const bt_program_args *args);
// The whole cluster as YAML: what all share at the top, what a pool shares in it, the rest at the nodes. Reading it gives the same values.
// The secret is written only where it stood in the file, not out of secret_file.
void bt_cluster_config_print(const bt_cluster_config *cluster, bt_buf *out);

const bt_node_config *bt_cluster_node(const bt_cluster_config *cluster);     // self, of a prefill or decode program
const bt_router_config *bt_cluster_router(const bt_cluster_config *cluster); // self, of a router

bool bt_cluster_on_gpu(const bt_node_config *node); // does it compute on one?
// By `transport` of a node on a GPU, and where that is auto by what the file says of those of the other pool: which pools it has. Two nodes on
// GPUs whose links are of one host read each other's GPUs; all others meet in host memory.
bt_machine_direct bt_cluster_direct(const bt_cluster_config *cluster, const bt_node_config *node);

// For bt_nng_link_open. Routers dial all nodes: peers 0 … prefill_count − 1 are the prefill nodes as listed, then the decode nodes. Decode
// nodes dial all prefill nodes: peer i is prefill[i]. Prefill nodes dial nobody. Points into `cluster` and into `dial`.
typedef struct {
    bt_nng_peer dial[BT_CLUSTER_NODES_MAX];
    const char *listen[1];
} bt_cluster_addresses;
bt_nng_link_options bt_cluster_link(const bt_cluster_config *cluster, bt_cluster_addresses *addresses);
