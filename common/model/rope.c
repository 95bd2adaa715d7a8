#include "common/model/rope.h"

#include "common/model/file.h"

#include <math.h>
#include <stdio.h>

#define TWO_PI 6.283185307179586

static bt_err
kind_of(const bt_keys *keys, bt_str name, bt_rope_kind *out, bt_why *why)
{
    // "dynamic" changes nothing within the context that a model was trained for, which is all that we serve.
    static const struct {
        const char *name;
        bt_rope_kind kind;
    } kinds[] = {{"default", BT_ROPE_PLAIN}, {"none", BT_ROPE_PLAIN},    {"dynamic", BT_ROPE_PLAIN},
                 {"linear", BT_ROPE_LINEAR}, {"llama3", BT_ROPE_LLAMA3}, {"yarn", BT_ROPE_YARN}};
    char shown[72];

    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (bt_str_is(name, kinds[i].name)) {
            *out = kinds[i].kind;
            return BT_OK;
        }
    }
    return bt_fail(why, BT_ERR_UNSUPPORTED, "%s: rope scaling '%s' is not supported", keys->source->path,
                   bt_printable(name, shown));
}

// YaRN's usual factor on cos and sin.
static float
yarn_magnitude(float factor)
{
    return factor > 1 ? (float)(0.1 * log((double)factor) + 1) : 1;
}

static bt_err
read_gguf(const bt_keys *keys, bool local, bt_rope_settings *out, bt_why *why)
{
    bt_str kind = bt_str_of("none");
    float magnitude = 1;
    bt_err err;

    if (local) {
        return bt_keys_maybe_f32(keys, "rope.freq_base_swa", NULL, 1, 1e12f, &out->base, why);
    }
    if ((err = bt_keys_maybe_f32(keys, "rope.freq_base", NULL, 1, 1e12f, &out->base, why)) != BT_OK ||
        (err = bt_keys_maybe_text(keys, "rope.scaling.type", NULL, &kind, why)) != BT_OK ||
        (err = kind_of(keys, kind, &out->kind, why)) != BT_OK ||
        (err = bt_keys_maybe_f32(keys, "rope.scaling.factor", NULL, 1e-3f, 1e6f, &out->factor, why)) != BT_OK ||
        (err = bt_keys_maybe_f32(keys, "rope.scaling.attn_factor", NULL, 1e-3f, 1e3f, &magnitude, why)) != BT_OK ||
        (err = bt_keys_maybe_f32(keys, "rope.scaling.yarn_beta_slow", NULL, 1e-3f, 1e6f, &out->low, why)) != BT_OK ||
        (err = bt_keys_maybe_f32(keys, "rope.scaling.yarn_beta_fast", NULL, 1e-3f, 1e6f, &out->high, why)) != BT_OK) {
        return err;
    }
    out->magnitude = magnitude * yarn_magnitude(out->factor);
    return BT_OK;
}

static bt_err
read_original(const bt_keys *keys, const char *hf, uint32_t context, bt_rope_settings *out, bt_why *why)
{
    uint32_t original = context;
    bt_err err = bt_keys_maybe_u32(keys, "rope.scaling.original_context_length", hf, 1, UINT32_MAX, &original, why);

    out->original_context = (float)original;
    return err;
}

static const char *
joined(char out[96], const char *prefix, const char *key)
{
    snprintf(out, 96, "%s.%s", prefix, key);
    return out;
}

// Where config.json keeps the settings: transformers 5 has rope_parameters, once or for each kind of layer; before there
// were rope_theta (rope_local_base_freq) and, for global layers, rope_scaling.
static const char *
hf_prefix(const bt_keys *keys, bool local)
{
    const char *kind = local ? "sliding_attention" : "full_attention";
    bt_json_at all = bt_json_get(&keys->root, "rope_parameters"), own = bt_json_get(&all, kind);

    if (bt_json_given(&own)) {
        return local ? "rope_parameters.sliding_attention" : "rope_parameters.full_attention";
    }
    return bt_json_given(&all) ? "rope_parameters" : local ? NULL : "rope_scaling";
}

static bt_err
read_hf_kind(const bt_keys *keys, const char *prefix, bt_rope_settings *out, bt_why *why)
{
    bt_str kind = bt_str_of("default");
    char key[96];
    bt_err err;

    if ((err = bt_keys_maybe_text(keys, NULL, joined(key, prefix, "type"), &kind, why)) != BT_OK ||
        (err = bt_keys_maybe_text(keys, NULL, joined(key, prefix, "rope_type"), &kind, why)) != BT_OK) {
        return err;
    }
    return kind_of(keys, kind, &out->kind, why);
}

static bt_err
read_hf_betas(const bt_keys *keys, const char *prefix, bt_rope_settings *out, bt_why *why)
{
    bool llama3 = out->kind == BT_ROPE_LLAMA3;
    const char *low = llama3 ? "low_freq_factor" : "beta_slow", *high = llama3 ? "high_freq_factor" : "beta_fast";
    char key[96];
    bt_err err;

    if ((err = bt_keys_maybe_f32(keys, NULL, joined(key, prefix, low), 1e-3f, 1e6f, &out->low, why)) != BT_OK ||
        (err = bt_keys_maybe_f32(keys, NULL, joined(key, prefix, high), 1e-3f, 1e6f, &out->high, why)) != BT_OK) {
        return err;
    }
    return bt_keys_maybe_bool(keys, NULL, joined(key, prefix, "truncate"), &out->truncate, why);
}

