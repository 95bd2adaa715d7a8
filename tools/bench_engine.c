// baton bench engine: prefill and decode of a model in this process, beside what the machine can do at most.
#include "common/base/buf.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/base/time.h"
#include "common/json/write.h"
#include "kernels/bench/probe.h"
#include "tools/commands.h"
#include "tools/engine_args.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define POINTS_MAX 16
#define PROBE_BYTES ((size_t)512 << 20)

typedef struct {
    uint32_t values[POINTS_MAX], count;
} list;

typedef struct {
    bt_engine_args args;
    uint32_t pp, tg, repeat;
    const char *batch_text, *depth_text;
    list batches, depths;
    bool json, ops, no_limits, lend;
    uint8_t *lent; // with `lend`, where what prompts write is copied to besides
    size_t lent_bytes;
    // the run
    bt_engine *engine;
    uint32_t sequences, blocks_each, chunk;
    uint32_t *blocks; // sequence s: blocks s · blocks_each …
    int32_t *ids;     // enough for the longest sequence
    bt_batch_item *items;
    bt_token_result *drawn;
    bt_engine_times times;
    double read_gb_s, int8_tops, float_tflops; // 0 = not measured. Floats: f32 of a CPU, bf16 of a GPU
} bench;

static bt_err
parse_list(const char *text, const char *what, uint32_t least, list *out, bt_why *why)
{
    const char *at = text;

    do {
        char *end;
        unsigned long value = strtoul(at, &end, 10);

        if (end == at || (*end != ',' && *end != 0) || value < least || value > 1u << 20 || out->count == POINTS_MAX) {
            return bt_fail(why, BT_ERR_INVALID, "--%s: expected up to %d numbers from %u, as in 1,8, not '%s'", what,
                           POINTS_MAX, least, text);
        }
        out->values[out->count++] = (uint32_t)value;
        at = end + (*end == ',');
    } while (*at != 0);
    return BT_OK;
}

static uint32_t
largest(const list *l)
{
    uint32_t most = 0;

    for (uint32_t i = 0; i < l->count; i++) {
        most = l->values[i] > most ? l->values[i] : most;
    }
    return most;
}

// A GPU is measured before the engine takes its memory.
static void
measure_gpu(bench *b)
{
    bt_probe_gpu_limits limits;
    bt_why why;

    if (b->no_limits || b->args.options.device.kind == BT_DEVICE_CPU) {
        return;
    }
    if (bt_probe_gpu(&limits, &b->args.options.device, &why) != BT_OK) {
        bt_log_warn("BENCH-LIMITS", "not measured: %s", why.text);
        return;
    }
    b->read_gb_s = limits.read_gb_s;
    b->int8_tops = limits.int8_tops;
    b->float_tflops = limits.bf16_tflops;
    bt_log_info("BENCH-LIMITS", "%s: read %.0f GB/s, int8 product %.0f TOPS, bf16 product %.0f TFLOPS", limits.name,
                b->read_gb_s, b->int8_tops, b->float_tflops);
}

static bt_err
lend_pool(void *self, bt_device *device, const bt_kv_layout *layout, uint32_t blocks, uint8_t **memory, bt_why *why)
{
    bench *b = self;

    (void)device;
    b->lent_bytes = layout->block_bytes * blocks;
    *memory = b->lent = bt_alloc_pages(b->lent_bytes);
    return b->lent != NULL ? BT_OK
                           : bt_fail(why, BT_ERR_NO_MEMORY, "--lend: the system refused %zu bytes", b->lent_bytes);
}

