#include "tools/cluster_check.h"

#include "common/net/challenge.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct {
    bt_cluster_config *c;
    const bt_config_tree *tree;
    bt_why *why;
} checker;

// A program of the file, whichever pool it is in.
typedef struct {
    uint32_t pool, node;
    const char *name;
    bt_cluster_settings *cluster;
    const char *model;
    bt_node_config *as_node; // NULL for a router
    bt_router_config *as_router;
} program;

static uint32_t
pool_count(const bt_cluster_config *c, uint32_t pool)
{
    return pool == BT_CLUSTER_ROUTERS   ? c->router_count
           : pool == BT_CLUSTER_PREFILL ? c->prefill_count
                                        : c->decode_count;
}

static program
get(bt_cluster_config *c, uint32_t pool, uint32_t node)
{
    program p = {.pool = pool, .node = node};

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
each(checker *k, bt_err (*check)(checker *, const program *))
{
    bt_err err = BT_OK;

    for (uint32_t pool = BT_CLUSTER_ROUTERS; pool <= BT_CLUSTER_DECODE; pool++) {
        for (uint32_t i = 0; i < pool_count(k->c, pool) && err == BT_OK; i++) {
            program p = get(k->c, pool, i);

            err = check(k, &p);
        }
    }
    return err;
}

#define FAIL(k, p, key, ...) bt_config_tree_fail((k)->tree, (p)->pool, (p)->node, key, (k)->why, __VA_ARGS__)

// ---- names ----

static bt_err
check_name(checker *k, const program *p)
{
    static const char *const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";

    if (p->name[0] == 0) {
        return FAIL(k, p, NULL, "this node has no name: expected name: NAME");
    }
    if (p->name[strspn(p->name, letters)] != 0) {
        return FAIL(k, p, "name", "name: \"%s\": expected letters, digits, '.', '_' and '-'", p->name);
    }
    for (uint32_t pool = BT_CLUSTER_ROUTERS; pool <= p->pool; pool++) {
        uint32_t count = pool == p->pool ? p->node : pool_count(k->c, pool);

        for (uint32_t i = 0; i < count; i++) {
            if (strcmp(get(k->c, pool, i).name, p->name) == 0) {
                return FAIL(k, p, "name", "name: \"%s\" is already that of a node of %s in line %u", p->name,
                            bt_cluster_section(pool), bt_config_tree_line(k->tree, pool, i, "name"));
            }
        }
    }
    return BT_OK;
}

bt_err
bt_cluster_check_names(const bt_cluster_config *c, const bt_config_tree *tree, bt_why *why)
{
    checker k = {(bt_cluster_config *)c, tree, why}; // looked at, not changed

    if (c->prefill_count + c->decode_count > BT_CLUSTER_NODES_MAX) {
        return bt_config_tree_fail(tree, BT_CLUSTER_DECODE, c->decode_count - 1, "name", why,
                                   "%u prefill and %u decode nodes: at most %d together", c->prefill_count,
                                   c->decode_count, BT_CLUSTER_NODES_MAX);
    }
    return each(&k, check_name);
}

// ---- addresses ----

// What has to be an address, and how it is used.
typedef struct {
    const char *key, *text;
    bool url;     // tcp://HOST:PORT … instead of HOST:PORT
    bool dialled; // by others: a host that they can reach, and a port
    bool needed;
} address;
#define ADDRESSES_MAX 4

static uint32_t
list_addresses(const program *p, address out[ADDRESSES_MAX])
{
    const bt_node_config *n = p->as_node;
    uint32_t count = 0;

    if (n == NULL) {
        out[count++] = (address){"listen", p->as_router->listen, .needed = true};
        out[count++] = (address){"gateway", p->as_router->gateway, .url = true};
        return count;
    }
    out[count++] = (address){"link", n->link, .url = true, .dialled = true, .needed = true};
    out[count++] = (address){"link_listen", n->link_listen, .url = true};
    out[count++] = (address){.key = "transfer", .text = n->transfer};
    out[count++] = (address){.key = "status", .text = n->status};
    return count;
}

static bool
is_wildcard(const char *host, size_t len)
{
    return len == 0 || (len == 1 && *host == '*') || (len == 7 && memcmp(host, "0.0.0.0", 7) == 0) ||
           (len == 4 && memcmp(host, "[::]", 4) == 0);
}

// The HOST:PORT of an address; the path of an ipc://; NULL when it has neither form.
static const char *
after_scheme(const address *a, bool *ipc)
{
    static const char *const schemes[] = {"tcp://", "tls+tcp://", "ipc://"};

    *ipc = false;
    for (size_t i = 0; a->url && i < 3; i++) {
        if (strncmp(a->text, schemes[i], strlen(schemes[i])) == 0) {
            *ipc = i == 2;
            return a->text + strlen(schemes[i]);
        }
    }
    return a->url ? NULL : a->text;
}

static bool
split_port(const char *text, size_t *host_len, unsigned long *port)
{
    const char *colon = strrchr(text, ':');
    char *end;

    if (colon == NULL || colon[1] < '0' || colon[1] > '9') {
        return false;
    }
    *host_len = (size_t)(colon - text);
    *port = strtoul(colon + 1, &end, 10);
    // An IPv6 address stands in brackets: its own colons are not a port's.
    return *end == 0 && *port <= 65535 && strcspn(text, " /") == strlen(text) &&
           (memchr(text, ':', *host_len) == NULL || (*text == '[' && colon[-1] == ']'));
}

static bt_err
check_form(checker *k, const program *p, const address *a)
{
    const char *expected = a->url ? "tcp://HOST:PORT, tls+tcp://HOST:PORT or ipc:///PATH" : "HOST:PORT";
    bool ipc;
    const char *rest = after_scheme(a, &ipc);
    size_t host_len = 0;
    unsigned long port = 0;

    if (a->text[0] == 0) {
        return a->needed ? FAIL(k, p, a->key, "%s: expected %s: what others dial", a->key, expected) : BT_OK;
    }
    if (rest != NULL && ipc) {
        return *rest == '/' ? BT_OK
                            : FAIL(k, p, a->key, "%s: \"%s\": expected a whole path, ipc:///PATH", a->key, a->text);
    }
    if (rest == NULL || !split_port(rest, &host_len, &port)) {
        return FAIL(k, p, a->key, "%s: \"%s\" is not %s", a->key, a->text, expected);
    }
    if (a->dialled && (is_wildcard(rest, host_len) || port == 0)) {
        return FAIL(k, p, a->key, "%s: \"%s\": others dial this: expected a host and a port (link_listen may say * )",
                    a->key, a->text);
    }
    return BT_OK;
}

// The same address of another program, or another of this one. Wildcards and port 0 are of each machine.
static bool
same_address(const address *a, const address *b)
{
    bool ipc_a, ipc_b;
    const char *x = after_scheme(a, &ipc_a), *y = after_scheme(b, &ipc_b);
    size_t host_len = 0;
    unsigned long port = 1;

    if (a->text[0] == 0 || b->text[0] == 0 || ipc_a != ipc_b || strcmp(x, y) != 0) {
        return false;
    }
    return ipc_a || (split_port(x, &host_len, &port) && port != 0 && !is_wildcard(x, host_len));
}

static bt_err
check_once(checker *k, const program *p, const address *a, uint32_t own_before)
{
    address other[ADDRESSES_MAX];

    for (uint32_t pool = BT_CLUSTER_ROUTERS; pool <= p->pool; pool++) {
        uint32_t count = pool == p->pool ? p->node + 1 : pool_count(k->c, pool);

        for (uint32_t i = 0; i < count; i++) {
            program q = get(k->c, pool, i);
            bool own = pool == p->pool && i == p->node;
            uint32_t others = own ? own_before : list_addresses(&q, other);

            if (own) {
                list_addresses(&q, other);
            }
            for (uint32_t j = 0; j < others; j++) {
                bool listens_on_link = own && strcmp(a->key, "link_listen") == 0 && strcmp(other[j].key, "link") == 0;

                if (!listens_on_link && same_address(a, &other[j])) {
                    return FAIL(k, p, a->key, "%s: \"%s\" is already the %s of %s in line %u", a->key, a->text,
                                other[j].key, q.name, bt_config_tree_line(k->tree, pool, i, other[j].key));
                }
            }
        }
    }
    return BT_OK;
}

static bt_err
check_addresses(checker *k, const program *p)
{
    address own[ADDRESSES_MAX];
    uint32_t count = list_addresses(p, own);
    bt_err err = BT_OK;

    for (uint32_t i = 0; i < count && err == BT_OK; i++) {
        if ((err = check_form(k, p, &own[i])) == BT_OK) {
            err = check_once(k, p, &own[i], i);
        }
    }
    return err;
}

// ---- TLS ----

static bool
is_tls(const char *url)
{
    return strncmp(url, "tls+tcp://", 10) == 0;
}

static bool
any_tls(checker *k)
{
    bool tls = false;

    for (uint32_t pool = BT_CLUSTER_PREFILL; pool <= BT_CLUSTER_DECODE; pool++) {
        for (uint32_t i = 0; i < pool_count(k->c, pool); i++) {
            tls = tls || is_tls(get(k->c, pool, i).as_node->link);
        }
    }
    return tls;
}

static bt_err
check_tls(checker *k, const program *p)
{
    bt_node_config *n = p->as_node;
    bool tls = n != NULL ? is_tls(n->link) || is_tls(n->link_listen) : any_tls(k) || is_tls(p->as_router->gateway);

    if (!tls) {
        return BT_OK;
    }
    if (p->cluster->ca_file[0] == 0) {
        return FAIL(k, p, "cluster.tls.ca", "cluster.tls.ca: expected a file, for the tls+tcp:// links of %s", p->name);
    }
    if (p->cluster->cert_key_file[0] == 0) {
        return FAIL(k, p, "cluster.tls.cert_key",
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
check_alike(checker *k, const program *p)
{
    const bt_node_config *n = p->as_node;
    program first = get(k->c, p->pool, 0), other = get(k->c, BT_CLUSTER_DECODE, 0);

    if (n == NULL || (p->pool == BT_CLUSTER_PREFILL && k->c->decode_count == 0)) {
        return BT_OK;
    }
    if (n->engine.weights != first.as_node->engine.weights) {
        return FAIL(k, p, "weights", "weights: %s has %s and %s has %s: the nodes of a pool hold the same", p->name,
                    bt_settings_weights[n->engine.weights], first.name,
                    bt_settings_weights[first.as_node->engine.weights]);
    }
    if (n->engine.weights != other.as_node->engine.weights && !(is_made(n) && is_made(other.as_node))) {
        return FAIL(
            k, p, "weights",
            "weights: %s has %s and %s has %s, which cannot read each other's caches: expected the same, or both of "
            "w8 and q4",
            p->name, bt_settings_weights[n->engine.weights], other.name,
            bt_settings_weights[other.as_node->engine.weights]);
    }
    if (n->engine.kv_format != other.as_node->engine.kv_format) {
        return FAIL(k, p, "kv.format", "kv.format: %s has %s and %s has %s: all nodes have the same", p->name,
                    bt_settings_kv_formats[n->engine.kv_format], other.name,
                    bt_settings_kv_formats[other.as_node->engine.kv_format]);
    }
    if (n->engine.kv_block_tokens != other.as_node->engine.kv_block_tokens) {
        return FAIL(k, p, "kv.block_tokens", "kv.block_tokens: %s has %u and %s has %u: all nodes have the same",
                    p->name, n->engine.kv_block_tokens, other.name, other.as_node->engine.kv_block_tokens);
    }
    return BT_OK;
}

static bt_err
check_settings(checker *k, const program *p)
{
    const char *key = NULL;
    bt_why why = {""};

    if (p->as_node != NULL && strcmp(p->as_node->transport, "host") != 0 && strcmp(p->as_node->transport, "ucx") != 0) {
        return FAIL(k, p, "transport", "transport: \"%s\" is none of host, ucx", p->as_node->transport);
    }
    if ((p->as_node != NULL ? bt_engine_settings_check(&p->as_node->engine, &key, &why)
                            : bt_http_settings_check(&p->as_router->http, &key, &why)) != BT_OK) {
        return FAIL(k, p, key, "%s", why.text);
    }
    return BT_OK;
}

// What the program that runs cannot do without; others may get theirs elsewhere (--set).
static bt_err
check_needs(checker *k, const program *p)
{
    if (p->model[0] == 0) {
        return FAIL(k, p, "model.path", "model.path: expected a .gguf file or a Hugging Face directory for %s",
                    p->name);
    }
    if (p->cluster->secret[0] == 0 && p->cluster->secret_file[0] == 0) {
        return FAIL(k, p, "cluster.secret_file",
                    "cluster.secret_file: expected a file with the secret that %s shares with the others", p->name);
    }
    if (p->cluster->secret[0] != 0 && p->cluster->secret_file[0] != 0) {
        return FAIL(k, p, "cluster.secret", "cluster.secret: expected either this or cluster.secret_file");
    }
    return BT_OK;
}

static bt_err
fill_in(checker *k, const program *p)
{
    (void)k;
    if (p->as_node != NULL && p->as_node->link_listen[0] == 0) {
        snprintf(p->as_node->link_listen, sizeof p->as_node->link_listen, "%s", p->as_node->link);
    }
    return BT_OK;
}

// ---- the files of the program that runs here ----

static bt_err
check_readable(checker *k, const program *p, const char *key, const char *path)
{
    return path[0] == 0 || access(path, R_OK) == 0 ? BT_OK : FAIL(k, p, key, "%s: %s: %s", key, path, strerror(errno));
}

static bt_err
take_secret(checker *k, const program *p, int fd)
{
    const char *path = p->cluster->secret_file, *key = "cluster.secret_file";
    char line[BT_SECRET_BYTES_MAX + 3];
    struct stat info;
    ssize_t got;
    size_t len;

    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        return FAIL(k, p, key, "%s: %s: expected a plain file", key, path);
    }
    if ((info.st_mode & 077) != 0) {
        return FAIL(k, p, key, "%s: %s: expected a file that only its owner can read (chmod 600), found mode %03o", key,
                    path, (unsigned)info.st_mode & 0777);
    }
    if ((got = read(fd, line, sizeof line - 1)) < 0) {
        return FAIL(k, p, key, "%s: %s: %s", key, path, strerror(errno));
    }
    line[got] = 0;
    len = strcspn(line, "\r\n");
    if (len == 0) {
        return FAIL(k, p, key, "%s: %s: expected a secret in its first line, found none", key, path);
    }
    if (len > BT_SECRET_BYTES_MAX || strlen(line) != (size_t)got) {
        return FAIL(k, p, key, "%s: %s: expected one line of at most %d bytes of text", key, path, BT_SECRET_BYTES_MAX);
    }
    memcpy(p->cluster->secret, line, len);
    p->cluster->secret[len] = 0;
    return BT_OK;
}

static bt_err
read_secret(checker *k, const program *p)
{
    bt_err err;
    int fd;

    if (p->cluster->secret_file[0] == 0) {
        return BT_OK;
    }
    // A pipe without a writer would wait.
    if ((fd = open(p->cluster->secret_file, O_RDONLY | O_CLOEXEC | O_NONBLOCK)) < 0) {
        return FAIL(k, p, "cluster.secret_file", "cluster.secret_file: %s: %s", p->cluster->secret_file,
                    strerror(errno));
    }
    err = take_secret(k, p, fd);
    close(fd);
    return err;
}

static bt_err
check_here(checker *k, const program *p)
{
    bt_why why = {""};
    bt_err err;

    if ((err = read_secret(k, p)) != BT_OK ||
        (err = check_readable(k, p, "cluster.tls.ca", p->cluster->ca_file)) != BT_OK ||
        (err = check_readable(k, p, "cluster.tls.cert_key", p->cluster->cert_key_file)) != BT_OK ||
        (err = check_readable(k, p, "model.path", p->model)) != BT_OK) {
        return err;
    }
    if (p->as_router != NULL && p->as_router->http.auth_file[0] != 0 &&
        bt_http_settings_read_keys(&p->as_router->http, &why) != BT_OK) {
        return FAIL(k, p, "auth.file", "%s", why.text);
    }
    return BT_OK;
}

bt_err
bt_cluster_check(bt_cluster_config *c, const bt_config_tree *tree, bool here, bt_why *why)
{
    checker k = {c, tree, why};
    program self = get(c, bt_cluster_pool_of(c->self_role), c->self);
    bt_err err;

    if (c->decode_count == 0) {
        return bt_config_tree_fail(tree, BT_CLUSTER_DECODE, 0, NULL, why,
                                   "decode: expected at least one node under nodes:");
    }
    if ((err = each(&k, check_addresses)) != BT_OK || (err = each(&k, check_tls)) != BT_OK ||
        (err = each(&k, check_settings)) != BT_OK || (err = each(&k, check_alike)) != BT_OK ||
        (err = each(&k, fill_in)) != BT_OK || !here) {
        return err;
    }
    return (err = check_needs(&k, &self)) != BT_OK ? err : check_here(&k, &self);
}
