// The prefill node's core: packing, stamping, offering, holding, and every way a prompt can end.
#include "common/base/mem.h"
#include "prefill-node/core.h"
#include "tests/support/fake_engine.h"
#include "tests/support/test.h"

#include <stdlib.h>
#include <string.h>

#define VOCAB 50
#define ROUTER 0u
#define DECODE 1u
#define BLOCKS_MAX 64

static bt_prefill_core *core;
static bt_prefill_actions *acts;
static const bt_batch *running;
static bt_time now;
static fake_engine engine;
static int32_t counting[64];
static uint64_t stamped[BLOCKS_MAX]; // generation, 0 = not stamped

static const bt_sampling sampling = {.repetition_penalty = 1, .seed = 11};
static const uint8_t words[5] = "pool";

// Plays the edge: nothing may be offered that is not stamped as the offer says, nothing stamped is written to.
static void
carry_out(void)
{
    for (uint32_t i = 0; i < acts->stamp_count; i++)
        stamped[acts->stamps[i].block] = acts->stamps[i].generation;
    for (uint32_t i = 0; i < acts->send_count; i++) {
        const bt_message *message = &acts->send[i].message;

        ck_assert_int_eq(bt_message_check(message), BT_OK);
        for (uint32_t b = 0; message->kind == BT_MESSAGE_OFFER && b < message->offer.block_count; b++)
            ck_assert_uint_eq(stamped[message->offer.blocks[b].block], message->offer.blocks[b].generation);
    }
    for (uint32_t i = 0; i < acts->clear_count; i++)
        stamped[acts->clears[i]] = 0;
    if (acts->step == NULL)
        return;
    ck_assert_ptr_null(running);
    running = acts->step;
    for (uint32_t i = 0; i < running->count; i++) {
        const bt_batch_item *item = &running->items[i];

        for (uint32_t p = item->position; p < item->position + item->count; p++)
            ck_assert_uint_eq(stamped[item->blocks[p / 4]], 0);
    }
}

static void
feed(const bt_prefill_event *event)
{
    bt_why why;

    bt_prefill_core_step(core, now, event, acts);
    carry_out();
    ck_assert_msg(bt_prefill_core_sound(core, &why), "%s", why.text);
}

static void
tick(void)
{
    feed(&(bt_prefill_event){.kind = BT_PREFILL_TICK});
}

static void
hear(uint32_t peer, bt_message message)
{
    feed(&(bt_prefill_event){.kind = BT_PREFILL_MESSAGE, .peer = peer, .message = &message});
}

static void
meet(uint32_t peer, bt_node_role role, uint64_t epoch)
{
    feed(&(bt_prefill_event){.kind = BT_PREFILL_LINK_UP, .peer = peer});
    hear(peer, (bt_message){.kind = BT_MESSAGE_HELLO,
                            .hello = {.name = "d1", .role = role, .epoch = epoch, .model = 1, .layout = 2}});
}

static void
open_with(bt_prefill_limits limits)
{
    bt_why why;

    limits.epoch = 7;
    limits.model = 1;
    limits.layout = 2;
    limits.context = 64;
    limits.vocab = VOCAB;
    limits.block_tokens = 4;
    limits.sequences = limits.sequences != 0 ? limits.sequences : 4;
    limits.prompts = limits.prompts != 0 ? limits.prompts : 4;
    limits.chunk_tokens = limits.chunk_tokens != 0 ? limits.chunk_tokens : 8;
    limits.blocks = limits.blocks != 0 ? limits.blocks : 32;
    limits.description = words;
    limits.description_bytes = sizeof words;
    for (int i = 0; i < 64; i++)
        counting[i] = 1 + i % (VOCAB - 1);
    memset(stamped, 0, sizeof stamped);
    acts = calloc(1, sizeof *acts);
    running = NULL;
    now = BT_SECOND;
    engine = (fake_engine){.blocks = limits.blocks,
                           .block_tokens = 4,
                           .vocab = VOCAB,
                           .sequences = limits.sequences,
                           .chunk_tokens = limits.chunk_tokens,
                           .logit_rows = limits.logit_rows != 0 ? limits.logit_rows : limits.sequences};
    fake_engine_init(&engine);
    ck_assert_msg(bt_prefill_core_open(&core, &limits, &why) == BT_OK, "%s", why.text);
    meet(ROUTER, BT_NODE_ROUTER, 3);
    meet(DECODE, BT_NODE_DECODE, 9);
}

