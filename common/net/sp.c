// Opens and closes the server, accepts, and does what its owner asks for.
#include "common/net/sp_impl.h"

#include "common/base/mem.h"

#include <string.h>

#define TICK (100 * BT_MILLISECOND)

bt_sp_options
bt_sp_defaults(void)
{
    return (bt_sp_options){.connections_max = 256,
                           .message_bytes_max = 8u << 20,
                           .in_bytes_total_max = 256u << 20,
                           .out_bytes_max = 16u << 20,
                           .greeting_time_max = 10 * BT_SECOND,
                           .message_time_max = 60 * BT_SECOND,
                           .stall_time_max = 30 * BT_SECOND,
                           .idle_time_max = 600 * BT_SECOND};
}

// ---- accepting ----

static void
on_accepted(void *self)
{
    bt_sp *sp = self;
    bt_sp_done done = {BT_SP_ACCEPTED, 0, 0};

    bt_mailbox_post(sp->done, &done);
}

static void
accept_next(bt_sp *sp)
{
    sp->accepting = true;
    nng_stream_listener_accept(sp->listener, sp->accept);
}

static bt_sp_conn *
find_free(bt_sp *sp)
{
    for (uint32_t i = 0; i < sp->options.connections_max; i++) {
        if (sp->conns[i].stream == NULL)
            return &sp->conns[i];
    }
    return NULL;
}

static void
take_accepted(bt_sp *sp, bt_time now)
{
    nng_stream *stream;
    bt_sp_conn *conn;

    if (!sp->accepting)
        return; // the listener is closed
    sp->accepting = false;
    if (nng_aio_result(sp->accept) != 0)
        return; // no descriptors, say: the next tick tries again
    stream = nng_aio_get_output(sp->accept, 0);
    conn = find_free(sp);
    if (conn != NULL) {
        bt_sp_conn_adopt(conn, stream, now);
    } else {
        sp->stats.refused++;
        nng_stream_close(stream);
        nng_stream_free(stream);
    }
    accept_next(sp);
}

static void
take_done(void *self, const void *message)
{
    bt_sp *sp = self;
    const bt_sp_done *done = message;
    bt_time now = bt_loop_now(sp->loop);
    bt_sp_conn *conn;

    if (done->what == BT_SP_ACCEPTED) {
        take_accepted(sp, now);
        return;
    }
    conn = &sp->conns[done->index];
    if (conn->tag != done->tag)
        return; // of a connection that is over
    if (done->what == BT_SP_RECEIVED)
        bt_sp_conn_received(conn, now);
    else
        bt_sp_conn_sent(conn, now);
}

static void
on_timer(void *self)
{
    bt_sp *sp = self;
    bt_time now = bt_loop_now(sp->loop);

    for (uint32_t i = 0; i < sp->options.connections_max; i++)
        bt_sp_conn_tick(&sp->conns[i], now);
    if (!sp->accepting && !sp->closed_to_new)
        accept_next(sp);
    bt_timer_set(sp->loop, &sp->timer, now + TICK);
}

// ---- open and close ----

static bt_err
open_tls(bt_sp *sp, bt_why *why)
{
    const bt_sp_options *options = &sp->options;
    int code;

    if (options->cert_key_file == NULL || options->cert_key_file[0] == 0)
        return bt_fail(why, BT_ERR_INVALID, "%s: a certificate and its key are wanted for tls+tcp", options->listen);
    if (nng_tls_config_alloc(&sp->tls, NNG_TLS_MODE_SERVER) != 0)
        return bt_fail(why, BT_ERR_UNSUPPORTED, "this build of nng has no TLS");
    if ((code = nng_tls_config_cert_key_file(sp->tls, options->cert_key_file, NULL)) != 0)
        return bt_fail(why, BT_ERR_INVALID, "%s: %s", options->cert_key_file, nng_strerror(code));
    if (options->ca_file != NULL && options->ca_file[0] != 0 &&
        ((code = nng_tls_config_ca_file(sp->tls, options->ca_file)) != 0 ||
         (code = nng_tls_config_auth_mode(sp->tls, NNG_TLS_AUTH_MODE_REQUIRED)) != 0))
        return bt_fail(why, BT_ERR_INVALID, "%s: %s", options->ca_file, nng_strerror(code));
    code = nng_stream_listener_set_ptr(sp->listener, NNG_OPT_TLS_CONFIG, sp->tls);
    return code == 0 ? BT_OK : bt_fail(why, BT_ERR_INVALID, "%s: %s", options->listen, nng_strerror(code));
}

static bt_err
start_listening(bt_sp *sp, bt_why *why)
{
    const char *url = sp->options.listen;
    bt_err err;
    int code;

    if (strncmp(url, "tcp://", 6) != 0 && strncmp(url, "tls+tcp://", 10) != 0)
        return bt_fail(why, BT_ERR_INVALID, "%s: expected tcp://HOST:PORT or tls+tcp://HOST:PORT", url);
    if ((code = nng_aio_alloc(&sp->accept, on_accepted, sp)) != 0 ||
        (code = nng_stream_listener_alloc(&sp->listener, url)) != 0)
        return bt_fail(why, code == NNG_ENOMEM ? BT_ERR_NO_MEMORY : BT_ERR_INVALID, "%s: %s", url, nng_strerror(code));
    if (url[1] == 'l' && (err = open_tls(sp, why)) != BT_OK)
        return err;
    // nng 1.5 leaves Nagle's algorithm on for who is accepted: a second small message would wait 40 ms for the first one's ACK.
    nng_stream_listener_set_bool(sp->listener, NNG_OPT_TCP_NODELAY, true);
    if ((code = nng_stream_listener_listen(sp->listener)) != 0)
        return bt_fail(why, code == NNG_EADDRINVAL ? BT_ERR_INVALID : BT_ERR_IO, "%s: %s", url, nng_strerror(code));
    accept_next(sp);
    return BT_OK;
}

