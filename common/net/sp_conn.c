// A connection's life: it is adopted, greets, brings messages, and is closed.
#include "common/net/sp_impl.h"

#include "common/base/hash.h"
#include "common/base/log.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

#define PAUSE_BYTES (1u << 20) // waiting for a client: nothing more is read from it
#define KEEP_BYTES (64u << 10) // memory that an empty buffer keeps

// ---- nng's threads ----

static void
post(bt_sp_conn *conn, bt_sp_what what)
{
    bt_sp_done done = {what, conn->index, conn->tag};

    bt_mailbox_post(conn->sp->done, &done);
}

static void
on_received(void *self)
{
    post(self, BT_SP_RECEIVED);
}

static void
on_sent(void *self)
{
    post(self, BT_SP_SENT);
}

// ---- the loop's thread ----

void
bt_sp_conn_init(bt_sp *sp, uint32_t index)
{
    bt_sp_conn *conn = &sp->conns[index];

    conn->sp = sp;
    conn->index = index;
    bt_buf_init(&conn->in, sp->options.message_bytes_max + BT_SP_HEAD_BYTES + BT_SP_CHUNK_BYTES);
    bt_buf_init(&conn->out, sp->options.out_bytes_max);
    bt_buf_init(&conn->wire, sp->options.out_bytes_max);
}

bool
bt_sp_conn_open(bt_sp_conn *conn)
{
    conn->chunk = conn->sp->chunks + (size_t)conn->index * BT_SP_CHUNK_BYTES;
    return nng_aio_alloc(&conn->receive, on_received, conn) == 0 && nng_aio_alloc(&conn->send, on_sent, conn) == 0;
}

void
bt_sp_conn_fini(bt_sp_conn *conn)
{
    conn->known = false;
    bt_sp_conn_close(conn, NULL, NULL);
    nng_aio_free(conn->receive);
    nng_aio_free(conn->send);
}

static void
empty(bt_buf *buf)
{
    if (buf->cap > KEEP_BYTES)
        bt_buf_fini(buf);
    bt_buf_clear(buf);
}

static void
address_of(const bt_sp_conn *conn, char *out, size_t bytes)
{
    nng_sockaddr address;
    char text[INET6_ADDRSTRLEN] = "?";

    if (nng_stream_get_addr(conn->stream, NNG_OPT_REMADDR, &address) != 0)
        snprintf(out, bytes, "somebody who is gone");
    else if (address.s_family == NNG_AF_INET)
        snprintf(out, bytes, "%s", inet_ntop(AF_INET, &address.s_in.sa_addr, text, sizeof text));
    else if (address.s_family == NNG_AF_INET6)
        snprintf(out, bytes, "[%s]", inet_ntop(AF_INET6, address.s_in6.sa_addr, text, sizeof text));
    else
        snprintf(out, bytes, "this host");
}

// Once an address: a stranger who knocks a thousand times fills no log.
static void
complain(bt_sp_conn *conn, const char *why)
{
    bt_sp *sp = conn->sp;
    char name[128];

    for (uint32_t i = 0; i < sp->refused_count; i++) {
        if (sp->refused[i] == conn->address)
            return;
    }
    if (sp->refused_count < BT_SP_REFUSED_LOGGED) {
        sp->refused[sp->refused_count++] = conn->address;
        address_of(conn, name, sizeof name);
        bt_log_warn("SP-CLOSED", "%s: %s; said once an address", name, why);
    }
}

// Waits for callbacks that run, which only post. What they post carries the old tag.
static void
close_stream(bt_sp_conn *conn)
{
    nng_stream_close(conn->stream);
    nng_aio_cancel(conn->receive);
    nng_aio_cancel(conn->send);
    nng_aio_wait(conn->receive);
    nng_aio_wait(conn->send);
    nng_stream_free(conn->stream);
    conn->stream = NULL;
    conn->tag++;
}

