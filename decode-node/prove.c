#include "decode-node/prove.h"
#include "common/base/log.h"
#include "common/base/mem.h"

#include <stdio.h>
#include <string.h>

#define PROVE_TIME (5 * BT_SECOND)
#define PAUSE_MIN (100 * BT_MILLISECOND)
#define PAUSE_MAX (5 * BT_SECOND)

bt_err
bt_prove_init(bt_prove *self, bt_plane *plane, bt_link *link, const bt_decode_limits *limits, uint32_t count)
{
    *self = (bt_prove){.plane = plane, .link = link, .limits = limits};
    if (plane == NULL || count == 0)
        return BT_OK;
    self->nodes = bt_alloc_array(count, sizeof *self->nodes);
    if (self->nodes == NULL)
        return BT_ERR_NO_MEMORY;
    self->count = count;
    for (uint32_t i = 0; i < count; i++)
        self->nodes[i].retry = BT_TIME_NEVER;
    return BT_OK;
}

void
bt_prove_fini(bt_prove *self)
{
    bt_free(self->nodes);
    *self = (bt_prove){0};
}

void
bt_prove_up(bt_prove *self, uint32_t peer)
{
    if (peer < self->count)
        self->nodes[peer].linked = true;
}

// The core knows by itself that nothing comes from there now.
void
bt_prove_down(bt_prove *self, uint32_t peer)
{
    bt_prove_node *node = peer < self->count ? &self->nodes[peer] : NULL;

    if (node == NULL)
        return;
    node->linked = node->refused = node->told = false;
    node->epoch = 0;
    node->retry = BT_TIME_NEVER;
}

// The first field in which a prefill node does not suit, and both values; what explains most comes first. False: it does.
static bool
is_misfit(const bt_decode_limits *ours, const bt_hello *theirs, char *words, size_t bytes)
{
    const struct {
        const char *name;
        uint64_t is, expected;
    } digests[] = {{"model (its source, and what its cache holds)", theirs->model, ours->model},
                   {"weights", theirs->weights, ours->prompt_weights},
                   {"kv layout", theirs->layout, ours->layout}};

    if (theirs->kv_format != 0 && theirs->kv_format != ours->kv_format)
        return snprintf(words, bytes, "kv.format is %s, expected %s", bt_kv_format_name(theirs->kv_format - 1),
                        bt_kv_format_name(ours->kv_format - 1)) > 0;
    if (theirs->block_tokens != ours->block_tokens)
        return snprintf(words, bytes, "kv.block_tokens is %u, expected %u", theirs->block_tokens, ours->block_tokens) >
               0;
    for (size_t i = 0; i < sizeof digests / sizeof *digests; i++) {
        if (digests[i].is != digests[i].expected)
            return snprintf(words, bytes, "%s is %016llx, expected %016llx", digests[i].name,
                            (unsigned long long)digests[i].is, (unsigned long long)digests[i].expected) > 0;
    }
    return false;
}

static bool
describe(bt_prove *self, uint32_t peer)
{
    bt_message ours = {.kind = BT_MESSAGE_DESCRIPTION};

    ours.description =
        (bt_description){.epoch = self->limits->epoch, .layout = self->limits->layout, .blocks = self->limits->blocks};
    ours.description.bytes = bt_plane_description(self->plane, &ours.description.byte_count);
    return bt_link_send(self->link, peer, &ours) == BT_OK;
}

static void
hear_hello(bt_prove *self, uint32_t peer, const bt_hello *hello)
{
    bt_prove_node *node = &self->nodes[peer];
    char words[160];

    if (hello->epoch == node->epoch)
        return; // it says so again
    memcpy(node->name, hello->name, sizeof node->name);
    node->epoch = hello->epoch;
    node->told = false;
    node->refused = hello->role != BT_NODE_PREFILL;
    if (node->refused) {
        bt_log_warn("SOURCE-REFUSED", "%s is dialled as a prefill node and is none", node->name);
        return;
    }
    node->refused = is_misfit(self->limits, hello, words, sizeof words);
    if (node->refused) {
        bt_log_warn("SOURCE-REFUSED", "prefill node %s: its %s", node->name, words);
        return;
    }
    if (!describe(self, peer))
        node->epoch = 0; // the link is about to go
}

