// The link of common/node/link.h over nng's streams: programs that dial each other, on one host or many.
//
//     bt_nng_link_open(&link, loop, &options, &why);
//     bt_link_receive / bt_link_send / bt_link_pending     as link.h says
//     bt_link_close(link);                                  before the loop
//
// Peers 0 … dial_count − 1 are the addresses that we dial, again and again with growing pauses; the numbers above are whoever has
// dialled us, each for as long as its connection lasts. Nobody is up before both sides have proved that they know the secret
// (common/net/challenge.h). Messages arrive once and in order, or the connection is closed: DOWN, later UP, and both sides start afresh.
// Two kinds may overtake what waits for credit: ABORT anything but messages on its own request, HEARTBEAT anything but TOKENS; none
// overtakes a HELLO. Everything happens on the loop's thread; nng's own threads only post.
#pragma once

#include "common/net/loop.h"
#include "common/node/link.h"

typedef struct {
    const char *url;      // "tcp://10.0.0.7:7100", "tls+tcp://…", "ipc:///run/baton/d1"
    const char *tls_name; // that its certificate must have; wanted for tls+tcp
} bt_nng_peer;

// For each sent frame (tests).
typedef enum { BT_FATE_PASS, BT_FATE_DROP, BT_FATE_TWICE, BT_FATE_LATE } bt_fate; // LATE: after the next one

typedef struct {
    const char *secret; // 1 … 128 bytes
    const char *const *listen;
    uint32_t listen_count; // ≤ 4
    const bt_nng_peer *dial;
    uint32_t dial_count;
    uint32_t accepted_max;  // connections from others at a time
    uint32_t queue_max;     // messages that wait for credit, a peer; RESERVE and PREFILL may fill three quarters
    size_t frame_bytes_max; // either way; a larger one is BT_ERR_TOO_LONG, and closes the connection of who sends it
    struct {
        const char *ca_file;       // who signs the cluster's certificates, PEM
        const char *cert_key_file; // our own certificate and key, PEM in one file
    } tls;                         // for tls+tcp: both sides show a certificate
    bt_time silence_max;           // without a frame of the peer, then the connection is closed
    bt_time greeting_max;          // from a connection to UP
    bt_time pause_min, pause_max;  // between two attempts to dial
    uint64_t seed;                 // of the jitter of pauses
    bt_fate (*fate)(void *self);   // tests only
    void *fate_self;
} bt_nng_link_options;

// For a cluster in one data centre: 256 messages, 8 MiB, 3 s, 3 s, 50 ms … 2 s, 64 connections.
bt_nng_link_options bt_nng_link_defaults(void);

typedef struct {
    uint64_t ups, downs;
    uint64_t frames_sent, frames_received;
    uint64_t refused;    // strangers, and those with a wrong secret
    uint64_t foreign;    // frames and messages that are not ours, or malformed
    uint64_t unknown;    // messages of a kind that a newer program may know
    uint64_t gaps;       // connections closed since something was lost on the way
    uint64_t duplicates; // dropped
    uint64_t busy;       // sends refused
} bt_nng_link_stats;

// What is borrowed in `options` is copied. BT_ERR_INVALID names the setting in `why`; BT_ERR_IO an address that cannot be listened on.
bt_err bt_nng_link_open(bt_link **out, bt_loop *loop, const bt_nng_link_options *options, bt_why *why);
void bt_nng_link_read_stats(const bt_link *link, bt_nng_link_stats *out);
// The port that listen[index] got ("tcp://127.0.0.1:0" asks for any); 0 for what has none.
uint16_t bt_nng_link_port(const bt_link *link, uint32_t index);
// Has everything been read that was sent to those who are up? A program that leaves waits for it, for a while: what is on its way when a
// connection closes may be lost.
bool bt_nng_link_quiet(const bt_link *link);
