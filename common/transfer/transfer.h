// The KV data plane: one node's memory of blocks, and fetching blocks out of other nodes' memories into it.
//
//     owner of blocks                                        receiver
//       open: pool memory, epoch                               open
//       describe ───────── opaque bytes, by the control plane ──▶ connect          once per (peer, epoch), in both directions
//       connect  ◀──────────────────────────────────────────── describe
//                                                              prove: fetches the owner's proof block; then the peer is ready
//       take, clear, write, stamp a block
//       ─ ─ OFFER [block, generation] … (control plane) ─ ─ ▶  fetch [from, to, generation] …, poll until its event
//       holds the blocks until TAKEN or the end of its lease   checks trailer and checksum of each block as it lands
//
// The receiver drives (DESIGN 1.8): nobody writes into another's memory. Transports and the paths by which a peer's blocks come:
//
//     host      direct  shared memory of the same host, mapped read-only: our own copy, which computes the checksum as it goes. The owner
//                       takes no part, and may be stopped or dead: its memory stays until we let go of it.
//               stream  a socket: a request, answered in order straight out of the pool, read straight into the landing blocks while
//                       someone waits for them. The owner must poll.
//     ucx       direct  as above
//               get     one-sided reads of UCX (RDMA, cuda_ipc, cma)
//               am      a request, answered by an active-message rendezvous into landing blocks that are posted after the tag was
//                       checked. Not for tcp among processes that may die: UCX 1.13 aborts with them (README.md).
//     cuda      direct  pools in GPUs' memory: the owner's is opened (CUDA IPC) and read over NVLink, or within one GPU; sums are taken on the
//                       receiver's GPU. The owner takes no part, and may be stopped or dead, as with shared memory. One host.
//     loopback  direct  one process: tests, and the simulator with its faults
//
// A landing block belongs to the fetch until its event comes: BT_TRANSFER_FETCHED with whatever `err` means that no operation of ours
// touches it any more. It always comes: at the latest soon after the deadline (an operation that can only be ended by closing the
// peer's endpoint closes it: the peer is then lost). A GPU's copy in flight is waited for, which takes a millisecond.
//
// Threads: a bt_transfer belongs to one thread, the node's transfer thread, which calls everything here; others post to its mailbox
// (common/net/mailbox.h). `poll` copies at most `turn_bytes` a call, so that deadlines and peers that ask are served in between. The bytes
// of the pool are of whoever holds the blocks. Everything of ours is allocated at open and at connect (UCX allocates by itself, within
// what the limits let it have in flight).
// With a pool on a device, open and close are called while nobody else uses the device: open takes memory of it.
// Time is passed in; host and ucx also read the clock, to measure how long operations take.
#pragma once

#include "common/base/err.h"
#include "common/base/time.h"
#include "common/kv/layout.h"
#include "common/kv/pool.h"
#include "kernels/device.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BT_TRANSFER_DESCRIPTION_MAX 4096 // bytes
#define BT_TRANSFER_PEERS_MAX 1024
#define BT_TRANSFER_PEER_NONE UINT32_MAX

// Where the pool's bytes lie: this process's memory, or a GPU's. What two GPUs cannot read from each other (connect says so) goes by host
// pools, which are another bt_transfer.
typedef enum { BT_TRANSFER_HOST, BT_TRANSFER_CUDA } bt_transfer_memory;

typedef enum {
    BT_TRANSFER_PATH_AUTO,
    BT_TRANSFER_PATH_DIRECT,
    BT_TRANSFER_PATH_STREAM,
    BT_TRANSFER_PATH_GET,
    BT_TRANSFER_PATH_AM
} bt_transfer_path;
const char *bt_transfer_path_name(bt_transfer_path path);

// How a GPU copies (kernels/copier.h): AUTO = in one pass by a kernel within one GPU, by copy engine and then sums from another one.
typedef enum { BT_TRANSFER_COPIES_AUTO, BT_TRANSFER_COPIES_BY_KERNEL, BT_TRANSFER_COPIES_BY_ENGINE } bt_transfer_copies;

