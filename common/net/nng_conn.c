// A connection's life: it is dialled or accepted, greets, is up, and closes; what arrives on it is judged here.
//
//     dialled:   PAUSE → DIALS → GREETING → UP → PAUSE …
//     accepted:  FREE  →         GREETING → UP → FREE
#include "common/net/nng_impl.h"

#include "common/base/hash.h"
#include "common/base/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define GREETING_BYTES_MAX 256 // of a frame: who has not shown the secret fills no buffer

static bool
is_dialled(const bt_nng_conn *conn)
{
    return conn->url != NULL;
}

static void
who(const bt_nng_conn *conn, char *out, size_t bytes)
{
    if (is_dialled(conn))
        snprintf(out, bytes, "%s", conn->url);
    else
        bt_nng_stream_address(conn, out, bytes);
}

// ---- sending ----

static bool
send_msg(bt_nng_conn *conn, nng_msg *msg)
{
    bool sent = bt_nng_stream_send(conn, msg);

    conn->link->stats.frames_sent += sent;
    return sent;
}

static nng_msg *
copy_msg(nng_msg *msg)
{
    nng_msg *copy = NULL;

    if (nng_msg_alloc(&copy, nng_msg_len(msg)) == 0)
        memcpy(nng_msg_body(copy), nng_msg_body(msg), nng_msg_len(msg));
    return copy;
}

// Tests: the frame meets its fate after the sender has counted it.
static bool
send_by_fate(bt_nng_conn *conn, nng_msg *msg)
{
    bt_fate fate = conn->link->options.fate(conn->link->options.fate_self);
    nng_msg *twin = NULL, *late = conn->late;

    if (fate == BT_FATE_LATE && late == NULL) {
        conn->late = msg;
        return true;
    }
    if (fate == BT_FATE_DROP) {
        nng_msg_free(msg);
        return true;
    }
    if (fate == BT_FATE_TWICE)
        twin = copy_msg(msg);
    if (!send_msg(conn, msg)) {
        if (twin != NULL)
            nng_msg_free(twin);
        return false;
    }
    if (twin != NULL && !send_msg(conn, twin))
        nng_msg_free(twin);
    conn->late = NULL;
    if (late != NULL && !send_msg(conn, late))
        nng_msg_free(late);
    return true;
}

bool
bt_nng_conn_transmit(bt_nng_conn *conn, bt_frame_head head, nng_msg *msg)
{
    bool sent;

    head.length = (uint32_t)nng_msg_len(msg);
    bt_frame_write(&head, nng_msg_body(msg));
    sent =
        conn->link->options.fate != NULL && conn->state == BT_CONN_UP ? send_by_fate(conn, msg) : send_msg(conn, msg);
    if (sent)
        conn->said = bt_loop_now(conn->link->loop);
    return sent;
}

// Frames that nobody keeps for a second attempt: one that cannot go now is as good as lost, and the other side's patience ends.
static void
transmit_small(bt_nng_conn *conn, const bt_frame_head *head, const void *payload, size_t bytes)
{
    nng_msg *msg;

    if (nng_msg_alloc(&msg, BT_FRAME_HEAD_BYTES + bytes) != 0)
        return;
    if (bytes > 0)
        memcpy((uint8_t *)nng_msg_body(msg) + BT_FRAME_HEAD_BYTES, payload, bytes);
    if (!bt_nng_conn_transmit(conn, *head, msg))
        nng_msg_free(msg);
}

void
bt_nng_conn_ack(bt_nng_conn *conn)
{
    bt_frame_head head = bt_flow_ack(&conn->flow);

    transmit_small(conn, &head, NULL, 0);
}

// ---- closing ----

static void
rest(bt_nng_conn *conn, bt_time now)
{
    const bt_nng_link_options *options = &conn->link->options;
    uint32_t doublings = conn->failures < 16 ? conn->failures : 16;
    bt_time length = options->pause_min << doublings;

    if (length > options->pause_max)
        length = options->pause_max;
    conn->failures++;
    conn->state = BT_CONN_PAUSE;
    // Half of it by chance: a hundred peers of a node that has come back do not all knock at once.
    conn->until = now + length / 2 + (bt_time)bt_rng_below(&conn->link->rng, (uint64_t)(length / 2) + 1);
}

static void
forget(bt_nng_conn *conn)
{
    bt_nng_queue_clear(conn);
    memset(&conn->flow, 0, sizeof conn->flow);
    memset(&conn->nonces, 0, sizeof conn->nonces);
}

