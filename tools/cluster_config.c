#include "tools/cluster_config.h"

#include "common/base/mem.h"
#include "common/config/pools.h"
#include "tools/cluster_check.h"

#include <stdio.h>
#include <string.h>

#define ACCEPTED_MAX 80 // what a prefill node's core tells apart: 16 routers and 64 decode nodes

#define CLUSTER_ROWS(at)                                                                                               \
    {"cluster.name",                                                                                                   \
     BT_SETTING_TEXT,                                                                                                  \
     (at) + offsetof(bt_cluster_settings, name),                                                                       \
     64,                                                                                                               \
     "baton",                                                                                                          \
     "What the cluster is called in its own pages and metrics.",                                                       \
     0,                                                                                                                \
     0,                                                                                                                \
     NULL},                                                                                                            \
        {"cluster.secret",                                                                                             \
         BT_SETTING_TEXT,                                                                                              \
         (at) + offsetof(bt_cluster_settings, secret),                                                                 \
         129,                                                                                                          \
         "",                                                                                                           \
         "What all programs of the cluster know and no stranger does; or:",                                            \
         0,                                                                                                            \
         0,                                                                                                            \
         NULL},                                                                                                        \
        {"cluster.secret_file",                                                                                        \
         BT_SETTING_TEXT,                                                                                              \
         (at) + offsetof(bt_cluster_settings, secret_file),                                                            \
         1024,                                                                                                         \
         "",                                                                                                           \
         "A file that holds it, and that only its owner can read.",                                                    \
         0,                                                                                                            \
         0,                                                                                                            \
         NULL},                                                                                                        \
        {"cluster.tls.ca",                                                                                             \
         BT_SETTING_TEXT,                                                                                              \
         (at) + offsetof(bt_cluster_settings, ca_file),                                                                \
         1024,                                                                                                         \
         "",                                                                                                           \
         "For tls+tcp:// links: who signs the certificates, PEM.",                                                     \
         0,                                                                                                            \
         0,                                                                                                            \
         NULL},                                                                                                        \
    {                                                                                                                  \
        "cluster.tls.cert_key", BT_SETTING_TEXT, (at) + offsetof(bt_cluster_settings, cert_key_file), 1024, "",        \
            "And this program's own certificate and key, PEM in one file.", 0, 0, NULL                                 \
    }

#define AT(field) offsetof(bt_router_config, field)
static const bt_setting router_table[] = {
    {"name", BT_SETTING_TEXT, AT(name), BT_NODE_NAME_MAX, "", "Of the program, once in the cluster.", 0, 0, NULL},
    {"listen", BT_SETTING_TEXT, AT(listen), 128, "127.0.0.1:8080",
     "HTTP for clients, HOST:PORT; * as the host means every address.", 0, 0, NULL},
    {"gateway", BT_SETTING_TEXT, AT(gateway), 160, "", "RPC for gateways, tcp://HOST:PORT; empty = none.", 0, 0, NULL},
    {"model.path", BT_SETTING_TEXT, AT(model), 1024, "", "A .gguf file or a Hugging Face directory.", 0, 0, NULL},
    {"model.name", BT_SETTING_TEXT, AT(model_name), 128, "",
     "The name that clients use; empty = the file's, without its ending.", 0, 0, NULL},
    CLUSTER_ROWS(AT(cluster)),
    {"placement.exact", BT_SETTING_BOOL, AT(placement.exact), 0, "true",
     "Prompts go through the weights of the prefill nodes, whatever it costs.", 0, 0, NULL},
    {"placement.remote_tokens_min", BT_SETTING_COUNT, AT(placement.remote_tokens_min), 0, "512",
     "Prompts with fewer tokens to compute stay at the decode node.", 1, 16777216, NULL},
    {"placement.heartbeat", BT_SETTING_TIME, AT(placement.heartbeat), 0, "1s", "Between two, to every node.", 0.01, 60,
     NULL},
    {"placement.node_silence", BT_SETTING_TIME, AT(placement.node_silence), 0, "10s",
     "After it a node counts as lost, and what it had moves.", 0.05, 3600, NULL},
    {"placement.degrade_after", BT_SETTING_TIME, AT(placement.degrade_after), 0, "2s",
     "With exact: so long a prompt waits for a lost prefill node before its decode node reads it, marked.", 0.001,
     86400, NULL},
    {"placement.slo_ttft", BT_SETTING_TIME, AT(placement.slo_ttft), 0, "0s",
     "Who would wait longer for a first token is told to come back later; 0 = nobody is.", 0, 3600, NULL},
    BT_HTTP_ROWS(AT(http)),
    BT_LOG_ROW(AT(log_level)),
    {0},
};
#undef AT

