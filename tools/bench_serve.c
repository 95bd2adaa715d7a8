// baton bench serve: a load generator against any server of the OpenAI API, with the latencies that its clients would see.
//
// One thread, one loop, a keep-alive connection a slot of concurrency. With --rate requests arrive by a Poisson process
// whatever the server does, and wait for a slot where none is free (that wait is part of their latency, as it is for users);
// without it each slot asks again as soon as it has its answer.
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/json/json.h"
#include "common/json/write.h"
#include "common/net/loop.h"
#include "tools/args.h"
#include "tools/commands.h"
#include "tools/samples.h"
#include "tools/sse_reader.h"

#include <errno.h>
#include <math.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define IDS_FIRST 16u // of --ids: below it are control tokens

typedef struct bench bench;

typedef struct {
    bench *b;
    int fd; // -1 = not connected
    bt_watch watch;
    bool busy, writing;
    bt_sse_reader reader;
    bt_buf out;
    size_t sent;
    bt_time arrived, first, last;
    uint32_t tokens, usage_prompt, usage_completion; // tokens: events with text
    bt_time stall;                                   // the longest time between two of them
    bool failed;
    char why[200];
} slot;

struct bench {
    const char *url, *model, *key;
    uint32_t concurrency, requests, prompt_tokens, max_tokens, vocab;
    uint64_t seed, arrival_seed;
    float rate, temperature, slo_ttft, slo_tpot;
    const char *log_path;
    bool json, chat;
    char host[256], port[8], path[256];
    struct addrinfo *address;
    bt_loop *loop;
    bt_rng rng, arrivals;
    slot *slots;
    uint32_t started, ended, errors, good; // good: within both limits
    FILE *log;
    bt_time begun, next_arrival;
    bt_samples ttft, tpot, itl, total;
    uint64_t prompt_count, token_count;
    char first_error[200];
};

// ---- a request ----

// Words that most vocabularies have as one token, each with the space before it; drawn, so that no two prompts share more
// than their beginning by chance and prefix caches do not answer for the engine.
static void
put_prompt(bench *b, bt_buf *out)
{
    static const char *const words[] = {"time", "people", "way",   "water", "day",   "man",   "world", "life",
                                        "hand", "part",   "child", "eye",   "woman", "place", "work",  "week",
                                        "case", "point",  "home",  "room",  "fact",  "book",  "word",  "side",
                                        "kind", "head",   "house", "power", "hour",  "game",  "line",  "end"};

    for (uint32_t i = 0; i < b->prompt_tokens; i++) {
        bt_buf_append_text(out, i != 0 ? " " : "");
        bt_buf_append_text(out, words[bt_rng_below(&b->rng, sizeof words / sizeof *words)]);
    }
}

// Ids of any kind, which is what a model of noise answers as well as any other. The first few are often not allowed in a text.
static void
put_ids(bench *b, bt_json_writer *w)
{
    bt_json_begin_array(w, "prompt");
    for (uint32_t i = 0; i < b->prompt_tokens; i++) {
        bt_json_put_int(w, NULL, (int64_t)(IDS_FIRST + bt_rng_below(&b->rng, b->vocab - IDS_FIRST)));
    }
    bt_json_end(w);
}

static void
put_body(bench *b, bt_buf *body)
{
    bt_json_writer w;
    bt_buf prompt;

    bt_buf_init(&prompt, 64 << 20);
    if (b->vocab == 0) {
        put_prompt(b, &prompt);
    }
    bt_json_write(&w, body);
    bt_json_begin_object(&w, NULL);
    if (b->model != NULL) {
        bt_json_put_text(&w, "model", bt_str_of(b->model));
    }
    if (b->chat) {
        bt_json_begin_array(&w, "messages");
        bt_json_begin_object(&w, NULL);
        bt_json_put_text(&w, "role", bt_str_of("user"));
        bt_json_put_text(&w, "content", (bt_str){prompt.data, prompt.len});
        bt_json_end(&w);
        bt_json_end(&w);
    } else if (b->vocab != 0) {
        put_ids(b, &w);
    } else {
        bt_json_put_text(&w, "prompt", (bt_str){prompt.data, prompt.len});
    }
    bt_json_put_int(&w, "max_tokens", b->max_tokens);
    bt_json_put_real(&w, "temperature", b->temperature);
    bt_json_put_bool(&w, "ignore_eos", true);
    bt_json_put_bool(&w, "stream", true);
    bt_json_begin_object(&w, "stream_options");
    bt_json_put_bool(&w, "include_usage", true);
    bt_json_end(&w);
    bt_json_end(&w);
    bt_buf_fini(&prompt);
}

