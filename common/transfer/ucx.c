// Blocks over UCX: endpoints in PEER error mode to know who lives, and the three paths of transfer.h.
//
//     direct   shared.h gives the peer's memory in our own address space, read-only: we copy (copy.c), UCX takes no part
//     get      ucp_get_nbx into the landing blocks
//     am       REQUEST {tag, blocks} ──▶ the owner, which sends ANSWER {tag} with the blocks as rendezvous; only when the tag names a
//              piece that still waits are its landing blocks given to ucp_am_recv_data_nbx. An answer that nobody waits for is dropped
//              and touches nothing.
//
// One-sided operations over tcp are never used: UCX plays them in software, and the surviving side aborted in half of the kills
// (reference/libraries.md 2). For the same reason tcp's own put is switched off: then the rendezvous comes in fragments that
// the receiver's UCX copies itself while the receive is there, and nothing lands after the receive has ended.
// Two workers: `mouth` makes the endpoints and sends, `ear` is whom others reach. With one for both, UCX pairs the endpoints that two
// sides make to each other, and when one side closes its own early the *other* process aborts (an assertion on remote ids in 1.13).
// Endpoints that always go from a mouth to an ear are nobody's pair: peers connect and disconnect in any order. Requests and answers
// both travel on the receiver's endpoint (the owner replies on what UCX made for it), so that a receive which does not end can
// be ended: by closing an endpoint of our own.
// UCX's callbacks only note what happened; `progress` acts on it. The only file that includes UCX.
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/transfer/impl.h"
#include "common/transfer/shared.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <ucp/api/ucp.h>
#include <ucs/debug/log_def.h>
#include <unistd.h>

#define MAGIC 0x31585442u // "BTX1"
#define TAG_BITS 12       // of a tag: the place; the others: which use of it
#define TAGS_MAX (1u << TAG_BITS)
#define PROGRESS_MAX 256 // rounds of UCX's progress a call
#define CLOSE_WAIT (2 * BT_SECOND)

enum { REQUEST = 1, ANSWER = 2 };

typedef struct {
    uint32_t magic, tag;
    uint64_t identity; // of the receiver: who asks
    uint64_t epoch;    // of the owner: whom it asks
    uint32_t from, count;
} request_header;

typedef struct {
    uint32_t magic, tag;
    uint64_t identity; // of the owner
    uint32_t err, count;
} answer_header;

typedef struct {
    bool used, failed;
    ucp_ep_h ep;   // ours, NULL = closed
    ucp_ep_h back; // on which this peer's requests are answered; UCX made it, we close it
    ucp_rkey_h rkey;
    void *closing; // request of the close
    const uint8_t *direct;
    bt_shared_key direct_key;
    bt_transfer_path path;
    uint64_t identity, epoch, base;
    uint32_t serving; // answers that UCX has in hand
    char transport[64];
} peer;

typedef struct ucx ucx;

// One answer of the owner's side.
typedef struct {
    enum { ANSWER_FREE, ANSWER_ASKED, ANSWER_SENDING } state;
    ucx *owner;
    uint32_t peer;
    ucp_ep_h ep;
    request_header asked;
    answer_header header; // UCX reads it until the send is over
} answer;

struct ucx {
    bt_transport base;
    bt_transfer_options o;
    ucp_context_h context;
    ucp_worker_h mouth, ear;
    ucp_mem_h memh;
    bt_shared pool;
    void *key;                            // UCX's
    uint8_t keys[BT_DESCRIPTION_KEY_MAX]; // shared.h's, then UCX's
    size_t key_bytes;
    ucp_address_t *address;
    size_t address_bytes;
    uint64_t identity;
    peer *peers;
    bt_piece **tags; // [tag_count] pieces on the am path
    uint32_t *lives;
    request_header *requests; // [tag_count]: UCX may read a request until its send is over
    uint32_t tag_count;
    answer *answers;
    uint32_t answer_count;
    uint32_t arrived, asked, posted; // answers to receive, requests to answer, pieces in UCX's hands
    uint64_t served, served_bytes, serving_failed, refused;
    int fd;
};

