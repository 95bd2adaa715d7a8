// Opens and closes a client; its connection, and what comes over it.
#include "common/client/client_impl.h"

#include "common/base/mem.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#define LONG_AGO BT_SECOND // since the router was heard of: it may have closed the connection

bt_client_options
bt_client_defaults(void)
{
    return (bt_client_options){.timeout = 60 * BT_SECOND,
                               .pause_min = 50 * BT_MILLISECOND,
                               .pause_max = 2 * BT_SECOND,
                               .message_bytes_max = 32u << 20,
                               .streams_max = 64,
                               .credits = BT_GATEWAY_CREDITS};
}

// ---- what went wrong ----

const bt_client_status *
bt_client_last_status(const bt_client *client)
{
    return &client->status;
}

static bt_err
err_of(bt_code code, bt_str reason)
{
    switch (code) {
    case BT_CODE_OK:
        return BT_OK;
    case BT_CODE_CANCELLED:
        return BT_ERR_CANCELLED;
    case BT_CODE_INVALID_ARGUMENT:
        return bt_str_is(reason, "context_length_exceeded") ? BT_ERR_TOO_LONG : BT_ERR_INVALID;
    case BT_CODE_DEADLINE_EXCEEDED:
        return BT_ERR_TIMEOUT;
    case BT_CODE_NOT_FOUND:
        return BT_ERR_NOT_FOUND;
    case BT_CODE_RESOURCE_EXHAUSTED:
        return BT_ERR_BUSY;
    case BT_CODE_UNIMPLEMENTED:
        return BT_ERR_UNSUPPORTED;
    case BT_CODE_UNAUTHENTICATED:
    case BT_CODE_PERMISSION_DENIED:
        return BT_ERR_INVALID;
    default:
        return BT_ERR_PEER;
    }
}

static void
copy_text(char *out, size_t room, bt_str text)
{
    snprintf(out, room, "%.*s", (int)(text.len < room ? text.len : room), text.data);
}

bt_err
bt_client_note(bt_client *client, const bt_gateway_status *status, bt_why *why)
{
    bt_client_status *out = &client->status;
    bt_err err = err_of(status->code, status->reason);

    if (err == BT_OK)
        return BT_OK;
    out->code = status->code;
    copy_text(out->message, sizeof out->message, status->message);
    copy_text(out->reason, sizeof out->reason, status->reason);
    copy_text(out->field, sizeof out->field, status->field);
    out->retry_after = status->retry_after_ms * BT_MILLISECOND;
    return bt_fail(why, err, "%s: %s", bt_code_name(out->code), out->message);
}

bt_err
bt_client_fail(bt_client *client, bt_err err, bt_why *why, const char *words)
{
    client->status = (bt_client_status){.code = err == BT_ERR_TIMEOUT    ? BT_CODE_DEADLINE_EXCEEDED
                                                : err == BT_ERR_BUSY     ? BT_CODE_RESOURCE_EXHAUSTED
                                                : err == BT_ERR_PEER     ? BT_CODE_UNAVAILABLE
                                                : err < BT_ERR_NOT_FOUND ? BT_CODE_INVALID_ARGUMENT
                                                                         : BT_CODE_INTERNAL};
    copy_text(client->status.message, sizeof client->status.message, bt_str_of(words));
    return bt_fail(why, err, "%s", client->status.message);
}

// ---- the connection ----

bt_time
bt_client_deadline(const bt_client *client, bt_time timeout)
{
    return bt_time_now() + (timeout > 0 ? timeout : client->options.timeout);
}

void
bt_client_lose(bt_client *client)
{
    bt_sp_client_close(client->sp);
    client->sp = NULL;
    for (uint32_t i = 0; i < client->options.streams_max; i++) {
        bt_client_stream *stream = &client->streams[i];

        // What has come of it can still be read; then `next` finds that no more will.
        if (stream->client != NULL && !stream->over && stream->err == BT_OK)
            stream->err = BT_ERR_PEER;
    }
}

// Half of a pause by chance: a hundred clients of a router that has come back do not all knock at once.
static bool
rest(bt_client *client, bt_time deadline)
{
    uint32_t doublings = client->failures < 16 ? client->failures : 16;
    bt_time length = client->options.pause_min << doublings, left = deadline - bt_time_now();
    struct timespec wait;

    if (length > client->options.pause_max)
        length = client->options.pause_max;
    length = length / 2 + (bt_time)bt_rng_below(&client->rng, (uint64_t)(length / 2) + 1);
    client->failures++;
    if (length >= left)
        return false;
    wait = (struct timespec){length / BT_SECOND, length % BT_SECOND};
    nanosleep(&wait, NULL);
    return true;
}

bt_err
bt_client_connect(bt_client *client, bt_time deadline, bt_why *why)
{
    const bt_client_options *options = &client->options;
    bt_sp_client_options sp = {options->url, options->ca_file, options->tls_name, options->message_bytes_max};
    bt_why reason = {""}, latest = {""};

    // One that the router has closed meanwhile, for being idle say, is not to cost a stream its request.
    if (client->sp != NULL && bt_time_now() - client->heard > LONG_AGO && !bt_sp_client_is_open(client->sp))
        bt_client_lose(client);
    while (client->sp == NULL) {
        bt_err err = bt_sp_client_open(&client->sp, &sp, deadline, &latest);

        if (err == BT_OK) {
            client->failures = 0;
            client->heard = bt_time_now();
            return BT_OK;
        }
        // An attempt that the deadline cut short says less than the one before it.
        if (err != BT_ERR_TIMEOUT || reason.text[0] == 0)
            reason = latest;
        if (err != BT_ERR_PEER && err != BT_ERR_TIMEOUT)
            return bt_client_fail(client, err, why, reason.text);
        if (!rest(client, deadline))
            return bt_client_fail(client, BT_ERR_PEER, why, reason.text);
    }
    return BT_OK;
}

