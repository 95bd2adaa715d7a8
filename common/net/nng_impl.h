// What the parts of the nng link share: nng_link.c (open, close, the link's interface), nng_conn.c (a connection's life and its
// frames), nng_queue.c (what waits to be sent), nng_stream.c (streams of bytes, TLS).
#pragma once

#include "common/net/challenge.h"
#include "common/net/flow.h"
#include "common/net/mailbox.h"
#include "common/net/nng_link.h"
#include "common/wire/scratch.h"

#include "common/base/rng.h"

#include <nng/nng.h>
#include <nng/supplemental/tls/tls.h>

#define BT_NNG_LISTEN_MAX 4
#define BT_NNG_REFUSED_LOGGED 32 // addresses whose refusal has been logged
#define BT_NNG_OUT_MAX 64        // frames on their way out of a connection: the window, and acknowledgements

typedef struct bt_nng_link bt_nng_link;
typedef struct bt_nng_conn bt_nng_conn;

// An operation of nng has ended.
typedef enum { BT_NNG_DIALLED, BT_NNG_ACCEPTED, BT_NNG_RECEIVED, BT_NNG_SENT } bt_nng_what;

typedef struct {
    bt_nng_what what;
    uint32_t index; // of the connection, or the listener
    uint32_t tag;   // of the connection's stream: tells it from one that was there before
} bt_nng_done;

typedef struct {
    bt_nng_link *link;
    uint32_t index;
    nng_stream_listener *nng;
    nng_tls_config *tls;
    nng_aio *accept;
    bool accepting;
} bt_nng_listener;

typedef struct {
    nng_msg *msg; // with room for the head in front
    bt_lane lane;
    bt_message_kind kind;
    bt_request_id request; // of ABORT and what an ABORT could be about
} bt_nng_waiting;

typedef enum {
    BT_CONN_FREE,     // of those for who dials us
    BT_CONN_PAUSE,    // dials when `until` is past
    BT_CONN_DIALS,    // no connection yet
    BT_CONN_GREETING, // see challenge.h
    BT_CONN_UP,
} bt_conn_state;

struct bt_nng_conn {
    bt_nng_link *link;
    uint32_t peer;
    bt_conn_state state;
    char *url; // of who is dialled
    nng_stream_dialer *dialer;
    nng_tls_config *tls;
    nng_stream *stream; // NULL = none
    uint32_t tag;
    nng_aio *dial, *receive, *send;
    bool dialling, sending;
    uint8_t *bytes; // [frame_bytes_max] as they come, from a frame's beginning
    size_t byte_count;
    nng_msg *out[BT_NNG_OUT_MAX];
    uint32_t out_first, out_count;
    size_t out_offset; // of the first, that has been sent
    bt_time until;     // PAUSE: of the pause; DIALS, GREETING: of patience
    bt_time heard, said;
    uint32_t failures; // attempts in a row that did not come up
    bt_frame_kind awaited;
    bt_nonces nonces;
    bt_flow flow;
    bt_nng_waiting *waiting; // [queue_max]
    uint32_t waiting_count;
    nng_msg *unread[BT_FLOW_WINDOW];
    uint32_t unread_first, unread_count;
    nng_msg *late;      // tests: held back until the next frame
    bool told_up, lost; // what the owner knows: UP was told; that one is over and DOWN is still to be told
    bool complained;    // about this address; until it comes up
};

struct bt_nng_link {
    bt_link link;
    bt_loop *loop;
    bt_nng_link_options options; // its pointers are void but `secret` and the files
    bt_mailbox *done;
    bt_timer timer;
    bt_rng rng;
    uint32_t conn_count, cursor;
    bt_nng_conn *conns; // [dial_count + accepted_max]
    bt_nng_listener listeners[BT_NNG_LISTEN_MAX];
    bt_wire_scratch encode, decode;
    bt_nng_link_stats stats;
    uint32_t refused_count;
    uint64_t refused[BT_NNG_REFUSED_LOGGED]; // hashes of addresses
};

// nng_conn.c
void bt_nng_conn_added(bt_nng_conn *conn, bt_time now); // it has a stream
// The bytes that the first frame takes of `length`; 0 when it is not whole, or the connection is closed now.
size_t bt_nng_conn_frame(bt_nng_conn *conn, const uint8_t *bytes, size_t length, bt_time now);
void bt_nng_conn_tick(bt_nng_conn *conn, bt_time now);
void bt_nng_conn_ack(bt_nng_conn *conn);
// Whatever its state; `why` is for the log, NULL = say nothing.
void bt_nng_conn_close(bt_nng_conn *conn, bt_time now, const char *why);
bool bt_nng_conn_transmit(bt_nng_conn *conn, bt_frame_head head, nng_msg *msg); // false: not now, still the caller's
bt_nng_conn *bt_nng_conn_find_free(bt_nng_link *link);

// nng_queue.c
bt_err bt_nng_queue_add(bt_nng_conn *conn, const bt_message *message);
void bt_nng_queue_pump(bt_nng_conn *conn);
void bt_nng_queue_clear(bt_nng_conn *conn);

// nng_stream.c
bt_err bt_nng_stream_open_conn(bt_nng_conn *conn, const bt_nng_peer *dial,
                               bt_why *why); // `dial` NULL: for an accepted one
void bt_nng_stream_free_conn(bt_nng_conn *conn);
bt_err bt_nng_stream_listen(bt_nng_listener *listener, const char *url, bt_why *why);
void bt_nng_stream_free_listener(bt_nng_listener *listener);
void bt_nng_stream_accept(bt_nng_listener *listener);
void bt_nng_stream_dial(bt_nng_conn *conn);
bool bt_nng_stream_send(bt_nng_conn *conn, nng_msg *msg); // false: too many are on their way, still the caller's
void bt_nng_stream_close(bt_nng_conn *conn);
void bt_nng_stream_address(const bt_nng_conn *conn, char *out, size_t bytes);
void bt_nng_stream_take(void *link, const void *done); // of the mailbox