// UCX prints to stdout by itself, where `--json` writes; its warnings belong among ours.
static ucs_log_func_rc_t
log_line(const char *file, unsigned line, const char *function, ucs_log_level_t level,
         const ucs_log_component_config_t *component, const char *format, va_list args)
{
    char text[512];

    (void)function;
    (void)component;
    if (level > UCS_LOG_LEVEL_WARN) {
        return UCS_LOG_FUNC_RC_CONTINUE;
    }
    vsnprintf(text, sizeof text, format, args);
    if (strncmp(text, "invalid configuration", 21) == 0) {
        bt_log_debug("UCX", "%s", text); // a setting of a transport that was not opened
        return UCS_LOG_FUNC_RC_STOP;
    }
    bt_log_warn("UCX", "%s (%s:%u)", text, strrchr(file, '/') != NULL ? strrchr(file, '/') + 1 : file, line);
    return level == UCS_LOG_LEVEL_FATAL ? UCS_LOG_FUNC_RC_CONTINUE : UCS_LOG_FUNC_RC_STOP;
}

static bt_err
err_of(ucs_status_t status)
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

static bt_err
fail(bt_why *why, bt_err err, const char *what, ucs_status_t status)
{
    return bt_fail(why, err, "transfer: UCX %s: %s", what, ucs_status_string(status));
}

static void
end_piece(bt_piece *piece, bt_err err)
{
    piece->took = bt_time_now() - piece->began;
    piece->err = err;
    if (piece->posted) {
        ((ucx *)piece->transport)->posted--;
        piece->posted = false;
    }
    piece->state = BT_PIECE_DONE;
}

static uint8_t *
landing(const ucx *u, const bt_piece *piece)
{
    return u->pool.memory + (size_t)piece->to * u->o.layout.block_bytes;
}

static size_t
piece_bytes(const ucx *u, const bt_piece *piece)
{
    return piece->count * u->o.layout.block_bytes;
}

// Open and close.

// What the operator has set in the environment stays.
static void
configure(ucp_config_t *config, const char *key, const char *value)
{
    char name[64];
    ucs_status_t status;

    snprintf(name, sizeof name, "UCX_%s", key);
    if (value == NULL || getenv(name) != NULL) {
        return;
    }
    if ((status = ucp_config_modify(config, key, value)) != UCS_OK) {
        bt_log_warn("UCX", "%s=%s was not accepted: %s", name, value, ucs_status_string(status));
    }
}

static bt_err
open_context(ucx *u, bt_why *why)
{
    ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_ESTIMATED_NUM_EPS,
                           .features = UCP_FEATURE_RMA | UCP_FEATURE_AM | UCP_FEATURE_WAKEUP,
                           .estimated_num_eps = u->o.peers_max};
    ucp_config_t *config;
    ucs_status_t status = ucp_config_read(NULL, NULL, &config);

    if (status != UCS_OK) {
        return fail(why, BT_ERR_DEVICE, "settings", status);
    }
    // Without it shared memory is not used in PEER mode.
    configure(config, "MM_ERROR_HANDLING", "y");
    configure(config, "KEEPALIVE_INTERVAL", "1s");
    configure(config, "PUT_ENABLE", "n"); // tcp's, by the name that 1.13 takes here
    configure(config, "TCP_PUT_ENABLE", "n");
    configure(config, "TLS", u->o.tls);
    configure(config, "NET_DEVICES", u->o.net_devices);
    status = ucp_init(&params, config, &u->context);
    ucp_config_release(config);
    return status == UCS_OK ? BT_OK : fail(why, BT_ERR_DEVICE, "start", status);
}

// UCX registers the pool for what it reads by itself (RDMA); the direct path needs none of it.
static bt_err
open_pool(ucx *u, size_t bytes, bt_why *why)
{
    ucp_mem_map_params_t params = {.field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_ADDRESS,
                                   .length = bytes};
    bt_err err = bt_shared_open(&u->pool, bytes, u->identity, why);
    ucs_status_t status;

    if (err != BT_OK) {
        return err;
    }
    params.address = u->pool.memory;
    if ((status = ucp_mem_map(u->context, &params, &u->memh)) != UCS_OK ||
        (status = ucp_rkey_pack(u->context, u->memh, &u->key, &u->key_bytes)) != UCS_OK) {
        return fail(why, BT_ERR_DEVICE, "pool", status);
    }
    memcpy(u->keys, &u->pool.key, sizeof u->pool.key);
    if (u->key_bytes <= sizeof u->keys - sizeof u->pool.key) {
        memcpy(u->keys + sizeof u->pool.key, u->key, u->key_bytes);
    }
    return BT_OK;
}