// What the loopback transport shall do wrong: the simulator's faults. Asked once for each operation on adjacent blocks.
typedef enum {
    BT_TRANSFER_FAULT_NONE,
    BT_TRANSFER_FAULT_DELAY, // done `delay` later; the copy happens then
    BT_TRANSFER_FAULT_ERROR, // BT_ERR_PEER, with half of the bytes copied
    BT_TRANSFER_FAULT_NEVER, // no completion before the peer is disconnected
    BT_TRANSFER_FAULT_FLIP,  // done, with one byte changed
    BT_TRANSFER_FAULT_EMPTY, // done, and nothing was copied: success reported by a dead peer
} bt_transfer_fault;
typedef bt_transfer_fault bt_transfer_draw(void *self, uint32_t peer, uint32_t from, uint32_t count, bt_time *delay);

typedef struct {
    const char *transport; // "host", "cuda", "ucx", "loopback"; NULL = host or cuda, by memory
    uint64_t epoch;        // of this program, not 0
    bt_kv_layout layout;   // must be equal at both ends
    uint32_t blocks;
    bt_transfer_memory memory;
    bt_device *device;         // CUDA: whose memory it is; stays open until close
    uint32_t peers_max;        // 0 = 64
    uint32_t fetches_max;      // in progress at once; 0 = 64
    uint32_t fetch_blocks_max; // of one fetch; 0 = 1024
    uint32_t window;           // operations in flight a peer; 0 = 4, of a GPU 16
    size_t piece_bytes;        // longest operation, at least a block; 0 = 16 MiB, of a GPU 64 MiB
    size_t turn_bytes;         // that a poll copies itself; 0 = 8 MiB
    bool no_checksum;          // check only names: for measuring, and for those who trust their memory
    const char *listen;        // host: "HOST:PORT" for streams; NULL = all addresses, any port
    bt_transfer_copies copies; // cuda: another than AUTO for tests and measuring
    // ucx:
    const char *tls, *net_devices; // as UCX_TLS and UCX_NET_DEVICES; NULL = the environment's, or all
    bt_transfer_path path;         // AUTO, or one for all peers (tests, measuring)
    // loopback:
    bt_transfer_draw *draw; // NULL = no faults
    void *draw_self;
} bt_transfer_options;

typedef struct bt_transfer bt_transfer;

// BT_ERR_UNSUPPORTED names a transport that is not built in, or memory that cannot be served. Registering takes about 1–2 s a GiB.
bt_err bt_transfer_open(bt_transfer **out, const bt_transfer_options *options, bt_why *why);
// NULL is fine. Peers see a dead owner; fetches in progress end without events.
void bt_transfer_close(bt_transfer *transfer);

// Bytes that a pool takes: its blocks, and two more for the proof.
static inline size_t
bt_transfer_pool_bytes(size_t block_bytes, uint32_t blocks)
{
    return ((size_t)blocks + 2) * block_bytes;
}

// The blocks: block b at b · layout.block_bytes, zeroed, at a 64-byte boundary, good until close. Of a GPU: addresses there; blocks are
// cleared and stamped by a bt_copier (kernels/copier.h).
uint8_t *bt_transfer_pool(bt_transfer *transfer);

// What peers need to know to fetch from here; the same bytes for all of them, at most BT_TRANSFER_DESCRIPTION_MAX. BT_ERR_TOO_LONG when
// `capacity` is less than needed.
bt_err bt_transfer_describe(bt_transfer *transfer, void *out, size_t capacity, size_t *bytes);

// Makes a peer of whoever wrote the description; both sides connect before either fetches. BT_ERR_INVALID names what is wrong with it
// (damaged, another format), BT_ERR_UNSUPPORTED the field in which the two differ (transport, layout, version; of GPUs: host, PID
// namespace, user, GPU), BT_ERR_BUSY when peers_max are there, BT_ERR_PEER when it cannot be reached. The bytes come from a peer that the control plane has authenticated: damage is
// refused here, malice is not promised to be.
bt_err bt_transfer_connect(bt_transfer *transfer, const void *description, size_t bytes, uint32_t *peer, bt_why *why);
// Ends what is in progress with this peer: events of its fetches still come, with BT_ERR_CLOSED. The number is not used again before
// that. Also for a peer that was lost. Connecting again needs a description of the peer's new epoch or of the same one, no matter. By
// a stream the peer loses its connection to us as well, and serves us again when it has connected anew too.
void bt_transfer_disconnect(bt_transfer *transfer, uint32_t peer);

typedef struct {
    bt_block from, to; // the owner's block, and ours
    uint64_t generation;
} bt_transfer_block;

