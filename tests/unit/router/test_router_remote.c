// Who reads a prompt, and what follows when one of the two nodes fails. Cases are named after reference/peers.md 7 where it has them.
#include "router/core.h"
#include "router/request.h"
#include "tests/support/test.h"

#include <stdlib.h>
#include <string.h>

#define CONTEXT 2048

static bt_router *router;
static bt_router_actions *acts;
static bt_time now;
static uint64_t numbers[8]; // of each node's TOKENS
static int32_t prompt[CONTEXT];
static uint64_t prefill_weights;
static const bt_sampling sampling = {.repetition_penalty = 1};

static void
open_with(bt_router_limits limits)
{
    limits.context = CONTEXT;
    limits.epoch = 1;
    limits.requests_max = 64;
    now = BT_SECOND;
    prefill_weights = 1;
    memset(numbers, 0, sizeof numbers);
    acts = calloc(1, sizeof *acts);
    ck_assert_int_eq(bt_router_open(&router, &limits, NULL), BT_OK);
}

static void
teardown(void)
{
    bt_router_close(router);
    free(acts);
}

static void
feed(const bt_router_event *event)
{
    bt_router_stats stats;

    bt_router_step(router, now, event, acts);
    bt_router_get_stats(router, &stats);
    ck_assert_int_eq(stats.leak, 0);
}

static void
hear(uint32_t node, bt_message message)
{
    feed(&(bt_router_event){.kind = BT_ROUTER_NODE_MESSAGE, .node = node, .message = &message});
}

static void
hear_sources(uint32_t node, uint32_t count, const uint64_t *epochs)
{
    hear(node, (bt_message){.kind = BT_MESSAGE_HEARTBEAT,
                            .heartbeat = {.tokens_number = numbers[node], .source_count = count, .sources = epochs}});
}

static void
meet(uint32_t node, bt_node_role role)
{
    bt_message hello = {.kind = BT_MESSAGE_HELLO,
                        .hello = {.role = role,
                                  .epoch = 100 + node,
                                  .weights = role == BT_NODE_PREFILL ? prefill_weights : 1,
                                  .sequences = 32,
                                  .queue = 32,
                                  .blocks = 4096,
                                  .block_tokens = 16,
                                  .context = CONTEXT}};

    hello.hello.name[0] = (char)('a' + node);
    numbers[node] = 0;
    feed(&(bt_router_event){.kind = BT_ROUTER_NODE_UP, .node = node});
    hear(node, hello);
    if (role == BT_NODE_DECODE) // it has proved all of them
        hear_sources(node, 8, (uint64_t[]){100, 101, 102, 103, 104, 105, 106, 107});
}

static void
setup(void) // decode node 0, prefill nodes 1 and 2
{
    open_with((bt_router_limits){0});
    meet(0, BT_NODE_DECODE);
    meet(1, BT_NODE_PREFILL);
    meet(2, BT_NODE_PREFILL);
}

static const bt_router_action *
find(bt_router_action_kind kind)
{
    for (uint32_t i = 0; i < acts->count; i++) {
        if (acts->action[i].kind == kind)
            return &acts->action[i];
    }
    return NULL;
}

// The first message of this kind, and to whom.
static const bt_message *
sent(bt_message_kind kind, uint32_t *node)
{
    for (uint32_t i = 0; i < acts->count; i++) {
        if (acts->action[i].kind == BT_ROUTER_TO_NODE && acts->action[i].to_node.message.kind == kind) {
            if (node != NULL)
                *node = acts->action[i].to_node.node;
            return &acts->action[i].to_node.message;
        }
    }
    return NULL;
}

static bool
sent_to(bt_message_kind kind, uint32_t node)
{
    for (uint32_t i = 0; i < acts->count; i++) {
        if (acts->action[i].kind == BT_ROUTER_TO_NODE && acts->action[i].to_node.message.kind == kind &&
            acts->action[i].to_node.node == node)
            return true;
    }
    return false;
}

