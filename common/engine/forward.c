#include "common/engine/forward.h"

// Activations can be shared by matrices that read them alike: floats, or INT8 with the same block.
static bool
share_activations(const bt_weight *a, const bt_weight *b)
{
    if (a->format.kind != BT_WEIGHT_INT || b->format.kind != BT_WEIGHT_INT) {
        return a->format.kind != BT_WEIGHT_INT && b->format.kind != BT_WEIGHT_INT;
    }
    return a->format.act_block == b->format.act_block;
}

bt_err
bt_forward_check(const bt_model *model, bt_why *why)
{
    for (uint32_t i = 0; i < model->config.layers; i++) {
        if (!share_activations(&model->layers[i].gate, &model->layers[i].up)) {
            return bt_fail(why, BT_ERR_UNSUPPORTED,
                           "layer %u: ffn_gate and ffn_up are in formats that cannot run as one", i);
        }
    }
    return BT_OK;
}

static bt_time
clock_of(const bt_forward *f)
{
    return f->times != NULL ? bt_time_now() : 0;
}

static void
count_time(const bt_forward *f, bt_engine_op op, bt_time since)
{
    if (f->times != NULL) {
        f->times->op[op] += bt_time_now() - since;
    }
}

static bt_err
timed_linear(const bt_forward *f, bt_engine_op op, const bt_linear_args *args)
{
    bt_time since = clock_of(f);
    bt_err err;

    if (f->watch_linear != NULL) {
        f->watch_linear(f->watch_arg, args);
    }
    err = f->ops->linear(f->device, args);
    count_time(f, op, since);
    return err;
}

static bt_err
embed(const bt_forward *f, const bt_flat_batch *b)
{
    bt_scratch *s = f->scratch;
    bt_embed_args args = {
        .table = &f->model->embed,
        .ids = s->ids,
        .tokens = b->tokens,
        .out = s->x,
        .out_stride = s->hidden_stride,
        .scale = f->model->config.embed_scale,
    };
    bt_time since = clock_of(f);
    bt_err err = f->ops->embed(f->device, &args);

    count_time(f, BT_ENGINE_EMBED, since);
    return err;
}

// Cosines and sines of this step's positions, once for all layers.
static bt_err
turn(const bt_forward *f, const bt_flat_batch *b)
{
    const bt_model_config *config = &f->model->config;
    bt_time since = clock_of(f);
    bt_err err = BT_OK;

    for (int i = 0; i < 2 && err == BT_OK; i++) {
        bt_rope_args args = {
            .positions = f->scratch->positions,
            .tokens = b->tokens,
            .inv_freq = config->ropes[i].inv_freq,
            .pairs = config->rope_dims / 2,
            .factor = config->ropes[i].factor,
            .cos = f->scratch->cos[i],
            .sin = f->scratch->sin[i],
        };

        err = f->ropes[i] ? f->ops->rope(f->device, &args) : BT_OK;
    }
    count_time(f, BT_ENGINE_ROPE, since);
    return err;
}

// The matrices of a layer's Q | K | V from `first` on that go as one call: neighbours that share activations. Returns how many.
static uint32_t
qkv_weights(const bt_layer *layer, uint32_t first, const bt_weight *out[3])
{
    const bt_weight *weights[] = {&layer->q, &layer->k, &layer->v};
    uint32_t count = 0;

    while (first + count < 3 && share_activations(weights[first], weights[first + count])) {
        out[count] = weights[first + count];
        count++;
    }
    return count;
}

// Q | K | V side by side.
static bt_err
project_qkv(const bt_forward *f, const bt_flat_batch *b, const bt_layer *layer)
{
    const float *biases[] = {layer->q_bias, layer->k_bias, layer->v_bias};
    float *y = f->scratch->qkv;
    bt_err err = BT_OK;

    for (uint32_t first = 0, count; first < 3 && err == BT_OK; first += count) {
        bt_linear_args args = {
            .tokens = b->tokens,
            .x = f->scratch->x,
            .x_stride = f->scratch->hidden_stride,
            .norm = layer->attention_norm,
            .norm_eps = f->model->config.norm_eps,
            .y = y,
            .y_stride = f->scratch->qkv_stride,
            .epilogue = BT_LINEAR_STORE,
            .scale = 1,
        };

        args.weight_count = count = qkv_weights(layer, first, args.weights);
        for (uint32_t i = 0; i < count; i++) {
            args.biases[i] = biases[first + i];
            y += args.weights[i]->rows;
        }
        err = timed_linear(f, BT_ENGINE_QKV, &args);
    }
    return err;
}

