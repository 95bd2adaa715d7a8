// A client of a router's gateway, in C: what proto/gateway.proto offers as functions that wait.
//
//     bt_client_options options = bt_client_defaults();
//     options.url = "tcp://127.0.0.1:8090";
//     bt_client_open(&client, &options, &why);
//     bt_gateway_generate_defaults(&ask);                            common/wire/gateway.h
//     ask.input = (bt_gateway_input){.kind = BT_INPUT_PROMPT, .prompt = bt_str_of("Once upon a time")};
//     bt_client_generate(client, &ask, NULL, &stream, &why);
//     do err = bt_client_next(stream, &event, &why); while (err == BT_OK && !event.last);
//     bt_client_end(stream);
//     bt_client_close(client);
//
// It connects when the first call needs it, and again when the connection was lost, with growing pauses, until the call's deadline. What
// can be asked twice (all but Generate) is asked again; a stream whose connection is lost ends with BT_ERR_PEER.
//
// Errors: BT_ERR_INVALID, TOO_LONG, NOT_FOUND, UNSUPPORTED mean that the same call will fail again (a wrong key is INVALID); BUSY that
// later it may not; TIMEOUT that the deadline has passed; PEER that the router is not there or cannot serve; CANCELLED is what a stream
// says after bt_client_cancel. `why` is for a person; bt_client_status says it for a program, in gRPC's codes.
// One thread a client. Texts in `why` and in the status are cut where they are too long.
#pragma once

#include "common/base/time.h"
#include "common/wire/gateway.h"

typedef struct {
    const char *url;              // tcp://HOST:PORT or tls+tcp://HOST:PORT
    const char *key;              // NULL = none
    const char *ca_file;          // tls+tcp: who signs the router's certificate
    const char *tls_name;         // tls+tcp: the name in it; NULL = the host of the url
    bt_time timeout;              // of a call that names none
    bt_time pause_min, pause_max; // between attempts to connect
    size_t message_bytes_max;     // either way
    uint32_t streams_max;         // at a time
    uint32_t credits;             // Replies of a stream that may come before they are read
} bt_client_options;

// 60 s, 50 ms … 2 s, 32 MiB, 64 streams, 64 credits; no url.
bt_client_options bt_client_defaults(void);

typedef struct bt_client bt_client;
typedef struct bt_client_stream bt_client_stream;

// Options are copied. Does not connect. BT_ERR_INVALID names the option.
bt_err bt_client_open(bt_client **out, const bt_client_options *options, bt_why *why);
void bt_client_close(bt_client *client); // its streams end; NULL is fine

// How the last call or stream that failed did so; OK before that.
typedef struct {
    bt_code code;
    char message[256], reason[64], field[64];
    bt_time retry_after; // 0 = nothing was said of it
} bt_client_status;
const bt_client_status *bt_client_last_status(const bt_client *client);

// ---- streams ----

typedef struct {
    const char *name; // the request's, for logs on both sides; NULL = the router draws one
    bt_time timeout;  // 0 = the client's own
} bt_client_call;

// `call` may be NULL. BT_ERR_BUSY also where streams_max are open here.
bt_err bt_client_generate(bt_client *client, const bt_gateway_generate *generate, const bt_client_call *call,
                          bt_client_stream **out, bt_why *why);

typedef struct {
    bt_gateway_generated news; // may be nothing; usage with the last
    bool last;
} bt_client_event;

// Waits for what comes next; borrowed until the next call of this client. After an error or the last event the stream is over and
// says the same again.
bt_err bt_client_next(bt_client_stream *stream, bt_client_event *out, bt_why *why);
// Asks the router to stop; `next` goes on until BT_ERR_CANCELLED, or the end that came first.
bt_err bt_client_cancel(bt_client_stream *stream, bt_why *why);
const char *bt_client_stream_name(const bt_client_stream *stream); // "" until the first event
// In whatever state; what still runs is cancelled. NULL is fine.
void bt_client_end(bt_client_stream *stream);

// All of it: `on_event` is called for each, and returns false to cancel.
bt_err bt_client_run(bt_client *client, const bt_gateway_generate *generate, const bt_client_call *call,
                     bool (*on_event)(void *self, const bt_client_event *event), void *self, bt_why *why);

// ---- the rest; answers are borrowed until the next call of this client ----

bt_err bt_client_tokenize(bt_client *client, const bt_gateway_tokenize *tokenize, bt_gateway_tokenized *out,
                          bt_why *why);
bt_err bt_client_detokenize(bt_client *client, const bt_gateway_detokenize *detokenize, bt_str *out, bt_why *why);
bt_err bt_client_models(bt_client *client, const bt_gateway_model **out, uint32_t *count, bt_why *why);
bt_err bt_client_health(bt_client *client, bt_gateway_state *out, bt_why *why);
bt_err bt_client_stats(bt_client *client, bt_gateway_stats *out, bt_why *why);