static bt_request_id
arrive(uint64_t tag, uint32_t count)
{
    bt_router_event event = {.kind = BT_ROUTER_ARRIVED,
                             .arrival = {.tag = tag,
                                         .ids = prompt,
                                         .count = count,
                                         .sampling = &sampling,
                                         .max_tokens = 8,
                                         .deadline = BT_TIME_NEVER}};

    prompt[0] = (int32_t)tag; // prompts have nothing in common
    feed(&event);
    ck_assert_ptr_nonnull(find(BT_ROUTER_ACCEPTED));
    ck_assert_ptr_nonnull(sent(BT_MESSAGE_RESERVE, NULL));
    return sent(BT_MESSAGE_RESERVE, NULL)->reserve.request;
}

static void
grant(uint32_t node, bt_request_id request, uint32_t cached)
{
    hear(node, (bt_message){.kind = BT_MESSAGE_TICKET,
                            .ticket = {.request = request, .ticket = {.epoch = 100 + node}, .cached_tokens = cached}});
}

// The prefill node that was given the prompt; BT_REQUEST_NONE = the decode node reads it itself.
static uint32_t
place(uint64_t tag, uint32_t count, uint32_t cached)
{
    bt_request_id request = arrive(tag, count);
    uint32_t node = BT_REQUEST_NONE;

    grant(0, request, cached);
    if (sent(BT_MESSAGE_PREFILL, &node) != NULL) {
        ck_assert(sent_to(BT_MESSAGE_AWAIT, 0) && sent(BT_MESSAGE_START, NULL) == NULL);
        ck_assert_uint_eq(sent(BT_MESSAGE_PREFILL, NULL)->prefill.cached_tokens, cached);
        ck_assert_uint_eq(sent(BT_MESSAGE_AWAIT, NULL)->await.prefill_epoch, 100 + node);
    } else {
        ck_assert(sent_to(BT_MESSAGE_START, 0));
    }
    return node;
}

static void
say(uint32_t node, bt_tokens_entry entry)
{
    hear(node, (bt_message){.kind = BT_MESSAGE_TOKENS, .tokens = {++numbers[node], 1, &entry}});
}

static bt_request_id
first_id(uint32_t attempt)
{
    return (bt_request_id){0, 1, attempt};
}

START_TEST(short_prompts_and_those_mostly_cached_stay_at_the_decode_node)
{
    ck_assert_uint_eq(place(1, 511, 0), BT_REQUEST_NONE);
    ck_assert_uint_eq(place(2, 1024, 528), BT_REQUEST_NONE);
    ck_assert_uint_lt(place(3, 1024, 512), 3);
}
END_TEST

START_TEST(a_prompt_goes_where_it_is_read_sooner)
{
    uint32_t first = place(1, 1024, 0), second = place(2, 1024, 0);

    ck_assert(first != second && first < 3 && second < 3);
    // Until both queues are so long that the decode node is faster.
    for (uint64_t tag = 3; tag < 12; tag++) {
        if (place(tag, 1024, 0) == BT_REQUEST_NONE)
            return;
    }
    ck_abort_msg("ever longer queues at prefill nodes");
}
END_TEST

START_TEST(prompts_of_one_moment_spread_over_prefill_nodes) // D1, D9
{
    uint32_t counts[3] = {0};

    teardown();
    open_with((bt_router_limits){.two_weights = true});
    prefill_weights = 2;
    meet(0, BT_NODE_DECODE);
    meet(1, BT_NODE_PREFILL);
    meet(2, BT_NODE_PREFILL);
    for (uint64_t tag = 1; tag <= 30; tag++)
        counts[place(tag, 100, 0)]++;
    ck_assert(counts[1] == 15 && counts[2] == 15);
}
END_TEST

START_TEST(the_first_token_is_given_once_whoever_says_it_first)
{
    uint32_t node = place(1, 1024, 0);
    bt_token_result token = {.id = 5};

    say(node, (bt_tokens_entry){.request = first_id(1), .count = 1, .results = &token, .finish = BT_FINISH_LENGTH});
    ck_assert(find(BT_ROUTER_TOKENS)->tokens.count == 1 && find(BT_ROUTER_FINISHED) == NULL);
    say(0, (bt_tokens_entry){.request = first_id(1), .count = 1, .results = &token});
    ck_assert_ptr_null(find(BT_ROUTER_TOKENS));
    say(0,
        (bt_tokens_entry){.request = first_id(1), .first = 1, .count = 1, .results = &token, .finish = BT_FINISH_STOP});
    ck_assert_uint_eq(find(BT_ROUTER_FINISHED)->finished.usage.completion_tokens, 2);
}
END_TEST

