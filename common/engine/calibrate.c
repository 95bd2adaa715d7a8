#include "common/engine/calibrate.h"

#include "common/base/rng.h"
#include "common/engine/forward.h"

#include <math.h>
#include <string.h>

#define TOKENS 256 // enough: more text changed the perplexity of what was made by less than its noise
#define BLOCK_TOKENS 32
#define KL_ROWS 32      // of the last positions
#define PAIR_TOKENS 128 // of the first positions, for queries and keys: always these, so that all nodes agree

typedef struct {
    const bt_model *model;
    bt_device *device;
    bt_kv_layout layout;
    uint8_t *kv;
    size_t kv_bytes;
    bt_scratch scratch;
    bt_forward forward;
    uint32_t tokens;
    bt_calibration *calibration;
    float *row; // [widest input] one normed row
} trial;

// The text's ids; a model without a tokenizer reads noise, which moves its activations about as much.
static bt_err
fill_ids(trial *t, bt_why *why)
{
    const bt_tokenizer *tokenizer = t->model->tokenizer;
    bt_rng rng = {1};
    size_t count = 0;
    bt_err err;

    if (tokenizer == NULL) {
        for (uint32_t i = 0; i < t->tokens; i++) {
            t->scratch.ids[i] = (int32_t)bt_rng_below(&rng, t->model->config.vocab);
        }
        return BT_OK;
    }
    err = bt_tokenizer_encode(tokenizer, bt_str_of(bt_calibration_text), BT_ENCODE_BOS, t->scratch.ids, t->tokens,
                              &count, why);
    if (err != BT_OK && err != BT_ERR_TOO_LONG) {
        return err;
    }
    t->tokens = count < t->tokens ? (uint32_t)count : t->tokens;
    for (uint32_t i = 0; i < t->tokens; i++) { // a file's tokenizer may know ids that its matrices lack
        if ((uint32_t)t->scratch.ids[i] >= t->model->config.vocab) {
            t->scratch.ids[i] = 0;
        }
    }
    return BT_OK;
}

static uint32_t
larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

static bt_err
reserve(const trial *t, bt_why *why)
{
    const bt_model_config *c = &t->model->config;
    uint32_t attended = c->heads * c->head_dim, qkv = attended + 2 * c->kv_heads * c->head_dim;
    bt_device_limits limits = {
        .tokens = t->tokens,
        .cols = larger(larger(c->hidden, c->ffn), attended),
        .rows = larger(larger(c->vocab, qkv), larger(2 * c->ffn, c->hidden)),
        .heads = c->heads,
        .kv_heads = c->kv_heads,
        .head_dim = c->head_dim,
        .context = t->tokens,
        .block_tokens = BLOCK_TOKENS,
    };

    return bt_device_reserve(t->device, &limits, why);
}

static void
wire(trial *t)
{
    const bt_model_config *c = &t->model->config;

    t->forward = (bt_forward){
        .model = t->model,
        .device = t->device,
        .ops = bt_device_ops(t->device),
        .layout = &t->layout,
        .kv = t->kv,
        .scratch = &t->scratch,
    };
    for (uint32_t i = 0; i < c->layers; i++) {
        if (c->layer[i].rope != BT_ROPE_NONE) {
            t->forward.ropes[c->layer[i].rope] = true;
        }
    }
}

static void
close_trial(trial *t)
{
    bt_scratch_close(&t->scratch);
    bt_free_pages(t->kv, t->kv_bytes);
    bt_free(t->row);
    *t = (trial){0};
}

// f32 KV: what is looked at should not carry the cache's own rounding. After a failure close_trial.
static bt_err
open_trial(trial *t, const bt_model *model, bt_device *device, uint32_t tokens, uint32_t rows, bt_why *why)
{
    const bt_model_config *c = &model->config;
    bt_scratch_limits limits = {.rows = rows, .sequences = 1, .threads = bt_device_threads(device), .host = true};
    bt_err err;

    *t = (trial){.model = model, .device = device, .tokens = c->context < tokens ? c->context : tokens};
    limits.tokens = t->tokens;
    t->row = bt_alloc_array(larger(larger(c->hidden, c->ffn), c->heads * c->head_dim), sizeof *t->row);
    if ((err = bt_kv_layout_init(&t->layout, BT_KV_F32, c->layers, c->kv_heads, c->head_dim, BLOCK_TOKENS, c->head_dim,
                                 why)) != BT_OK ||
        (err = reserve(t, why)) != BT_OK) {
        return err;
    }
    t->kv_bytes = (t->tokens + BLOCK_TOKENS - 1) / BLOCK_TOKENS * t->layout.block_bytes;
    t->kv = bt_alloc_pages(t->kv_bytes);
    if (t->row == NULL || t->kv == NULL || bt_scratch_open(&t->scratch, t->device, c, &limits) != BT_OK) {
        return bt_fail(why, BT_ERR_NO_MEMORY, "calibration: out of memory");
    }
    wire(t);
    return fill_ids(t, why);
}

