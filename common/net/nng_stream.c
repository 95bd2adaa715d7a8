// Streams of bytes under the frames: dialling, accepting, reading, writing, certificates. nng's threads run `on_…` and nothing else of
// ours; each operation posts once when it is done, and the mailbox has room for all of them.
//
// nng's sockets (req, pair, …) are not used: with 1.5.2, closing a pipe while bytes arrive can leave nng_close and nng's own reaper
// waiting for ever (nng pull request 1636), and raw sockets drop messages silently. Its streams do neither.
#include "common/net/nng_impl.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

#define SEND_PARTS_MAX 8 // that nng 1.5 takes

// ---- nng's threads ----

static void
post(bt_nng_link *link, bt_nng_what what, uint32_t index, uint32_t tag)
{
    bt_nng_done done = {what, index, tag};

    bt_mailbox_post(link->done, &done);
}

static void
on_received(void *self)
{
    bt_nng_conn *conn = self;

    post(conn->link, BT_NNG_RECEIVED, conn->peer, conn->tag);
}

static void
on_sent(void *self)
{
    bt_nng_conn *conn = self;

    post(conn->link, BT_NNG_SENT, conn->peer, conn->tag);
}

static void
on_dialled(void *self)
{
    bt_nng_conn *conn = self;

    post(conn->link, BT_NNG_DIALLED, conn->peer, conn->tag);
}

static void
on_accepted(void *self)
{
    bt_nng_listener *listener = self;

    post(listener->link, BT_NNG_ACCEPTED, listener->index, 0);
}

// ---- the loop's thread: reading and writing ----

static void
receive_more(bt_nng_conn *conn)
{
    nng_iov iov = {conn->bytes + conn->byte_count, conn->link->options.frame_bytes_max - conn->byte_count};

    nng_aio_set_iov(conn->receive, 1, &iov);
    nng_stream_recv(conn->stream, conn->receive);
}

// As many frames as an operation of nng takes: each costs a way to its threads and back.
static void
send_more(bt_nng_conn *conn)
{
    uint32_t count = conn->out_count < SEND_PARTS_MAX ? conn->out_count : SEND_PARTS_MAX;
    nng_iov parts[SEND_PARTS_MAX];

    for (uint32_t i = 0; i < count; i++) {
        nng_msg *msg = conn->out[(conn->out_first + i) % BT_NNG_OUT_MAX];
        size_t skip = i == 0 ? conn->out_offset : 0;

        parts[i] = (nng_iov){(uint8_t *)nng_msg_body(msg) + skip, nng_msg_len(msg) - skip};
    }
    conn->sending = true;
    nng_aio_set_iov(conn->send, count, parts);
    nng_stream_send(conn->stream, conn->send);
}

bool
bt_nng_stream_send(bt_nng_conn *conn, nng_msg *msg)
{
    if (conn->out_count == BT_NNG_OUT_MAX)
        return false;
    conn->out[(conn->out_first + conn->out_count++) % BT_NNG_OUT_MAX] = msg;
    if (!conn->sending)
        send_more(conn);
    return true;
}

static void
drop_sent(bt_nng_conn *conn, size_t bytes)
{
    conn->out_offset += bytes;
    while (conn->out_count > 0 && conn->out_offset >= nng_msg_len(conn->out[conn->out_first])) {
        nng_msg *msg = conn->out[conn->out_first];

        conn->out_offset -= nng_msg_len(msg);
        conn->out_first = (conn->out_first + 1) % BT_NNG_OUT_MAX;
        conn->out_count--;
        nng_msg_free(msg);
    }
}

static void
take_sent(bt_nng_conn *conn, bt_time now)
{
    conn->sending = false;
    if (nng_aio_result(conn->send) != 0) {
        bt_nng_conn_close(conn, now, nng_strerror(nng_aio_result(conn->send)));
        return;
    }
    drop_sent(conn, nng_aio_count(conn->send));
    if (conn->out_count > 0)
        send_more(conn);
    if (conn->state == BT_CONN_UP)
        bt_nng_queue_pump(conn);
}

// Whole frames are handed on; what is left of one moves to the front.
static void
take_received(bt_nng_conn *conn, bt_time now)
{
    uint32_t tag = conn->tag;
    size_t at = 0, length;

    if (nng_aio_result(conn->receive) != 0) {
        bt_nng_conn_close(conn, now, nng_strerror(nng_aio_result(conn->receive)));
        return;
    }
    conn->byte_count += nng_aio_count(conn->receive);
    while ((length = bt_nng_conn_frame(conn, conn->bytes + at, conn->byte_count - at, now)) > 0)
        at += length;
    if (conn->tag != tag || conn->stream == NULL)
        return; // closed by what it said
    memmove(conn->bytes, conn->bytes + at, conn->byte_count - at);
    conn->byte_count -= at;
    receive_more(conn);
}

// ---- connections ----

static void
adopt(bt_nng_conn *conn, nng_stream *stream, bt_time now)
{
    conn->stream = stream;
    conn->byte_count = 0;
    bt_nng_conn_added(conn, now);
    receive_more(conn);
}

