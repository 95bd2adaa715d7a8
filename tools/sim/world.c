#include "common/base/mem.h"
#include "tools/sim/inside.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#define WARM_UP (3 * BT_SECOND) // nodes meet before the first request comes
#define QUIET (45 * BT_SECOND)  // after the last end: past every lease
#define PATIENCE (24 * 3600 * BT_SECOND)
#define PEERS_MAX 79 // decode nodes that a prefill node is linked to

void
sim_fail(sim_world *w, bt_err err, const char *format, ...)
{
    va_list args;

    if (w->err != BT_OK)
        return;
    w->err = err;
    va_start(args, format);
    vsnprintf(w->why->text, sizeof w->why->text, format, args);
    va_end(args);
}

void
sim_later(sim_world *w, bt_time at, sim_event_kind kind, uint32_t node, void *what)
{
    uint32_t life = node != SIM_ROUTER ? w->nodes[node].life : 0;

    if (sim_queue_push(&w->queue, (sim_event){.at = at, .kind = kind, .node = node, .life = life, .what = what}) !=
        BT_OK)
        sim_fail(w, BT_ERR_NO_MEMORY, "out of memory");
}

static uint32_t
life_of(const sim_world *w, uint32_t member)
{
    return member == SIM_ROUTER ? 0 : w->nodes[member].life;
}

static void
free_letter(sim_letter *letter)
{
    if (letter != NULL)
        bt_free(letter->message);
    bt_free(letter);
}

void
sim_post(sim_world *w, uint32_t from, uint32_t to, const bt_message *message)
{
    sim_letter *letter = bt_alloc(sizeof *letter);
    void *memory = bt_realloc(NULL, bt_message_size(message));

    if (letter == NULL || memory == NULL) {
        bt_free(letter);
        bt_free(memory);
        sim_fail(w, BT_ERR_NO_MEMORY, "out of memory");
        return;
    }
    *letter = (sim_letter){from, to, life_of(w, from), life_of(w, to), bt_message_copy(memory, message)};
    sim_later(w, w->now + w->setup->link, SIM_LETTER, SIM_ROUTER, letter);
}

// --- clients -----------------------------------------------------------------------------------------------------------------

int32_t
sim_answer_id(uint32_t row, uint32_t position)
{
    return (int32_t)(bt_mix64((uint64_t)row << 32 | position) & 0x3fffffff) | 0x40000000;
}

static uint32_t
scaled(const sim_world *w, uint32_t tokens)
{
    return (tokens + w->setup->unit - 1) / w->setup->unit;
}

static void
take_tokens(sim_world *w, const bt_router_action *action)
{
    uint32_t row = (uint32_t)action->tag;
    sim_outcome *outcome = &w->result->outcomes[row];
    uint32_t prompt = scaled(w, w->setup->trace->rows[row].prompt);

    if (action->tokens.first != outcome->tokens)
        sim_fail(w, BT_ERR_BUG, "request %u: token %u comes after %u", row, action->tokens.first, outcome->tokens);
    for (uint32_t i = 0; i < action->tokens.count; i++) {
        if (action->tokens.results[i].id != sim_answer_id(row, prompt + outcome->tokens))
            sim_fail(w, BT_ERR_BUG, "request %u: token %u is not the one that was drawn", row, outcome->tokens);
        outcome->tokens++;
    }
    if (outcome->first == 0) {
        outcome->first = w->now;
        w->waiting--;
        w->answering++;
    }
    outcome->last = w->now;
}

static void
take_end(sim_world *w, const bt_router_action *action)
{
    uint32_t row = (uint32_t)action->tag, wanted = scaled(w, w->setup->trace->rows[row].answer);
    sim_outcome *outcome = &w->result->outcomes[row];
    bool whole = action->finished.finish == BT_FINISH_LENGTH && outcome->tokens == wanted;

    if (outcome->end != SIM_OPEN)
        sim_fail(w, BT_ERR_BUG, "request %u ends twice", row);
    if (action->finished.finish == BT_FINISH_LENGTH && !whole)
        sim_fail(w, BT_ERR_BUG, "request %u ends with %u of %u tokens", row, outcome->tokens, wanted);
    outcome->end = whole ? SIM_DONE : SIM_LOST;
    outcome->moves = action->finished.moves;
    w->result->prompt_tokens += whole ? scaled(w, w->setup->trace->rows[row].prompt) : 0;
    w->open--;
    *(outcome->first != 0 ? &w->answering : &w->waiting) -= 1;
    w->result->ends = w->now;
}

