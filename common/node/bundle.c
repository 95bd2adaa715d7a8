#include "common/node/bundle.h"
#include "common/base/mem.h"

#include <assert.h>

typedef struct {
    bt_link link;
    uint32_t count, next; // next: whose turn it is to be heard
    bt_link *members[BT_BUNDLE_MAX];
} bundle;

// In turns, so that one member that always has something does not silence the others.
static bool
bundle_receive(bt_link *link, bt_link_event *out)
{
    bundle *self = (bundle *)link;

    for (uint32_t tried = 0; tried < self->count; tried++) {
        uint32_t peer = self->next;

        self->next = (self->next + 1) % self->count;
        if (bt_link_receive(self->members[peer], out)) {
            out->peer = peer;
            return true;
        }
    }
    return false;
}

static bt_err
bundle_send(bt_link *link, uint32_t peer, const bt_message *message)
{
    bundle *self = (bundle *)link;

    return peer < self->count ? bt_link_send(self->members[peer], 0, message) : BT_ERR_PEER;
}

static bool
bundle_pending(const bt_link *link)
{
    const bundle *self = (const bundle *)link;

    for (uint32_t i = 0; i < self->count; i++) {
        if (bt_link_pending(self->members[i]))
            return true;
    }
    return false;
}

static void
bundle_close(bt_link *link)
{
    bundle *self = (bundle *)link;

    for (uint32_t i = 0; i < self->count; i++)
        bt_link_close(self->members[i]);
    bt_free(self);
}

static const bt_link_ops bundle_ops = {bundle_receive, bundle_send, bundle_pending, bundle_close};

bt_err
bt_bundle_open(bt_link **out, bt_link *const *members, uint32_t count)
{
    bundle *self = bt_alloc(sizeof *self);

    assert(count >= 1 && count <= BT_BUNDLE_MAX);
    if (self == NULL)
        return BT_ERR_NO_MEMORY;
    self->link.ops = &bundle_ops;
    self->count = count;
    for (uint32_t i = 0; i < count; i++)
        self->members[i] = members[i];
    *out = &self->link;
    return BT_OK;
}
