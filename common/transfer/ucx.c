// Blocks over UCX: endpoints in PEER error mode to know who lives, and the three paths of transfer.h.
//
//     direct   shared.h gives the peer's memory in our own address space, read-only: we copy (copy.c), UCX takes no part
//     get      ucp_get_nbx into the landing blocks
//     am       ucx_am.c
//
// UCX's callbacks only note what happened; `progress` acts on it.
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/transfer/ucx.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#define PROGRESS_MAX 256 // rounds of UCX's progress a call
#define CLOSE_WAIT (2 * BT_SECOND)
#define FLUSH_WAIT (200 * BT_MILLISECOND)

bt_err
bt_ucx_err_of(ucs_status_t status)
{
    switch (status) {
    case UCS_OK:
        return BT_OK;
    case UCS_ERR_CANCELED:
        return BT_ERR_CLOSED;
    case UCS_ERR_NO_MEMORY:
        return BT_ERR_NO_MEMORY;
    default:
        return BT_ERR_PEER;
    }
}

void
bt_ucx_end_piece(bt_piece *piece, bt_err err)
{
    piece->took = bt_time_now() - piece->began;
    piece->err = err;
    if (piece->posted) {
        ((bt_ucx *)piece->transport)->posted--;
        piece->posted = false;
    }
    piece->state = BT_PIECE_DONE;
}

uint8_t *
bt_ucx_landing(const bt_ucx *u, const bt_piece *piece)
{
    return u->pool.memory + (size_t)piece->to * u->o.layout.block_bytes;
}

size_t
bt_ucx_piece_bytes(const bt_ucx *u, const bt_piece *piece)
{
    return piece->count * u->o.layout.block_bytes;
}

// Open and close.

static bt_err
open_tables(bt_ucx *u, bt_why *why)
{
    uint32_t most = u->o.peers_max * u->o.window;

    u->tag_count = most < BT_UCX_TAGS_MAX ? most : BT_UCX_TAGS_MAX;
    u->answer_count = 2 * u->tag_count; // an answer that its receiver has dropped may still be on its way
    u->peers = bt_alloc_array(u->o.peers_max, sizeof *u->peers);
    u->tags = bt_alloc_array(u->tag_count, sizeof *u->tags);
    u->lives = bt_alloc_array(u->tag_count, sizeof *u->lives);
    u->requests = bt_alloc_array(u->tag_count, sizeof *u->requests);
    u->answers = bt_alloc_array(u->answer_count, sizeof *u->answers);
    if (u->peers == NULL || u->tags == NULL || u->lives == NULL || u->requests == NULL || u->answers == NULL) {
        return bt_fail(why, BT_ERR_NO_MEMORY, "transfer: no memory for %u peers", u->o.peers_max);
    }
    return BT_OK;
}

static void ucx_close(bt_transport *transport);

static bt_err
ucx_open(bt_transport **out, const bt_transfer_options *options, size_t bytes, uint8_t **memory, bt_why *why)
{
    bt_ucx *u = bt_alloc(sizeof *u);
    bt_err err;

    if (u == NULL) {
        return bt_fail(why, BT_ERR_NO_MEMORY, "transfer: no memory");
    }
    u->base.ops = &bt_transport_ucx;
    u->o = *options;
    u->fd = -1;
    if (getrandom(&u->identity, sizeof u->identity, 0) != sizeof u->identity) {
        u->identity = bt_mix64((uint64_t)bt_time_now() ^ (uintptr_t)u);
    }
    if ((err = open_tables(u, why)) != BT_OK || (err = bt_ucx_open_library(u, bytes, why)) != BT_OK) {
        ucx_close(&u->base);
        return err;
    }
    *out = &u->base;
    *memory = u->pool.memory;
    return BT_OK;
}

static bt_err
ucx_describe(bt_transport *transport, bt_description *out)
{
    bt_ucx *u = (bt_ucx *)transport;

    out->identity = u->identity;
    out->base = (uintptr_t)u->pool.memory;
    out->address = (const uint8_t *)u->address;
    out->address_bytes = (uint16_t)u->address_bytes;
    out->key = u->keys;
    out->key_bytes = (uint16_t)(sizeof(bt_shared_key) + u->key_bytes);
    return BT_OK;
}

// Peers.

static void
on_error(void *arg, ucp_ep_h ep, ucs_status_t status)
{
    bt_ucx_peer *p = arg;

    (void)ep;
    p->failed = true;
    bt_log_warn("TRANSFER-LOST", "epoch %016llx: %s", (unsigned long long)p->epoch, ucs_status_string(status));
}

void
bt_ucx_close_back(bt_ucx_peer *p)
{
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS, .flags = UCP_EP_CLOSE_FLAG_FORCE};
    ucs_status_ptr_t request = p->back != NULL ? ucp_ep_close_nbx(p->back, &param) : NULL;

    if (UCS_PTR_IS_PTR(request)) {
        ucp_request_free(request); // goes when it is done
    }
    p->back = NULL;
}

