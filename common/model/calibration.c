#include "common/model/calibration.h"

#include <string.h>

#define ARENA_MAX ((size_t)1 << 30)

static bool
open_columns(bt_arena *arena, bt_column_stats *stats, uint32_t cols)
{
    stats->cols = cols;
    stats->moment = bt_arena_alloc(arena, cols * sizeof(float));
    stats->amax = bt_arena_alloc(arena, cols * sizeof(float));
    return stats->moment != NULL && stats->amax != NULL;
}

static bool
open_pairs(bt_arena *arena, bt_pair_stats *stats, uint32_t pairs)
{
    stats->moment = bt_arena_alloc(arena, pairs * sizeof(float));
    stats->amax = bt_arena_alloc(arena, pairs * sizeof(float));
    return stats->moment != NULL && stats->amax != NULL;
}

static bool
open_layer(bt_calibration *c, bt_layer_calibration *layer, const bt_model_config *config)
{
    return open_columns(&c->arena, &layer->qkv, config->hidden) &&
           open_columns(&c->arena, &layer->o, config->heads * config->head_dim) &&
           open_columns(&c->arena, &layer->gate_up, config->hidden) &&
           open_columns(&c->arena, &layer->down, config->ffn) && open_pairs(&c->arena, &layer->q, c->pairs) &&
           open_pairs(&c->arena, &layer->k, c->pairs) && (layer->k_shift = bt_arena_alloc(&c->arena, c->pairs)) != NULL;
}

bt_err
bt_calibration_open(bt_calibration *calibration, const bt_model_config *config)
{
    *calibration = (bt_calibration){.layer_count = config->layers, .pairs = config->kv_heads * (config->head_dim / 2)};
    bt_arena_init(&calibration->arena, ARENA_MAX);
    calibration->layers = bt_arena_alloc(&calibration->arena, config->layers * sizeof *calibration->layers);
    if (calibration->layers == NULL || !open_columns(&calibration->arena, &calibration->head, config->hidden)) {
        return BT_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < config->layers; i++) {
        if (!open_layer(calibration, &calibration->layers[i], config)) {
            return BT_ERR_NO_MEMORY;
        }
    }
    return BT_OK;
}

void
bt_calibration_close(bt_calibration *calibration)
{
    bt_arena_fini(&calibration->arena);
    *calibration = (bt_calibration){0};
}

#define SHIFT_MAX 8
#define SWEEPS 4

// One KV head's figures while its shifts are sought; arrays of `pairs`.
typedef struct {
    uint32_t pairs;
    const float *q2, *qmax, *k2, *kmax;
    int8_t *shift;
} head;

static float
power_of_two(int exponent)
{
    float value = 1;

    for (; exponent > 0; exponent--) {
        value *= 2;
    }
    for (; exponent < 0; exponent++) {
        value /= 2;
    }
    return value;
}

// The error up to a constant, with pair `changed` at `shift` and the others as they are.
static double
error_with(const head *h, uint32_t changed, int shift)
{
    float k_largest = 0, q_largest = 0;
    double q_weight = 0, k_weight = 0;

    for (uint32_t p = 0; p < h->pairs; p++) {
        float factor = power_of_two(p == changed ? shift : h->shift[p]);
        float k = h->kmax[p] / factor, q = h->qmax[p] * factor;

        k_largest = k > k_largest ? k : k_largest;
        q_largest = q > q_largest ? q : q_largest;
        q_weight += (double)h->q2[p] * (double)factor * (double)factor;
        k_weight += (double)h->k2[p] / ((double)factor * (double)factor);
    }
    return (double)k_largest * (double)k_largest * q_weight + (double)q_largest * (double)q_largest * k_weight;
}

// A move must win by a hundredth: what is as good without a shift stays without.
static bool
improve(head *h, uint32_t pair, double *least)
{
    int best = h->shift[pair];

    for (int shift = -SHIFT_MAX; shift <= SHIFT_MAX; shift++) {
        double error = error_with(h, pair, shift);

        if (error < *least * 0.99) {
            *least = error;
            best = shift;
        }
    }
    if (best == h->shift[pair]) {
        return false;
    }
    h->shift[pair] = (int8_t)best;
    return true;
}

// The power of two next to sqrt(k / q): it makes a pair as large in K as in Q.
static int
even_shift(float k, float q)
{
    int shift = 0;

    if (!(k > 0 && q > 0)) {
        return 0;
    }
    for (float ratio = k / q; ratio >= 2 && shift < SHIFT_MAX; ratio /= 4) {
        shift++;
    }
    for (float ratio = k / q; ratio < 0.5f && shift > -SHIFT_MAX; ratio *= 4) {
        shift--;
    }
    return shift;
}

static void
equalise_head(head *h)
{
    double plain = error_with(h, 0, 0), least;
    bool moved = true;

    for (uint32_t p = 0; p < h->pairs; p++) {
        h->shift[p] = (int8_t)even_shift(h->kmax[p], h->qmax[p]);
    }
    if ((least = error_with(h, 0, h->shift[0])) > plain) {
        memset(h->shift, 0, h->pairs);
        least = plain;
    }
    for (int sweep = 0; sweep < SWEEPS && moved; sweep++) {
        moved = false;
        for (uint32_t pair = 0; pair < h->pairs; pair++) {
            moved = improve(h, pair, &least) || moved;
        }
    }
}

void
bt_equalise(bt_calibration *calibration, const bt_model_config *config)
{
    uint32_t pairs = config->head_dim / 2;

    for (uint32_t i = 0; i < calibration->layer_count; i++) {
        bt_layer_calibration *layer = &calibration->layers[i];

        for (uint32_t kv = 0; kv < config->kv_heads; kv++) {
            size_t at = (size_t)kv * pairs;
            head h = {pairs,
                      layer->q.moment + at,
                      layer->q.amax + at,
                      layer->k.moment + at,
                      layer->k.amax + at,
                      layer->k_shift + at};

            equalise_head(&h);
        }
    }
}
