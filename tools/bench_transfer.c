// baton bench transfer: a context's KV blocks from one process into another, beside plain copies measured in the same run.
//
// A child owns the blocks, and the command's own process receives (with GPUs another child: a process that has touched the driver cannot
// fork). One fetch moves one context; the owner sleeps unless it is asked.
#include "common/base/buf.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/json/write.h"
#include "common/transfer/transfer.h"
#include "tools/args.h"
#include "tools/bench_transfer_pool.h"
#include "tools/commands.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define OWNER_EPOCH 1
#define GENERATION 1
#define REPEAT_MAX 100
#define PATIENCE (120 * BT_SECOND)

typedef struct {
    const char *name;
    uint32_t layers, kv_heads, head_dim;
} shape;

static const shape shapes[] = {{"smollm2", 30, 3, 64}, {"8b", 32, 8, 128}};

typedef struct {
    const char *name, *library, *tls;
    bt_transfer_path path;
    bool gpu;
    bt_transfer_copies copies;
} way;

static const way ways[] = {
    {"host-shm", "host", NULL, BT_TRANSFER_PATH_DIRECT, false, BT_TRANSFER_COPIES_AUTO},
    {"host-tcp", "host", NULL, BT_TRANSFER_PATH_STREAM, false, BT_TRANSFER_COPIES_AUTO},
    {"ucx-shm", "ucx", "shm", BT_TRANSFER_PATH_DIRECT, false, BT_TRANSFER_COPIES_AUTO},
    {"ucx-get", "ucx", "shm", BT_TRANSFER_PATH_GET, false, BT_TRANSFER_COPIES_AUTO},
    {"ucx-tcp", "ucx", "tcp", BT_TRANSFER_PATH_AM, false, BT_TRANSFER_COPIES_AUTO},
    {"cuda", "cuda", NULL, BT_TRANSFER_PATH_AUTO, true, BT_TRANSFER_COPIES_AUTO},
    {"cuda-engine", "cuda", NULL, BT_TRANSFER_PATH_AUTO, true, BT_TRANSFER_COPIES_BY_ENGINE},
    {"cuda-kernel", "cuda", NULL, BT_TRANSFER_PATH_AUTO, true, BT_TRANSFER_COPIES_BY_KERNEL},
};

typedef struct {
    const char *shape_names, *way_names, *devices;
    char owner_device[32], device[32];                         // of `devices`
    uint32_t context, repeat, prefill_rate, piece_mib, window; // the last two 0: the transfer's own
    uint32_t run;                                              // 0: all blocks are neighbours
    bool json, checked;                                        // only with checksums
} bench;

typedef struct {
    bt_transfer *transfer;
    bt_bench_pool pool;
    uint32_t peer, blocks;
    bt_kv_layout layout;
    bt_transfer_block *list;
} receiver;

static bool
listed(const char *names, const char *name)
{
    size_t length = strlen(name);

    for (const char *at = names; (at = strstr(at, name)) != NULL; at++) {
        if ((at == names || at[-1] == ',') && (at[length] == 0 || at[length] == ',')) {
            return true;
        }
    }
    return strcmp(names, "all") == 0;
}

static const char *
shape_name(size_t i)
{
    return i < sizeof shapes / sizeof *shapes ? shapes[i].name : NULL;
}

static const char *
way_name(size_t i)
{
    return i < sizeof ways / sizeof *ways ? ways[i].name : NULL;
}

// Is each of `names` one of those there are? Else says which is not.
static bool
check_names(const char *option, const char *names, const char *(*name_of)(size_t))
{
    const char *at = names;
    size_t len, i;

    if (strcmp(names, "all") == 0) {
        return true;
    }
    do {
        len = strcspn(at, ",");
        for (i = 0; name_of(i) != NULL && (strlen(name_of(i)) != len || memcmp(name_of(i), at, len) != 0);) {
            i++;
        }
        if (name_of(i) == NULL) {
            fprintf(stderr, "baton bench transfer: --%s: '%.*s' is none of all", option, (int)len, at);
            for (i = 0; name_of(i) != NULL; i++) {
                fprintf(stderr, ", %s", name_of(i));
            }
            fprintf(stderr, "\n");
            return false;
        }
        at += len + 1;
    } while (at[-1] == ',');
    return true;
}