static ucs_status_t on_request(void *arg, const void *header, size_t header_bytes, void *data, size_t bytes,
                               const ucp_am_recv_param_t *param);
static ucs_status_t on_answer(void *arg, const void *header, size_t header_bytes, void *data, size_t bytes,
                              const ucp_am_recv_param_t *param);

static ucs_status_t
listen_for(ucx *u, ucp_worker_h worker, unsigned id, ucp_am_recv_callback_t callback)
{
    ucp_am_handler_param_t param = {.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                                                  UCP_AM_HANDLER_PARAM_FIELD_ARG,
                                    .id = id,
                                    .cb = callback,
                                    .arg = u};

    return ucp_worker_set_am_recv_handler(worker, &param);
}

// One descriptor for both workers.
static void
open_fd(ucx *u)
{
    const ucp_worker_h workers[] = {u->mouth, u->ear};
    struct epoll_event event = {.events = EPOLLIN};
    int fd;

    u->fd = epoll_create1(EPOLL_CLOEXEC);
    for (size_t i = 0; i < 2 && u->fd >= 0; i++) {
        if (ucp_worker_get_efd(workers[i], &fd) != UCS_OK || epoll_ctl(u->fd, EPOLL_CTL_ADD, fd, &event) != 0) {
            close(u->fd);
            u->fd = -1;
        }
    }
}

static bt_err
open_workers(ucx *u, bt_why *why)
{
    ucp_worker_params_t params = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                  .thread_mode = UCS_THREAD_MODE_SINGLE};
    ucs_status_t status = ucp_worker_create(u->context, &params, &u->mouth);

    if (status != UCS_OK || (status = ucp_worker_create(u->context, &params, &u->ear)) != UCS_OK ||
        (status = ucp_worker_get_address(u->ear, &u->address, &u->address_bytes)) != UCS_OK ||
        (status = listen_for(u, u->ear, REQUEST, on_request)) != UCS_OK ||
        (status = listen_for(u, u->mouth, ANSWER, on_answer)) != UCS_OK) {
        return fail(why, BT_ERR_DEVICE, "worker", status);
    }
    open_fd(u);
    return BT_OK;
}

static bt_err
open_tables(ucx *u, bt_why *why)
{
    uint32_t most = u->o.peers_max * u->o.window;

    u->tag_count = most < TAGS_MAX ? most : TAGS_MAX;
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
    static bool logging;
    ucx *u = bt_alloc(sizeof *u);
    bt_err err;

    if (u == NULL) {
        return bt_fail(why, BT_ERR_NO_MEMORY, "transfer: no memory");
    }
    if (!__atomic_exchange_n(&logging, true, __ATOMIC_RELAXED)) {
        ucs_log_push_handler(log_line);
    }
    u->base.ops = &bt_transport_ucx;
    u->o = *options;
    u->fd = -1;
    if (getrandom(&u->identity, sizeof u->identity, 0) != sizeof u->identity) {
        u->identity = bt_mix64((uint64_t)bt_time_now() ^ (uintptr_t)u);
    }
    if ((err = open_tables(u, why)) != BT_OK || (err = open_context(u, why)) != BT_OK ||
        (err = open_workers(u, why)) != BT_OK || (err = open_pool(u, bytes, why)) != BT_OK) {
        ucx_close(&u->base);
        return err;
    }
    if (u->address_bytes > BT_DESCRIPTION_ADDRESS_MAX ||
        u->key_bytes + sizeof(bt_shared_key) > BT_DESCRIPTION_KEY_MAX) {
        err = bt_fail(
            why, BT_ERR_UNSUPPORTED,
            "transfer: UCX's address has %zu bytes and its key %zu, at most %d and %d fit; choose transports by "
            "UCX_TLS or UCX_NET_DEVICES",
            u->address_bytes, u->key_bytes, BT_DESCRIPTION_ADDRESS_MAX, BT_DESCRIPTION_KEY_MAX);
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
    ucx *u = (ucx *)transport;

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
    peer *p = arg;

    (void)ep;
    p->failed = true;
    bt_log_warn("TRANSFER-LOST", "epoch %016llx: %s", (unsigned long long)p->epoch, ucs_status_string(status));
}

// Pieces that UCX does not have in hand end at once; the others when it lets go of them.
static void
end_waiting(ucx *u, uint32_t slot, bt_err err)
{
    for (uint32_t i = 0; i < u->tag_count; i++) {
        bt_piece *piece = u->tags[i];

        if (piece != NULL && piece->peer == slot && !piece->posted) {
            u->tags[i] = NULL;
            end_piece(piece, err);
        }
    }
}

static void
close_back(peer *p)
{
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS, .flags = UCP_EP_CLOSE_FLAG_FORCE};
    ucs_status_ptr_t request = p->back != NULL ? ucp_ep_close_nbx(p->back, &param) : NULL;

    if (UCS_PTR_IS_PTR(request)) {
        ucp_request_free(request); // goes when it is done
    }
    p->back = NULL;
}