static void
setup(void)
{
    open_with((bt_prefill_limits){0});
}

static void
teardown(void)
{
    bt_prefill_core_close(core);
    fake_engine_fini(&engine);
    free(acts);
}

static bt_prefill
a_prompt(uint32_t slot, uint32_t count)
{
    return (bt_prefill){.job = {.request = {slot, 1, 1},
                                .ids = counting,
                                .prompt_count = count,
                                .max_tokens = 4,
                                .sampling = &sampling,
                                .time_left = BT_TIME_NEVER},
                        .ticket = {.epoch = 9, .slot = slot, .generation = 1, .layout = 2},
                        .decode = "d1"};
}

static void
ask(bt_prefill prefill)
{
    hear(ROUTER, (bt_message){.kind = BT_MESSAGE_PREFILL, .prefill = prefill});
}

static void
taken(uint32_t slot, uint32_t blocks, bt_err err)
{
    hear(DECODE, (bt_message){.kind = BT_MESSAGE_TAKEN,
                              .taken = {.ticket = {9, slot, 1, 2}, .block_count = blocks, .err = err}});
}

static void
finish_step(bt_err err)
{
    const bt_batch *batch = running;

    ck_assert_ptr_nonnull(batch);
    fake_engine_step(&engine, batch->items, batch->count, &batch->result);
    running = NULL;
    now += BT_MILLISECOND;
    feed(&(bt_prefill_event){.kind = BT_PREFILL_STEPPED, .err = err});
}

static const bt_offer *
find_offer(uint32_t slot)
{
    for (uint32_t i = 0; i < acts->send_count; i++) {
        if (acts->send[i].message.kind == BT_MESSAGE_OFFER && acts->send[i].message.offer.ticket.slot == slot) {
            ck_assert_uint_eq(acts->send[i].peer, DECODE);
            return &acts->send[i].message.offer;
        }
    }
    return NULL;
}

static const bt_tokens_entry *
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

static bt_prefill_stats
stats(void)
{
    bt_prefill_stats s;

    bt_prefill_core_get_stats(core, &s);
    ck_assert_int_eq(s.leak, 0);
    return s;
}

static void
expect_idle(void)
{
    bt_prefill_stats s = stats();

    ck_assert_uint_eq(s.waiting + s.reading + s.holding + s.ending, 0);
    ck_assert_uint_eq(s.blocks_free + s.blocks_cached, s.blocks);
    ck_assert_ptr_null(running);
}

START_TEST(a_decode_node_is_told_how_to_read_the_pool)
{
    ck_assert_int_eq(acts->send[0].message.kind, BT_MESSAGE_HELLO);
    ck_assert_int_eq(acts->send[0].message.hello.role, BT_NODE_PREFILL);
    ck_assert_int_eq(acts->send[1].message.kind, BT_MESSAGE_DESCRIPTION);
    ck_assert_uint_eq(acts->send[1].message.description.byte_count, sizeof words);
    ck_assert_uint_eq(acts->send[1].message.description.blocks, 32);
}
END_TEST

START_TEST(a_decode_node_of_another_layout_is_refused)
{
    feed(&(bt_prefill_event){.kind = BT_PREFILL_LINK_UP, .peer = 2});
    hear(2, (bt_message){.kind = BT_MESSAGE_HELLO,
                         .hello = {.name = "d2", .role = BT_NODE_DECODE, .epoch = 5, .model = 1, .layout = 3}});
    ck_assert_uint_eq(stats().refused_peers, 1);
    ck_assert_uint_eq(acts->send_count, 1); // a HELLO in which it sees why
}
END_TEST