// The whole text in one batch; the last `rows` positions give logits.
static bt_err
run(trial *t, uint32_t rows)
{
    uint32_t blocks[TOKENS / BLOCK_TOKENS];
    bt_flat_batch batch = {.tokens = t->tokens, .spans = 1, .rows = rows};

    for (uint32_t i = 0; i < TOKENS / BLOCK_TOKENS; i++) {
        blocks[i] = i;
    }
    for (uint32_t i = 0; i < t->tokens; i++) {
        t->scratch.positions[i] = i;
    }
    for (uint32_t i = 0; i < rows; i++) {
        t->scratch.logit_rows[i] = t->tokens - rows + i;
    }
    t->scratch.spans[0] = (bt_attention_span){0, t->tokens, 0, blocks};
    return bt_forward_run(&t->forward, &batch);
}

static void
add_row(bt_column_stats *stats, const float *x)
{
    for (uint32_t j = 0; j < stats->cols; j++) {
        float size = fabsf(x[j]);

        if (size < INFINITY) {
            stats->moment[j] += x[j] * x[j];
            stats->amax[j] = size > stats->amax[j] ? size : stats->amax[j];
        }
    }
}

static bt_column_stats *
stats_of(const trial *t, const bt_weight *weight)
{
    for (uint32_t i = 0; i < t->model->config.layers; i++) {
        const bt_layer *l = &t->model->layers[i];
        bt_layer_calibration *c = &t->calibration->layers[i];

        if (weight == &l->q) {
            return &c->qkv;
        }
        if (weight == &l->o) {
            return &c->o;
        }
        if (weight == &l->gate) {
            return &c->gate_up;
        }
        if (weight == &l->down) {
            return &c->down;
        }
    }
    return weight == t->model->head ? &t->calibration->head : NULL;
}

static void
norm_row(const float *x, uint32_t count, const float *weight, float eps, float *out)
{
    double sum = 0;
    float scale;

    for (uint32_t i = 0; i < count; i++) {
        sum += (double)x[i] * (double)x[i];
    }
    scale = (float)(1 / sqrt(sum / count + (double)eps));
    for (uint32_t i = 0; i < count; i++) {
        out[i] = x[i] * scale * weight[i];
    }
}

static void
watch_linear(void *arg, const bt_linear_args *args)
{
    trial *t = arg;
    bt_column_stats *stats = stats_of(t, args->weights[0]);

    for (uint32_t i = 0; stats != NULL && i < args->tokens; i++) {
        const float *x = args->x + i * args->x_stride;

        if (args->norm != NULL) {
            norm_row(x, stats->cols, args->norm, args->norm_eps, t->row);
            x = t->row;
        }
        add_row(stats, x);
    }
}

// One head's amplitudes, after its norm.
static void
add_head(const float *x, uint32_t pairs, bt_pair_stats *stats, uint32_t kv_head)
{
    for (uint32_t p = 0; p < pairs; p++) {
        float square = x[p] * x[p] + x[p + pairs] * x[p + pairs], size = sqrtf(square);
        size_t at = (size_t)kv_head * pairs + p;

        if (size < INFINITY) {
            stats->moment[at] += square;
            stats->amax[at] = size > stats->amax[at] ? size : stats->amax[at];
        }
    }
}

// The heads of one row of Q or K. A norm over the whole width is applied to all of them together.
static void
add_heads(const trial *t, const bt_attention_args *args, const float *x, uint32_t heads, const float *norm,
          bt_pair_stats *stats)
{
    uint32_t dim = args->head_dim, group = heads / args->kv_heads;

    if (norm != NULL && args->norm_whole) {
        norm_row(x, heads * dim, norm, args->norm_eps, t->row);
        x = t->row;
    }
    for (uint32_t h = 0; h < heads; h++) {
        float one[512];
        const float *head = x + (size_t)h * dim;

        if (norm != NULL && !args->norm_whole) {
            norm_row(head, dim, norm, args->norm_eps, one);
            head = one;
        }
        add_head(head, dim / 2, stats, h / group);
    }
}

