#include "common/engine/engine.h"

#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/engine/calibrate.h"
#include "common/engine/state.h"
#include "common/model/move.h"

#include <string.h>

static void
find_ends(bt_engine *engine)
{
    const bt_model *model = engine->model;
    uint32_t vocab = model->tokenizer != NULL ? bt_tokenizer_vocab_size(model->tokenizer) : 0;

    if (model->config.eos >= 0 && (uint32_t)model->config.eos < model->config.vocab) {
        engine->ends[engine->end_count++] = model->config.eos;
    }
    for (uint32_t id = 0; id < vocab && id < model->config.vocab && engine->end_count < BT_ENDS_MAX; id++) {
        if (bt_tokenizer_is_end(model->tokenizer, (int32_t)id) && (int32_t)id != model->config.eos) {
            engine->ends[engine->end_count++] = (int32_t)id;
        }
    }
}

// Is there another pool between the operations' and those who fetch?
static bool
is_apart(const bt_engine *engine)
{
    const bt_engine_options *o = &engine->options;

    return o->kv_pool != NULL && (o->kv_apart || !bt_device_is_host(engine->device));
}

// What operations work in: the engine's own, or lent.
static bt_err
take_own(bt_engine *engine, bt_why *why)
{
    const bt_engine_options *o = &engine->options;

    if (o->kv_device_pool != NULL) {
        return o->kv_device_pool(o->kv_pool_arg, engine->device, &engine->layout, engine->plan.blocks,
                                 &engine->kv_device, why);
    }
    if (o->kv_pool != NULL && !is_apart(engine)) {
        return BT_OK;
    }
    engine->own_kv = bt_device_alloc(engine->device, engine->plan.kv);
    return engine->own_kv != NULL
               ? BT_OK
               : bt_fail(why, BT_ERR_NO_MEMORY, "engine: the system refused %zu bytes", engine->plan.kv);
}

static bt_err
take_pools(bt_engine *engine, bt_why *why)
{
    const bt_engine_options *o = &engine->options;
    uint8_t *lent = NULL;
    bt_err err = take_own(engine, why);

    if (err == BT_OK && o->kv_pool != NULL) {
        err = o->kv_pool(o->kv_pool_arg, engine->device, &engine->layout, engine->plan.blocks, &lent, why);
    }
    if (err != BT_OK) {
        return err;
    }
    engine->kv = engine->kv_device != NULL ? engine->kv_device : engine->own_kv != NULL ? engine->own_kv : lent;
    engine->lend = (bt_lend){.device = engine->device,
                             .layout = &engine->layout,
                             .kv = engine->kv,
                             .lent = is_apart(engine) ? lent : NULL,
                             .bytes = engine->plan.blocks * engine->layout.block_bytes,
                             .out = o->kv_out};
    return bt_lend_open(&engine->lend, o, why);
}

bt_err
bt_engine_layout_of(bt_kv_layout *out, const bt_model_config *config, bt_kv_format format, uint32_t block_tokens,
                    bt_why *why)
{
    return bt_kv_layout_init(out, format, config->layers, config->kv_heads, config->head_dim, block_tokens,
                             config->head_dim, why);
}

static bt_err
allocate(bt_engine *engine, bt_why *why)
{
    const bt_model_config *config = &engine->model->config;
    const bt_engine_options *o = &engine->options;
    bt_scratch_limits limits =
        bt_engine_scratch_limits(o, bt_device_threads(engine->host), bt_device_is_host(engine->device));
    bt_device_limits reserve = bt_engine_limits(config, o);
    bt_err err;

    if ((err = bt_engine_layout_of(&engine->layout, config, o->kv_format, o->kv_block_tokens, why)) != BT_OK ||
        (err = bt_device_reserve(engine->device, &reserve, why)) != BT_OK || (err = take_pools(engine, why)) != BT_OK) {
        return err;
    }
    if (bt_scratch_open(&engine->scratch, engine->device, config, &limits) != BT_OK) {
        return bt_fail(why, BT_ERR_NO_MEMORY, "engine: the system refused %zu bytes", engine->plan.total);
    }
    return BT_OK;
}

