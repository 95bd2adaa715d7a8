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

// `c`: the device's memory; `h`: the program's.
static void
lay_out(bt_scratch *s, carve *c, carve *h, const bt_model_config *config, const bt_scratch_limits *limits)
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
    s->ids = take(h, t, sizeof *s->ids);
    s->positions = take(h, t, sizeof *s->positions);
    s->spans = take(h, limits->sequences, sizeof *s->spans);
    s->logit_rows = take(h, limits->rows, sizeof *s->logit_rows);
    s->row_items = take(h, limits->rows, sizeof *s->row_items);
    s->draws = take(h, limits->rows, sizeof *s->draws);
    s->sampling_bytes = bt_sample_scratch_bytes(config->vocab);
    s->sampling = take(h, limits->threads, s->sampling_bytes);
    s->logits = take(c, limits->rows, s->logit_stride * sizeof(float));
    s->host_logits = limits->host ? s->logits : take(h, limits->rows, s->logit_stride * sizeof(float));
}

void
bt_scratch_plan(bt_scratch *scratch, bt_device *device, const bt_model_config *config, const bt_scratch_limits *limits)
{
    carve c = {0}, h = {0};

    *scratch = (bt_scratch){.device = device};
    lay_out(scratch, &c, &h, config, limits);
    scratch->device_bytes = c.used;
    scratch->host_bytes = h.used;
}

bt_err
bt_scratch_open(bt_scratch *scratch, bt_device *device, const bt_model_config *config, const bt_scratch_limits *limits)
{
    carve c = {0}, h = {0};

    bt_scratch_plan(scratch, device, config, limits);
    c.base = scratch->on_device = bt_device_alloc(device, scratch->device_bytes);
    h.base = scratch->pages = bt_alloc_pages(scratch->host_bytes);
    if (c.base == NULL || h.base == NULL) {
        bt_scratch_close(scratch);
        return BT_ERR_NO_MEMORY;
    }
    lay_out(scratch, &c, &h, config, limits);
    return BT_OK;
}

void
bt_scratch_close(bt_scratch *scratch)
{
    if (scratch->device != NULL) {
        bt_device_free(scratch->device, scratch->on_device, scratch->device_bytes);
    }
    bt_free_pages(scratch->pages, scratch->host_bytes);
    *scratch = (bt_scratch){0};
}