static double
gb_per_s(size_t bytes, bt_time took)
{
    return (double)bytes / (double)(took > 0 ? took : 1);
}

static bt_err
open_end(bt_transfer **out, const bench *b, const way *w, const bt_kv_layout *layout, uint32_t blocks, uint64_t epoch,
         bool checksum, bt_device *device, bt_why *why)
{
    bt_transfer_options o = {.transport = w->library,
                             .epoch = epoch,
                             .layout = *layout,
                             .blocks = blocks,
                             .memory = device != NULL ? BT_TRANSFER_CUDA : BT_TRANSFER_HOST,
                             .device = device,
                             .copies = w->copies,
                             .peers_max = 1,
                             .fetches_max = 1,
                             .fetch_blocks_max = blocks,
                             .window = b->window,
                             .piece_bytes = (size_t)b->piece_mib << 20,
                             .no_checksum = !checksum,
                             .tls = w->tls,
                             .path = w->path};

    return bt_transfer_open(out, &o, why);
}

// Sends ours and connects to theirs.
static bt_err
meet(bt_transfer *t, int fd, uint32_t *peer, bt_why *why)
{
    uint8_t bytes[BT_TRANSFER_DESCRIPTION_MAX];
    size_t length;
    ssize_t got;

    if (bt_transfer_describe(t, bytes, sizeof bytes, &length) != BT_OK || send(fd, bytes, length, MSG_NOSIGNAL) < 0 ||
        (got = recv(fd, bytes, sizeof bytes, 0)) <= 0) {
        return bt_fail(why, BT_ERR_PEER, "the other process is gone");
    }
    return bt_transfer_connect(t, bytes, (size_t)got, peer, why);
}

// Serves until the receiver hangs up.
static int
own(const bench *b, const way *w, const bt_kv_layout *layout, uint32_t blocks, int fd)
{
    struct pollfd fds[2] = {{.fd = fd, .events = POLLIN}, {.events = POLLIN}};
    const char *device = w->gpu ? b->owner_device : NULL;
    bt_transfer *t = NULL;
    bt_bench_pool pool;
    uint32_t peer;
    bt_why why = {{0}};

    if (bt_bench_pool_open(&pool, device, device, &why) != BT_OK ||
        open_end(&t, b, w, layout, blocks, OWNER_EPOCH, true, pool.device, &why) != BT_OK ||
        bt_bench_pool_fill(&pool, layout, bt_transfer_pool(t), blocks, OWNER_EPOCH, GENERATION, &why) != BT_OK ||
        meet(t, fd, &peer, &why) != BT_OK) {
        fprintf(stderr, "baton bench transfer: the owner: %s\n", why.text);
        bt_transfer_close(t);
        bt_bench_pool_close(&pool);
        return 1;
    }
    fds[1].fd = bt_transfer_fd(t);
    while ((fds[0].revents & (POLLIN | POLLHUP)) == 0) {
        bt_transfer_event event;

        bt_transfer_poll(t, bt_time_now(), &event, 1);
        poll(fds, 2, bt_transfer_arm(t) ? 100 : 0);
    }
    bt_transfer_close(t);
    bt_bench_pool_close(&pool);
    return 0;
}

static bt_err
await(receiver *r, bt_transfer_event *event, bt_why *why)
{
    bt_time until = bt_time_now() + PATIENCE;

    while (bt_transfer_poll(r->transfer, bt_time_now(), event, 1) == 0) {
        if (bt_time_now() > until) {
            return bt_fail(why, BT_ERR_TIMEOUT, "no end after two minutes");
        }
    }
    return event->err == BT_OK
               ? BT_OK
               : bt_fail(why, event->err, "the transfer failed: %s", bt_transfer_cause_name(event->cause));
}

static bt_err
prove(receiver *r, bt_why *why)
{
    bt_transfer_event event;
    bt_err err = bt_transfer_prove(r->transfer, r->peer, bt_time_now() + PATIENCE, 2);

    return err == BT_OK ? await(r, &event, why) : bt_fail(why, err, "proof of the way: %s", bt_err_name(err));
}

