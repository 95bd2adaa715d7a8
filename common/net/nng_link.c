// Opens and closes the link, and gives its owner events in turn.
#include "common/net/nng_impl.h"

#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/wire/decode.h"

#include <string.h>

#define TICK (25 * BT_MILLISECOND)
#define OWED_MAX 8 // consumed frames that are acknowledged at once rather than at the end of a turn

static void
on_timer(void *self)
{
    bt_nng_link *link = self;

    for (uint32_t i = 0; i < link->conn_count; i++)
        bt_nng_conn_tick(&link->conns[i], bt_loop_now(link->loop));
    for (uint32_t i = 0; i < link->options.listen_count; i++) {
        if (!link->listeners[i].accepting)
            bt_nng_stream_accept(&link->listeners[i]);
    }
    bt_timer_set(link->loop, &link->timer, bt_loop_now(link->loop) + TICK);
}

// ---- the link's interface ----

static void
acknowledge(bt_nng_conn *conn, uint64_t owed_max)
{
    if (conn->state == BT_CONN_UP && bt_flow_owed(&conn->flow) > owed_max)
        bt_nng_conn_ack(conn);
}

// The next message that can be understood; one that cannot either is newer than we are, or its sender is mad.
static const bt_message *
next_message(bt_nng_conn *conn)
{
    bt_nng_link *link = conn->link;
    const bt_message *message = NULL;

    while (message == NULL && conn->unread_count > 0) {
        nng_msg *msg = conn->unread[conn->unread_first];
        bt_err err = bt_wire_decode(&message, nng_msg_body(msg), nng_msg_len(msg), &link->decode);

        nng_msg_free(msg);
        conn->unread_first = (conn->unread_first + 1) % BT_FLOW_WINDOW;
        conn->unread_count--;
        bt_flow_consume(&conn->flow);
        if (err == BT_ERR_UNSUPPORTED) {
            link->stats.unknown++;
        } else if (err != BT_OK) {
            link->stats.foreign++;
            bt_nng_conn_close(conn, bt_loop_now(link->loop), "a malformed message");
        }
    }
    acknowledge(conn, OWED_MAX);
    return message;
}

static bool
has_event(const bt_nng_conn *conn)
{
    return conn->told_up ? conn->lost || conn->unread_count > 0 : conn->state == BT_CONN_UP;
}

static bool
take_event(bt_nng_conn *conn, bt_link_event *out)
{
    const bt_message *message;

    if (!has_event(conn))
        return false;
    if (!conn->told_up || conn->lost) {
        conn->told_up = !conn->told_up;
        conn->lost = false;
        *out = (bt_link_event){.kind = conn->told_up ? BT_LINK_UP : BT_LINK_DOWN, .peer = conn->peer};
        return true;
    }
    message = next_message(conn);
    if (message != NULL)
        *out = (bt_link_event){BT_LINK_MESSAGE, conn->peer, message};
    return message != NULL;
}

static bool
nng_receive(bt_link *self, bt_link_event *out)
{
    bt_nng_link *link = (bt_nng_link *)self;

    for (uint32_t i = 0; i < link->conn_count; i++) {
        link->cursor = (link->cursor + 1) % link->conn_count;
        if (take_event(&link->conns[link->cursor], out))
            return true;
    }
    for (uint32_t i = 0; i < link->conn_count; i++)
        acknowledge(&link->conns[i], 0);
    return false;
}

static bt_err
nng_send_message(bt_link *self, uint32_t peer, const bt_message *message)
{
    bt_nng_link *link = (bt_nng_link *)self;
    bt_nng_conn *conn = peer < link->conn_count ? &link->conns[peer] : NULL;
    bt_err err;

    if (conn == NULL || conn->state != BT_CONN_UP || !conn->told_up || conn->lost)
        return BT_ERR_PEER;
    err = bt_nng_queue_add(conn, message);
    if (err == BT_ERR_BUSY) {
        link->stats.busy++;
        if (message->kind != BT_MESSAGE_RESERVE && message->kind != BT_MESSAGE_PREFILL)
            bt_nng_conn_close(conn, bt_loop_now(link->loop), "it does not read");
    }
    return err;
}

