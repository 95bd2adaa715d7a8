#include "tests/model/prefill_world.h"

#include "common/base/log.h"

#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

world w;

// ---- a link that loses what it is told to ----

static bool
picky_receive(bt_link *link, bt_link_event *out)
{
    picky_link *picky = (picky_link *)link;

    if (picky->down != NOBODY) {
        *out = (bt_link_event){.kind = BT_LINK_DOWN, .peer = picky->down};
        picky->down = NOBODY;
        return true;
    }
    return bt_link_receive(picky->under, out);
}

static bt_err
picky_send(bt_link *link, uint32_t peer, const bt_message *message)
{
    picky_link *picky = (picky_link *)link;

    if (picky->refuses == message->kind) {
        picky->refuses = BT_MESSAGE_NONE;
        picky->down = picky->then_down ? peer : NOBODY;
        return BT_ERR_NO_MEMORY;
    }
    return bt_link_send(picky->under, peer, message);
}

static bool
picky_pending(const bt_link *link)
{
    return bt_link_pending(((const picky_link *)link)->under);
}

static void
picky_close(bt_link *link)
{
    bt_link_close(((picky_link *)link)->under);
}

static const bt_link_ops picky_ops = {
    .receive = picky_receive, .send = picky_send, .pending = picky_pending, .close = picky_close};

// ---- the rest ----

void
wake(void *arg)
{
    eventfd_write(*(int *)arg, 1);
}

static void
on_wake(void *self, uint32_t events)
{
    eventfd_t count;

    (void)self, (void)events;
    eventfd_read(w.wakes, &count);
}

void
turn(void)
{
    bt_time now = bt_time_now(), next = bt_prefill_node_turn(w.node, now);

    hear_all();
    bt_loop_once(w.loop, next <= now ? 0 : next - now < 2 * BT_MILLISECOND ? next - now : 2 * BT_MILLISECOND);
}

void
turn_for(bt_time span)
{
    for (bt_time until = bt_time_now() + span; bt_time_now() < until;)
        turn();
}

static bt_nng_link_options
link_options(void)
{
    bt_nng_link_options options = bt_nng_link_defaults();

    options.secret = "a secret";
    options.silence_max = LONG; // a crowded machine stops for seconds
    options.pause_min = BT_MILLISECOND;
    options.pause_max = 20 * BT_MILLISECOND;
    return options;
}

bt_link *
dial(void)
{
    bt_nng_link_options options = link_options();
    bt_nng_peer peer = {w.url, NULL};
    bt_link *link;
    bt_why why;

    options.accepted_max = 0;
    options.dial = &peer;
    options.dial_count = 1;
    ck_assert_msg(bt_nng_link_open(&link, w.loop, &options, &why) == BT_OK, "%s", why.text);
    return link;
}

void
open_link(void)
{
    const char *any = "tcp://127.0.0.1:0";
    bt_nng_link_options options = link_options();
    bt_why why;

    options.listen = &any;
    options.listen_count = 1;
    w.link = (picky_link){.link.ops = &picky_ops, .down = NOBODY};
    ck_assert_msg(bt_nng_link_open(&w.link.under, w.loop, &options, &why) == BT_OK, "%s", why.text);
    snprintf(w.url, sizeof w.url, "tcp://127.0.0.1:%u", bt_nng_link_port(w.link.under, 0));
}

void
open_prefill(uint64_t epoch, uint32_t blocks)
{
    bt_plane_options plane = plane_options(BT_PREFILL_PEERS_MAX);
    bt_prefill_node_options options = {.name = "p1",
                                       .epoch = epoch,
                                       .max_sequences = 4,
                                       .chunk_tokens = 40,
                                       .prompts = PROMPTS,
                                       .lease = LEASE,
                                       .wake = wake,
                                       .wake_arg = &w.wakes};
    bt_why why;

    w.epoch = epoch;
    w.engine = open_engine(blocks, true);
    plane.wake = wake;
    plane.wake_arg = &w.wakes;
    ck_assert_msg(bt_plane_open(&w.plane, w.transfer, &plane, &why) == BT_OK, "%s", why.text);
    ck_assert_msg(bt_prefill_node_open(&w.node, &options, w.engine, &w.link.link, w.plane, &why) == BT_OK, "%s",
                  why.text);
}

void
close_prefill(void)
{
    bt_prefill_node_close(w.node);
    bt_engine_close(w.engine);
    bt_plane_close(w.plane);
}

void
open_reader(reader *r, uint64_t epoch)
{
    bt_plane_options plane = plane_options(1);
    bt_transfer_options o = {
        .epoch = epoch, .layout = layout, .blocks = PROMPTS * PROMPT_BLOCKS, .path = w.path, .listen = "127.0.0.1:0"};
    bt_transfer *transfer;
    bt_why why;

    *r = (reader){.epoch = epoch};
    snprintf(r->name, sizeof r->name, "d%d", (int)(r - w.readers));
    plane.wake = wake;
    plane.wake_arg = &w.wakes;
    bt_plane_size_transfer(&plane, &o);
    ck_assert_msg(bt_transfer_open(&transfer, &o, &why) == BT_OK, "%s", why.text);
    r->pool = bt_transfer_pool(transfer);
    ck_assert_msg(bt_plane_open(&r->plane, transfer, &plane, &why) == BT_OK, "%s", why.text);
    r->link = dial();
}

void
close_reader(reader *r)
{
    bt_link_close(r->link);
    bt_plane_close(r->plane);
    *r = (reader){0};
}

void
open_world_as(bt_transfer_path path, uint32_t blocks, pools_case pools)
{
    bt_log_set_level(BT_LOG_ERROR);
    memset(&w, 0, sizeof w);
    w.path = path;
    w.pools = pools;
    w.wakes = eventfd(0, EFD_NONBLOCK);
    w.watch = (bt_watch){.ready = on_wake};
    draw_prompts();
    ck_assert_int_eq(bt_loop_open(&w.loop), BT_OK);
    ck_assert_int_eq(bt_loop_watch(w.loop, &w.watch, w.wakes, EPOLLIN), BT_OK);
    open_link();
    open_prefill(77, blocks);
    w.router = dial();
    for (uint32_t i = 0; i < READERS; i++)
        open_reader(&w.readers[i], 500 + i);
    TURN_UNTIL(w.router_up && w.readers[0].proved && w.readers[1].proved);
}

void
open_world(bt_transfer_path path, uint32_t blocks)
{
    open_world_as(path, blocks, POOL_PLAIN);
}

void
close_world(void)
{
    for (uint32_t i = 0; i < READERS; i++)
        close_reader(&w.readers[i]);
    bt_link_close(w.router);
    close_prefill();
    bt_link_close(&w.link.link);
    bt_loop_close(w.loop);
    close(w.wakes);
    free_prompts();
}
