// baton bench transfer: a context's KV blocks from one process into another, beside plain memcpy measured in the same run.
//
// The command's own process receives; a child owns the blocks. One fetch moves one context; the child sleeps unless it is asked.
#include "common/base/buf.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/json/write.h"
#include "common/kv/trailer.h"
#include "common/transfer/transfer.h"
#include "tools/args.h"
#include "tools/commands.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define OWNER_EPOCH 1
#define GENERATION 1
#define REPEAT_MAX 100
#define COPY_BYTES ((size_t)512 << 20)
#define PATIENCE (120 * BT_SECOND)

typedef struct {
    const char *name;
    uint32_t layers, kv_heads, head_dim;
} shape;

static const shape shapes[] = {{"smollm2", 30, 3, 64}, {"8b", 32, 8, 128}};

typedef struct {
    const char *name, *library, *tls;
    bt_transfer_path path;
} way;

static const way ways[] = {
    {"host-shm", "host", NULL, BT_TRANSFER_PATH_DIRECT}, {"host-tcp", "host", NULL, BT_TRANSFER_PATH_STREAM},
    {"ucx-shm", "ucx", "shm", BT_TRANSFER_PATH_DIRECT},  {"ucx-get", "ucx", "shm", BT_TRANSFER_PATH_GET},
    {"ucx-tcp", "ucx", "tcp", BT_TRANSFER_PATH_AM},
};

typedef struct {
    const char *shape_names, *way_names;
    uint32_t context, repeat, prefill_rate;
    bool json;
    uint8_t *from, *to; // for memcpy
    double copy_gb_s;
} bench;

