#include "router/breaker.h"

#include <assert.h>

#define OPEN_TIMES_MAX 12

void
bt_breaker_fill_defaults(bt_breaker_limits *limits)
{
    if (limits->errors == 0)
        limits->errors = 5;
    if (limits->share_percent == 0)
        limits->share_percent = 50;
    if (limits->window == 0)
        limits->window = 30 * BT_SECOND;
    if (limits->open == 0)
        limits->open = 5 * BT_SECOND;
}

const char *
bt_breaker_name(bt_breaker_state state)
{
    return state == BT_BREAKER_OPEN ? "open" : state == BT_BREAKER_HALF_OPEN ? "half-open" : "closed";
}

bt_breaker_state
bt_breaker_look(const bt_breaker *breaker, bt_time now)
{
    if (!breaker->open)
        return BT_BREAKER_CLOSED;
    return breaker->until > now ? BT_BREAKER_OPEN : BT_BREAKER_HALF_OPEN;
}

bool
bt_breaker_allows(const bt_breaker *breaker, bt_time now)
{
    return !breaker->open || (breaker->until <= now && !breaker->probing);
}

bool
bt_breaker_begin(bt_breaker *breaker, bt_time now)
{
    bool probe = breaker->open && bt_breaker_allows(breaker, now);

    breaker->probing |= probe;
    return probe;
}

void
bt_breaker_end_probe(bt_breaker *breaker)
{
    assert(breaker->probing);
    breaker->probing = false;
}

static void
trip(bt_breaker *breaker, bt_time now, bt_time open_time)
{
    breaker->open = true;
    breaker->open_time = open_time;
    breaker->until = now + open_time;
}

// Slices that have gone out of the window are emptied on the way to the present.
static void
turn(bt_breaker *breaker, bt_time slice_time, bt_time now)
{
    int64_t slice = now / slice_time;

    if (slice - breaker->slice > BT_BREAKER_SLICES)
        breaker->slice = slice - BT_BREAKER_SLICES;
    while (breaker->slice < slice) {
        breaker->slice++;
        breaker->slices[breaker->slice % BT_BREAKER_SLICES].good = 0;
        breaker->slices[breaker->slice % BT_BREAKER_SLICES].bad = 0;
    }
}

static bool
is_too_bad(const bt_breaker *breaker, const bt_breaker_limits *limits)
{
    uint64_t good = 0, bad = 0;

    for (int i = 0; i < BT_BREAKER_SLICES; i++) {
        good += breaker->slices[i].good;
        bad += breaker->slices[i].bad;
    }
    return bad >= limits->errors && bad * 100 >= (good + bad) * limits->share_percent;
}

static bool
end_probe_as(bt_breaker *breaker, const bt_breaker_limits *limits, bt_time now, bool good)
{
    bt_time longer = 2 * breaker->open_time, longest = OPEN_TIMES_MAX * limits->open;

    breaker->probing = false;
    if (good)
        *breaker = (bt_breaker){.slice = breaker->slice};
    else
        trip(breaker, now, longer < longest ? longer : longest);
    return true;
}

bool
bt_breaker_note(bt_breaker *breaker, const bt_breaker_limits *limits, bt_time now, bool good, bool probe)
{
    if (probe)
        return end_probe_as(breaker, limits, now, good);
    if (breaker->open)
        return false;
    turn(breaker, limits->window / BT_BREAKER_SLICES, now);
    breaker->slices[breaker->slice % BT_BREAKER_SLICES].good += good;
    breaker->slices[breaker->slice % BT_BREAKER_SLICES].bad += !good;
    if (good || !is_too_bad(breaker, limits))
        return false;
    trip(breaker, now, limits->open);
    return true;
}