static void
close_endpoint(bt_ucx *u, uint32_t slot, bt_err err)
{
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS, .flags = UCP_EP_CLOSE_FLAG_FORCE};
    bt_ucx_peer *p = &u->peers[slot];

    bt_ucx_end_waiting(u, slot, err);
    bt_ucx_close_back(p);
    if (p->ep != NULL) {
        ucs_status_ptr_t request = ucp_ep_close_nbx(p->ep, &param);

        p->closing = UCS_PTR_IS_PTR(request) ? request : NULL;
        p->ep = NULL;
    }
}

static void
destroy_key(bt_ucx_peer *p)
{
    if (p->rkey != NULL) {
        ucp_rkey_destroy(p->rkey);
        p->rkey = NULL;
    }
    bt_shared_unmap(p->direct, &p->direct_key);
    p->direct = NULL;
}

// May memory be mapped, by what the operator lets UCX use?
static bool
allows_shared(const bt_ucx *u)
{
    const char *tls = u->o.tls != NULL ? u->o.tls : getenv("UCX_TLS");
    static const char *const names[] = {"all", "shm", "sm", "mm", "posix", "sysv"};
    bool any = tls == NULL;

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        any = any || strstr(tls, names[i]) != NULL;
    }
    return any;
}

static bool
map_directly(bt_ucx *u, bt_ucx_peer *p, const bt_description *d)
{
    if (u->o.path == BT_TRANSFER_PATH_AM || u->o.path == BT_TRANSFER_PATH_GET || !allows_shared(u)) {
        return false;
    }
    memcpy(&p->direct_key, d->key, sizeof p->direct_key);
    if (p->direct_key.bytes != (d->blocks + 2ull) * d->block_bytes ||
        bt_shared_map(&p->direct, &p->direct_key, d->identity) != BT_OK) {
        return false;
    }
    bt_shared_prepare(p->direct, &p->direct_key);
    return true;
}

static bt_err
pick_path(bt_ucx *u, bt_ucx_peer *p, const bt_description *d, bt_why *why)
{
    const uint8_t *key = d->key + sizeof p->direct_key;

    if (map_directly(u, p, d)) {
        p->path = BT_TRANSFER_PATH_DIRECT;
    } else if (u->o.path == BT_TRANSFER_PATH_DIRECT) {
        return bt_fail(why, BT_ERR_UNSUPPORTED, "transfer: this peer's memory cannot be mapped here");
    } else if (u->o.path == BT_TRANSFER_PATH_AM || d->key_bytes == sizeof p->direct_key ||
               ucp_ep_rkey_unpack(p->ep, key, &p->rkey) != UCS_OK) {
        p->path = BT_TRANSFER_PATH_AM;
    } else {
        p->path = u->o.path; // AUTO: named at the first move, when UCX knows its lanes
    }
    return BT_OK;
}

static bt_err
open_endpoint(bt_ucx *u, bt_ucx_peer *p, const bt_description *d, bt_why *why)
{
    ucp_ep_params_t params = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                                            UCP_EP_PARAM_FIELD_ERR_HANDLER,
                              .address = (const ucp_address_t *)d->address,
                              .err_mode = UCP_ERR_HANDLING_MODE_PEER,
                              .err_handler = {.cb = on_error, .arg = p}};
    ucs_status_t status = ucp_ep_create(u->mouth, &params, &p->ep);

    return status == UCS_OK ? pick_path(u, p, d, why) : bt_ucx_fail(why, BT_ERR_PEER, "endpoint", status);
}

static bt_err
ucx_connect(bt_transport *transport, uint32_t slot, const bt_description *d, bt_why *why)
{
    bt_ucx *u = (bt_ucx *)transport;
    bt_ucx_peer *p = &u->peers[slot];
    bt_err err;

    if (d->address_bytes == 0 || d->key_bytes < sizeof(bt_shared_key)) {
        return bt_fail(why, BT_ERR_INVALID, "transfer: a description without address or key");
    }
    *p = (bt_ucx_peer){.used = true, .identity = d->identity, .epoch = d->epoch, .base = d->base};
    if ((err = open_endpoint(u, p, d, why)) != BT_OK) {
        close_endpoint(u, slot, err);
        destroy_key(p);
        p->used = false;
    }
    return err;
}

static void
ucx_disconnect(bt_transport *transport, uint32_t slot)
{
    bt_ucx *u = (bt_ucx *)transport;

    close_endpoint(u, slot, BT_ERR_CLOSED);
    u->peers[slot].failed = true;
}