static void
take_refusal(sim_world *w, const bt_router_action *action)
{
    w->result->outcomes[action->tag].end = SIM_REFUSED;
    w->open--;
    w->waiting--;
}

static void
schedule_tick(sim_world *w)
{
    bt_time at = bt_router_next_deadline(w->router);

    if (at >= w->router_tick)
        return;
    w->router_tick = at > w->now ? at : w->now;
    sim_later(w, w->router_tick, SIM_TICK, SIM_ROUTER, NULL);
}

void
sim_feed_router(sim_world *w, const bt_router_event *event)
{
    bt_router_actions *out = w->router_out;

    bt_router_step(w->router, w->now, event, out);
    for (uint32_t i = 0; i < out->count; i++) {
        const bt_router_action *action = &out->action[i];

        if (action->kind == BT_ROUTER_TO_NODE)
            sim_post(w, SIM_ROUTER, action->to_node.node, &action->to_node.message);
        else if (action->kind == BT_ROUTER_TOKENS)
            take_tokens(w, action);
        else if (action->kind == BT_ROUTER_FINISHED)
            take_end(w, action);
        else if (action->kind == BT_ROUTER_REJECTED)
            take_refusal(w, action);
    }
    schedule_tick(w);
}

static bt_time
arrival_of(const sim_world *w, uint32_t row)
{
    return WARM_UP + (bt_time)((double)w->setup->trace->rows[row].at / w->setup->rate);
}

static void
arrive(sim_world *w)
{
    uint32_t row = w->next_row++, count = scaled(w, w->setup->trace->rows[row].prompt);
    bt_sampling sampling = {.repetition_penalty = 1, .seed = row};
    bt_router_event event = {.kind = BT_ROUTER_ARRIVED};

    for (uint32_t i = 0; i < count; i++)
        w->prompt[i] = sim_trace_id(w->setup->trace, row, i * w->setup->unit);
    event.arrival = (bt_router_arrival){.tag = row,
                                        .ids = w->prompt,
                                        .count = count,
                                        .sampling = &sampling,
                                        .max_tokens = scaled(w, w->setup->trace->rows[row].answer),
                                        .deadline = BT_TIME_NEVER};
    w->result->outcomes[row].arrived = w->now;
    w->open++;
    w->waiting++;
    if (w->next_row < w->setup->trace->count)
        sim_later(w, arrival_of(w, w->next_row), SIM_ARRIVE, SIM_ROUTER, NULL);
    sim_feed_router(w, &event);
}

// --- time --------------------------------------------------------------------------------------------------------------------

static bool
all_over(const sim_world *w)
{
    return w->next_row == w->setup->trace->count && w->open == 0;
}

// When they are full, every second sample goes.
static void
sample(sim_world *w)
{
    sim_result *result = w->result;

    if (result->sample_count == SIM_SAMPLES_MAX) {
        for (uint32_t i = 0; i < SIM_SAMPLES_MAX / 2; i++) {
            result->waiting[i] = result->waiting[2 * i];
            result->answering[i] = result->answering[2 * i];
        }
        result->sample_count /= 2;
        result->sample_gap *= 2;
    }
    result->waiting[result->sample_count] = w->waiting;
    result->answering[result->sample_count++] = w->answering;
    if (!all_over(w))
        sim_later(w, w->now + result->sample_gap, SIM_SAMPLE, SIM_ROUTER, NULL);
}

static void
next_kill(sim_world *w)
{
    double hours = -log(1 - (double)bt_rng_float(&w->rng)) / w->setup->kills_per_hour;

    sim_later(w, w->now + (bt_time)(hours * 3.6e12), SIM_KILL, SIM_ROUTER, NULL);
}

static void
kill_one(sim_world *w)
{
    uint32_t victim = (uint32_t)bt_rng_below(&w->rng, w->setup->prefills + w->setup->decodes);

    if (all_over(w))
        return;
    next_kill(w);
    if (!w->nodes[victim].up)
        return;
    w->result->kills++;
    sim_node_kill(w, victim);
    sim_later(w, w->now + (bt_time)(10 + bt_rng_below(&w->rng, 21)) * BT_SECOND, SIM_RESTART, victim, NULL);
}

