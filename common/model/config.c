#include "common/model/config.h"

#include "common/model/file.h"
#include "common/model/names.h"
#include "common/model/rope.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

static bt_err
read_sizes(const bt_keys *keys, bt_model_config *out, bt_why *why)
{
    bt_err err;

    if ((err = bt_keys_u32(keys, "block_count", "num_hidden_layers", 1, 1024, &out->layers, why)) != BT_OK ||
        (err = bt_keys_u32(keys, "embedding_length", "hidden_size", 1, 1 << 16, &out->hidden, why)) != BT_OK ||
        (err = bt_keys_u32(keys, "feed_forward_length", "intermediate_size", 1, 1 << 17, &out->ffn, why)) != BT_OK ||
        (err = bt_keys_u32(keys, "attention.head_count", "num_attention_heads", 1, 1024, &out->heads, why)) != BT_OK ||
        (err = bt_keys_u32(keys, "context_length", "max_position_embeddings", 1, 1 << 28, &out->context, why)) !=
            BT_OK) {
        return err;
    }
    out->kv_heads = out->heads;
    out->head_dim = out->hidden / out->heads;
    if ((err = bt_keys_maybe_u32(keys, "attention.head_count_kv", "num_key_value_heads", 1, 1024, &out->kv_heads,
                                 why)) != BT_OK ||
        (err = bt_keys_maybe_u32(keys, "attention.key_length", "head_dim", 1, 1024, &out->head_dim, why)) != BT_OK) {
        return err;
    }
    return bt_keys_f32(keys, "attention.layer_norm_rms_epsilon", "rms_norm_eps", 0, 1, &out->norm_eps, why);
}

static bt_err
check_sizes(const bt_keys *keys, const bt_model_config *config, bt_why *why)
{
    uint32_t value_dim = config->head_dim;
    bt_err err;

    if (config->heads % config->kv_heads != 0) {
        return bt_fail(why, BT_ERR_INVALID,
                       "%s: expected heads to be a multiple of KV heads, found %" PRIu32 " and %" PRIu32,
                       keys->source->path, config->heads, config->kv_heads);
    }
    if (config->head_dim % 2 != 0 || config->head_dim == 0) {
        return bt_fail(why, BT_ERR_UNSUPPORTED, "%s: expected an even head size, found %" PRIu32, keys->source->path,
                       config->head_dim);
    }
    if ((err = bt_keys_maybe_u32(keys, "attention.value_length", NULL, 1, 1024, &value_dim, why)) != BT_OK) {
        return err;
    }
    return value_dim == config->head_dim
               ? BT_OK
               : bt_fail(why, BT_ERR_UNSUPPORTED, "%s: expected values as wide as keys (%" PRIu32 "), found %" PRIu32,
                         keys->source->path, config->head_dim, value_dim);
}

// The embedding's rows are the vocabulary; a number in the settings must agree.
static bt_err
read_vocab(const bt_keys *keys, bt_model_config *out, bt_why *why)
{
    bool gguf = keys->source->gguf != NULL;
    bt_source_tensor embedding;
    uint32_t named = 0;
    bt_err err;

    if (!bt_source_find(keys->source, bt_embedding_name(gguf), &embedding)) {
        return bt_fail(why, BT_ERR_INVALID, "%s: '%s' is missing", keys->source->path, bt_embedding_name(gguf));
    }
    if ((err = bt_keys_maybe_u32(keys, "vocab_size", "vocab_size", 1, 1 << 22, &named, why)) != BT_OK) {
        return err;
    }
    if (embedding.rows == 0 || embedding.rows > 1 << 22 || (named != 0 && embedding.rows != named)) {
        return bt_fail(why, BT_ERR_INVALID, "%s: '%s': expected %" PRIu32 " rows, found %" PRIu64, keys->source->path,
                       bt_embedding_name(gguf), named, embedding.rows);
    }
    out->vocab = (uint32_t)embedding.rows;
    return BT_OK;
}

static void
take_name(const bt_keys *keys, bt_model_config *out)
{
    const char *slash = strrchr(keys->source->path, '/');
    bt_str name = bt_str_of(slash != NULL && slash[1] != 0 ? slash + 1 : keys->source->path);
    char shown[72];

    if (keys->source->gguf != NULL) {
        (void)bt_gguf_get_str(keys->source->gguf, "general.name", &name);
    }
    snprintf(out->name, sizeof out->name, "%s", bt_printable(name, shown));
}

// An id that ends or begins; config.json may list several ends, of which the tokenizer knows more than we do here.
static void
read_ends(const bt_keys *keys, bt_model_config *out)
{
    uint32_t id;

    out->bos = out->eos = -1;
    if (keys->source->gguf != NULL) {
        if (bt_gguf_get_u32(keys->source->gguf, "tokenizer.ggml.bos_token_id", &id) && id < out->vocab) {
            out->bos = (int32_t)id;
        }
        if (bt_gguf_get_u32(keys->source->gguf, "tokenizer.ggml.eos_token_id", &id) && id < out->vocab) {
            out->eos = (int32_t)id;
        }
        return;
    }
    for (int which = 0; which < 2; which++) {
        bt_json_at at = bt_json_get(&keys->root, which == 0 ? "bos_token_id" : "eos_token_id");
        bt_json_at first = bt_json_item(&at, 0);
        int64_t found = -1;

        (void)bt_json_as_int(bt_json_type_of(&at) == BT_JSON_ARRAY ? &first : &at, 0, out->vocab - 1, &found, NULL);
        *(which == 0 ? &out->bos : &out->eos) = (int32_t)found;
    }
}