void
bt_sp_conn_close(bt_sp_conn *conn, const char *why, uint64_t *count)
{
    bt_sp *sp = conn->sp;
    bool known = conn->known;

    if (conn->stream == NULL)
        return;
    if (count != NULL)
        ++*count;
    if (why != NULL)
        complain(conn, why);
    close_stream(conn);
    sp->in_bytes -= conn->in.len;
    bt_buf_fini(&conn->in);
    bt_buf_fini(&conn->out);
    bt_buf_fini(&conn->wire);
    conn->wire_sent = 0;
    conn->greeted = conn->known = conn->kept = conn->receiving = conn->sending = false;
    sp->connections--;
    sp->stats.closed++;
    if (known)
        sp->handler.gone(sp->handler.self, conn->index);
}

// ---- sending ----

static void
send_more(bt_sp_conn *conn)
{
    nng_iov part = {conn->wire.data + conn->wire_sent, conn->wire.len - conn->wire_sent};

    conn->sending = true;
    nng_aio_set_iov(conn->send, 1, &part);
    nng_stream_send(conn->stream, conn->send);
}

void
bt_sp_conn_push(bt_sp_conn *conn)
{
    bt_buf full = conn->out;

    if (conn->sending || conn->stream == NULL || conn->out.len == 0)
        return;
    conn->out = conn->wire; // empty, with its memory
    conn->wire = full;
    conn->wire_sent = 0;
    conn->moved = bt_loop_now(conn->sp->loop);
    send_more(conn);
}

static void
receive_more(bt_sp_conn *conn)
{
    nng_iov room = {conn->chunk, BT_SP_CHUNK_BYTES};

    if (conn->receiving || conn->stream == NULL || bt_sp_waiting(conn->sp, conn->index) > PAUSE_BYTES)
        return;
    conn->receiving = true;
    nng_aio_set_iov(conn->receive, 1, &room);
    nng_stream_recv(conn->stream, conn->receive);
}

void
bt_sp_conn_sent(bt_sp_conn *conn, bt_time now)
{
    size_t count = nng_aio_count(conn->send);
    uint32_t tag = conn->tag;

    conn->sending = false;
    if (nng_aio_result(conn->send) != 0) {
        bt_sp_conn_close(conn, NULL, NULL);
        return;
    }
    conn->moved = now;
    conn->sp->stats.bytes_out += count;
    if ((conn->wire_sent += count) < conn->wire.len) {
        send_more(conn);
    } else {
        empty(&conn->wire);
        conn->wire_sent = 0;
        bt_sp_conn_push(conn);
    }
    if (conn->known)
        conn->sp->handler.sent(conn->sp->handler.self, conn->index);
    if (conn->tag == tag)
        receive_more(conn);
}

// ---- receiving ----

// The bytes that were used; 0 when more are needed, or the connection is closed now.
static size_t
take_greeting(bt_sp_conn *conn, const uint8_t *bytes, size_t length)
{
    size_t compared = length < BT_SP_GREETING_BYTES ? length : BT_SP_GREETING_BYTES;

    if (memcmp(bytes, bt_sp_greeting, compared) != 0) {
        bt_sp_conn_close(conn, "not a pair0 socket of nng", &conn->sp->stats.foreign);
        return 0;
    }
    if (length < BT_SP_GREETING_BYTES)
        return 0;
    conn->greeted = true;
    conn->began = 0;
    return BT_SP_GREETING_BYTES;
}

static size_t
take_message(bt_sp_conn *conn, const uint8_t *bytes, size_t length, bt_time now)
{
    bt_sp *sp = conn->sp;
    uint32_t tag = conn->tag;
    uint64_t size;

    if (length < BT_SP_HEAD_BYTES)
        return 0;
    size = bt_sp_read_head(bytes);
    if (size > sp->options.message_bytes_max) {
        bt_sp_conn_close(conn, "a message larger than this server takes", &sp->stats.foreign);
        return 0;
    }
    if (length - BT_SP_HEAD_BYTES < size)
        return 0;
    conn->began = 0;
    conn->active = now;
    conn->known = true;
    sp->stats.messages_in++;
    sp->handler.message(sp->handler.self, conn->index, bytes + BT_SP_HEAD_BYTES, (size_t)size);
    return conn->tag == tag ? BT_SP_HEAD_BYTES + (size_t)size : 0;
}

