// baton plan: what an engine of a model would take in memory, and what would make it fit. Reads no weights and needs no GPU.
#include "common/engine/outlook.h"
#include "common/base/log.h"
#include "common/json/write.h"
#include "common/transfer/transfer.h"
#include "tools/commands.h"
#include "tools/engine_args.h"
#include "tools/plan_advice.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB 0x1p20

typedef struct {
    bt_engine_args args;
    const char *memory_text;
    size_t memory;
    bool json;
    bt_engine_outlook outlook;
    bt_err fits; // BT_OK or BT_ERR_NO_MEMORY
    bt_why why;
    bt_plan_advice advice; // where it does not fit
} planning;

// "80G", "512M", "1073741824"
static bt_err
parse_bytes(const char *text, size_t *out, bt_why *why)
{
    static const char units[] = "KMGT";
    char *end;
    double number = strtod(text, &end);
    const char *unit = *end != 0 ? strchr(units, *end) : NULL;

    if (unit != NULL) {
        number *= (double)(1ull << (10 * (unit - units + 1)));
        end++;
    }
    if (end == text || *end != 0 || !(number >= 1 && number < 0x1p62)) {
        return bt_fail(why, BT_ERR_INVALID, "--memory: expected bytes, as in 80G or 512M, not '%s'", text);
    }
    *out = (size_t)number;
    return BT_OK;
}

// What the device has free, unless the user says.
static bt_err
find_memory(planning *p, bt_why *why)
{
    return p->memory_text != NULL ? parse_bytes(p->memory_text, &p->memory, why)
                                  : bt_engine_available(&p->args.options.device, &p->memory, why);
}

static uint32_t
blocks_each(const bt_engine_options *o)
{
    return (o->context + o->kv_block_tokens - 1) / o->kv_block_tokens;
}

// Sequences of full length that the pool holds.
static uint32_t
whole_sequences(const planning *p)
{
    return p->outlook.plan.blocks / blocks_each(&p->outlook.options);
}

static const char *
where(const planning *p)
{
    return *p->outlook.plan.where != 0 ? p->outlook.plan.where : "cpu";
}

// What a node of the cluster takes besides, of its machine's memory: its GPU's pool once more, pinned, where blocks go by way of it.
static size_t
host_pool(const bt_engine_outlook *o)
{
    return o->options.device.kind == BT_DEVICE_CPU ? 0 : bt_transfer_pool_bytes(o->plan.block_bytes, o->plan.blocks);
}

static void
print_part(const char *name, size_t bytes, const char *what)
{
    printf("%-13s %10.1f MiB%s%s\n", name, (double)bytes / MIB, *what != 0 ? "  " : "", what);
}

static void
print_weights(const bt_engine_outlook *o)
{
    char name[24];

    print_part("weights", o->plan.weights, "");
    for (uint32_t i = 0; i < o->format_count; i++) {
        printf("  %-11s %10.1f MiB  %u matrices\n", bt_format_name(o->formats[i].format, name),
               (double)o->formats[i].bytes / MIB, o->formats[i].count);
    }
    printf("  %-11s %10.1f MiB  norms, biases, tables\n", "vectors", (double)o->vectors / MIB);
    if (o->outliers != 0) {
        printf("  %-11s %10.1f MiB  at most\n", "outliers", (double)o->outliers / MIB);
    }
}

static void
print_text(const planning *p)
{
    const bt_engine_outlook *o = &p->outlook;
    const bt_engine_options *e = &o->options;
    char text[160];

    printf("model         %s \"%s\", %u layers, trained for %u positions\n", o->architecture, o->name, o->layers,
           o->context_trained);
    printf("engine        %s, %u sequences of up to %u tokens, %u tokens a step\n", where(p), e->max_sequences,
           e->context, e->chunk_tokens);
    print_weights(o);
    snprintf(text, sizeof text, "%u blocks of %u tokens, %zu bytes each", o->plan.blocks, e->kv_block_tokens,
             o->plan.block_bytes);
    print_part("KV pool", o->plan.kv, text);
    print_part("scratch", o->plan.scratch, "activations and what operations need");
    snprintf(text, sizeof text, "%u rows", e->logit_rows_max);
    print_part("logits", o->plan.logits, text);
    if (o->plan.graphs != 0) {
        print_part("graphs", o->plan.graphs, "at most: steps as they are recorded");
    }
    snprintf(text, sizeof text, "of %.1f MiB: %.1f MiB free, of which %.1f MiB stay so", (double)o->plan.limit / MIB,
             (double)o->plan.available / MIB, (double)o->plan.spare / MIB);
    print_part("total", o->plan.total, text);
    if (o->loading != 0) {
        print_part("loading", o->loading, "of this machine's memory for a while, besides the file's pages");
    }
    if (host_pool(o) != 0) {
        print_part(
            "host pool", host_pool(o),
            "of this machine's memory, pinned, in a node that hands over by way of it (not with transport cuda)");
    }
    if (p->fits == BT_OK) {
        printf("fits          %u of %u sequences at their full %u tokens, %" PRIu64 " tokens in all\n",
               whole_sequences(p) < e->max_sequences ? whole_sequences(p) : e->max_sequences, e->max_sequences,
               e->context, (uint64_t)o->plan.blocks * e->kv_block_tokens);
    } else {
        printf("does not fit  it would with one of these:\n");
        for (uint32_t i = 0; i < p->advice.count; i++) {
            printf("              %s\n", p->advice.lines[i]);
        }
    }
}

