// Connections as common/net/nng_link.h promises them: in order and once or closed, a gap closes, what came twice is dropped, ABORT and
// HEARTBEAT may overtake, a full queue is BUSY. TCP below them: a cut path delays what is sent until it heals, or until one side has
// heard nothing for WORLD_SILENCE and closes. So the two sides learn of a loss at different moments, and the side that dials may be
// back before the other has missed it.
#include "tests/sim/inside.h"

static void
add_pair(world *w, uint32_t dialer, uint32_t listener)
{
    if (w->members[dialer].exists && w->members[listener].exists)
        w->pairs[w->pair_count++] = (world_pair){.member = {dialer, listener}, .dial_at = w->now};
}

// Routers dial all nodes, decode nodes dial prefill nodes.
void
world_links_open(world *w)
{
    for (uint32_t from = 0; from < WORLD_MEMBERS; from++) {
        for (uint32_t to = WORLD_PREFILL_0; to < WORLD_MEMBERS; to++) {
            if (from < WORLD_PREFILL_0 || (from >= WORLD_DECODE_0 && to < WORLD_DECODE_0))
                add_pair(w, from, to);
        }
    }
}

static void
clear(world_pipe *pipe)
{
    while (pipe->first != NULL) {
        world_letter *letter = pipe->first;

        pipe->first = letter->next;
        free(letter->message);
        free(letter);
    }
    *pipe = (world_pipe){.last_at = pipe->last_at};
}

static world_pair *
pair_of(world *w, const world_conn *conn)
{
    size_t offset = (size_t)((const char *)conn - (const char *)w->pairs);

    return &w->pairs[offset / sizeof(world_pair)];
}

static void
forget_peer(world *w, world_conn *conn, uint32_t side)
{
    uint32_t member = pair_of(w, conn)->member[side];

    conn->up[side] = false;
    conn->expires[side] = BT_TIME_NEVER;
    w->conn_of[member][conn->peer[side]] = NULL;
}

static world_letter *
new_letter(bt_time at, const bt_message *message)
{
    world_letter *letter = calloc(1, sizeof *letter);

    letter->at = at;
    if (message != NULL)
        letter->message = bt_message_copy(aligned_alloc(16, bt_message_size(message)), message);
    return letter;
}

static void
append(world_pipe *pipe, world_letter *letter)
{
    pipe->last_at = letter->at;
    if (pipe->last != NULL)
        pipe->last->next = letter;
    else
        pipe->first = letter;
    pipe->last = letter;
    pipe->count++;
}

static bt_time
arrival_time(world *w, const world_pipe *pipe)
{
    return later(w->now + draw(w, 10, 3000) * BT_MICROSECOND, pipe->last_at);
}

// One side closes: what it has sent and what it says of its end still arrive, unless the path is cut; what comes is read by nobody.
static void
close_side(world *w, world_conn *conn, uint32_t side, bool silently)
{
    world_pair *pair = pair_of(w, conn);

    forget_peer(w, conn, side);
    clear(&conn->pipe[1 - side]);
    if (side == 0)
        pair->dial_at = w->now + draw(w, 0, one_in(w, 4) ? 2000 : 50) * BT_MILLISECOND;
    if (conn->up[1 - side] && !silently)
        append(&conn->pipe[side], new_letter(arrival_time(w, &conn->pipe[side]), NULL));
    else if (conn->up[1 - side])
        earlier(&conn->expires[1 - side], w->now + WORLD_SILENCE);
    if (!conn->up[1 - side])
        clear(&conn->pipe[side]);
}

static void
lose(world *w, world_conn *conn, uint32_t side, const char *why)
{
    world_pair *pair = pair_of(w, conn);
    uint32_t peer = conn->peer[side];

    world_say(w, why, pair->member[side], pair->member[1 - side], BT_MESSAGE_NONE, peer, 0, 0);
    close_side(w, conn, side, false);
    world_tell(w, pair->member[side], peer, WORLD_DOWN, NULL);
}

