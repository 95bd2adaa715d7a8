// The heads of both containers: settings and the list of tensors.
#include "common/json/write.h"
#include "common/model/gguf.h"
#include "tools/synth/model.h"

#include <stdio.h>
#include <string.h>

// ---- GGUF ----

static void
put_u32(bt_buf *out, uint32_t value)
{
    bt_buf_append(out, &value, 4);
}

static void
put_u64(bt_buf *out, uint64_t value)
{
    bt_buf_append(out, &value, 8);
}

static void
put_text(bt_buf *out, const char *text)
{
    put_u64(out, strlen(text));
    bt_buf_append_text(out, text);
}

static void
key_u32(bt_buf *out, const char *key, uint32_t value)
{
    put_text(out, key);
    put_u32(out, BT_GGUF_U32);
    put_u32(out, value);
}

static void
key_f32(bt_buf *out, const char *key, float value)
{
    put_text(out, key);
    put_u32(out, BT_GGUF_F32);
    bt_buf_append(out, &value, 4);
}

static void
key_text(bt_buf *out, const char *key, const char *value)
{
    put_text(out, key);
    put_u32(out, BT_GGUF_STRING);
    put_text(out, value);
}

static void
key_array(bt_buf *out, const char *key, bt_gguf_type item_type, uint64_t count)
{
    put_text(out, key);
    put_u32(out, BT_GGUF_ARRAY);
    put_u32(out, item_type);
    put_u64(out, count);
}

#define FIRST_BYTE 3u // after <unk>, <s> and </s>
#define FIRST_REST (FIRST_BYTE + 256u)

enum { TOKEN_NORMAL = 1, TOKEN_UNKNOWN = 2, TOKEN_CONTROL = 3, TOKEN_BYTE = 6 };

// SentencePiece of bytes. The other ids have names that no text is cut into.
static void
put_tokenizer(bt_buf *out, uint32_t vocab)
{
    static const char *const first[FIRST_BYTE] = {"<unk>", "<s>", "</s>"};
    static const float no_score = 0;
    char name[24];

    key_text(out, "tokenizer.ggml.model", "llama");
    key_array(out, "tokenizer.ggml.tokens", BT_GGUF_STRING, vocab);
    for (uint32_t id = 0; id < vocab; id++) {
        snprintf(name, sizeof name, id < FIRST_REST ? "<0x%02X>" : "[%u]",
                 id < FIRST_REST ? (id - FIRST_BYTE) & 255 : id);
        put_text(out, id < FIRST_BYTE ? first[id] : name);
    }
    key_array(out, "tokenizer.ggml.scores", BT_GGUF_F32, vocab);
    for (uint32_t id = 0; id < vocab; id++) {
        bt_buf_append(out, &no_score, 4);
    }
    key_array(out, "tokenizer.ggml.token_type", BT_GGUF_I32, vocab);
    for (uint32_t id = 0; id < vocab; id++) {
        put_u32(out, id == 0           ? TOKEN_UNKNOWN
                     : id < FIRST_BYTE ? TOKEN_CONTROL
                     : id < FIRST_REST ? TOKEN_BYTE
                                       : TOKEN_NORMAL);
    }
    key_u32(out, "tokenizer.ggml.bos_token_id", 1);
    key_u32(out, "tokenizer.ggml.eos_token_id", 2);
    key_u32(out, "tokenizer.ggml.unknown_token_id", 0);
    key_text(out, "tokenizer.chat_template",
             "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}");
}

static uint32_t
put_metadata(const bt_synth_model *m, bt_buf *out)
{
    const bt_synth_shape *s = m->options.shape;
    const struct {
        const char *key;
        uint32_t value;
    } numbers[] = {{"block_count", m->layers},
                   {"context_length", s->context},
                   {"embedding_length", s->hidden},
                   {"feed_forward_length", s->ffn},
                   {"attention.head_count", s->heads},
                   {"attention.head_count_kv", s->kv_heads},
                   {"attention.key_length", s->head_dim},
                   {"attention.value_length", s->head_dim},
                   {"rope.dimension_count", s->head_dim},
                   {"vocab_size", s->vocab}};
    char key[80];

    key_text(out, "general.architecture", s->arch);
    key_text(out, "general.name", s->name);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        snprintf(key, sizeof key, "%s.%s", s->arch, numbers[i].key);
        key_u32(out, key, numbers[i].value);
    }
    snprintf(key, sizeof key, "%s.rope.freq_base", s->arch);
    key_f32(out, key, s->rope_base);
    snprintf(key, sizeof key, "%s.attention.layer_norm_rms_epsilon", s->arch);
    key_f32(out, key, 1e-5f);
    put_tokenizer(out, s->vocab);
    return 2 + sizeof numbers / sizeof *numbers + 2 + 8;
}