static void
write_formats(bt_json_writer *w, const bt_engine_outlook *o)
{
    char name[24];

    bt_json_begin_object(w, "formats");
    for (uint32_t i = 0; i < o->format_count; i++) {
        bt_json_put_int(w, bt_format_name(o->formats[i].format, name), (int64_t)o->formats[i].bytes);
    }
    bt_json_put_int(w, "vectors", (int64_t)o->vectors);
    bt_json_put_int(w, "outliers_max", (int64_t)o->outliers);
    bt_json_end(w);
}

static void
print_json(const planning *p)
{
    const bt_engine_outlook *o = &p->outlook;
    const bt_engine_options *e = &o->options;
    bt_json_writer w;
    bt_buf out;

    bt_buf_init(&out, 1u << 20);
    bt_json_write(&w, &out);
    bt_json_begin_object(&w, NULL);
    bt_json_put_bool(&w, "fits", p->fits == BT_OK);
    bt_json_put_text(&w, "device", bt_str_of(where(p)));
    bt_json_put_int(&w, "max_sequences", e->max_sequences);
    bt_json_put_int(&w, "context", e->context);
    bt_json_put_int(&w, "chunk_tokens", e->chunk_tokens);
    bt_json_put_int(&w, "block_tokens", e->kv_block_tokens);
    bt_json_put_int(&w, "weights", (int64_t)o->plan.weights);
    write_formats(&w, o);
    bt_json_put_int(&w, "blocks", o->plan.blocks);
    bt_json_put_int(&w, "block_bytes", (int64_t)o->plan.block_bytes);
    bt_json_put_int(&w, "kv", (int64_t)o->plan.kv);
    bt_json_put_int(&w, "scratch", (int64_t)o->plan.scratch);
    bt_json_put_int(&w, "logits", (int64_t)o->plan.logits);
    bt_json_put_int(&w, "graphs_max", (int64_t)o->plan.graphs);
    bt_json_put_int(&w, "total", (int64_t)o->plan.total);
    bt_json_put_int(&w, "limit", (int64_t)o->plan.limit);
    bt_json_put_int(&w, "free", (int64_t)o->plan.available);
    bt_json_put_int(&w, "spare", (int64_t)o->plan.spare);
    bt_json_put_int(&w, "loading", (int64_t)o->loading);
    bt_json_put_int(&w, "host_pool", (int64_t)host_pool(o));
    bt_json_put_int(&w, "sequences_at_full_context", whole_sequences(p));
    if (p->fits != BT_OK) {
        bt_json_put_text(&w, "reason", bt_str_of(p->why.text));
        bt_json_begin_array(&w, "would_fit");
        for (uint32_t i = 0; i < p->advice.count; i++) {
            bt_json_put_text(&w, NULL, bt_str_of(p->advice.lines[i]));
        }
        bt_json_end(&w);
    }
    bt_json_end(&w);
    puts(out.data);
    bt_buf_fini(&out);
}

static int
parse(planning *p, int argc, char **argv, const char **path)
{
    const bt_arg args[] = {
        {"memory", BT_ARG_STRING, &p->memory_text, "BYTES", "that the device has free, as in 80G: no device is asked",
         NULL},
        {"json", BT_ARG_FLAG, &p->json, NULL, "one JSON object on stdout, sizes in bytes", NULL},
        {NULL, BT_ARG_FLAG, NULL, NULL, NULL, NULL},
    };
    bt_args_spec spec = {
        .usage = "baton plan MODEL [options]",
        .about = "Says what an engine of a .gguf file or a Hugging Face folder would take in memory, as it plans when\n"
                 "it is opened, and how many sequences fit. Loads nothing. What does not fit is said with what would\n"
                 "make it fit, and exit code 2.",
        .example = "  baton plan llama-8b.gguf --device cuda:0 --memory 80G --weights q4 --set "
                   "engine.max_sequences=128 --context 4096",
        .args = args,
        .more = p->args.table,
        .positional_min = 1,
        .positional_max = 1,
    };

    return bt_args_parse(&spec, argc, argv, path, NULL);
}

int
bt_plan_main(int argc, char **argv)
{
    planning p = {.fits = BT_OK};
    const char *path;
    bt_err err;
    int code;

    bt_engine_args_init(&p.args);
    if ((code = parse(&p, argc, argv, &path)) >= 0) {
        return code;
    }
    bt_log_set_level(BT_LOG_WARN);
    if ((err = bt_engine_args_finish(&p.args, path, &p.why)) == BT_OK && (err = find_memory(&p, &p.why)) == BT_OK) {
        err = p.fits = bt_engine_foresee(&p.outlook, &p.args.options, p.memory, &p.why);
    }
    if (err == BT_ERR_NO_MEMORY && p.outlook.plan.limit != 0) {
        bt_plan_advise(&p.advice, &p.outlook);
    }
    if (err == BT_OK || p.advice.count != 0) {
        (p.json ? print_json : print_text)(&p);
    }
    fflush(stdout);
    if (err != BT_OK) {
        fprintf(stderr, "baton plan: %s\n", p.why.text);
    }
    return err == BT_OK ? 0 : 2;
}