static void
put_request(bench *b, bt_buf *out)
{
    bt_buf body;

    bt_buf_init(&body, 64 << 20);
    put_body(b, &body);
    bt_buf_clear(out);
    bt_buf_printf(out, "POST %s/%scompletions HTTP/1.1\r\nHost: %s:%s\r\nContent-Type: application/json\r\n", b->path,
                  b->chat ? "chat/" : "", b->host, b->port);
    if (b->key != NULL) {
        bt_buf_printf(out, "Authorization: Bearer %s\r\n", b->key);
    }
    bt_buf_printf(out, "Content-Length: %zu\r\n\r\n", body.len);
    bt_buf_append(out, body.data, body.len);
    bt_buf_fini(&body);
}

// ---- a slot ----

static void
hang_up(slot *s)
{
    bt_loop_unwatch(s->b->loop, &s->watch);
    if (s->fd >= 0) {
        close(s->fd);
    }
    s->fd = -1;
}

static void
note_error(slot *s, const char *words)
{
    if (!s->failed) {
        s->failed = true;
        snprintf(s->why, sizeof s->why, "%.180s", words);
    }
}

static void start_due(bench *b);

static double
ms(bt_time duration)
{
    return (double)duration / (double)BT_MILLISECOND;
}

// What is asked of every request can be asked of these lines afterwards.
static void
log_request(const slot *s, uint32_t tokens, bt_time tpot, bt_time now)
{
    if (s->b->log != NULL) {
        fprintf(s->b->log,
                "{\"at_ms\":%.3f,\"ttft_ms\":%.3f,\"tpot_ms\":%.3f,\"stall_ms\":%.3f,\"e2e_ms\":%.3f,"
                "\"prompt_tokens\":%u,\"tokens\":%u}\n",
                ms(s->arrived - s->b->begun), ms(s->first - s->arrived), ms(tpot), ms(s->stall), ms(now - s->arrived),
                s->usage_prompt, tokens);
    }
}

static void
take_answer(slot *s, bt_time now)
{
    bench *b = s->b;
    uint32_t tokens = s->usage_completion != 0 ? s->usage_completion : s->tokens;
    bt_time tpot = tokens > 1 ? (s->last - s->first) / (tokens - 1) : 0;

    bt_samples_add(&b->ttft, s->first - s->arrived);
    bt_samples_add(&b->total, now - s->arrived);
    if (tokens > 1) {
        bt_samples_add(&b->tpot, tpot);
    }
    b->token_count += tokens;
    b->prompt_count += s->usage_prompt;
    b->good += ms(s->first - s->arrived) <= (double)b->slo_ttft && ms(tpot) <= (double)b->slo_tpot;
    log_request(s, tokens, tpot, now);
}

static void
finish(slot *s)
{
    bench *b = s->b;

    s->busy = false;
    b->ended++;
    if (s->failed || s->reader.failed || s->tokens == 0) {
        note_error(s, s->reader.failed ? "the connection broke" : "no token came");
        if (b->errors++ == 0) {
            memcpy(b->first_error, s->why, sizeof b->first_error);
        }
        hang_up(s);
    } else {
        take_answer(s, bt_time_now());
    }
    if (s->reader.closes) {
        hang_up(s);
    }
    start_due(b);
}