void
bt_nng_conn_close(bt_nng_conn *conn, bt_time now, const char *why)
{
    char name[128];

    if (conn->state == BT_CONN_FREE || conn->state == BT_CONN_PAUSE)
        return;
    who(conn, name, sizeof name);
    if (conn->state == BT_CONN_UP) {
        conn->link->stats.downs++;
        conn->lost = conn->told_up;
        bt_log_info("LINK-DOWN", "peer %u (%s): %s", conn->peer, name, why != NULL ? why : "closed");
    } else if (why != NULL && is_dialled(conn) && !conn->complained) {
        conn->complained = true;
        bt_log_warn("LINK-WAITS", "%s: %s; trying again", name, why);
    }
    bt_nng_stream_close(conn);
    if (is_dialled(conn))
        rest(conn, now);
    else
        conn->state = BT_CONN_FREE;
    forget(conn);
}

// Says so once an address: a stranger who knocks a thousand times fills no log. The stranger hears nothing.
static void
refuse(bt_nng_conn *conn, bt_time now, const char *why)
{
    bt_nng_link *link = conn->link;
    uint64_t hash;
    char name[128], *port;
    bool known = false;

    link->stats.refused++;
    if (is_dialled(conn)) {
        bt_nng_conn_close(conn, now, why);
        return;
    }
    who(conn, name, sizeof name);
    if ((port = strrchr(name, ':')) != NULL)
        *port = 0;
    hash = bt_hash_text(name, strlen(name));
    for (uint32_t i = 0; i < link->refused_count; i++)
        known |= link->refused[i] == hash;
    if (!known && link->refused_count < BT_NNG_REFUSED_LOGGED) {
        link->refused[link->refused_count++] = hash;
        bt_log_warn("LINK-REFUSED", "%s: %s; said once an address", name, why);
    }
    bt_nng_conn_close(conn, now, NULL);
}

// ---- greeting ----

bt_nng_conn *
bt_nng_conn_find_free(bt_nng_link *link)
{
    for (uint32_t i = link->options.dial_count; i < link->conn_count; i++) {
        bt_nng_conn *conn = &link->conns[i];

        if (conn->state == BT_CONN_FREE && !conn->told_up)
            return conn;
    }
    return NULL;
}

void
bt_nng_conn_added(bt_nng_conn *conn, bt_time now)
{
    bt_frame_head head = {.kind = BT_FRAME_GREET};

    conn->state = BT_CONN_GREETING;
    conn->heard = conn->said = now;
    conn->until = now + conn->link->options.greeting_max;
    conn->awaited = is_dialled(conn) ? BT_FRAME_CHALLENGE : BT_FRAME_GREET;
    if (is_dialled(conn))
        transmit_small(conn, &head, NULL, 0);
}

static void
come_up(bt_nng_conn *conn)
{
    char name[128];

    conn->state = BT_CONN_UP;
    conn->failures = 0;
    conn->complained = false;
    conn->link->stats.ups++;
    who(conn, name, sizeof name);
    bt_log_info("LINK-UP", "peer %u (%s)", conn->peer, name);
}

static bool
answer_greet(bt_nng_conn *conn, size_t bytes)
{
    bt_frame_head head = {.kind = BT_FRAME_CHALLENGE};

    if (bytes != 0 || bt_nonce_draw(conn->nonces.listener) != BT_OK)
        return false;
    conn->awaited = BT_FRAME_PROOF;
    transmit_small(conn, &head, conn->nonces.listener, BT_NONCE_BYTES);
    return true;
}

static bool
answer_challenge(bt_nng_conn *conn, const uint8_t *payload, size_t bytes)
{
    bt_frame_head head = {.kind = BT_FRAME_PROOF};
    uint8_t proof[BT_NONCE_BYTES + BT_MAC_BYTES];

    if (bytes != BT_NONCE_BYTES || bt_nonce_draw(conn->nonces.dialer) != BT_OK)
        return false;
    memcpy(conn->nonces.listener, payload, BT_NONCE_BYTES);
    memcpy(proof, conn->nonces.dialer, BT_NONCE_BYTES);
    if (bt_mac_make(proof + BT_NONCE_BYTES, conn->link->options.secret, BT_SIDE_DIALER, &conn->nonces) != BT_OK)
        return false;
    conn->awaited = BT_FRAME_WELCOME;
    transmit_small(conn, &head, proof, sizeof proof);
    return true;
}

static bool
answer_proof(bt_nng_conn *conn, const uint8_t *payload, size_t bytes)
{
    bt_frame_head head = {.kind = BT_FRAME_WELCOME};
    const char *secret = conn->link->options.secret;
    uint8_t mac[BT_MAC_BYTES];

    if (bytes != BT_NONCE_BYTES + BT_MAC_BYTES)
        return false;
    memcpy(conn->nonces.dialer, payload, BT_NONCE_BYTES);
    if (bt_mac_make(mac, secret, BT_SIDE_DIALER, &conn->nonces) != BT_OK || !bt_mac_is(mac, payload + BT_NONCE_BYTES) ||
        bt_mac_make(mac, secret, BT_SIDE_LISTENER, &conn->nonces) != BT_OK)
        return false;
    transmit_small(conn, &head, mac, sizeof mac);
    come_up(conn);
    return true;
}