START_TEST(a_lost_prefill_node_sends_its_prompts_elsewhere_with_a_new_ticket)
{
    uint32_t node = place(1, 1024, 0), next = 0;

    feed(&(bt_router_event){.kind = BT_ROUTER_NODE_DOWN, .node = node});
    ck_assert(sent_to(BT_MESSAGE_ABORT, 0) && !sent_to(BT_MESSAGE_ABORT, node));
    ck_assert_uint_eq(sent(BT_MESSAGE_RESERVE, NULL)->reserve.request.attempt, 2);
    grant(0, first_id(2), 0);
    ck_assert_ptr_nonnull(sent(BT_MESSAGE_PREFILL, &next));
    ck_assert(next != node && next < 3);
}
END_TEST

START_TEST(what_a_lost_prefill_node_had_read_may_still_be_fetched)
{
    uint32_t node = place(1, 1024, 0);
    bt_token_result token = {.id = 5};

    say(node, (bt_tokens_entry){.request = first_id(1), .count = 1, .results = &token, .finish = BT_FINISH_LENGTH});
    feed(&(bt_router_event){.kind = BT_ROUTER_NODE_DOWN, .node = node});
    ck_assert(!sent_to(BT_MESSAGE_ABORT, 0) && sent(BT_MESSAGE_RESERVE, NULL) == NULL);
    say(0, (bt_tokens_entry){.request = first_id(1), .finish = BT_FINISH_ERROR, .err = BT_ERR_PEER}); // it was not
    ck_assert_ptr_null(find(BT_ROUTER_FINISHED));
    ck_assert_uint_eq(sent(BT_MESSAGE_RESERVE, NULL)->reserve.answer_count, 1); // and the token it has stays
}
END_TEST

START_TEST(a_lost_decode_node_frees_the_prefill_node_and_the_answer_goes_on) // A1, A2, A17
{
    uint32_t node = 0, next = 0;
    bt_token_result tokens[2] = {{.id = 5}, {.id = 6}};

    meet(3, BT_NODE_DECODE);
    arrive(1, 1024);
    sent(BT_MESSAGE_RESERVE, &node);
    grant(node, first_id(1), 0);
    ck_assert_ptr_nonnull(sent(BT_MESSAGE_PREFILL, &next));
    say(next, (bt_tokens_entry){.request = first_id(1), .count = 1, .results = tokens, .finish = BT_FINISH_LENGTH});
    feed(&(bt_router_event){.kind = BT_ROUTER_NODE_DOWN, .node = node});
    ck_assert(sent_to(BT_MESSAGE_ABORT, next));
    ck_assert(sent_to(BT_MESSAGE_RESERVE, 3 - node));
    grant(3 - node, first_id(2), 0);
    ck_assert_uint_eq(sent(BT_MESSAGE_PREFILL, NULL)->prefill.job.answer_count, 1); // forced, not drawn again
}
END_TEST

START_TEST(a_cancel_tells_both_nodes)
{
    uint32_t node = place(1, 1024, 0);

    feed(&(bt_router_event){.kind = BT_ROUTER_CANCEL, .request = {0, 1, 0}, .reason = BT_FINISH_CANCELLED});
    ck_assert(sent_to(BT_MESSAGE_ABORT, 0) && sent_to(BT_MESSAGE_ABORT, node));
}
END_TEST