void
bt_nng_stream_dial(bt_nng_conn *conn)
{
    conn->dialling = true;
    nng_stream_dialer_dial(conn->dialer, conn->dial);
}

static void
take_dialled(bt_nng_conn *conn, bt_time now)
{
    conn->dialling = false;
    if (nng_aio_result(conn->dial) != 0)
        bt_nng_conn_close(conn, now, nng_strerror(nng_aio_result(conn->dial)));
    else
        adopt(conn, nng_aio_get_output(conn->dial, 0), now);
}

void
bt_nng_stream_accept(bt_nng_listener *listener)
{
    listener->accepting = true;
    nng_stream_listener_accept(listener->nng, listener->accept);
}

static void
take_accepted(bt_nng_listener *listener, bt_time now)
{
    bt_nng_conn *conn = NULL;
    nng_stream *stream;

    listener->accepting = false;
    if (nng_aio_result(listener->accept) != 0)
        return; // no descriptors, say: the next tick tries again
    stream = nng_aio_get_output(listener->accept, 0);
    conn = bt_nng_conn_find_free(listener->link);
    if (conn != NULL) {
        adopt(conn, stream, now);
    } else {
        listener->link->stats.refused++;
        nng_stream_close(stream);
        nng_stream_free(stream);
    }
    bt_nng_stream_accept(listener);
}

// Waits for callbacks that run, which only post. What they post carries the old tag.
void
bt_nng_stream_close(bt_nng_conn *conn)
{
    if (conn->dialling) {
        nng_aio_cancel(conn->dial);
        nng_aio_wait(conn->dial);
        if (nng_aio_result(conn->dial) == 0)
            conn->stream = nng_aio_get_output(conn->dial, 0);
        conn->dialling = false;
    }
    if (conn->stream != NULL) {
        nng_stream_close(conn->stream);
        nng_aio_cancel(conn->receive);
        nng_aio_cancel(conn->send);
        nng_aio_wait(conn->receive);
        nng_aio_wait(conn->send);
        nng_stream_free(conn->stream);
    }
    for (; conn->out_count > 0; conn->out_count--) {
        nng_msg_free(conn->out[conn->out_first]);
        conn->out_first = (conn->out_first + 1) % BT_NNG_OUT_MAX;
    }
    conn->out_offset = 0;
    conn->sending = false;
    conn->stream = NULL;
    conn->tag++;
}

void
bt_nng_stream_address(const bt_nng_conn *conn, char *out, size_t bytes)
{
    nng_sockaddr address;
    char text[INET6_ADDRSTRLEN] = "?";

    if (conn->stream == NULL || nng_stream_get_addr(conn->stream, NNG_OPT_REMADDR, &address) != 0) {
        snprintf(out, bytes, "somebody who is gone");
    } else if (address.s_family == NNG_AF_INET) {
        inet_ntop(AF_INET, &address.s_in.sa_addr, text, sizeof text);
        snprintf(out, bytes, "%s:%u", text, ntohs(address.s_in.sa_port));
    } else if (address.s_family == NNG_AF_INET6) {
        inet_ntop(AF_INET6, address.s_in6.sa_addr, text, sizeof text);
        snprintf(out, bytes, "[%s]:%u", text, ntohs(address.s_in6.sa_port));
    } else {
        snprintf(out, bytes, "this host");
    }
}

void
bt_nng_stream_take(void *self, const void *message)
{
    bt_nng_link *link = self;
    const bt_nng_done *done = message;
    bt_time now = bt_loop_now(link->loop);
    bt_nng_conn *conn;

    if (done->what == BT_NNG_ACCEPTED) {
        take_accepted(&link->listeners[done->index], now);
        return;
    }
    conn = &link->conns[done->index];
    if (conn->tag != done->tag)
        return; // of a connection that is over
    if (done->what == BT_NNG_DIALLED)
        take_dialled(conn, now);
    else if (done->what == BT_NNG_RECEIVED)
        take_received(conn, now);
    else
        take_sent(conn, now);
}

// ---- open ----

// Both modes want a certificate of the other side that our authority has signed; a dialler also wants the name.
static bt_err
open_tls(nng_tls_config **out, const bt_nng_link_options *options, const char *name, bt_why *why)
{
    nng_tls_config *tls;
    int code;

    if (options->tls.ca_file == NULL || options->tls.cert_key_file == NULL)
        return bt_fail(why, BT_ERR_INVALID, "tls.ca_file and tls.cert_key_file are wanted for tls+tcp addresses");
    if (nng_tls_config_alloc(&tls, name != NULL ? NNG_TLS_MODE_CLIENT : NNG_TLS_MODE_SERVER) != 0)
        return bt_fail(why, BT_ERR_UNSUPPORTED, "this build of nng has no TLS");
    *out = tls;
    if ((code = nng_tls_config_ca_file(tls, options->tls.ca_file)) != 0)
        return bt_fail(why, BT_ERR_INVALID, "tls.ca_file %s: %s", options->tls.ca_file, nng_strerror(code));
    if ((code = nng_tls_config_cert_key_file(tls, options->tls.cert_key_file, NULL)) != 0)
        return bt_fail(why, BT_ERR_INVALID, "tls.cert_key_file %s: %s", options->tls.cert_key_file, nng_strerror(code));
    if ((code = nng_tls_config_auth_mode(tls, NNG_TLS_AUTH_MODE_REQUIRED)) != 0 ||
        (name != NULL && (code = nng_tls_config_server_name(tls, name)) != 0))
        return bt_fail(why, BT_ERR_INVALID, "tls: %s", nng_strerror(code));
    return BT_OK;
}