START_TEST(a_prompt_is_offered_chunk_by_chunk_while_it_is_read)
{
    const bt_offer *offer;
    const bt_tokens_entry *entry;

    ask(a_prompt(1, 18)); // chunks of 8, 8, 2
    ck_assert_ptr_null(find_offer(1));
    finish_step(BT_OK);
    offer = find_offer(1);
    ck_assert(offer != NULL && offer->first_position == 0 && offer->token_count == 8 && offer->block_count == 2);
    ck_assert(!offer->last && offer->epoch == 7 && find_entry(1) == NULL);
    finish_step(BT_OK);
    offer = find_offer(1);
    ck_assert(offer->first_position == 8 && offer->token_count == 8 && !offer->last);
    finish_step(BT_OK);
    offer = find_offer(1);
    ck_assert(offer->first_position == 16 && offer->token_count == 2 && offer->block_count == 1);
    ck_assert(offer->last && offer->has_token);
    ck_assert_int_eq(offer->token.id, fake_engine_draw(counting, 18, 11, VOCAB).id);
    entry = find_entry(1);
    ck_assert(entry != NULL && entry->finish == BT_FINISH_LENGTH && entry->first == 0 && entry->count == 1);
    ck_assert_int_eq(entry->results[0].id, offer->token.id);
    ck_assert_int_eq(entry->phases.prefill, 3 * BT_MILLISECOND);
}
END_TEST

START_TEST(an_end_is_told_by_the_clients_name_and_hits_travel_with_the_last_offer)
{
    bt_prefill prefill = a_prompt(1, 10);

    strcpy(prefill.job.name, "chat:77");
    ask(prefill);
    while (find_offer(1) == NULL || !find_offer(1)->last)
        finish_step(BT_OK);
    ck_assert_uint_eq(find_offer(1)->cached_tokens, 0);
    taken(1, 3, BT_OK);
    ck_assert_uint_eq(acts->ended_count, 1);
    ck_assert_str_eq(acts->ended[0].name, "chat:77");
    ck_assert(acts->ended[0].finish == BT_FINISH_LENGTH && acts->ended[0].computed_tokens == 10);
    prefill.job.request.slot = prefill.ticket.slot = 2;
    ask(prefill); // two blocks of it are known by now
    while (find_offer(2) == NULL || !find_offer(2)->last)
        finish_step(BT_OK);
    ck_assert_uint_eq(find_offer(2)->cached_tokens, 8);
    ck_assert_uint_eq(find_entry(2)->cached_tokens, 8);
    taken(2, 0, BT_ERR_CANCELLED);
    ck_assert(acts->ended_count == 1 && acts->ended[0].finish == BT_FINISH_ERROR);
    ck_assert(acts->ended[0].cached_tokens == 8 && acts->ended[0].computed_tokens == 2);
}
END_TEST

START_TEST(blocks_are_held_until_all_are_taken)
{
    ask(a_prompt(1, 7));
    finish_step(BT_OK);
    taken(1, 1, BT_OK);
    ck_assert_uint_eq(stats().holding, 1);
    taken(1, 2, BT_OK);
    ck_assert_uint_eq(stats().taken, 1);
    expect_idle();
}
END_TEST

START_TEST(more_taken_than_offered_is_a_bad_message)
{
    ask(a_prompt(1, 7));
    finish_step(BT_OK);
    taken(1, 3, BT_OK);
    ck_assert_uint_eq(stats().bad_messages, 1);
    ck_assert_uint_eq(stats().holding, 1);
    taken(2, 1, BT_OK); // of nobody
    ck_assert_uint_eq(stats().late_messages, 1);
}
END_TEST

START_TEST(what_the_decode_node_has_is_not_offered)
{
    bt_prefill prompt = a_prompt(1, 14);
    const bt_offer *offer;

    prompt.cached_tokens = 12;
    ask(prompt);
    finish_step(BT_OK); // 8 tokens, all there already
    ck_assert_ptr_null(find_offer(1));
    finish_step(BT_OK);
    offer = find_offer(1);
    ck_assert(offer->first_position == 12 && offer->token_count == 2 && offer->block_count == 1 && offer->last);
    taken(1, 1, BT_OK);
    expect_idle();
}
END_TEST

START_TEST(a_prefix_found_here_is_offered_at_once)
{
    const bt_offer *offer;

    ask(a_prompt(1, 8));
    finish_step(BT_OK);
    taken(1, 2, BT_OK);
    ask(a_prompt(2, 10));
    offer = find_offer(2);
    ck_assert(offer != NULL && offer->first_position == 0 && offer->block_count == 2 && !offer->last);
    finish_step(BT_OK);
    ck_assert(find_offer(2)->last);
    ck_assert_int_eq(find_offer(2)->token.id, fake_engine_draw(counting, 10, 11, VOCAB).id);
    ck_assert_uint_eq(find_entry(2)->cached_tokens, 8);
    ck_assert_uint_eq(stats().prompt_tokens, 10);
}
END_TEST