static void
close_endpoint(ucx *u, uint32_t slot, bt_err err)
{
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS, .flags = UCP_EP_CLOSE_FLAG_FORCE};
    peer *p = &u->peers[slot];

    end_waiting(u, slot, err);
    close_back(p);
    if (p->ep != NULL) {
        ucs_status_ptr_t request = ucp_ep_close_nbx(p->ep, &param);

        p->closing = UCS_PTR_IS_PTR(request) ? request : NULL;
        p->ep = NULL;
    }
}

static void
destroy_key(peer *p)
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
allows_shared(const ucx *u)
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
map_directly(ucx *u, peer *p, const bt_description *d)
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
pick_path(ucx *u, peer *p, const bt_description *d, bt_why *why)
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
open_endpoint(ucx *u, peer *p, const bt_description *d, bt_why *why)
{
    ucp_ep_params_t params = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                                            UCP_EP_PARAM_FIELD_ERR_HANDLER,
                              .address = (const ucp_address_t *)d->address,
                              .err_mode = UCP_ERR_HANDLING_MODE_PEER,
                              .err_handler = {.cb = on_error, .arg = p}};
    ucs_status_t status = ucp_ep_create(u->mouth, &params, &p->ep);

    return status == UCS_OK ? pick_path(u, p, d, why) : fail(why, BT_ERR_PEER, "endpoint", status);
}

static bt_err
ucx_connect(bt_transport *transport, uint32_t slot, const bt_description *d, bt_why *why)
{
    ucx *u = (ucx *)transport;
    peer *p = &u->peers[slot];
    bt_err err;

    if (d->address_bytes == 0 || d->key_bytes < sizeof(bt_shared_key)) {
        return bt_fail(why, BT_ERR_INVALID, "transfer: a description without address or key");
    }
    *p = (peer){.used = true, .identity = d->identity, .epoch = d->epoch, .base = d->base};
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
    ucx *u = (ucx *)transport;

    close_endpoint(u, slot, BT_ERR_CLOSED);
    u->peers[slot].failed = true;
}

static bool
ucx_idle(bt_transport *transport, uint32_t slot)
{
    peer *p = &((ucx *)transport)->peers[slot];

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
    const peer *p = &((ucx *)transport)->peers[slot];

    return p->used && p->ep != NULL && !p->failed;
}

// The transports of an endpoint's lanes, out of what UCX prints about it ("lane[0]:  2:posix/memory.0 md[2] …"): 1.13 has no other
// way to ask.
static void
name_transport(peer *p)
{
    char *text = NULL;
    size_t bytes = 0, used = 0;
    FILE *out = open_memstream(&text, &bytes);

    if (out == NULL || p->ep == NULL) {
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
path_of(peer *p)
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
    peer *p = &((const ucx *)transport)->peers[slot];

    if (p->ep != NULL) {
        name_transport(p);
    }
    snprintf(name, bytes, "%s", p->transport);
    return path_of(p);
}

// The receiver's side.

static void
on_got(void *request, ucs_status_t status, void *user)
{
    bt_piece *piece = user;

    end_piece(piece, err_of(status));
    ucp_request_free(request);
}

static void
get_piece(ucx *u, peer *p, bt_piece *piece)
{
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
                                 .cb.send = on_got,
                                 .user_data = piece};
    uint64_t address = p->base + (uint64_t)piece->from * u->o.layout.block_bytes;
    ucs_status_ptr_t request;

    piece->posted = true;
    u->posted++;
    request = ucp_get_nbx(p->ep, landing(u, piece), piece_bytes(u, piece), address, p->rkey, &param);
    if (!UCS_PTR_IS_PTR(request)) {
        end_piece(piece, err_of(UCS_PTR_RAW_STATUS(request)));
    }
}