static bool
nng_pending(const bt_link *self)
{
    const bt_nng_link *link = (const bt_nng_link *)self;

    for (uint32_t i = 0; i < link->conn_count; i++) {
        if (has_event(&link->conns[i]))
            return true;
    }
    return false;
}

// ---- open and close ----

static void
close_conn(bt_nng_conn *conn)
{
    bt_nng_stream_free_conn(conn);
    bt_nng_queue_clear(conn);
    bt_free(conn->waiting);
    bt_free(conn->bytes);
    bt_free(conn->url);
}

static void
nng_close_link(bt_link *self)
{
    bt_nng_link *link = (bt_nng_link *)self;

    bt_timer_unset(link->loop, &link->timer);
    for (uint32_t i = 0; i < BT_NNG_LISTEN_MAX; i++)
        bt_nng_stream_free_listener(&link->listeners[i]);
    for (uint32_t i = 0; link->conns != NULL && i < link->conn_count; i++)
        close_conn(&link->conns[i]);
    bt_mailbox_close(link->done);
    bt_free(link->conns);
    bt_free(link->encode.memory);
    bt_free(link->decode.memory);
    bt_free((char *)link->options.secret);
    bt_free(link);
}

static const bt_link_ops nng_ops = {nng_receive, nng_send_message, nng_pending, nng_close_link};

bt_nng_link_options
bt_nng_link_defaults(void)
{
    return (bt_nng_link_options){.accepted_max = 64,
                                 .queue_max = 256,
                                 .frame_bytes_max = 8u << 20,
                                 .silence_max = 3 * BT_SECOND,
                                 .greeting_max = 3 * BT_SECOND,
                                 .pause_min = 50 * BT_MILLISECOND,
                                 .pause_max = 2 * BT_SECOND};
}

static bt_err
check_options(const bt_nng_link_options *options, bt_why *why)
{
    size_t secret = options->secret != NULL ? strnlen(options->secret, BT_SECRET_BYTES_MAX + 1) : 0;

    if (secret == 0 || secret > BT_SECRET_BYTES_MAX)
        return bt_fail(why, BT_ERR_INVALID, "the cluster's secret must have 1 to %d bytes", BT_SECRET_BYTES_MAX);
    if (options->listen_count > BT_NNG_LISTEN_MAX)
        return bt_fail(why, BT_ERR_INVALID, "at most %d addresses to listen on", BT_NNG_LISTEN_MAX);
    if (options->dial_count + options->accepted_max == 0 || options->queue_max < 8 || options->frame_bytes_max < 4096 ||
        options->silence_max <= 0 || options->pause_min <= 0)
        return bt_fail(why, BT_ERR_INVALID, "no peers, or limits too small");
    return BT_OK;
}

static bt_err
open_conn(bt_nng_link *link, uint32_t index, bt_why *why)
{
    bt_nng_conn *conn = &link->conns[index];
    const bt_nng_peer *dial = index < link->options.dial_count ? &link->options.dial[index] : NULL;

    conn->link = link;
    conn->peer = index;
    conn->waiting = bt_alloc_array(link->options.queue_max, sizeof *conn->waiting);
    conn->bytes = bt_alloc(link->options.frame_bytes_max);
    if (dial != NULL) {
        conn->state = BT_CONN_PAUSE;
        conn->url = bt_strdup(dial->url);
    }
    if (conn->waiting == NULL || conn->bytes == NULL || (dial != NULL && conn->url == NULL))
        return bt_fail(why, BT_ERR_NO_MEMORY, "no memory for the link's queues");
    return bt_nng_stream_open_conn(conn, dial, why);
}

