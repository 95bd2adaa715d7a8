// The last requests' spans, for whoever asks where the time of one went: a ring of fixed size, written as JSON in the trace event format
// that Perfetto (ui.perfetto.dev) and chrome://tracing open.
//
//     uint64_t mark = bt_trace_begin(trace, name, now);      when a call begins
//     bt_trace_text(trace, mark, now);                       its text is ready
//     bt_trace_attempt(trace, mark, choice, submitted, …);   a node is done with one of its answers
//     bt_trace_end(trace, mark, "length", now);
//     bt_trace_write(trace, name, now, out)                  any time, also in between
//
// One time line, the router's: what nodes measured are durations, laid out so that each ends when the router heard of it. So clocks need
// not agree; a span may be late by a message's way. All on one thread. `trace` NULL is fine everywhere: nothing is kept.
#pragma once

#include "common/base/buf.h"
#include "common/metrics/request_id.h"
#include "router/main.h"

#define BT_TRACE_ATTEMPTS_MAX 16 // kept of one request; the others are counted

typedef struct bt_trace bt_trace;

// `requests`: how many are kept, not 0. `router`: how this program is called.
bt_err bt_trace_open(bt_trace **out, uint32_t requests, const char *router, bt_why *why);
void bt_trace_close(bt_trace *trace); // NULL is fine

// Takes the place of the oldest. Marks of requests that were pushed out so are ignored.
uint64_t bt_trace_begin(bt_trace *trace, const char *name, bt_time now);
void bt_trace_text(bt_trace *trace, uint64_t mark, bt_time now);
void bt_trace_attempt(bt_trace *trace, uint64_t mark, uint32_t choice, bt_time submitted,
                      const bt_router_attempted *attempted);
void bt_trace_end(bt_trace *trace, uint64_t mark, const char *outcome, bt_time now); // the first one counts

// The newest request of this name; BT_ERR_NOT_FOUND when none is kept (and nothing is written).
bt_err bt_trace_write(const bt_trace *trace, const char *name, bt_time now, bt_buf *out);
