#include "tools/synth/model.h"

#include "common/base/mem.h"

#include <stdio.h>
#include <string.h>

#define ALIGNMENT 32u // GGUF's default

// name, architecture, layers, hidden, heads, KV heads, head size, FFN, vocabulary, context, RoPE base, tied
static const bt_synth_shape shapes[] = {
    {"tiny", "llama", 2, 256, 8, 2, 32, 512, 1024, 4096, 10000, true},
    {"smollm2-135m", "llama", 30, 576, 9, 3, 64, 1536, 49152, 8192, 100000, true},
    {"llama-1b", "llama", 16, 2048, 32, 8, 64, 8192, 128256, 131072, 500000, true},
    {"llama-3b", "llama", 28, 3072, 24, 8, 128, 8192, 128256, 131072, 500000, true},
    {"llama-8b", "llama", 32, 4096, 32, 8, 128, 14336, 128256, 131072, 500000, false},
    {"llama-70b", "llama", 80, 8192, 64, 8, 128, 28672, 128256, 131072, 500000, false},
    {"qwen3-0.6b", "qwen3", 28, 1024, 16, 8, 128, 3072, 151936, 40960, 1000000, true},
    {"qwen3-8b", "qwen3", 36, 4096, 32, 8, 128, 12288, 151936, 40960, 1000000, false},
    {"qwen3-32b", "qwen3", 64, 5120, 64, 8, 128, 25600, 151936, 40960, 1000000, false},
};
#define SHAPES (sizeof shapes / sizeof *shapes)

const bt_synth_shape *
bt_synth_shape_find(const char *name)
{
    for (uint32_t i = 0; i < SHAPES; i++) {
        if (strcmp(shapes[i].name, name) == 0) {
            return &shapes[i];
        }
    }
    return NULL;
}

const bt_synth_shape *
bt_synth_shape_at(uint32_t index)
{
    return index < SHAPES ? &shapes[index] : NULL;
}

bt_err
bt_synth_type(const char *name, bool safetensors, uint32_t *type, bt_why *why)
{
    static const struct {
        const char *name;
        uint32_t type;
    } types[] = {{"f32", BT_GGML_F32},
                 {"f16", BT_GGML_F16},
                 {"bf16", BT_GGML_BF16},
                 {"q8_0", BT_GGML_Q8_0},
                 {"q4_0", BT_GGML_Q4_0}};

    for (size_t i = 0; i < (safetensors ? 3 : sizeof types / sizeof *types); i++) {
        if (strcmp(types[i].name, name) == 0) {
            *type = types[i].type;
            return BT_OK;
        }
    }
    return bt_fail(why, BT_ERR_INVALID, "--type: expected f32, f16%s, not '%s'",
                   safetensors ? " or bf16 in safetensors" : ", bf16, q8_0 or q4_0", name);
}

static void
add(bt_synth_model *m, const char *name, uint32_t type, uint32_t rows, uint32_t cols)
{
    bt_synth_tensor *t = &m->tensors[m->count++];
    uint32_t alignment = m->options.safetensors ? 1 : ALIGNMENT;

    *t = (bt_synth_tensor){.type = type, .rows = rows, .cols = cols, .offset = m->data_bytes};
    snprintf(t->name, sizeof t->name, "%s", name);
    t->bytes = (rows != 0 ? rows : 1) * (uint64_t)bt_ggml_row_bytes(type, cols);
    m->data_bytes += (t->bytes + alignment - 1) / alignment * alignment;
}

static void
add_part(bt_synth_model *m, const bt_arch *arch, bt_part part, uint32_t layer, uint32_t rows, uint32_t cols)
{
    bt_tensor_name name;

    bt_part_name(arch, !m->options.safetensors, part, layer, "weight", name);
    add(m, name, rows != 0 ? m->options.type : BT_GGML_F32, rows, cols);
}

static void
add_layer(bt_synth_model *m, const bt_arch *arch, uint32_t layer)
{
    const bt_synth_shape *s = m->options.shape;
    uint32_t q = s->heads * s->head_dim, kv = s->kv_heads * s->head_dim;

    add_part(m, arch, BT_PART_ATTENTION_NORM, layer, 0, s->hidden);
    add_part(m, arch, BT_PART_Q, layer, q, s->hidden);
    add_part(m, arch, BT_PART_K, layer, kv, s->hidden);
    add_part(m, arch, BT_PART_V, layer, kv, s->hidden);
    if (arch->qk_norm == BT_QK_NORM_HEAD) {
        add_part(m, arch, BT_PART_Q_NORM, layer, 0, s->head_dim);
        add_part(m, arch, BT_PART_K_NORM, layer, 0, s->head_dim);
    }
    add_part(m, arch, BT_PART_O, layer, s->hidden, q);
    add_part(m, arch, BT_PART_FFN_NORM, layer, 0, s->hidden);
    add_part(m, arch, BT_PART_GATE, layer, s->ffn, s->hidden);
    add_part(m, arch, BT_PART_UP, layer, s->ffn, s->hidden);
    add_part(m, arch, BT_PART_DOWN, layer, s->hidden, s->ffn);
}

bt_err
bt_synth_model_open(bt_synth_model *out, const bt_synth_options *options, bt_why *why)
{
    const bt_synth_shape *s = options->shape;
    const bt_arch *arch = bt_arch_find(s->arch, true);
    bool gguf = !options->safetensors;
    bt_synth_model m = {.options = *options, .layers = options->layers != 0 ? options->layers : s->layers};

    if ((m.tensors = bt_alloc_array(3 + 11 * (size_t)m.layers, sizeof *m.tensors)) == NULL) {
        return bt_fail(why, BT_ERR_NO_MEMORY, "out of memory");
    }
    add(&m, bt_embedding_name(gguf), options->type, s->vocab, s->hidden);
    for (uint32_t i = 0; i < m.layers; i++) {
        add_layer(&m, arch, i);
    }
    add(&m, bt_output_norm_name(gguf), BT_GGML_F32, 0, s->hidden);
    if (!s->tied) {
        add(&m, bt_head_name(gguf), options->type, s->vocab, s->hidden);
    }
    *out = m;
    return BT_OK;
}

void
bt_synth_model_close(bt_synth_model *model)
{
    bt_free(model->tensors);
    *model = (bt_synth_model){0};
}