START_TEST(several_prompts_share_a_step_shortest_first)
{
    ask(a_prompt(1, 30));
    ask(a_prompt(2, 3));
    ask(a_prompt(3, 4));
    finish_step(BT_OK); // the long one's first chunk, begun alone
    ck_assert_uint_eq(running->count, 3);
    ck_assert_uint_eq(running->items[0].prompt_count, 3);
    ck_assert_uint_eq(running->items[1].prompt_count, 4);
    ck_assert_uint_eq(running->items[2].count, 1);
    finish_step(BT_OK);
    ck_assert(find_offer(2)->last && find_offer(3)->last);
}
END_TEST

START_TEST(a_long_prompt_is_not_overtaken_for_ever)
{
    uint32_t slot = 1;

    ask(a_prompt(0, 40));
    for (int step = 0; step < 40; step++) {
        ask(a_prompt(slot++, 7));
        finish_step(BT_OK);
        for (uint32_t s = 1; s < slot; s++) {
            if (find_offer(s) != NULL && find_offer(s)->last)
                taken(s, 2, BT_OK);
        }
        if (stats().read > 0 && find_offer(0) != NULL && find_offer(0)->last)
            return;
    }
    ck_abort_msg("the long prompt starved");
}
END_TEST

START_TEST(a_replayed_answer_draws_no_token_here)
{
    bt_prefill prompt = a_prompt(1, 6);

    prompt.job.answer_count = 2;
    ask(prompt);
    ck_assert_int_eq(running->items[0].want, BT_LOGITS_NONE);
    finish_step(BT_OK);
    ck_assert(find_offer(1)->last && !find_offer(1)->has_token);
    ck_assert(find_offer(1)->token_count == 6 && find_entry(1)->count == 0);
}
END_TEST

START_TEST(a_prompt_is_scored_where_that_is_asked_for)
{
    bt_prefill prompt = a_prompt(1, 6);
    uint32_t next = 1;

    prompt.job.prompt_logprobs = true;
    ask(prompt);
    while (running != NULL) {
        const bt_tokens_entry *entry;

        finish_step(BT_OK);
        entry = find_entry(1);
        ck_assert_uint_eq(entry->scored_first, next);
        for (uint32_t i = 0; i < entry->scored_count; i++, next++)
            ck_assert(entry->scored[i].logprob == fake_engine_score(counting, next, counting[next]).logprob);
    }
    ck_assert_uint_eq(next, 6);
}
END_TEST

START_TEST(an_abort_while_reading_ends_within_the_chunk)
{
    ask(a_prompt(1, 30));
    hear(ROUTER, (bt_message){.kind = BT_MESSAGE_ABORT, .abort = {{1, 1, 1}}});
    ck_assert_int_eq(find_entry(1)->finish, BT_FINISH_CANCELLED);
    ck_assert_uint_eq(stats().ending, 1);
    ask(a_prompt(2, 5));
    finish_step(BT_OK);
    ck_assert_ptr_null(find_offer(1));
    ck_assert(running->count == 1 && running->items[0].prompt_count == 5);
    ck_assert_uint_eq(stats().ending, 0);
}
END_TEST

START_TEST(an_abort_ends_the_hold_at_once)
{
    ask(a_prompt(1, 7));
    finish_step(BT_OK);
    hear(ROUTER, (bt_message){.kind = BT_MESSAGE_ABORT, .abort = {{1, 1, 1}}});
    expect_idle();
    ck_assert_ptr_null(find_entry(1)); // its one entry was sent before
}
END_TEST

