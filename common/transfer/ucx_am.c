// Blocks as active messages, where there is neither shared memory nor RDMA:
//
//     REQUEST {tag, blocks} ──▶ the owner, which sends ANSWER {tag} with the blocks as rendezvous; only when the tag names a piece that
//     still waits are its landing blocks given to ucp_am_recv_data_nbx. An answer that nobody waits for is dropped and touches nothing.
//
// Requests and answers both travel on the receiver's endpoint (the owner replies on what UCX made for it), so that a receive which
// does not end can be ended: by closing an endpoint of our own.
#include "common/transfer/ucx.h"

#include <assert.h>
#include <string.h>

#define MAGIC 0x31585442u // "BTX1"

enum { REQUEST = 1, ANSWER = 2 };

// The receiver's side.

static void
on_asked(void *request, ucs_status_t status, void *user)
{
    (void)status; // a failed endpoint ends the piece
    (void)user;
    ucp_request_free(request);
}

void
bt_ucx_ask(bt_ucx *u, bt_ucx_peer *p, bt_piece *piece)
{
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_FLAGS,
                                 .flags = UCP_AM_SEND_FLAG_EAGER | UCP_AM_SEND_FLAG_REPLY,
                                 .cb.send = on_asked};
    ucs_status_ptr_t request;
    uint32_t i = 0;

    while (i < u->tag_count && u->tags[i] != NULL) {
        i++;
    }
    assert(i < u->tag_count); // there are as many pieces
    u->tags[i] = piece;
    piece->tag = ++u->lives[i] << BT_UCX_TAG_BITS | i;
    u->requests[i] = (bt_ucx_request_header){MAGIC, piece->tag, u->identity, p->epoch, piece->from, piece->count};
    request = ucp_am_send_nbx(p->ep, REQUEST, NULL, 0, &u->requests[i], sizeof u->requests[i], &param);
    if (UCS_PTR_IS_ERR(request)) {
        u->tags[i] = NULL;
        bt_ucx_end_piece(piece, bt_ucx_err_of(UCS_PTR_STATUS(request)));
    }
}

bool
bt_ucx_drop(bt_transport *transport, bt_piece *piece)
{
    bt_ucx *u = (bt_ucx *)transport;
    uint32_t i = piece->tag & (BT_UCX_TAGS_MAX - 1);

    if (piece->posted) {
        return false;
    }
    assert(u->tags[i] == piece && piece->arrived == NULL); // arrived is acted on before progress returns
    u->tags[i] = NULL;
    bt_ucx_end_piece(piece, BT_ERR_CANCELLED);
    return true;
}

// Whose answer is it? NULL: nobody's, or not what was asked for.
static bt_piece *
piece_of(bt_ucx *u, const bt_ucx_answer_header *header, size_t bytes)
{
    uint32_t i = header->tag & (BT_UCX_TAGS_MAX - 1);
    bt_piece *piece = i < u->tag_count ? u->tags[i] : NULL;

    if (piece == NULL || piece->tag != header->tag || piece->posted || piece->arrived != NULL ||
        u->peers[piece->peer].identity != header->identity ||
        (header->err == BT_OK && bytes != bt_ucx_piece_bytes(u, piece))) {
        return NULL;
    }
    return piece;
}

static ucs_status_t
on_answer(void *arg, const void *data_header, size_t header_bytes, void *data, size_t bytes,
          const ucp_am_recv_param_t *param)
{
    bt_ucx *u = arg;
    bt_ucx_answer_header header = {0};
    bt_piece *piece;

    if (header_bytes != 0) {
        memcpy(&header, data_header, header_bytes < sizeof header ? header_bytes : sizeof header);
    }
    if (header_bytes != sizeof header || header.magic != MAGIC || (piece = piece_of(u, &header, bytes)) == NULL) {
        return UCS_OK; // dropped: it touches nothing
    }
    if (header.err != BT_OK) {
        u->tags[header.tag & (BT_UCX_TAGS_MAX - 1)] = NULL;
        piece->refused = true;
        bt_ucx_end_piece(piece, BT_ERR_PEER);
    } else if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) {
        piece->arrived = data;
        u->arrived++;
        return UCS_INPROGRESS;
    } else {
        u->tags[header.tag & (BT_UCX_TAGS_MAX - 1)] = NULL;
        memcpy(bt_ucx_landing(u, piece), data, bytes);
        bt_ucx_end_piece(piece, BT_OK);
    }
    return UCS_OK;
}

static void
on_received(void *request, ucs_status_t status, size_t bytes, void *user)
{
    bt_piece *piece = user;

    (void)bytes; // what was announced, and that was checked
    bt_ucx_end_piece(piece, bt_ucx_err_of(status));
    ucp_request_free(request);
}

static void
receive_arrived(bt_ucx *u, bt_piece *piece)
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
    request = ucp_am_recv_data_nbx(u->mouth, arrived, bt_ucx_landing(u, piece), bt_ucx_piece_bytes(u, piece), &param);
    if (!UCS_PTR_IS_PTR(request)) {
        bt_ucx_end_piece(piece, bt_ucx_err_of(UCS_PTR_RAW_STATUS(request)));
    }
}

