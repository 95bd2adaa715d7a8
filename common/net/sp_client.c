#include "common/net/sp_client.h"

#include "common/base/buf.h"
#include "common/base/mem.h"
#include "common/net/sp_wire.h"

#include <nng/nng.h>
#include <nng/supplemental/tls/tls.h>
#include <stdio.h>
#include <string.h>

#define CHUNK_BYTES (64u << 10)
#define TURN (20 * BT_MILLISECOND) // of one that writes to a server that does not read

struct bt_sp_client {
    size_t message_bytes_max;
    nng_aio *aio;
    nng_stream_dialer *dialer;
    nng_tls_config *tls;
    nng_stream *stream;
    bt_buf in;
    size_t used; // of `in`: the message that was handed out last
    uint8_t chunk[CHUNK_BYTES];
};

// ---- waiting ----

// nng counts in milliseconds: rounded up, so that who asks again after a time-out does not spin.
static void
set_patience(bt_sp_client *client, bt_time deadline)
{
    bt_time left = deadline == BT_TIME_NEVER ? 0 : deadline - bt_time_now();
    bt_time ms = (left + BT_MILLISECOND - 1) / BT_MILLISECOND;

    nng_aio_set_timeout(client->aio, deadline == BT_TIME_NEVER ? NNG_DURATION_INFINITE
                                     : ms <= 0                 ? NNG_DURATION_ZERO
                                     : ms < INT32_MAX          ? (nng_duration)ms
                                                               : INT32_MAX);
}

static bt_err
wait_for(bt_sp_client *client)
{
    int code;

    nng_aio_wait(client->aio);
    code = nng_aio_result(client->aio);
    return code == 0 ? BT_OK : code == NNG_ETIMEDOUT ? BT_ERR_TIMEOUT : BT_ERR_PEER;
}

// ---- open and close ----

static void
host_of(const char *url, char out[256])
{
    const char *begin = strstr(url, "://"), *end;

    begin = begin != NULL ? begin + 3 : url;
    end = strrchr(begin, ':');
    snprintf(out, 256, "%.*s", (int)(end != NULL ? end - begin : (long)strlen(begin)), begin);
}

static bt_err
open_tls(bt_sp_client *client, const bt_sp_client_options *options, bt_why *why)
{
    char host[256];
    int code;

    host_of(options->url, host);
    if (options->ca_file == NULL)
        return bt_fail(why, BT_ERR_INVALID, "%s: a file with who signs its certificate is wanted", options->url);
    if (nng_tls_config_alloc(&client->tls, NNG_TLS_MODE_CLIENT) != 0)
        return bt_fail(why, BT_ERR_UNSUPPORTED, "this build of nng has no TLS");
    if ((code = nng_tls_config_ca_file(client->tls, options->ca_file)) != 0)
        return bt_fail(why, BT_ERR_INVALID, "%s: %s", options->ca_file, nng_strerror(code));
    if ((code = nng_tls_config_auth_mode(client->tls, NNG_TLS_AUTH_MODE_REQUIRED)) != 0 ||
        (code = nng_tls_config_server_name(client->tls, options->tls_name != NULL ? options->tls_name : host)) != 0 ||
        (code = nng_stream_dialer_set_ptr(client->dialer, NNG_OPT_TLS_CONFIG, client->tls)) != 0)
        return bt_fail(why, BT_ERR_INVALID, "%s: %s", options->url, nng_strerror(code));
    return BT_OK;
}

static bt_err
dial(bt_sp_client *client, const bt_sp_client_options *options, bt_time deadline, bt_why *why)
{
    const char *url = options->url;
    bt_err err;
    int code;

    if (strncmp(url, "tcp://", 6) != 0 && strncmp(url, "tls+tcp://", 10) != 0)
        return bt_fail(why, BT_ERR_INVALID, "%s: expected tcp://HOST:PORT or tls+tcp://HOST:PORT", url);
    if (nng_aio_alloc(&client->aio, NULL, NULL) != 0)
        return bt_fail(why, BT_ERR_NO_MEMORY, "no memory for a client");
    if ((code = nng_stream_dialer_alloc(&client->dialer, url)) != 0)
        return bt_fail(why, code == NNG_ENOMEM ? BT_ERR_NO_MEMORY : BT_ERR_INVALID, "%s: %s", url, nng_strerror(code));
    nng_stream_dialer_set_bool(client->dialer, NNG_OPT_TCP_NODELAY, true);
    if (url[1] == 'l' && (err = open_tls(client, options, why)) != BT_OK)
        return err;
    set_patience(client, deadline);
    nng_stream_dialer_dial(client->dialer, client->aio);
    if ((err = wait_for(client)) != BT_OK)
        return bt_fail(why, err, "%s: %s", url, nng_strerror(nng_aio_result(client->aio)));
    client->stream = nng_aio_get_output(client->aio, 0);
    return BT_OK;
}

static bt_err
read_some(bt_sp_client *client, bt_time deadline)
{
    nng_iov room = {client->chunk, CHUNK_BYTES};
    bt_err err;

    do { // the end in time of an operation before may hit this one
        set_patience(client, deadline);
        nng_aio_set_iov(client->aio, 1, &room);
        nng_stream_recv(client->stream, client->aio);
        err = wait_for(client);
    } while (err == BT_ERR_TIMEOUT && bt_time_now() < deadline);
    if (err != BT_OK)
        return err;
    bt_buf_append(&client->in, client->chunk, nng_aio_count(client->aio));
    return client->in.failed ? BT_ERR_NO_MEMORY : nng_aio_count(client->aio) == 0 ? BT_ERR_PEER : BT_OK;
}