START_TEST(a_full_prefill_node_costs_no_move)
{
    uint32_t node = place(1, 1024, 0), next = 0;

    say(node, (bt_tokens_entry){.request = first_id(1), .finish = BT_FINISH_ERROR, .err = BT_ERR_BUSY});
    ck_assert(sent_to(BT_MESSAGE_ABORT, 0) && sent_to(BT_MESSAGE_RESERVE, 0));
    grant(0, first_id(2), 0);
    ck_assert_ptr_nonnull(sent(BT_MESSAGE_PREFILL, &next));
    ck_assert_uint_ne(next, node);
    feed(&(bt_router_event){.kind = BT_ROUTER_CANCEL, .request = {0, 1, 0}});
    ck_assert_uint_eq(find(BT_ROUTER_FINISHED)->finished.moves, 0);
}
END_TEST

START_TEST(a_prompt_that_failed_three_times_is_read_at_its_decode_node)
{
    bt_request_id request = arrive(1, 1024);
    uint32_t node = 0;

    for (uint32_t i = 0; i < 3; i++) {
        grant(0, request, 0);
        ck_assert_ptr_nonnull(sent(BT_MESSAGE_PREFILL, &node));
        say(node, (bt_tokens_entry){.request = request, .finish = BT_FINISH_ERROR, .err = BT_ERR_PEER});
        request.attempt++;
    }
    grant(0, request, 0);
    ck_assert(sent_to(BT_MESSAGE_START, 0));
}
END_TEST

START_TEST(a_prompt_goes_only_where_its_decode_node_can_fetch_from)
{
    hear_sources(0, 1, (uint64_t[]){102});
    for (uint64_t tag = 1; tag < 4; tag++)
        ck_assert_uint_eq(place(tag, 1024, 0), 2);
    hear_sources(0, 1, (uint64_t[]){201}); // an earlier or later life of some node
    ck_assert_uint_eq(place(4, 1024, 0), BT_REQUEST_NONE);
    hear_sources(0, 0, NULL);
    ck_assert_uint_eq(place(5, 1024, 0), BT_REQUEST_NONE);
}
END_TEST

START_TEST(where_weights_differ_decode_nodes_that_can_fetch_are_chosen_though_others_are_empty)
{
    uint32_t node = 0;

    teardown();
    open_with((bt_router_limits){.two_weights = true});
    prefill_weights = 2;
    meet(0, BT_NODE_DECODE);
    meet(1, BT_NODE_PREFILL);
    meet(3, BT_NODE_DECODE);
    hear_sources(3, 0, NULL);
    for (uint64_t tag = 1; tag < 20; tag++) {
        arrive(tag, 100);
        ck_assert(sent_to(BT_MESSAGE_RESERVE, 0));
    }
    // It loses its way to the prefill node while it grants room, and the other has found one.
    hear_sources(3, 1, (uint64_t[]){101});
    hear_sources(0, 0, NULL);
    grant(0, first_id(1), 0);
    ck_assert(sent_to(BT_MESSAGE_ABORT, 0) && sent(BT_MESSAGE_START, NULL) == NULL);
    ck_assert_ptr_nonnull(sent(BT_MESSAGE_RESERVE, &node));
    ck_assert_uint_eq(node, 3);
}
END_TEST

START_TEST(a_prefill_node_that_comes_back_soon_is_waited_for)
{
    bt_router_event event = {
        .kind = BT_ROUTER_ARRIVED,
        .arrival = {.ids = prompt, .count = 4, .sampling = &sampling, .max_tokens = 8, .deadline = BT_TIME_NEVER}};

    teardown();
    open_with((bt_router_limits){.two_weights = true});
    prefill_weights = 2;
    meet(0, BT_NODE_DECODE);
    meet(1, BT_NODE_PREFILL);
    feed(&(bt_router_event){.kind = BT_ROUTER_NODE_DOWN, .node = 1});
    feed(&event);
    ck_assert_ptr_null(sent(BT_MESSAGE_RESERVE, NULL));
    now += BT_SECOND;
    meet(1, BT_NODE_PREFILL);
    ck_assert_ptr_nonnull(sent(BT_MESSAGE_RESERVE, NULL));
    grant(0, first_id(1), 0);
    ck_assert(sent_to(BT_MESSAGE_PREFILL, 1));
}
END_TEST

static void
give_up(bt_request_id id)
{
    id.attempt = 0;
    feed(&(bt_router_event){.kind = BT_ROUTER_CANCEL, .request = id, .reason = BT_FINISH_CANCELLED});
}