START_TEST(an_abort_while_waiting_for_blocks_lets_the_next_one_in)
{
    teardown();
    open_with((bt_prefill_limits){.blocks = 4});
    ask(a_prompt(1, 14));
    ask(a_prompt(2, 14));
    ask(a_prompt(3, 4));
    ck_assert_uint_eq(stats().waiting, 2); // nobody overtakes
    hear(ROUTER, (bt_message){.kind = BT_MESSAGE_ABORT, .abort = {{2, 1, 1}}});
    finish_step(BT_OK);
    finish_step(BT_OK);
    taken(1, 4, BT_OK);
    finish_step(BT_OK);
    ck_assert(find_offer(3)->last);
    taken(3, 1, BT_OK);
    expect_idle();
}
END_TEST

START_TEST(a_decode_node_that_says_no_frees_the_prompt_and_the_router_hears)
{
    ask(a_prompt(1, 30));
    finish_step(BT_OK);
    taken(1, 0, BT_ERR_CANCELLED);
    ck_assert_int_eq(find_entry(1)->finish, BT_FINISH_ERROR);
    ck_assert_int_eq(find_entry(1)->err, BT_ERR_PEER);
    finish_step(BT_OK);
    expect_idle();
}
END_TEST

START_TEST(a_lease_ends_without_heartbeats_though_nothing_else_happens)
{
    ask(a_prompt(1, 7));
    finish_step(BT_OK);
    for (int i = 0; i < 31; i++) {
        now += BT_SECOND;
        hear(ROUTER, (bt_message){.kind = BT_MESSAGE_HEARTBEAT});
    }
    expect_idle();
    ck_assert_uint_eq(stats().expired, 1);
}
END_TEST

START_TEST(heartbeats_renew_the_lease_up_to_the_longest_hold)
{
    ask(a_prompt(1, 7));
    finish_step(BT_OK);
    for (int i = 0; i < 299; i++) {
        now += BT_SECOND;
        hear(DECODE, (bt_message){.kind = BT_MESSAGE_HEARTBEAT});
        ck_assert_uint_eq(stats().holding, 1);
    }
    now += 2 * BT_SECOND;
    tick();
    expect_idle();
}
END_TEST

START_TEST(a_cut_link_leaves_what_is_read_until_the_lease_ends)
{
    ask(a_prompt(1, 7));
    finish_step(BT_OK);
    ask(a_prompt(2, 30));
    feed(&(bt_prefill_event){.kind = BT_PREFILL_LINK_DOWN, .peer = DECODE});
    ck_assert_int_eq(find_entry(2)->err, BT_ERR_PEER);
    ck_assert_uint_eq(stats().holding, 1);
    meet(DECODE, BT_NODE_DECODE, 9);
    taken(1, 2, BT_OK); // it had fetched meanwhile
    finish_step(BT_OK);
    expect_idle();
}
END_TEST

START_TEST(a_cut_link_that_stays_cut_frees_all_at_the_end_of_the_lease)
{
    ask(a_prompt(1, 7));
    finish_step(BT_OK);
    feed(&(bt_prefill_event){.kind = BT_PREFILL_LINK_DOWN, .peer = DECODE});
    now += 29 * BT_SECOND;
    tick();
    ck_assert_uint_eq(stats().holding, 1);
    now += 2 * BT_SECOND;
    tick();
    expect_idle();
}
END_TEST

START_TEST(a_decode_node_that_came_back_anew_frees_what_was_held_for_it)
{
    ask(a_prompt(1, 7));
    finish_step(BT_OK);
    hear(DECODE, (bt_message){.kind = BT_MESSAGE_HELLO,
                              .hello = {.name = "d1", .role = BT_NODE_DECODE, .epoch = 10, .model = 1, .layout = 2}});
    expect_idle();
}
END_TEST

