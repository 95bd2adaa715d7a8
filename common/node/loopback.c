// Each direction is a ring of bytes in which whole messages lie, never split: one that does not fit before the end starts anew at the
// front, and a record of length 0 tells the reader to follow it there.
//
//     | len message | len message | 0 ······ |        head: next to read     tail: next to write     used: bytes in between
//       ↑ head                    ↑ tail
//
// The record that was handed out stays in place until the next receive, as link.h promises.
#include "common/node/loopback.h"
#include "common/base/mem.h"

#include <assert.h>

#define RECORD_HEAD 16 // the length, padded so that messages stay aligned

typedef struct {
    uint8_t *bytes;
    size_t capacity, head, tail, used;
    size_t lent; // bytes of the record that the reader is looking at
} ring;

typedef struct loopback loopback;

typedef struct {
    bt_link link;
    loopback *pair;
    int side;
    bool open, told_up, told_down;
} end;

struct loopback {
    end ends[2];
    ring rings[2]; // rings[side]: what that side sends
};

static size_t
record_length(const ring *r, size_t at)
{
    return *(const size_t *)(const void *)(r->bytes + at);
}

static void
set_record_length(ring *r, size_t at, size_t length)
{
    *(size_t *)(void *)(r->bytes + at) = length;
}

// Where a record of `length` bytes may be written; SIZE_MAX when it does not fit. `skipped` are bytes lost at the end.
static size_t
find_place(const ring *r, size_t length, size_t *skipped)
{
    *skipped = 0;
    if (r->used == 0 || r->tail > r->head) {
        if (r->capacity - r->tail >= length)
            return r->tail;
        *skipped = r->capacity - r->tail;
        return r->head >= length || (r->used == 0 && r->capacity >= length) ? 0 : SIZE_MAX;
    }
    return r->tail < r->head && r->head - r->tail >= length ? r->tail : SIZE_MAX;
}

static void
advance_head(ring *r, size_t bytes)
{
    r->head += bytes;
    r->used -= bytes;
    if (r->head == r->capacity)
        r->head = 0;
    if (r->used == 0)
        r->head = r->tail = 0;
}

static void
give_back_lent(ring *r)
{
    if (r->lent > 0)
        advance_head(r, r->lent);
    r->lent = 0;
}

static bt_err
loopback_send(bt_link *link, uint32_t peer, const bt_message *message)
{
    end *self = (end *)link;
    ring *r = &self->pair->rings[self->side];
    size_t length = RECORD_HEAD + bt_message_size(message), skipped, place;
    size_t limit = message->kind == BT_MESSAGE_RESERVE ? r->capacity / 4 * 3 : r->capacity;

    if (peer != 0 || !self->pair->ends[!self->side].open)
        return BT_ERR_PEER;
    place = find_place(r, length, &skipped);
    if (place == SIZE_MAX || r->used + skipped + length > limit)
        return BT_ERR_BUSY;
    if (skipped > 0)
        set_record_length(r, r->tail, 0);
    set_record_length(r, place, length);
    bt_message_copy(r->bytes + place + RECORD_HEAD, message);
    r->tail = place + length == r->capacity ? 0 : place + length;
    r->used += skipped + length;
    return BT_OK;
}

static bool
receive_message(ring *r, bt_link_event *out)
{
    give_back_lent(r);
    if (r->used == 0)
        return false;
    if (record_length(r, r->head) == 0)
        advance_head(r, r->capacity - r->head);
    r->lent = record_length(r, r->head);
    *out = (bt_link_event){.kind = BT_LINK_MESSAGE,
                           .message = (const bt_message *)(const void *)(r->bytes + r->head + RECORD_HEAD)};
    return true;
}

static bool
loopback_receive(bt_link *link, bt_link_event *out)
{
    end *self = (end *)link;

    if (!self->told_up) {
        self->told_up = true;
        *out = (bt_link_event){.kind = BT_LINK_UP};
        return true;
    }
    if (receive_message(&self->pair->rings[!self->side], out))
        return true;
    if (!self->pair->ends[!self->side].open && !self->told_down) {
        self->told_down = true;
        *out = (bt_link_event){.kind = BT_LINK_DOWN};
        return true;
    }
    return false;
}

static bool
loopback_pending(const bt_link *link)
{
    const end *self = (const end *)link;
    const ring *r = &self->pair->rings[!self->side];

    return !self->told_up || r->used > r->lent || (!self->pair->ends[!self->side].open && !self->told_down);
}

static void
loopback_close(bt_link *link)
{
    end *self = (end *)link;
    loopback *pair = self->pair;

    self->open = false;
    if (pair->ends[!self->side].open)
        return;
    for (int i = 0; i < 2; i++)
        bt_free(pair->rings[i].bytes);
    bt_free(pair);
}

static const bt_link_ops loopback_ops = {loopback_receive, loopback_send, loopback_pending, loopback_close};

bt_err
bt_loopback_open(bt_link **a, bt_link **b, size_t bytes)
{
    loopback *pair = bt_alloc(sizeof *pair);

    if (pair == NULL)
        return BT_ERR_NO_MEMORY;
    for (int i = 0; i < 2; i++) {
        pair->ends[i] = (end){.link.ops = &loopback_ops, .pair = pair, .side = i, .open = true};
        pair->rings[i].capacity = bytes & ~(size_t)15;
        pair->rings[i].bytes = bt_alloc(pair->rings[i].capacity);
    }
    if (pair->rings[0].bytes == NULL || pair->rings[1].bytes == NULL) {
        pair->ends[1].open = false;
        loopback_close(&pair->ends[0].link);
        return BT_ERR_NO_MEMORY;
    }
    *a = &pair->ends[0].link;
    *b = &pair->ends[1].link;
    return BT_OK;
}