void
world_lose_link(world *w, uint32_t self, uint32_t peer, const char *why)
{
    world_conn *conn = w->conn_of[self][peer];

    lose(w, conn, pair_of(w, conn)->member[0] == self ? 0 : 1, why);
}

void
world_close_links_of(world *w, uint32_t member, bool silently)
{
    for (uint32_t i = 0; i < w->pair_count; i++) {
        for (uint32_t c = 0; c < WORLD_CONNS; c++) {
            for (uint32_t side = 0; side < 2; side++) {
                if (w->pairs[i].member[side] == member && w->pairs[i].conns[c].up[side])
                    close_side(w, &w->pairs[i].conns[c], side, silently);
            }
        }
    }
}

void
world_reset_stale(world *w, uint32_t member)
{
    for (uint32_t i = 0; i < w->pair_count; i++) {
        world_pair *pair = &w->pairs[i];

        for (uint32_t c = 0; c < 2 * WORLD_CONNS; c++) {
            world_conn *conn = &pair->conns[c / 2];

            if (pair->member[c % 2] == member && conn->up[1 - c % 2] && !conn->up[c % 2] &&
                !is_cut(w, member, pair->member[1 - c % 2]))
                earlier(&conn->expires[1 - c % 2], w->now + draw(w, 1, 500) * BT_MILLISECOND);
        }
        if (pair->member[0] == member)
            pair->dial_at = w->now + draw(w, 0, 20) * BT_MILLISECOND;
    }
}

// --- sending -----------------------------------------------------------------------------------------------------------------

static bool
may_overtake(const bt_message *message, const bt_message *before)
{
    static const bt_request_id none;
    const bt_request_id *own = message->kind == BT_MESSAGE_ABORT ? &message->abort.request : &none;

    if (before == NULL || before->kind == BT_MESSAGE_HELLO)
        return false;
    if (message->kind == BT_MESSAGE_HEARTBEAT)
        return before->kind != BT_MESSAGE_TOKENS && before->kind != BT_MESSAGE_HEARTBEAT;
    if (message->kind != BT_MESSAGE_ABORT || before->kind == BT_MESSAGE_ABORT)
        return false;
    return !(before->kind == BT_MESSAGE_RESERVE && bt_request_id_equal(*own, before->reserve.request)) &&
           !(before->kind == BT_MESSAGE_START && bt_request_id_equal(*own, before->start.request)) &&
           !(before->kind == BT_MESSAGE_AWAIT && bt_request_id_equal(*own, before->await.request)) &&
           !(before->kind == BT_MESSAGE_PREFILL && bt_request_id_equal(*own, before->prefill.job.request));
}

// Behind the last letter that it may not overtake.
static void
push_in(world_pipe *pipe, world_letter *letter)
{
    world_letter *after = NULL;

    for (world_letter *l = pipe->first; l != NULL; l = l->next) {
        if (!may_overtake(letter->message, l->message))
            after = l;
    }
    if (after == pipe->last) {
        append(pipe, letter);
        return;
    }
    letter->at = after != NULL ? after->at : pipe->first->at;
    letter->next = after != NULL ? after->next : pipe->first;
    if (after != NULL)
        after->next = letter;
    else
        pipe->first = letter;
    pipe->count++;
}

// WORLD_BUG_TOKENS: the edge drops a TOKENS message now and then and numbers those after it as if it had never been.
static bool
skips(world *w, world_pipe *pipe, bt_message *message)
{
    if (message->kind == BT_MESSAGE_HELLO)
        pipe->skipped = 0;
    if (message->kind == BT_MESSAGE_TOKENS && one_in(w, 20)) {
        pipe->skipped++;
        return true;
    }
    if (message->kind == BT_MESSAGE_TOKENS)
        message->tokens.number -= pipe->skipped;
    if (message->kind == BT_MESSAGE_HEARTBEAT)
        message->heartbeat.tokens_number -= pipe->skipped;
    return false;
}

