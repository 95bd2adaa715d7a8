// The data plane: a decode node's fetch reads the memory of a prefill node while that goes on working. A fetch may come late, in part, with
// a wrong bit, never, or with trailers and contents from different moments; its source may die under it, and the transport may then
// say that all came. Until it is over, its landing blocks hold rubbish. Checks are the edge's: trailer, generation, checksum.
#include "tests/sim/inside.h"

uint64_t
world_block_hash(const uint64_t *cells)
{
    uint64_t hash = 0;

    for (uint32_t i = 0; i < WORLD_BLOCK; i++)
        hash = bt_mix64(hash ^ cells[i]);
    return hash;
}

static void
scribble(world *w, world_member *member, bt_block block)
{
    for (uint32_t c = 0; c < WORLD_BLOCK; c++)
        member->engine.cells[block * WORLD_BLOCK + c] = bt_rng_next(&w->rng);
}

static bool
can_read(const world *w, const world_fetch *fetch)
{
    const world_member *source = &w->members[fetch->source];

    return source->up && source->epoch == fetch->source_epoch;
}

void
world_fetch_begin(world *w, uint32_t self, const bt_decode_fetch *wanted)
{
    world_member *member = &w->members[self];
    world_fetch *fetch = member->fetches;

    while (fetch < member->fetches + WORLD_FETCHES_MAX && fetch->active)
        fetch++;
    MUST(w, fetch < member->fetches + WORLD_FETCHES_MAX); // as many at most as sequences
    MUST(w, wanted->count <= WORLD_FETCH_BLOCKS && wanted->count > 0);
    *fetch = (world_fetch){.active = true,
                           .count = wanted->count,
                           .source = w->member_of[self][wanted->peer],
                           .source_epoch = wanted->epoch,
                           .user = wanted->user,
                           .deadline = wanted->deadline - member->clock,
                           .peeks = BT_TIME_NEVER,
                           .ends = w->now + draw(w, 10, 2000) * BT_MICROSECOND};
    memcpy(fetch->blocks, wanted->blocks, wanted->count * sizeof *wanted->blocks);
    fetch->breaks = strikes(w, WORLD_FETCH_BREAK);
    fetch->flips = strikes(w, WORLD_FETCH_FLIP);
    if (strikes(w, WORLD_FETCH_LATE))
        fetch->ends += draw(w, 1, 1900) * BT_MILLISECOND;
    if (strikes(w, WORLD_FETCH_TORN)) {
        fetch->torn = true;
        fetch->trailers_first = one_in(w, 2);
        fetch->peeks = w->now + (fetch->ends - w->now) / draw(w, 1, 4);
    }
    if (strikes(w, WORLD_FETCH_NEVER))
        fetch->ends = BT_TIME_NEVER;
    for (uint32_t i = 0; i < fetch->count; i++) {
        fetch->landing[i] = world_landing_generation(w, self, fetch->blocks[i].to);
        scribble(w, member, fetch->blocks[i].to);
    }
    if (!world_is_connected(w, self, fetch->source, fetch->source_epoch)) {
        fetch->refused = true;
        fetch->ends = w->now;
    }
    world_say(w, "fetches", self, fetch->source, BT_MESSAGE_NONE, fetch->user, fetch->count, fetch->source_epoch);
}

void
world_fetch_cancel(world *w, uint32_t self, uint64_t user)
{
    for (uint32_t f = 0; f < WORLD_FETCHES_MAX; f++) {
        world_fetch *fetch = &w->members[self].fetches[f];

        if (!fetch->active || fetch->user != user)
            continue;
        fetch->cancelled = true;
        earlier(&fetch->ends, w->now + draw(w, 0, strikes(w, WORLD_CANCEL_LATE) ? 1000 : 50) * BT_MILLISECOND);
    }
}

