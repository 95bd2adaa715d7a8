#include "common/engine/scratch.h"

#include "common/base/mem.h"
#include "common/engine/sample.h"

typedef struct {
    uint8_t *base; // NULL while planning
    size_t used;
} carve;

// The next `count` things of `bytes`, at a 64-byte boundary. Sizes were bounded by the model and the limits (plan.c).
static void *
take(carve *c, size_t count, size_t bytes)
{
    size_t at = c->used;

    c->used += (count * bytes + 63) / 64 * 64;
    return c->base == NULL ? NULL : c->base + at;
}

static size_t
stride_of(size_t floats)
{
    return (floats + 15) / 16 * 16;
}

static void
lay_out(bt_scratch *s, carve *c, const bt_model_config *config, const bt_scratch_limits *limits)
{
    size_t t = limits->tokens, pairs = config->rope_dims / 2;

    s->tokens = limits->tokens;
    s->rows = limits->rows;
    s->sequences = limits->sequences;
    s->hidden_stride = stride_of(config->hidden);
    s->qkv_stride = stride_of(((size_t)config->heads + 2 * config->kv_heads) * config->head_dim);
    s->attended_stride = stride_of((size_t)config->heads * config->head_dim);
    s->ffn_stride = stride_of(config->ffn);
    s->logit_stride = config->vocab;
    s->x = take(c, t, s->hidden_stride * sizeof(float));
    s->qkv = take(c, t, s->qkv_stride * sizeof(float));
    s->attended = take(c, t, s->attended_stride * sizeof(float));
    s->ffn = take(c, t, s->ffn_stride * sizeof(float));
    s->block_out = take(c, t, s->hidden_stride * sizeof(float));
    for (int i = 0; i < 2; i++) {
        s->cos[i] = take(c, t, pairs * sizeof(float));
        s->sin[i] = take(c, t, pairs * sizeof(float));
    }
    s->ids = take(c, t, sizeof *s->ids);
    s->positions = take(c, t, sizeof *s->positions);
    s->spans = take(c, limits->sequences, sizeof *s->spans);
    s->logit_rows = take(c, limits->rows, sizeof *s->logit_rows);
    s->row_items = take(c, limits->rows, sizeof *s->row_items);
    s->sampling_bytes = bt_sample_scratch_bytes(config->vocab);
    s->sampling = take(c, limits->threads, s->sampling_bytes);
    s->logits = take(c, limits->rows, s->logit_stride * sizeof(float));
}

void
bt_scratch_plan(bt_scratch *scratch, const bt_model_config *config, const bt_scratch_limits *limits)
{
    carve c = {0};

    *scratch = (bt_scratch){0};
    lay_out(scratch, &c, config, limits);
    scratch->bytes = c.used;
}

bt_err
bt_scratch_open(bt_scratch *scratch, const bt_model_config *config, const bt_scratch_limits *limits)
{
    carve c = {0};

    bt_scratch_plan(scratch, config, limits);
    c.base = bt_alloc_pages(scratch->bytes);
    if (c.base == NULL) {
        *scratch = (bt_scratch){0};
        return BT_ERR_NO_MEMORY;
    }
    scratch->pages = c.base;
    lay_out(scratch, &c, config, limits);
    return BT_OK;
}

void
bt_scratch_close(bt_scratch *scratch)
{
    bt_free_pages(scratch->pages, scratch->bytes);
    *scratch = (bt_scratch){0};
}
