#include "tests/model/prefill_world.h"

#include <stdio.h>
#include <string.h>

static bt_message
hello_of(bt_node_role role, const char *name, uint64_t epoch)
{
    bt_message message = {.kind = BT_MESSAGE_HELLO};

    message.hello = (bt_hello){.role = role,
                               .epoch = epoch,
                               .model = bt_engine_model(w.engine)->family,
                               .weights = bt_engine_model(w.engine)->digest,
                               .layout = bt_kv_layout_fingerprint(&layout),
                               .sequences = PROMPTS,
                               .blocks = PROMPTS * PROMPT_BLOCKS,
                               .block_tokens = BLOCK_TOKENS,
                               .context = CONTEXT};
    snprintf(message.hello.name, sizeof message.hello.name, "%s", name);
    return message;
}

bt_ticket
ticket_of(const reader *r, uint32_t q)
{
    return (bt_ticket){.epoch = r->epoch, .slot = q, .generation = 1, .layout = bt_kv_layout_fingerprint(&layout)};
}

void
describe(reader *r, uint64_t epoch)
{
    bt_message message = {.kind = BT_MESSAGE_DESCRIPTION};

    message.description = (bt_description){
        .epoch = epoch, .layout = bt_kv_layout_fingerprint(&layout), .blocks = PROMPTS * PROMPT_BLOCKS};
    message.description.bytes = bt_plane_description(r->plane, &message.description.byte_count);
    ck_assert_int_eq(bt_link_send(r->link, 0, &message), BT_OK);
}

static void
take(reader *r, uint32_t q)
{
    bt_message message = {.kind = BT_MESSAGE_TAKEN};

    message.taken = (bt_taken){.ticket = ticket_of(r, q), .block_count = prompts[q].landed};
    if (!r->silent && r->up)
        bt_link_send(r->link, 0, &message);
}

void
fetch(reader *r, uint32_t q, uint32_t first, uint32_t count)
{
    bt_transfer_block blocks[PROMPT_BLOCKS];

    for (uint32_t i = 0; i < count; i++)
        blocks[i] = (bt_transfer_block){prompts[q].offered[first + i].block, q * PROMPT_BLOCKS + first + i,
                                        prompts[q].offered[first + i].generation};
    ck_assert_int_eq(bt_plane_fetch(r->plane, 0, r->source, blocks, count, bt_time_now() + LONG, q), BT_OK);
}

static void
hear_offer(reader *r, const bt_offer *offer)
{
    prompt *p = &prompts[offer->ticket.slot];

    ck_assert_uint_eq(offer->ticket.epoch, r->epoch);
    ck_assert_uint_eq(offer->epoch, w.epoch);
    ck_assert_uint_eq(offer->first_position, p->offered_count * BLOCK_TOKENS);
    ck_assert_uint_le(p->offered_count + offer->block_count, PROMPT_BLOCKS);
    memcpy(p->offered + p->offered_count, offer->blocks, offer->block_count * sizeof *offer->blocks);
    p->offered_count += offer->block_count;
    p->offers++;
    p->last = offer->last;
    if (offer->has_token)
        p->offered_token = offer->token.id;
}

static void
hear_prefill_node(reader *r, const bt_message *message)
{
    if (message->kind == BT_MESSAGE_HELLO) {
        r->source = message->hello.epoch;
        describe(r, r->epoch);
    } else if (message->kind == BT_MESSAGE_DESCRIPTION) {
        const bt_description *d = &message->description;

        if (!bt_plane_connected(r->plane, 0, d->epoch))
            ck_assert_int_eq(bt_plane_connect(r->plane, 0, d->epoch, d->bytes, d->byte_count, bt_time_now() + LONG),
                             BT_OK);
    } else if (message->kind == BT_MESSAGE_OFFER) {
        hear_offer(r, &message->offer);
        fetch(r, message->offer.ticket.slot,
              prompts[message->offer.ticket.slot].offered_count - message->offer.block_count,
              message->offer.block_count);
    }
}

static void
hear_plane(reader *r)
{
    bt_plane_event event;

    while (bt_plane_next(r->plane, &event)) {
        if (event.kind == BT_PLANE_PROVED)
            r->proved = event.err == BT_OK;
        r->losses += event.kind == BT_PLANE_LOST;
        if (event.kind != BT_PLANE_FETCHED)
            continue;
        if (event.err == BT_OK) {
            prompts[event.user].landed += event.good;
            take(r, (uint32_t)event.user);
        } else {
            r->bad_fetches++;
            r->cause = event.cause;
        }
    }
}

void
ask(uint32_t q, const reader *r)
{
    static const bt_sampling greedy = {.top_p = 1, .repetition_penalty = 1};
    bt_message message = {.kind = BT_MESSAGE_PREFILL};
    prompt *p = &prompts[q];

    message.prefill = (bt_prefill){.job = {.request = {q, 1, 1},
                                           .ids = p->ids,
                                           .prompt_count = p->count,
                                           .max_tokens = 8,
                                           .sampling = &greedy,
                                           .time_left = BT_TIME_NEVER},
                                   .ticket = ticket_of(r, q)};
    snprintf(message.prefill.decode, sizeof message.prefill.decode, "%s", r->name);
    ck_assert_int_eq(bt_link_send(w.router, 0, &message), BT_OK);
}

static void
hear_tokens(const bt_tokens *tokens)
{
    for (uint32_t i = 0; i < tokens->entry_count; i++) {
        const bt_tokens_entry *entry = &tokens->entries[i];
        prompt *p = &prompts[entry->request.slot];

        ck_assert(!p->over);
        p->over = entry->finish != BT_FINISH_NONE;
        p->finish = entry->finish;
        p->err = entry->err;
        if (entry->count == 1)
            p->told_token = entry->results[0].id;
    }
}

void
hear_all(void)
{
    bt_link_event event;
    bt_message hello;

    while (w.router != NULL && bt_link_receive(w.router, &event)) {
        w.router_up = event.kind != BT_LINK_DOWN;
        if (event.kind == BT_LINK_UP) {
            hello = hello_of(BT_NODE_ROUTER, "r1", 900);
            bt_link_send(w.router, 0, &hello);
        } else if (event.kind == BT_LINK_MESSAGE && event.message->kind == BT_MESSAGE_TOKENS) {
            hear_tokens(&event.message->tokens);
        }
    }
    for (reader *r = w.readers; r < w.readers + READERS; r++) {
        while (r->link != NULL && bt_link_receive(r->link, &event)) {
            r->up = event.kind != BT_LINK_DOWN;
            if (event.kind == BT_LINK_UP) {
                hello = hello_of(BT_NODE_DECODE, r->name, r->epoch);
                bt_link_send(r->link, 0, &hello);
            } else if (event.kind == BT_LINK_MESSAGE) {
                hear_prefill_node(r, event.message);
            }
        }
        if (r->plane != NULL)
            hear_plane(r);
    }
}