static bt_err
attend(const bt_forward *f, const bt_flat_batch *b, uint32_t index)
{
    const bt_model_config *config = &f->model->config;
    const bt_layer *layer = &f->model->layers[index];
    uint8_t rope = config->layer[index].rope;
    bt_scratch *s = f->scratch;
    bt_attention_args args = {
        .qkv = s->qkv,
        .qkv_stride = s->qkv_stride,
        .out = s->attended,
        .out_stride = s->attended_stride,
        .heads = config->heads,
        .kv_heads = config->kv_heads,
        .head_dim = config->head_dim,
        .scale = config->attention_scale,
        .softcap = config->attention_softcap,
        .window = config->layer[index].window,
        .q_norm = layer->q_norm,
        .k_norm = layer->k_norm,
        .norm_whole = config->qk_norm_whole,
        .norm_eps = config->norm_eps,
        .rope_cos = rope != BT_ROPE_NONE ? s->cos[rope] : NULL,
        .rope_sin = rope != BT_ROPE_NONE ? s->sin[rope] : NULL,
        .rope_dims = config->rope_dims,
        .k_shift = layer->k_shift,
        .layout = f->layout,
        .pool = f->kv,
        .layer = index,
        .spans = s->spans,
        .span_count = b->spans,
    };
    bt_time since = clock_of(f);
    bt_err err;

    if (index + 1 < config->layers || b->rows == b->tokens) { // else some rows are taken from among them first
        args.next = (bt_linear_next){.weights = {&layer->o}, .weight_count = 1, .only = f->watch_linear == NULL};
    }
    if (f->watch_attention != NULL) {
        f->watch_attention(f->watch_arg, &args);
    }
    if ((err = f->ops->attention(f->device, &args)) == BT_OK && f->lend != NULL) {
        err = bt_lend_layer(f->lend, index);
    }
    count_time(f, BT_ENGINE_ATTENTION, since);
    return err;
}

// x += residual_scale · W · in, or, where the block's output has a norm of its own, x += residual_scale · norm(W · in). `next`
// reads x.
static bt_err
add_block(const bt_forward *f, bt_engine_op op, uint32_t tokens, const bt_weight *weight, const float *bias,
          const float *in, size_t in_stride, const float *post_norm, const bt_linear_next *next)
{
    const bt_model_config *config = &f->model->config;
    bt_scratch *s = f->scratch;
    bt_linear_args args = {
        .weights = {weight},
        .biases = {bias},
        .weight_count = 1,
        .tokens = tokens,
        .x = in,
        .x_stride = in_stride,
        .y = post_norm == NULL ? s->x : s->block_out,
        .y_stride = s->hidden_stride,
        .epilogue = post_norm == NULL ? BT_LINEAR_ADD : BT_LINEAR_STORE,
        .scale = post_norm == NULL ? config->residual_scale : 1,
    };
    bt_add_norm_args add = {
        .tokens = tokens,
        .cols = config->hidden,
        .x = s->x,
        .x_stride = s->hidden_stride,
        .y = s->block_out,
        .y_stride = s->hidden_stride,
        .norm = post_norm,
        .norm_eps = config->norm_eps,
        .scale = config->residual_scale,
    };
    bt_time since;
    bt_err err;

    if (post_norm == NULL) {
        args.next = *next;
        return timed_linear(f, op, &args);
    }
    if ((err = timed_linear(f, op, &args)) != BT_OK) {
        return err;
    }
    since = clock_of(f);
    err = f->ops->add_norm(f->device, &add);
    count_time(f, BT_ENGINE_NORM, since);
    return err;
}

// Moves the rows that want logits to the front.
static bt_err
gather(const bt_forward *f, float *rows, size_t stride, uint32_t cols, uint32_t count)
{
    bt_gather_args args = {rows, stride, cols, f->scratch->logit_rows, count};

    return f->ops->gather(f->device, &args);
}

// What reads the residual stream after layer `index`.
static bt_linear_next
after_layer(const bt_forward *f, uint32_t index)
{
    const bt_model *m = f->model;
    bt_linear_next next = {.norm_eps = m->config.norm_eps};

    if (index + 1 < m->config.layers) {
        next.norm = m->layers[index + 1].attention_norm;
        next.weight_count = qkv_weights(&m->layers[index + 1], 0, next.weights);
    } else {
        next.norm = m->output_norm;
        next.weight_count = 1;
        next.weights[0] = m->head;
    }
    return next;
}

static bt_err
feed_forward(const bt_forward *f, uint32_t tokens, uint32_t index)
{
    const bt_layer *layer = &f->model->layers[index];
    const bt_model_config *config = &f->model->config;
    bt_scratch *s = f->scratch;
    bt_linear_args args = {
        .weights = {&layer->gate, &layer->up},
        .weight_count = 2,
        .tokens = tokens,
        .x = s->x,
        .x_stride = s->hidden_stride,
        .norm = layer->ffn_norm,
        .norm_eps = config->norm_eps,
        .y = s->ffn,
        .y_stride = s->ffn_stride,
        .epilogue = config->activation == BT_ACT_SILU ? BT_LINEAR_SILU_MUL : BT_LINEAR_GELU_MUL,
        .scale = 1,
        .next = {.weights = {&layer->down}, .weight_count = 1, .only = f->watch_linear == NULL},
    };
    bt_linear_next next = after_layer(f, index);
    bt_err err = timed_linear(f, BT_ENGINE_GATE_UP, &args);

    return err != BT_OK ? err
                        : add_block(f, BT_ENGINE_DOWN, tokens, &layer->down, NULL, s->ffn, s->ffn_stride,
                                    layer->ffn_post_norm, &next);
}