START_TEST(a_decode_node_that_greets_by_another_link_is_spoken_to_there)
{
    bt_prefill other = a_prompt(2, 16);

    other.job.ids = counting + 20;
    ask(a_prompt(1, 16)); // read and offered
    finish_step(BT_OK);
    finish_step(BT_OK);
    ask(other); // half of it offered to where nobody hears
    finish_step(BT_OK);
    meet(DECODE + 1, BT_NODE_DECODE, 9);
    ck_assert_ptr_nonnull(find_entry(2));
    ck_assert_int_eq(find_entry(2)->finish, BT_FINISH_ERROR);
    ck_assert_int_eq(find_entry(2)->err, BT_ERR_PEER);
    finish_step(BT_OK);
    hear(DECODE + 1, (bt_message){.kind = BT_MESSAGE_TAKEN, .taken = {.ticket = {9, 1, 1, 2}, .block_count = 4}});
    ck_assert_uint_eq(stats().taken, 1);
    other.job.request.slot = other.ticket.slot = 3;
    other.job.ids = counting + 40;
    other.job.prompt_count = 8;
    ask(other);
    finish_step(BT_OK);
    for (uint32_t i = 0; i < acts->send_count; i++)
        ck_assert(acts->send[i].message.kind != BT_MESSAGE_OFFER || acts->send[i].peer == DECODE + 1);
    ck_assert_uint_eq(stats().holding, 1);
    // The older link's end, noticed at last, hurts nobody.
    feed(&(bt_prefill_event){.kind = BT_PREFILL_LINK_DOWN, .peer = DECODE});
    ck_assert_uint_eq(stats().holding, 1);
}
END_TEST

START_TEST(a_lost_router_stops_reading_but_not_what_is_read)
{
    ask(a_prompt(1, 7));
    finish_step(BT_OK);
    ask(a_prompt(2, 30));
    feed(&(bt_prefill_event){.kind = BT_PREFILL_LINK_DOWN, .peer = ROUTER});
    finish_step(BT_OK);
    ck_assert_uint_eq(stats().holding, 1);
    ck_assert_uint_eq(stats().reading + stats().ending, 0);
    taken(1, 2, BT_OK);
    expect_idle();
}
END_TEST

static void
expect_refusal(bt_prefill prompt, bt_err err)
{
    ask(prompt);
    ck_assert_ptr_nonnull(find_entry(prompt.job.request.slot));
    ck_assert_int_eq(find_entry(prompt.job.request.slot)->finish, BT_FINISH_ERROR);
    ck_assert_int_eq(find_entry(prompt.job.request.slot)->err, err);
}

START_TEST(what_cannot_be_read_is_refused_at_once)
{
    static const int32_t unknown[2] = {1, VOCAB};
    bt_prefill prompt = a_prompt(1, 7);

    strcpy(prompt.decode, "d7");
    expect_refusal(prompt, BT_ERR_PEER);
    prompt = a_prompt(1, 7);
    prompt.ticket.epoch = 8; // its node was restarted meanwhile
    expect_refusal(prompt, BT_ERR_PEER);
    prompt = a_prompt(1, 7);
    prompt.ticket.layout = 3;
    expect_refusal(prompt, BT_ERR_UNSUPPORTED);
    prompt = a_prompt(1, 7);
    prompt.cached_tokens = 3; // not whole blocks
    expect_refusal(prompt, BT_ERR_INVALID);
    prompt = a_prompt(1, 2);
    prompt.job.ids = unknown;
    expect_refusal(prompt, BT_ERR_INVALID);
    for (uint32_t i = 0; i < 4; i++)
        ask(a_prompt(i + 10, 7));
    expect_refusal(a_prompt(20, 7), BT_ERR_BUSY);
    feed(&(bt_prefill_event){.kind = BT_PREFILL_DRAIN});
    expect_refusal(a_prompt(21, 7), BT_ERR_CLOSED);
    ck_assert_uint_eq(stats().refused_busy, 1);
    ck_assert_uint_eq(stats().refused_other, 6);
}
END_TEST

START_TEST(draining_reads_on_and_holds_on)
{
    ask(a_prompt(1, 7));
    feed(&(bt_prefill_event){.kind = BT_PREFILL_DRAIN});
    ck_assert(acts->send_count == 1 && acts->send[0].peer == ROUTER && acts->send[0].message.hello.draining);
    finish_step(BT_OK);
    ck_assert(find_offer(1)->last);
    taken(1, 2, BT_OK);
    expect_idle();
}
END_TEST

START_TEST(a_failed_step_fails_what_is_read_and_keeps_what_is_held)
{
    ask(a_prompt(1, 7));
    finish_step(BT_OK);
    ask(a_prompt(2, 30));
    finish_step(BT_ERR_DEVICE);
    ck_assert_int_eq(find_entry(2)->err, BT_ERR_DEVICE);
    ck_assert_uint_eq(stats().holding, 1);
    ask(a_prompt(3, 9));
    ck_assert_uint_eq(running->items[0].position, 0); // nothing is found again
}
END_TEST