static void
letter_comes(sim_world *w, sim_letter *letter)
{
    if (letter->from_life == life_of(w, letter->from) && letter->to_life == life_of(w, letter->to))
        sim_node_deliver(w, letter);
    free_letter(letter);
}

static void
tick(sim_world *w, const sim_event *event)
{
    if (event->node != SIM_ROUTER) {
        sim_node_tick(w, event->node);
    } else if (w->router_tick == w->now) {
        w->router_tick = BT_TIME_NEVER;
        sim_feed_router(w, &(bt_router_event){.kind = BT_ROUTER_TICK});
    }
}

static void
happen(sim_world *w, const sim_event *event)
{
    bool alive = event->life == life_of(w, event->node);

    switch ((sim_event_kind)event->kind) {
    case SIM_ARRIVE:
        arrive(w);
        break;
    case SIM_LETTER:
        letter_comes(w, event->what);
        break;
    case SIM_STEPPED:
        if (alive)
            sim_node_stepped(w, event->node);
        break;
    case SIM_FETCHED:
        if (alive)
            sim_node_fetched(w, event->node, event->what);
        bt_free(event->what);
        break;
    case SIM_TICK:
        tick(w, event);
        break;
    case SIM_SAMPLE:
        sample(w);
        break;
    case SIM_KILL:
        kill_one(w);
        break;
    case SIM_RESTART:
        sim_node_start(w, event->node);
        break;
    }
}

static void
run(sim_world *w)
{
    bt_time last = arrival_of(w, w->setup->trace->count - 1), quiet = BT_TIME_NEVER;
    sim_event event;

    while (w->err == BT_OK && w->now < quiet && sim_queue_pop(&w->queue, &event)) {
        w->now = event.at;
        w->result->events++;
        happen(w, &event);
        if (quiet == BT_TIME_NEVER && all_over(w))
            quiet = w->now + QUIET;
        if (w->now > last + PATIENCE)
            sim_fail(w, BT_ERR_BUG, "%u requests do not end within a day of the last arrival", w->open);
    }
    if (w->err == BT_OK && !all_over(w))
        sim_fail(w, BT_ERR_BUG, "%u requests are open and nothing is to happen", w->open);
}

// --- opening and closing -----------------------------------------------------------------------------------------------------

static bt_err
open_router(sim_world *w)
{
    const sim_setup *setup = w->setup;
    bt_router_limits limits = {.nodes_max = setup->prefills + setup->decodes,
                               .requests_max = setup->requests_max,
                               .place = setup->place,
                               .context = w->context,
                               .vocab = SIM_VOCAB,
                               .epoch = 1,
                               .heartbeat = w->decode_limits.heartbeat,
                               .node_silence = 10 * w->decode_limits.heartbeat,
                               .seed = setup->seed,
                               .remote_tokens_min = 512 / setup->unit,
                               .affinity_tokens = 256 / setup->unit,
                               .two_weights = setup->two_weights,
                               .inexact = setup->inexact};

    return bt_router_open(&w->router, &limits, w->why);
}

static bt_err
check_setup(const sim_setup *setup, bt_why *why)
{
    uint32_t nodes = setup->prefills + setup->decodes;

    if (setup->decodes == 0 || nodes > SIM_NODES_MAX)
        return bt_fail(why, BT_ERR_INVALID,
                       "%u prefill and %u decode nodes: expected a decode node, and %u nodes at most", setup->prefills,
                       setup->decodes, SIM_NODES_MAX);
    if (setup->unit == 0 || setup->unit > 16 || (setup->unit & (setup->unit - 1)) != 0)
        return bt_fail(why, BT_ERR_INVALID, "a token unit of %u: expected 1, 2, 4, 8 or 16", setup->unit);
    if (!(setup->rate > 0 && setup->rate < 1e6))
        return bt_fail(why, BT_ERR_INVALID, "a rate of %g: expected more than 0", setup->rate);
    if (setup->two_weights && setup->prefills == 0)
        return bt_fail(why, BT_ERR_INVALID, "two weights and no prefill node");
    return BT_OK;
}

static uint32_t
divided_up(uint32_t a, uint32_t b)
{
    return (a + b - 1) / b;
}