static bt_err
open_parts(bt_sp *sp, bt_why *why)
{
    uint32_t count = sp->options.connections_max;
    bt_err err;

    sp->conns = bt_alloc_array(count, sizeof *sp->conns);
    sp->chunks = bt_alloc_array(count, BT_SP_CHUNK_BYTES);
    if (sp->conns == NULL || sp->chunks == NULL)
        return bt_fail(why, BT_ERR_NO_MEMORY, "no memory for %u connections", count);
    for (uint32_t i = 0; i < count; i++)
        bt_sp_conn_init(sp, i);
    for (uint32_t i = 0; i < count; i++) {
        if (!bt_sp_conn_open(&sp->conns[i]))
            return bt_fail(why, BT_ERR_NO_MEMORY, "no memory for %u connections", count);
    }
    // Room for all that can be under way: two operations a connection and the accept, and as much of connections that are over.
    if ((err = bt_mailbox_open(&sp->done, 4 * count + 2, sizeof(bt_sp_done))) != BT_OK ||
        (err = bt_mailbox_attach(sp->done, sp->loop, take_done, sp)) != BT_OK)
        return bt_fail(why, err, "no mailbox for %u connections", count);
    return start_listening(sp, why);
}

bt_err
bt_sp_open(bt_sp **out, bt_loop *loop, const bt_sp_options *options, const bt_sp_handler *handler, bt_why *why)
{
    bt_sp *sp = bt_alloc(sizeof *sp);
    bt_err err;

    if (sp == NULL)
        return bt_fail(why, BT_ERR_NO_MEMORY, "no memory for the gateway");
    sp->loop = loop;
    sp->options = *options;
    sp->handler = *handler;
    sp->timer = (bt_timer){.due = on_timer, .self = sp};
    if ((err = open_parts(sp, why)) != BT_OK) {
        bt_sp_close(sp);
        return err;
    }
    bt_timer_set(loop, &sp->timer, bt_loop_now(loop));
    *out = sp;
    return BT_OK;
}

static void
close_listener(bt_sp *sp)
{
    nng_stream *stream;

    if (sp->listener == NULL)
        return;
    nng_stream_listener_close(sp->listener);
    if (sp->accepting) {
        nng_aio_cancel(sp->accept);
        nng_aio_wait(sp->accept);
        // One that came at the last moment, and whose coming nobody has read.
        if (nng_aio_result(sp->accept) == 0 && (stream = nng_aio_get_output(sp->accept, 0)) != NULL) {
            nng_stream_close(stream);
            nng_stream_free(stream);
        }
        sp->accepting = false;
    }
    nng_stream_listener_free(sp->listener);
    sp->listener = NULL;
}

void
bt_sp_close(bt_sp *sp)
{
    if (sp == NULL)
        return;
    bt_timer_unset(sp->loop, &sp->timer);
    close_listener(sp);
    for (uint32_t i = 0; sp->conns != NULL && i < sp->options.connections_max; i++) {
        if (sp->conns[i].sp != NULL)
            bt_sp_conn_fini(&sp->conns[i]);
    }
    bt_mailbox_close(sp->done);
    nng_aio_free(sp->accept);
    if (sp->tls != NULL)
        nng_tls_config_free(sp->tls);
    bt_free(sp->chunks);
    bt_free(sp->conns);
    bt_free(sp);
}

void
bt_sp_stop_accepting(bt_sp *sp)
{
    sp->closed_to_new = true;
    close_listener(sp);
}

// ---- for the owner ----

uint16_t
bt_sp_port(const bt_sp *sp)
{
    int port;

    return sp->listener != NULL && nng_stream_listener_get_int(sp->listener, NNG_OPT_TCP_BOUND_PORT, &port) == 0
               ? (uint16_t)port
               : 0;
}

uint32_t
bt_sp_connections(const bt_sp *sp)
{
    return sp->connections;
}

void
bt_sp_read_stats(const bt_sp *sp, bt_sp_stats *out)
{
    *out = sp->stats;
}

size_t
bt_sp_waiting(const bt_sp *sp, uint32_t conn)
{
    const bt_sp_conn *self = &sp->conns[conn];

    return self->out.len + self->wire.len - self->wire_sent;
}

uint8_t *
bt_sp_begin(bt_sp *sp, uint32_t conn, size_t length)
{
    bt_sp_conn *self = &sp->conns[conn];
    bt_buf *out = &self->out;
    uint8_t *at;

    if (bt_sp_waiting(sp, conn) + length > sp->options.out_bytes_max ||
        bt_buf_reserve(out, BT_SP_HEAD_BYTES + length) != BT_OK) {
        bt_sp_conn_close(self, "reads too slowly", &sp->stats.stalled);
        return NULL;
    }
    at = (uint8_t *)out->data + out->len;
    bt_sp_write_head(at, length);
    out->len += BT_SP_HEAD_BYTES + length;
    self->active = bt_loop_now(sp->loop);
    sp->stats.messages_out++;
    sp->written = true;
    return at + BT_SP_HEAD_BYTES;
}

void
bt_sp_flush(bt_sp *sp)
{
    for (uint32_t i = 0; sp->written && i < sp->options.connections_max; i++)
        bt_sp_conn_push(&sp->conns[i]);
    sp->written = false;
}

void
bt_sp_keep(bt_sp *sp, uint32_t conn, bool keep)
{
    sp->conns[conn].kept = keep;
}

void
bt_sp_drop(bt_sp *sp, uint32_t conn, const char *why)
{
    bt_sp_conn_close(&sp->conns[conn], why, why != NULL ? &sp->stats.foreign : NULL);
}
