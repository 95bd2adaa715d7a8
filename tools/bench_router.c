// baton bench router: what the router adds to a request's time, its memory and its share of a CPU.
//
//     this process     the load: tiny requests at a fixed rate (bench_router_load.h)
//     baton router     the program itself, with its text workers, HTTP and link
//     mock nodes       real cores behind real links, whose engine answers at once (bench_router_mock.h)
//
// Added = what the client waited for, less what the nodes themselves spent on that request. All three share the machine: on few cores
// a round tells what they and everybody else left of it, so several are run and the best is the router's.
#include "common/base/buf.h"
#include "common/base/mem.h"
#include "common/engine/engine.h"
#include "common/json/write.h"
#include "common/model/card.h"
#include "tools/args.h"
#include "tools/bench_router_load.h"
#include "tools/bench_router_mock.h"
#include "tools/commands.h"
#include "tools/percentile.h"
#include "tools/settings.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define READY_MAX (10 * BT_SECOND)
#define SECRET "baton bench router"

typedef struct {
    double p50, p90, p99, p999, max;
} percentiles;

typedef struct {
    bt_load_summary load;
    percentiles added, added_whole, added_streamed, total, mock; // ms
    double router_cpu, mock_cpu, load_cpu;                       // of one core
    double rss_mib, peak_mib;
} round_result;

typedef struct {
    const char *model, *set;
    uint32_t rounds, seconds, nodes, connections, max_tokens;
    float rate;
    bool json;
    // The run's:
    char folder[64];
    pid_t router, mock;
    uint16_t port, node_ports[BT_MOCK_NODES_MAX];
    double ready_ms;
    bt_mock_ledger *ledger;
    bt_load_result *results;
    double *values;
} bench;

static uint32_t
requests_of(const bench *b)
{
    return (uint32_t)(b->rate * (float)b->seconds);
}

// ---- the other processes ----

static uint16_t
free_port(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0 || bind(fd, (struct sockaddr *)&at, size) != 0 || getsockname(fd, (struct sockaddr *)&at, &size) != 0)
        at.sin_port = 0;
    close(fd);
    return ntohs(at.sin_port);
}

static pid_t
fork_bound(void)
{
    pid_t child;

    fflush(NULL);
    child = fork();
    if (child == 0)
        prctl(PR_SET_PDEATHSIG, SIGKILL); // whatever ends us ends them
    return child;
}

// The mock nodes say that they are what the router expects by its file.
static bt_err
foresee(const bench *b, bt_mock_options *out, bt_why *why)
{
    bt_engine_settings defaults = {.kv_format = BT_KV_INT8};
    bt_model_options options = bt_engine_settings_options(&defaults, b->model).model;
    bt_model_card card = {0};
    bt_model_names names;
    bt_kv_layout layout;
    bt_err err = bt_model_card_open(&card, b->model, &options, &names, 1, why);

    if (err == BT_OK && (err = bt_engine_layout_of(&layout, &card.config, BT_KV_INT8, 32, why)) == BT_OK) {
        out->model = names.family;
        out->weights = names.digest;
        out->layout = bt_kv_layout_fingerprint(&layout);
        out->kv_format = 1 + BT_KV_INT8;
        out->vocab = card.config.vocab;
    }
    bt_model_card_close(&card);
    return err;
}

static bt_err
start_mock(bench *b, bt_why *why)
{
    bt_mock_options options = {.count = b->nodes, .secret = SECRET, .ledger = b->ledger};
    size_t want = b->nodes * sizeof *b->node_ports;
    int fds[2];

    bt_err err = foresee(b, &options, why);

    if (err != BT_OK)
        return err;
    if (pipe2(fds, O_CLOEXEC) != 0)
        return bt_fail(why, BT_ERR_IO, "pipe: %s", strerror(errno));
    b->mock = fork_bound();
    if (b->mock == 0) {
        options.ports_fd = fds[1];
        _exit(bt_mock_nodes_run(&options));
    }
    close(fds[1]);
    if (read(fds[0], b->node_ports, want) != (ssize_t)want)
        bt_fail(why, BT_ERR_IO, "the mock nodes did not start");
    close(fds[0]);
    return why->text[0] != 0 ? BT_ERR_IO : BT_OK;
}

static bt_err
write_config(bench *b, const char *path, bt_why *why)
{
    FILE *file = fopen(path, "w");

    if (file == NULL)
        return bt_fail(why, BT_ERR_IO, "%s: %s", path, strerror(errno));
    fprintf(file, "cluster: {name: bench, secret: \"" SECRET "\"}\nmodel: {path: \"%s\", name: bench}\n", b->model);
    fprintf(file, "routers:\n  nodes: [{name: r1, listen: \"127.0.0.1:%u\"}]\ndecode:\n  nodes:\n", b->port);
    for (uint32_t i = 0; i < b->nodes; i++)
        fprintf(file, "    - {name: mock%u, link: \"tcp://127.0.0.1:%u\"}\n", i, b->node_ports[i]);
    return fclose(file) == 0 ? BT_OK : bt_fail(why, BT_ERR_IO, "%s: %s", path, strerror(errno));
}