static bt_err
open_all(bench *b, const char *path, bt_why *why)
{
    bt_engine_options *o = &b->args.options;
    uint32_t longest = largest(&b->depths) + (b->pp > b->tg ? b->pp : b->tg), block_tokens;
    bt_rng rng = {1};
    bt_err err;

    if ((err = bt_engine_args_finish(&b->args, path, why)) != BT_OK) {
        return err;
    }
    b->sequences = largest(&b->batches);
    block_tokens = o->kv_block_tokens != 0 ? o->kv_block_tokens : 32;
    b->blocks_each = (longest + block_tokens - 1) / block_tokens;
    o->max_sequences = b->sequences;
    o->chunk_tokens = o->chunk_tokens > b->sequences ? o->chunk_tokens : b->sequences;
    b->chunk = o->chunk_tokens;
    o->context = longest;
    o->kv_blocks = b->sequences * b->blocks_each;
    if (b->lend) {
        o->kv_pool = lend_pool;
        o->kv_pool_arg = b;
        o->kv_apart = o->kv_out = true;
    }
    measure_gpu(b);
    if ((err = bt_engine_open(&b->engine, o, why)) != BT_OK) {
        return err;
    }
    b->blocks = bt_alloc_array(o->kv_blocks, sizeof *b->blocks);
    b->ids = bt_alloc_array(longest, sizeof *b->ids);
    b->items = bt_alloc_array(b->sequences, sizeof *b->items);
    b->drawn = bt_alloc_array(b->sequences, sizeof *b->drawn);
    if (b->blocks == NULL || b->ids == NULL || b->items == NULL || b->drawn == NULL) {
        return bt_fail(why, BT_ERR_NO_MEMORY, "out of memory");
    }
    for (uint32_t i = 0; i < o->kv_blocks; i++) {
        b->blocks[i] = i;
    }
    for (uint32_t i = 0; i < longest; i++) {
        b->ids[i] = (int32_t)bt_rng_below(&rng, bt_engine_model(b->engine)->config.vocab);
    }
    return BT_OK;
}

// What the CPU can do, before the engine is measured: its memory was touched by then, so both see the same machine.
static void
measure_limits(bench *b)
{
#if defined(__x86_64__)
    bt_probe_region region = {.bytes = PROBE_BYTES};

    if (b->no_limits || !bt_device_is_host(bt_engine_device(b->engine)) || !__builtin_cpu_supports("avx512vnni")) {
        return;
    }
    region.memory = bt_alloc_pages(region.bytes);
    if (region.memory == NULL) {
        return;
    }
    memset(region.memory, 1, region.bytes);
    b->read_gb_s = bt_probe_read_gb_s(bt_engine_device(b->engine), &region);
    b->int8_tops = bt_probe_int8_tops(bt_engine_device(b->engine));
    b->float_tflops = bt_probe_f32_tflops(bt_engine_device(b->engine));
    bt_free_pages(region.memory, region.bytes);
    bt_log_info("BENCH-LIMITS", "%u threads: read %.1f GB/s, int8 %.2f TOPS, f32 %.2f TFLOPS",
                bt_device_threads(bt_engine_device(b->engine)), b->read_gb_s, b->int8_tops, b->float_tflops);
#else
    (void)b;
#endif
}

static bt_batch_item
item_of(const bench *b, uint32_t sequence, uint32_t position, uint32_t count, bool last)
{
    return (bt_batch_item){
        .ids = b->ids + position,
        .count = count,
        .position = position,
        .blocks = b->blocks + sequence * b->blocks_each,
        .want = last ? BT_LOGITS_LAST : BT_LOGITS_NONE,
        .next_id = -1,
    };
}

static bt_err
step(bench *b, uint32_t count)
{
    return bt_engine_step(b->engine, b->items, count, &(bt_step_result){.drawn = b->drawn});
}

// Runs positions [from, to) of the first `batch` sequences through the model: steps are full, and hold the end of one prompt and the
// beginnings of others where these are shorter than a step.
static bt_err
prefill(bench *b, uint32_t batch, uint32_t from, uint32_t to)
{
    uint32_t sequence = 0, at = from, items = 0, left = b->chunk;
    bt_err err = BT_OK;

    while (sequence < batch && from < to && err == BT_OK) {
        uint32_t count = to - at < left ? to - at : left;

        b->items[items++] = item_of(b, sequence, at, count, at + count == to);
        at += count;
        left -= count;
        if (at == to) {
            sequence++;
            at = from;
        }
        if (left == 0 || sequence == batch) {
            err = step(b, items);
            items = 0;
            left = b->chunk;
        }
    }
    return err;
}