void
bt_ucx_end_waiting(bt_ucx *u, uint32_t slot, bt_err err)
{
    for (uint32_t i = 0; i < u->tag_count; i++) {
        bt_piece *piece = u->tags[i];

        if (piece != NULL && piece->peer == slot && !piece->posted) {
            u->tags[i] = NULL;
            bt_ucx_end_piece(piece, err);
        }
    }
}

// The owner's side.

static uint32_t
peer_by_identity(const bt_ucx *u, uint64_t identity)
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
    bt_ucx *u = arg;
    bt_ucx_request_header asked;
    uint32_t slot, i = 0;

    (void)header;
    if ((param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) == 0 || header_bytes != 0 || bytes != sizeof asked) {
        u->refused++;
        return UCS_OK;
    }
    memcpy(&asked, data, sizeof asked);
    slot = asked.magic == MAGIC ? peer_by_identity(u, asked.identity) : BT_TRANSFER_PEER_NONE;
    while (i < u->answer_count && u->answers[i].state != BT_UCX_FREE) {
        i++;
    }
    if (slot == BT_TRANSFER_PEER_NONE || i == u->answer_count || u->peers[slot].serving > 4 * u->o.window) {
        u->refused++; // a stranger, or one who does not keep to the window: not worth an answer
        return UCS_OK;
    }
    u->answers[i] =
        (bt_ucx_answer){.state = BT_UCX_ASKED, .owner = u, .peer = slot, .ep = param->reply_ep, .asked = asked};
    u->peers[slot].serving++;
    u->asked++;
    return UCS_OK;
}

static void
end_answer(bt_ucx_answer *a, bt_err err)
{
    bt_ucx *u = a->owner;

    u->peers[a->peer].serving--;
    if (err != BT_OK) {
        u->serving_failed++;
    } else if (a->header.err == BT_OK) {
        u->served++;
        u->served_bytes += a->header.count * u->o.layout.block_bytes;
    }
    a->state = BT_UCX_FREE;
}

static void
on_sent(void *request, ucs_status_t status, void *user)
{
    end_answer(user, bt_ucx_err_of(status));
    ucp_request_free(request);
}

// The proof block is the one behind the pool.
static bt_err
check_request(const bt_ucx *u, const bt_ucx_request_header *asked)
{
    if (asked->epoch != u->o.epoch) {
        return BT_ERR_CLOSED;
    }
    return asked->count == 0 || asked->from > u->o.blocks || asked->count > u->o.blocks + 1 - asked->from
               ? BT_ERR_INVALID
               : BT_OK;
}

static void
send_answer(bt_ucx *u, bt_ucx_answer *a)
{
    ucp_request_param_t param = {.op_attr_mask =
                                     UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS,
                                 .cb.send = on_sent,
                                 .user_data = a};
    bt_ucx_peer *p = &u->peers[a->peer];
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
        bt_ucx_close_back(p);
        p->back = a->ep;
    }
    u->refused += err != BT_OK;
    a->header = (bt_ucx_answer_header){MAGIC, a->asked.tag, u->identity, err, a->asked.count};
    a->state = BT_UCX_SENDING;
    param.flags = err == BT_OK ? UCP_AM_SEND_FLAG_RNDV : UCP_AM_SEND_FLAG_EAGER;
    request = ucp_am_send_nbx(a->ep, ANSWER, &a->header, sizeof a->header, from, bytes, &param);
    if (!UCS_PTR_IS_PTR(request)) {
        end_answer(a, bt_ucx_err_of(UCS_PTR_RAW_STATUS(request)));
    }
}

// What the callbacks noted.

void
bt_ucx_act(bt_ucx *u)
{
    for (uint32_t i = 0; i < u->tag_count && u->arrived != 0; i++) {
        bt_piece *piece = u->tags[i];

        if (piece != NULL && piece->arrived != NULL) {
            u->tags[i] = NULL; // from here on the receive holds it
            receive_arrived(u, piece);
        }
    }
    for (uint32_t i = 0; i < u->answer_count && u->asked != 0; i++) {
        if (u->answers[i].state == BT_UCX_ASKED) {
            send_answer(u, &u->answers[i]);
        }
    }
}

static ucs_status_t
listen_for(bt_ucx *u, ucp_worker_h worker, unsigned id, ucp_am_recv_callback_t callback)
{
    ucp_am_handler_param_t param = {.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                                                  UCP_AM_HANDLER_PARAM_FIELD_ARG,
                                    .id = id,
                                    .cb = callback,
                                    .arg = u};

    return ucp_worker_set_am_recv_handler(worker, &param);
}

ucs_status_t
bt_ucx_listen(bt_ucx *u)
{
    ucs_status_t status = listen_for(u, u->ear, REQUEST, on_request);

    return status == UCS_OK ? listen_for(u, u->mouth, ANSWER, on_answer) : status;
}
