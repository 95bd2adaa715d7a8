// The host transport's parts: host.c opens and connects, host_fetch.c asks, host_serve.c answers. Private to this folder.
//
//     receiver                                     owner
//       connects ─────── hello {who, whom} ──────▶   known by its description? else closed without a word
//                ◀────── hello ─────────────────
//       request {tag, epoch, blocks} ───────────▶
//                ◀────── answer {tag, err} blocks…   in the order asked, straight out of the pool
//
// The receiver reads straight into its landing blocks, and only while someone waits for them: what comes for a piece that was dropped
// is read into a sink. So every operation ends when we want it to, and a socket's end tells of a dead peer at once.
// Each message is 32 bytes in the order of bytes of both hosts' memory (little-endian: a big-endian peer fails the hello).
#pragma once

#include "common/transfer/impl.h"
#include "common/transfer/shared.h"

#include <netinet/in.h>

#define BT_HOST_MAGIC 0x31485442u // "BTH1"
#define BT_HOST_SINK_BYTES (256 * 1024)
#define BT_HOST_ADDRESSES_MAX 16
#define BT_HOST_TURN_BYTES ((size_t)4 << 20) // that one connection moves a turn

typedef struct {
    uint32_t magic, version;
    uint64_t from, to; // identities
    uint64_t epoch;    // of `to`
} bt_host_hello;

typedef struct {
    uint32_t magic, tag;
    uint64_t epoch; // of the owner
    uint32_t from, count;
    uint64_t zero;
} bt_host_request;

typedef struct {
    uint32_t magic, tag;
    uint32_t err, count;
    uint64_t bytes, zero;
} bt_host_answer;

#define BT_HOST_MESSAGE_BYTES 32
_Static_assert(sizeof(bt_host_hello) == 32 && sizeof(bt_host_request) == 32 && sizeof(bt_host_answer) == 32,
               "as on the wire");

#define BT_HOST_ASKED_MAX 256 // requests of a peer without an answer, those of dropped pieces included

typedef struct {
    bt_piece *piece; // NULL = dropped: its bytes go into the sink
    uint32_t tag;
} bt_host_asked;

typedef enum { BT_HOST_DOWN, BT_HOST_CONNECTING, BT_HOST_HELLO, BT_HOST_READY } bt_host_state;

typedef struct {
    bool used; // until it is disconnected: its program is let in
    bt_host_state state;
    int fd;
    uint64_t identity, epoch;
    const uint8_t *direct; // NULL = stream
    bool prepared;         // its pages are mapped
    bt_shared_key direct_key;
    uint32_t address_count, address;                      // to try, being tried
    struct sockaddr_in6 addresses[BT_HOST_ADDRESSES_MAX]; // IPv4 as mapped
    // Asked and not yet answered, oldest first; those from `sent` on are not sent.
    bt_host_asked asked[BT_HOST_ASKED_MAX];
    bt_host_request requests[BT_HOST_ASKED_MAX];
    uint32_t first, count, sent; // of the ring
    size_t sent_bytes;           // of the message being sent (hello, or request number `sent`)
    uint8_t in[BT_HOST_MESSAGE_BYTES];
    size_t in_bytes;  // of the header
    size_t body_left; // of the answer being read
    size_t body_at;
    bool wants_write;
} bt_host_peer;

typedef struct {
    int fd;           // −1 = free
    uint32_t peer;    // BT_TRANSFER_PEER_NONE until the hello
    uint64_t waiting; // identity of who has said hello before we heard of it, 0 = nobody
    uint64_t order;
    uint8_t in[BT_HOST_MESSAGE_BYTES];
    size_t in_bytes;
    bt_host_request requests[BT_HOST_ASKED_MAX]; // to answer, ring
    uint32_t first, count;
    uint8_t out[BT_HOST_MESSAGE_BYTES]; // header being sent
    size_t out_at, out_bytes;
    const uint8_t *body;
    size_t body_left;
    bool wants_write;
} bt_host_caller;

typedef struct {
    bt_transport base;
    bt_transfer_options o;
    uint64_t identity;
    bt_shared pool;
    int epoll, listener;
    uint16_t port;
    uint8_t address[2 + BT_HOST_ADDRESSES_MAX * 16];
    uint16_t address_bytes;
    bt_host_peer *peers;     // [peers_max]
    bt_host_caller *callers; // [callers_max]
    uint32_t callers_max, tags;
    uint64_t callers_seen;
    uint8_t *sink;
    uint64_t served, served_bytes, serving_failed, refused;
} bt_host;

// What an epoll event is about.
enum { BT_HOST_ON_LISTENER, BT_HOST_ON_PEER, BT_HOST_ON_CALLER };
bt_err bt_host_watch(bt_host *h, int op, int fd, int kind, uint32_t index, bool write);

void bt_host_end_piece(bt_piece *piece, bt_err err);

// host_fetch.c
void bt_host_peer_begin(bt_host *h, uint32_t slot); // tries the next address; DOWN when none is left
void bt_host_peer_end(bt_host *h, uint32_t slot, bt_err err);
void bt_host_peer_turn(bt_host *h, uint32_t slot, bool readable);
void bt_host_ask(bt_host *h, bt_piece *piece);
void bt_host_forget(bt_host *h, const bt_piece *piece);

// host_serve.c
void bt_host_accept(bt_host *h);
// A peer is known now: one that has said hello already is let in.
void bt_host_greet(bt_host *h, uint32_t slot);
void bt_host_caller_turn(bt_host *h, uint32_t index);
void bt_host_caller_end(bt_host *h, uint32_t index);