// Does the message get lost, by a fault that the link or the core notices, or by a planted bug?
static bool
gets_lost(world *w, world_pipe *pipe, const bt_message *message, bool mute)
{
    world_bug bug = w->options.bug;

    if (message->kind == BT_MESSAGE_TOKENS && strikes(w, WORLD_LOSE_TOKENS))
        return true;
    if (message->kind == BT_MESSAGE_HEARTBEAT && mute)
        return true;
    if ((bug == WORLD_BUG_NO_TAKEN && message->kind == BT_MESSAGE_TAKEN && one_in(w, 4)) ||
        (bug == WORLD_BUG_NO_ABORT && message->kind == BT_MESSAGE_ABORT && one_in(w, 4)) ||
        (bug == WORLD_BUG_NO_GAP && message->kind != BT_MESSAGE_TOKENS && one_in(w, 40)))
        return true;
    strikes(w, WORLD_TWICE_FRAME); // the second is dropped: nothing to see
    if (strikes(w, WORLD_LATE_FRAME) || strikes(w, WORLD_DROP_FRAME)) {
        pipe->gap = true;
        return true;
    }
    return false;
}

world_sent
world_post(world *w, uint32_t from, uint32_t peer, const bt_message *message)
{
    world_conn *conn = w->conn_of[from][peer];
    uint32_t to = w->member_of[from][peer], side, max = w->queue_max;
    bt_message renumbered = *message;
    world_pipe *pipe;
    world_letter *letter;

    MUST(w, conn != NULL); // nobody speaks where there is no link
    MUST(w, bt_message_check(message) == BT_OK);
    side = pair_of(w, conn)->member[0] == from ? 0 : 1;
    pipe = &conn->pipe[side];
    if (message->kind == BT_MESSAGE_RESERVE || message->kind == BT_MESSAGE_PREFILL)
        max = max / 4 * 3;
    if (conn->up[1 - side] && pipe->count >= max) {
        world_say_message(w, "busy", from, to, message);
        w->totals.injected[WORLD_NARROW]++;
        return WORLD_BUSY;
    }
    world_say_message(w, ">", from, to, message);
    if (!conn->up[1 - side] || gets_lost(w, pipe, message, w->mute_until[from][to] > w->now))
        return WORLD_SENT;
    if (w->options.bug == WORLD_BUG_TOKENS && skips(w, pipe, &renumbered))
        return WORLD_SENT;
    letter = new_letter(arrival_time(w, pipe), &renumbered);
    if ((message->kind == BT_MESSAGE_ABORT || message->kind == BT_MESSAGE_HEARTBEAT) && pipe->count > 0 &&
        strikes(w, WORLD_OVERTAKE))
        push_in(pipe, letter);
    else
        append(pipe, letter);
    return WORLD_SENT;
}

// --- time --------------------------------------------------------------------------------------------------------------------

static bt_time
due_at(const world *w, const world_pair *pair, uint32_t side, const world_letter *letter)
{
    uint32_t from = pair->member[side], to = pair->member[1 - side];

    return later(later(letter->at, w->cut_until[from][to]), w->members[to].frozen_until);
}

static void
deliver(world *w, world_pair *pair, world_conn *conn, uint32_t side)
{
    world_pipe *pipe = &conn->pipe[side];
    uint32_t from = pair->member[side], to = pair->member[1 - side];

    while (pipe->first != NULL && conn->up[1 - side] && due_at(w, pair, side, pipe->first) <= w->now) {
        world_letter *letter = pipe->first;
        uint32_t peer = conn->peer[1 - side];

        pipe->first = letter->next;
        pipe->last = pipe->first == NULL ? NULL : pipe->last;
        pipe->count--;
        if (letter->message == NULL || pipe->gap) {
            lose(w, conn, 1 - side, letter->message == NULL ? "was closed by" : "misses a frame of");
        } else {
            world_say_message(w, "<", to, from, letter->message);
            world_tell(w, to, peer, WORLD_MESSAGE, letter->message);
        }
        free(letter->message);
        free(letter);
    }
}

static uint32_t
free_peer(const world *w, uint32_t member)
{
    uint32_t peer = 0;

    while (w->conn_of[member][peer] != NULL)
        peer++;
    return peer;
}

