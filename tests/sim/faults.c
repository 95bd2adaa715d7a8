// Which faults there are at all (drawn once a seed), and whom they strike when.
#include "tests/sim/inside.h"

const char *const world_fault_names[WORLD_FAULTS] = {
    [WORLD_CUT] = "cut",
    [WORLD_CUT_ONE_WAY] = "cut_one_way",
    [WORLD_CUT_OFF] = "cut_off",
    [WORLD_CUT_PLANE] = "cut_plane",
    [WORLD_KILL] = "kill",
    [WORLD_KILL_ROUTER] = "kill_router",
    [WORLD_POWER] = "power",
    [WORLD_FREEZE] = "freeze",
    [WORLD_DRAIN] = "drain",
    [WORLD_MUTE] = "mute",
    [WORLD_DEVICE] = "device",
    [WORLD_LOSE_TOKENS] = "lose_tokens",
    [WORLD_DROP_FRAME] = "drop_frame",
    [WORLD_LATE_FRAME] = "late_frame",
    [WORLD_TWICE_FRAME] = "twice_frame",
    [WORLD_OVERTAKE] = "overtake",
    [WORLD_NARROW] = "narrow_link",
    [WORLD_FETCH_BREAK] = "fetch_break",
    [WORLD_FETCH_FLIP] = "fetch_flip",
    [WORLD_FETCH_NEVER] = "fetch_never",
    [WORLD_FETCH_LATE] = "fetch_late",
    [WORLD_CANCEL_LATE] = "cancel_late",
    [WORLD_FETCH_TORN] = "fetch_torn",
    [WORLD_DEAD_SUCCESS] = "dead_success",
    [WORLD_CLIENT_GONE] = "client_gone",
    [WORLD_CLIENT_SLOW] = "client_slow",
    [WORLD_BAD_REQUEST] = "bad_request",
    [WORLD_FULL_POOLS] = "full_pools",
};

const char *const world_bug_names[WORLD_BUGS] = {"none",     "believe",  "sum_only", "late_write",
                                                 "no_taken", "no_abort", "no_gap",   "tokens"};

// How rare a fault is where it exists: one in `often` to `seldom` occasions; it exists in one of `seeds` seeds.
static const struct {
    uint32_t seeds, often, seldom;
} rates[WORLD_FAULTS] = {
    [WORLD_CUT] = {3, 60, 1200},          // occasions: turns
    [WORLD_CUT_ONE_WAY] = {3, 60, 1200},  //
    [WORLD_CUT_OFF] = {6, 200, 2000},     //
    [WORLD_CUT_PLANE] = {4, 60, 1200},    //
    [WORLD_KILL] = {3, 100, 1500},        //
    [WORLD_KILL_ROUTER] = {5, 300, 3000}, //
    [WORLD_POWER] = {5, 200, 2000},       //
    [WORLD_FREEZE] = {4, 200, 2000},      //
    [WORLD_DRAIN] = {5, 300, 3000},       //
    [WORLD_MUTE] = {5, 200, 2000},        //
    [WORLD_DEVICE] = {5, 50, 400},        // steps
    [WORLD_LOSE_TOKENS] = {4, 20, 400},   // TOKENS messages
    [WORLD_DROP_FRAME] = {4, 100, 2000},  // messages
    [WORLD_LATE_FRAME] = {6, 100, 2000},  //
    [WORLD_TWICE_FRAME] = {4, 10, 100},   //
    [WORLD_OVERTAKE] = {2, 1, 4},         // ABORTs and HEARTBEATs behind others
    [WORLD_FETCH_BREAK] = {3, 3, 30},     // fetches
    [WORLD_FETCH_FLIP] = {4, 3, 30},      //
    [WORLD_FETCH_NEVER] = {4, 5, 60},     //
    [WORLD_FETCH_LATE] = {3, 3, 30},      //
    [WORLD_CANCEL_LATE] = {3, 1, 8},      // of them that are cancelled
    [WORLD_FETCH_TORN] = {3, 2, 10},      //
    [WORLD_DEAD_SUCCESS] = {2, 1, 3},     // fetches whose source dies
    [WORLD_CLIENT_GONE] = {2, 2, 12},     // clients
    [WORLD_CLIENT_SLOW] = {4, 4, 20},     //
    [WORLD_BAD_REQUEST] = {4, 10, 40},    //
};

static void
note_consequences(world *w)
{
    w->failing = w->one_in[WORLD_DEVICE] > 0;
    w->lossy = w->one_in[WORLD_LOSE_TOKENS] > 0 || w->queue_max < 200;
    for (world_fault fault = WORLD_CUT; fault <= WORLD_MUTE; fault++)
        w->lossy |= w->one_in[fault] > 0;
    w->lossy |= w->one_in[WORLD_DROP_FRAME] > 0 || w->one_in[WORLD_LATE_FRAME] > 0;
}

void
world_draw_faults(world *w)
{
    for (world_fault fault = 0; fault < WORLD_FAULTS; fault++) {
        uint32_t seeds = rates[fault].seeds;

        w->one_in[fault] = seeds > 0 && one_in(w, seeds) ? draw(w, rates[fault].often, rates[fault].seldom) : 0;
    }
    if (one_in(w, 5))
        w->queue_max = draw(w, 6, 24);
    if (w->one_in[WORLD_FETCH_LATE] > 0) // holds end while fetches are under way
        w->prefill_limits.hold_max = draw(w, 20, 500) * BT_MILLISECOND;
    note_consequences(w);
}