static void
watch_attention(void *arg, const bt_attention_args *args)
{
    trial *t = arg;
    bt_layer_calibration *c = &t->calibration->layers[args->layer];

    for (uint32_t i = 0; i < t->tokens && i < PAIR_TOKENS; i++) {
        const float *q = args->qkv + i * args->qkv_stride;

        add_heads(t, args, q, args->heads, args->q_norm, &c->q);
        add_heads(t, args, q + (size_t)args->heads * args->head_dim, args->kv_heads, args->k_norm, &c->k);
    }
}

static void
divide(float *values, uint32_t count, float by)
{
    for (uint32_t i = 0; i < count; i++) {
        values[i] /= by;
    }
}

// Sums become means. The last layer's output side and the head saw the last rows alone.
static void
average(const trial *t, bool columns, uint32_t rows)
{
    bt_calibration *c = t->calibration;
    float n = (float)t->tokens, pairs = (float)(t->tokens < PAIR_TOKENS ? t->tokens : PAIR_TOKENS);

    for (uint32_t i = 0; i < c->layer_count; i++) {
        bt_layer_calibration *layer = &c->layers[i];
        float out = i + 1 == c->layer_count ? (float)rows : n;

        divide(layer->q.moment, c->pairs, pairs);
        divide(layer->k.moment, c->pairs, pairs);
        if (columns) {
            divide(layer->qkv.moment, layer->qkv.cols, n);
            divide(layer->o.moment, layer->o.cols, out);
            divide(layer->gate_up.moment, layer->gate_up.cols, out);
            divide(layer->down.moment, layer->down.cols, out);
        }
    }
    if (columns) {
        divide(c->head.moment, c->head.cols, (float)rows);
    }
}

bt_err
bt_calibrate(bt_calibration *calibration, const bt_model *model, bt_device *device, bool columns, bt_why *why)
{
    trial t = {0};
    uint32_t rows;
    bt_err err;

    if ((err = bt_calibration_open(calibration, &model->config)) != BT_OK) {
        return bt_fail(why, err, "calibration: out of memory");
    }
    rows = columns ? KL_ROWS : 0;
    if ((err = open_trial(&t, model, device, columns ? TOKENS : PAIR_TOKENS, rows, why)) == BT_OK) {
        rows = t.tokens < rows ? t.tokens : rows;
        t.calibration = calibration;
        t.forward.watch_linear = columns ? watch_linear : NULL;
        t.forward.watch_attention = watch_attention;
        t.forward.watch_arg = &t;
        if ((err = run(&t, rows)) == BT_OK) {
            average(&t, columns, rows);
            bt_equalise(calibration, &model->config);
        } else {
            bt_fail(why, err, "calibration: the run over the built-in text failed (%s)", bt_err_name(err));
        }
    }
    close_trial(&t);
    return err;
}

// Σ p (ln p − ln q) over one row.
static double
row_divergence(const float *p_logits, const float *q_logits, uint32_t vocab)
{
    double p_max = -INFINITY, q_max = -INFINITY, p_sum = 0, q_sum = 0, kl = 0;

    for (uint32_t i = 0; i < vocab; i++) {
        p_max = (double)p_logits[i] > p_max ? (double)p_logits[i] : p_max;
        q_max = (double)q_logits[i] > q_max ? (double)q_logits[i] : q_max;
    }
    for (uint32_t i = 0; i < vocab; i++) {
        p_sum += exp((double)p_logits[i] - p_max);
        q_sum += exp((double)q_logits[i] - q_max);
    }
    for (uint32_t i = 0; i < vocab; i++) {
        double p = (double)p_logits[i] - p_max - log(p_sum), q = (double)q_logits[i] - q_max - log(q_sum);

        kl += exp(p) * (p - q);
    }
    return kl;
}

bt_err
bt_calibrate_divergence(const bt_model *reference, const bt_model *model, bt_device *device, double *kl, bt_why *why)
{
    trial a = {0}, b = {0};
    uint32_t rows = KL_ROWS;
    bt_err err;

    if ((err = open_trial(&a, reference, device, TOKENS, KL_ROWS, why)) == BT_OK &&
        (err = open_trial(&b, model, device, TOKENS, KL_ROWS, why)) == BT_OK) {
        rows = a.tokens < rows ? a.tokens : rows;
        if ((err = run(&a, rows)) == BT_OK && (err = run(&b, rows)) == BT_OK) {
            double sum = 0;

            for (uint32_t i = 0; i < rows; i++) {
                sum += row_divergence(a.scratch.logits + i * a.scratch.logit_stride,
                                      b.scratch.logits + i * b.scratch.logit_stride, model->config.vocab);
            }
            *kl = sum / rows;
        } else {
            bt_fail(why, err, "calibration: the run over the built-in text failed (%s)", bt_err_name(err));
        }
    }
    close_trial(&a);
    close_trial(&b);
    return err;
}