static void
on_asked(void *request, ucs_status_t status, void *user)
{
    (void)status; // a failed endpoint ends the piece
    (void)user;
    ucp_request_free(request);
}

static void
ask_piece(ucx *u, peer *p, bt_piece *piece)
{
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_FLAGS,
                                 .flags = UCP_AM_SEND_FLAG_EAGER | UCP_AM_SEND_FLAG_REPLY,
                                 .cb.send = on_asked};
    ucs_status_ptr_t request;
    uint32_t i = 0;

    while (i < u->tag_count && u->tags[i] != NULL) {
        i++;
    }
    assert(i < u->tag_count); // transfer.c has as many pieces
    u->tags[i] = piece;
    piece->tag = ++u->lives[i] << TAG_BITS | i;
    u->requests[i] = (request_header){MAGIC, piece->tag, u->identity, p->epoch, piece->from, piece->count};
    request = ucp_am_send_nbx(p->ep, REQUEST, NULL, 0, &u->requests[i], sizeof u->requests[i], &param);
    if (UCS_PTR_IS_ERR(request)) {
        u->tags[i] = NULL;
        end_piece(piece, err_of(UCS_PTR_STATUS(request)));
    }
}

static void
ucx_move(bt_transport *transport, bt_piece *piece, bt_time now)
{
    ucx *u = (ucx *)transport;
    peer *p = &u->peers[piece->peer];

    (void)now;
    piece->began = bt_time_now();
    piece->transport = transport;
    switch (path_of(p)) {
    case BT_TRANSFER_PATH_DIRECT:
        bt_piece_copy(piece, &u->o.layout, !u->o.no_checksum, landing(u, piece),
                      p->direct + (size_t)piece->from * u->o.layout.block_bytes);
        end_piece(piece, BT_OK);
        break;
    case BT_TRANSFER_PATH_GET:
        get_piece(u, p, piece);
        break;
    default:
        ask_piece(u, p, piece);
    }
}

static bool
ucx_drop(bt_transport *transport, bt_piece *piece)
{
    ucx *u = (ucx *)transport;
    uint32_t i = piece->tag & (TAGS_MAX - 1);

    if (piece->posted) {
        return false;
    }
    assert(u->tags[i] == piece && piece->arrived == NULL); // arrived is acted on before progress returns
    u->tags[i] = NULL;
    end_piece(piece, BT_ERR_CANCELLED);
    return true;
}

// Whose answer is it? NULL: nobody's, or not what was asked for.
static bt_piece *
piece_of(ucx *u, const answer_header *header, size_t bytes)
{
    uint32_t i = header->tag & (TAGS_MAX - 1);
    bt_piece *piece = i < u->tag_count ? u->tags[i] : NULL;

    if (piece == NULL || piece->tag != header->tag || piece->posted || piece->arrived != NULL ||
        u->peers[piece->peer].identity != header->identity ||
        (header->err == BT_OK && bytes != piece_bytes(u, piece))) {
        return NULL;
    }
    return piece;
}

static ucs_status_t
on_answer(void *arg, const void *data_header, size_t header_bytes, void *data, size_t bytes,
          const ucp_am_recv_param_t *param)
{
    ucx *u = arg;
    answer_header header = {0};
    bt_piece *piece;

    if (header_bytes != 0) {
        memcpy(&header, data_header, header_bytes < sizeof header ? header_bytes : sizeof header);
    }
    if (header_bytes != sizeof header || header.magic != MAGIC || (piece = piece_of(u, &header, bytes)) == NULL) {
        return UCS_OK; // dropped: it touches nothing
    }
    if (header.err != BT_OK) {
        u->tags[header.tag & (TAGS_MAX - 1)] = NULL;
        piece->refused = true;
        end_piece(piece, BT_ERR_PEER);
    } else if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) {
        piece->arrived = data;
        u->arrived++;
        return UCS_INPROGRESS;
    } else {
        u->tags[header.tag & (TAGS_MAX - 1)] = NULL;
        memcpy(landing(u, piece), data, bytes);
        end_piece(piece, BT_OK);
    }
    return UCS_OK;
}