#define AT(field) offsetof(bt_node_config, field)
static const char *const transfer_paths[] = {"auto", "direct", "stream", "get", "am", NULL};

static const bt_setting node_table[] = {
    {"name", BT_SETTING_TEXT, AT(name), BT_NODE_NAME_MAX, "", "Of the program, once in the cluster.", 0, 0, NULL},
    {"link", BT_SETTING_TEXT, AT(link), 160, "",
     "Where others dial it: tcp://HOST:PORT, tls+tcp://HOST:PORT or ipc:///PATH.", 0, 0, NULL},
    {"link_listen", BT_SETTING_TEXT, AT(link_listen), 160, "", "Where it listens, if that is another address.", 0, 0,
     NULL},
    {"transfer", BT_SETTING_TEXT, AT(transfer), 128, "",
     "Where others fetch its blocks, HOST:PORT; empty = all addresses, any port.", 0, 0, NULL},
    {"status", BT_SETTING_TEXT, AT(status), 128, "", "Its own /health, /ready and /metrics, HOST:PORT; empty = none.",
     0, 0, NULL},
    {"tls_name", BT_SETTING_TEXT, AT(tls_name), 128, "", "That its certificate must have; empty = the link's host.", 0,
     0, NULL},
    {"transport", BT_SETTING_TEXT, AT(transport), 16, "auto",
     "How blocks travel: host, ucx, or cuda between GPUs of one host; auto = cuda where it may do, else host.", 0, 0,
     NULL},
    {"transfer_path", BT_SETTING_WORD, AT(transfer_path), 0, "auto",
     "auto finds the best for each peer; another is for trying that one.", 0, 0, transfer_paths},
    {"queue", BT_SETTING_COUNT, AT(queue), 0, "0", "Work that may wait for room at a node; 0 = as the node sees fit.",
     0, 512, NULL},
    {"lease", BT_SETTING_TIME, AT(lease), 0, "30s", "What a peer holds here outlives its last heartbeat so long.", 0.1,
     3600, NULL},
    {"drain_time", BT_SETTING_TIME, AT(drain_time), 0, "30s", "After SIGTERM, for what runs to finish.", 0, 3600, NULL},
    BT_ENGINE_TOP_ROWS(AT(engine)),
    {"model.path", BT_SETTING_TEXT, AT(model), 1024, "", "A .gguf file or a Hugging Face directory.", 0, 0, NULL},
    CLUSTER_ROWS(AT(cluster)),
    BT_ENGINE_ROWS(AT(engine)),
    BT_LOG_ROW(AT(log_level)),
    {0},
};
#undef AT

static const bt_config_pool pools[] = {
    [BT_CLUSTER_ROUTERS] = {"routers", router_table, sizeof(bt_router_config), BT_CLUSTER_ROUTERS_MAX, .own = 3},
    [BT_CLUSTER_PREFILL] = {"prefill", node_table, sizeof(bt_node_config), BT_CLUSTER_NODES_MAX, .own = 5},
    [BT_CLUSTER_DECODE] = {"decode", node_table, sizeof(bt_node_config), BT_CLUSTER_NODES_MAX, .own = 5},
};
#define POOLS (sizeof pools / sizeof *pools)

// ---- reading ----