typedef struct {
    bt_transfer *transfer;
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

static double
gb_per_s(size_t bytes, bt_time took)
{
    return (double)bytes / (double)(took > 0 ? took : 1);
}

// One memcpy over memory that no cache holds, between the fetches: both see the same machine.
static void
measure_copy(bench *b)
{
    bt_time began = bt_time_now();
    double rate;

    memcpy(b->to, b->from, COPY_BYTES);
    rate = gb_per_s(COPY_BYTES, bt_time_now() - began);
    b->copy_gb_s = rate > b->copy_gb_s ? rate : b->copy_gb_s;
}

static bt_err
open_end(bt_transfer **out, const way *w, const bt_kv_layout *layout, uint32_t blocks, uint64_t epoch, bool checksum,
         bt_why *why)
{
    bt_transfer_options o = {.transport = w->library,
                             .epoch = epoch,
                             .layout = *layout,
                             .blocks = blocks,
                             .peers_max = 1,
                             .fetches_max = 1,
                             .fetch_blocks_max = blocks,
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

static void
write_blocks(bt_transfer *t, const bt_kv_layout *layout, uint32_t blocks)
{
    bt_rng rng = {1};

    for (uint32_t b = 0; b < blocks; b++) {
        uint8_t *block = bt_transfer_pool(t) + b * layout->block_bytes;

        for (size_t at = 0; at < layout->trailer_offset; at += 8) {
            uint64_t word = bt_rng_next(&rng);

            memcpy(block + at, &word, 8);
        }
        bt_kv_trailer_stamp(layout, block, OWNER_EPOCH, GENERATION);
    }
}

// Serves until the receiver hangs up.
static int
own(const way *w, const bt_kv_layout *layout, uint32_t blocks, int fd)
{
    struct pollfd fds[2] = {{.fd = fd, .events = POLLIN}, {.events = POLLIN}};
    bt_transfer *t = NULL;
    uint32_t peer;
    bt_why why = {{0}};

    if (open_end(&t, w, layout, blocks, OWNER_EPOCH, true, &why) != BT_OK) {
        fprintf(stderr, "baton bench transfer: %s\n", why.text);
        return 1;
    }
    write_blocks(t, layout, blocks);
    if (meet(t, fd, &peer, &why) != BT_OK) {
        bt_transfer_close(t);
        return 1;
    }
    fds[1].fd = bt_transfer_fd(t);
    while ((fds[0].revents & (POLLIN | POLLHUP)) == 0) {
        bt_transfer_event event;

        bt_transfer_poll(t, bt_time_now(), &event, 1);
        poll(fds, 2, bt_transfer_arm(t) ? 100 : 0);
    }
    bt_transfer_close(t);
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
    double rate = gb_per_s(bytes, best);
    bt_transfer_peer_info info = {0};
    bt_json_writer out;
    bt_buf buf;

    bt_transfer_peer(r->transfer, r->peer, &info);
    if (!b->json) {
        printf("%-8s %-8s %-6s checksum %-3s %7.1f MB in %7.1f ms: %6.2f GB/s, %3.0f %% of memcpy\n", s->name, w->name,
               bt_transfer_path_name(info.path), checksum ? "yes" : "no", (double)bytes / 1e6, (double)best / 1e6, rate,
               100 * rate / b->copy_gb_s);
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
    bt_json_put_bool(&out, "checksum", checksum);
    bt_json_put_int(&out, "context", b->context);
    bt_json_put_int(&out, "blocks", r->blocks);
    bt_json_put_int(&out, "block_bytes", (long long)r->layout.block_bytes);
    put_rounded(&out, "ms", (double)best / 1e6);
    put_rounded(&out, "ms_median", (double)median / 1e6);
    put_rounded(&out, "gb_per_s", rate);
    put_rounded(&out, "memcpy_gb_per_s", b->copy_gb_s);
    put_rounded(&out, "of_memcpy", rate / b->copy_gb_s);
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
receive(bench *b, receiver *r, const shape *s, const way *w, bool checksum, int fd, bt_why *why)
{
    bt_time took[REPEAT_MAX + 1] = {0};
    bt_transfer_event event;
    bt_err err;

    if ((err = open_end(&r->transfer, w, &r->layout, r->blocks, 2, checksum, why)) != BT_OK ||
        (err = meet(r->transfer, fd, &r->peer, why)) != BT_OK ||
        (err = bt_transfer_prove(r->transfer, r->peer, bt_time_now() + PATIENCE, 2)) != BT_OK ||
        (err = await(r, &event, why)) != BT_OK) {
        return err;
    }
    b->copy_gb_s = 0;
    for (uint32_t i = 0; i <= b->repeat && err == BT_OK; i++) {
        err = fetch_context(r, &took[i], why);
        measure_copy(b);
    }
    if (err == BT_OK) {
        qsort(took + 1, b->repeat, sizeof took[0], by_time); // the first touched the pages
        report(b, r, s, w, checksum, took[1], took[1 + b->repeat / 2]);
    }
    return err;
}

static bt_err
measure(bench *b, const shape *s, const way *w, bool checksum, bt_why *why)
{
    receiver r = {0};
    bt_err err = bt_kv_layout_init(&r.layout, BT_KV_INT8, s->layers, s->kv_heads, s->head_dim, 32, s->head_dim, why);
    int fds[2];
    pid_t child;

    r.blocks = (b->context + 31) / 32;
    r.list = bt_alloc_array(r.blocks, sizeof *r.list);
    if (err != BT_OK || r.list == NULL || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) != 0) {
        bt_free(r.list);
        return bt_fail(why, BT_ERR_NO_MEMORY, "no memory for %u blocks", r.blocks);
    }
    for (uint32_t i = 0; i < r.blocks; i++) {
        r.list[i] = (bt_transfer_block){i, i, GENERATION};
    }
    fflush(NULL);
    child = fork();
    if (child == 0) {
        close(fds[0]);
        _exit(own(w, &r.layout, r.blocks, fds[1]));
    }
    close(fds[1]);
    err = child > 0 ? receive(b, &r, s, w, checksum, fds[0], why) : bt_fail(why, BT_ERR_IO, "no second process");
    close(fds[0]);
    bt_transfer_close(r.transfer);
    if (child > 0) {
        waitpid(child, NULL, 0);
    }
    bt_free(r.list);
    return err;
}

static int
measure_all(bench *b)
{
    int code = 0;

    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
            for (int checksum = 1; checksum >= 0; checksum--) {
                bt_why why = {{0}};
                bt_err err;

                if (!listed(b->shape_names, shapes[s].name) || !listed(b->way_names, ways[w].name)) {
                    continue;
                }
                if ((err = measure(b, &shapes[s], &ways[w], checksum == 1, &why)) != BT_OK) {
                    fprintf(stderr, "baton bench transfer: %s, %s: %s\n", shapes[s].name, ways[w].name, why.text);
                    code = 1;
                }
            }
        }
    }
    return code;
}

int
bt_bench_transfer_main(int argc, char **argv)
{
    bench b = {.shape_names = "smollm2,8b", .way_names = "host-shm,host-tcp", .context = 32768, .repeat = 5};
    const bt_arg args[] = {
        {"shape", BT_ARG_STRING, &b.shape_names, "smollm2,8b", "models whose blocks are moved", NULL},
        {"way", BT_ARG_STRING, &b.way_names, "host-shm,host-tcp", "also ucx-shm, ucx-get, ucx-tcp; or all", NULL},
        {"context", BT_ARG_U32, &b.context, "TOKENS", "of a fetch", NULL},
        {"repeat", BT_ARG_U32, &b.repeat, "N", "fetches after one to warm up; the fastest and the median are told",
         NULL},
        {"prefill-rate", BT_ARG_U32, &b.prefill_rate, "TOKENS/S",
         "of a prefill node: tells the transfer's share of TTFT", NULL},
        {"json", BT_ARG_FLAG, &b.json, NULL, "one JSON line a measurement on stdout", NULL},
        {NULL, BT_ARG_FLAG, NULL, NULL, NULL, NULL},
    };
    bt_args_spec spec = {
        .usage = "baton bench transfer [options]",
        .about =
            "Moves the KV blocks of one context from another process into this one, with and without their checksums, "
            "beside plain memcpy measured in the same run. Needs memory for two contexts (8b: 4.4 GB).",
        .example = "  baton bench transfer --shape 8b --way host-shm --json",
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
    b.from = bt_alloc_pages(COPY_BYTES);
    b.to = bt_alloc_pages(COPY_BYTES);
    if (b.from == NULL || b.to == NULL) {
        fprintf(stderr, "baton bench transfer: no memory\n");
        return 1;
    }
    memset(b.from, 1, COPY_BYTES);
    memset(b.to, 2, COPY_BYTES);
    code = measure_all(&b);
    bt_free_pages(b.from, COPY_BYTES);
    bt_free_pages(b.to, COPY_BYTES);
    return code;
}