static void
on_received(void *request, ucs_status_t status, size_t bytes, void *user)
{
    bt_piece *piece = user;

    (void)bytes; // what was announced, and that was checked
    end_piece(piece, err_of(status));
    ucp_request_free(request);
}

static void
receive_arrived(ucx *u, bt_piece *piece)
{
    size_t received = 0;
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                                                 UCP_OP_ATTR_FIELD_RECV_INFO,
                                 .cb.recv_am = on_received,
                                 .user_data = piece,
                                 .recv_info.length = &received};
    void *arrived = piece->arrived;
    ucs_status_ptr_t request;

    piece->arrived = NULL;
    u->arrived--;
    piece->posted = true;
    u->posted++;
    request = ucp_am_recv_data_nbx(u->mouth, arrived, landing(u, piece), piece_bytes(u, piece), &param);
    if (!UCS_PTR_IS_PTR(request)) {
        end_piece(piece, err_of(UCS_PTR_RAW_STATUS(request)));
    }
}

// The owner's side.

static uint32_t
peer_by_identity(const ucx *u, uint64_t identity)
{
    uint32_t i = 0;

    while (i < u->o.peers_max && !(u->peers[i].used && u->peers[i].ep != NULL && u->peers[i].identity == identity)) {
        i++;
    }
    return i < u->o.peers_max ? i : BT_TRANSFER_PEER_NONE;
}

static ucs_status_t
on_request(void *arg, const void *header, size_t header_bytes, void *data, size_t bytes,
           const ucp_am_recv_param_t *param)
{
    ucx *u = arg;
    request_header asked;
    uint32_t slot, i = 0;

    (void)header;
    if ((param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) == 0 || header_bytes != 0 || bytes != sizeof asked) {
        u->refused++;
        return UCS_OK;
    }
    memcpy(&asked, data, sizeof asked);
    slot = asked.magic == MAGIC ? peer_by_identity(u, asked.identity) : BT_TRANSFER_PEER_NONE;
    while (i < u->answer_count && u->answers[i].state != ANSWER_FREE) {
        i++;
    }
    if (slot == BT_TRANSFER_PEER_NONE || i == u->answer_count || u->peers[slot].serving > 4 * u->o.window) {
        u->refused++; // a stranger, or one who does not keep to the window: not worth an answer
        return UCS_OK;
    }
    u->answers[i] = (answer){.state = ANSWER_ASKED, .owner = u, .peer = slot, .ep = param->reply_ep, .asked = asked};
    u->peers[slot].serving++;
    u->asked++;
    return UCS_OK;
}

static void
end_answer(answer *a, bt_err err)
{
    ucx *u = a->owner;

    u->peers[a->peer].serving--;
    if (err != BT_OK) {
        u->serving_failed++;
    } else if (a->header.err == BT_OK) {
        u->served++;
        u->served_bytes += a->header.count * u->o.layout.block_bytes;
    }
    a->state = ANSWER_FREE;
}

static void
on_sent(void *request, ucs_status_t status, void *user)
{
    end_answer(user, err_of(status));
    ucp_request_free(request);
}

// The proof block is the one behind the pool.
static bt_err
check_request(const ucx *u, const request_header *asked)
{
    if (asked->epoch != u->o.epoch) {
        return BT_ERR_CLOSED;
    }
    return asked->count == 0 || asked->from > u->o.blocks || asked->count > u->o.blocks + 1 - asked->from
               ? BT_ERR_INVALID
               : BT_OK;
}

