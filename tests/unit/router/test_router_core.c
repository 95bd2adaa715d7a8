// The router's core, event by event. `now` only moves where a case moves it.
#include "common/base/mem.h"
#include "router/core.h"
#include "router/request.h"
#include "tests/support/test.h"

#include <stdlib.h>
#include <string.h>

#define CONTEXT 64

static bt_router *router;
static bt_router_actions *acts;
static bt_time now;
static uint64_t numbers[4]; // of each node's TOKENS
static int32_t prompt[CONTEXT * 2];
static uint32_t node_queue;
static const bt_sampling sampling = {.repetition_penalty = 1};

static void
setup_with(bt_router_limits limits)
{
    limits.context = CONTEXT;
    limits.vocab = 1000;
    limits.epoch = 1;
    now = BT_SECOND;
    node_queue = 1;
    memset(numbers, 0, sizeof numbers);
    acts = calloc(1, sizeof *acts);
    ck_assert_int_eq(bt_router_open(&router, &limits, NULL), BT_OK);
}

static void
setup(void)
{
    setup_with((bt_router_limits){.requests_max = 8, .queue_max = 3});
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
    bt_router_step(router, now, event, acts);
}

static void
hear(uint32_t node, const bt_message *message)
{
    feed(&(bt_router_event){.kind = BT_ROUTER_NODE_MESSAGE, .node = node, .message = message});
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

static const bt_message *
find_message(bt_message_kind kind)
{
    for (uint32_t i = 0; i < acts->count; i++) {
        if (acts->action[i].kind == BT_ROUTER_TO_NODE && acts->action[i].to_node.message.kind == kind)
            return &acts->action[i].to_node.message;
    }
    return NULL;
}

static void
hello_as(uint32_t node, uint64_t epoch, uint32_t sequences, uint32_t blocks)
{
    bt_message hello = {.kind = BT_MESSAGE_HELLO};

    hello.hello = (bt_hello){.role = BT_NODE_DECODE,
                             .epoch = epoch,
                             .sequences = sequences,
                             .queue = node_queue,
                             .blocks = blocks,
                             .block_tokens = 16,
                             .context = CONTEXT};
    hello.hello.name[0] = (char)('a' + node);
    numbers[node] = 0;
    hear(node, &hello);
}

static void
node_arrives(uint32_t node, uint32_t sequences, uint32_t blocks)
{
    feed(&(bt_router_event){.kind = BT_ROUTER_NODE_UP, .node = node});
    ck_assert_ptr_nonnull(find_message(BT_MESSAGE_HELLO));
    hello_as(node, 100 + node, sequences, blocks);
}

static bt_router_arrival
an_arrival(uint64_t tag, uint32_t count, uint32_t max_tokens)
{
    return (bt_router_arrival){.tag = tag,
                               .ids = prompt,
                               .count = count,
                               .sampling = &sampling,
                               .max_tokens = max_tokens,
                               .deadline = BT_TIME_NEVER};
}

static bt_request_id
arrive(const bt_router_arrival *arrival)
{
    const bt_router_action *accepted;

    feed(&(bt_router_event){.kind = BT_ROUTER_ARRIVED, .arrival = *arrival});
    accepted = find(BT_ROUTER_ACCEPTED);
    ck_assert_ptr_nonnull(accepted);
    return accepted->request;
}

static bt_request_id
arrive_plain(uint64_t tag)
{
    bt_router_arrival arrival = an_arrival(tag, 4, 8);

    return arrive(&arrival);
}

static const bt_router_action *
arrive_refused(const bt_router_arrival *arrival)
{
    feed(&(bt_router_event){.kind = BT_ROUTER_ARRIVED, .arrival = *arrival});
    ck_assert_uint_eq(acts->count, 1);
    ck_assert_int_eq(acts->action[0].kind, BT_ROUTER_REJECTED);
    return &acts->action[0];
}

// The node's side of a request's n-th attempt.
static bt_request_id
attempt(bt_request_id id, uint32_t n)
{
    id.attempt = n;
    return id;
}

static void
ticket(uint32_t node, bt_request_id id, bt_err err)
{
    bt_message message = {.kind = BT_MESSAGE_TICKET};

    message.ticket = (bt_ticket_reply){.request = id, .err = err, .cached_tokens = 2};
    hear(node, &message);
}

// `count` tokens 50 + first, …, and perhaps an end.
static void
tokens(uint32_t node, bt_request_id id, uint32_t first, uint32_t count, bt_finish finish)
{
    static bt_token_result results[CONTEXT];
    bt_tokens_entry entry = {.request = id, .first = first, .count = count, .results = results, .finish = finish};
    bt_message message = {.kind = BT_MESSAGE_TOKENS, .tokens = {++numbers[node], 1, &entry}};

    for (uint32_t i = 0; i < count; i++)
        results[i].id = (int32_t)(50 + first + i);
    hear(node, &message);
}

static bt_router_stats
stats(void)
{
    bt_router_stats s;

    bt_router_get_stats(router, &s);
    ck_assert_int_eq(s.leak, 0);
    return s;
}

// A request in one of the states it can be in for long.
static bt_request_id
bring_to(bt_request_state state)
{
    bt_request_id id;

    node_arrives(0, 1, 4);
    if (state == BT_REQUEST_QUEUED) { // behind one that runs and one that waits at the node
        arrive_plain(90);
        arrive_plain(91);
    }
    id = arrive_plain(1);
    if (state == BT_REQUEST_PREFILLING || state == BT_REQUEST_DECODING)
        ticket(0, attempt(id, 1), BT_OK);
    if (state == BT_REQUEST_DECODING)
        tokens(0, attempt(id, 1), 0, 2, BT_FINISH_NONE);
    return id;
}

static const bt_request_state long_states[] = {BT_REQUEST_QUEUED, BT_REQUEST_RESERVING, BT_REQUEST_PREFILLING,
                                               BT_REQUEST_DECODING};

START_TEST(only_the_moves_of_the_table_are_legal)
{
    for (int state = BT_REQUEST_FREE; state < BT_REQUEST_STATES; state++) {
        bool over = state >= BT_REQUEST_DONE;
        bool running = state >= BT_REQUEST_QUEUED && !over;

        ck_assert(bt_request_may_move((bt_request_state)state, BT_REQUEST_FREE) ==
                  (over || state == BT_REQUEST_ARRIVED));
        ck_assert(bt_request_may_move((bt_request_state)state, BT_REQUEST_CANCELLED) == running);
        ck_assert(bt_request_may_move((bt_request_state)state, BT_REQUEST_FAILED) == running);
        ck_assert(!bt_request_may_move((bt_request_state)state, (bt_request_state)state));
    }
    ck_assert(!bt_request_may_move(BT_REQUEST_QUEUED, BT_REQUEST_DECODING));
    ck_assert(!bt_request_may_move(BT_REQUEST_RESERVING, BT_REQUEST_DECODING));
    ck_assert(!bt_request_may_move(BT_REQUEST_DECODING, BT_REQUEST_PREFILLING));
}
END_TEST

START_TEST(a_request_runs_from_arrival_to_its_length)
{
    const bt_router_action *action;
    const bt_message *reserve;
    bt_request_id id;

    node_arrives(0, 2, 8);
    id = arrive_plain(77);
    reserve = find_message(BT_MESSAGE_RESERVE);
    ck_assert_ptr_nonnull(reserve);
    ck_assert_uint_eq(reserve->reserve.prompt_count, 4);
    ck_assert_int_eq(reserve->reserve.ids[3], prompt[3]);
    now += 10;
    ticket(0, attempt(id, 1), BT_OK);
    ck_assert_ptr_nonnull(find_message(BT_MESSAGE_START));
    now += 10;
    tokens(0, attempt(id, 1), 0, 1, BT_FINISH_NONE);
    action = find(BT_ROUTER_TOKENS);
    ck_assert(action != NULL && action->tag == 77 && action->tokens.first == 0 && action->tokens.results[0].id == 50);
    ck_assert_ptr_null(find(BT_ROUTER_FINISHED));
    now += 10;
    tokens(0, attempt(id, 1), 1, 7, BT_FINISH_LENGTH);
    action = find(BT_ROUTER_FINISHED);
    ck_assert(action != NULL && bt_request_id_equal(action->request, id));
    ck_assert_int_eq(action->finished.finish, BT_FINISH_LENGTH);
    ck_assert_uint_eq(action->finished.usage.completion_tokens, 8);
    ck_assert_uint_eq(action->finished.usage.cached_tokens, 2);
    ck_assert_int_eq(action->finished.ttft, 20);
    ck_assert_int_eq(action->finished.total, 30);
    ck_assert_uint_eq(stats().done_length, 1);
    ck_assert_uint_eq(stats().running + stats().queued, 0);
}
END_TEST

START_TEST(a_prompt_beyond_the_context_is_refused_with_both_numbers)
{
    bt_router_arrival arrival = an_arrival(1, CONTEXT + 5, 3);
    const bt_router_action *action;

    node_arrives(0, 2, 8);
    action = arrive_refused(&arrival);
    ck_assert_int_eq(action->rejected.err, BT_ERR_TOO_LONG);
    ck_assert_uint_eq(action->rejected.tokens, CONTEXT + 8);
    ck_assert_uint_eq(action->rejected.tokens_max, CONTEXT);
    arrival = an_arrival(1, CONTEXT - 5, 6); // the answer may not reach over it either
    ck_assert_int_eq(arrive_refused(&arrival)->rejected.err, BT_ERR_TOO_LONG);
    arrival = an_arrival(1, CONTEXT, BT_MAX_TOKENS_REST); // no room for one token
    ck_assert_int_eq(arrive_refused(&arrival)->rejected.err, BT_ERR_TOO_LONG);
    arrival = an_arrival(1, CONTEXT, 0); // only to be read
    arrive(&arrival);
}
END_TEST

START_TEST(what_no_pool_can_hold_is_refused_at_once) // peers.md A20
{
    bt_router_arrival arrival = an_arrival(1, 20, 20);

    node_arrives(0, 2, 2); // 32 tokens
    ck_assert_int_eq(arrive_refused(&arrival)->rejected.err, BT_ERR_TOO_LONG);
    ck_assert_uint_eq(acts->action[0].rejected.tokens_max, 32);
    node_arrives(1, 2, 4);
    arrive(&arrival);
    ck_assert_uint_eq(acts->action[1].to_node.node, 1);
}
END_TEST

START_TEST(max_tokens_left_out_is_the_rest_of_the_context_or_the_default)
{
    bt_router_arrival arrival = an_arrival(1, 10, BT_MAX_TOKENS_REST);

    node_arrives(0, 2, 8);
    arrive(&arrival);
    ck_assert_uint_eq(find_message(BT_MESSAGE_RESERVE)->reserve.max_tokens, CONTEXT - 10);
    teardown();
    setup_with((bt_router_limits){.max_tokens_default = 7});
    node_arrives(0, 2, 8);
    arrive(&arrival);
    ck_assert_uint_eq(find_message(BT_MESSAGE_RESERVE)->reserve.max_tokens, 7);
}
END_TEST

START_TEST(malformed_arrivals_are_refused)
{
    bt_router_arrival arrival = an_arrival(1, 0, 4);
    bt_sampling wild = sampling;

    node_arrives(0, 2, 8);
    ck_assert_int_eq(arrive_refused(&arrival)->rejected.err, BT_ERR_INVALID);
    arrival = an_arrival(1, 4, 4);
    prompt[2] = 1000; // beyond the vocabulary
    ck_assert_int_eq(arrive_refused(&arrival)->rejected.err, BT_ERR_INVALID);
    prompt[2] = -1;
    ck_assert_int_eq(arrive_refused(&arrival)->rejected.err, BT_ERR_INVALID);
    prompt[2] = 0;
    wild.bias_count = BT_LOGIT_BIAS_MAX + 1;
    arrival.sampling = &wild;
    ck_assert_int_eq(arrive_refused(&arrival)->rejected.err, BT_ERR_INVALID);
    ck_assert_uint_eq(stats().rejected_invalid, 4);
}
END_TEST

START_TEST(a_full_queue_answers_busy_and_says_when_to_come_back)
{
    bt_router_arrival arrival = an_arrival(9, 4, 8);

    node_arrives(0, 1, 4);
    ticket(0, attempt(arrive_plain(0), 1), BT_OK);
    for (uint64_t i = 1; i < 5; i++) // one runs, one waits at the node, three here
        arrive_plain(i);
    ck_assert_int_eq(arrive_refused(&arrival)->rejected.err, BT_ERR_BUSY);
    ck_assert_int_ge(acts->action[0].rejected.retry_after, BT_SECOND);
    ck_assert_uint_eq(stats().queued, 3);
}
END_TEST

START_TEST(without_a_node_requests_are_refused_and_not_kept_waiting) // B11
{
    bt_router_arrival arrival = an_arrival(9, 4, 8);

    ck_assert(!bt_router_ready(router));
    ck_assert_int_eq(arrive_refused(&arrival)->rejected.err, BT_ERR_PEER);
    node_arrives(0, 1, 4);
    ck_assert(bt_router_ready(router));
    arrive(&arrival);
    feed(&(bt_router_event){.kind = BT_ROUTER_NODE_DOWN});
    ck_assert(!bt_router_ready(router));
    ck_assert_int_eq(arrive_refused(&arrival)->rejected.err, BT_ERR_PEER);
}
END_TEST

START_TEST(draining_refuses_what_comes_and_finishes_what_runs)
{
    bt_router_arrival arrival = an_arrival(9, 4, 8);
    bt_request_id id = bring_to(BT_REQUEST_DECODING);

    feed(&(bt_router_event){.kind = BT_ROUTER_DRAIN});
    ck_assert_int_eq(arrive_refused(&arrival)->rejected.err, BT_ERR_CLOSED);
    tokens(0, attempt(id, 1), 2, 1, BT_FINISH_STOP);
    ck_assert_int_eq(find(BT_ROUTER_FINISHED)->finished.finish, BT_FINISH_STOP);
}
END_TEST

START_TEST(a_cancel_ends_a_request_at_once_in_every_state) // A1, A4, A17
{
    bt_request_state state = long_states[_i];
    bt_request_id id = bring_to(state);
    const bt_router_action *action;

    feed(&(bt_router_event){.kind = BT_ROUTER_CANCEL, .request = id, .reason = BT_FINISH_CANCELLED});
    action = find(BT_ROUTER_FINISHED);
    ck_assert(action != NULL && bt_request_id_equal(action->request, id));
    ck_assert_int_eq(action->finished.finish, BT_FINISH_CANCELLED);
    ck_assert_uint_eq(action->finished.usage.completion_tokens, state == BT_REQUEST_DECODING ? 2 : 0); // A16
    ck_assert((find_message(BT_MESSAGE_ABORT) != NULL) == (state != BT_REQUEST_QUEUED));
    stats();
    // What the node still says about it is no news to anyone.
    ticket(0, attempt(id, 1), BT_OK);
    ck_assert_ptr_null(find_message(BT_MESSAGE_START));
    tokens(0, attempt(id, 1), 0, 1, BT_FINISH_STOP); // A18
    ck_assert_ptr_null(find(BT_ROUTER_TOKENS));
    ck_assert_ptr_null(find(BT_ROUTER_FINISHED));
    ck_assert_uint_eq(stats().late_messages, 2);
    feed(&(bt_router_event){.kind = BT_ROUTER_CANCEL, .request = id});
    ck_assert_ptr_null(find(BT_ROUTER_FINISHED));
}
END_TEST

START_TEST(a_deadline_ends_a_request_in_every_state)
{
    bt_router_arrival arrival = an_arrival(1, 4, 8);
    bt_request_state state = long_states[_i];
    bt_request_id id;

    arrival.deadline = now + BT_MILLISECOND;
    node_arrives(0, 1, 4);
    if (state == BT_REQUEST_QUEUED) {
        arrive_plain(90);
        arrive_plain(91);
    }
    id = arrive(&arrival);
    if (state >= BT_REQUEST_PREFILLING)
        ticket(0, attempt(id, 1), BT_OK);
    if (state == BT_REQUEST_DECODING)
        tokens(0, attempt(id, 1), 0, 1, BT_FINISH_NONE);
    ck_assert_int_eq(bt_router_next_deadline(router), arrival.deadline);
    now = arrival.deadline;
    feed(&(bt_router_event){.kind = BT_ROUTER_TICK});
    ck_assert_int_eq(find(BT_ROUTER_FINISHED)->finished.err, BT_ERR_TIMEOUT);
    ck_assert((find_message(BT_MESSAGE_ABORT) != NULL) == (state != BT_REQUEST_QUEUED));
    ck_assert_uint_eq(stats().deadlines_missed, 1);
}
END_TEST

START_TEST(a_stop_string_ends_a_request_as_stopped)
{
    bt_request_id id = bring_to(BT_REQUEST_DECODING);

    feed(&(bt_router_event){.kind = BT_ROUTER_CANCEL, .request = id, .reason = BT_FINISH_STOP});
    ck_assert_int_eq(find(BT_ROUTER_FINISHED)->finished.finish, BT_FINISH_STOP);
    ck_assert_ptr_nonnull(find_message(BT_MESSAGE_ABORT));
    ck_assert_uint_eq(stats().done_stop, 1);
}
END_TEST

START_TEST(repeated_tokens_are_given_once_and_missing_ones_are_asked_for_anew)
{
    bt_request_id id = bring_to(BT_REQUEST_DECODING); // has two

    tokens(0, attempt(id, 1), 0, 3, BT_FINISH_NONE);
    ck_assert_uint_eq(find(BT_ROUTER_TOKENS)->tokens.first, 2);
    ck_assert_uint_eq(find(BT_ROUTER_TOKENS)->tokens.count, 1);
    ck_assert_int_eq(find(BT_ROUTER_TOKENS)->tokens.results[0].id, 52);
    tokens(0, attempt(id, 1), 4, 1, BT_FINISH_NONE);
    ck_assert_ptr_null(find(BT_ROUTER_TOKENS));
    ck_assert_ptr_nonnull(find_message(BT_MESSAGE_ABORT));
    ck_assert_uint_eq(find_message(BT_MESSAGE_RESERVE)->reserve.answer_count, 3);
    ck_assert_uint_eq(stats().bad_messages, 1);
}
END_TEST

START_TEST(more_tokens_than_asked_for_are_not_believed)
{
    bt_request_id id = bring_to(BT_REQUEST_DECODING); // two of eight

    tokens(0, attempt(id, 1), 2, 7, BT_FINISH_LENGTH);
    ck_assert_ptr_null(find(BT_ROUTER_TOKENS));
    ck_assert_uint_eq(find_message(BT_MESSAGE_RESERVE)->reserve.answer_count, 2);
}
END_TEST

// The node says that it failed the request's n-th attempt, in the phase that it is in.
static void
node_fails(uint32_t node, bt_request_id id, uint32_t n, bt_err err)
{
    bt_tokens_entry entry = {.request = attempt(id, n), .finish = BT_FINISH_ERROR, .err = err};
    bt_message message = {.kind = BT_MESSAGE_TOKENS, .tokens = {++numbers[node], 1, &entry}};

    hear(node, &message);
}

START_TEST(an_error_is_tried_again_twice_with_the_answer_so_far_and_elsewhere_first)
{
    bt_request_id id = bring_to(BT_REQUEST_DECODING);

    node_arrives(1, 1, 4);
    node_fails(0, id, 1, BT_ERR_DEVICE);
    ck_assert_ptr_null(find(BT_ROUTER_FINISHED));
    ck_assert_uint_eq(find(BT_ROUTER_TO_NODE)->to_node.node, 1);
    ck_assert_uint_eq(find_message(BT_MESSAGE_RESERVE)->reserve.answer_count, 2);
    ticket(1, attempt(id, 2), BT_ERR_DEVICE); // refused for a reason of its own
    ck_assert_uint_eq(find(BT_ROUTER_TO_NODE)->to_node.node, 0);
    ticket(0, attempt(id, 3), BT_OK);
    node_fails(0, id, 3, BT_ERR_DEVICE);
    ck_assert_int_eq(find(BT_ROUTER_FINISHED)->finished.err, BT_ERR_DEVICE);
    ck_assert_uint_eq(stats().moves_by[BT_MOVE_ERROR], 2);
    ck_assert_uint_eq(stats().retries[BT_NODE_DECODE], 2);
    ck_assert_uint_eq(stats().retries_refused, 1);
}
END_TEST

START_TEST(no_more_than_a_tenth_of_all_requests_is_tried_again)
{
    teardown();
    setup_with((bt_router_limits){.requests_max = 8, .breaker = {.errors = UINT32_MAX}});
    node_arrives(0, 1, 4);
    for (uint64_t i = 0; i < 1000; i++) {
        bt_request_id id = arrive_plain(i);

        for (uint32_t n = 1; find(BT_ROUTER_FINISHED) == NULL; n++) {
            ticket(0, attempt(id, n), BT_OK);
            node_fails(0, id, n, BT_ERR_DEVICE);
        }
    }
    ck_assert_uint_le(stats().retries[BT_NODE_DECODE], 1000 / 10 + 10); // ten that a fresh router may spend
    ck_assert_uint_ge(stats().retries[BT_NODE_DECODE], 1000 / 10);
    ck_assert_uint_eq(stats().failed, 1000);
}
END_TEST

// As many as open its breaker, each of a request of its own.
static void
fail_often(uint32_t node, uint64_t tag)
{
    for (int i = 0; i < 5; i++) {
        bt_request_id id = arrive_plain(tag + (uint64_t)i);

        ck_assert_uint_eq(find(BT_ROUTER_TO_NODE)->to_node.node, node);
        ticket(node, attempt(id, 1), BT_ERR_DEVICE);
        feed(&(bt_router_event){.kind = BT_ROUTER_CANCEL, .request = id, .reason = BT_FINISH_CANCELLED});
    }
}

static bt_breaker_state
breaker_of(uint32_t node)
{
    bt_router_node seen;

    bt_router_get_node(router, node, &seen);
    return seen.breaker;
}

// Node 0 fails until its breaker is open; node 1 is well, and full.
static void
open_the_breaker_beside_a_full_node(void)
{
    node_arrives(0, 2, 8);
    fail_often(0, 1);
    ck_assert_int_eq(breaker_of(0), BT_BREAKER_OPEN);
    node_queue = 0;
    node_arrives(1, 1, 4);
    arrive_plain(9);
    ck_assert_uint_eq(find(BT_ROUTER_TO_NODE)->to_node.node, 1);
}

START_TEST(an_open_breaker_is_passed_over_and_one_probe_closes_it) // B4, B9, D12
{
    bt_request_id probe, other;

    open_the_breaker_beside_a_full_node();
    probe = arrive_plain(10); // waits
    ck_assert_ptr_null(find_message(BT_MESSAGE_RESERVE));
    other = arrive_plain(11);
    while (find_message(BT_MESSAGE_RESERVE) == NULL && now < 20 * BT_SECOND) {
        now = bt_router_next_deadline(router);
        feed(&(bt_router_event){.kind = BT_ROUTER_TICK});
        for (uint32_t node = 0; node < 2 && find_message(BT_MESSAGE_RESERVE) == NULL; node++)
            hear(node, &(bt_message){.kind = BT_MESSAGE_HEARTBEAT});
    }
    ck_assert_int_eq(now, 6 * BT_SECOND);
    ck_assert_uint_eq(find_message(BT_MESSAGE_RESERVE)->reserve.request.slot, probe.slot);
    ck_assert_uint_eq(stats().queued, 1); // one probe, not two
    ticket(0, attempt(probe, 1), BT_OK);
    ck_assert_ptr_null(find_message(BT_MESSAGE_RESERVE));
    tokens(0, attempt(probe, 1), 0, 1, BT_FINISH_NONE);
    ck_assert_int_eq(breaker_of(0), BT_BREAKER_CLOSED);
    ck_assert_uint_eq(find_message(BT_MESSAGE_RESERVE)->reserve.request.slot, other.slot); // used again
}
END_TEST

START_TEST(a_probe_that_is_cancelled_leaves_the_way_free_for_the_next)
{
    bt_request_id id;

    open_the_breaker_beside_a_full_node();
    now += 5 * BT_SECOND;
    id = arrive_plain(10);
    ck_assert_ptr_nonnull(find_message(BT_MESSAGE_RESERVE));
    feed(&(bt_router_event){.kind = BT_ROUTER_CANCEL, .request = id, .reason = BT_FINISH_CANCELLED});
    ck_assert_int_eq(breaker_of(0), BT_BREAKER_HALF_OPEN);
    id = arrive_plain(11);
    ck_assert_ptr_nonnull(find_message(BT_MESSAGE_RESERVE));
    ticket(0, attempt(id, 1), BT_ERR_DEVICE); // failed: it is open, and for longer
    ck_assert_int_eq(breaker_of(0), BT_BREAKER_OPEN);
    now += 6 * BT_SECOND;
    feed(&(bt_router_event){.kind = BT_ROUTER_TICK});
    ck_assert_int_eq(breaker_of(0), BT_BREAKER_OPEN);
}
END_TEST

START_TEST(an_only_node_is_asked_though_its_breaker_is_open)
{
    bt_request_id id;

    node_arrives(0, 2, 8);
    fail_often(0, 1);
    ck_assert_int_eq(breaker_of(0), BT_BREAKER_OPEN);
    id = arrive_plain(10);
    ck_assert_ptr_nonnull(find_message(BT_MESSAGE_RESERVE));
    ticket(0, attempt(id, 1), BT_OK);
    tokens(0, attempt(id, 1), 0, 8, BT_FINISH_LENGTH);
    ck_assert_int_eq(breaker_of(0), BT_BREAKER_OPEN); // that was no probe
    now += 5 * BT_SECOND;
    id = arrive_plain(11);
    ticket(0, attempt(id, 1), BT_OK);
    tokens(0, attempt(id, 1), 0, 1, BT_FINISH_NONE);
    ck_assert_int_eq(breaker_of(0), BT_BREAKER_CLOSED);
}
END_TEST

START_TEST(the_next_best_node_is_taken_while_a_breaker_is_open_and_a_new_program_is_trusted)
{
    node_arrives(0, 16, 64);
    fail_often(0, 1);
    node_arrives(1, 16, 64);
    for (uint64_t tag = 10; tag < 16; tag++) {
        arrive_plain(tag);
        ck_assert_uint_eq(find(BT_ROUTER_TO_NODE)->to_node.node, 1);
    }
    hello_as(0, 777, 16, 64);
    ck_assert_int_eq(breaker_of(0), BT_BREAKER_CLOSED);
    arrive_plain(17);
    ck_assert_uint_eq(find(BT_ROUTER_TO_NODE)->to_node.node, 0);
}
END_TEST

START_TEST(a_thousand_bad_requests_open_no_breaker) // D13
{
    static const bt_err errs[] = {BT_ERR_INVALID, BT_ERR_TOO_LONG, BT_ERR_BUSY};

    node_arrives(0, 2, 8);
    for (uint64_t i = 0; i < 1000; i++) {
        bt_request_id id = arrive_plain(i);

        now += 20 * BT_MILLISECOND; // the node may be asked again
        hear(0, &(bt_message){.kind = BT_MESSAGE_HEARTBEAT});
        ticket(0, attempt(id, 1), errs[i % 3]);
        if (errs[i % 3] == BT_ERR_BUSY)
            feed(&(bt_router_event){.kind = BT_ROUTER_CANCEL, .request = id, .reason = BT_FINISH_CANCELLED});
        now += 20 * BT_MILLISECOND;
    }
    ck_assert_int_eq(breaker_of(0), BT_BREAKER_CLOSED);
    ck_assert_uint_eq(stats().breakers_opened, 0);
    ck_assert_uint_eq(stats().retries[BT_NODE_DECODE], 0);
}
END_TEST

START_TEST(a_lost_message_is_noticed_at_the_next_or_at_the_heartbeat)
{
    bt_request_id id = bring_to(BT_REQUEST_DECODING);
    bt_message beat = {.kind = BT_MESSAGE_HEARTBEAT};

    beat.heartbeat.tokens_number = numbers[0];
    hear(0, &beat);
    ck_assert_uint_eq(acts->count, 0);
    beat.heartbeat.tokens_number = numbers[0] + 1;
    hear(0, &beat);
    ck_assert_ptr_nonnull(find_message(BT_MESSAGE_HELLO)); // begins anew
    ck_assert_uint_eq(stats().queued, 1);
    hello_as(0, 100, 1, 4);
    ck_assert_uint_eq(find_message(BT_MESSAGE_RESERVE)->reserve.answer_count, 2);
    ticket(0, attempt(id, 2), BT_OK);
    numbers[0]++; // one is lost
    tokens(0, attempt(id, 2), 3, 1, BT_FINISH_NONE);
    ck_assert_ptr_null(find(BT_ROUTER_TOKENS));
    ck_assert_ptr_nonnull(find_message(BT_MESSAGE_HELLO));
}
END_TEST

START_TEST(a_lost_nodes_request_goes_on_elsewhere_with_the_answer_it_has)
{
    bt_request_id id = bring_to(BT_REQUEST_DECODING);
    const bt_job *job;

    feed(&(bt_router_event){.kind = BT_ROUTER_NODE_DOWN, .node = 0});
    ck_assert_ptr_null(find(BT_ROUTER_FINISHED));
    node_arrives(1, 1, 4);
    job = &find_message(BT_MESSAGE_RESERVE)->reserve;
    ck_assert_uint_eq(job->prompt_count, 4);
    ck_assert_uint_eq(job->answer_count, 2);
    ck_assert_int_eq(job->ids[5], 51);
    // Back again, the first node speaks of what it had.
    node_arrives(0, 1, 4);
    tokens(0, attempt(id, 1), 2, 1, BT_FINISH_STOP);
    ck_assert_ptr_null(find(BT_ROUTER_TOKENS));
    ticket(1, attempt(id, 2), BT_OK);
    tokens(1, attempt(id, 2), 2, 6, BT_FINISH_LENGTH);
    ck_assert_uint_eq(find(BT_ROUTER_TOKENS)->tokens.first, 2);
    ck_assert_uint_eq(find(BT_ROUTER_FINISHED)->finished.usage.completion_tokens, 8);
    ck_assert_uint_eq(find(BT_ROUTER_FINISHED)->finished.moves, 1);
}
END_TEST

START_TEST(an_earlier_attempt_at_the_same_node_is_not_believed)
{
    bt_request_id id = bring_to(BT_REQUEST_RESERVING);

    ticket(0, attempt(id, 1), BT_ERR_BUSY);
    ck_assert_uint_eq(stats().queued, 1);
    now += BT_SECOND;
    feed(&(bt_router_event){.kind = BT_ROUTER_TICK});
    ck_assert_ptr_nonnull(find_message(BT_MESSAGE_RESERVE));
    ticket(0, attempt(id, 1), BT_OK);
    ck_assert_ptr_null(find_message(BT_MESSAGE_START));
    tokens(0, attempt(id, 1), 0, 1, BT_FINISH_STOP);
    ck_assert_ptr_null(find(BT_ROUTER_FINISHED));
    ck_assert_uint_eq(stats().late_messages, 2);
    ticket(0, attempt(id, 2), BT_OK);
    ck_assert_ptr_nonnull(find_message(BT_MESSAGE_START));
}
END_TEST

START_TEST(a_node_that_refuses_for_good_fails_the_request)
{
    bt_request_id id = bring_to(BT_REQUEST_RESERVING);

    ticket(0, attempt(id, 1), BT_ERR_TOO_LONG);
    ck_assert_int_eq(find(BT_ROUTER_FINISHED)->finished.err, BT_ERR_TOO_LONG);
}
END_TEST

START_TEST(a_link_that_is_full_keeps_the_request_here_for_a_while)
{
    bt_request_id id = bring_to(BT_REQUEST_RESERVING);

    feed(&(bt_router_event){.kind = BT_ROUTER_NODE_BUSY, .node = 0, .request = id});
    ck_assert_uint_eq(stats().queued, 1);
    ck_assert_ptr_null(find_message(BT_MESSAGE_RESERVE));
    now = bt_router_next_deadline(router);
    ck_assert_int_lt(now, 2 * BT_SECOND);
    feed(&(bt_router_event){.kind = BT_ROUTER_TICK});
    ck_assert_ptr_nonnull(find_message(BT_MESSAGE_RESERVE));
}
END_TEST

START_TEST(a_new_epoch_means_that_all_is_to_be_done_again)
{
    bt_request_id id = bring_to(BT_REQUEST_DECODING);

    hello_as(0, 999, 1, 4);
    ck_assert_uint_eq(find_message(BT_MESSAGE_RESERVE)->reserve.answer_count, 2);
    ck_assert_uint_eq(find_message(BT_MESSAGE_RESERVE)->reserve.request.slot, id.slot);
}
END_TEST

START_TEST(heartbeats_go_out_and_a_silent_node_is_left)
{
    bt_message beat = {.kind = BT_MESSAGE_HEARTBEAT};
    int beats = 0;

    bring_to(BT_REQUEST_DECODING);
    for (int second = 0; second < 20; second++) {
        now += BT_SECOND;
        feed(&(bt_router_event){.kind = BT_ROUTER_TICK});
        beats += find_message(BT_MESSAGE_HEARTBEAT) != NULL;
        beat.heartbeat.tokens_number = numbers[0];
        hear(0, &beat);
    }
    ck_assert_int_eq(beats, 20);
    ck_assert_uint_eq(stats().moves, 0);
    for (int second = 0; second < 12; second++) {
        now += BT_SECOND;
        feed(&(bt_router_event){.kind = BT_ROUTER_TICK});
    }
    ck_assert_uint_eq(stats().moves, 1);
    ck_assert(!bt_router_ready(router));
    ck_assert_ptr_nonnull(find_message(BT_MESSAGE_HELLO)); // asks until it answers
}
END_TEST

START_TEST(the_routers_own_sleep_does_not_count_against_a_node)
{
    bring_to(BT_REQUEST_DECODING);
    feed(&(bt_router_event){.kind = BT_ROUTER_TICK});
    now += 300 * BT_SECOND;
    feed(&(bt_router_event){.kind = BT_ROUTER_TICK});
    ck_assert_uint_eq(stats().moves, 0);
    ck_assert(bt_router_ready(router));
}
END_TEST

static void
expect_next(bt_request_id *running, bt_request_id next)
{
    tokens(0, attempt(*running, 1), 0, 8, BT_FINISH_LENGTH);
    ck_assert_ptr_nonnull(find_message(BT_MESSAGE_RESERVE));
    ck_assert_uint_eq(find_message(BT_MESSAGE_RESERVE)->reserve.request.slot, next.slot);
    ticket(0, attempt(next, 1), BT_OK);
    *running = next;
}

START_TEST(the_older_goes_first_unless_priority_makes_up_for_it)
{
    bt_router_arrival arrival = an_arrival(1, 4, 8);
    bt_request_id running, low, normal, late;

    node_queue = 0;
    node_arrives(0, 1, 4);
    running = arrive(&arrival);
    ticket(0, attempt(running, 1), BT_OK);
    arrival.priority = 1;
    low = arrive(&arrival);
    arrival.priority = 0;
    now += BT_SECOND;
    normal = arrive(&arrival);
    now += 2 * BT_SECOND; // the low one has waited long enough by now
    late = arrive(&arrival);
    expect_next(&running, normal);
    expect_next(&running, low);
    expect_next(&running, late);
}
END_TEST

START_TEST(arrivals_of_one_moment_spread_over_the_nodes) // D9
{
    teardown();
    setup_with((bt_router_limits){.requests_max = 64});
    node_arrives(0, 16, 64);
    node_arrives(1, 16, 64);
    for (uint64_t i = 0; i < 20; i++) {
        uint32_t node;

        arrive_plain(i);
        node = find(BT_ROUTER_TO_NODE)->to_node.node;
        numbers[2 + node]++;
    }
    ck_assert_uint_eq(numbers[2], 10);
    ck_assert_uint_eq(numbers[3], 10);
    stats();
}
END_TEST

START_TEST(more_nodes_than_one_call_can_speak_to_are_all_spoken_to)
{
    static uint32_t beats[3000];
    int calls = 0;

    teardown();
    setup_with((bt_router_limits){.nodes_max = 3000});
    feed(&(bt_router_event){.kind = BT_ROUTER_TICK});
    for (uint32_t node = 0; node < 3000; node++) {
        feed(&(bt_router_event){.kind = BT_ROUTER_NODE_UP, .node = node});
        hear(node, &(bt_message){.kind = BT_MESSAGE_HELLO,
                                 .hello = {.epoch = 1 + node, .sequences = 1, .blocks = 9, .block_tokens = 16}});
    }
    now += BT_SECOND;
    do {
        feed(&(bt_router_event){.kind = BT_ROUTER_TICK});
        for (uint32_t i = 0; i < acts->count; i++)
            beats[acts->action[i].to_node.node] += acts->action[i].to_node.message.kind == BT_MESSAGE_HEARTBEAT;
    } while (++calls < 9 && bt_router_next_deadline(router) <= now);
    ck_assert_int_le(calls, 3);
    for (uint32_t node = 0; node < 3000; node++)
        ck_assert_uint_eq(beats[node], 1);
}
END_TEST

START_TEST(other_policies_look_at_the_number_of_requests_or_at_nothing)
{
    static const bt_place_policy policies[] = {BT_PLACE_LEAST_LOAD, BT_PLACE_RANDOM};
    uint32_t counts[2] = {0};
    int apart = 0; // at most, on the way
    bt_router_arrival large = an_arrival(1, 4, 60), small = an_arrival(2, 4, 8);

    teardown();
    setup_with((bt_router_limits){.requests_max = 64, .place = policies[_i]});
    node_arrives(0, 64, 256);
    node_arrives(1, 64, 256);
    for (uint64_t i = 0; i < 40; i++) { // large and small in turn: ours would weigh them
        bt_router_arrival arrival = i % 2 == 0 ? large : small;

        arrival.tag = i;
        arrive(&arrival);
        counts[find(BT_ROUTER_TO_NODE)->to_node.node]++;
        apart = abs((int)counts[0] - (int)counts[1]) > apart ? abs((int)counts[0] - (int)counts[1]) : apart;
    }
    ck_assert(counts[0] > 0 && counts[1] > 0);
    ck_assert(policies[_i] == BT_PLACE_LEAST_LOAD ? apart == 1 : apart > 1);
}
END_TEST

START_TEST(foreign_and_malformed_messages_are_counted_and_change_nothing)
{
    bt_message reserve = {.kind = BT_MESSAGE_START}, broken = {.kind = BT_MESSAGE_TOKENS, .tokens = {1, 5, NULL}};

    bring_to(BT_REQUEST_DECODING);
    hear(0, &reserve); // not a node's to say
    hear(0, &broken);
    hear(3, &reserve); // no such node
    ck_assert_uint_eq(acts->count, 0);
    ck_assert_uint_eq(stats().bad_messages, 3);
    ck_assert_uint_eq(stats().running, 1);
}
END_TEST

START_TEST(opening_survives_the_loss_of_any_allocation)
{
    bt_router_limits limits = {.context = CONTEXT, .epoch = 1};
    long live = bt_mem_live();
    bt_router *opened;
    bt_why why;

    for (long nth = 1;; nth++) {
        bt_err err;

        bt_mem_fail_nth(nth);
        err = bt_router_open(&opened, &limits, &why);
        bt_mem_fail_nth(0);
        if (err == BT_OK)
            break;
        ck_assert_int_eq(err, BT_ERR_NO_MEMORY);
        ck_assert_int_eq(bt_mem_live(), live);
    }
    bt_router_close(opened);
    ck_assert_int_eq(bt_mem_live(), live);
    limits.context = 0;
    ck_assert_int_eq(bt_router_open(&opened, &limits, &why), BT_ERR_INVALID);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("router core");
    TCase *all = tcase_create("all");

    tcase_add_checked_fixture(all, setup, teardown);
    tcase_add_test(all, only_the_moves_of_the_table_are_legal);
    tcase_add_test(all, a_request_runs_from_arrival_to_its_length);
    tcase_add_test(all, a_prompt_beyond_the_context_is_refused_with_both_numbers);
    tcase_add_test(all, what_no_pool_can_hold_is_refused_at_once);
    tcase_add_test(all, max_tokens_left_out_is_the_rest_of_the_context_or_the_default);
    tcase_add_test(all, malformed_arrivals_are_refused);
    tcase_add_test(all, a_full_queue_answers_busy_and_says_when_to_come_back);
    tcase_add_test(all, without_a_node_requests_are_refused_and_not_kept_waiting);
    tcase_add_test(all, draining_refuses_what_comes_and_finishes_what_runs);
    tcase_add_loop_test(all, a_cancel_ends_a_request_at_once_in_every_state, 0, 4);
    tcase_add_loop_test(all, a_deadline_ends_a_request_in_every_state, 0, 4);
    tcase_add_test(all, a_stop_string_ends_a_request_as_stopped);
    tcase_add_test(all, repeated_tokens_are_given_once_and_missing_ones_are_asked_for_anew);
    tcase_add_test(all, more_tokens_than_asked_for_are_not_believed);
    tcase_add_test(all, an_error_is_tried_again_twice_with_the_answer_so_far_and_elsewhere_first);
    tcase_add_test(all, no_more_than_a_tenth_of_all_requests_is_tried_again);
    tcase_add_test(all, an_open_breaker_is_passed_over_and_one_probe_closes_it);
    tcase_add_test(all, a_probe_that_is_cancelled_leaves_the_way_free_for_the_next);
    tcase_add_test(all, an_only_node_is_asked_though_its_breaker_is_open);
    tcase_add_test(all, the_next_best_node_is_taken_while_a_breaker_is_open_and_a_new_program_is_trusted);
    tcase_add_test(all, a_thousand_bad_requests_open_no_breaker);
    tcase_add_test(all, a_lost_message_is_noticed_at_the_next_or_at_the_heartbeat);
    tcase_add_test(all, a_lost_nodes_request_goes_on_elsewhere_with_the_answer_it_has);
    tcase_add_test(all, an_earlier_attempt_at_the_same_node_is_not_believed);
    tcase_add_test(all, a_node_that_refuses_for_good_fails_the_request);
    tcase_add_test(all, a_link_that_is_full_keeps_the_request_here_for_a_while);
    tcase_add_test(all, a_new_epoch_means_that_all_is_to_be_done_again);
    tcase_add_test(all, heartbeats_go_out_and_a_silent_node_is_left);
    tcase_add_test(all, the_routers_own_sleep_does_not_count_against_a_node);
    tcase_add_test(all, the_older_goes_first_unless_priority_makes_up_for_it);
    tcase_add_test(all, arrivals_of_one_moment_spread_over_the_nodes);
    tcase_add_test(all, more_nodes_than_one_call_can_speak_to_are_all_spoken_to);
    tcase_add_loop_test(all, other_policies_look_at_the_number_of_requests_or_at_nothing, 0, 2);
    tcase_add_test(all, foreign_and_malformed_messages_are_counted_and_change_nothing);
    tcase_add_test(all, opening_survives_the_loss_of_any_allocation);
    suite_add_tcase(suite, all);
    return bt_test_run(suite);
}