static void
try_later(bt_prove_node *node, bt_time now)
{
    node->pause = node->pause == 0 ? PAUSE_MIN : node->pause < PAUSE_MAX / 2 ? 2 * node->pause : PAUSE_MAX;
    node->retry = now + node->pause;
}

static void
connect_to(bt_prove *self, bt_time now, uint32_t peer)
{
    bt_prove_node *node = &self->nodes[peer];

    node->retry = BT_TIME_NEVER;
    node->proved = false;
    node->connecting =
        bt_plane_connect(self->plane, peer, node->described, node->description, node->bytes, now + PROVE_TIME) == BT_OK;
    if (!node->connecting)
        try_later(node, now);
}

static void
hear_description(bt_prove *self, bt_time now, uint32_t peer, const bt_description *theirs)
{
    bt_prove_node *node = &self->nodes[peer];

    if (node->refused || theirs->epoch != node->epoch || theirs->byte_count > sizeof node->description)
        return;
    if (node->described == theirs->epoch && (node->connecting || node->proved) &&
        bt_plane_connected(self->plane, peer, theirs->epoch))
        return; // only the link was away
    if (theirs->byte_count != 0)
        memcpy(node->description, theirs->bytes, theirs->byte_count);
    node->bytes = theirs->byte_count;
    node->described = theirs->epoch;
    node->pause = 0;
    connect_to(self, now, peer);
}

void
bt_prove_hear(bt_prove *self, bt_time now, uint32_t peer, const bt_message *message)
{
    if (peer >= self->count)
        return;
    if (message->kind == BT_MESSAGE_HELLO)
        hear_hello(self, peer, &message->hello);
    else if (message->kind == BT_MESSAGE_DESCRIPTION)
        hear_description(self, now, peer, &message->description);
}

static void
hear_proof(bt_prove *self, bt_time now, bt_prove_node *node, const bt_plane_event *event)
{
    node->connecting = false;
    node->proved = event->err == BT_OK;
    if (!node->proved) {
        bt_log_info("SOURCE-UNPROVED", "prefill node %s: %s (%s)", node->name, bt_err_name(event->err),
                    bt_transfer_cause_name(event->cause));
        bt_plane_disconnect(self->plane, event->peer);
        try_later(node, now);
        return;
    }
    node->pause = 0;
    node->path = event->path;
    node->gb_per_s = event->gb_per_s;
    memcpy(node->transport, event->transport, sizeof node->transport);
    bt_log_info("SOURCE-READY", "prefill node %s: blocks come by %s over %s, %.2f GB/s", node->name,
                bt_transfer_path_name(node->path), node->transport, node->gb_per_s);
}

void
bt_prove_plane(bt_prove *self, bt_time now, const bt_plane_event *event)
{
    bt_prove_node *node = event->peer < self->count ? &self->nodes[event->peer] : NULL;

    if (node == NULL || event->epoch != node->described)
        return; // of a program before this one
    if (event->kind == BT_PLANE_PROVED) {
        hear_proof(self, now, node, event);
    } else if (event->kind == BT_PLANE_LOST || event->err != BT_OK) {
        node->connecting = node->proved = false;
        // What does not fit will not fit the next time.
        if (event->kind == BT_PLANE_LOST || (event->err != BT_ERR_INVALID && event->err != BT_ERR_UNSUPPORTED))
            try_later(node, now);
    }
}

bt_time
bt_prove_turn(bt_prove *self, bt_time now)
{
    bt_time next = BT_TIME_NEVER;

    for (uint32_t i = 0; i < self->count; i++) {
        bt_prove_node *node = &self->nodes[i];

        if (!node->linked || node->epoch != node->described)
            continue; // its description comes anew
        if (node->retry <= now) {
            (void)describe(self, i); // what broke here may have broken there, and who is not known there is not served
            connect_to(self, now, i);
        }
        next = node->retry < next ? node->retry : next;
    }
    return next;
}

bool
bt_prove_news(bt_prove *self, uint32_t *peer, uint64_t *epoch, bool *up)
{
    for (uint32_t i = 0; i < self->count; i++) {
        bt_prove_node *node = &self->nodes[i];
        bool ready = node->linked && node->proved && node->epoch == node->described;

        if (ready == node->told || node->epoch == 0)
            continue;
        node->told = ready;
        *peer = i;
        *epoch = node->epoch;
        *up = ready;
        return true;
    }
    return false;
}