static void
take_usage(slot *s, const bt_json_at *root)
{
    bt_json_at usage = bt_json_get(root, "usage");
    int64_t prompt = 0, completion = 0;

    if (bt_json_given(&usage)) {
        bt_json_maybe_int(&usage, "prompt_tokens", 0, UINT32_MAX, &prompt, NULL);
        bt_json_maybe_int(&usage, "completion_tokens", 0, UINT32_MAX, &completion, NULL);
        s->usage_prompt = (uint32_t)prompt;
        s->usage_completion = (uint32_t)completion;
    }
}

static bool
has_text(const bt_json_at *root)
{
    bt_json_at choices = bt_json_get(root, "choices"), choice = bt_json_item(&choices, 0);
    bt_json_at delta = bt_json_get(&choice, "delta");
    bt_str text = {NULL, 0};

    bt_json_maybe_text(&delta, "content", &text, NULL);
    bt_json_maybe_text(&choice, "text", &text, NULL);
    return text.len != 0;
}

static void
on_data(void *self, bt_str data)
{
    slot *s = self;
    bt_json_at root, error, message;
    bt_json *document;
    bt_why why = {""};
    bt_time now = bt_time_now();
    bt_str words = {"an error", 8};

    if (bt_str_is(data, "[DONE]")) {
        return;
    }
    if (bt_json_parse(&document, data, NULL, &why) != BT_OK) {
        note_error(s, why.text);
        return;
    }
    root = bt_json_root(document);
    error = bt_json_get(&root, "error");
    if (bt_json_given(&error) || s->reader.status != 200) {
        message = bt_json_get(&error, "message");
        bt_json_as_text(&message, &words, NULL);
        note_error(s, words.data);
    } else if (has_text(&root)) {
        if (s->tokens++ == 0) {
            s->first = now;
        } else {
            bt_samples_add(&s->b->itl, now - s->last);
            s->stall = now - s->last > s->stall ? now - s->last : s->stall;
        }
        s->last = now;
    }
    take_usage(s, &root);
    bt_json_close(document);
}

static void
receive(slot *s)
{
    char bytes[65536];
    ssize_t got;

    while (s->busy && (got = recv(s->fd, bytes, sizeof bytes, MSG_DONTWAIT)) != 0) {
        if (got < 0) {
            if (errno == EAGAIN || errno == EINTR) {
                return;
            }
            break;
        }
        bt_sse_read(&s->reader, bytes, (size_t)got, on_data, s);
        if (s->reader.done) {
            finish(s);
            return;
        }
    }
    if (s->busy) {
        bt_sse_read_end(&s->reader);
        finish(s);
    } else {
        hang_up(s); // an idle connection that the server has closed
    }
}

static void
send_more(slot *s)
{
    while (s->sent < s->out.len) {
        ssize_t put = send(s->fd, s->out.data + s->sent, s->out.len - s->sent, MSG_DONTWAIT | MSG_NOSIGNAL);

        if (put < 0 && (errno == EAGAIN || errno == EINTR)) {
            return;
        }
        if (put < 0) {
            break; // the answer, or its absence, says why
        }
        s->sent += (size_t)put;
    }
    s->writing = false;
    bt_loop_rewatch(s->b->loop, &s->watch, EPOLLIN | EPOLLRDHUP);
}

