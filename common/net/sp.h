// Messages to and from many clients, each on a connection of its own, who need nothing but nng: the wire protocol of its pair0 sockets
// (SP over TCP: 8 bytes of greeting each way, then messages behind their length), spoken over nng's streams.
//
//     bt_sp_open(&sp, loop, &options, &handler, &why);         "tcp://0.0.0.0:8090", "tls+tcp://…"
//     …handler.message(self, conn, bytes, length):             a message of client `conn`
//     memory = bt_sp_begin(sp, conn, length); …write…
//     bt_sp_flush(sp);                                         once a turn: what was written goes out
//     bt_sp_close(sp);
//
// (An nng socket would take the clients too. But with nng 1.5.2 closing one while bytes arrive can wait for ever, a pair0 socket has one
// client, and a polyamorous pair1 drops messages to a client that is slow; common/net/nng_stream.c has more.)
// A connection's number is the owner's from its first message until `gone`. Clients that send garbage, too much, or nothing in time are
// counted, logged once an address, and closed; nobody else notices. Who does not read what it is sent is not read from either.
// All on the loop's thread; nng's own threads only post.
#pragma once

#include "common/base/buf.h"
#include "common/net/loop.h"

typedef struct {
    const char *listen;
    const char *cert_key_file;     // PEM, both in one file; wanted for tls+tcp
    const char *ca_file;           // NULL: clients need no certificate
    uint32_t connections_max;      // more are closed at once
    uint32_t connections_each_max; // from one address; 0 = no limit of its own
    size_t message_bytes_max;      // of one that comes in
    size_t in_bytes_total_max;     // of all that are on their way in
    size_t out_bytes_max;          // that wait for one client; a message beyond closes its connection
    bt_time greeting_time_max;     // from a connection to its greeting
    bt_time message_time_max;      // from a message's first byte to its last
    bt_time stall_time_max;        // without progress while there is something to send
    bt_time idle_time_max;         // without a message either way, for who is not kept
} bt_sp_options;

// 256 connections, 8 MiB, 256 MiB, 16 MiB, 10 s, 60 s, 30 s, 10 min.
bt_sp_options bt_sp_defaults(void);

typedef struct {
    void *self;
    // Borrowed until it returns.
    void (*message)(void *self, uint32_t conn, const uint8_t *bytes, size_t length);
    // Something was sent, and less than before waits.
    void (*sent)(void *self, uint32_t conn);
    // The connection is closed, whoever closed it. Only for those that had a message.
    void (*gone)(void *self, uint32_t conn);
} bt_sp_handler;

typedef struct {
    uint64_t opened, closed;
    uint64_t refused; // more than there may be
    uint64_t foreign; // not SP, or too much of it
    uint64_t stalled; // did not read, greet or finish in time
    uint64_t messages_in, messages_out, bytes_in, bytes_out;
} bt_sp_stats;

typedef struct bt_sp bt_sp;

// BT_ERR_INVALID names the setting in `why`; BT_ERR_IO an address that cannot be listened on.
bt_err bt_sp_open(bt_sp **out, bt_loop *loop, const bt_sp_options *options, const bt_sp_handler *handler, bt_why *why);
void bt_sp_close(bt_sp *sp);          // without calling anyone; NULL is fine
void bt_sp_stop_accepting(bt_sp *sp); // who is here stays
uint16_t bt_sp_port(const bt_sp *sp); // "tcp://127.0.0.1:0" asks for any; 0 once it accepts no more
uint32_t bt_sp_connections(const bt_sp *sp);
void bt_sp_read_stats(const bt_sp *sp, bt_sp_stats *out);

// Where the next message of this length is to be written, before anything else is called. NULL: it does not fit, and the connection is
// closed (`gone` was called).
uint8_t *bt_sp_begin(bt_sp *sp, uint32_t conn, size_t length);
void bt_sp_flush(bt_sp *sp);
size_t bt_sp_waiting(const bt_sp *sp, uint32_t conn); // bytes that wait for this client
void bt_sp_keep(bt_sp *sp, uint32_t conn, bool keep); // not idle, whatever the clock says: an answer is due
// A client of whom nobody wants to hear more; `why` is for the log, NULL = its own will. Calls `gone`.
void bt_sp_drop(bt_sp *sp, uint32_t conn, const char *why);
