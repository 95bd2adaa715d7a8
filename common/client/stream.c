// Streams: begun, read with credit given back as it goes, cancelled, ended.
#include "common/client/client_impl.h"

#include "common/base/mem.h"

#include <stdio.h>
#include <string.h>

// The router tells of a deadline itself; a little later we stop waiting for its word.
#define GRACE (2 * BT_SECOND)
#define SEND_TIME BT_SECOND // for a word of ours, where the stream's own time may be over

// ---- what came while something else was waited for ----

void
bt_client_stream_keep(bt_client_stream *stream, const uint8_t *bytes, size_t length)
{
    bt_client_kept *kept = bt_alloc(sizeof *kept + length);

    if (kept == NULL) {
        stream->err = BT_ERR_NO_MEMORY;
        return;
    }
    kept->length = length;
    memcpy(kept->bytes, bytes, length);
    *stream->last = kept;
    stream->last = &kept->next;
}

static void
drop_first(bt_client_stream *stream)
{
    bt_client_kept *first = stream->first;

    stream->first = first->next;
    if (stream->first == NULL)
        stream->last = &stream->first;
    bt_free(first);
}

void
bt_client_stream_drop(bt_client_stream *stream)
{
    while (stream->first != NULL)
        drop_first(stream);
}

// ---- begin ----

static bt_client_stream *
take_stream(bt_client *client)
{
    for (uint32_t i = 0; i < client->options.streams_max; i++) {
        bt_client_stream *stream = &client->streams[i];

        if (stream->client == NULL) {
            *stream = (bt_client_stream){.client = client, .id = ++client->last_id};
            stream->last = &stream->first;
            return stream;
        }
    }
    return NULL;
}

bt_err
bt_client_generate(bt_client *client, const bt_gateway_generate *generate, const bt_client_call *call,
                   bt_client_stream **out, bt_why *why)
{
    bt_time timeout = call != NULL && call->timeout > 0 ? call->timeout : client->options.timeout;
    bt_gateway_request request = {
        .method = BT_GATEWAY_GENERATE,
        .timeout_ms = timeout / BT_MILLISECOND < UINT32_MAX ? (uint32_t)(timeout / BT_MILLISECOND + 1) : UINT32_MAX,
        .credits = client->options.credits,
        .name = bt_str_of(call != NULL && call->name != NULL ? call->name : ""),
        .body = {"", 0},
    };
    bt_time deadline = bt_client_deadline(client, timeout);
    bt_client_stream *stream;
    bt_err err;

    bt_wire_scratch_reset(&client->write);
    if ((err = bt_gateway_pack_generate(&request.body, generate, &client->write)) != BT_OK)
        return bt_client_fail(client, err, why, "more than a call may ask for");
    if ((err = bt_client_connect(client, deadline, why)) != BT_OK)
        return err;
    if ((stream = take_stream(client)) == NULL)
        return bt_client_fail(client, BT_ERR_BUSY, why, "as many streams as this client may have are open");
    stream->deadline = deadline;
    request.id = stream->id;
    if ((err = bt_client_send(client, &request, deadline, why)) != BT_OK) {
        stream->client = NULL;
        return err;
    }
    *out = stream;
    return BT_OK;
}

// ---- middle ----

static bt_err
next_reply(bt_client_stream *stream, bt_gateway_reply *out, bt_why *why)
{
    bt_client *client = stream->client;
    bt_err err;

    if (stream->first != NULL) {
        bt_wire_scratch_reset(&client->read);
        err = bt_gateway_read_reply(out, stream->first->bytes, stream->first->length, &client->read);
        drop_first(stream);
        return err; // it was read before: it can be
    }
    if (stream->err != BT_OK || client->sp == NULL)
        return bt_client_fail(client, BT_ERR_PEER, why,
                              "the connection to the router was lost: the answer is not whole");
    return bt_client_await(client, stream->id, out, stream->deadline + GRACE, why);
}

// Half of the credits at a time.
static void
give_credit(bt_client_stream *stream)
{
    bt_client *client = stream->client;
    bt_time soon = bt_client_deadline(client, SEND_TIME);
    bt_gateway_request request = {
        .id = stream->id, .method = BT_GATEWAY_CREDIT, .name = {"", 0}, .body = {"", 0}, .credits = ++stream->owed};

    if (client->sp != NULL && stream->owed >= (client->options.credits + 1) / 2) {
        bt_wire_scratch_reset(&client->write);
        // A send that fails costs all streams their connection: one that is read late still gets its moment. A connection that is
        // lost is noticed when it is read.
        bt_client_send(client, &request, stream->deadline > soon ? stream->deadline : soon, NULL);
        stream->owed = 0;
    }
}

static bt_err
over(bt_client_stream *stream, bt_err err)
{
    stream->over = true;
    stream->err = err;
    bt_client_stream_drop(stream);
    return err;
}

bt_err
bt_client_next(bt_client_stream *stream, bt_client_event *out, bt_why *why)
{
    bt_client *client = stream->client;
    bt_gateway_reply reply;
    bt_err err;

    *out = (bt_client_event){.last = stream->over};
    if (stream->over)
        return stream->err == BT_OK ? BT_OK : bt_fail(why, stream->err, "the stream is over");
    if ((err = next_reply(stream, &reply, why)) != BT_OK)
        return over(stream, err);
    if (reply.name.len != 0)
        snprintf(stream->name, sizeof stream->name, "%.*s", (int)reply.name.len, reply.name.data);
    if (reply.last && (err = bt_client_note(client, &reply.status, why)) != BT_OK)
        return over(stream, err);
    if (bt_gateway_read_generated(&out->news, reply.body, &client->read) != BT_OK)
        return over(stream, bt_client_fail(client, BT_ERR_PEER, why, "the router's answer makes no sense"));
    out->last = reply.last;
    if (reply.last)
        over(stream, BT_OK);
    else
        give_credit(stream);
    return BT_OK;
}

const char *
bt_client_stream_name(const bt_client_stream *stream)
{
    return stream->name;
}

// ---- end ----

bt_err
bt_client_cancel(bt_client_stream *stream, bt_why *why)
{
    bt_client *client = stream->client;
    bt_gateway_request request = {.id = ++client->last_id, .method = BT_GATEWAY_CANCEL, .name = {"", 0}};
    bt_err err;

    if (stream->over || stream->cancelled || client->sp == NULL)
        return BT_OK;
    stream->cancelled = true;
    bt_wire_scratch_reset(&client->write);
    if ((err = bt_gateway_pack_cancel(&request.body, stream->id, &client->write)) != BT_OK)
        return bt_client_fail(client, err, why, "no room for a message");
    return bt_client_send(client, &request, bt_client_deadline(client, SEND_TIME),
                          why); // its own answer says nothing new
}

void
bt_client_end(bt_client_stream *stream)
{
    if (stream == NULL)
        return;
    bt_client_cancel(stream, NULL);
    bt_client_stream_drop(stream);
    stream->client = NULL; // what still comes of it is for nobody
}

bt_err
bt_client_run(bt_client *client, const bt_gateway_generate *generate, const bt_client_call *call,
              bool (*on_event)(void *self, const bt_client_event *event), void *self, bt_why *why)
{
    bt_client_event event = {.last = false};
    bt_client_stream *stream;
    bt_err err = bt_client_generate(client, generate, call, &stream, why);

    if (err != BT_OK)
        return err;
    while (err == BT_OK && !event.last) {
        if ((err = bt_client_next(stream, &event, why)) == BT_OK && !on_event(self, &event) && !event.last)
            err = bt_client_cancel(stream, why);
    }
    bt_client_end(stream);
    return err;
}
