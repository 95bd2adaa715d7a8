// What the parts of the client share: client.c (open, the connection), call.c (calls with one answer), stream.c (streams).
#pragma once

#include "common/base/rng.h"
#include "common/client/client.h"
#include "common/metrics/request_id.h"
#include "common/net/sp_client.h"

// A Reply that came while another was waited for.
typedef struct bt_client_kept {
    struct bt_client_kept *next;
    size_t length;
    uint8_t bytes[];
} bt_client_kept;

struct bt_client_stream {
    bt_client *client; // NULL = free
    uint64_t id;
    char name[BT_REQUEST_NAME_MAX + 1];
    bt_time deadline;
    bt_err err; // that it ended with
    bool over, cancelled;
    uint32_t owed; // Replies that were read and not yet given credit for
    bt_client_kept *first, **last;
};

struct bt_client {
    bt_client_options options; // its texts are ours
    bt_sp_client *sp;          // NULL = not connected
    bt_time heard;             // when something last came over it
    uint32_t failures;         // attempts in a row
    bt_rng rng;
    uint64_t last_id;
    bt_client_stream *streams; // [streams_max]
    bt_wire_scratch write, read;
    bt_client_status status;
};

// client.c
bt_err bt_client_connect(bt_client *client, bt_time deadline, bt_why *why);
void bt_client_lose(bt_client *client); // the connection; running streams are over
bt_err bt_client_send(bt_client *client, const bt_gateway_request *request, bt_time deadline, bt_why *why);
// The next Reply that is for `id`; what is for streams is kept for them, what is for nobody is dropped.
bt_err bt_client_await(bt_client *client, uint64_t id, bt_gateway_reply *out, bt_time deadline, bt_why *why);
bt_err bt_client_note(bt_client *client, const bt_gateway_status *status, bt_why *why); // the router's word
bt_err bt_client_fail(bt_client *client, bt_err err, bt_why *why, const char *words);   // our own
bt_time bt_client_deadline(const bt_client *client, bt_time timeout);

// stream.c
void bt_client_stream_keep(bt_client_stream *stream, const uint8_t *bytes, size_t length);
void bt_client_stream_drop(bt_client_stream *stream); // what it has kept