// Nothing strikes any more, what is cut or stopped heals in its time.
void
world_faults_end(world *w)
{
    memset(w->one_in, 0, sizeof w->one_in);
}

// --- when they strike --------------------------------------------------------------------------------------------------------

static bt_time
draw_span(world *w)
{
    return draw(w, 0, one_in(w, 3) ? 8000 : 30) * BT_MILLISECOND;
}

// Who has heard nothing for WORLD_SILENCE closes.
static void
expect_silence(world *w, uint32_t from, uint32_t to, bt_time span)
{
    if (span <= WORLD_SILENCE)
        return;
    for (uint32_t i = 0; i < w->pair_count; i++) {
        world_pair *pair = &w->pairs[i];

        for (uint32_t c = 0; c < WORLD_CONNS; c++) {
            for (uint32_t side = 0; side < 2; side++) {
                if (pair->conns[c].up[side] && pair->member[side] == to && pair->member[1 - side] == from)
                    earlier(&pair->conns[c].expires[side], w->now + WORLD_SILENCE);
            }
        }
    }
}

void
world_cut_path(world *w, uint32_t from, uint32_t to, bt_time span)
{
    if (is_cut(w, from, to))
        return;
    world_say(w, "is cut from", to, from, BT_MESSAGE_NONE, (uint64_t)span, 0, 0);
    w->cut_until[from][to] = w->now + span;
    expect_silence(w, from, to, span);
}

void
world_cut_pair(world *w, uint32_t a, uint32_t b, bt_time span, bool both)
{
    world_cut_path(w, a, b, span);
    if (both)
        world_cut_path(w, b, a, span);
}

void
world_freeze(world *w, uint32_t member, bt_time span)
{
    if (!is_awake(w, member))
        return;
    world_say(w, "freezes", member, WORLD_MEMBERS, BT_MESSAGE_NONE, (uint64_t)span, 0, 0);
    w->members[member].frozen_until = w->now + span;
    for (uint32_t other = 0; other < WORLD_MEMBERS; other++)
        expect_silence(w, member, other, span);
}

void
world_kill(world *w, uint32_t member, bt_time away)
{
    if (!w->members[member].up)
        return;
    world_stop(w, member, false);
    w->members[member].back_at = w->now + away;
}

static uint32_t
draw_node(world *w)
{
    uint32_t node = draw(w, 0, w->options.prefills + w->options.decodes - 1);

    return node < w->options.prefills ? WORLD_PREFILL_0 + node : WORLD_DECODE_0 + node - w->options.prefills;
}

static uint32_t
draw_router(world *w)
{
    return draw(w, 0, w->options.routers - 1);
}

static uint32_t
draw_member(world *w)
{
    return one_in(w, 3) ? draw_router(w) : draw_node(w);
}

static void
strike_links(world *w)
{
    for (world_fault fault = WORLD_CUT; fault <= WORLD_CUT_ONE_WAY; fault++) {
        uint32_t a, b;

        if (!strikes(w, fault))
            continue;
        a = draw_node(w);
        b = one_in(w, 2) ? draw_router(w) : draw_node(w);
        if (one_in(w, 2))
            world_cut_pair(w, a, b, draw_span(w), fault == WORLD_CUT);
        else
            world_cut_pair(w, b, a, draw_span(w), fault == WORLD_CUT);
    }
    if (strikes(w, WORLD_CUT_OFF)) {
        uint32_t alone = draw_member(w);
        bt_time span = draw_span(w);

        for (uint32_t other = 0; other < WORLD_MEMBERS; other++)
            world_cut_pair(w, alone, other, span, true);
    }
    if (strikes(w, WORLD_MUTE)) {
        uint32_t from = draw_member(w), to = draw_member(w);

        w->mute_until[from][to] = w->now + draw_span(w);
        world_say(w, "says no heartbeat to", from, to, BT_MESSAGE_NONE, 0, 0, 0);
    }
    if (w->options.prefills > 0 && strikes(w, WORLD_CUT_PLANE)) {
        uint32_t p = WORLD_PREFILL_0 + draw(w, 0, w->options.prefills - 1);
        uint32_t d = WORLD_DECODE_0 + draw(w, 0, w->options.decodes - 1);

        w->plane_cut_until[d][p] = w->now + draw_span(w);
        world_say(w, "fetches nothing of", d, p, BT_MESSAGE_NONE, 0, 0, 0);
    }
}

static void
strike_members(world *w)
{
    uint32_t victim;
    bt_time span;

    // What is drawn has its order from statements: a compiler may evaluate arguments in any, and a seed is to mean one world.
    if (strikes(w, WORLD_KILL)) {
        span = draw_span(w);
        world_kill(w, draw_node(w), span);
    }
    if (strikes(w, WORLD_KILL_ROUTER)) {
        span = draw_span(w);
        world_kill(w, draw_router(w), span);
    }
    if (strikes(w, WORLD_POWER)) {
        victim = draw_member(w);
        if (w->members[victim].up) {
            world_stop(w, victim, true);
            w->members[victim].back_at = w->now + draw_span(w);
        }
    }
    if (strikes(w, WORLD_FREEZE)) {
        span = draw_span(w) + BT_MILLISECOND;
        world_freeze(w, draw_member(w), span);
    }
    if (strikes(w, WORLD_DRAIN)) {
        victim = draw_member(w);
        if (is_awake(w, victim) && !w->members[victim].draining)
            world_drain(w, victim);
    }
}

void
world_faults_turn(world *w)
{
    strike_links(w);
    strike_members(w);
}