static void
wire_forward(bt_engine *engine)
{
    bt_forward *f = &engine->forward;

    *f = (bt_forward){
        .model = engine->model,
        .device = engine->device,
        .ops = bt_device_ops(engine->device),
        .layout = &engine->layout,
        .kv = engine->kv,
        .lend = &engine->lend,
        .scratch = &engine->scratch,
    };
    for (uint32_t i = 0; i < engine->model->config.layers; i++) {
        if (engine->model->config.layer[i].rope != BT_ROPE_NONE) {
            f->ropes[engine->model->config.layer[i].rope] = true;
        }
    }
}

static void
touch(void *arg, uint32_t thread, uint32_t threads)
{
    const bt_scratch *s = arg;
    struct {
        uint8_t *memory;
        size_t bytes;
    } parts[] = {{s->pages, s->host_bytes}, {s->on_device, bt_device_is_host(s->device) ? s->device_bytes : 0}};

    for (int i = 0; i < 2; i++) {
        size_t share = parts[i].bytes / threads, begin = thread * share;

        memset(parts[i].memory + begin, 0, thread + 1 == threads ? parts[i].bytes - begin : share);
    }
}

#define WARM_TOKENS 32 // many enough for the kernels that read prompts

// Touches the scratch, reads a few tokens and then one more, so that pages, threads and weights are warm before the first request on
// both ways through the kernels. What it leaves in block 0 no table names.
static bt_err
warm_up(bt_engine *engine, bt_why *why)
{
    const bt_engine_options *o = &engine->options;
    const int32_t ids[WARM_TOKENS] = {0};
    const uint32_t block = 0;
    bt_token_result drawn;
    bt_batch_item item = {.ids = ids, .blocks = &block, .want = BT_LOGITS_LAST, .next_id = -1};
    bt_err err;

    item.count = WARM_TOKENS < o->chunk_tokens ? WARM_TOKENS : o->chunk_tokens;
    item.count = item.count < o->kv_block_tokens ? item.count : o->kv_block_tokens;
    item.count = item.count < o->context ? item.count : o->context;
    bt_device_parallel(engine->host, touch, &engine->scratch);
    err = bt_engine_step(engine, &item, 1, &(bt_step_result){.drawn = &drawn});
    item.count = 1;
    if (err == BT_OK) {
        err = bt_engine_step(engine, &item, 1, &(bt_step_result){.drawn = &drawn});
    }
    if (err == BT_ERR_DEVICE && !bt_device_is_broken(engine->device)) { // the sampler found no number among the logits
        return bt_fail(why, BT_ERR_INVALID, "%s: the weights give no finite logits: the file is damaged",
                       o->model.path);
    }
    return err == BT_OK ? BT_OK : bt_fail(why, err, "engine: a first step failed (%s)", bt_err_name(err));
}

// A line a second while weights are loaded; small models are done before the first.
static void
log_progress(void *arg, size_t bytes_done, size_t bytes_total)
{
    bt_engine *engine = arg;
    bt_time now = bt_time_now();

    if (now - engine->progress_said >= BT_SECOND && bytes_done < bytes_total) {
        engine->progress_said = now;
        bt_log_info("MODEL-LOADING", "%.0f %% of %.1f MiB", 100.0 * (double)bytes_done / (double)bytes_total,
                    (double)bytes_total / (1 << 20));
    }
}

// Weights made at load: a second model, from what the first told, which is then let go. Says how far it is from the first.
static bt_err
remake_model(bt_engine *engine, const bt_calibration *calibration, bt_why *why)
{
    bt_model_options options = engine->options.model;
    bt_model *source = engine->model;
    double kl = 0;
    bt_err err;

    options.calibration = calibration;
    engine->model = NULL;
    if ((err = bt_model_open(&engine->model, &options, engine->host, why)) == BT_OK &&
        (err = bt_calibrate_divergence(source, engine->model, engine->host, &kl, why)) == BT_OK) {
        bt_log_write(kl > 0.05 ? BT_LOG_WARN : BT_LOG_INFO, "MODEL-REMADE",
                     "weights made at load: mean KL %.4f nats a token from the file's own, on built-in text%s", kl,
                     kl > 0.05 ? ": answers will differ visibly" : "");
    }
    bt_model_close(source);
    return err;
}