static bool
ucx_idle(bt_transport *transport, uint32_t slot)
{
    bt_ucx_peer *p = &((bt_ucx *)transport)->peers[slot];

    if (p->closing != NULL || p->serving != 0) {
        return false;
    }
    destroy_key(p);
    p->used = false;
    return true;
}

static bool
ucx_up(bt_transport *transport, uint32_t slot)
{
    const bt_ucx_peer *p = &((bt_ucx *)transport)->peers[slot];

    return p->used && p->ep != NULL && !p->failed;
}

// The transports of an endpoint's lanes, out of what UCX prints about it ("lane[0]:  2:posix/memory.0 md[2] …"): 1.13 has no other
// way to ask.
static void
name_transport(bt_ucx_peer *p)
{
    char *text = NULL;
    size_t bytes = 0, used = 0;
    FILE *out = p->ep != NULL ? open_memstream(&text, &bytes) : NULL;

    if (out == NULL) {
        return;
    }
    ucp_ep_print_info(p->ep, out);
    fclose(out);
    p->transport[0] = 0;
    for (const char *at = text; (at = strstr(at, "lane[")) != NULL; at++) {
        const char *name = strchr(at, ':') != NULL ? strchr(strchr(at, ':') + 1, ':') : NULL;
        size_t length = name != NULL ? strcspn(++name, ". \n") : 0;
        char one[sizeof p->transport];

        snprintf(one, sizeof one, "%.*s", (int)length, name != NULL ? name : "");
        if (length != 0 && strstr(p->transport, one) == NULL && used + length + 2 < sizeof p->transport) {
            used +=
                (size_t)snprintf(p->transport + used, sizeof p->transport - used, "%s%s", used != 0 ? "+" : "", one);
        }
    }
    free(text);
}

static bt_transfer_path
path_of(bt_ucx_peer *p)
{
    static const char *const native[] = {"rc_", "dc_", "ud_", "cuda_ipc", "cma", "knem", "xpmem"};

    if (p->path == BT_TRANSFER_PATH_AUTO) {
        name_transport(p);
        p->path = BT_TRANSFER_PATH_AM;
        for (size_t i = 0; p->rkey != NULL && i < sizeof native / sizeof *native; i++) {
            if (strstr(p->transport, native[i]) != NULL) {
                p->path = BT_TRANSFER_PATH_GET;
            }
        }
    }
    return p->path;
}

static bt_transfer_path
ucx_path(const bt_transport *transport, uint32_t slot, char *name, size_t bytes)
{
    bt_ucx_peer *p = &((const bt_ucx *)transport)->peers[slot];

    if (p->transport[0] == 0) {
        name_transport(p); // once: it allocates, and who asks for a node's state asks ten times a second
    }
    snprintf(name, bytes, "%s", p->transport);
    return path_of(p);
}

// The receiver's side.

static void
on_got(void *request, ucs_status_t status, void *user)
{
    bt_piece *piece = user;

    bt_ucx_end_piece(piece, bt_ucx_err_of(status));
    ucp_request_free(request);
}

static void
get_piece(bt_ucx *u, bt_ucx_peer *p, bt_piece *piece)
{
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
                                 .cb.send = on_got,
                                 .user_data = piece};
    uint64_t address = p->base + (uint64_t)piece->from * u->o.layout.block_bytes;
    ucs_status_ptr_t request;

    piece->posted = true;
    u->posted++;
    request = ucp_get_nbx(p->ep, bt_ucx_landing(u, piece), bt_ucx_piece_bytes(u, piece), address, p->rkey, &param);
    if (!UCS_PTR_IS_PTR(request)) {
        bt_ucx_end_piece(piece, bt_ucx_err_of(UCS_PTR_RAW_STATUS(request)));
    }
}

static void
ucx_move(bt_transport *transport, bt_piece *piece, bt_time now)
{
    bt_ucx *u = (bt_ucx *)transport;
    bt_ucx_peer *p = &u->peers[piece->peer];

    (void)now;
    piece->began = bt_time_now();
    piece->transport = transport;
    switch (path_of(p)) {
    case BT_TRANSFER_PATH_DIRECT:
        bt_piece_copy(piece, &u->o.layout, !u->o.no_checksum, bt_ucx_landing(u, piece),
                      p->direct + (size_t)piece->from * u->o.layout.block_bytes);
        bt_ucx_end_piece(piece, BT_OK);
        break;
    case BT_TRANSFER_PATH_GET:
        get_piece(u, p, piece);
        break;
    default:
        bt_ucx_ask(u, p, piece);
    }
}

static void
tend_peers(bt_ucx *u)
{
    for (uint32_t i = 0; i < u->o.peers_max; i++) {
        bt_ucx_peer *p = &u->peers[i];

        if (p->failed && p->ep != NULL) {
            close_endpoint(u, i, BT_ERR_PEER);
        }
        if (p->closing != NULL && ucp_request_check_status(p->closing) != UCS_INPROGRESS) {
            ucp_request_free(p->closing);
            p->closing = NULL;
        }
    }
}