static bt_err
fetch_context(receiver *r, bt_time *took, bt_why *why)
{
    bt_time began = bt_time_now();
    bt_transfer_event event;
    bt_err err = bt_transfer_fetch(r->transfer, r->peer, r->list, r->blocks, began + PATIENCE, 1);

    if (err != BT_OK) {
        return bt_fail(why, err, "fetch: %s", bt_err_name(err));
    }
    err = await(r, &event, why);
    *took = bt_time_now() - began;
    return err;
}

static void
put_rounded(bt_json_writer *w, const char *key, double value)
{
    bt_json_put_real(w, key, (double)(long long)(value * 1000 + 0.5) / 1000);
}

static void
report(const bench *b, const receiver *r, const shape *s, const way *w, bool checksum, bt_time best, bt_time median)
{
    size_t bytes = r->blocks * r->layout.block_bytes;
    double rate = gb_per_s(bytes, best), plain = r->pool.gb_per_s;
    bt_transfer_peer_info info = {0};
    bt_json_writer out;
    bt_buf buf;

    bt_transfer_peer(r->transfer, r->peer, &info);
    if (!b->json) {
        printf("%-8s %-11s %-6s checksum %-3s %7.1f MB in %7.1f ms: %6.2f GB/s, %3.0f %% of %s\n", s->name, w->name,
               bt_transfer_path_name(info.path), checksum ? "yes" : "no", (double)bytes / 1e6, (double)best / 1e6, rate,
               100 * rate / plain, w->gpu ? "a plain copy" : "memcpy");
        return;
    }
    bt_buf_init(&buf, 1 << 14);
    bt_json_write(&out, &buf);
    bt_json_begin_object(&out, NULL);
    bt_json_put_text(&out, "test", bt_str_of("transfer"));
    bt_json_put_text(&out, "shape", bt_str_of(s->name));
    bt_json_put_text(&out, "way", bt_str_of(w->name));
    bt_json_put_text(&out, "path", bt_str_of(bt_transfer_path_name(info.path)));
    bt_json_put_text(&out, "transport", bt_str_of(info.transport));
    if (w->gpu) {
        bt_json_put_text(&out, "owner_device", bt_str_of(b->owner_device));
        bt_json_put_text(&out, "device", bt_str_of(b->device));
    }
    bt_json_put_bool(&out, "checksum", checksum);
    bt_json_put_int(&out, "context", b->context);
    bt_json_put_int(&out, "blocks", r->blocks);
    bt_json_put_int(&out, "block_bytes", (long long)r->layout.block_bytes);
    put_rounded(&out, "ms", (double)best / 1e6);
    put_rounded(&out, "ms_median", (double)median / 1e6);
    put_rounded(&out, "gb_per_s", rate);
    put_rounded(&out, "plain_gb_per_s", plain); // memcpy, or of GPUs a copy between the same two
    put_rounded(&out, "of_plain", rate / plain);
    if (b->prefill_rate != 0) {
        put_rounded(&out, "of_ttft", (double)best / 1e9 / ((double)best / 1e9 + (double)b->context / b->prefill_rate));
    }
    bt_json_end(&out);
    puts(buf.data);
    fflush(stdout);
    bt_buf_fini(&buf);
}

static int
by_time(const void *a, const void *b)
{
    bt_time x = *(const bt_time *)a, y = *(const bt_time *)b;

    return (x > y) - (x < y);
}

static bt_err
receive(const bench *b, receiver *r, const shape *s, const way *w, bool checksum, int fd, bt_why *why)
{
    bt_time took[REPEAT_MAX + 1] = {0};
    bool cuda = w->gpu;
    bt_err err;

    if ((err = bt_bench_pool_open(&r->pool, cuda ? b->device : NULL, cuda ? b->owner_device : NULL, why)) != BT_OK ||
        (err = open_end(&r->transfer, b, w, &r->layout, r->blocks, 2, checksum, r->pool.device, why)) != BT_OK ||
        (err = meet(r->transfer, fd, &r->peer, why)) != BT_OK || (err = prove(r, why)) != BT_OK) {
        return err;
    }
    for (uint32_t i = 0; i <= b->repeat && err == BT_OK; i++) {
        if ((err = fetch_context(r, &took[i], why)) == BT_OK) { // by turns: both see the same machine
            err = bt_bench_pool_copy(&r->pool, r->blocks * r->layout.block_bytes, why);
        }
    }
    if (err == BT_OK) {
        qsort(took + 1, b->repeat, sizeof took[0], by_time); // the first touched the pages
        report(b, r, s, w, checksum, took[1], took[1 + b->repeat / 2]);
    }
    return err;
}