// Reads trailers, contents or both of what lies there now.
static void
read_blocks(world *w, world_fetch *fetch, bool trailers, bool cells)
{
    const world_member *source = &w->members[fetch->source];

    for (uint32_t i = 0; i < fetch->count; i++) {
        bt_block from = fetch->blocks[i].from;

        if (trailers)
            fetch->seen[i].trailer = source->trailers[from];
        if (cells)
            memcpy(fetch->seen[i].cells, &source->engine.cells[from * WORLD_BLOCK], sizeof fetch->seen[i].cells);
    }
}

static void
peek(world *w, world_fetch *fetch)
{
    fetch->peeks = BT_TIME_NEVER;
    if (fetch->dead || !can_read(w, fetch))
        return;
    read_blocks(w, fetch, fetch->trailers_first, !fetch->trailers_first);
    fetch->peeked = true;
}

// What a fetch under way has of the dead: the first blocks, as they were, and no more. The transport fails, or calls it a success.
void
world_source_dies(world *w, uint32_t member)
{
    for (uint32_t self = WORLD_DECODE_0; self < WORLD_MEMBERS; self++) {
        for (uint32_t f = 0; f < WORLD_FETCHES_MAX; f++) {
            world_fetch *fetch = &w->members[self].fetches[f];

            if (!fetch->active || fetch->refused || fetch->dead || fetch->source != member || !can_read(w, fetch))
                continue;
            if (fetch->torn && fetch->peeked)
                read_blocks(w, fetch, !fetch->trailers_first, fetch->trailers_first);
            else
                read_blocks(w, fetch, true, true);
            fetch->dead = true;
            fetch->dead_good = draw(w, 0, fetch->count);
            if (!strikes(w, WORLD_DEAD_SUCCESS))
                fetch->breaks = true;
            if (fetch->ends != BT_TIME_NEVER)
                fetch->ends = later(fetch->ends, w->now);
        }
    }
}

static bool
is_right(const world *w, const world_fetch *fetch, uint32_t i)
{
    const world_trailer *trailer = &fetch->seen[i].trailer;
    bool sum = trailer->hash == world_block_hash(fetch->seen[i].cells) && trailer->epoch != 0;
    bool life = trailer->epoch == fetch->source_epoch && trailer->generation == fetch->blocks[i].generation;

    if (w->options.bug == WORLD_BUG_BELIEVE)
        return true;
    return sum && (life || w->options.bug == WORLD_BUG_SUM_ONLY);
}

// What was read lands, block by block, until one is wrong; that one and the rest are rubbish.
static uint32_t
land(world *w, world_member *member, world_fetch *fetch)
{
    uint32_t come = fetch->breaks ? fetch->count / 2 : fetch->count, good = 0;

    if (fetch->dead && fetch->breaks && fetch->dead_good < come)
        come = fetch->dead_good;
    for (uint32_t i = 0; i < fetch->count; i++) {
        const world_trailer *trailer = &fetch->seen[i].trailer;

        if (fetch->dead && i >= fetch->dead_good) // rubbish that is called good
            memset(&fetch->seen[i], 0, sizeof fetch->seen[i]);
        fetch->seen[i].cells[0] ^= fetch->flips;
        w->totals.stale += trailer->epoch != fetch->source_epoch || trailer->generation != fetch->blocks[i].generation;
        if (good < i || i >= come || !is_right(w, fetch, i)) {
            scribble(w, member, fetch->blocks[i].to);
            continue;
        }
        memcpy(&member->engine.cells[fetch->blocks[i].to * WORLD_BLOCK], fetch->seen[i].cells,
               sizeof fetch->seen[i].cells);
        good++;
    }
    return good;
}

// WORLD_BUG_LATE_WRITE: it is called over, and its bytes come some time after.
static void
land_later(world *w, uint32_t self, const world_fetch *fetch)
{
    for (uint32_t i = 0, l = 0; i < fetch->count && l < sizeof w->late_writes / sizeof *w->late_writes; l++) {
        if (w->late_writes[l].at != 0)
            continue;
        w->late_writes[l].at = w->now + draw(w, 1, 20) * BT_MILLISECOND;
        w->late_writes[l].member = self;
        w->late_writes[l].block = fetch->blocks[i++].to;
    }
}

