// Addresses of a cluster's file: their form, and that none is there twice.
#include "tools/cluster_check.h"

#include <stdlib.h>
#include <string.h>

// What has to be an address, and how it is used.
typedef struct {
    const char *key, *text;
    bool url;     // tcp://HOST:PORT … instead of HOST:PORT
    bool dialled; // by others: a host that they can reach, and a port
    bool needed;
} address;
#define ADDRESSES_MAX 4

static uint32_t
list_addresses(const bt_cluster_program *p, address out[ADDRESSES_MAX])
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
check_form(bt_cluster_checker *k, const bt_cluster_program *p, const address *a)
{
    const char *expected = a->url ? "tcp://HOST:PORT, tls+tcp://HOST:PORT or ipc:///PATH" : "HOST:PORT";
    bool ipc;
    const char *rest = after_scheme(a, &ipc);
    size_t host_len = 0;
    unsigned long port = 0;

    if (a->text[0] == 0) {
        return a->needed ? BT_CLUSTER_FAIL(k, p, a->key, "%s: expected %s: what others dial", a->key, expected) : BT_OK;
    }
    if (rest != NULL && ipc) {
        return *rest == '/'
                   ? BT_OK
                   : BT_CLUSTER_FAIL(k, p, a->key, "%s: \"%s\": expected a whole path, ipc:///PATH", a->key, a->text);
    }
    if (rest == NULL || !split_port(rest, &host_len, &port)) {
        return BT_CLUSTER_FAIL(k, p, a->key, "%s: \"%s\" is not %s", a->key, a->text, expected);
    }
    if (a->dialled && (is_wildcard(rest, host_len) || port == 0)) {
        return BT_CLUSTER_FAIL(k, p, a->key,
                               "%s: \"%s\": others dial this: expected a host and a port (link_listen may say * )",
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
check_once(bt_cluster_checker *k, const bt_cluster_program *p, const address *a, uint32_t own_before)
{
    address other[ADDRESSES_MAX];

    for (uint32_t pool = BT_CLUSTER_ROUTERS; pool <= p->pool; pool++) {
        uint32_t count = pool == p->pool ? p->node + 1 : bt_cluster_count(k->c, pool);

        for (uint32_t i = 0; i < count; i++) {
            bt_cluster_program q = bt_cluster_get(k->c, pool, i);
            bool own = pool == p->pool && i == p->node;
            uint32_t others = own ? own_before : list_addresses(&q, other);

            if (own) {
                list_addresses(&q, other);
            }
            for (uint32_t j = 0; j < others; j++) {
                bool listens_on_link = own && strcmp(a->key, "link_listen") == 0 && strcmp(other[j].key, "link") == 0;

                if (!listens_on_link && same_address(a, &other[j])) {
                    return BT_CLUSTER_FAIL(k, p, a->key, "%s: \"%s\" is already the %s of %s in line %u", a->key,
                                           a->text, other[j].key, q.name,
                                           bt_config_tree_line(k->tree, pool, i, other[j].key));
                }
            }
        }
    }
    return BT_OK;
}

bt_err
bt_cluster_check_addresses(bt_cluster_checker *k, const bt_cluster_program *p)
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
