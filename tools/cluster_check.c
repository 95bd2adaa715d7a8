#include "tools/cluster_check.h"

#include <stdio.h>
#include <string.h>

uint32_t
bt_cluster_count(const bt_cluster_config *c, uint32_t pool)
{
    return pool == BT_CLUSTER_ROUTERS   ? c->router_count
           : pool == BT_CLUSTER_PREFILL ? c->prefill_count
                                        : c->decode_count;
}

bt_cluster_program
bt_cluster_get(bt_cluster_config *c, uint32_t pool, uint32_t node)
{
    bt_cluster_program p = {.pool = pool, .node = node};

    if (pool == BT_CLUSTER_ROUTERS) {
        p.as_router = &c->routers[node];
        p.name = p.as_router->name;
        p.cluster = &p.as_router->cluster;
        p.model = p.as_router->model;
    } else {
        p.as_node = pool == BT_CLUSTER_PREFILL ? &c->prefill[node] : &c->decode[node];
        p.name = p.as_node->name;
        p.cluster = &p.as_node->cluster;
        p.model = p.as_node->model;
    }
    return p;
}

// Calls for every program of the file until one fails.
static bt_err
each(bt_cluster_checker *k, bt_err (*check)(bt_cluster_checker *, const bt_cluster_program *))
{
    bt_err err = BT_OK;

    for (uint32_t pool = BT_CLUSTER_ROUTERS; pool <= BT_CLUSTER_DECODE; pool++) {
        for (uint32_t i = 0; i < bt_cluster_count(k->c, pool) && err == BT_OK; i++) {
            bt_cluster_program p = bt_cluster_get(k->c, pool, i);

            err = check(k, &p);
        }
    }
    return err;
}

// ---- names ----

static bt_err
check_name(bt_cluster_checker *k, const bt_cluster_program *p)
{
    static const char *const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";

    if (p->name[0] == 0) {
        return BT_CLUSTER_FAIL(k, p, NULL, "this node has no name: expected name: NAME");
    }
    if (p->name[strspn(p->name, letters)] != 0) {
        return BT_CLUSTER_FAIL(k, p, "name", "name: \"%s\": expected letters, digits, '.', '_' and '-'", p->name);
    }
    for (uint32_t pool = BT_CLUSTER_ROUTERS; pool <= p->pool; pool++) {
        uint32_t count = pool == p->pool ? p->node : bt_cluster_count(k->c, pool);

        for (uint32_t i = 0; i < count; i++) {
            if (strcmp(bt_cluster_get(k->c, pool, i).name, p->name) == 0) {
                return BT_CLUSTER_FAIL(k, p, "name", "name: \"%s\" is already that of a node of %s in line %u", p->name,
                                       bt_cluster_section(pool), bt_config_tree_line(k->tree, pool, i, "name"));
            }
        }
    }
    return BT_OK;
}

bt_err
bt_cluster_check_names(const bt_cluster_config *c, const bt_config_tree *tree, bt_why *why)
{
    bt_cluster_checker k = {(bt_cluster_config *)c, tree, why}; // looked at, not changed

    if (c->prefill_count + c->decode_count > BT_CLUSTER_NODES_MAX) {
        return bt_config_tree_fail(tree, BT_CLUSTER_DECODE, c->decode_count - 1, "name", why,
                                   "%u prefill and %u decode nodes: at most %d together", c->prefill_count,
                                   c->decode_count, BT_CLUSTER_NODES_MAX);
    }
    return each(&k, check_name);
}

// ---- TLS ----

static bool
is_tls(const char *url)
{
    return strncmp(url, "tls+tcp://", 10) == 0;
}

static bool
any_tls(bt_cluster_checker *k)
{
    bool tls = false;

    for (uint32_t pool = BT_CLUSTER_PREFILL; pool <= BT_CLUSTER_DECODE; pool++) {
        for (uint32_t i = 0; i < bt_cluster_count(k->c, pool); i++) {
            tls = tls || is_tls(bt_cluster_get(k->c, pool, i).as_node->link);
        }
    }
    return tls;
}

static bt_err
check_tls(bt_cluster_checker *k, const bt_cluster_program *p)
{
    bt_node_config *n = p->as_node;
    bool tls = n != NULL ? is_tls(n->link) || is_tls(n->link_listen) : any_tls(k) || is_tls(p->as_router->gateway);

    if (!tls) {
        return BT_OK;
    }
    if (p->cluster->ca_file[0] == 0) {
        return BT_CLUSTER_FAIL(k, p, "cluster.tls.ca",
                               "cluster.tls.ca: expected a file, for the tls+tcp:// links of %s", p->name);
    }
    if (p->cluster->cert_key_file[0] == 0) {
        return BT_CLUSTER_FAIL(k, p, "cluster.tls.cert_key",
                               "cluster.tls.cert_key: expected a file, for the tls+tcp:// links of %s", p->name);
    }
    if (n != NULL && n->tls_name[0] == 0) {
        snprintf(n->tls_name, sizeof n->tls_name, "%.*s", (int)(strrchr(n->link, ':') - (n->link + 10)), n->link + 10);
    }
    return BT_OK;
}