static bool
answers_ready(uint16_t port)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    const char *ask = "GET /ready HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    char got[16] = "";
    struct timeval patience = {.tv_sec = 1}; // of a step: a router that accepts and says nothing is asked again
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool yes = setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) == 0 &&
               setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience) == 0 &&
               connect(fd, (struct sockaddr *)&to, sizeof to) == 0 && send(fd, ask, strlen(ask), MSG_NOSIGNAL) > 0 &&
               recv(fd, got, 12, MSG_WAITALL) == 12 && memcmp(got + 9, "200", 3) == 0;

    close(fd);
    return yes;
}

static bt_err
start_router(bench *b, bt_why *why)
{
    char config[128], log[128];
    bt_time begun;

    snprintf(config, sizeof config, "%s/bench.yaml", b->folder);
    snprintf(log, sizeof log, "%s/router.log", b->folder);
    b->port = free_port();
    if (write_config(b, config, why) != BT_OK)
        return BT_ERR_IO;
    begun = bt_time_now();
    b->router = fork_bound();
    if (b->router == 0) {
        int fd = open(log, O_CREAT | O_WRONLY | O_TRUNC, 0600);

        dup2(fd, STDERR_FILENO);
        execl("/proc/self/exe", "baton", "router", "--config", config, "--name", "r1", "--set", "log.level=warn",
              b->set != NULL ? "--set" : NULL, b->set, NULL);
        _exit(127);
    }
    while (!answers_ready(b->port)) {
        if (waitpid(b->router, NULL, WNOHANG) == b->router) {
            b->router = 0; // its number may be another's by now
            return bt_fail(why, BT_ERR_IO, "the router ended before it was ready: see %s", log);
        }
        if (bt_time_now() - begun > READY_MAX)
            return bt_fail(why, BT_ERR_TIMEOUT, "the router was not ready within %d s: see %s",
                           (int)(READY_MAX / BT_SECOND), log);
        usleep(1000);
    }
    b->ready_ms = (double)(bt_time_now() - begun) / 1e6;
    return BT_OK;
}

static void
stop(pid_t child)
{
    if (child > 0) {
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
    }
}

// Seconds of CPU that a process has used.
static double
cpu_of(pid_t pid)
{
    char path[64], line[1024] = "";
    unsigned long user = 0, system = 0;
    const char *after;
    FILE *file;

    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    file = fopen(path, "r");
    if (file == NULL)
        return 0;
    if (fgets(line, sizeof line, file) != NULL && (after = strrchr(line, ')')) != NULL)
        sscanf(after, ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system);
    fclose(file);
    return (double)(user + system) / (double)sysconf(_SC_CLK_TCK);
}

static double
memory_of(pid_t pid, const char *key)
{
    char path[64], line[256];
    double mib = 0;
    FILE *file;

    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    file = fopen(path, "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        if (strncmp(line, key, strlen(key)) == 0)
            mib = atof(line + strlen(key) + 1) / 1024;
    }
    if (file != NULL)
        fclose(file);
    return mib;
}

// ---- a round ----

typedef enum { ADDED, ADDED_WHOLE, ADDED_STREAMED, TOTAL, MOCK } figure;

static percentiles
summarise(const bench *b, figure what)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < requests_of(b); i++) {
        const bt_load_result *r = &b->results[i];
        bt_time spent = atomic_load(&b->ledger->spent[i]);

        if (r->failed || (what == ADDED_WHOLE && r->streamed) || (what == ADDED_STREAMED && !r->streamed))
            continue;
        b->values[count++] = (double)(what == TOTAL ? r->took : what == MOCK ? spent : r->took - spent) / 1e6;
    }
    if (count == 0)
        return (percentiles){NAN, NAN, NAN, NAN, NAN}; // 0 would say that nothing was added
    bt_sort_values(b->values, count);
    return (percentiles){bt_percentile(b->values, count, 0.5), bt_percentile(b->values, count, 0.9),
                         bt_percentile(b->values, count, 0.99), bt_percentile(b->values, count, 0.999),
                         bt_percentile(b->values, count, 1)};
}