static bt_err
open_memory(bt_nng_link *link, const char *secret, bt_why *why)
{
    const bt_nng_link_options *options = &link->options;
    size_t encode_bytes = options->frame_bytes_max + (1u << 20),
           decode_bytes = 4 * options->frame_bytes_max + (4u << 20);

    link->options.secret = bt_strdup(secret);
    link->conn_count = options->dial_count + options->accepted_max;
    link->conns = bt_alloc_array(link->conn_count, sizeof *link->conns);
    bt_wire_scratch_init(&link->encode, bt_alloc(encode_bytes), encode_bytes);
    bt_wire_scratch_init(&link->decode, bt_alloc(decode_bytes), decode_bytes);
    if (link->options.secret == NULL || link->conns == NULL || link->encode.memory == NULL ||
        link->decode.memory == NULL)
        return bt_fail(why, BT_ERR_NO_MEMORY, "no memory for the link");
    return BT_OK;
}

static bt_err
open_parts(bt_nng_link *link, const char *secret, bt_why *why)
{
    const bt_nng_link_options *options = &link->options;
    bt_err err;

    if ((err = open_memory(link, secret, why)) != BT_OK)
        return err;
    // Room for all that can be under way: three operations a connection, one a listener.
    if ((err = bt_mailbox_open(&link->done, 3 * link->conn_count + BT_NNG_LISTEN_MAX, sizeof(bt_nng_done))) != BT_OK ||
        (err = bt_mailbox_attach(link->done, link->loop, bt_nng_stream_take, link)) != BT_OK)
        return bt_fail(why, err, "no mailbox for the link");
    for (uint32_t i = 0; i < link->conn_count; i++) {
        if ((err = open_conn(link, i, why)) != BT_OK)
            return err;
    }
    for (uint32_t i = 0; i < options->listen_count; i++) {
        link->listeners[i].link = link;
        link->listeners[i].index = i;
        if ((err = bt_nng_stream_listen(&link->listeners[i], options->listen[i], why)) != BT_OK)
            return err;
    }
    return BT_OK;
}

bt_err
bt_nng_link_open(bt_link **out, bt_loop *loop, const bt_nng_link_options *options, bt_why *why)
{
    bt_nng_link *link;
    bt_err err;

    if ((err = check_options(options, why)) != BT_OK)
        return err;
    if ((link = bt_alloc(sizeof *link)) == NULL)
        return bt_fail(why, BT_ERR_NO_MEMORY, "no memory for the link");
    link->link.ops = &nng_ops;
    link->loop = loop;
    link->options = *options;
    link->options.secret = NULL;
    link->rng.state = options->seed;
    link->timer = (bt_timer){.due = on_timer, .self = link};
    if ((err = open_parts(link, options->secret, why)) != BT_OK) {
        nng_close_link(&link->link);
        return err;
    }
    bt_timer_set(loop, &link->timer, bt_loop_now(loop));
    *out = &link->link;
    return BT_OK;
}

void
bt_nng_link_read_stats(const bt_link *link, bt_nng_link_stats *out)
{
    *out = ((const bt_nng_link *)link)->stats;
}

uint16_t
bt_nng_link_port(const bt_link *self, uint32_t index)
{
    const bt_nng_link *link = (const bt_nng_link *)self;
    int port;

    if (index >= link->options.listen_count ||
        nng_stream_listener_get_int(link->listeners[index].nng, NNG_OPT_TCP_BOUND_PORT, &port) != 0)
        return 0;
    return (uint16_t)port;
}

bool
bt_nng_link_quiet(const bt_link *self)
{
    const bt_nng_link *link = (const bt_nng_link *)self;

    for (uint32_t i = 0; i < link->conn_count; i++) {
        const bt_nng_conn *conn = &link->conns[i];

        if (conn->state == BT_CONN_UP && (conn->waiting_count > 0 || conn->flow.acked != conn->flow.sent))
            return false;
    }
    return true;
}
