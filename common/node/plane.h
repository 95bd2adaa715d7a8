// The data plane of a node as its loop sees it: a thread that owns the bt_transfer, asked and heard through bounded queues. The loop never
// waits for bytes, and is woken when there is an event.
//
//     loop thread                                      plane thread
//       connect(peer, epoch, description) ───────────▶   bt_transfer_connect, and if asked, bt_transfer_prove
//                                      ◀── CONNECTED, PROVED
//       fetch(peer, epoch, blocks, user) ────────────▶   bt_transfer_fetch
//                                      ◀── FETCHED(user)     once, whatever happens
//                                      ◀── LOST              the peer is gone; its connection has been ended
//       disconnect(peer) ────────────────────────────▶   bt_transfer_disconnect
//
// Peers are the caller's numbers (of its link). A peer has one connection at a time, to one program: `epoch` says which. What is asked
// happens in the order in which it is asked; a fetch may follow its connect at once.
//
// Nothing is lost: every queue has room for all that can be outstanding, and what does not fit is refused when it is asked (BT_ERR_BUSY).
// Everything is allocated at open.
//
// Threads: all calls are of one thread, the loop's. `wake` is called on the plane's.
#pragma once

#include "common/transfer/transfer.h"

typedef struct bt_plane bt_plane;

// Takes landed blocks on to where they are used (a GPU's pool, bt_engine_kv_in) before anyone hears that they came. All on the plane's
// thread; none waits. There is room for fetches_max that have begun and are not through.
typedef struct {
    bt_err (*begin)(void *arg, const bt_transfer_block *blocks, uint32_t count, uint64_t *ticket); // tickets rise
    bt_err (*through)(void *arg, uint64_t *ticket); // up to which all is done; an error is for good
    void *arg;
    int fd; // can be read when `through` has more to say; -1 = it always says all
} bt_plane_stage;

typedef struct {
    // There are events to take. On the plane's thread; must not wait. May be NULL (then bt_plane_next is to be asked now and then).
    void (*wake)(void *arg);
    void *wake_arg;
    uint32_t peers_max;        // numbers of peers are below it; not 0
    uint32_t fetches_max;      // asked and not yet taken as FETCHED; not 0
    uint32_t fetch_blocks_max; // of one fetch; not 0
    bt_plane_stage stage;      // begin NULL = blocks are used where they land
    // A second pool with the same blocks, for peers that the first cannot be reached by or reach (a GPU's is the first, and this the host's).
    // A peer that is asked to prove itself is fetched from by the first of ours for which it has one; others may fetch from both.
    bt_transfer *second; // NULL = none; is taken over and closed with the first
    bt_plane_stage second_stage;
} bt_plane_options;

// Sets in the options of a transfer what a plane needs that is opened with these: connections that are being ended beside new ones, proofs
// beside fetches.
void bt_plane_size_transfer(const bt_plane_options *options, bt_transfer_options *transfer);

// Takes the transfer over: from now on it is the plane's, and so is its end. When this fails it is still the caller's.
bt_err bt_plane_open(bt_plane **out, bt_transfer *transfer, const bt_plane_options *options, bt_why *why);
// Ends the thread alone: nothing is staged after this, and nothing heard. What is fetched into may then be closed before the memory that
// it is fetched through is.
void bt_plane_stop(bt_plane *plane);
// Ends the thread, then the transfer: its pool is gone with it, so that engine and whoever else uses that memory close first. Fetches in
// progress end without events. NULL is fine.
void bt_plane_close(bt_plane *plane);

// What peers need to know to fetch from here, for the DESCRIPTION message: of each pool the length, two bytes, least first, and its
// bt_transfer_describe. Good until close.
const uint8_t *bt_plane_description(const bt_plane *plane, uint32_t *bytes);