static bt_err
run_round(bench *b, uint32_t number, uint32_t count, round_result *out, bt_why *why)
{
    bt_load_options options = {.port = b->port,
                               .connections = b->connections,
                               .count = count,
                               .rate = b->rate,
                               .max_tokens = b->max_tokens,
                               .seed = number + 1};
    double router = cpu_of(b->router), mock = cpu_of(b->mock), load = cpu_of(getpid());
    bt_err err;

    for (uint32_t i = 0; i < b->ledger->count; i++)
        atomic_store(&b->ledger->spent[i], 0);
    if ((err = bt_load_run(&options, b->results, &out->load, why)) != BT_OK)
        return err;
    out->router_cpu = (cpu_of(b->router) - router) / out->load.seconds;
    out->mock_cpu = (cpu_of(b->mock) - mock) / out->load.seconds;
    out->load_cpu = (cpu_of(getpid()) - load) / out->load.seconds;
    out->rss_mib = memory_of(b->router, "VmRSS:");
    out->peak_mib = memory_of(b->router, "VmHWM:");
    out->added = summarise(b, ADDED);
    out->added_whole = summarise(b, ADDED_WHOLE);
    out->added_streamed = summarise(b, ADDED_STREAMED);
    out->total = summarise(b, TOTAL);
    out->mock = summarise(b, MOCK);
    return BT_OK;
}

// ---- what is told ----

static double
rounded(double value)
{
    return round(value * 1000) / 1000;
}

static void
put_percentiles(bt_json_writer *w, const char *key, const percentiles *p)
{
    bt_json_begin_object(w, key);
    bt_json_put_real(w, "p50", rounded(p->p50));
    bt_json_put_real(w, "p90", rounded(p->p90));
    bt_json_put_real(w, "p99", rounded(p->p99));
    bt_json_put_real(w, "p99.9", rounded(p->p999));
    bt_json_put_real(w, "max", rounded(p->max));
    bt_json_end(w);
}

static void
print_json(const bench *b, const char *name, const round_result *r)
{
    bt_json_writer w;
    bt_buf out;

    bt_buf_init(&out, 1 << 16);
    bt_json_write(&w, &out);
    bt_json_begin_object(&w, NULL);
    bt_json_put_text(&w, "test", bt_str_of("router"));
    bt_json_put_text(&w, "round", bt_str_of(name));
    bt_json_put_real(&w, "rate", b->rate);
    bt_json_put_int(&w, "requests", requests_of(b));
    bt_json_put_int(&w, "errors", r->load.errors);
    bt_json_put_int(&w, "connections", b->connections);
    bt_json_put_int(&w, "max_tokens", b->max_tokens);
    bt_json_put_int(&w, "nodes", b->nodes);
    bt_json_put_int(&w, "cores", sysconf(_SC_NPROCESSORS_ONLN));
    bt_json_put_real(&w, "requests_per_s", rounded((double)requests_of(b) / r->load.seconds));
    bt_json_put_real(&w, "ready_ms", rounded(b->ready_ms));
    bt_json_put_real(&w, "rss_mib", rounded(r->rss_mib));
    bt_json_put_real(&w, "rss_peak_mib", rounded(r->peak_mib));
    bt_json_put_real(&w, "router_cpu", rounded(r->router_cpu));
    bt_json_put_real(&w, "mock_cpu", rounded(r->mock_cpu));
    bt_json_put_real(&w, "load_cpu", rounded(r->load_cpu));
    put_percentiles(&w, "added_ms", &r->added);
    put_percentiles(&w, "added_whole_ms", &r->added_whole);
    put_percentiles(&w, "added_streamed_ms", &r->added_streamed);
    put_percentiles(&w, "total_ms", &r->total);
    put_percentiles(&w, "node_ms", &r->mock);
    bt_json_end(&w);
    puts(out.data);
    fflush(stdout);
    bt_buf_fini(&out);
}

static void
print_text(const bench *b, const char *name, const round_result *r)
{
    printf(
        "%-6s %u requests, %u errors, %.0f/s: added p50 %.3f p90 %.3f p99 %.3f p99.9 %.3f ms (whole p99 %.3f, streamed "
        "%.3f); router %.1f MiB, %.0f %% of a core\n",
        name, requests_of(b), r->load.errors, (double)requests_of(b) / r->load.seconds, r->added.p50, r->added.p90,
        r->added.p99, r->added.p999, r->added_whole.p99, r->added_streamed.p99, r->rss_mib, 100 * r->router_cpu);
    fflush(stdout);
}

static void
report(const bench *b, const char *name, const round_result *r)
{
    if (b->json)
        print_json(b, name, r);
    else
        print_text(b, name, r);
    if (r->load.errors != 0)
        fprintf(stderr, "baton bench router: the first error: %s\n", r->load.first_error);
}