// Begins to fetch blocks, in the order given; the array is copied. Neighbours adjacent on both sides travel as one operation. BT_ERR_BUSY
// when fetches_max are in progress, BT_ERR_PEER when the peer is not up, BT_ERR_INVALID for a block outside of either pool or too many.
// `user` returns with the event. Deadlines should grow with the bytes; BT_TIME_NEVER is allowed only where the caller cancels.
bt_err bt_transfer_fetch(bt_transfer *transfer, uint32_t peer, const bt_transfer_block *blocks, uint32_t count,
                         bt_time deadline, uint64_t user);
// Ends the fetch early: its event comes as ever, with BT_ERR_CANCELLED unless it was done. Unknown `user`: nothing happens.
void bt_transfer_cancel(bt_transfer *transfer, uint64_t user);

// The self-test: fetches the peer's proof block (a real block of its memory, stamped at its open) eight times and checks it. Ends in
// a BT_TRANSFER_PROVED event; the peer's info then has path and GB/s. Takes one of fetches_max.
bt_err bt_transfer_prove(bt_transfer *transfer, uint32_t peer, bt_time deadline, uint64_t user);

typedef enum { BT_TRANSFER_FETCHED, BT_TRANSFER_PROVED, BT_TRANSFER_LOST } bt_transfer_event_kind;

typedef enum {
    BT_TRANSFER_CAUSE_NONE,
    BT_TRANSFER_CAUSE_EPOCH, // the trailer's: written by another program
    BT_TRANSFER_CAUSE_GENERATION,
    BT_TRANSFER_CAUSE_CHECKSUM,
    BT_TRANSFER_CAUSE_TIMEOUT,
    BT_TRANSFER_CAUSE_PEER,    // gone, or its transport failed
    BT_TRANSFER_CAUSE_REFUSED, // the owner said no
    BT_TRANSFER_CAUSE_ENDED,   // cancelled or disconnected by us
    BT_TRANSFER_CAUSES
} bt_transfer_cause;
const char *bt_transfer_cause_name(bt_transfer_cause cause);

typedef struct {
    bt_transfer_event_kind kind;
    uint32_t peer;
    uint64_t user; // FETCHED, PROVED
    // BT_OK: all blocks are here and good. TIMEOUT, CANCELLED, CLOSED; PEER: lost, refused, or a bad block; DEVICE: our own GPU has failed
    bt_err err;
    bt_transfer_cause cause;
    // The first `good` blocks of the fetch landed and passed; those after are not to be trusted: fetch again from there, or move on.
    uint32_t good;
} bt_transfer_event;

// Drives everything: progress, the owner's side too. Fills at most `max` events (the rest come with the next call) and returns how many.
// LOST comes once a peer, when its transport says so, after which fetches from it end with BT_ERR_PEER and the owner of this object
// disconnects it. A dead process is noticed at once (host) or by UCX's keep-alive of 1 s; a stopped one is not.
uint32_t bt_transfer_poll(bt_transfer *transfer, bt_time now, bt_transfer_event *events, uint32_t max);

// Sleeping: watch `fd` for reading (-1: nothing to watch, poll by time), and sleep only after `arm` said true; false means that there is
// something to do at once. Also wake at `next_deadline`.
int bt_transfer_fd(const bt_transfer *transfer);
bool bt_transfer_arm(bt_transfer *transfer);
bt_time bt_transfer_next_deadline(const bt_transfer *transfer);

typedef struct {
    uint64_t epoch;
    uint32_t blocks;
    bool up;               // false: lost
    bool proved;           // the last proof succeeded
    bt_transfer_path path; // how blocks come from this peer
    char transport[64];    // as the library names it: "posix", "tcp/eth0"
    double gb_per_s;       // of the last proof (its fastest round)
    uint64_t bytes;        // fetched from it
} bt_transfer_peer_info;
bt_err bt_transfer_peer(const bt_transfer *transfer, uint32_t peer, bt_transfer_peer_info *out); // BT_ERR_NOT_FOUND

typedef struct {
    uint32_t peers, fetches, operations; // now; operations: in flight
    // Since open, as receiver:
    uint64_t fetched_blocks, fetched_bytes, fetches_done, fetches_failed, operations_done;
    uint64_t failures[BT_TRANSFER_CAUSES];
    bt_time moving; // durations of all operations added up: fetched_bytes / moving is the rate of one
    // As owner, where the owner takes part (am):
    uint64_t served_bytes, served, serving_failed,
        refused; // refused: requests beyond window, blocks or epoch, or from strangers
} bt_transfer_stats;
void bt_transfer_get_stats(const bt_transfer *transfer, bt_transfer_stats *out);