// The model in its file's formats; then, if asked for, its K equaliser and weights of another format.
static bt_err
open_model(bt_engine *engine, bt_why *why)
{
    bt_model_options *options = &engine->options.model, first;
    bool made = options->weights == BT_LOAD_W8 || options->weights == BT_LOAD_Q4;
    bt_calibration calibration = {0};
    bt_err err;

    options->rounded = bt_device_would_round(&engine->options.device);
    if (options->progress == NULL) {
        options->progress = log_progress;
        options->progress_arg = engine;
        engine->progress_said = bt_time_now();
    }
    first = *options;
    first.weights = made ? BT_LOAD_KEEP : options->weights;
    if ((err = bt_model_open(&engine->model, &first, engine->host, why)) != BT_OK || (!made && !options->equalise)) {
        return err;
    }
    if (made && options->hasty) {
        bt_log_warn("MODEL-HASTY",
                    "weights are made without a search for their scales: for measuring speed, not for answers");
    }
    bt_log_info("MODEL-CALIBRATE", "reading built-in text for %s%s%s", made ? "weights made at load" : "",
                made && options->equalise ? " and " : "", options->equalise ? "the K equaliser" : "");
    if ((err = bt_forward_check(engine->model, why)) == BT_OK &&
        (err = bt_calibrate(&calibration, engine->model, engine->host, made, why)) == BT_OK && made) {
        err = remake_model(engine, &calibration, why);
    }
    if (err == BT_OK && options->equalise && (err = bt_model_equalise(engine->model, &calibration)) != BT_OK) {
        bt_fail(why, err, "engine: out of memory");
    }
    bt_calibration_close(&calibration);
    return err;
}

// A GPU's engine has the CPU beside it, with all of its threads. The GPU comes first: what is wrong with it is known at once.
static bt_err
open_devices(bt_engine *engine, bt_why *why)
{
    bt_device_options host = engine->options.device;
    bt_err err = bt_device_open(&engine->device, &engine->options.device, why);

    if (err != BT_OK || bt_device_is_host(engine->device)) {
        engine->host = engine->device;
        return err;
    }
    host.kind = BT_DEVICE_CPU;
    return bt_device_open(&engine->host, &host, why);
}

// A lent pool in the host's memory has as many blocks as the GPU's.
static bt_err
fit_host(const bt_engine_options *options, bt_engine_plan *plan, size_t available, bt_why *why)
{
    size_t room = (available - available / 10) / plan->block_bytes;

    if (plan->blocks <= room) {
        return BT_OK;
    }
    if (plan->blocks_fixed != 0 || room < plan->blocks_least) {
        return bt_fail(why, BT_ERR_NO_MEMORY,
                       "%s: the cache that other nodes fetch from or into does not fit in this machine's memory: %u "
                       "blocks of %zu bytes are over 0.9 of the %.1f MiB that are free",
                       options->model.path, plan->blocks_fixed != 0 ? plan->blocks_fixed : plan->blocks_least,
                       plan->block_bytes, (double)available / 0x1p20);
    }
    plan->blocks_wanted = (uint32_t)room;
    return bt_engine_plan_make(plan, why);
}

// Before the first weight is read: what does not fit is known at once. A longer context than the model was trained for is the operator's
// choice; it runs, and answers get worse.
static bt_err
plan_memory(bt_engine *engine, bt_why *why)
{
    size_t machine = bt_engine_plan_available();
    size_t available = engine->device == engine->host ? machine : bt_device_available(engine->device);
    bt_engine_outlook outlook;
    bt_err err = bt_engine_foresee(&outlook, &engine->options, available, why);

    if (err != BT_OK) {
        return err;
    }
    if (outlook.loading > machine) {
        return bt_fail(
            why, BT_ERR_NO_MEMORY,
            "%s: its weights are made ready in %.1f MiB of this machine's memory, of which %.1f MiB are free",
            engine->options.model.path, (double)outlook.loading / 0x1p20, (double)machine / 0x1p20);
    }
    if (outlook.halves && bt_device_would_round(&engine->options.device) && !bt_device_rounds(engine->device)) {
        return bt_fail(
            why, BT_ERR_UNSUPPORTED,
            "%s: has layers of 16-bit weights, for which this program has no tensor-core path on %s (it takes "
            "compute capability 9.0): expected weights: w8 or q4, or cuda.activations: f32, which is slow",
            engine->options.model.path, bt_device_isa(engine->device));
    }
    if (outlook.options.context > outlook.context_trained) {
        bt_log_warn("ENGINE-CONTEXT", "context %u is over the %u positions the model was trained for",
                    outlook.options.context, outlook.context_trained);
    }
    if (is_apart(engine) && (err = fit_host(&outlook.options, &outlook.plan, machine, why)) != BT_OK) {
        return err;
    }
    engine->options = outlook.options;
    engine->plan = outlook.plan;
    return BT_OK;
}