static void
on_ready(void *self, uint32_t events)
{
    slot *s = self;

    if (s->writing && (events & EPOLLOUT) != 0) {
        send_more(s);
    }
    if ((events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) {
        receive(s);
    }
}

static bool
connect_slot(slot *s)
{
    const struct addrinfo *a = s->b->address;
    int on = 1;

    s->fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (s->fd < 0 || connect(s->fd, a->ai_addr, a->ai_addrlen) != 0) {
        note_error(s, strerror(errno));
        return false;
    }
    setsockopt(s->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    s->watch = (bt_watch){.ready = on_ready, .self = s};
    return bt_loop_watch(s->b->loop, &s->watch, s->fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP) == BT_OK;
}

static void
start(slot *s, bt_time arrived)
{
    bench *b = s->b;

    b->started++;
    s->busy = s->writing = true;
    s->failed = false;
    s->arrived = arrived;
    s->first = s->last = s->stall = 0;
    s->tokens = s->usage_prompt = s->usage_completion = 0;
    s->sent = 0;
    bt_sse_reader_init(&s->reader);
    put_request(b, &s->out);
    if (s->fd < 0 && !connect_slot(s)) {
        finish(s);
        return;
    }
    bt_loop_rewatch(b->loop, &s->watch, EPOLLIN | EPOLLOUT | EPOLLRDHUP);
}

// ---- the run ----

static void
draw_arrival(bench *b)
{
    double wait = -log(1 - (double)bt_rng_float(&b->arrivals)) / (double)b->rate;

    b->next_arrival += (bt_time)(wait * (double)BT_SECOND);
}

// Gives free slots what is due. Called from turns and ends; a failing connect calls finish, which comes back here.
static void
start_due(bench *b)
{
    bt_time now = bt_time_now();

    for (uint32_t i = 0; i < b->concurrency && b->started < b->requests; i++) {
        if (b->slots[i].busy || (b->rate > 0 && b->next_arrival > now)) {
            continue;
        }
        bt_time arrived = b->rate > 0 ? b->next_arrival : now;

        if (b->rate > 0) {
            draw_arrival(b);
        }
        start(&b->slots[i], arrived);
    }
    if (b->ended == b->requests) {
        bt_loop_stop(b->loop);
    }
}

static bt_time
turn(void *self, bt_time now)
{
    bench *b = self;

    (void)now;
    start_due(b);
    return b->rate > 0 && b->started < b->requests ? b->next_arrival : BT_TIME_NEVER;
}

static void
print_json(bench *b, double seconds)
{
    bt_json_writer w;
    bt_buf out;

    bt_buf_init(&out, 1 << 20);
    bt_json_write(&w, &out);
    bt_json_begin_object(&w, NULL);
    bt_json_put_text(&w, "test", bt_str_of("serve"));
    bt_json_put_text(&w, "url", bt_str_of(b->url));
    bt_json_put_int(&w, "concurrency", b->concurrency);
    bt_json_put_real(&w, "rate", b->rate);
    bt_json_put_int(&w, "requests", b->requests);
    bt_json_put_int(&w, "errors", b->errors);
    bt_json_put_real(&w, "seconds", seconds);
    bt_json_put_int(&w, "prompt_tokens", (int64_t)b->prompt_count);
    bt_json_put_int(&w, "completion_tokens", (int64_t)b->token_count);
    bt_json_put_real(&w, "requests_per_s", (double)(b->ended - b->errors) / seconds);
    bt_json_put_real(&w, "tokens_per_s", (double)b->token_count / seconds);
    bt_json_put_real(&w, "slo_ttft_ms", b->slo_ttft);
    bt_json_put_real(&w, "slo_tpot_ms", b->slo_tpot);
    bt_json_put_int(&w, "good", b->good);
    bt_json_put_real(&w, "goodput_per_s", b->good / seconds);
    bt_samples_put(&b->ttft, &w, "ttft_ms");
    bt_samples_put(&b->tpot, &w, "tpot_ms");
    bt_samples_put(&b->itl, &w, "itl_ms");
    bt_samples_put(&b->total, &w, "e2e_ms");
    bt_json_end(&w);
    printf("%.*s\n", (int)out.len, out.data);
    bt_buf_fini(&out);
}

static void
print_text(bench *b, double seconds)
{
    printf("%u requests, %u errors, %.2f s: %.2f requests/s, %.1f tokens/s of answers, %.1f of prompts\n", b->ended,
           b->errors, seconds, (double)(b->ended - b->errors) / seconds, (double)b->token_count / seconds,
           (double)b->prompt_count / seconds);
    printf("  %u within %g ms to the first token and %g ms a token: %.2f requests/s\n", b->good, (double)b->slo_ttft,
           (double)b->slo_tpot, b->good / seconds);
    bt_samples_print(&b->ttft, "time to first token, ms");
    bt_samples_print(&b->tpot, "time per output token, ms");
    bt_samples_print(&b->itl, "between tokens, ms");
    bt_samples_print(&b->total, "whole request, ms");
}

static void
close_bench(bench *b)
{
    bt_samples *all[] = {&b->ttft, &b->tpot, &b->itl, &b->total};

    for (uint32_t i = 0; b->slots != NULL && i < b->concurrency; i++) {
        hang_up(&b->slots[i]);
        bt_buf_fini(&b->slots[i].out);
    }
    for (size_t i = 0; i < 4; i++) {
        bt_samples_free(all[i]);
    }
    bt_free(b->slots);
    bt_loop_close(b->loop);
    if (b->log != NULL) {
        fclose(b->log);
    }
    if (b->address != NULL) {
        freeaddrinfo(b->address);
    }
}

// http://HOST[:PORT][/PATH]; the path in front of completions is /v1 where none is given.
static bt_err
parse_url(bench *b, bt_why *why)
{
    const char *at = b->url, *slash, *colon;
    size_t len;

    if (strncmp(at, "http://", 7) != 0) {
        return bt_fail(why, BT_ERR_INVALID, "--url: \"%s\" does not begin with http://", b->url);
    }
    at += 7;
    slash = strchr(at, '/');
    len = slash != NULL ? (size_t)(slash - at) : strlen(at);
    colon = memrchr(at, ':', len);
    snprintf(b->port, sizeof b->port, "%.*s", colon != NULL ? (int)(at + len - colon - 1) : 2,
             colon != NULL ? colon + 1 : "80");
    snprintf(b->host, sizeof b->host, "%.*s", (int)(colon != NULL ? (size_t)(colon - at) : len), at);
    snprintf(b->path, sizeof b->path, "%s", slash != NULL && slash[1] != 0 ? slash : "/v1");
    for (len = strlen(b->path); len != 0 && b->path[len - 1] == '/'; len--) {
        b->path[len - 1] = 0;
    }
    return BT_OK;
}

static bt_err
open_bench(bench *b, bt_why *why)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    bt_err err;
    int failed;

    if ((err = parse_url(b, why)) != BT_OK) {
        return err;
    }
    if ((failed = getaddrinfo(b->host, b->port, &hints, &b->address)) != 0) {
        return bt_fail(why, BT_ERR_INVALID, "--url: %s: %s", b->url, gai_strerror(failed));
    }
    if (b->log_path != NULL && (b->log = fopen(b->log_path, "we")) == NULL) {
        return bt_fail(why, BT_ERR_IO, "--log: %s: %s", b->log_path, strerror(errno));
    }
    b->slots = bt_alloc_array(b->concurrency, sizeof *b->slots);
    if (b->slots == NULL || bt_loop_open(&b->loop) != BT_OK) {
        return bt_fail(why, BT_ERR_NO_MEMORY, "no memory for %u connections", b->concurrency);
    }
    for (uint32_t i = 0; i < b->concurrency; i++) {
        b->slots[i] = (slot){.b = b, .fd = -1};
        bt_buf_init(&b->slots[i].out, 64 << 20);
    }
    return BT_OK;
}

static int
run(bench *b)
{
    bt_turn turns = {.turn = turn, .self = b};
    double seconds;

    b->rng.state = b->seed;
    b->arrivals.state = b->arrival_seed;
    b->begun = b->next_arrival = bt_time_now();
    bt_loop_add_turn(b->loop, &turns);
    bt_loop_run(b->loop);
    seconds = (double)(bt_time_now() - b->begun) / (double)BT_SECOND;
    if (b->json) {
        print_json(b, seconds);
    } else {
        print_text(b, seconds);
    }
    if (b->errors != 0) {
        fprintf(stderr, "baton bench serve: %u of %u failed; the first: %s\n", b->errors, b->requests, b->first_error);
    }
    return b->errors != 0;
}

int
bt_bench_serve_main(int argc, char **argv)
{
    static bench b = {.url = "http://127.0.0.1:8080",
                      .concurrency = 8,
                      .requests = 200,
                      .prompt_tokens = 128,
                      .max_tokens = 64,
                      .slo_ttft = 1000,
                      .slo_tpot = 50,
                      .seed = 1,
                      .arrival_seed = 1};
    const bt_arg args[] = {
        {"url", BT_ARG_STRING, &b.url, "URL", "http://HOST:PORT[/v1]", NULL},
        {"model", BT_ARG_STRING, &b.model, "NAME", "where the server wants one", NULL},
        {"key", BT_ARG_STRING, &b.key, "KEY", "sent as a bearer key", NULL},
        {"concurrency", BT_ARG_U32, &b.concurrency, "N", "requests in flight at most", NULL},
        {"requests", BT_ARG_U32, &b.requests, "N", "in all", NULL},
        {"rate", BT_ARG_FLOAT, &b.rate, "R", "arrivals a second (Poisson); 0 = as fast as answers come", NULL},
        {"prompt-tokens", BT_ARG_U32, &b.prompt_tokens, "N", "words of a prompt, about a token each", NULL},
        {"ids", BT_ARG_U32, &b.vocab, "VOCAB",
         "prompts are drawn ids below it: as many tokens as asked for, whatever the vocabulary", NULL},
        {"max-tokens", BT_ARG_U32, &b.max_tokens, "N", "tokens of an answer", NULL},
        {"temperature", BT_ARG_FLOAT, &b.temperature, "T", "0 = always the likeliest token", NULL},
        {"seed", BT_ARG_U64, &b.seed, "S", "of prompts [1]", NULL},
        {"arrival-seed", BT_ARG_U64, &b.arrival_seed, "S", "of arrivals [1]", NULL},
        {"chat", BT_ARG_FLAG, &b.chat, NULL, "ask /chat/completions", NULL},
        {"slo-ttft", BT_ARG_FLOAT, &b.slo_ttft, "MS", "goodput: time to the first token at most", NULL},
        {"slo-tpot", BT_ARG_FLOAT, &b.slo_tpot, "MS", "goodput: mean time between tokens at most", NULL},
        {"log", BT_ARG_STRING, &b.log_path, "FILE", "a JSON line a request", NULL},
        {"json", BT_ARG_FLAG, &b.json, NULL, "one JSON object", NULL},
        {NULL, BT_ARG_FLAG, NULL, NULL, NULL, NULL},
    };
    const bt_args_spec spec = {
        .usage = "baton bench serve [options]",
        .about = "Loads a server of the OpenAI API with streamed requests and reports the latencies of its clients.",
        .example = "  baton bench serve --url http://127.0.0.1:8080 --concurrency 8 --requests 100 --json",
        .args = args,
    };
    uint32_t positional = 0;
    bt_why why = {""};
    int code;

    if ((code = bt_args_parse(&spec, argc, argv, NULL, &positional)) >= 0) {
        return code;
    }
    if (b.concurrency == 0 || b.requests == 0 || b.max_tokens == 0 || b.prompt_tokens == 0) {
        bt_fail(&why, BT_ERR_INVALID, "concurrency, requests, prompt-tokens and max-tokens must be at least 1");
    } else if (b.vocab != 0 && (b.vocab <= IDS_FIRST || b.chat)) {
        bt_fail(&why, BT_ERR_INVALID, "--ids: expected more than %u, and not --chat, which has no ids", IDS_FIRST);
    }
    if (why.text[0] != 0 || open_bench(&b, &why) != BT_OK) {
        fprintf(stderr, "baton bench serve: %s\n", why.text);
        code = 2;
    } else {
        code = run(&b);
    }
    close_bench(&b);
    return code;
}
