// A record as JSON in the trace event format.
#include "common/json/write.h"
#include "router/trace_impl.h"

#include <stdio.h>
#include <string.h>

// Processes of the picture: the router, then nodes in the order in which they had to do with the request.
typedef struct {
    const bt_trace_record *of;
    bt_json_writer w;
    bt_time now;
    uint32_t node_count;
    const char *nodes[2 * BT_TRACE_ATTEMPTS_MAX];
} picture;

#define ROUTER 1

static uint32_t
process_of(picture *p, const char *node)
{
    uint32_t i = 0;

    while (i < p->node_count && strcmp(p->nodes[i], node) != 0) {
        i++;
    }
    if (i == p->node_count) {
        p->nodes[p->node_count++] = node;
    }
    return ROUTER + 1 + i;
}

static void
begin_event(picture *p, const char *phase, const char *name, uint32_t process, uint32_t thread)
{
    bt_json_begin_object(&p->w, NULL);
    bt_json_put_text(&p->w, "ph", bt_str_of(phase));
    bt_json_put_text(&p->w, "name", bt_str_of(name));
    bt_json_put_int(&p->w, "pid", process);
    bt_json_put_int(&p->w, "tid", thread);
}

static void
put_name(picture *p, const char *what, uint32_t process, uint32_t thread, const char *name)
{
    begin_event(p, "M", what, process, thread);
    bt_json_begin_object(&p->w, "args");
    bt_json_put_text(&p->w, "name", bt_str_of(name));
    bt_json_end(&p->w);
    bt_json_end(&p->w);
}

static double
microseconds(bt_time time)
{
    return (double)time / BT_MICROSECOND;
}

// Leaves the event open for its args.
static void
begin_span(picture *p, const char *name, uint32_t process, uint32_t thread, bt_time from, bt_time to)
{
    begin_event(p, "X", name, process, thread);
    bt_json_put_text(&p->w, "cat", bt_str_of("baton"));
    bt_json_put_real(&p->w, "ts", microseconds(from - p->of->arrived));
    bt_json_put_real(&p->w, "dur", microseconds(to > from ? to - from : 0));
}

static void
put_span(picture *p, const char *name, uint32_t process, uint32_t thread, bt_time from, bt_time to)
{
    begin_span(p, name, process, thread, from, to);
    bt_json_end(&p->w);
}

static bt_time
later(bt_time a, bt_time b)
{
    return a > b ? a : b;
}

// A queue and the work after it, which ended at `end`; neither begins before `floor`. Nodes may have measured anything.
static void
put_work(picture *p, uint32_t process, uint32_t thread, const bt_phases *phases, bt_time floor, bt_time end)
{
    bt_time begun = later(floor, end - later(0, phases->prefill < end ? phases->prefill : end));
    bt_time queued = later(floor, begun - later(0, phases->queue_prefill < begun ? phases->queue_prefill : begun));

    put_span(p, "queue_prefill", process, thread, queued, begun);
    put_span(p, "prefill", process, thread, begun, end);
}

static void
put_outcome(picture *p, const bt_router_attempt *what)
{
    const char *outcome = what->moved ? bt_move_cause_name(what->cause) : bt_finish_name(what->finish);

    bt_json_put_text(&p->w, what->moved ? "moved" : "finish", bt_str_of(outcome));
    if (what->err != BT_OK) {
        bt_json_put_text(&p->w, "error", bt_str_of(bt_err_name(what->err)));
    }
}

static void
put_decode_node(picture *p, const bt_trace_seen *s, uint32_t process, uint32_t thread)
{
    const bt_router_attempt *what = &s->what;
    bt_time granted = what->ticketed != 0 ? what->ticketed : what->ended;

    begin_span(p, "decode node", process, thread, what->placed, what->ended);
    bt_json_begin_object(&p->w, "args");
    bt_json_put_int(&p->w, "prompt_tokens", what->prompt_tokens);
    bt_json_put_int(&p->w, "cached_tokens", what->cached_tokens);
    bt_json_put_int(&p->w, "answer_tokens_before", what->answer_before);
    bt_json_put_int(&p->w, "answer_tokens", what->answer_tokens);
    put_outcome(p, what);
    bt_json_end(&p->w);
    bt_json_end(&p->w);
    put_span(p, "queue_decode", process, thread, what->placed, granted);
    if (what->joined == 0) {
        return;
    }
    if (s->prefill[0] == 0) {
        put_work(p, process, thread, &what->answering, granted, what->joined);
    } else {
        bt_time moving = later(0, what->answering.transfer < what->joined ? what->answering.transfer : what->joined);
        bt_time from = later(granted, what->joined - moving);

        put_span(p, "transfer_wait", process, thread, granted, from);
        put_span(p, "transfer", process, thread, from, what->joined);
    }
    put_span(p, "decode", process, thread, what->joined, what->ended);
}

static void
put_prefill_node(picture *p, const bt_trace_seen *s, uint32_t process, uint32_t thread)
{
    const bt_router_attempt *what = &s->what;
    bt_time end = what->read != 0 ? what->read : what->joined != 0 ? what->joined : what->ended;

    put_span(p, "prefill node", process, thread, what->ticketed, end);
    if (what->read != 0) {
        put_work(p, process, thread, &what->reading, what->ticketed, what->read);
    } else if (what->joined != 0) { // its own word was not heard; the decode node passed it on
        put_work(p, process, thread, &what->answering, what->ticketed,
                 later(what->ticketed, what->joined - later(0, what->answering.transfer)));
    }
}