static bt_err
open_parts(bt_engine *engine, bt_why *why)
{
    bt_err err;

    if ((err = open_devices(engine, why)) != BT_OK || (err = plan_memory(engine, why)) != BT_OK ||
        (err = open_model(engine, why)) != BT_OK || (err = bt_forward_check(engine->model, why)) != BT_OK) {
        return err;
    }
    if (engine->device != engine->host &&
        (err = bt_model_move(engine->model, engine->host, engine->device, why)) != BT_OK) {
        return err;
    }
    if ((err = allocate(engine, why)) != BT_OK) {
        return err;
    }
    find_ends(engine);
    wire_forward(engine);
    bt_engine_plan_log(&engine->plan);
    return warm_up(engine, why);
}

bt_err
bt_engine_open(bt_engine **out, const bt_engine_options *options, bt_why *why)
{
    bt_engine *engine = bt_alloc(sizeof *engine);
    bt_err err;

    if (engine == NULL) {
        return bt_fail(why, BT_ERR_NO_MEMORY, "engine: out of memory");
    }
    engine->options = *options;
    if ((err = open_parts(engine, why)) != BT_OK) {
        bt_engine_close(engine);
        return err;
    }
    *out = engine;
    return BT_OK;
}

void
bt_engine_close(bt_engine *engine)
{
    if (engine == NULL) {
        return;
    }
    bt_scratch_close(&engine->scratch);
    bt_lend_close(&engine->lend);
    if (engine->options.kv_done != NULL) {
        engine->options.kv_done(engine->options.kv_pool_arg);
    }
    bt_device_free(engine->device, engine->own_kv, engine->plan.kv);
    bt_model_close(engine->model);
    if (engine->host != engine->device) {
        bt_device_close(engine->host);
    }
    bt_device_close(engine->device);
    bt_free(engine);
}

const bt_model *
bt_engine_model(const bt_engine *engine)
{
    return engine->model;
}

const bt_kv_layout *
bt_engine_kv_layout(const bt_engine *engine)
{
    return &engine->layout;
}

uint32_t
bt_engine_kv_blocks(const bt_engine *engine)
{
    return engine->plan.blocks;
}

uint8_t *
bt_engine_kv_pool(const bt_engine *engine)
{
    return engine->lend.lent != NULL ? engine->lend.lent : engine->kv;
}

uint8_t *
bt_engine_kv_device_pool(const bt_engine *engine)
{
    return engine->kv_device;
}

bool
bt_engine_kv_is_apart(const bt_engine *engine)
{
    return engine->lend.lent != NULL;
}

uint64_t
bt_engine_kv_sum(const bt_engine *engine, uint32_t block)
{
    return engine->lend.sums != NULL ? engine->lend.sums[block] : 0;
}

bt_err
bt_engine_kv_in(bt_engine *engine, const uint32_t *blocks, uint32_t count, uint64_t *ticket)
{
    return bt_lend_in(&engine->lend, blocks, count, ticket);
}

bt_err
bt_engine_kv_through(bt_engine *engine, uint64_t *ticket)
{
    return bt_copier_through(engine->lend.copier, ticket);
}

int
bt_engine_kv_fd(const bt_engine *engine)
{
    return bt_copier_fd(engine->lend.copier);
}

uint32_t
bt_engine_context(const bt_engine *engine)
{
    return engine->options.context;
}

bt_device *
bt_engine_device(const bt_engine *engine)
{
    return engine->device;
}

bt_forward *
bt_engine_forward(bt_engine *engine)
{
    return &engine->forward;
}

const char *
bt_engine_op_name(bt_engine_op op)
{
    static const char *const names[BT_ENGINE_OP_COUNT] = {
        [BT_ENGINE_EMBED] = "embed",         [BT_ENGINE_ROPE] = "rope", [BT_ENGINE_QKV] = "qkv",
        [BT_ENGINE_ATTENTION] = "attention", [BT_ENGINE_O] = "o",       [BT_ENGINE_GATE_UP] = "gate_up",
        [BT_ENGINE_DOWN] = "down",           [BT_ENGINE_NORM] = "norm", [BT_ENGINE_HEAD] = "head",
        [BT_ENGINE_SAMPLE] = "sample",
    };

    return names[op];
}

void
bt_engine_measure(bt_engine *engine, bt_engine_times *times)
{
    engine->times = times;
    engine->forward.times = times;
}