START_TEST(while_a_prefill_breaker_is_open_no_half_of_a_pair_is_asked) // D12
{
    bt_token_result token = {.id = 5};
    bt_request_id probe, other;

    teardown();
    open_with((bt_router_limits){0});
    meet(0, BT_NODE_DECODE);
    meet(1, BT_NODE_PREFILL);
    for (uint64_t tag = 1; tag <= 5; tag++) { // blocks that do not come, though the two have each other
        bt_request_id id = arrive(tag, 1024);

        grant(0, id, 0);
        ck_assert(sent_to(BT_MESSAGE_PREFILL, 1));
        say(0, (bt_tokens_entry){.request = id, .finish = BT_FINISH_ERROR, .err = BT_ERR_PEER});
        give_up(id);
    }
    other = arrive(6, 1024);
    grant(0, other, 0);
    ck_assert(sent_to(BT_MESSAGE_START, 0));
    ck_assert(sent(BT_MESSAGE_AWAIT, NULL) == NULL && sent(BT_MESSAGE_PREFILL, NULL) == NULL);
    give_up(other);
    now += 5 * BT_SECOND;
    probe = arrive(7, 1024);
    grant(0, probe, 0);
    ck_assert(sent_to(BT_MESSAGE_AWAIT, 0) && sent_to(BT_MESSAGE_PREFILL, 1));
    other = arrive(8, 1024); // while that is not over
    grant(0, other, 0);
    ck_assert(sent_to(BT_MESSAGE_START, 0) && sent(BT_MESSAGE_AWAIT, NULL) == NULL);
    say(0, (bt_tokens_entry){.request = probe, .count = 1, .results = &token});
    ck_assert_uint_eq(place(9, 1024, 0), 1);
}
END_TEST

START_TEST(a_link_between_two_nodes_that_failed_is_no_fault_of_the_prefill_node)
{
    bt_router_node seen;

    for (uint64_t tag = 1; tag <= 12; tag++) {
        bt_request_id id = arrive(tag, 1024);

        hear_sources(0, 2, (uint64_t[]){101, 102});
        grant(0, id, 0);
        ck_assert_ptr_nonnull(sent(BT_MESSAGE_PREFILL, NULL));
        hear_sources(0, 0, NULL);
        say(0, (bt_tokens_entry){.request = id, .finish = BT_FINISH_ERROR, .err = BT_ERR_PEER});
        give_up(id);
    }
    for (uint32_t node = 0; node < 3; node++) {
        bt_router_get_node(router, node, &seen);
        ck_assert_int_eq(seen.breaker, BT_BREAKER_CLOSED);
    }
}
END_TEST

START_TEST(without_a_prefill_node_the_decode_node_reads_and_other_weights_are_marked)
{
    bt_token_result token = {.id = 5};

    teardown();
    open_with((bt_router_limits){.two_weights = true});
    meet(0, BT_NODE_DECODE);
    for (int i = 0; i < 3; i++) { // long enough for one to come back
        now += BT_SECOND;
        ck_assert(bt_router_next_deadline(router) <= now);
        feed(&(bt_router_event){.kind = BT_ROUTER_TICK});
    }
    ck_assert_uint_eq(place(1, 20, 0), BT_REQUEST_NONE);
    say(0, (bt_tokens_entry){.request = first_id(1), .count = 1, .results = &token, .finish = BT_FINISH_STOP});
    ck_assert(find(BT_ROUTER_TOKENS)->tokens.degraded); // in time for a header
    ck_assert(find(BT_ROUTER_FINISHED)->finished.degraded);
}
END_TEST

START_TEST(inexact_clusters_choose_freely_and_mark_nothing)
{
    bt_token_result token = {.id = 5};

    teardown();
    open_with((bt_router_limits){.two_weights = true, .inexact = true});
    prefill_weights = 2;
    meet(0, BT_NODE_DECODE);
    meet(1, BT_NODE_PREFILL);
    ck_assert_uint_eq(place(1, 20, 0), BT_REQUEST_NONE);
    say(0, (bt_tokens_entry){.request = first_id(1), .count = 1, .results = &token, .finish = BT_FINISH_STOP});
    ck_assert(!find(BT_ROUTER_FINISHED)->finished.degraded);
    ck_assert_uint_eq(place(2, 1024, 0), 1);
}
END_TEST