// All that is whole. Returns how much of it was used, with the connection perhaps closed.
static size_t
take_all(bt_sp_conn *conn, const uint8_t *bytes, size_t length, bt_time now)
{
    size_t at = 0, used;

    do {
        used = conn->greeted ? take_message(conn, bytes + at, length - at, now)
                             : take_greeting(conn, bytes + at, length - at);
        at += used;
    } while (used > 0 && at < length);
    return at;
}

// What is left of a message waits for the rest of it.
static void
keep_rest(bt_sp_conn *conn, size_t used, bt_time now)
{
    bt_buf *in = &conn->in;

    memmove(in->data, in->data + used, in->len - used);
    in->len -= used;
    if (in->len == 0)
        empty(in);
    else if (conn->began == 0)
        conn->began = now;
}

void
bt_sp_conn_received(bt_sp_conn *conn, bt_time now)
{
    bt_sp *sp = conn->sp;
    size_t count = nng_aio_count(conn->receive), used;
    uint32_t tag = conn->tag;

    conn->receiving = false;
    if (nng_aio_result(conn->receive) != 0 || count == 0) {
        bt_sp_conn_close(conn, NULL, NULL);
        return;
    }
    sp->stats.bytes_in += count;
    sp->in_bytes += count;
    bt_buf_append(&conn->in, conn->chunk, count);
    if (conn->in.failed || sp->in_bytes > sp->options.in_bytes_total_max) {
        sp->in_bytes -= conn->in.failed ? count : 0;
        bt_sp_conn_close(conn, "no room for its message", &sp->stats.refused);
        return;
    }
    used = take_all(conn, (const uint8_t *)conn->in.data, conn->in.len, now);
    if (conn->tag != tag)
        return;
    sp->in_bytes -= used;
    keep_rest(conn, used, now);
    receive_more(conn);
}

// ---- beginning, and patience ----

static bool
is_one_too_many(const bt_sp_conn *conn)
{
    const bt_sp *sp = conn->sp;
    uint32_t count = 0;

    for (uint32_t i = 0; i < sp->options.connections_max && sp->options.connections_each_max != 0; i++)
        count += sp->conns[i].stream != NULL && sp->conns[i].address == conn->address;
    return count > sp->options.connections_each_max && count != 0;
}

void
bt_sp_conn_adopt(bt_sp_conn *conn, nng_stream *stream, bt_time now)
{
    char name[128];

    conn->stream = stream;
    address_of(conn, name, sizeof name);
    conn->address = bt_hash_text(name, strlen(name));
    conn->began = conn->moved = conn->active = now;
    conn->sp->connections++;
    conn->sp->stats.opened++;
    if (is_one_too_many(conn)) {
        bt_sp_conn_close(conn, "as many connections as one address may have", &conn->sp->stats.refused);
        return;
    }
    bt_buf_append(&conn->out, bt_sp_greeting, sizeof bt_sp_greeting);
    if (conn->out.failed) {
        bt_sp_conn_close(conn, NULL, NULL);
        return;
    }
    bt_sp_conn_push(conn);
    receive_more(conn);
}

void
bt_sp_conn_tick(bt_sp_conn *conn, bt_time now)
{
    const bt_sp_options *options = &conn->sp->options;
    bt_sp_stats *stats = &conn->sp->stats;

    if (conn->stream == NULL)
        return;
    if (!conn->greeted && now - conn->began >= options->greeting_time_max)
        bt_sp_conn_close(conn, "no greeting in time", &stats->stalled);
    else if (conn->greeted && conn->began != 0 && now - conn->began >= options->message_time_max)
        bt_sp_conn_close(conn, "a message that did not end in time", &stats->stalled);
    else if (conn->sending && now - conn->moved >= options->stall_time_max)
        bt_sp_conn_close(conn, "reads nothing of what it is sent", &stats->stalled);
    else if (!conn->kept && !conn->sending && conn->began == 0 && now - conn->active >= options->idle_time_max)
        bt_sp_conn_close(conn, NULL, NULL);
}