static int
receive_all(const bench *b, receiver *r, const shape *s, const way *w, bool checksum, int fd)
{
    bt_why why = {{0}};
    bt_err err = receive(b, r, s, w, checksum, fd, &why);

    if (err != BT_OK) {
        fprintf(stderr, "baton bench transfer: %s, %s: %s\n", s->name, w->name, why.text);
    }
    close(fd);
    bt_transfer_close(r->transfer);
    bt_bench_pool_close(&r->pool);
    return err == BT_OK ? 0 : 1;
}

// Its exit code.
static int
await_child(pid_t child)
{
    int status = 1;

    return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

// Where the owner has what becomes block i: neighbours in runs of so many, the last run first.
static uint32_t
source_of(const bench *b, uint32_t i, uint32_t blocks)
{
    uint32_t run = b->run != 0 ? b->run : blocks, runs = blocks / run;

    return i < runs * run ? (runs - 1 - i / run) * run + i % run : i;
}

static int
measure(const bench *b, const shape *s, const way *w, bool checksum)
{
    receiver r = {.blocks = (b->context + 31) / 32};
    pid_t owner, apart = 0;
    int fds[2], code = 1;

    r.list = bt_alloc_array(r.blocks, sizeof *r.list);
    if (r.list == NULL || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) != 0 ||
        bt_kv_layout_init(&r.layout, BT_KV_INT8, s->layers, s->kv_heads, s->head_dim, 32, s->head_dim, NULL) != BT_OK) {
        fprintf(stderr, "baton bench transfer: no memory for %u blocks\n", r.blocks);
        bt_free(r.list);
        return 1;
    }
    for (uint32_t i = 0; i < r.blocks; i++) {
        r.list[i] = (bt_transfer_block){source_of(b, i, r.blocks), i, GENERATION};
    }
    fflush(NULL);
    owner = fork();
    if (owner == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(fds[0]);
        _exit(own(b, w, &r.layout, r.blocks, fds[1]));
    }
    close(fds[1]);
    apart = w->gpu ? fork() : 0;
    if (apart == 0) {
        if (w->gpu) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
        }
        code = receive_all(b, &r, s, w, checksum, fds[0]);
        fflush(NULL);
        if (w->gpu) {
            _exit(code);
        }
    } else {
        close(fds[0]);
        code = await_child(apart);
    }
    await_child(owner);
    bt_free(r.list);
    return code;
}

// What is wrong with the GPUs is said once, before anything is measured. By a child: see above.
static bool
can_open(const bench *b)
{
    pid_t child;

    fflush(NULL);
    if ((child = fork()) == 0) {
        bt_bench_pool pool;
        bt_why why = {{0}};
        bt_err err = bt_bench_pool_open(&pool, b->owner_device, b->device, &why);

        if (err != BT_OK) {
            fprintf(stderr, "baton bench transfer: %s\n", why.text);
        }
        bt_bench_pool_close(&pool);
        _exit(err == BT_OK ? 0 : 1);
    }
    return await_child(child) == 0;
}

static int
measure_all(bench *b)
{
    int code = 0;

    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
            for (int checksum = 1; checksum >= (b->checked ? 1 : 0); checksum--) {
                if (listed(b->shape_names, shapes[s].name) && listed(b->way_names, ways[w].name) &&
                    (!ways[w].gpu || b->devices != NULL)) {
                    code |= measure(b, &shapes[s], &ways[w], checksum == 1);
                }
            }
        }
    }
    return code;
}