// What has come, as far as there is room for it. nng does not look at all when it has no time: a millisecond is the least.
static bt_err
read_ready(bt_sp_client *client)
{
    bt_err err = BT_OK;

    while (err == BT_OK && client->in.len + CHUNK_BYTES <= client->in.limit)
        err = read_some(client, bt_time_now() + BT_MILLISECOND);
    return err == BT_ERR_TIMEOUT ? BT_OK : err;
}

static bt_err
write_some(bt_sp_client *client, const nng_iov *parts, unsigned count, bt_time deadline, size_t *sent)
{
    bt_time soon = bt_time_now() + TURN;
    bt_err err;

    set_patience(client, soon < deadline ? soon : deadline);
    nng_aio_set_iov(client->aio, count, parts);
    nng_stream_send(client->stream, client->aio);
    err = wait_for(client);
    *sent = err == BT_OK ? nng_aio_count(client->aio) : 0;
    // Perhaps it does not read because we do not: it is our turn for a moment.
    return err == BT_ERR_TIMEOUT && bt_time_now() < deadline ? read_ready(client) : err;
}

static bt_err
write_all(bt_sp_client *client, nng_iov *parts, unsigned count, bt_time deadline)
{
    bt_err err = BT_OK;
    size_t sent;

    while (count > 0 && err == BT_OK) {
        err = write_some(client, parts, count, deadline, &sent);
        for (; count > 0 && sent >= parts->iov_len; parts++, count--)
            sent -= parts->iov_len;
        if (count > 0) {
            parts->iov_buf = (uint8_t *)parts->iov_buf + sent;
            parts->iov_len -= sent;
        }
    }
    return err;
}

static void
use(bt_sp_client *client, size_t bytes)
{
    bt_buf *in = &client->in;

    if (bytes > 0)
        memmove(in->data, in->data + bytes, in->len - bytes);
    in->len -= bytes;
}

static bt_err
greet(bt_sp_client *client, bt_time deadline)
{
    nng_iov part = {(void *)(uintptr_t)bt_sp_greeting, sizeof bt_sp_greeting};
    bt_err err = write_all(client, &part, 1, deadline);

    while (err == BT_OK && client->in.len < sizeof bt_sp_greeting)
        err = read_some(client, deadline);
    if (err != BT_OK)
        return err;
    if (memcmp(client->in.data, bt_sp_greeting, sizeof bt_sp_greeting) != 0)
        return BT_ERR_INVALID;
    use(client, sizeof bt_sp_greeting);
    return BT_OK;
}

bt_err
bt_sp_client_open(bt_sp_client **out, const bt_sp_client_options *options, bt_time deadline, bt_why *why)
{
    bt_sp_client *client = bt_alloc(sizeof *client);
    bt_err err;

    if (client == NULL)
        return bt_fail(why, BT_ERR_NO_MEMORY, "no memory for a client");
    client->message_bytes_max = options->message_bytes_max;
    bt_buf_init(&client->in, options->message_bytes_max + BT_SP_HEAD_BYTES + CHUNK_BYTES);
    if ((err = dial(client, options, deadline, why)) == BT_OK && (err = greet(client, deadline)) != BT_OK) {
        err = err == BT_ERR_INVALID ? bt_fail(why, BT_ERR_PEER, "%s: speaks another protocol", options->url)
                                    : bt_fail(why, err, "%s: closed while greeting, or silent", options->url);
    }
    if (err != BT_OK) {
        bt_sp_client_close(client);
        return err;
    }
    *out = client;
    return BT_OK;
}

// nng's thread that ends operations in time may still be about to, for one that has just ended by itself, and looks at what it worked on
// (nng 1.5: "pthread_mutex_lock: Invalid argument"). Freeing the aio waits for it; so that comes before stream and dialer.
void
bt_sp_client_close(bt_sp_client *client)
{
    if (client == NULL)
        return;
    if (client->stream != NULL)
        nng_stream_close(client->stream);
    if (client->dialer != NULL)
        nng_stream_dialer_close(client->dialer);
    nng_aio_free(client->aio);
    if (client->stream != NULL)
        nng_stream_free(client->stream);
    if (client->dialer != NULL)
        nng_stream_dialer_free(client->dialer);
    if (client->tls != NULL)
        nng_tls_config_free(client->tls);
    bt_buf_fini(&client->in);
    bt_free(client);
}

// ---- messages ----

bool
bt_sp_client_is_open(bt_sp_client *client)
{
    use(client, client->used);
    client->used = 0;
    return read_ready(client) == BT_OK;
}

bt_err
bt_sp_client_send(bt_sp_client *client, const void *bytes, size_t length, bt_time deadline)
{
    uint8_t head[BT_SP_HEAD_BYTES];
    nng_iov parts[2] = {{head, sizeof head}, {(void *)(uintptr_t)bytes, length}};

    use(client, client->used);
    client->used = 0;
    bt_sp_write_head(head, length);
    return write_all(client, parts, 2, deadline);
}

bt_err
bt_sp_client_receive(bt_sp_client *client, const uint8_t **bytes, size_t *length, bt_time deadline)
{
    bt_err err = BT_OK;

    use(client, client->used);
    client->used = 0;
    while (err == BT_OK) {
        uint64_t size = client->in.len >= BT_SP_HEAD_BYTES ? bt_sp_read_head((const uint8_t *)client->in.data) : 0;

        if (size > client->message_bytes_max)
            return BT_ERR_TOO_LONG;
        if (client->in.len >= BT_SP_HEAD_BYTES + size) {
            *bytes = (const uint8_t *)client->in.data + BT_SP_HEAD_BYTES;
            *length = (size_t)size;
            client->used = BT_SP_HEAD_BYTES + (size_t)size;
            return BT_OK;
        }
        err = read_some(client, deadline);
    }
    return err;
}