static bt_err
check_activation(const bt_keys *keys, const bt_arch *arch, bt_why *why)
{
    bool gelu = arch->activation == BT_ACT_GELU_TANH;
    bt_str name = bt_str_of(gelu ? "gelu_pytorch_tanh" : "silu");
    const char *key = gelu ? "hidden_activation" : "hidden_act";
    char shown[72];
    bt_err err = bt_keys_maybe_text(keys, NULL, key, &name, why);

    if (err != BT_OK || bt_str_is(name, gelu ? "gelu_pytorch_tanh" : "silu")) {
        return err;
    }
    return bt_fail(why, BT_ERR_UNSUPPORTED, "%s/config.json: %s: expected %s, found '%s'", keys->source->path, key,
                   gelu ? "gelu_pytorch_tanh" : "silu", bt_printable(name, shown));
}

static bt_err
read_rope_dims(const bt_keys *keys, bt_model_config *out, bt_why *why)
{
    float part = 1;
    bt_err err;

    out->rope_dims = out->head_dim;
    if ((err = bt_keys_maybe_u32(keys, "rope.dimension_count", NULL, 1, 1024, &out->rope_dims, why)) != BT_OK ||
        (err = bt_keys_maybe_f32(keys, NULL, "partial_rotary_factor", 1e-3f, 1, &part, why)) != BT_OK ||
        (err = bt_keys_maybe_f32(keys, NULL, "rope_parameters.partial_rotary_factor", 1e-3f, 1, &part, why)) != BT_OK) {
        return err;
    }
    if (keys->source->gguf == NULL) {
        out->rope_dims = (uint32_t)((float)out->head_dim * part);
    }
    if (out->rope_dims == 0 || out->rope_dims % 2 != 0 || out->rope_dims > out->head_dim) {
        return bt_fail(why, BT_ERR_INVALID,
                       "%s: expected an even number of rope dimensions up to %" PRIu32 ", found %" PRIu32,
                       keys->source->path, out->head_dim, out->rope_dims);
    }
    return BT_OK;
}

// GGUF files carry Llama 3's scaling as one divisor a pair.
static bt_err
read_divisors(const bt_keys *keys, uint32_t dims, bt_arena *arena, float **out, bt_why *why)
{
    bt_source_tensor tensor;

    *out = NULL;
    if (keys->source->gguf == NULL || !bt_source_find(keys->source, "rope_freqs.weight", &tensor)) {
        return BT_OK;
    }
    if (tensor.type != BT_GGML_F32 || tensor.rows != 1 || tensor.cols != dims / 2) {
        return bt_fail(why, BT_ERR_INVALID,
                       "%s: 'rope_freqs.weight': expected %" PRIu32 " numbers of F32, found %" PRIu64 " of %.*s",
                       keys->source->path, dims / 2, tensor.cols, (int)tensor.type_name.len, tensor.type_name.data);
    }
    if ((*out = bt_arena_alloc(arena, tensor.bytes)) == NULL) {
        return bt_fail(why, BT_ERR_NO_MEMORY, "%s: out of memory", keys->source->path);
    }
    memcpy(*out, tensor.data, tensor.bytes);
    for (uint32_t i = 0; i < dims / 2; i++) {
        if (!((*out)[i] > 0)) {
            return bt_fail(why, BT_ERR_INVALID, "%s: 'rope_freqs.weight': expected numbers above 0, found %g",
                           keys->source->path, (double)(*out)[i]);
        }
    }
    return BT_OK;
}

static bt_err
read_ropes(const bt_keys *keys, bt_arena *arena, bt_model_config *out, bt_why *why)
{
    float *divisors;
    bt_err err;

    if ((err = read_rope_dims(keys, out, why)) != BT_OK ||
        (err = read_divisors(keys, out->rope_dims, arena, &divisors, why)) != BT_OK) {
        return err;
    }
    for (int local = 0; local < 2; local++) {
        bt_rope_settings settings;

        if ((err = bt_rope_read(keys, out->context, local != 0, &settings, why)) != BT_OK) {
            return err;
        }
        if ((out->ropes[local].inv_freq = bt_arena_alloc(arena, out->rope_dims / 2 * sizeof(float))) == NULL) {
            return bt_fail(why, BT_ERR_NO_MEMORY, "%s: out of memory", keys->source->path);
        }
        bt_rope_build(&settings, out->rope_dims, local == 0 ? divisors : NULL, &out->ropes[local]);
    }
    return BT_OK;
}

bt_err
bt_model_config_read(const bt_keys *keys, const bt_arch *arch, bt_arena *arena, bt_model_config *out, bt_why *why)
{
    bt_err err;

    *out = (bt_model_config){.embed_scale = 1, .residual_scale = 1, .logit_scale = 1, .activation = arch->activation};
    snprintf(out->architecture, sizeof out->architecture, "%s", arch->name);
    out->qk_norm_whole = arch->qk_norm == BT_QK_NORM_WHOLE;
    if ((err = read_sizes(keys, out, why)) != BT_OK || (err = check_sizes(keys, out, why)) != BT_OK ||
        (err = read_vocab(keys, out, why)) != BT_OK || (err = check_activation(keys, arch, why)) != BT_OK ||
        (err = read_ropes(keys, arena, out, why)) != BT_OK) {
        return err;
    }
    if ((out->layer = bt_arena_alloc(arena, out->layers * sizeof *out->layer)) == NULL) {
        return bt_fail(why, BT_ERR_NO_MEMORY, "%s: out of memory", keys->source->path);
    }
    out->attention_scale = 1 / sqrtf((float)out->head_dim);
    take_name(keys, out);
    read_ends(keys, out);
    return arch->configure != NULL ? arch->configure(keys, out, why) : BT_OK;
}