START_TEST(prefill_nodes_alone_are_no_cluster) // B11
{
    bt_router_event event = {
        .kind = BT_ROUTER_ARRIVED,
        .arrival = {.ids = prompt, .count = 4, .sampling = &sampling, .max_tokens = 8, .deadline = BT_TIME_NEVER}};

    feed(&(bt_router_event){.kind = BT_ROUTER_NODE_DOWN, .node = 0});
    ck_assert(!bt_router_ready(router));
    feed(&event);
    ck_assert_int_eq(find(BT_ROUTER_REJECTED)->rejected.err, BT_ERR_PEER);
    ck_assert(find(BT_ROUTER_REJECTED)->rejected.retry_after >= BT_SECOND);
}
END_TEST

START_TEST(measured_rates_decide)
{
    uint32_t node = place(1, 1024, 0);
    bt_token_result token = {.id = 5};

    // It took a minute: nobody goes there again while the other and the decode node are faster.
    say(node, (bt_tokens_entry){.request = first_id(1),
                                .count = 1,
                                .results = &token,
                                .finish = BT_FINISH_LENGTH,
                                .phases.prefill = 60 * BT_SECOND});
    for (uint64_t tag = 2; tag < 12; tag++)
        ck_assert_uint_ne(place(tag, 1024, 0), node);
}
END_TEST

// All that were placed so far, on the one prefill node there is.
static void
read_all(uint32_t count, bt_time duration)
{
    bt_token_result token = {.id = 5};

    for (uint32_t slot = 0; slot < count; slot++)
        say(1, (bt_tokens_entry){.request = {slot, 1, 1},
                                 .count = 1,
                                 .results = &token,
                                 .finish = BT_FINISH_LENGTH,
                                 .phases.prefill = duration});
}

START_TEST(prompts_that_share_a_step_share_its_time)
{
    bt_router_node node;

    teardown();
    open_with((bt_router_limits){.two_weights = true});
    prefill_weights = 2;
    meet(0, BT_NODE_DECODE);
    meet(1, BT_NODE_PREFILL);
    for (uint64_t tag = 1; tag <= 4; tag++)
        ck_assert_uint_eq(place(tag, 1024, 0), 1);
    now += 100 * BT_MILLISECOND;
    read_all(4, 100 * BT_MILLISECOND);
    bt_router_get_node(router, 1, &node); // 4,096 tokens in 0.1 s, what came before weighing a little less
    ck_assert_uint_gt(node.prefill_rate, 35000);
    ck_assert_uint_lt(node.prefill_rate, 60000);
}
END_TEST

// The decode node was never asked: what does the router expect of it, while prompts are read at 10,240 tokens a second elsewhere?
static uint32_t
prompts_until_the_decode_node_is_asked(uint64_t weights)
{
    uint32_t waiting = 0;

    teardown();
    open_with((bt_router_limits){.two_weights = weights != 1, .inexact = true});
    prefill_weights = weights;
    meet(0, BT_NODE_DECODE);
    meet(1, BT_NODE_PREFILL);
    ck_assert_uint_eq(place(1, 1024, 0), 1);
    now += 100 * BT_MILLISECOND;
    read_all(1, 100 * BT_MILLISECOND);
    while (place(2 + waiting, 1024, 0) == 1)
        waiting++;
    return waiting;
}

START_TEST(a_decode_node_that_nobody_asked_is_believed_to_read_the_faster_for_having_the_same_weights)
{
    ck_assert_uint_eq(prompts_until_the_decode_node_is_asked(1), 2);
    ck_assert_uint_ge(prompts_until_the_decode_node_is_asked(2), 4);
}
END_TEST

