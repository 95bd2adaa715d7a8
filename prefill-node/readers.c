#include "prefill-node/readers.h"
#include "common/base/log.h"

#define NO_LINK UINT32_MAX

void
bt_readers_init(bt_readers *readers, bt_plane *plane, const bt_prefill_limits *limits)
{
    *readers = (bt_readers){.plane = plane, .model = limits->model, .layout = limits->layout, .lease = limits->lease};
}

void
bt_readers_lose(bt_readers *readers, bt_time now, uint32_t peer)
{
    readers->hello[peer] = 0;
    for (uint32_t i = 0; i < BT_PREFILL_PEERS_MAX; i++) {
        bt_reader *reader = &readers->readers[i];

        if (reader->epoch != 0 && reader->link == peer) {
            reader->link = NO_LINK;
            reader->until = now + readers->lease;
        }
    }
}

// The place of this program, or one that is free, or that of the program whose connection ends soonest. There are as many places as links.
static bt_reader *
place_for(bt_readers *readers, uint64_t epoch)
{
    bt_reader *best = NULL;

    for (uint32_t i = 0; i < BT_PREFILL_PEERS_MAX; i++) {
        bt_reader *reader = &readers->readers[i];

        if (reader->epoch == epoch)
            return reader;
        if (reader->epoch != 0 && reader->link != NO_LINK)
            continue;
        if (best == NULL || (best->epoch != 0 && (reader->epoch == 0 || reader->until < best->until)))
            best = reader;
    }
    return best;
}

static void
refuse(bt_readers *readers, uint32_t peer, const char *reason)
{
    readers->refused++;
    bt_log_warn("DESCRIPTION-REFUSED", "peer %u: %s", peer, reason);
}

static void
hear_description(bt_readers *readers, uint32_t peer, const bt_description *description)
{
    uint64_t epoch = description->epoch;
    bt_reader *reader;
    uint32_t place;

    if (epoch == 0 || epoch != readers->hello[peer]) {
        refuse(readers, peer, "of another epoch than the HELLO of a decode node with our model and layout");
        return;
    }
    if ((reader = place_for(readers, epoch)) == NULL) {
        refuse(readers, peer, "no place");
        return;
    }
    place = (uint32_t)(reader - readers->readers);
    *reader = (bt_reader){.epoch = epoch, .link = peer, .until = BT_TIME_NEVER};
    if (bt_plane_connected(readers->plane, place, epoch))
        return;
    if (bt_plane_connect(readers->plane, place, epoch, description->bytes, description->byte_count, 0) != BT_OK) {
        refuse(readers, peer, "too long, or too many at a time");
        *reader = (bt_reader){0};
    }
}

void
bt_readers_hear(bt_readers *readers, bt_time now, uint32_t peer, const bt_message *message)
{
    const bt_hello *hello = &message->hello;

    if (message->kind == BT_MESSAGE_DESCRIPTION) {
        hear_description(readers, peer, &message->description);
    } else if (message->kind == BT_MESSAGE_HELLO) {
        if (readers->hello[peer] != 0 && readers->hello[peer] != hello->epoch)
            bt_readers_lose(readers, now, peer);
        readers->hello[peer] =
            hello->role == BT_NODE_DECODE && hello->model == readers->model && hello->layout == readers->layout
                ? hello->epoch
                : 0;
    }
}

bt_time
bt_readers_turn(bt_readers *readers, bt_time now)
{
    bt_time next = BT_TIME_NEVER;
    bt_plane_event event;

    while (bt_plane_next(readers->plane, &event)) {
        bool over = event.kind == BT_PLANE_LOST || (event.kind == BT_PLANE_CONNECTED && event.err != BT_OK);

        if (over) // the program describes itself again when it is still there
            readers->readers[event.peer] = (bt_reader){0};
    }
    for (uint32_t i = 0; i < BT_PREFILL_PEERS_MAX; i++) {
        bt_reader *reader = &readers->readers[i];

        if (reader->epoch == 0 || reader->link != NO_LINK)
            continue;
        if (reader->until <= now) {
            bt_plane_disconnect(readers->plane, i);
            *reader = (bt_reader){0};
        } else if (reader->until < next) {
            next = reader->until;
        }
    }
    return next;
}

uint32_t
bt_readers_count(const bt_readers *readers)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < BT_PREFILL_PEERS_MAX; i++)
        count += readers->readers[i].epoch != 0;
    return count;
}
