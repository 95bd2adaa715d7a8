#include "tests/unit/decode/node_case.h"

#include <check.h>
#include <stdlib.h>

bt_decode_core *core;
bt_decode_actions *acts;
const bt_batch *running;
bt_time now;
fake_engine engine;

static const bt_sampling sampling = {.repetition_penalty = 1, .seed = 11};
static int32_t counting[64];

void
case_open(bt_decode_limits limits)
{
    bt_why why;

    limits.epoch = 7;
    limits.context = 64;
    limits.vocab = CASE_VOCAB;
    limits.block_tokens = 4;
    limits.sequences = limits.sequences != 0 ? limits.sequences : 2;
    limits.queue_max = limits.queue_max != 0 ? limits.queue_max : 2;
    limits.chunk_tokens = limits.chunk_tokens != 0 ? limits.chunk_tokens : 16;
    limits.blocks = limits.blocks != 0 ? limits.blocks : 32;
    for (int i = 0; i < 64; i++)
        counting[i] = 1 + i % (CASE_VOCAB - 1);
    acts = calloc(1, sizeof *acts);
    running = NULL;
    now = BT_SECOND;
    engine = (fake_engine){.blocks = limits.blocks,
                           .block_tokens = 4,
                           .vocab = CASE_VOCAB,
                           .sequences = limits.sequences,
                           .chunk_tokens = limits.chunk_tokens,
                           .logit_rows = limits.logit_rows != 0 ? limits.logit_rows : limits.sequences};
    fake_engine_init(&engine);
    ck_assert_msg(bt_decode_core_open(&core, &limits, &why) == BT_OK, "%s", why.text);
}

void
case_close(void)
{
    bt_decode_core_close(core);
    fake_engine_fini(&engine);
    free(acts);
}

void
feed(const bt_decode_event *event)
{
    bt_why why;

    bt_decode_core_step(core, now, event, acts);
    if (acts->step != NULL) {
        ck_assert_ptr_null(running);
        running = acts->step;
    }
    ck_assert_msg(bt_decode_core_sound(core, &why), "%s", why.text);
}

void
tick(void)
{
    feed(&(bt_decode_event){.kind = BT_DECODE_TICK});
}

void
meet(uint32_t peer)
{
    bt_message hello = {.kind = BT_MESSAGE_HELLO, .hello = {.role = BT_NODE_ROUTER, .epoch = 3}};

    feed(&(bt_decode_event){.kind = BT_DECODE_LINK_UP, .peer = peer});
    feed(&(bt_decode_event){.kind = BT_DECODE_MESSAGE, .peer = peer, .message = &hello});
}

bt_job
a_job(uint32_t slot, uint32_t prompt_count, uint32_t max_tokens)
{
    return (bt_job){.request = {slot, 1, 1},
                    .ids = counting,
                    .prompt_count = prompt_count,
                    .max_tokens = max_tokens,
                    .sampling = &sampling,
                    .time_left = BT_TIME_NEVER};
}

static void
hear(uint32_t peer, const bt_message *message)
{
    feed(&(bt_decode_event){.kind = BT_DECODE_MESSAGE, .peer = peer, .message = message});
}

void
reserve(uint32_t peer, const bt_job *job)
{
    bt_message message = {.kind = BT_MESSAGE_RESERVE, .reserve = *job};

    hear(peer, &message);
}

void
start(uint32_t peer, const bt_ticket_reply *ticket)
{
    bt_message message = {.kind = BT_MESSAGE_START, .start = {ticket->request, ticket->ticket}};

    hear(peer, &message);
}

void
abort_request(uint32_t peer, uint32_t slot)
{
    bt_message message = {.kind = BT_MESSAGE_ABORT, .abort = {{slot, 1, 1}}};

    hear(peer, &message);
}

bt_ticket_reply
begin(uint32_t peer, const bt_job *job)
{
    bt_ticket_reply ticket;

    reserve(peer, job);
    ck_assert_ptr_nonnull(find_ticket(job->request.slot));
    ticket = *find_ticket(job->request.slot);
    ck_assert_int_eq(ticket.err, BT_OK);
    start(peer, &ticket);
    return ticket;
}

void
finish_step(void)
{
    const bt_batch *batch = running;

    ck_assert_ptr_nonnull(batch);
    fake_engine_step(&engine, batch->items, batch->count, &batch->result);
    running = NULL;
    feed(&(bt_decode_event){.kind = BT_DECODE_STEPPED});
}

const bt_ticket_reply *
find_ticket(uint32_t slot)
{
    for (uint32_t i = 0; i < acts->send_count; i++) {
        const bt_message *message = &acts->send[i].message;

        if (message->kind == BT_MESSAGE_TICKET && message->ticket.request.slot == slot)
            return &message->ticket;
    }
    return NULL;
}

const bt_tokens_entry *
find_entry(uint32_t slot)
{
    for (uint32_t i = 0; i < acts->send_count; i++) {
        const bt_message *message = &acts->send[i].message;

        for (uint32_t e = 0; message->kind == BT_MESSAGE_TOKENS && e < message->tokens.entry_count; e++) {
            if (message->tokens.entries[e].request.slot == slot)
                return &message->tokens.entries[e];
        }
    }
    return NULL;
}

const bt_batch_item *
find_item(uint32_t prompt_count)
{
    for (uint32_t i = 0; running != NULL && i < running->count; i++) {
        if (running->items[i].prompt_count == prompt_count)
            return &running->items[i];
    }
    return NULL;
}

bt_decode_stats
stats(void)
{
    bt_decode_stats s;

    bt_decode_core_get_stats(core, &s);
    ck_assert_int_eq(s.leak, 0);
    return s;
}

void
expect_idle(void)
{
    bt_decode_stats s = stats();

    ck_assert_uint_eq(s.waiting + s.granted + s.prefilling + s.decoding + s.ending, 0);
    ck_assert_uint_eq(s.blocks_free + s.blocks_cached, s.blocks);
    ck_assert_uint_eq(s.blocks_promised, 0);
}