// ---- what nodes share ----

// Are its weights made at load, with the same smoothing of what the caches hold?
static bool
is_made(const bt_node_config *n)
{
    return n->engine.weights == BT_LOAD_W8 || n->engine.weights == BT_LOAD_Q4;
}

static bt_err
check_alike(bt_cluster_checker *k, const bt_cluster_program *p)
{
    const bt_node_config *n = p->as_node;
    bt_cluster_program first = bt_cluster_get(k->c, p->pool, 0), other = bt_cluster_get(k->c, BT_CLUSTER_DECODE, 0);

    if (n == NULL || (p->pool == BT_CLUSTER_PREFILL && k->c->decode_count == 0)) {
        return BT_OK;
    }
    if (n->engine.weights != first.as_node->engine.weights) {
        return BT_CLUSTER_FAIL(k, p, "weights", "weights: %s has %s and %s has %s: the nodes of a pool hold the same",
                               p->name, bt_settings_weights[n->engine.weights], first.name,
                               bt_settings_weights[first.as_node->engine.weights]);
    }
    if (n->engine.weights != other.as_node->engine.weights && !(is_made(n) && is_made(other.as_node))) {
        return BT_CLUSTER_FAIL(
            k, p, "weights",
            "weights: %s has %s and %s has %s, which cannot read each other's caches: expected the same, or both of "
            "w8 and q4",
            p->name, bt_settings_weights[n->engine.weights], other.name,
            bt_settings_weights[other.as_node->engine.weights]);
    }
    if (n->engine.kv_format != other.as_node->engine.kv_format) {
        return BT_CLUSTER_FAIL(k, p, "kv.format", "kv.format: %s has %s and %s has %s: all nodes have the same",
                               p->name, bt_settings_kv_formats[n->engine.kv_format], other.name,
                               bt_settings_kv_formats[other.as_node->engine.kv_format]);
    }
    if (n->engine.kv_block_tokens != other.as_node->engine.kv_block_tokens) {
        return BT_CLUSTER_FAIL(k, p, "kv.block_tokens",
                               "kv.block_tokens: %s has %u and %s has %u: all nodes have the same", p->name,
                               n->engine.kv_block_tokens, other.name, other.as_node->engine.kv_block_tokens);
    }
    return BT_OK;
}

static bt_err
check_settings(bt_cluster_checker *k, const bt_cluster_program *p)
{
    const bt_node_config *n = p->as_node;
    const char *key = NULL;
    bt_why why = {""};

    if (n != NULL && strcmp(n->transport, "auto") != 0 && strcmp(n->transport, "host") != 0 &&
        strcmp(n->transport, "cuda") != 0 && strcmp(n->transport, "ucx") != 0) {
        return BT_CLUSTER_FAIL(k, p, "transport", "transport: \"%s\" is none of auto, host, cuda, ucx", n->transport);
    }
    if (n != NULL && strcmp(n->transport, "cuda") == 0 && !bt_cluster_on_gpu(n)) {
        return BT_CLUSTER_FAIL(k, p, "transport", "transport: cuda: %s has device: %s, expected cuda:N", p->name,
                               n->engine.device);
    }
    if ((p->as_node != NULL ? bt_engine_settings_check(&p->as_node->engine, &key, &why)
                            : bt_http_settings_check(&p->as_router->http, &key, &why)) != BT_OK) {
        return BT_CLUSTER_FAIL(k, p, key, "%s", why.text);
    }
    return BT_OK;
}

static bt_err
fill_in(bt_cluster_checker *k, const bt_cluster_program *p)
{
    (void)k;
    if (p->as_node != NULL && p->as_node->link_listen[0] == 0) {
        snprintf(p->as_node->link_listen, sizeof p->as_node->link_listen, "%s", p->as_node->link);
    }
    return BT_OK;
}

bt_err
bt_cluster_check(bt_cluster_config *c, const bt_config_tree *tree, const char *here, bt_why *why)
{
    bt_cluster_checker k = {c, tree, why};
    bt_cluster_program self = bt_cluster_get(c, bt_cluster_pool_of(c->self_role), c->self);
    bt_err err;

    if (c->decode_count == 0) {
        return bt_config_tree_fail(tree, BT_CLUSTER_DECODE, 0, NULL, why,
                                   "decode: expected at least one node under nodes:");
    }
    if ((err = each(&k, bt_cluster_check_addresses)) != BT_OK || (err = each(&k, check_tls)) != BT_OK ||
        (err = each(&k, check_settings)) != BT_OK || (err = each(&k, check_alike)) != BT_OK ||
        (err = each(&k, fill_in)) != BT_OK || here == NULL) {
        return err;
    }
    return bt_cluster_check_here(&k, &self, here);
}