static bt_err
open_bench(bench *b, bt_why *why)
{
    uint32_t count = requests_of(b);
    size_t bytes = sizeof *b->ledger + count * sizeof b->ledger->spent[0];
    bt_err err;

    snprintf(b->folder, sizeof b->folder, "/tmp/baton-bench-XXXXXX");
    b->ledger = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    b->results = bt_alloc_array(count, sizeof *b->results);
    b->values = bt_alloc_array(count, sizeof *b->values);
    if (b->ledger == MAP_FAILED || b->results == NULL || b->values == NULL)
        return bt_fail(why, BT_ERR_NO_MEMORY, "no memory for %u requests", count);
    if (mkdtemp(b->folder) == NULL)
        return bt_fail(why, BT_ERR_IO, "%s: %s", b->folder, strerror(errno));
    b->ledger->count = count;
    if ((err = start_mock(b, why)) == BT_OK)
        err = start_router(b, why);
    return err;
}

// What went wrong may stand in the router's log: it stays then.
static void
close_bench(bench *b, bool failed)
{
    static const char *const names[] = {"bench.yaml", "router.log"};
    char path[128];

    stop(b->router);
    stop(b->mock);
    for (size_t i = 0; !failed && i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s", b->folder, names[i]);
        unlink(path);
    }
    rmdir(b->folder);
    bt_free(b->results);
    bt_free(b->values);
}

static bt_err
run(bench *b, bt_why *why)
{
    round_result best = {0}, now;
    uint32_t errors = 0;
    char name[16];
    bt_err err;

    if ((err = run_round(b, 0, requests_of(b) / 4 + 1, &now, why)) != BT_OK) // warms up
        return err;
    for (uint32_t i = 0; i < b->rounds; i++) {
        if ((err = run_round(b, i + 1, requests_of(b), &now, why)) != BT_OK)
            return err;
        snprintf(name, sizeof name, "%u", i + 1);
        report(b, name, &now);
        errors += now.load.errors;
        if (i == 0 || now.added.p99 < best.added.p99)
            best = now;
    }
    report(b, "best", &best);
    return errors == 0 ? BT_OK : bt_fail(why, BT_ERR_IO, "%u requests failed", errors);
}

int
bt_bench_router_main(int argc, char **argv)
{
    static bench b = {.rounds = 5, .seconds = 10, .nodes = 2, .connections = 64, .max_tokens = 4, .rate = 1000};
    const char *model = NULL;
    const bt_arg args[] = {
        {"rate", BT_ARG_FLOAT, &b.rate, "R", "requests a second (Poisson)", NULL},
        {"seconds", BT_ARG_U32, &b.seconds, "N", "of a round", NULL},
        {"rounds", BT_ARG_U32, &b.rounds, "N", "each is told, and the best of them", NULL},
        {"connections", BT_ARG_U32, &b.connections, "N", "kept alive", NULL},
        {"max-tokens", BT_ARG_U32, &b.max_tokens, "N", "of an answer", NULL},
        {"nodes", BT_ARG_U32, &b.nodes, "N", "mock decode nodes", NULL},
        {"set", BT_ARG_STRING, &b.set, "KEY=VALUE", "for the router", NULL},
        {"json", BT_ARG_FLAG, &b.json, NULL, "one JSON object a round", NULL},
        {NULL, BT_ARG_FLAG, NULL, NULL, NULL, NULL},
    };
    const bt_args_spec spec = {
        .usage = "baton bench router MODEL [options]",
        .about = "Runs `baton router` between a load of tiny requests and nodes that compute nothing, and tells what "
                 "the router\n"
                 "adds to a request's time, its memory and CPU. MODEL gives tokenizer and template.",
        .example = "  baton bench router model.gguf --rate 1000 --seconds 10 --rounds 5 --json",
        .args = args,
        .positional_min = 1,
        .positional_max = 1,
    };
    uint32_t count = 0;
    bt_why why = {""};
    int code = bt_args_parse(&spec, argc, argv, &model, &count);

    if (code >= 0)
        return code;
    b.model = model;
    if (b.rate < 1 || b.seconds == 0 || b.rounds == 0 || b.connections == 0 || b.max_tokens == 0 || b.nodes == 0 ||
        b.nodes > BT_MOCK_NODES_MAX || (double)b.rate * b.seconds > 1e7) {
        fprintf(stderr, "baton bench router: all numbers at least 1, --nodes at most %d, requests at most 10^7\n",
                BT_MOCK_NODES_MAX);
        return 2;
    }
    if (open_bench(&b, &why) != BT_OK || run(&b, &why) != BT_OK) {
        fprintf(stderr, "baton bench router: %s\n", why.text);
        code = 1;
    } else {
        code = 0;
    }
    close_bench(&b, code != 0);
    return code;
}