// mscale over mscale_all_dim (DeepSeek's names) says how the factor on cos and sin differs from the usual one.
static bt_err
read_hf_magnitude(const bt_keys *keys, const char *prefix, bt_rope_settings *out, bt_why *why)
{
    float scale = 0, whole = 0;
    char key[96];
    bt_err err;

    out->magnitude = yarn_magnitude(out->factor);
    if ((err = bt_keys_maybe_f32(keys, NULL, joined(key, prefix, "mscale"), 0, 1e3f, &scale, why)) != BT_OK ||
        (err = bt_keys_maybe_f32(keys, NULL, joined(key, prefix, "mscale_all_dim"), 0, 1e3f, &whole, why)) != BT_OK) {
        return err;
    }
    if (scale > 0 && whole > 0) {
        out->magnitude = (1 + scale * (out->magnitude - 1)) / (1 + whole * (out->magnitude - 1));
    }
    return bt_keys_maybe_f32(keys, NULL, joined(key, prefix, "attention_factor"), 1e-3f, 1e3f, &out->magnitude, why);
}

static bt_err
read_hf(const bt_keys *keys, uint32_t context, bool local, bt_rope_settings *out, bt_why *why)
{
    const char *prefix = hf_prefix(keys, local);
    char key[96];
    bt_err err;

    err = bt_keys_maybe_f32(keys, NULL, local ? "rope_local_base_freq" : "rope_theta", 1, 1e12f, &out->base, why);
    if (err != BT_OK || prefix == NULL) {
        return err;
    }
    if ((err = bt_keys_maybe_f32(keys, NULL, joined(key, prefix, "rope_theta"), 1, 1e12f, &out->base, why)) != BT_OK ||
        (err = read_hf_kind(keys, prefix, out, why)) != BT_OK ||
        (err = bt_keys_maybe_f32(keys, NULL, joined(key, prefix, "factor"), 1e-3f, 1e6f, &out->factor, why)) != BT_OK ||
        (err = read_original(keys, joined(key, prefix, "original_max_position_embeddings"), context, out, why)) !=
            BT_OK ||
        (err = read_hf_betas(keys, prefix, out, why)) != BT_OK) {
        return err;
    }
    return read_hf_magnitude(keys, prefix, out, why);
}

bt_err
bt_rope_read(const bt_keys *keys, uint32_t context, bool local, bt_rope_settings *out, bt_why *why)
{
    bt_err err;

    *out = (bt_rope_settings){.base = 10000,
                              .factor = 1,
                              .original_context = (float)context,
                              .low = 1,
                              .high = 32,
                              .truncate = true,
                              .magnitude = 1};
    if (keys->source->gguf == NULL) {
        return read_hf(keys, context, local, out, why);
    }
    err = read_gguf(keys, local, out, why);
    return err != BT_OK ? err : read_original(keys, NULL, context, out, why);
}

// Long waves are stretched, short ones kept, and those between go over smoothly.
static double
llama3_scaled(const bt_rope_settings *settings, double inv_freq)
{
    double wavelength = TWO_PI / inv_freq, original = (double)settings->original_context;
    double low = (double)settings->low, high = (double)settings->high, smooth;

    if (wavelength < original / high) {
        return inv_freq;
    }
    if (wavelength > original / low) {
        return inv_freq / (double)settings->factor;
    }
    smooth = (original / wavelength - low) / (high - low);
    return (1 - smooth) * inv_freq / (double)settings->factor + smooth * inv_freq;
}

// The (real) index of the pair that turns `rotations` times within the original context.
static double
yarn_pair(const bt_rope_settings *settings, uint32_t dims, double rotations)
{
    return dims * log((double)settings->original_context / (rotations * TWO_PI)) / (2 * log((double)settings->base));
}

static double
yarn_scaled(const bt_rope_settings *settings, uint32_t dims, uint32_t pair, double inv_freq)
{
    double low = yarn_pair(settings, dims, (double)settings->high);
    double high = yarn_pair(settings, dims, (double)settings->low), stretched;

    low = fmax(settings->truncate ? floor(low) : low, 0);
    high = fmin(settings->truncate ? ceil(high) : high, dims - 1);
    high = high == low ? low + 0.001 : high;
    stretched = fmin(fmax((pair - low) / (high - low), 0), 1);
    return inv_freq * (1 - stretched) + inv_freq / (double)settings->factor * stretched;
}

void
bt_rope_build(const bt_rope_settings *settings, uint32_t dims, const float *divisors, bt_rope_table *table)
{
    table->factor = settings->kind == BT_ROPE_YARN ? settings->magnitude : 1;
    for (uint32_t pair = 0; pair < dims / 2; pair++) {
        double inv_freq = pow((double)settings->base, -2.0 * pair / dims);

        if (settings->kind == BT_ROPE_LINEAR) {
            inv_freq /= (double)settings->factor;
        } else if (settings->kind == BT_ROPE_LLAMA3) {
            inv_freq = llama3_scaled(settings, inv_freq);
        } else if (settings->kind == BT_ROPE_YARN) {
            inv_freq = yarn_scaled(settings, dims, pair, inv_freq);
        }
        table->inv_freq[pair] = (float)(divisors != NULL ? inv_freq / (double)divisors[pair] : inv_freq);
    }
}