static uint32_t
dialled_peer(uint32_t dialer, uint32_t listener)
{
    return listener - WORLD_PREFILL_0 + (dialer >= WORLD_DECODE_0 ? BT_DECODE_ROUTERS_MAX : 0);
}

static void
connect_pair(world *w, world_pair *pair)
{
    world_conn *conn = NULL;

    for (uint32_t c = 0; c < WORLD_CONNS && conn == NULL; c++) {
        if (!pair->conns[c].up[0] && !pair->conns[c].up[1])
            conn = &pair->conns[c];
    }
    pair->dial_at = conn == NULL ? w->now + 100 * BT_MILLISECOND : BT_TIME_NEVER;
    if (conn == NULL)
        return;
    *conn = (world_conn){.up = {true, true}, .expires = {BT_TIME_NEVER, BT_TIME_NEVER}, .since = w->now};
    conn->peer[0] = dialled_peer(pair->member[0], pair->member[1]);
    conn->peer[1] = free_peer(w, pair->member[1]);
    for (uint32_t side = 0; side < 2; side++) {
        MUST(w, w->conn_of[pair->member[side]][conn->peer[side]] == NULL);
        w->conn_of[pair->member[side]][conn->peer[side]] = conn;
        w->member_of[pair->member[side]][conn->peer[side]] = pair->member[1 - side];
    }
    world_say(w, "meets", pair->member[0], pair->member[1], BT_MESSAGE_NONE, conn->peer[0], conn->peer[1], 0);
    for (uint32_t side = 0; side < 2; side++)
        world_tell(w, pair->member[side], conn->peer[side], WORLD_UP, NULL);
}

// When a dialler may try: a moment, or what keeps it from getting through.
static bt_time
dial_time(const world *w, const world_pair *pair)
{
    uint32_t a = pair->member[0], b = pair->member[1];
    bt_time at = later(pair->dial_at, later(w->cut_until[a][b], w->cut_until[b][a]));

    if (!w->members[a].up || !w->members[b].up || pair->dial_at == BT_TIME_NEVER)
        return BT_TIME_NEVER;
    return later(at, later(w->members[a].frozen_until, w->members[b].frozen_until));
}

static void
turn_pair(world *w, world_pair *pair)
{
    for (uint32_t c = 0; c < WORLD_CONNS; c++) {
        world_conn *conn = &pair->conns[c];

        for (uint32_t side = 0; side < 2; side++)
            deliver(w, pair, conn, side);
        for (uint32_t side = 0; side < 2; side++) {
            if (conn->up[side] && conn->expires[side] <= w->now && is_awake(w, pair->member[side]))
                lose(w, conn, side, "hears nothing of");
        }
    }
    if (dial_time(w, pair) <= w->now)
        connect_pair(w, pair);
}

void
world_links_turn(world *w)
{
    uint32_t shift = w->pair_count > 0 ? draw(w, 0, w->pair_count - 1) : 0;

    for (uint32_t i = 0; i < w->pair_count; i++)
        turn_pair(w, &w->pairs[(i + shift) % w->pair_count]);
}

void
world_links_next(const world *w, bt_time *next)
{
    for (uint32_t i = 0; i < w->pair_count; i++) {
        const world_pair *pair = &w->pairs[i];

        earlier(next, dial_time(w, pair));
        for (uint32_t c = 0; c < WORLD_CONNS; c++) {
            const world_conn *conn = &pair->conns[c];

            for (uint32_t side = 0; side < 2; side++) {
                if (conn->up[1 - side] && conn->pipe[side].first != NULL)
                    earlier(next, due_at(w, pair, side, conn->pipe[side].first));
                if (conn->up[side] && conn->expires[side] != BT_TIME_NEVER)
                    earlier(next, later(conn->expires[side], w->members[pair->member[side]].frozen_until));
            }
        }
    }
}

void
world_links_close(world *w)
{
    for (uint32_t i = 0; i < w->pair_count; i++) {
        for (uint32_t c = 0; c < WORLD_CONNS; c++) {
            clear(&w->pairs[i].conns[c].pipe[0]);
            clear(&w->pairs[i].conns[c].pipe[1]);
        }
    }
}