START_TEST(a_deadline_ends_a_prompt_in_every_phase)
{
    bt_prefill prompt = a_prompt(1, 30);

    prompt.job.time_left = BT_SECOND;
    ask(prompt);
    now += BT_SECOND;
    tick();
    ck_assert_int_eq(find_entry(1)->err, BT_ERR_TIMEOUT);
    finish_step(BT_OK);
    expect_idle();
}
END_TEST

START_TEST(an_open_that_runs_out_of_memory_leaves_nothing)
{
    bt_prefill_limits limits = {.epoch = 1,
                                .context = 64,
                                .vocab = VOCAB,
                                .block_tokens = 4,
                                .sequences = 2,
                                .prompts = 2,
                                .chunk_tokens = 8,
                                .blocks = 8};
    bt_prefill_core *other = NULL;
    long live = bt_mem_live();

    for (long nth = 1;; nth++) {
        bt_err err;

        bt_mem_fail_nth(nth);
        err = bt_prefill_core_open(&other, &limits, NULL);
        bt_mem_fail_nth(0);
        if (err == BT_OK)
            break;
        ck_assert_int_eq(err, BT_ERR_NO_MEMORY);
        ck_assert_int_eq(bt_mem_live(), live);
    }
    bt_prefill_core_close(other);
    ck_assert_int_eq(bt_mem_live(), live);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("prefill core");
    TCase *cases = tcase_create("all");

    tcase_add_checked_fixture(cases, setup, teardown);
    tcase_add_test(cases, a_decode_node_is_told_how_to_read_the_pool);
    tcase_add_test(cases, a_decode_node_of_another_layout_is_refused);
    tcase_add_test(cases, a_prompt_is_offered_chunk_by_chunk_while_it_is_read);
    tcase_add_test(cases, an_end_is_told_by_the_clients_name_and_hits_travel_with_the_last_offer);
    tcase_add_test(cases, blocks_are_held_until_all_are_taken);
    tcase_add_test(cases, more_taken_than_offered_is_a_bad_message);
    tcase_add_test(cases, what_the_decode_node_has_is_not_offered);
    tcase_add_test(cases, a_prefix_found_here_is_offered_at_once);
    tcase_add_test(cases, several_prompts_share_a_step_shortest_first);
    tcase_add_test(cases, a_long_prompt_is_not_overtaken_for_ever);
    tcase_add_test(cases, a_replayed_answer_draws_no_token_here);
    tcase_add_test(cases, a_prompt_is_scored_where_that_is_asked_for);
    tcase_add_test(cases, an_abort_while_reading_ends_within_the_chunk);
    tcase_add_test(cases, an_abort_ends_the_hold_at_once);
    tcase_add_test(cases, an_abort_while_waiting_for_blocks_lets_the_next_one_in);
    tcase_add_test(cases, a_decode_node_that_says_no_frees_the_prompt_and_the_router_hears);
    tcase_add_test(cases, a_lease_ends_without_heartbeats_though_nothing_else_happens);
    tcase_add_test(cases, heartbeats_renew_the_lease_up_to_the_longest_hold);
    tcase_add_test(cases, a_cut_link_leaves_what_is_read_until_the_lease_ends);
    tcase_add_test(cases, a_cut_link_that_stays_cut_frees_all_at_the_end_of_the_lease);
    tcase_add_test(cases, a_decode_node_that_came_back_anew_frees_what_was_held_for_it);
    tcase_add_test(cases, a_decode_node_that_greets_by_another_link_is_spoken_to_there);
    tcase_add_test(cases, a_lost_router_stops_reading_but_not_what_is_read);
    tcase_add_test(cases, what_cannot_be_read_is_refused_at_once);
    tcase_add_test(cases, draining_reads_on_and_holds_on);
    tcase_add_test(cases, a_failed_step_fails_what_is_read_and_keeps_what_is_held);
    tcase_add_test(cases, a_deadline_ends_a_prompt_in_every_phase);
    tcase_add_test(cases, an_open_that_runs_out_of_memory_leaves_nothing);
    suite_add_tcase(suite, cases);
    return bt_test_run(suite);
}