uint32_t
bt_cluster_pool_of(bt_node_role role)
{
    return role == BT_NODE_ROUTER    ? BT_CLUSTER_ROUTERS
           : role == BT_NODE_PREFILL ? BT_CLUSTER_PREFILL
                                     : BT_CLUSTER_DECODE;
}

const char *
bt_cluster_section(uint32_t pool)
{
    return pools[pool].section;
}

static void
fill(bt_cluster_config *out, const bt_config_tree *tree)
{
    out->router_count = bt_config_tree_nodes(tree, BT_CLUSTER_ROUTERS);
    out->prefill_count = bt_config_tree_nodes(tree, BT_CLUSTER_PREFILL);
    out->decode_count = bt_config_tree_nodes(tree, BT_CLUSTER_DECODE);
    for (uint32_t i = 0; i < out->router_count; i++) {
        bt_config_tree_fill(tree, BT_CLUSTER_ROUTERS, i, &out->routers[i]);
    }
    for (uint32_t i = 0; i < out->prefill_count; i++) {
        bt_config_tree_fill(tree, BT_CLUSTER_PREFILL, i, &out->prefill[i]);
        out->prefill[i].role = BT_NODE_PREFILL;
    }
    for (uint32_t i = 0; i < out->decode_count; i++) {
        bt_config_tree_fill(tree, BT_CLUSTER_DECODE, i, &out->decode[i]);
        out->decode[i].role = BT_NODE_DECODE;
    }
}

static bt_err
find_self(bt_cluster_config *out, const bt_config_tree *tree, const bt_cluster_ask *ask, bt_why *why)
{
    uint32_t pool = bt_cluster_pool_of(ask->role), count = bt_config_tree_nodes(tree, pool);
    char names[256] = "";
    size_t used = 0;

    out->self_role = ask->role;
    out->self = 0;
    if (ask->name == NULL && count == 1) {
        return BT_OK;
    }
    for (uint32_t i = 0; i < count; i++) {
        const char *name = bt_cluster_get(out, pool, i).name;

        if (ask->name != NULL && strcmp(ask->name, name) == 0) {
            out->self = i;
            return BT_OK;
        }
        if (used < sizeof names) {
            used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", i != 0 ? ", " : "", name);
        }
    }
    if (count == 0) {
        return bt_fail(why, BT_ERR_NOT_FOUND, "%s: %s: has no nodes", ask->path, pools[pool].section);
    }
    return ask->name != NULL ? bt_fail(why, BT_ERR_NOT_FOUND, "%s: %s: has no node \"%s\", but %s", ask->path,
                                       pools[pool].section, ask->name, names)
                             : bt_fail(why, BT_ERR_NOT_FOUND, "%s: %s: which of its nodes? --name one of %s", ask->path,
                                       pools[pool].section, names);
}

static bt_err
read_tree(bt_cluster_config *out, bt_config_tree *tree, const bt_cluster_ask *ask, bt_why *why)
{
    uint32_t pool = bt_cluster_pool_of(ask->role);
    bt_err err;

    fill(out, tree);
    if ((err = bt_cluster_check_names(out, tree, why)) != BT_OK || (err = find_self(out, tree, ask, why)) != BT_OK) {
        return err;
    }
    for (uint32_t i = 0; i < ask->set_count; i++) {
        if ((err = bt_config_tree_set(tree, pool, out->self, ask->sets[i], why)) != BT_OK) {
            return err;
        }
    }
    fill(out, tree);
    return bt_cluster_check(out, tree, ask->here ? ask->path : NULL, why);
}

bt_err
bt_cluster_config_read(bt_cluster_config *out, const bt_cluster_ask *ask, bt_why *why)
{
    bt_config_tree *tree = NULL;
    bt_err err;

    memset(out, 0, sizeof *out);
    if ((err = bt_config_tree_read(&tree, pools, POOLS, ask->path, why)) != BT_OK) {
        return err;
    }
    err = read_tree(out, tree, ask, why);
    bt_config_tree_close(tree);
    return err;
}