// "cuda:0", or "cuda:0,cuda:1": the owner's and the receiver's.
static bool
split_devices(bench *b)
{
    const char *comma = strchr(b->devices, ',');
    int first = comma != NULL ? (int)(comma - b->devices) : (int)strlen(b->devices);
    bt_device_options unused = {0};

    snprintf(b->owner_device, sizeof b->owner_device, "%.*s", first, b->devices);
    snprintf(b->device, sizeof b->device, "%s", comma != NULL ? comma + 1 : b->owner_device);
    return bt_device_parse(&unused, b->owner_device, NULL) == BT_OK && unused.kind == BT_DEVICE_CUDA &&
           bt_device_parse(&unused, b->device, NULL) == BT_OK && unused.kind == BT_DEVICE_CUDA;
}

int
bt_bench_transfer_main(int argc, char **argv)
{
    bench b = {.context = 32768, .repeat = 5};
    const bt_arg args[] = {
        {"shape", BT_ARG_STRING, &b.shape_names, "smollm2,8b", "models whose blocks are moved; with --device 8b", NULL},
        {"way", BT_ARG_STRING, &b.way_names, "host-shm,host-tcp",
         "also ucx-shm, ucx-get, ucx-tcp; with --device cuda, cuda-engine, cuda-kernel; or all", NULL},
        {"device", BT_ARG_STRING, &b.devices, "cuda:N[,cuda:M]",
         "pools in GPUs' memory: the owner's, and the receiver's", NULL},
        {"context", BT_ARG_U32, &b.context, "TOKENS", "of a fetch", NULL},
        {"repeat", BT_ARG_U32, &b.repeat, "N", "fetches after one to warm up; the fastest and the median are told",
         NULL},
        {"piece", BT_ARG_U32, &b.piece_mib, "MIB", "longest operation [16, of GPUs 64]", NULL},
        {"window", BT_ARG_U32, &b.window, "N", "operations in flight [4, of GPUs 16]", NULL},
        {"run", BT_ARG_U32, &b.run, "BLOCKS", "that are neighbours at both ends [all]", NULL},
        {"prefill-rate", BT_ARG_U32, &b.prefill_rate, "TOKENS/S",
         "of a prefill node: tells the transfer's share of TTFT", NULL},
        {"checksum", BT_ARG_FLAG, &b.checked, NULL, "only with checksums", NULL},
        {"json", BT_ARG_FLAG, &b.json, NULL, "one JSON line a measurement on stdout", NULL},
        {NULL, BT_ARG_FLAG, NULL, NULL, NULL, NULL},
    };
    bt_args_spec spec = {
        .usage = "baton bench transfer [options]",
        .about =
            "Moves the KV blocks of one context from one process into another, with and without their checksums,\n"
            "beside plain copies measured in the same run: memcpy, or a copy between the same two GPUs. Needs memory\n"
            "for two contexts (8b: 4.4 GB; of GPUs twice that).",
        .example = "  baton bench transfer --shape 8b --way host-shm --json\n"
                   "  baton bench transfer --device cuda:0,cuda:1",
        .args = args,
    };
    uint32_t count;
    int code = bt_args_parse(&spec, argc, argv, NULL, &count);

    if (code >= 0) {
        return code;
    }
    if (b.context == 0 || b.context > 1u << 20 || b.repeat == 0 || b.repeat > REPEAT_MAX) {
        fprintf(stderr, "baton bench transfer: --context from 1 to %u, --repeat from 1 to %d\n", 1u << 20, REPEAT_MAX);
        return 2;
    }
    if (b.devices != NULL && !split_devices(&b)) {
        fprintf(stderr, "baton bench transfer: --device: expected cuda:N or cuda:N,cuda:M, not '%s'\n", b.devices);
        return 2;
    }
    if (b.devices == NULL && b.way_names != NULL && strstr(b.way_names, "cuda") != NULL) {
        fprintf(stderr, "baton bench transfer: --way %s needs --device\n", b.way_names);
        return 2;
    }
    b.shape_names = b.shape_names != NULL ? b.shape_names : b.devices != NULL ? "8b" : "smollm2,8b";
    b.way_names = b.way_names != NULL ? b.way_names : b.devices != NULL ? "cuda" : "host-shm,host-tcp";
    if (!check_names("shape", b.shape_names, shape_name) || !check_names("way", b.way_names, way_name) ||
        (b.devices != NULL && !can_open(&b))) {
        return 2;
    }
    return measure_all(&b);
}