static void
ucx_progress(bt_transport *transport, bt_time now)
{
    bt_ucx *u = (bt_ucx *)transport;

    (void)now;
    for (int i = 0; i < PROGRESS_MAX && (ucp_worker_progress(u->mouth) + ucp_worker_progress(u->ear)) != 0; i++) {
        bt_ucx_act(u);
    }
    bt_ucx_act(u);
    tend_peers(u);
}

static int
ucx_fd(const bt_transport *transport)
{
    return ((const bt_ucx *)transport)->fd;
}

static bool
ucx_arm(bt_transport *transport)
{
    bt_ucx *u = (bt_ucx *)transport;

    return u->fd < 0 || (ucp_worker_arm(u->mouth) == UCS_OK && ucp_worker_arm(u->ear) == UCS_OK);
}

static void
ucx_stats(const bt_transport *transport, bt_transfer_stats *out)
{
    const bt_ucx *u = (const bt_ucx *)transport;

    out->served = u->served;
    out->served_bytes = u->served_bytes;
    out->serving_failed = u->serving_failed;
    out->refused = u->refused;
}

static void
close_peers(bt_ucx *u)
{
    bt_time until = bt_time_now() + CLOSE_WAIT;
    bool busy = true;

    for (uint32_t i = 0; i < u->o.peers_max; i++) {
        close_endpoint(u, i, BT_ERR_CLOSED);
    }
    while (busy && bt_time_now() < until) {
        ucx_progress(&u->base, 0);
        busy = u->posted != 0;
        for (uint32_t i = 0; i < u->o.peers_max; i++) {
            busy = busy || u->peers[i].closing != NULL || u->peers[i].serving != 0;
        }
    }
    for (uint32_t i = 0; i < u->o.peers_max; i++) {
        destroy_key(&u->peers[i]);
    }
}

// What the ear has to say to peers that have just come is sent. A peer that is frozen or gone does not take it, and UCX 1.13 ends the process in
// ucp_worker_destroy where such an answer still waits (ucp_request.c:684): false then.
static bool
flush_ear(bt_ucx *u)
{
    ucp_request_param_t param = {0};
    ucs_status_ptr_t request = ucp_worker_flush_nbx(u->ear, &param);
    bt_time until = bt_time_now() + FLUSH_WAIT;
    bool flushed = !UCS_PTR_IS_PTR(request);

    while (!flushed && bt_time_now() < until) {
        ucx_progress(&u->base, 0);
        flushed = ucp_request_check_status(request) != UCS_INPROGRESS;
    }
    if (UCS_PTR_IS_PTR(request) && flushed) {
        ucp_request_free(request);
    }
    return flushed;
}

// An ear that cannot be destroyed stays until the process ends, and with it what it stands on. Nobody listens with it.
static void
close_library(bt_ucx *u, bool flushed)
{
    if (u->mouth != NULL) {
        ucp_worker_destroy(u->mouth);
    }
    if (!flushed) {
        bt_log_warn("TRANSFER-LEFT", "a peer that had just come takes no answer: UCX's listener is left as it is");
        return;
    }
    if (u->ear != NULL) {
        ucp_worker_destroy(u->ear);
    }
    if (u->memh != NULL) {
        ucp_mem_unmap(u->context, u->memh);
    }
    if (u->context != NULL) {
        ucp_cleanup(u->context);
    }
}

static void
ucx_close(bt_transport *transport)
{
    bt_ucx *u = (bt_ucx *)transport;
    bool flushed = true;

    if (u->mouth != NULL && u->ear != NULL && u->peers != NULL) {
        close_peers(u);
        flushed = flush_ear(u);
    }
    if (u->fd >= 0) {
        close(u->fd);
    }
    if (u->address != NULL) {
        ucp_worker_release_address(u->ear, u->address);
    }
    if (u->key != NULL) {
        ucp_rkey_buffer_release(u->key);
    }
    close_library(u, flushed);
    bt_shared_close(&u->pool);
    bt_free(u->peers);
    bt_free(u->tags);
    bt_free(u->lives);
    bt_free(u->requests);
    bt_free(u->answers);
    bt_free(u);
}

const bt_transport_ops bt_transport_ucx = {
    .name = "ucx",
    .id = 2,
    .memories = 1u << BT_TRANSFER_HOST,
    .open = ucx_open,
    .close = ucx_close,
    .describe = ucx_describe,
    .connect = ucx_connect,
    .disconnect = ucx_disconnect,
    .idle = ucx_idle,
    .up = ucx_up,
    .move = ucx_move,
    .drop = bt_ucx_drop,
    .progress = ucx_progress,
    .fd = ucx_fd,
    .arm = ucx_arm,
    .path = ucx_path,
    .stats = ucx_stats,
};
