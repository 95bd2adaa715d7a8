// Which prefill nodes' memory a decode node's edge has connected and proved, as decode-node/prove.c does it: after a HELLO a block is read;
// what fails is tried again with growing pauses; a connection outlives its link, and is lost when its peer dies or cannot be read.
#include "tests/sim/inside.h"

#define PAUSE_MIN (100 * BT_MILLISECOND)
#define PAUSE_MAX (5 * BT_SECOND)
#define NOTICED (BT_SECOND) // the transport's keep-alive

static world_proof *
proof_of(world *w, uint32_t self, uint32_t source)
{
    return &w->members[self].proofs[source - WORLD_PREFILL_0];
}

static uint32_t
peer_of(uint32_t source)
{
    return BT_DECODE_ROUTERS_MAX + source - WORLD_PREFILL_0;
}

static bool
is_readable(const world *w, uint32_t self, uint32_t source)
{
    return !is_cut(w, self, source) && !is_cut(w, source, self) && w->plane_cut_until[self][source] <= w->now;
}

void
world_proof_hear(world *w, uint32_t self, uint32_t source, uint64_t epoch)
{
    world_proof *proof = proof_of(w, self, source);

    if (proof->heard == epoch)
        return;
    proof->heard = epoch;
    proof->told = false;
    if (proof->epoch == epoch && (proof->proved || proof->due != BT_TIME_NEVER))
        return; // only the link was away
    *proof = (world_proof){.heard = epoch, .epoch = epoch, .lost = BT_TIME_NEVER};
    proof->due = w->now + draw(w, 0, 4000) * BT_MICROSECOND;
}

// The core knows by itself that nothing comes from there now.
void
world_proof_down(world *w, uint32_t self, uint32_t source)
{
    world_proof *proof = proof_of(w, self, source);

    proof->heard = 0;
    proof->told = false;
}

static void
tell_news(world *w, uint32_t self, uint32_t source)
{
    world_proof *proof = proof_of(w, self, source);
    bool ready = proof->proved && proof->heard == proof->epoch;

    if (proof->heard == 0 || ready == proof->told)
        return;
    proof->told = ready;
    world_say(w, ready ? "has proved" : "has lost", self, source, BT_MESSAGE_NONE, proof->epoch, 0, 0);
    world_feed_decode(
        w, self,
        &(bt_decode_event){.kind = BT_DECODE_SOURCE, .peer = peer_of(source), .epoch = proof->heard, .up = ready});
}

static void
try_later(world *w, world_proof *proof)
{
    proof->pause = proof->pause == 0 ? PAUSE_MIN : proof->pause < PAUSE_MAX / 2 ? 2 * proof->pause : PAUSE_MAX;
    proof->due = w->now + proof->pause;
}

static void
end_try(world *w, uint32_t self, uint32_t source)
{
    world_proof *proof = proof_of(w, self, source);
    const world_member *peer = &w->members[source];

    proof->due = BT_TIME_NEVER;
    if (!is_awake(w, source) || peer->epoch != proof->epoch || !is_readable(w, self, source)) {
        try_later(w, proof);
        return;
    }
    proof->proved = true;
    proof->pause = 0;
}

// The transport notices some time after that its peer is gone or cannot be read.
static void
watch(world *w, uint32_t self, uint32_t source)
{
    world_proof *proof = proof_of(w, self, source);
    bool there = w->members[source].up && w->members[source].epoch == proof->epoch && is_readable(w, self, source);

    if (!proof->proved)
        return;
    if (there)
        proof->lost = BT_TIME_NEVER;
    else if (proof->lost == BT_TIME_NEVER)
        proof->lost = w->now + draw(w, 0, (uint32_t)(NOTICED / BT_MILLISECOND)) * BT_MILLISECOND;
    if (proof->lost > w->now)
        return;
    proof->proved = false;
    proof->lost = BT_TIME_NEVER;
    try_later(w, proof);
}

bool
world_is_connected(const world *w, uint32_t self, uint32_t source, uint64_t epoch)
{
    const world_proof *proof = &w->members[self].proofs[source - WORLD_PREFILL_0];

    return proof->proved && proof->epoch == epoch;
}

void
world_proofs_turn(world *w, uint32_t self)
{
    for (uint32_t source = WORLD_PREFILL_0; source < WORLD_DECODE_0; source++) {
        world_proof *proof = proof_of(w, self, source);

        if (proof->epoch == 0)
            continue;
        if (proof->due <= w->now && proof->heard == proof->epoch)
            end_try(w, self, source);
        watch(w, self, source);
        tell_news(w, self, source);
    }
}

void
world_proofs_next(const world *w, uint32_t self, bt_time *next)
{
    for (uint32_t i = 0; i < WORLD_NODES_MAX; i++) {
        const world_proof *proof = &w->members[self].proofs[i];

        if (proof->epoch == 0)
            continue;
        if (proof->heard == proof->epoch)
            earlier(next, proof->due);
        earlier(next, proof->lost);
    }
}
