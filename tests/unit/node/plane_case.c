#include "tests/unit/node/plane_case.h"

#include "common/base/log.h"
#include "common/base/rng.h"
#include "common/kv/trailer.h"

#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

const bt_transfer_path paths[] = {BT_TRANSFER_PATH_AUTO, BT_TRANSFER_PATH_STREAM};
const char *library, *tls;
bt_kv_layout layout;
node owner, receiver;

static void
wake(void *arg)
{
    eventfd_write(((node *)arg)->woken, 1);
}

bt_plane_options
plane_options(node *n)
{
    return (bt_plane_options){
        .wake = wake, .wake_arg = n, .peers_max = PEERS, .fetches_max = FETCHES, .fetch_blocks_max = BLOCKS};
}

bt_transfer *
open_transfer(node *n, bt_transfer_path path, uint64_t epoch)
{
    bt_plane_options plane = plane_options(n);
    bt_transfer_options o = {.transport = library,
                             .tls = tls,
                             .epoch = epoch,
                             .layout = layout,
                             .blocks = BLOCKS,
                             .path = path,
                             .piece_bytes = 4 * layout.block_bytes,
                             .listen = "127.0.0.1:0"};
    bt_transfer *transfer;
    bt_why why = {{0}};

    bt_plane_size_transfer(&plane, &o);
    ck_assert_msg(bt_transfer_open(&transfer, &o, &why) == BT_OK, "%s", why.text);
    n->pool = bt_transfer_pool(transfer);
    n->epoch = epoch;
    return transfer;
}

void
open_node(node *n, bt_transfer_path path, uint64_t epoch)
{
    bt_plane_options o = plane_options(n);
    bt_why why = {{0}};

    n->woken = eventfd(0, EFD_NONBLOCK);
    ck_assert_msg(bt_plane_open(&n->plane, open_transfer(n, path, epoch), &o, &why) == BT_OK, "%s", why.text);
}

void
close_node(node *n)
{
    bt_plane_close(n->plane);
    close(n->woken);
    *n = (node){0};
}

void
write_blocks(node *n)
{
    for (uint32_t b = 0; b < BLOCKS; b++) {
        uint8_t *block = n->pool + b * layout.block_bytes;

        for (size_t i = 0; i < layout.trailer_offset; i += 8) {
            uint64_t word = bt_mix64(b * 1000003u + n->epoch * 77u + i);

            memcpy(block + i, &word, 8);
        }
        bt_kv_trailer_stamp(&layout, block, n->epoch, b + 1);
    }
}

void
open_both(bt_transfer_path path)
{
    bt_log_set_level(BT_LOG_ERROR);
    ck_assert_int_eq(bt_kv_layout_init(&layout, BT_KV_INT8, 4, 2, 64, 32, 64, NULL), BT_OK);
    open_node(&owner, path, 11);
    open_node(&receiver, path, 22);
    write_blocks(&owner);
}

void
close_both(void)
{
    close_node(&receiver);
    if (owner.plane != NULL)
        close_node(&owner);
    library = tls = NULL;
}

bool
event_within(node *n, bt_plane_event *out, bt_time wait)
{
    struct pollfd fd = {.fd = n->woken, .events = POLLIN};
    eventfd_t count;

    while (!bt_plane_next(n->plane, out)) {
        if (poll(&fd, 1, (int)(wait / BT_MILLISECOND)) != 1)
            return false;
        eventfd_read(n->woken, &count);
    }
    return true;
}

bt_plane_event
expect(node *n, bt_plane_event_kind kind, bt_err err)
{
    bt_plane_event event;

    ck_assert(event_within(n, &event, 20 * BT_SECOND));
    ck_assert_int_eq(event.kind, kind);
    ck_assert_str_eq(bt_err_name(event.err), bt_err_name(err));
    return event;
}

void
expect_silence(node *n, bt_time wait)
{
    bt_plane_event event;

    ck_assert(!event_within(n, &event, wait));
}

void
describe_to(node *from, node *to, uint32_t peer, bt_time prove)
{
    uint32_t bytes;
    const uint8_t *description = bt_plane_description(from->plane, &bytes);

    ck_assert_int_eq(bt_plane_connect(to->plane, peer, from->epoch, description, bytes, prove), BT_OK);
}

void
join(void)
{
    describe_to(&receiver, &owner, 0, 0);
    describe_to(&owner, &receiver, OWNER, SOON);
    expect(&owner, BT_PLANE_CONNECTED, BT_OK);
    expect(&receiver, BT_PLANE_CONNECTED, BT_OK);
    expect(&receiver, BT_PLANE_PROVED, BT_OK);
}

bt_err
fetch(uint32_t first, uint32_t count, uint64_t epoch, bt_time deadline, uint64_t user)
{
    bt_transfer_block blocks[BLOCKS + 1];

    for (uint32_t i = 0; i < count; i++)
        blocks[i] = (bt_transfer_block){(first + i) % BLOCKS, (first + i) % BLOCKS, (first + i) % BLOCKS + 1};
    return bt_plane_fetch(receiver.plane, OWNER, epoch, blocks, count, deadline, user);
}