bt_err
bt_client_send(bt_client *client, const bt_gateway_request *request, bt_time deadline, bt_why *why)
{
    bt_gateway_request full = *request;
    bt_gateway_draft draft;
    uint8_t *memory;
    bt_err err;

    full.auth = bt_str_of(client->options.key != NULL ? client->options.key : "");
    if ((err = bt_gateway_draft_request(&draft, &full, &client->write)) != BT_OK ||
        (memory = bt_wire_take(&client->write, draft.bytes)) == NULL || draft.bytes > client->options.message_bytes_max)
        return bt_client_fail(client, BT_ERR_TOO_LONG, why, "the request is larger than a message may be");
    bt_gateway_write(&draft, memory);
    err = bt_sp_client_send(client->sp, memory, draft.bytes, deadline);
    if (err != BT_OK) {
        bt_client_lose(client);
        return bt_client_fail(client, err, why,
                              err == BT_ERR_TIMEOUT ? "the request could not be sent in time"
                                                    : "the connection to the router was lost");
    }
    return BT_OK;
}

static bt_client_stream *
stream_of(bt_client *client, uint64_t id)
{
    for (uint32_t i = 0; i < client->options.streams_max; i++) {
        if (client->streams[i].client != NULL && client->streams[i].id == id && !client->streams[i].over)
            return &client->streams[i];
    }
    return NULL;
}

bt_err
bt_client_await(bt_client *client, uint64_t id, bt_gateway_reply *out, bt_time deadline, bt_why *why)
{
    const uint8_t *bytes;
    size_t length;
    bt_err err = BT_OK;

    while (err == BT_OK) {
        bt_client_stream *stream;

        if ((err = bt_sp_client_receive(client->sp, &bytes, &length, deadline)) != BT_OK)
            break;
        client->heard = bt_time_now();
        bt_wire_scratch_reset(&client->read);
        if ((err = bt_gateway_read_reply(out, bytes, length, &client->read)) != BT_OK || out->id == id)
            break;
        if ((stream = stream_of(client, out->id)) != NULL)
            bt_client_stream_keep(stream, bytes, length);
    }
    if (err == BT_OK || err == BT_ERR_TIMEOUT)
        return err == BT_OK ? BT_OK : bt_client_fail(client, err, why, "no answer of the router in time");
    bt_client_lose(client);
    return bt_client_fail(client, BT_ERR_PEER, why,
                          err == BT_ERR_PEER ? "the connection to the router was lost"
                                             : "the router sent something that is no Reply of proto/gateway.proto");
}

// ---- open and close ----

static bt_err
copy_option(const char **option)
{
    if (*option != NULL && (*option = bt_strdup(*option)) == NULL)
        return BT_ERR_NO_MEMORY;
    return BT_OK;
}

static bt_err
copy_options(bt_client *client, const bt_client_options *options)
{
    bt_client_options *own = &client->options;
    bt_err err;

    *own = *options;
    own->key = own->ca_file = own->tls_name = NULL;
    if ((err = copy_option(&own->url)) != BT_OK)
        return err;
    own->key = options->key;
    if ((err = copy_option(&own->key)) != BT_OK)
        return err;
    own->ca_file = options->ca_file;
    if ((err = copy_option(&own->ca_file)) != BT_OK)
        return err;
    own->tls_name = options->tls_name;
    return copy_option(&own->tls_name);
}

static bt_err
open_memory(bt_client *client)
{
    size_t most = client->options.message_bytes_max, write = 3 * most + (64u << 10), read = 5 * most + (1u << 20);

    client->streams = bt_alloc_array(client->options.streams_max, sizeof *client->streams);
    // Pages that nobody writes to take no memory.
    bt_wire_scratch_init(&client->write, bt_alloc(write), write);
    bt_wire_scratch_init(&client->read, bt_alloc(read), read);
    return client->streams != NULL && client->write.memory != NULL && client->read.memory != NULL ? BT_OK
                                                                                                  : BT_ERR_NO_MEMORY;
}

bt_err
bt_client_open(bt_client **out, const bt_client_options *options, bt_why *why)
{
    bt_client *client;
    bt_err err;

    if (options->url == NULL || options->url[0] == 0)
        return bt_fail(why, BT_ERR_INVALID, "which router? url");
    if (options->timeout <= 0 || options->pause_min <= 0 || options->pause_max < options->pause_min ||
        options->message_bytes_max < 4096 || options->message_bytes_max > 1u << 30 || options->streams_max == 0 ||
        options->credits < 2)
        return bt_fail(why, BT_ERR_INVALID, "limits of the client that make no sense");
    if ((client = bt_alloc(sizeof *client)) == NULL)
        return bt_fail(why, BT_ERR_NO_MEMORY, "no memory for a client");
    client->rng.state = (uint64_t)bt_time_now() ^ (uint64_t)(uintptr_t)client;
    if ((err = copy_options(client, options)) != BT_OK || (err = open_memory(client)) != BT_OK) {
        bt_client_close(client);
        return bt_fail(why, err, "no memory for a client");
    }
    *out = client;
    return BT_OK;
}

void
bt_client_close(bt_client *client)
{
    if (client == NULL)
        return;
    bt_sp_client_close(client->sp);
    for (uint32_t i = 0; client->streams != NULL && i < client->options.streams_max; i++)
        bt_client_stream_drop(&client->streams[i]);
    bt_free(client->streams);
    bt_free(client->write.memory);
    bt_free(client->read.memory);
    bt_free((char *)client->options.url);
    bt_free((char *)client->options.key);
    bt_free((char *)client->options.ca_file);
    bt_free((char *)client->options.tls_name);
    bt_free(client);
}