static uint32_t
islands_for(const sim_setup *setup)
{
    uint32_t island =
        setup->island > 0 && setup->island < BT_DECODE_SOURCES_MAX ? setup->island : BT_DECODE_SOURCES_MAX;
    uint32_t by_prefill = divided_up(setup->prefills, island), by_decode = divided_up(setup->decodes, PEERS_MAX);

    if (setup->prefills == 0)
        return 1;
    return by_prefill > by_decode ? by_prefill : by_decode;
}

static bt_err
open_all(sim_world *w)
{
    const sim_trace *trace = w->setup->trace;
    sim_result *result = w->result;
    bt_err err;

    w->islands = islands_for(w->setup);
    w->context = (scaled(w, sim_trace_longest(trace)) + 2 * SIM_BLOCK_TOKENS) / SIM_BLOCK_TOKENS * SIM_BLOCK_TOKENS;
    w->router_tick = BT_TIME_NEVER;
    w->rng = (bt_rng){w->setup->seed};
    result->nodes = w->setup->prefills + w->setup->decodes;
    result->count = trace->count;
    result->outcomes = bt_alloc_array(trace->count, sizeof *result->outcomes);
    result->busy = bt_alloc_array(result->nodes, sizeof *result->busy);
    w->prompt = bt_alloc_array(w->context, sizeof *w->prompt);
    w->router_out = bt_alloc(sizeof *w->router_out);
    w->prefill_out = bt_alloc(sizeof *w->prefill_out);
    w->decode_out = bt_alloc(sizeof *w->decode_out);
    if (result->outcomes == NULL || result->busy == NULL || w->prompt == NULL || w->router_out == NULL ||
        w->prefill_out == NULL || w->decode_out == NULL)
        return bt_fail(w->why, BT_ERR_NO_MEMORY, "out of memory");
    if ((err = sim_nodes_open(w)) != BT_OK)
        return bt_fail(w->why, err, "out of memory");
    return open_router(w);
}

static void
close_all(sim_world *w)
{
    sim_event event;

    while (sim_queue_pop(&w->queue, &event)) {
        if (event.kind == SIM_LETTER)
            free_letter(event.what);
        else if (event.kind == SIM_FETCHED)
            bt_free(event.what);
    }
    sim_queue_free(&w->queue);
    sim_nodes_close(w);
    bt_router_close(w->router);
    bt_free(w->prompt);
    bt_free(w->router_out);
    bt_free(w->prefill_out);
    bt_free(w->decode_out);
}

static void
begin(sim_world *w)
{
    bt_time span = arrival_of(w, w->setup->trace->count - 1) - WARM_UP;

    for (uint32_t i = 0; i < w->result->nodes && w->err == BT_OK; i++)
        sim_node_start(w, i);
    w->result->begins = WARM_UP;
    w->result->sample_gap = span / (SIM_SAMPLES_MAX / 2) + BT_MILLISECOND;
    sim_later(w, WARM_UP, SIM_ARRIVE, SIM_ROUTER, NULL);
    sim_later(w, WARM_UP, SIM_SAMPLE, SIM_ROUTER, NULL);
    if (w->setup->kills_per_hour > 0)
        next_kill(w);
}

static void
conclude(sim_world *w)
{
    bt_router_stats stats;

    bt_router_get_stats(w->router, &stats);
    if (stats.leak != 0 || stats.running + stats.queued != 0)
        sim_fail(w, BT_ERR_BUG, "the router counts load when all is over: leak %lld", (long long)stats.leak);
    sim_nodes_check_idle(w);
    w->result->remote = stats.remote;
    w->result->moved = stats.moves;
    for (uint32_t i = 0; i < w->result->nodes; i++) {
        w->result->busy[i] = w->nodes[i].busy;
        w->result->computed_tokens += sim_node_computed(&w->nodes[i]);
    }
}

bt_err
sim_run(const sim_setup *setup, sim_result *result, bt_why *why)
{
    sim_world w = {.setup = setup, .result = result, .why = why};
    bt_err err = check_setup(setup, why);

    *result = (sim_result){0};
    if (err != BT_OK)
        return err;
    w.err = open_all(&w);
    if (w.err == BT_OK) {
        begin(&w);
        run(&w);
    }
    if (w.err == BT_OK)
        conclude(&w);
    close_all(&w);
    return w.err;
}

void
sim_result_free(sim_result *result)
{
    bt_free(result->outcomes);
    bt_free(result->busy);
    *result = (sim_result){0};
}
