// What the parts of the server share: sp.c (open, close, what its owner asks for), sp_conn.c (a connection's life and its messages).
#pragma once

#include "common/net/mailbox.h"
#include "common/net/sp.h"
#include "common/net/sp_wire.h"

#include <nng/nng.h>
#include <nng/supplemental/tls/tls.h>

#define BT_SP_REFUSED_LOGGED 32 // addresses whose refusal has been logged

typedef enum { BT_SP_ACCEPTED, BT_SP_RECEIVED, BT_SP_SENT } bt_sp_what;

typedef struct {
    bt_sp_what what;
    uint32_t index;
    uint32_t tag; // of the connection's stream: tells it from one that was there before
} bt_sp_done;

typedef struct {
    bt_sp *sp;
    uint32_t index, tag;
    nng_stream *stream; // NULL = free
    uint64_t address;   // hash of the other side's, without its port
    nng_aio *receive, *send;
    bool greeted, known; // known: the owner has had a message of it
    bool kept, receiving, sending;
    uint8_t *chunk;   // [BT_SP_CHUNK_BYTES] what nng reads into
    bt_buf in;        // of messages that are not whole
    bt_buf out, wire; // what waits; what nng is sending
    size_t wire_sent;
    bt_time began;  // GREETING, or the first byte of the message that comes in; 0 = none
    bt_time moved;  // something was sent
    bt_time active; // a message came or went
} bt_sp_conn;

struct bt_sp {
    bt_loop *loop;
    bt_sp_options options;
    bt_sp_handler handler;
    bt_mailbox *done;
    bt_timer timer;
    nng_stream_listener *listener;
    nng_tls_config *tls;
    nng_aio *accept;
    bool accepting, closed_to_new, written; // written: since the last flush
    bt_sp_conn *conns;                      // [connections_max]
    uint8_t *chunks; // [connections_max][BT_SP_CHUNK_BYTES]; pages that nobody writes to take no memory
    uint32_t connections;
    size_t in_bytes; // what all `in` hold
    bt_sp_stats stats;
    uint32_t refused_count;
    uint64_t refused[BT_SP_REFUSED_LOGGED]; // hashes of addresses
};

#define BT_SP_CHUNK_BYTES (16u << 10)

void bt_sp_conn_init(bt_sp *sp, uint32_t index);
bool bt_sp_conn_open(bt_sp_conn *conn); // its memory; false: there is none
void bt_sp_conn_fini(bt_sp_conn *conn);
void bt_sp_conn_adopt(bt_sp_conn *conn, nng_stream *stream, bt_time now);
void bt_sp_conn_received(bt_sp_conn *conn, bt_time now);
void bt_sp_conn_sent(bt_sp_conn *conn, bt_time now);
void bt_sp_conn_tick(bt_sp_conn *conn, bt_time now);
void bt_sp_conn_push(bt_sp_conn *conn); // what waits goes out, if nothing is under way
// `why` NULL: the client closed it. `count` is what it is to be counted as, NULL = nothing in particular.
void bt_sp_conn_close(bt_sp_conn *conn, const char *why, uint64_t *count);