START_TEST(who_would_wait_too_long_for_a_first_token_is_told_when_to_come_back)
{
    bt_router_event event = {
        .kind = BT_ROUTER_ARRIVED,
        .arrival = {.ids = prompt, .count = 1024, .sampling = &sampling, .max_tokens = 8, .deadline = BT_TIME_NEVER}};
    bt_token_result token = {.id = 5};
    bt_router_stats stats;
    bt_request_id first;

    teardown();
    open_with((bt_router_limits){.two_weights = true, .slo_ttft = 5 * BT_SECOND});
    prefill_weights = 2;
    meet(0, BT_NODE_DECODE);
    meet(1, BT_NODE_PREFILL);
    first = arrive(1, 1024);
    grant(0, first, 0);
    for (uint64_t tag = 2; tag < 12; tag++) // nothing is measured: nobody is refused
        grant(0, arrive(tag, 1024), 0);
    say(1,
        (bt_tokens_entry){
            .request = first, .count = 1, .results = &token, .finish = BT_FINISH_LENGTH, .phases.prefill = BT_SECOND});
    prompt[0] = 99; // it is known now that ten prompts wait, a second each
    feed(&event);
    ck_assert_int_eq(find(BT_ROUTER_REJECTED)->rejected.err, BT_ERR_BUSY);
    ck_assert_int_ge(find(BT_ROUTER_REJECTED)->rejected.retry_after, 5 * BT_SECOND);
    ck_assert_int_le(find(BT_ROUTER_REJECTED)->rejected.retry_after, 7 * BT_SECOND);
    bt_router_get_stats(router, &stats);
    ck_assert(stats.rejected_late == 1 && stats.rejected_busy == 1);
    feed(&(bt_router_event){.kind = BT_ROUTER_NODE_DOWN, .node = 1});
    meet(1, BT_NODE_PREFILL); // with an empty queue
    ck_assert_ptr_nonnull(sent(BT_MESSAGE_RESERVE, NULL));
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("router remote");
    TCase *cases = tcase_create("all");

    tcase_add_checked_fixture(cases, setup, teardown);
    tcase_add_test(cases, short_prompts_and_those_mostly_cached_stay_at_the_decode_node);
    tcase_add_test(cases, a_prompt_goes_where_it_is_read_sooner);
    tcase_add_test(cases, prompts_of_one_moment_spread_over_prefill_nodes);
    tcase_add_test(cases, the_first_token_is_given_once_whoever_says_it_first);
    tcase_add_test(cases, a_lost_prefill_node_sends_its_prompts_elsewhere_with_a_new_ticket);
    tcase_add_test(cases, what_a_lost_prefill_node_had_read_may_still_be_fetched);
    tcase_add_test(cases, a_lost_decode_node_frees_the_prefill_node_and_the_answer_goes_on);
    tcase_add_test(cases, a_cancel_tells_both_nodes);
    tcase_add_test(cases, a_full_prefill_node_costs_no_move);
    tcase_add_test(cases, a_prompt_that_failed_three_times_is_read_at_its_decode_node);
    tcase_add_test(cases, a_prompt_goes_only_where_its_decode_node_can_fetch_from);
    tcase_add_test(cases, where_weights_differ_decode_nodes_that_can_fetch_are_chosen_though_others_are_empty);
    tcase_add_test(cases, a_prefill_node_that_comes_back_soon_is_waited_for);
    tcase_add_test(cases, while_a_prefill_breaker_is_open_no_half_of_a_pair_is_asked);
    tcase_add_test(cases, a_link_between_two_nodes_that_failed_is_no_fault_of_the_prefill_node);
    tcase_add_test(cases, without_a_prefill_node_the_decode_node_reads_and_other_weights_are_marked);
    tcase_add_test(cases, inexact_clusters_choose_freely_and_mark_nothing);
    tcase_add_test(cases, prefill_nodes_alone_are_no_cluster);
    tcase_add_test(cases, measured_rates_decide);
    tcase_add_test(cases, prompts_that_share_a_step_share_its_time);
    tcase_add_test(cases, a_decode_node_that_nobody_asked_is_believed_to_read_the_faster_for_having_the_same_weights);
    tcase_add_test(cases, who_would_wait_too_long_for_a_first_token_is_told_when_to_come_back);
    suite_add_tcase(suite, cases);
    return bt_test_run(suite);
}