// What the first sequence's blocks hold to those of the others. A GPU's pool is read and written by way of the host.
static bt_err
copy_first(bench *b, uint32_t batch, size_t bytes)
{
    bt_device *device = bt_engine_device(b->engine);
    bool host = bt_device_is_host(device);
    uint8_t *pool = bt_engine_kv_pool(b->engine), *first = host ? pool : bt_alloc(bytes);
    size_t apart = b->blocks_each * bt_engine_kv_layout(b->engine)->block_bytes;
    bt_err err = first == NULL ? BT_ERR_NO_MEMORY : host ? BT_OK : bt_device_read(device, first, pool, bytes);

    for (uint32_t s = 1; s < batch && err == BT_OK; s++) {
        err = bt_device_write(device, pool + s * apart, first, bytes);
    }
    if (!host) {
        bt_free(first);
    }
    return err;
}

// Gives every sequence `depth` positions: computed once, then copied.
static bt_err
fill_depth(bench *b, uint32_t batch, uint32_t depth)
{
    const bt_kv_layout *layout = bt_engine_kv_layout(b->engine);
    uint32_t blocks = (depth + layout->block_tokens - 1) / layout->block_tokens;
    bt_err err = prefill(b, b->lend ? batch : 1, 0, depth); // a lent pool that we see is not the one that is read

    return err != BT_OK || b->lend || blocks == 0 ? err : copy_first(b, batch, blocks * layout->block_bytes);
}

static bt_err
decode(bench *b, uint32_t batch, uint32_t depth)
{
    bt_err err = BT_OK;

    for (uint32_t t = 0; t < b->tg && err == BT_OK; t++) {
        for (uint32_t s = 0; s < batch; s++) {
            b->items[s] = item_of(b, s, depth + t, 1, true);
        }
        err = step(b, batch);
    }
    return err;
}

static size_t
layer_weight_bytes(const bt_layer *l)
{
    return l->q.bytes + l->k.bytes + l->v.bytes + l->o.bytes + l->gate.bytes + l->up.bytes + l->down.bytes;
}

static double
multiplies(const bt_weight *w)
{
    return (double)w->rows * w->cols;
}

// Bytes that a decode step must read: all weights it multiplies with, and the keys and values of each sequence.
static double
step_bytes(const bench *b, uint32_t batch, double mean_depth)
{
    const bt_model *model = bt_engine_model(b->engine);
    const bt_kv_layout *layout = bt_engine_kv_layout(b->engine);
    double bytes = (double)model->head->bytes;

    for (uint32_t i = 0; i < model->config.layers; i++) {
        uint32_t window = model->config.layer[i].window;
        double seen = window != 0 && mean_depth > window ? window : mean_depth;

        bytes += (double)layer_weight_bytes(&model->layers[i]);
        bytes += batch * seen * (double)layout->layer_bytes / layout->block_tokens;
    }
    return bytes;
}

// Operations (two a multiply-add) of one prompt token in linear layers; the head runs once a prompt.
static double
token_operations(const bench *b)
{
    const bt_model *model = bt_engine_model(b->engine);
    double sum = 0;

    for (uint32_t i = 0; i < model->config.layers; i++) {
        const bt_layer *l = &model->layers[i];

        sum += multiplies(&l->q) + multiplies(&l->k) + multiplies(&l->v) + multiplies(&l->o) + multiplies(&l->gate) +
               multiplies(&l->up) + multiplies(&l->down);
    }
    return 2 * sum;
}

static void
put_rounded(bt_json_writer *w, const char *key, double value, double digits)
{
    bt_json_put_real(w, key, (double)(long long)(value * digits + 0.5) / digits);
}