void
bt_synth_gguf_head(const bt_synth_model *m, bt_buf *out)
{
    size_t values_at = out->len + 16;
    uint64_t values;

    bt_buf_append_text(out, "GGUF");
    put_u32(out, 3);
    put_u64(out, m->count);
    put_u64(out, 0); // how many values: known when they are written
    values = put_metadata(m, out);
    if (!out->failed) {
        memcpy(out->data + values_at, &values, 8);
    }
    for (uint32_t i = 0; i < m->count; i++) {
        const bt_synth_tensor *t = &m->tensors[i];

        put_text(out, t->name);
        put_u32(out, t->rows != 0 ? 2 : 1);
        put_u64(out, t->cols);
        if (t->rows != 0) {
            put_u64(out, t->rows);
        }
        put_u32(out, t->type);
        put_u64(out, t->offset);
    }
    while (out->len % 32 != 0 && !out->failed) {
        bt_buf_append_char(out, 0);
    }
}

// ---- safetensors ----

static const char *
dtype_of(uint32_t type)
{
    return type == BT_GGML_F32 ? "F32" : type == BT_GGML_F16 ? "F16" : "BF16";
}

void
bt_synth_safetensors_head(const bt_synth_model *m, bt_buf *out)
{
    uint64_t bytes;

    put_u64(out, 0);
    bt_buf_append_char(out, '{');
    for (uint32_t i = 0; i < m->count; i++) {
        const bt_synth_tensor *t = &m->tensors[i];
        char rows[16] = "";

        if (t->rows != 0) {
            snprintf(rows, sizeof rows, "%u,", t->rows);
        }
        bt_buf_printf(out, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%s%u],\"data_offsets\":[%llu,%llu]}",
                      i != 0 ? "," : "", t->name, dtype_of(t->type), rows, t->cols, (unsigned long long)t->offset,
                      (unsigned long long)(t->offset + t->bytes));
    }
    bt_buf_append_char(out, '}');
    while (out->len % 8 != 0 && !out->failed) {
        bt_buf_append_char(out, ' ');
    }
    bytes = out->len - 8;
    if (!out->failed) {
        memcpy(out->data, &bytes, 8);
    }
}

void
bt_synth_config(const bt_synth_model *m, bt_buf *out)
{
    const bt_synth_shape *s = m->options.shape;
    bt_json_writer w;

    bt_json_write(&w, out);
    bt_json_begin_object(&w, NULL);
    bt_json_put_text(&w, "model_type", bt_str_of(s->arch));
    bt_json_put_text(&w, "torch_dtype",
                     bt_str_of(m->options.type == BT_GGML_F32   ? "float32"
                               : m->options.type == BT_GGML_F16 ? "float16"
                                                                : "bfloat16"));
    bt_json_put_int(&w, "num_hidden_layers", m->layers);
    bt_json_put_int(&w, "hidden_size", s->hidden);
    bt_json_put_int(&w, "intermediate_size", s->ffn);
    bt_json_put_int(&w, "num_attention_heads", s->heads);
    bt_json_put_int(&w, "num_key_value_heads", s->kv_heads);
    bt_json_put_int(&w, "head_dim", s->head_dim);
    bt_json_put_int(&w, "vocab_size", s->vocab);
    bt_json_put_int(&w, "max_position_embeddings", s->context);
    bt_json_put_real(&w, "rope_theta", (double)s->rope_base);
    bt_json_put_real(&w, "rms_norm_eps", 1e-5);
    bt_json_put_text(&w, "hidden_act", bt_str_of("silu"));
    bt_json_put_bool(&w, "tie_word_embeddings", s->tied);
    bt_json_end(&w);
    bt_buf_append_char(out, '\n');
}