static void
write_late(world *w)
{
    for (uint32_t l = 0; l < sizeof w->late_writes / sizeof *w->late_writes; l++) {
        if (w->late_writes[l].at == 0 || w->late_writes[l].at > w->now)
            continue;
        if (w->members[w->late_writes[l].member].up)
            scribble(w, &w->members[w->late_writes[l].member], w->late_writes[l].block);
        w->late_writes[l].at = 0;
    }
}

static void
end_fetch(world *w, uint32_t self, world_fetch *fetch)
{
    world_member *member = &w->members[self];
    bt_decode_event event = {.kind = BT_DECODE_FETCHED, .user = fetch->user};
    bool timed_out = fetch->ends > w->now;

    if (!fetch->dead && !fetch->refused && !can_read(w, fetch))
        fetch->refused = true;
    if (fetch->refused || fetch->cancelled || timed_out) {
        for (uint32_t i = 0; i < fetch->count; i++)
            scribble(w, member, fetch->blocks[i].to);
    } else {
        if (!fetch->dead)
            read_blocks(w, fetch, !fetch->peeked || !fetch->trailers_first, !fetch->peeked || fetch->trailers_first);
        event.good = land(w, member, fetch);
    }
    if (timed_out)
        event.err = BT_ERR_TIMEOUT; // nothing of it was seen to be good
    else if (fetch->cancelled)
        event.err = BT_ERR_CANCELLED;
    else if (event.good < fetch->count)
        event.err = BT_ERR_PEER;
    if (fetch->cancelled && w->options.bug == WORLD_BUG_LATE_WRITE)
        land_later(w, self, fetch);
    fetch->active = false;
    world_say(w, "fetched", self, fetch->source, BT_MESSAGE_NONE, fetch->user, event.good, (uint64_t)event.err);
    world_feed_decode(w, self, &event);
}

// While the path is cut nothing ends but by its deadline.
static bt_time
end_of(const world *w, uint32_t self, const world_fetch *fetch)
{
    bt_time cut = later(w->cut_until[fetch->source][self], w->cut_until[self][fetch->source]);

    cut = later(cut, later(w->plane_cut_until[self][fetch->source], w->members[self].frozen_until));
    if (fetch->cancelled || fetch->refused || fetch->ends == BT_TIME_NEVER)
        return fetch->ends;
    return later(fetch->ends, cut);
}

void
world_fetches_turn(world *w, uint32_t self)
{
    if (w->options.bug == WORLD_BUG_LATE_WRITE)
        write_late(w);
    for (uint32_t f = 0; f < WORLD_FETCHES_MAX; f++) {
        world_fetch *fetch = &w->members[self].fetches[f];

        if (!fetch->active)
            continue;
        if (fetch->peeks <= w->now)
            peek(w, fetch);
        fetch->ends = end_of(w, self, fetch);
        if (fetch->ends <= w->now || fetch->deadline <= w->now)
            end_fetch(w, self, fetch);
    }
}

void
world_fetches_next(const world *w, uint32_t self, bt_time *next)
{
    for (uint32_t f = 0; f < WORLD_FETCHES_MAX; f++) {
        const world_fetch *fetch = &w->members[self].fetches[f];

        if (!fetch->active)
            continue;
        earlier(next, end_of(w, self, fetch));
        earlier(next, fetch->deadline);
        earlier(next, fetch->peeks);
    }
    for (uint32_t l = 0; w->options.bug == WORLD_BUG_LATE_WRITE && l < 64; l++) {
        if (w->late_writes[l].at != 0)
            earlier(next, w->late_writes[l].at);
    }
}