static void
report(const bench *b, const char *test, uint32_t batch, uint32_t depth, double tokens_per_s)
{
    bool decoding = test[0] == 't', floats = bt_engine_model(b->engine)->layers[0].q.format.kind != BT_WEIGHT_INT;
    double bytes = decoding ? step_bytes(b, batch, depth + b->tg / 2.0) * tokens_per_s / batch : 0;
    double tops = token_operations(b) * tokens_per_s / 1e12, peak = floats ? b->float_tflops : b->int8_tops;
    double of_limit = decoding ? (b->read_gb_s > 0 ? bytes / 1e9 / b->read_gb_s : 0) : (peak > 0 ? tops / peak : 0);
    bt_json_writer w;
    bt_buf out;

    if (!b->json) {
        printf("%s batch %2u depth %5u: %9.1f tok/s", test, batch, depth, tokens_per_s);
        printf(decoding ? ", %.1f GB/s" : ", %.2f TOPS", decoding ? bytes / 1e9 : tops);
        printf(of_limit > 0 ? " (%.0f %% of the limit)\n" : "\n", 100 * of_limit);
    }
    bt_buf_init(&out, 1 << 16);
    bt_json_write(&w, &out);
    bt_json_begin_object(&w, NULL);
    bt_json_put_text(&w, "test", bt_str_of(test));
    bt_json_put_int(&w, "batch", batch);
    bt_json_put_int(&w, "depth", depth);
    bt_json_put_int(&w, "tokens", decoding ? b->tg : b->pp);
    bt_json_put_int(&w, "threads", bt_device_threads(bt_engine_device(b->engine)));
    put_rounded(&w, "tokens_per_s", tokens_per_s, 100);
    put_rounded(&w, "gb_per_s", bytes / 1e9, 100);
    put_rounded(&w, "of_limit", of_limit, 1000);
    put_rounded(&w, "tops", tops, 1000);
    if (b->ops) {
        bt_json_begin_object(&w, "step_us");
        for (uint32_t i = 0; i < BT_ENGINE_OP_COUNT; i++) {
            put_rounded(&w, bt_engine_op_name((bt_engine_op)i), (double)b->times.op[i] / 1e3 / (double)b->times.steps,
                        10);
        }
        put_rounded(&w, "total", (double)b->times.total / 1e3 / (double)b->times.steps, 10);
        bt_json_end(&w);
    }
    bt_json_end(&w);
    if (b->json || b->ops) {
        puts(out.data);
    }
    fflush(stdout);
    bt_buf_fini(&out);
}

// One point: once to warm up, then the mean of `repeat` runs.
static bt_err
measure(bench *b, const char *test, uint32_t batch, uint32_t depth)
{
    bool decoding = test[0] == 't';
    bt_time spent = 0;
    bt_err err;

    if ((err = fill_depth(b, batch, depth)) != BT_OK) {
        return err;
    }
    for (uint32_t run = 0; run <= b->repeat && err == BT_OK; run++) {
        bt_time began = bt_time_now();

        if (run == 1) {
            memset(&b->times, 0, sizeof b->times);
            bt_engine_measure(b->engine, b->ops ? &b->times : NULL);
        }
        err = decoding ? decode(b, batch, depth) : prefill(b, batch, depth, depth + b->pp);
        spent += run > 0 ? bt_time_now() - began : 0;
    }
    bt_engine_measure(b->engine, NULL);
    if (err == BT_OK) {
        report(b, test, batch, depth, (double)batch * (decoding ? b->tg : b->pp) * b->repeat * 1e9 / (double)spent);
    }
    return err;
}

static bt_err
measure_all(bench *b, bt_why *why)
{
    for (uint32_t d = 0; d < b->depths.count; d++) {
        for (uint32_t i = 0; i < b->batches.count; i++) {
            bt_err err = BT_OK;

            if (b->pp != 0) {
                err = measure(b, "pp", b->batches.values[i], b->depths.values[d]);
            }
            if (b->tg != 0 && err == BT_OK) {
                err = measure(b, "tg", b->batches.values[i], b->depths.values[d]);
            }
            if (err != BT_OK) {
                return bt_fail(why, err, "the engine failed (%s)", bt_err_name(err));
            }
        }
    }
    return BT_OK;
}