static void
send_answer(ucx *u, answer *a)
{
    ucp_request_param_t param = {.op_attr_mask =
                                     UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS,
                                 .cb.send = on_sent,
                                 .user_data = a};
    peer *p = &u->peers[a->peer];
    bt_err err = check_request(u, &a->asked);
    const uint8_t *from = err == BT_OK ? u->pool.memory + (size_t)a->asked.from * u->o.layout.block_bytes : NULL;
    size_t bytes = err == BT_OK ? a->asked.count * u->o.layout.block_bytes : 0;
    ucs_status_ptr_t request;

    u->asked--;
    if (p->ep == NULL) {
        end_answer(a, BT_ERR_PEER);
        return;
    }
    if (p->back != a->ep) { // the peer has connected anew
        close_back(p);
        p->back = a->ep;
    }
    u->refused += err != BT_OK;
    a->header = (answer_header){MAGIC, a->asked.tag, u->identity, err, a->asked.count};
    a->state = ANSWER_SENDING;
    param.flags = err == BT_OK ? UCP_AM_SEND_FLAG_RNDV : UCP_AM_SEND_FLAG_EAGER;
    request = ucp_am_send_nbx(a->ep, ANSWER, &a->header, sizeof a->header, from, bytes, &param);
    if (!UCS_PTR_IS_PTR(request)) {
        end_answer(a, err_of(UCS_PTR_RAW_STATUS(request)));
    }
}

// What the callbacks noted.

static void
act(ucx *u)
{
    for (uint32_t i = 0; i < u->tag_count && u->arrived != 0; i++) {
        bt_piece *piece = u->tags[i];

        if (piece != NULL && piece->arrived != NULL) {
            u->tags[i] = NULL; // from here on the receive holds it
            receive_arrived(u, piece);
        }
    }
    for (uint32_t i = 0; i < u->answer_count && u->asked != 0; i++) {
        if (u->answers[i].state == ANSWER_ASKED) {
            send_answer(u, &u->answers[i]);
        }
    }
}

static void
tend_peers(ucx *u)
{
    for (uint32_t i = 0; i < u->o.peers_max; i++) {
        peer *p = &u->peers[i];

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
    ucx *u = (ucx *)transport;

    (void)now;
    for (int i = 0; i < PROGRESS_MAX && (ucp_worker_progress(u->mouth) + ucp_worker_progress(u->ear)) != 0; i++) {
        act(u);
    }
    act(u);
    tend_peers(u);
}

static int
ucx_fd(const bt_transport *transport)
{
    return ((const ucx *)transport)->fd;
}

static bool
ucx_arm(bt_transport *transport)
{
    ucx *u = (ucx *)transport;

    return u->fd < 0 || (ucp_worker_arm(u->mouth) == UCS_OK && ucp_worker_arm(u->ear) == UCS_OK);
}

static void
ucx_stats(const bt_transport *transport, bt_transfer_stats *out)
{
    const ucx *u = (const ucx *)transport;

    out->served = u->served;
    out->served_bytes = u->served_bytes;
    out->serving_failed = u->serving_failed;
    out->refused = u->refused;
}

static void
close_peers(ucx *u)
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

static void
ucx_close(bt_transport *transport)
{
    ucx *u = (ucx *)transport;

    if (u->mouth != NULL && u->ear != NULL && u->peers != NULL) {
        close_peers(u);
    }
    if (u->fd >= 0) {
        close(u->fd);
    }
    if (u->address != NULL) {
        ucp_worker_release_address(u->ear, u->address);
    }
    if (u->mouth != NULL) {
        ucp_worker_destroy(u->mouth);
    }
    if (u->ear != NULL) {
        ucp_worker_destroy(u->ear);
    }
    if (u->key != NULL) {
        ucp_rkey_buffer_release(u->key);
    }
    if (u->memh != NULL) {
        ucp_mem_unmap(u->context, u->memh);
    }
    if (u->context != NULL) {
        ucp_cleanup(u->context);
    }
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
    .open = ucx_open,
    .close = ucx_close,
    .describe = ucx_describe,
    .connect = ucx_connect,
    .disconnect = ucx_disconnect,
    .idle = ucx_idle,
    .up = ucx_up,
    .move = ucx_move,
    .drop = ucx_drop,
    .progress = ucx_progress,
    .fd = ucx_fd,
    .arm = ucx_arm,
    .path = ucx_path,
    .stats = ucx_stats,
};
