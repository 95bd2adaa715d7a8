#include "common/engine/outlook.h"

#include "common/model/file.h"
#include "common/model/move.h"
#include "common/model/outline.h"
#include "common/model/pack.h"

#include <stdio.h>
#include <string.h>

#define OUTLINE_BYTES_MAX ((size_t)64 << 20)

static bt_err
settle_options(bt_engine_options *o, bt_why *why)
{
    if (o->max_sequences == 0 || o->chunk_tokens < o->max_sequences) {
        return bt_fail(why, BT_ERR_INVALID,
                       "engine: max_sequences %u must be at least 1 and chunk_tokens %u at least as many",
                       o->max_sequences, o->chunk_tokens);
    }
    o->kv_block_tokens = o->kv_block_tokens != 0 ? o->kv_block_tokens : 32;
    o->logit_rows_max = o->logit_rows_max != 0 ? o->logit_rows_max : o->max_sequences;
    return BT_OK;
}

bt_err
bt_engine_available(const bt_device_options *options, size_t *out, bt_why *why)
{
    bt_device *device;
    bt_err err;

    if (options->kind == BT_DEVICE_CPU) {
        *out = bt_engine_plan_available();
        return BT_OK;
    }
    if ((err = bt_device_open(&device, options, why)) == BT_OK) {
        *out = bt_device_available(device);
        bt_device_close(device);
    }
    return err;
}

static uint32_t
larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

bt_device_limits
bt_engine_limits(const bt_model_config *c, const bt_engine_options *options)
{
    uint32_t attended = c->heads * c->head_dim, qkv = attended + 2 * c->kv_heads * c->head_dim;

    return (bt_device_limits){
        .tokens = larger(options->chunk_tokens, options->logit_rows_max),
        .cols = larger(larger(c->hidden, c->ffn), attended),
        .rows = larger(larger(c->vocab, qkv), larger(2 * c->ffn, c->hidden)),
        .heads = c->heads,
        .kv_heads = c->kv_heads,
        .head_dim = c->head_dim,
        .context = options->context,
        .block_tokens = options->kv_block_tokens,
        .sequences = options->max_sequences,
        .logit_rows = options->logit_rows_max,
        .layers = c->layers,
    };
}

bt_scratch_limits
bt_engine_scratch_limits(const bt_engine_options *o, uint32_t threads, bool host)
{
    return (bt_scratch_limits){
        .tokens = o->chunk_tokens,
        .rows = o->logit_rows_max,
        .sequences = o->max_sequences,
        .threads = threads,
        .host = host,
    };
}

// ---- weights ----

static void
count_format(bt_engine_outlook *out, bt_format format, size_t bytes)
{
    uint32_t i = 0;

    while (i < out->format_count && !bt_format_equal(out->formats[i].format, format)) {
        i++;
    }
    if (i == out->format_count) {
        if (i == BT_OUTLOOK_FORMATS_MAX) {
            i--; // more formats than any file has: the last place stands for the rest
        } else {
            out->formats[out->format_count++] = (bt_outlook_format){.format = format};
        }
    }
    out->formats[i].count++;
    out->formats[i].bytes += bytes;
}

static void
count_weights(bt_engine_outlook *out, const bt_plan *plan, const bt_model *model, const bt_device_needs *needs)
{
    bt_move_sizes sizes = bt_model_move_sizes(plan, model, &out->options.model, needs->ops);

    for (uint32_t i = 0; i < plan->weight_count; i++) {
        const bt_weight *w = plan->weights[i].weight;

        count_format(out, w->format, needs->ops->weight_bytes(w->format, w->rows, w->cols));
    }
    out->vectors = sizes.vectors;
    out->outliers = sizes.outliers;
    out->plan.weights =
        needs->host ? bt_pack_bytes(plan, needs->ops) + sizes.outliers : sizes.weights + sizes.outliers + sizes.vectors;
}

// Weights made at load come from a whole model in the file's formats. A GPU's pass through this machine's memory.
static void
count_loading(bt_engine_outlook *out, bt_plan *plan, const bt_device_limits *limits, bool host)
{
    const bt_model_options *o = &out->options.model;
    bool made = o->weights == BT_LOAD_W8 || o->weights == BT_LOAD_Q4;
    bt_device_needs cpu;

    bt_device_foresee(&cpu, &(bt_device_options){.kind = BT_DEVICE_CPU}, limits, NULL);
    out->loading = host ? 0 : bt_pack_bytes(plan, cpu.ops);
    if (made) {
        bt_plan_formats(plan, BT_LOAD_KEEP, 0);
        out->loading += bt_pack_bytes(plan, cpu.ops);
    }
}