void
bt_cluster_config_print(const bt_cluster_config *cluster, bt_buf *out)
{
    const void *values[POOLS] = {cluster->routers, cluster->prefill, cluster->decode};
    uint32_t counts[POOLS] = {cluster->router_count, cluster->prefill_count, cluster->decode_count};

    bt_config_tree_print(pools, POOLS, values, counts, out);
}

// ---- asking ----

const bt_node_config *
bt_cluster_node(const bt_cluster_config *cluster)
{
    return cluster->self_role == BT_NODE_PREFILL ? &cluster->prefill[cluster->self] : &cluster->decode[cluster->self];
}

const bt_router_config *
bt_cluster_router(const bt_cluster_config *cluster)
{
    return &cluster->routers[cluster->self];
}

bool
bt_cluster_on_gpu(const bt_node_config *node)
{
    return strncmp(node->engine.device, "cuda", 4) == 0;
}

// Do the two links name one host, in the same words?
static bool
same_host(const char *a, const char *b)
{
    size_t len = (size_t)(strrchr(a, ':') - a);

    return (size_t)(strrchr(b, ':') - b) == len && strncmp(a, b, len) == 0;
}

static bool
is_near(const bt_node_config *node, const bt_node_config *peer)
{
    bool may = strcmp(peer->transport, "auto") == 0 || strcmp(peer->transport, "cuda") == 0;

    return may && bt_cluster_on_gpu(peer) && same_host(node->link, peer->link);
}

bt_machine_direct
bt_cluster_direct(const bt_cluster_config *c, const bt_node_config *node)
{
    bool prefill = node->role == BT_NODE_PREFILL;
    const bt_node_config *peers = prefill ? c->decode : c->prefill;
    uint32_t count = prefill ? c->decode_count : c->prefill_count, near = 0;

    if (!bt_cluster_on_gpu(node) || strcmp(node->transport, "host") == 0 || strcmp(node->transport, "ucx") == 0) {
        return BT_MACHINE_STAGED;
    }
    for (uint32_t i = 0; i < count; i++) {
        near += is_near(node, &peers[i]);
    }
    return strcmp(node->transport, "cuda") == 0 || near == count ? BT_MACHINE_DIRECT_ONLY
           : near != 0                                           ? BT_MACHINE_DIRECT
                                                                 : BT_MACHINE_STAGED;
}

bt_nng_link_options
bt_cluster_link(const bt_cluster_config *c, bt_cluster_addresses *addresses)
{
    bt_nng_link_options options = bt_nng_link_defaults();
    bool router = c->self_role == BT_NODE_ROUTER;
    const bt_cluster_settings *own = router ? &bt_cluster_router(c)->cluster : &bt_cluster_node(c)->cluster;

    for (uint32_t i = 0; c->self_role != BT_NODE_PREFILL && i < c->prefill_count; i++) {
        addresses->dial[options.dial_count++] = (bt_nng_peer){c->prefill[i].link, c->prefill[i].tls_name};
    }
    for (uint32_t i = 0; router && i < c->decode_count; i++) {
        addresses->dial[options.dial_count++] = (bt_nng_peer){c->decode[i].link, c->decode[i].tls_name};
    }
    options.dial = addresses->dial;
    if (!router) {
        addresses->listen[0] = bt_cluster_node(c)->link_listen;
        options.listen = addresses->listen;
        options.listen_count = 1;
    }
    options.secret = own->secret;
    options.tls.ca_file = own->ca_file[0] != 0 ? own->ca_file : NULL;
    options.tls.cert_key_file = own->cert_key_file[0] != 0 ? own->cert_key_file : NULL;
    // Everyone may dial a node at once, and again before an old connection was seen to be dead.
    options.accepted_max = 2 * (c->router_count + (c->self_role == BT_NODE_PREFILL ? c->decode_count : 0)) + 8;
    options.accepted_max = router ? 0 : options.accepted_max < ACCEPTED_MAX ? options.accepted_max : ACCEPTED_MAX;
    return options;
}