static bool
wants_tls(const char *url)
{
    return strncmp(url, "tls+", 4) == 0;
}

static bt_err
failed(const char *url, int code, bt_why *why)
{
    bt_err err = code == NNG_ENOMEM ? BT_ERR_NO_MEMORY : code == NNG_EADDRINVAL ? BT_ERR_INVALID : BT_ERR_IO;

    return bt_fail(why, err, "%s: %s", url, nng_strerror(code));
}

bt_err
bt_nng_stream_open_conn(bt_nng_conn *conn, const bt_nng_peer *dial, bt_why *why)
{
    int code;
    bt_err err;

    if (nng_aio_alloc(&conn->receive, on_received, conn) != 0 || nng_aio_alloc(&conn->send, on_sent, conn) != 0)
        return bt_fail(why, BT_ERR_NO_MEMORY, "no memory for the link");
    if (dial == NULL)
        return BT_OK;
    if ((code = nng_aio_alloc(&conn->dial, on_dialled, conn)) != 0 ||
        (code = nng_stream_dialer_alloc(&conn->dialer, dial->url)) != 0)
        return failed(dial->url, code, why);
    nng_aio_set_timeout(conn->dial, (nng_duration)(conn->link->options.greeting_max / BT_MILLISECOND));
    nng_stream_dialer_set_bool(conn->dialer, NNG_OPT_TCP_NODELAY, true); // not for ipc, which has no such thing
    if (!wants_tls(dial->url))
        return BT_OK;
    if (dial->tls_name == NULL)
        return bt_fail(why, BT_ERR_INVALID, "%s: the name in its certificate is wanted", dial->url);
    if ((err = open_tls(&conn->tls, &conn->link->options, dial->tls_name, why)) != BT_OK)
        return err;
    code = nng_stream_dialer_set_ptr(conn->dialer, NNG_OPT_TLS_CONFIG, conn->tls);
    return code == 0 ? BT_OK : failed(dial->url, code, why);
}

void
bt_nng_stream_free_conn(bt_nng_conn *conn)
{
    bt_nng_stream_close(conn);
    if (conn->dialer != NULL)
        nng_stream_dialer_close(conn->dialer);
    // Before the dialer: nng's thread that ends operations in time may still be about to, and looks at it; this waits for that thread.
    nng_aio_free(conn->dial);
    nng_aio_free(conn->receive);
    nng_aio_free(conn->send);
    if (conn->dialer != NULL)
        nng_stream_dialer_free(conn->dialer);
    if (conn->tls != NULL)
        nng_tls_config_free(conn->tls);
}

bt_err
bt_nng_stream_listen(bt_nng_listener *listener, const char *url, bt_why *why)
{
    int code;
    bt_err err;

    if ((code = nng_aio_alloc(&listener->accept, on_accepted, listener)) != 0 ||
        (code = nng_stream_listener_alloc(&listener->nng, url)) != 0)
        return failed(url, code, why);
    if (wants_tls(url)) {
        if ((err = open_tls(&listener->tls, &listener->link->options, NULL, why)) != BT_OK)
            return err;
        if ((code = nng_stream_listener_set_ptr(listener->nng, NNG_OPT_TLS_CONFIG, listener->tls)) != 0)
            return failed(url, code, why);
    }
    // nng 1.5 leaves Nagle's algorithm on for who is accepted: a second small message would wait 40 ms for the first one's ACK.
    nng_stream_listener_set_bool(listener->nng, NNG_OPT_TCP_NODELAY, true);
    if ((code = nng_stream_listener_listen(listener->nng)) != 0)
        return failed(url, code, why);
    bt_nng_stream_accept(listener);
    return BT_OK;
}

void
bt_nng_stream_free_listener(bt_nng_listener *listener)
{
    nng_stream *stream;

    if (listener->nng != NULL)
        nng_stream_listener_close(listener->nng);
    if (listener->accepting) {
        nng_aio_cancel(listener->accept);
        nng_aio_wait(listener->accept);
        // One that came at the last moment, and whose coming nobody has read.
        if (nng_aio_result(listener->accept) == 0 && (stream = nng_aio_get_output(listener->accept, 0)) != NULL) {
            nng_stream_close(stream);
            nng_stream_free(stream);
        }
    }
    if (listener->nng != NULL)
        nng_stream_listener_free(listener->nng);
    nng_aio_free(listener->accept);
    if (listener->tls != NULL)
        nng_tls_config_free(listener->tls);
}