// Makes the program `epoch`, who wrote the description, the peer's connection; an older one is ended first, as by disconnect. The bytes
// are copied. With a `prove_deadline` that is not 0 the peer's proof block is fetched and checked until then. Events: CONNECTED, and if
// that says BT_OK and proof was asked, PROVED, unless LOST comes before it. BT_ERR_INVALID: longer than BT_TRANSFER_DESCRIPTION_MAX.
// BT_ERR_BUSY: many connections are being ended; try again later.
bt_err bt_plane_connect(bt_plane *plane, uint32_t peer, uint64_t epoch, const void *description, uint32_t bytes,
                        bt_time prove_deadline);
// Ends the connection; nothing more is heard of it but the FETCHED of what was in progress (BT_ERR_CLOSED). Without one: nothing happens.
void bt_plane_disconnect(bt_plane *plane, uint32_t peer);
// Has the peer a connection to the program `epoch` that was neither refused nor lost nor ended, as far as events were taken?
bool bt_plane_connected(const bt_plane *plane, uint32_t peer, uint64_t epoch);

// Fetches blocks, copied from `blocks`, as bt_transfer_fetch does. BT_OK: exactly one FETCHED with this `user` follows, and until it is
// taken the landing blocks belong to the fetch. When the peer is not connected, or is another program than `epoch`, that says BT_ERR_PEER.
// Refused, with no event to follow: BT_ERR_BUSY when fetches_max are out, BT_ERR_INVALID for 0 blocks or more than fetch_blocks_max.
// `user`: unique among the fetches that are out. Deadlines are on bt_time_now's clock.
bt_err bt_plane_fetch(bt_plane *plane, uint32_t peer, uint64_t epoch, const bt_transfer_block *blocks, uint32_t count,
                      bt_time deadline, uint64_t user);
// Ends it early: its FETCHED comes as ever, with BT_ERR_CANCELLED unless it was done. Unknown `user`: nothing happens.
void bt_plane_cancel(bt_plane *plane, uint64_t user);

typedef enum { BT_PLANE_CONNECTED, BT_PLANE_PROVED, BT_PLANE_FETCHED, BT_PLANE_LOST } bt_plane_event_kind;

typedef struct {
    bt_plane_event_kind kind;
    uint32_t peer;
    uint64_t epoch;          // as it was asked
    uint64_t user;           // FETCHED
    bt_err err;              // CONNECTED, with why in the log; PROVED; FETCHED: see bt_transfer_event
    bt_transfer_cause cause; // PROVED, FETCHED
    uint32_t good;           // FETCHED: so many of its first blocks are here and good
    bt_time took;            // PROVED, FETCHED: from when it was asked
    // PROVED:
    bt_transfer_path path;
    char transport[64];
    double gb_per_s;
} bt_plane_event;

// Takes the next event; false when there is none. A CONNECTED with an error and LOST end the connection: the peer may be connected anew.
bool bt_plane_next(bt_plane *plane, bt_plane_event *out);
// Is there one to take? An edge that left some for its next turn must not sleep.
bool bt_plane_pending(const bt_plane *plane);

// Copies for metrics, at most about a tenth of a second old.
typedef struct {
    bt_transfer_stats transfer; // bytes, rate (fetched_bytes / moving), failures by cause, what was served
    uint32_t fetches;           // asked and not yet taken
    uint32_t connected;         // peers
    uint64_t connects, refused; // descriptions that came, and those that did not fit
    uint64_t proved, proofs_failed;
    uint64_t lost;
    uint64_t strays;     // fetches from a peer that was not connected, or of another epoch
    bt_time cpu_time;    // of the plane's thread
    bt_time waited_most; // longest time a request lay in the queue before the thread took it
} bt_plane_stats;
void bt_plane_get_stats(const bt_plane *plane, bt_plane_stats *out);

typedef struct {
    uint64_t epoch;
    bt_transfer_peer_info transfer;
} bt_plane_peer;
// False: not connected.
bool bt_plane_get_peer(const bt_plane *plane, uint32_t peer, bt_plane_peer *out);