static void
close_all(bench *b)
{
    bt_engine_close(b->engine);
    bt_free_pages(b->lent, b->lent_bytes);
    bt_free(b->blocks);
    bt_free(b->ids);
    bt_free(b->items);
    bt_free(b->drawn);
}

static int
parse(bench *b, int argc, char **argv, const char **path, bt_why *why)
{
    const bt_arg args[] = {
        {"pp", BT_ARG_U32, &b->pp, "N", "prompt tokens to read, 0 = leave out", NULL},
        {"tg", BT_ARG_U32, &b->tg, "N", "tokens to write, 0 = leave out", NULL},
        {"batch", BT_ARG_STRING, &b->batch_text, "1,8", "sequences at a time", NULL},
        {"depth", BT_ARG_STRING, &b->depth_text, "0,4096", "tokens that are in the cache before", NULL},
        {"repeat", BT_ARG_U32, &b->repeat, "N", "runs of a point after one to warm up; their mean counts", NULL},
        {"ops", BT_ARG_FLAG, &b->ops, NULL, "also where the time of a step goes, in microseconds", NULL},
        {"lend", BT_ARG_FLAG, &b->lend, NULL, "as a prefill node on a GPU: what prompts write is copied out besides",
         NULL},
        {"no-limits", BT_ARG_FLAG, &b->no_limits, NULL, "do not measure the machine's own limits first", NULL},
        {"json", BT_ARG_FLAG, &b->json, NULL, "one JSON line a point on stdout", NULL},
        {NULL, BT_ARG_FLAG, NULL, NULL, NULL, NULL},
    };
    bt_args_spec spec = {
        .usage = "baton bench engine MODEL [options]",
        .about =
            "Measures prefill (pp) and decode (tg) of a model in this process. Decode is compared with the memory\n"
            "read rate of this machine (or of the GPU), prefill with its dot-product peak (with a large cuBLASLt\n"
            "product), both measured in the same run. Prompts of a batch are packed into steps of\n"
            "engine.chunk_tokens.",
        .example = "  baton bench engine smollm2.gguf --pp 512 --tg 128 --batch 1,8 --depth 0,4096 --json",
        .args = args,
        .more = b->args.table,
        .positional_min = 1,
        .positional_max = 1,
    };
    uint32_t count;
    int code = bt_args_parse(&spec, argc, argv, path, &count);

    if (code >= 0) {
        return code;
    }
    if (parse_list(b->batch_text, "batch", 1, &b->batches, why) != BT_OK ||
        parse_list(b->depth_text, "depth", 0, &b->depths, why) != BT_OK) {
        return 2;
    }
    if ((b->pp == 0 && b->tg == 0) || b->repeat == 0) {
        bt_fail(why, BT_ERR_INVALID, "nothing to measure: --pp, --tg and --repeat are 0");
        return 2;
    }
    return -1;
}

int
bt_bench_engine_main(int argc, char **argv)
{
    bench b = {.pp = 512, .tg = 128, .repeat = 2, .batch_text = "1", .depth_text = "0"};
    const char *path = NULL;
    bt_why why = {{0}};
    bt_err err;
    int code;

    bt_engine_args_init(&b.args);
    code = parse(&b, argc, argv, &path, &why);
    if (code >= 0) {
        if (why.text[0] != 0) {
            fprintf(stderr, "baton bench engine: %s\n", why.text);
        }
        return code;
    }
    if ((err = open_all(&b, path, &why)) != BT_OK) {
        fprintf(stderr, "baton bench engine: %s\n", why.text);
        close_all(&b);
        return 2;
    }
    measure_limits(&b);
    err = measure_all(&b, &why);
    if (err != BT_OK) {
        fprintf(stderr, "baton bench engine: %s\n", why.text);
    }
    close_all(&b);
    return err == BT_OK ? 0 : 1;
}
