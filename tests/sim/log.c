// Every decision as a line of text, when somebody wants it, and the last ones when something is wrong.
//
//     12.345678901 r0>d1 RESERVE 3.1.2          a message leaves (`<`: it arrives); the request as slot.generation.attempt
#include "tests/sim/inside.h"

#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <unistd.h>

static const world *watched;

const char *
world_name(uint32_t member, char out[8])
{
    char role = member < WORLD_PREFILL_0 ? 'r' : member < WORLD_DECODE_0 ? 'p' : 'd';
    uint32_t first = role == 'r' ? 0 : role == 'p' ? WORLD_PREFILL_0 : WORLD_DECODE_0;

    out[0] = member < WORLD_MEMBERS ? role : '-';
    out[1] = member < WORLD_MEMBERS ? (char)('0' + member - first) : 0;
    out[2] = 0;
    return out;
}

static void
write_line(FILE *file, const world_line *line)
{
    char member[8], other[8];

    fprintf(file, "%" PRId64 ".%09" PRId64 " %s %s%s%s %s %" PRIu64 ".%" PRIu64 ".%" PRIu64 "\n", line->at / BT_SECOND,
            line->at % BT_SECOND, world_name(line->member, member), line->what, line->other < WORLD_MEMBERS ? " " : "",
            line->other < WORLD_MEMBERS ? world_name(line->other, other) : "",
            line->kind == BT_MESSAGE_NONE ? "-" : bt_message_kind_name(line->kind), line->a, line->b, line->c);
}

void
world_say(world *w, const char *what, uint32_t member, uint32_t other, bt_message_kind kind, uint64_t a, uint64_t b,
          uint64_t c)
{
    world_line *line = &w->lines[w->line_count++ % WORLD_LINES];

    *line = (world_line){w->now, what, member, other, kind, a, b, c};
    w->hash = bt_mix64(w->hash ^ (uint64_t)w->now ^ bt_mix64(a ^ bt_mix64(b ^ bt_mix64(c))));
    w->hash = bt_mix64(w->hash ^ member << 16 ^ other << 8 ^ (uint32_t)kind);
    if (w->options.log != NULL)
        write_line(w->options.log, line);
}

static void
say_id(world *w, const char *what, uint32_t member, uint32_t other, bt_message_kind kind, bt_request_id id)
{
    world_say(w, what, member, other, kind, id.slot, id.generation, id.attempt);
}

void
world_say_message(world *w, const char *what, uint32_t member, uint32_t other, const bt_message *message)
{
    switch (message->kind) {
    case BT_MESSAGE_HELLO:
        world_say(w, what, member, other, message->kind, message->hello.epoch, message->hello.draining, 0);
        break;
    case BT_MESSAGE_HEARTBEAT:
        world_say(w, what, member, other, message->kind, message->heartbeat.number, message->heartbeat.tokens_number,
                  message->heartbeat.blocks_free);
        break;
    case BT_MESSAGE_RESERVE:
        say_id(w, what, member, other, message->kind, message->reserve.request);
        break;
    case BT_MESSAGE_TICKET:
        say_id(w, what, member, other, message->kind, message->ticket.request);
        break;
    case BT_MESSAGE_START:
        say_id(w, what, member, other, message->kind, message->start.request);
        break;
    case BT_MESSAGE_ABORT:
        say_id(w, what, member, other, message->kind, message->abort.request);
        break;
    case BT_MESSAGE_AWAIT:
        say_id(w, what, member, other, message->kind, message->await.request);
        break;
    case BT_MESSAGE_PREFILL:
        say_id(w, what, member, other, message->kind, message->prefill.job.request);
        break;
    case BT_MESSAGE_TOKENS:
        world_say(w, what, member, other, message->kind, message->tokens.number, message->tokens.entry_count,
                  message->tokens.entry_count > 0 ? (uint64_t)message->tokens.entries[0].finish : 0);
        break;
    case BT_MESSAGE_OFFER:
        world_say(w, what, member, other, message->kind, message->offer.ticket.slot, message->offer.ticket.generation,
                  message->offer.block_count);
        break;
    case BT_MESSAGE_TAKEN:
        world_say(w, what, member, other, message->kind, message->taken.ticket.slot, message->taken.ticket.generation,
                  message->taken.block_count);
        break;
    default:
        world_say(w, what, member, other, message->kind, 0, 0, 0);
    }
}

static void
write_last(const world *w)
{
    uint64_t first = w->line_count > WORLD_LINES ? w->line_count - WORLD_LINES : 0;

    for (uint64_t i = first; i < w->line_count; i++)
        write_line(stderr, &w->lines[i % WORLD_LINES]);
    fprintf(stderr, "seed %" PRIu64 "\n", w->options.seed);
}

void
world_fail(const world *w, const char *file, int line, const char *format, ...)
{
    va_list arguments;

    watched = NULL;
    write_last(w);
    fprintf(stderr, "%s:%d: ", file, line);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fprintf(stderr, "\n");
    if (w->options.log != NULL)
        fflush(w->options.log);
    abort();
}

// The process ends anyway: that stdio is not for handlers costs nothing here.
static void
on_abort(int signal)
{
    (void)signal;
    if (watched != NULL)
        write_last(watched);
    _exit(134);
}

void
world_watch_aborts(world *w)
{
    watched = w;
    signal(SIGABRT, on_abort);
}