static void
put_phases(picture *p, const bt_phases *phases)
{
    const struct {
        const char *name;
        bt_time time;
    } rows[] = {{"route", phases->route},
                {"queue_decode", phases->queue_decode},
                {"queue_prefill", phases->queue_prefill},
                {"prefill", phases->prefill},
                {"transfer_wait", phases->transfer_wait},
                {"transfer", phases->transfer},
                {"first_token", phases->first_token}};

    bt_json_begin_object(&p->w, "phases_us");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        bt_json_put_real(&p->w, rows[i].name, microseconds(rows[i].time));
    }
    bt_json_end(&p->w);
}

static void
put_first_token(picture *p, const bt_trace_seen *s, uint32_t thread)
{
    bt_phases phases = s->what.phases;

    phases.route += s->submitted - p->of->arrived; // the core counts from the submit on
    begin_event(p, "i", "first token", ROUTER, thread);
    bt_json_put_text(&p->w, "s", bt_str_of("t"));
    bt_json_put_real(&p->w, "ts", microseconds(s->what.first_token - p->of->arrived));
    bt_json_begin_object(&p->w, "args");
    put_phases(p, &phases);
    bt_json_end(&p->w);
    bt_json_end(&p->w);
}

// When the choice came to wait for a node: at its submit, or when it left the one before.
static bt_time
waited_since(const bt_trace_record *of, uint32_t index)
{
    for (uint32_t i = index; i-- > 0;) {
        if (of->attempts[i].choice == of->attempts[index].choice) {
            return of->attempts[i].what.ended;
        }
    }
    return of->attempts[index].submitted;
}

static void
put_attempt(picture *p, uint32_t index)
{
    const bt_trace_seen *s = &p->of->attempts[index];
    uint32_t thread = s->choice + 2, node = process_of(p, s->decode);

    put_span(p, "route", ROUTER, thread, waited_since(p->of, index), s->what.placed);
    put_decode_node(p, s, node, thread);
    if (s->prefill[0] != 0) {
        put_prefill_node(p, s, process_of(p, s->prefill), thread);
    }
    if (s->what.first_token != 0) {
        put_first_token(p, s, thread);
    }
}

static void
put_request(picture *p)
{
    const bt_trace_record *of = p->of;
    bt_time end = of->ended != 0 ? of->ended : p->now;

    begin_span(p, of->name, ROUTER, 1, of->arrived, end);
    bt_json_begin_object(&p->w, "args");
    bt_json_put_text(&p->w, "outcome", bt_str_of(of->ended != 0 ? of->outcome : "running"));
    if (of->attempt_count > BT_TRACE_ATTEMPTS_MAX) {
        bt_json_put_int(&p->w, "attempts_not_shown", of->attempt_count - BT_TRACE_ATTEMPTS_MAX);
    }
    bt_json_end(&p->w);
    bt_json_end(&p->w);
    put_span(p, "text", ROUTER, 1, of->arrived, of->prepared != 0 ? of->prepared : end);
}

static void
put_names(picture *p, const char *router)
{
    char name[32];

    put_name(p, "process_name", ROUTER, 1, router);
    put_name(p, "thread_name", ROUTER, 1, "request");
    for (uint32_t i = 0; i < p->node_count; i++) {
        put_name(p, "process_name", ROUTER + 1 + i, 1, p->nodes[i]);
    }
    for (uint32_t i = 0; i < p->of->attempt_count && i < BT_TRACE_ATTEMPTS_MAX; i++) {
        snprintf(name, sizeof name, "answer %u", p->of->attempts[i].choice);
        for (uint32_t process = ROUTER; process <= ROUTER + p->node_count; process++) {
            put_name(p, "thread_name", process, p->of->attempts[i].choice + 2, name);
        }
    }
}

static const bt_trace_record *
newest(const bt_trace *trace, const char *name)
{
    const bt_trace_record *found = NULL;

    for (uint32_t i = 0; trace != NULL && i < trace->capacity; i++) {
        const bt_trace_record *of = &trace->records[i];

        if (of->mark != 0 && (found == NULL || of->mark > found->mark) && strcmp(of->name, name) == 0) {
            found = of;
        }
    }
    return found;
}

bt_err
bt_trace_write(const bt_trace *trace, const char *name, bt_time now, bt_buf *out)
{
    picture p = {.of = newest(trace, name), .now = now};

    if (p.of == NULL) {
        return BT_ERR_NOT_FOUND;
    }
    bt_json_write(&p.w, out);
    bt_json_begin_object(&p.w, NULL);
    bt_json_put_text(&p.w, "displayTimeUnit", bt_str_of("ms"));
    bt_json_begin_object(&p.w, "otherData");
    bt_json_put_text(&p.w, "request", bt_str_of(p.of->name));
    bt_json_end(&p.w);
    bt_json_begin_array(&p.w, "traceEvents");
    put_request(&p);
    for (uint32_t i = 0; i < p.of->attempt_count && i < BT_TRACE_ATTEMPTS_MAX; i++) {
        put_attempt(&p, i);
    }
    put_names(&p, trace->router);
    bt_json_end(&p.w);
    bt_json_end(&p.w);
    return BT_OK;
}
