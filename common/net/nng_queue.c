// What waits for credit, in the order in which it goes out.
#include "common/net/nng_impl.h"
#include "common/wire/encode.h"

#include <string.h>

static bt_lane
lane_of(bt_message_kind kind)
{
    return kind == BT_MESSAGE_ABORT ? BT_LANE_CANCEL : kind == BT_MESSAGE_HEARTBEAT ? BT_LANE_HEARTBEAT : BT_LANE_DATA;
}

static bt_request_id
request_of(const bt_message *message)
{
    switch (message->kind) {
    case BT_MESSAGE_RESERVE:
        return message->reserve.request;
    case BT_MESSAGE_START:
        return message->start.request;
    case BT_MESSAGE_AWAIT:
        return message->await.request;
    case BT_MESSAGE_PREFILL:
        return message->prefill.job.request;
    case BT_MESSAGE_ABORT:
        return message->abort.request;
    default:
        return (bt_request_id){0};
    }
}

// An ABORT that came before its RESERVE would be about nothing, and the RESERVE would stay; a heartbeat names the last TOKENS.
static bool
must_follow(const bt_nng_waiting *one, const bt_nng_waiting *earlier)
{
    if (earlier->kind == BT_MESSAGE_HELLO || one->lane == earlier->lane)
        return true;
    if (one->lane == BT_LANE_HEARTBEAT)
        return earlier->kind == BT_MESSAGE_TOKENS;
    return one->lane == BT_LANE_DATA ? false
                                     : one->request.slot == earlier->request.slot && earlier->lane == BT_LANE_DATA &&
                                           one->request.generation == earlier->request.generation;
}

static bool
is_held_up(const bt_nng_conn *conn, uint32_t index, const bool stuck[BT_LANES])
{
    const bt_nng_waiting *one = &conn->waiting[index];

    if (stuck[one->lane] || !bt_flow_may_send(&conn->flow, one->lane))
        return true;
    for (uint32_t i = 0; i < index; i++) {
        if (must_follow(one, &conn->waiting[i]))
            return true;
    }
    return false;
}

static void
take_out(bt_nng_conn *conn, uint32_t index)
{
    conn->waiting_count--;
    memmove(&conn->waiting[index], &conn->waiting[index + 1], (conn->waiting_count - index) * sizeof *conn->waiting);
}

void
bt_nng_queue_pump(bt_nng_conn *conn)
{
    bool stuck[BT_LANES] = {false};
    uint32_t i = 0;

    while (i < conn->waiting_count && conn->state == BT_CONN_UP) {
        bt_nng_waiting *one = &conn->waiting[i];
        bt_flow before = conn->flow;
        bt_frame_head head;

        if (is_held_up(conn, i, stuck)) {
            stuck[one->lane] = true;
            if (stuck[BT_LANE_DATA] && stuck[BT_LANE_CANCEL] && stuck[BT_LANE_HEARTBEAT])
                return;
            i++;
            continue;
        }
        head = bt_flow_send(&conn->flow, one->lane);
        if (!bt_nng_conn_transmit(conn, head, one->msg)) {
            conn->flow = before;
            return;
        }
        take_out(conn, i);
    }
}

static bt_err
encode(bt_nng_link *link, const bt_message *message, nng_msg **out)
{
    bt_wire_drafted draft;
    bt_err err = bt_wire_draft(&draft, message, &link->encode);

    if (err != BT_OK)
        return err;
    if (draft.bytes > link->options.frame_bytes_max - BT_FRAME_HEAD_BYTES)
        return BT_ERR_TOO_LONG;
    if (nng_msg_alloc(out, BT_FRAME_HEAD_BYTES + draft.bytes) != 0)
        return BT_ERR_NO_MEMORY;
    bt_wire_write(&draft, (uint8_t *)nng_msg_body(*out) + BT_FRAME_HEAD_BYTES);
    return BT_OK;
}

bt_err
bt_nng_queue_add(bt_nng_conn *conn, const bt_message *message)
{
    uint32_t max = conn->link->options.queue_max;
    bool may_wait = message->kind == BT_MESSAGE_RESERVE || message->kind == BT_MESSAGE_PREFILL;
    nng_msg *msg;
    bt_err err;

    if (conn->waiting_count >= (may_wait ? max / 4 * 3 : max))
        return BT_ERR_BUSY;
    if ((err = encode(conn->link, message, &msg)) != BT_OK)
        return err;
    conn->waiting[conn->waiting_count++] =
        (bt_nng_waiting){msg, lane_of(message->kind), message->kind, request_of(message)};
    bt_nng_queue_pump(conn);
    return BT_OK;
}

void
bt_nng_queue_clear(bt_nng_conn *conn)
{
    for (uint32_t i = 0; i < conn->waiting_count; i++)
        nng_msg_free(conn->waiting[i].msg);
    conn->waiting_count = 0;
    for (; conn->unread_count > 0; conn->unread_count--) {
        nng_msg_free(conn->unread[conn->unread_first]);
        conn->unread_first = (conn->unread_first + 1) % BT_FLOW_WINDOW;
    }
    if (conn->late != NULL)
        nng_msg_free(conn->late);
    conn->late = NULL;
}