static bool
take_welcome(bt_nng_conn *conn, const uint8_t *payload, size_t bytes)
{
    uint8_t mac[BT_MAC_BYTES];

    if (bytes != BT_MAC_BYTES ||
        bt_mac_make(mac, conn->link->options.secret, BT_SIDE_LISTENER, &conn->nonces) != BT_OK ||
        !bt_mac_is(mac, payload))
        return false;
    come_up(conn);
    return true;
}

static void
greet(bt_nng_conn *conn, const bt_frame_head *head, const uint8_t *payload, size_t bytes, bt_time now)
{
    bool good = head->kind == conn->awaited;

    switch (good ? head->kind : 0) {
    case BT_FRAME_GREET:
        good = answer_greet(conn, bytes);
        break;
    case BT_FRAME_CHALLENGE:
        good = answer_challenge(conn, payload, bytes);
        break;
    case BT_FRAME_PROOF:
        good = answer_proof(conn, payload, bytes);
        break;
    case BT_FRAME_WELCOME:
        good = take_welcome(conn, payload, bytes);
        break;
    default:
        good = false;
    }
    if (!good)
        refuse(conn, now, "does not know the cluster's secret");
}

// ---- frames ----

static void
keep(bt_nng_conn *conn, const uint8_t *bytes, size_t length, bt_time now)
{
    nng_msg *msg;

    if (nng_msg_alloc(&msg, length) != 0) {
        bt_nng_conn_close(conn, now, "no memory for a message");
        return;
    }
    memcpy(nng_msg_body(msg), bytes, length);
    conn->unread[(conn->unread_first + conn->unread_count++) % BT_FLOW_WINDOW] = msg;
}

static void
judge(bt_nng_conn *conn, const bt_frame_head *head, const uint8_t *bytes, bt_time now)
{
    switch (bt_flow_receive(&conn->flow, head)) {
    case BT_FLOW_NEW:
        keep(conn, bytes + BT_FRAME_HEAD_BYTES, head->length - BT_FRAME_HEAD_BYTES, now);
        break;
    case BT_FLOW_NOTHING:
        break;
    case BT_FLOW_DUPLICATE:
        conn->link->stats.duplicates++;
        break;
    case BT_FLOW_BROKEN:
        conn->link->stats.gaps++;
        bt_nng_conn_close(conn, now, "a frame was lost on the way");
        return;
    }
    bt_nng_queue_pump(conn);
}

size_t
bt_nng_conn_frame(bt_nng_conn *conn, const uint8_t *bytes, size_t length, bt_time now)
{
    size_t max = conn->state == BT_CONN_UP ? conn->link->options.frame_bytes_max : GREETING_BYTES_MAX;
    uint32_t tag = conn->tag;
    bt_frame_head head;
    bt_err err = bt_frame_read(&head, bytes, length);

    conn->heard = now;
    if (err == BT_ERR_INVALID || (err == BT_OK && head.length > max)) {
        conn->link->stats.foreign++;
        refuse(conn, now, "speaks another protocol");
        return 0;
    }
    if (err != BT_OK || head.length > length)
        return 0;
    conn->link->stats.frames_received++;
    if (conn->state == BT_CONN_GREETING)
        greet(conn, &head, bytes + BT_FRAME_HEAD_BYTES, head.length - BT_FRAME_HEAD_BYTES, now);
    else
        judge(conn, &head, bytes, now);
    return conn->tag == tag ? head.length : 0;
}

void
bt_nng_conn_tick(bt_nng_conn *conn, bt_time now)
{
    const bt_nng_link_options *options = &conn->link->options;

    switch (conn->state) {
    case BT_CONN_FREE:
        break;
    case BT_CONN_PAUSE:
        if (now >= conn->until) {
            conn->state = BT_CONN_DIALS;
            bt_nng_stream_dial(conn);
        }
        break;
    case BT_CONN_DIALS:
        break; // nng's own deadline
    case BT_CONN_GREETING:
        if (now >= conn->until)
            refuse(conn, now, "did not finish the greeting");
        break;
    case BT_CONN_UP:
        if (now - conn->heard >= options->silence_max) {
            bt_nng_conn_close(conn, now, "silent for too long");
        } else {
            bt_nng_queue_pump(conn);
            if (now - conn->said >= options->silence_max / 6)
                bt_nng_conn_ack(conn);
        }
        break;
    }
}