static bt_err
run_layer(const bt_forward *f, const bt_flat_batch *b, uint32_t index)
{
    const bt_layer *layer = &f->model->layers[index];
    bt_scratch *s = f->scratch;
    bt_linear_next ffn = {.weights = {&layer->gate, &layer->up},
                          .weight_count = 2,
                          .norm = layer->ffn_norm,
                          .norm_eps = f->model->config.norm_eps};
    uint32_t tokens = b->tokens;
    bt_err err;

    if ((err = project_qkv(f, b, layer)) != BT_OK || (err = attend(f, b, index)) != BT_OK) {
        return err;
    }
    if (index + 1 == f->model->config.layers) { // what follows is read by nobody but the rows that want logits
        const bt_model_config *config = &f->model->config;

        if ((err = gather(f, s->x, s->hidden_stride, config->hidden, b->rows)) != BT_OK ||
            (err = gather(f, s->attended, s->attended_stride, config->heads * config->head_dim, b->rows)) != BT_OK) {
            return err;
        }
        tokens = b->rows;
    }
    if (tokens == 0) {
        return BT_OK;
    }
    if ((err = add_block(f, BT_ENGINE_O, tokens, &layer->o, layer->o_bias, s->attended, s->attended_stride,
                         layer->attention_post_norm, &ffn)) != BT_OK ||
        (err = feed_forward(f, tokens, index)) != BT_OK) {
        return err;
    }
    if (f->probe != NULL) {
        f->probe(f->probe_arg, index + 1, s->x, s->hidden_stride, tokens);
    }
    return BT_OK;
}

static bt_err
head(const bt_forward *f, const bt_flat_batch *b)
{
    const bt_model_config *config = &f->model->config;
    bt_linear_args args = {
        .weights = {f->model->head},
        .weight_count = 1,
        .tokens = b->rows,
        .x = f->scratch->x,
        .x_stride = f->scratch->hidden_stride,
        .norm = f->model->output_norm,
        .norm_eps = config->norm_eps,
        .y = f->scratch->logits,
        .y_stride = f->scratch->logit_stride,
        .epilogue = BT_LINEAR_STORE,
        .scale = config->logit_scale,
        .softcap = config->logit_softcap,
    };

    return b->rows != 0 ? timed_linear(f, BT_ENGINE_HEAD, &args) : BT_OK;
}

static bt_err
draw(const bt_forward *f, const bt_flat_batch *b)
{
    bt_draw_args args = {f->scratch->logits, f->scratch->logit_stride, f->model->config.vocab, b->rows};

    return b->draws && b->rows != 0 ? f->ops->draw(f->device, &args) : BT_OK;
}

static bt_err
run_operations(const bt_forward *f, const bt_flat_batch *b)
{
    bt_err err;

    if ((err = embed(f, b)) != BT_OK || (err = turn(f, b)) != BT_OK) {
        return err;
    }
    if (f->probe != NULL) {
        f->probe(f->probe_arg, 0, f->scratch->x, f->scratch->hidden_stride, b->tokens);
    }
    for (uint32_t layer = 0; layer < f->model->config.layers; layer++) {
        if ((err = run_layer(f, b, layer)) != BT_OK) {
            return err;
        }
    }
    err = head(f, b);
    return err == BT_OK ? draw(f, b) : err;
}

static bt_err
run_step(const bt_forward *f, const bt_flat_batch *b, const bt_step_args *step)
{
    bool known = false;
    bt_err err = f->ops->begin(f->device, step, &known);

    if (err == BT_OK && !known) {
        err = run_operations(f, b);
    }
    return err == BT_OK ? f->ops->end(f->device) : err;
}

bt_err
bt_forward_run(bt_forward *f, const bt_flat_batch *b)
{
    bt_step_args step = {.ids = f->scratch->ids,
                         .positions = f->scratch->positions,
                         .tokens = b->tokens,
                         .spans = f->scratch->spans,
                         .span_count = b->spans,
                         .rows = f->scratch->logit_rows,
                         .row_count = b->rows,
                         .draws = b->draws ? f->scratch->draws : NULL,
                         .ends = b->ends,
                         .end_count = b->end_count,
                         .plain = f->lend != NULL && f->lend->run_count != 0};
    bt_err err = run_step(f, b, &step);

    if (err == BT_ERR_BUSY) {
        step.plain = true;
        err = run_step(f, b, &step);
    }
    return err;
}
