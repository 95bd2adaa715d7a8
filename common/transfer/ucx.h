// The UCX transport's parts: ucx_open.c makes UCX ready; ucx.c connects, copies and gets; ucx_am.c asks and answers by active messages. Private to this folder.
// Nobody else includes UCX.
#pragma once

#include "common/transfer/impl.h"
#include "common/transfer/shared.h"

#include <ucp/api/ucp.h>

#define BT_UCX_TAG_BITS 12 // of a tag: the place; the others: which use of it
#define BT_UCX_TAGS_MAX (1u << BT_UCX_TAG_BITS)

typedef struct {
    uint32_t magic, tag;
    uint64_t identity; // of the receiver: who asks
    uint64_t epoch;    // of the owner: whom it asks
    uint32_t from, count;
} bt_ucx_request_header;

typedef struct {
    uint32_t magic, tag;
    uint64_t identity; // of the owner
    uint32_t err, count;
} bt_ucx_answer_header;

typedef struct {
    bool used, failed;
    ucp_ep_h ep;   // ours, NULL = closed
    ucp_ep_h back; // on which this peer's requests are answered; UCX made it, we close it
    ucp_rkey_h rkey;
    void *closing; // request of the close
    const uint8_t *direct;
    bt_shared_key direct_key;
    bt_transfer_path path;
    uint64_t identity, epoch, base;
    uint32_t serving; // answers that UCX has in hand
    char transport[64];
} bt_ucx_peer;

typedef struct bt_ucx bt_ucx;

// One answer of the owner's side.
typedef struct {
    enum { BT_UCX_FREE, BT_UCX_ASKED, BT_UCX_SENDING } state;
    bt_ucx *owner;
    uint32_t peer;
    ucp_ep_h ep;
    bt_ucx_request_header asked;
    bt_ucx_answer_header header; // UCX reads it until the send is over
} bt_ucx_answer;

struct bt_ucx {
    bt_transport base;
    bt_transfer_options o;
    ucp_context_h context;
    ucp_worker_h mouth, ear;
    ucp_mem_h memh;
    bt_shared pool;
    void *key;                            // UCX's
    uint8_t keys[BT_DESCRIPTION_KEY_MAX]; // shared.h's, then UCX's
    size_t key_bytes;
    ucp_address_t *address;
    size_t address_bytes;
    uint64_t identity;
    bt_ucx_peer *peers;
    bt_piece **tags; // [tag_count] pieces on the am path
    uint32_t *lives;
    bt_ucx_request_header *requests; // [tag_count]: UCX may read a request until its send is over
    uint32_t tag_count;
    bt_ucx_answer *answers;
    uint32_t answer_count;
    uint32_t arrived, asked, posted; // answers to receive, requests to answer, pieces in UCX's hands
    uint64_t served, served_bytes, serving_failed, refused;
    int fd;
};

bt_err bt_ucx_err_of(ucs_status_t status);
void bt_ucx_end_piece(bt_piece *piece, bt_err err);
uint8_t *bt_ucx_landing(const bt_ucx *u, const bt_piece *piece);
size_t bt_ucx_piece_bytes(const bt_ucx *u, const bt_piece *piece);
void bt_ucx_close_back(bt_ucx_peer *p);

// ucx_open.c: identity, options and tables are there. What it has made, after an error too, ucx.c closes.
bt_err bt_ucx_open_library(bt_ucx *u, size_t bytes, bt_why *why);
bt_err bt_ucx_fail(bt_why *why, bt_err err, const char *what, ucs_status_t status);

// ucx_am.c
ucs_status_t bt_ucx_listen(bt_ucx *u); // once, when there are workers
void bt_ucx_ask(bt_ucx *u, bt_ucx_peer *p, bt_piece *piece);
bool bt_ucx_drop(bt_transport *transport, bt_piece *piece);
// Pieces that UCX does not have in hand end at once; the others when it lets go of them.
void bt_ucx_end_waiting(bt_ucx *u, uint32_t slot, bt_err err);
void bt_ucx_act(bt_ucx *u); // on what the callbacks noted
