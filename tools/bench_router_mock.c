#include "tools/bench_router_mock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/net/nng_link.h"
#include "decode-node/core.h"

#include <stdio.h>
#include <unistd.h>

#define SLOTS 8192 // of routers
#define SEQUENCES 256

// A request as the node knows it: its place in the ledger, and since when it works on it.
typedef struct {
    uint64_t seed;
    bt_time since;
} visit;

typedef struct {
    bt_link *link;
    bt_decode_core *core;
    bt_decode_actions *actions;
    bt_turn turn;
    bt_mock_ledger *ledger;
    visit visits[SLOTS];
} mock_node;

static void
begin_visit(mock_node *n, const bt_message *m, bt_time now)
{
    const bt_request_id *id = m->kind == BT_MESSAGE_RESERVE ? &m->reserve.request
                              : m->kind == BT_MESSAGE_START ? &m->start.request
                                                            : NULL;
    visit *v;

    if (id == NULL || id->slot >= SLOTS)
        return;
    v = &n->visits[id->slot];
    v->since = now;
    if (m->kind == BT_MESSAGE_RESERVE)
        v->seed = m->reserve.sampling->seed;
}

static void
end_visit(mock_node *n, const bt_request_id *id, bt_time now)
{
    visit *v = id->slot < SLOTS ? &n->visits[id->slot] : NULL;

    if (v != NULL && v->since != 0 && v->seed < n->ledger->count)
        atomic_fetch_add(&n->ledger->spent[v->seed], now - v->since);
    if (v != NULL)
        v->since = 0;
}

static void
note_sent(mock_node *n, const bt_message *m)
{
    bt_time now = bt_time_now();

    if (m->kind == BT_MESSAGE_TICKET)
        end_visit(n, &m->ticket.request, now);
    for (uint32_t i = 0; m->kind == BT_MESSAGE_TOKENS && i < m->tokens.entry_count; i++) {
        if (m->tokens.entries[i].finish != BT_FINISH_NONE)
            end_visit(n, &m->tokens.entries[i].request, now);
    }
}

// An answer repeats the last token of its prompt: whatever the vocabulary, it is text that a user could have typed.
static void
answer(const bt_batch *batch)
{
    for (uint32_t i = 0; i < batch->count; i++) {
        const bt_batch_item *item = &batch->items[i];

        batch->result.drawn[i] = (bt_token_result){.id = item->ids[item->count - 1], .logprob = -1};
    }
}

static void
feed(mock_node *n, bt_time now, bt_decode_event event)
{
    for (;;) {
        bt_decode_core_step(n->core, now, &event, n->actions);
        for (uint32_t i = 0; i < n->actions->send_count; i++) {
            bt_link_send(n->link, n->actions->send[i].peer, &n->actions->send[i].message);
            note_sent(n, &n->actions->send[i].message);
        }
        if (n->actions->step == NULL)
            return;
        answer(n->actions->step);
        event = (bt_decode_event){.kind = BT_DECODE_STEPPED, .duration = BT_MICROSECOND};
    }
}

static bt_time
turn(void *self, bt_time now)
{
    mock_node *n = self;
    bt_link_event event;

    while (bt_link_receive(n->link, &event)) {
        bt_decode_event_kind kind = event.kind == BT_LINK_UP     ? BT_DECODE_LINK_UP
                                    : event.kind == BT_LINK_DOWN ? BT_DECODE_LINK_DOWN
                                                                 : BT_DECODE_MESSAGE;

        now = bt_time_now();
        if (event.kind == BT_LINK_MESSAGE)
            begin_visit(n, event.message, now);
        feed(n, now, (bt_decode_event){.kind = kind, .peer = event.peer, .message = event.message});
    }
    if (bt_decode_core_next_deadline(n->core) <= now)
        feed(n, now, (bt_decode_event){.kind = BT_DECODE_TICK});
    return bt_decode_core_next_deadline(n->core);
}

static bt_err
open_node(mock_node *n, bt_loop *loop, const bt_mock_options *o, uint32_t number, bt_why *why)
{
    const char *any = "tcp://127.0.0.1:0";
    bt_nng_link_options link = bt_nng_link_defaults();
    bt_decode_limits limits = {.epoch = number + 1,
                               .model = o->model,
                               .weights = o->weights,
                               .layout = o->layout,
                               .kv_format = o->kv_format,
                               .sequences = SEQUENCES,
                               .queue_max = SEQUENCES,
                               .chunk_tokens = 8192,
                               .blocks = 65536,
                               .block_tokens = 32,
                               .context = BT_MOCK_CONTEXT,
                               .vocab = o->vocab};
    bt_err err;

    snprintf(limits.name, sizeof limits.name, "mock%u", number);
    link.secret = o->secret;
    link.listen = &any;
    link.listen_count = 1;
    link.accepted_max = 4;
    n->ledger = o->ledger;
    n->turn = (bt_turn){.turn = turn, .self = n};
    n->actions = bt_alloc(sizeof *n->actions);
    if (n->actions == NULL || (err = bt_decode_core_open(&n->core, &limits, why)) != BT_OK)
        return n->actions == NULL ? bt_fail(why, BT_ERR_NO_MEMORY, "out of memory") : err;
    if ((err = bt_nng_link_open(&n->link, loop, &link, why)) == BT_OK)
        bt_loop_add_turn(loop, &n->turn);
    return err;
}

int
bt_mock_nodes_run(const bt_mock_options *o)
{
    static mock_node nodes[BT_MOCK_NODES_MAX];
    uint16_t ports[BT_MOCK_NODES_MAX];
    bt_loop *loop;
    bt_why why = {""};

    bt_log_set_level(BT_LOG_WARN);
    if (bt_loop_open(&loop) != BT_OK)
        return 1;
    for (uint32_t i = 0; i < o->count; i++) {
        if (open_node(&nodes[i], loop, o, i, &why) != BT_OK) {
            fprintf(stderr, "baton bench router: a mock node: %s\n", why.text);
            return 1;
        }
        ports[i] = bt_nng_link_port(nodes[i].link, 0);
    }
    if (write(o->ports_fd, ports, o->count * sizeof *ports) != (ssize_t)(o->count * sizeof *ports))
        return 1;
    bt_loop_run(loop);
    return 0;
}
