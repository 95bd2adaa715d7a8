#include "router/trace_impl.h"

#include "common/base/mem.h"

#include <stdio.h>
#include <string.h>

bt_err
bt_trace_open(bt_trace **out, uint32_t requests, const char *router, bt_why *why)
{
    bt_trace *trace = bt_alloc(sizeof *trace);

    if (trace != NULL) {
        trace->records = bt_alloc_array(requests, sizeof *trace->records);
    }
    if (trace == NULL || trace->records == NULL) {
        bt_trace_close(trace);
        return bt_fail(why, BT_ERR_NO_MEMORY, "no memory for the spans of %u requests", requests);
    }
    trace->capacity = requests;
    snprintf(trace->router, sizeof trace->router, "%s", router);
    *out = trace;
    return BT_OK;
}

void
bt_trace_close(bt_trace *trace)
{
    if (trace == NULL) {
        return;
    }
    bt_free(trace->records);
    bt_free(trace);
}

static bt_trace_record *
find(bt_trace *trace, uint64_t mark)
{
    bt_trace_record *found = trace != NULL && mark != 0 ? &trace->records[mark % trace->capacity] : NULL;

    return found != NULL && found->mark == mark ? found : NULL;
}

uint64_t
bt_trace_begin(bt_trace *trace, const char *name, bt_time now)
{
    bt_trace_record *next;

    if (trace == NULL) {
        return 0;
    }
    trace->marks++;
    next = &trace->records[trace->marks % trace->capacity];
    next->mark = trace->marks;
    next->arrived = now;
    next->prepared = next->ended = 0;
    next->attempt_count = 0;
    next->outcome[0] = 0;
    snprintf(next->name, sizeof next->name, "%s", name);
    return next->mark;
}

void
bt_trace_text(bt_trace *trace, uint64_t mark, bt_time now)
{
    bt_trace_record *of = find(trace, mark);

    if (of != NULL) {
        of->prepared = now;
    }
}

void
bt_trace_attempt(bt_trace *trace, uint64_t mark, uint32_t choice, bt_time submitted,
                 const bt_router_attempted *attempted)
{
    bt_trace_record *of = find(trace, mark);
    bt_trace_seen *next;

    if (of == NULL || of->attempt_count++ >= BT_TRACE_ATTEMPTS_MAX) {
        return;
    }
    next = &of->attempts[of->attempt_count - 1];
    next->choice = choice;
    next->submitted = submitted;
    next->what = *attempted->what;
    snprintf(next->decode, sizeof next->decode, "%s", attempted->decode != NULL ? attempted->decode : "?");
    snprintf(next->prefill, sizeof next->prefill, "%s", attempted->prefill != NULL ? attempted->prefill : "");
}

void
bt_trace_end(bt_trace *trace, uint64_t mark, const char *outcome, bt_time now)
{
    bt_trace_record *of = find(trace, mark);

    if (of == NULL || of->ended != 0) {
        return;
    }
    of->ended = now;
    snprintf(of->outcome, sizeof of->outcome, "%s", outcome);
}