// ---- all of it ----

static size_t
rounded(size_t bytes, size_t to)
{
    return to > 1 ? (bytes + to - 1) / to * to : bytes;
}

static void
count_scratch(bt_engine_outlook *out, const bt_model_config *config, const bt_device_needs *needs)
{
    bt_engine_plan *p = &out->plan;
    bt_scratch_limits limits = bt_engine_scratch_limits(&out->options, needs->threads, needs->host);
    bt_scratch scratch;

    bt_scratch_plan(&scratch, NULL, config, &limits);
    p->logits = (size_t)limits.rows * scratch.logit_stride * sizeof(float);
    p->scratch = rounded(needs->scratch, needs->granule) + rounded(scratch.device_bytes, needs->granule) - p->logits +
                 (needs->host ? scratch.host_bytes : 0);
    p->graphs = needs->graphs;
}

// A tenth of what is free stays free on a machine: others live here too. A GPU is an engine's own; what stays free there is for code that
// is loaded when it is called first, and for what the driver's pages leave over (kernels/README.md has what was measured).
static size_t
spare_of(size_t available, const bt_device_needs *needs)
{
    return needs->host ? available / 10 : available / 64 + ((size_t)128 << 20);
}

static void
begin_plan(bt_engine_outlook *out, const bt_kv_layout *layout, const bt_device_needs *needs, size_t available)
{
    const bt_engine_options *o = &out->options;
    uint64_t blocks = ((uint64_t)o->context + o->kv_block_tokens - 1) / o->kv_block_tokens;
    uint64_t wanted = blocks * o->max_sequences;

    out->plan = (bt_engine_plan){
        .block_bytes = layout->block_bytes,
        .blocks_wanted = wanted < 1u << 30 ? (uint32_t)wanted : 1u << 30,
        .blocks_fixed = o->kv_blocks,
        .blocks_least = (uint32_t)blocks, // one sequence at full length
        .granule = needs->granule,
        .memory_max = o->memory_max,
        .available = available,
        .spare = spare_of(available, needs),
    };
    if (!needs->host) {
        snprintf(out->plan.where, sizeof out->plan.where, "cuda:%u", o->device.index);
    }
}

static void
describe_model(bt_engine_outlook *out, const bt_model_config *config)
{
    memcpy(out->architecture, config->architecture, sizeof out->architecture);
    memcpy(out->name, config->name, sizeof out->name);
    out->layers = config->layers;
    out->context_trained = config->context;
    out->options.context = out->options.context != 0 ? out->options.context : config->context;
}

static bt_err
foresee(bt_engine_outlook *out, bt_plan *plan, bt_model *model, size_t available, bt_why *why)
{
    const bt_model_config *config = &model->config;
    bt_device_needs needs;
    bt_device_limits limits;
    bt_kv_layout layout;
    bt_err err;

    describe_model(out, config);
    limits = bt_engine_limits(config, &out->options);
    if ((err = bt_engine_layout_of(&layout, config, out->options.kv_format, out->options.kv_block_tokens, why)) !=
            BT_OK ||
        (err = bt_device_foresee(&needs, &out->options.device, &limits, why)) != BT_OK) {
        return err;
    }
    begin_plan(out, &layout, &needs, available);
    out->halves = bt_plan_has_halves(plan);
    count_weights(out, plan, model, &needs);
    count_scratch(out, config, &needs);
    count_loading(out, plan, &limits, needs.host);
    return bt_engine_plan_make(&out->plan, why);
}

bt_err
bt_engine_foresee(bt_engine_outlook *out, const bt_engine_options *options, size_t available, bt_why *why)
{
    bt_source source = {0};
    bt_model model = {0};
    bt_plan plan = {0};
    bt_arena arena;
    bt_err err;

    *out = (bt_engine_outlook){.options = *options};
    if ((err = settle_options(&out->options, why)) != BT_OK ||
        (err = bt_source_open(&source, options->model.path, why)) != BT_OK) {
        return err;
    }
    bt_arena_init(&arena, OUTLINE_BYTES_MAX);
    err = bt_model_outline(&plan, &model, &source, options->model.weights, options->model.w8_act_block, &arena, why);
    if (err == BT_OK) {
        err = foresee(out, &plan, &model, available, why);
    }
    bt_plan_close(&plan);
    bt_arena_fini(&arena);
    bt_source_close(&source);
    return err;
}
