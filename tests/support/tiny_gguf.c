#include "tests/support/tiny_gguf.h"

#include "common/base/buf.h"
#include "common/base/rng.h"
#include "common/tensor/dtype.h"
#include "tests/support/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { U32 = 4, FLOAT = 6, BOOL = 7, STRING = 8, ARRAY = 9, I32 = 5 };
enum { LAYERS = 2, HIDDEN = 64, HEADS = 4, KV_HEADS = 2, HEAD_DIM = 16, FFN = 128, FIRST_BYTE = 5, FIRST_PIECE = 261 };

static const char *const control[FIRST_BYTE] = {"<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"};
static const char *const pieces[BT_TINY_VOCAB - FIRST_PIECE] = {
    "\u2581",    "e",        "t",        "a",        "o",        "i",         "n",         "s",
    "h",         "r",        "d",        "l",        "u",        "in",        "th",        "er",
    "an",        "on",       "the",      "and",      "ing",      "\u2581the", "\u2581a",   "\u2581an",
    "\u2581and", "\u2581of", "\u2581to", "\u2581in", "\u2581on", "\u2581is",  "\u2581it",  "\u2581he",
    "\u2581sh",  "\u2581s",  "\u2581w",  "\u2581t",  "\u2581d",  "\u00e9",    "\u2581that"};

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
    put_u32(out, U32);
    put_u32(out, value);
}

static void
key_float(bt_buf *out, const char *key, float value)
{
    put_text(out, key);
    put_u32(out, FLOAT);
    bt_buf_append(out, &value, 4);
}

static void
key_bool(bt_buf *out, const char *key, bool value)
{
    put_text(out, key);
    put_u32(out, BOOL);
    bt_buf_append_char(out, value);
}

static void
key_text(bt_buf *out, const char *key, const char *value)
{
    put_text(out, key);
    put_u32(out, STRING);
    put_text(out, value);
}

static void
key_array(bt_buf *out, const char *key, uint32_t item_type)
{
    put_text(out, key);
    put_u32(out, ARRAY);
    put_u32(out, item_type);
    put_u64(out, BT_TINY_VOCAB);
}

static bool
is_byte(uint32_t id)
{
    return id >= FIRST_BYTE && id < FIRST_PIECE;
}

static void
put_tokenizer(bt_buf *out)
{
    char name[8];

    key_text(out, "tokenizer.ggml.model", "llama");
    key_array(out, "tokenizer.ggml.tokens", STRING);
    for (uint32_t id = 0; id < BT_TINY_VOCAB; id++) {
        snprintf(name, sizeof name, "<0x%02X>", (id - FIRST_BYTE) & 255);
        put_text(out, id < FIRST_BYTE ? control[id] : is_byte(id) ? name : pieces[id - FIRST_PIECE]);
    }
    key_array(out, "tokenizer.ggml.scores", FLOAT);
    for (uint32_t id = 0; id < BT_TINY_VOCAB; id++) {
        // Longer pieces are better merges.
        float score = id < FIRST_PIECE ? 0 : (float)strlen(pieces[id - FIRST_PIECE]) - 100 - (float)id / 1000;

        bt_buf_append(out, &score, 4);
    }
    key_array(out, "tokenizer.ggml.token_type", I32);
    for (uint32_t id = 0; id < BT_TINY_VOCAB; id++) {
        put_u32(out, id == 0 ? 2 : id < FIRST_BYTE ? 3 : is_byte(id) ? 6 : 1);
    }
    key_u32(out, "tokenizer.ggml.bos_token_id", 1);
    key_u32(out, "tokenizer.ggml.eos_token_id", 2);
    key_u32(out, "tokenizer.ggml.unknown_token_id", 0);
    key_bool(out, "tokenizer.ggml.add_bos_token", true);
    key_bool(out, "tokenizer.ggml.add_eos_token", false);
    key_bool(out, "tokenizer.ggml.add_space_prefix", true);
    key_text(out, "tokenizer.chat_template", BT_TINY_CHAT_TEMPLATE);
}

static void
put_metadata(bt_buf *out)
{
    key_text(out, "general.architecture", "llama");
    key_text(out, "general.name", "tiny");
    key_u32(out, "llama.block_count", LAYERS);
    key_u32(out, "llama.context_length", 512);
    key_u32(out, "llama.embedding_length", HIDDEN);
    key_u32(out, "llama.feed_forward_length", FFN);
    key_u32(out, "llama.attention.head_count", HEADS);
    key_u32(out, "llama.attention.head_count_kv", KV_HEADS);
    key_u32(out, "llama.rope.dimension_count", HEAD_DIM);
    key_float(out, "llama.rope.freq_base", 10000);
    key_float(out, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    put_tokenizer(out);
}

typedef struct {
    char name[40];
    uint32_t cols, rows; // rows 0 = a vector
} tensor;

enum { TENSORS = 2 + 9 * LAYERS };

static void
list_tensors(tensor out[TENSORS])
{
    static const tensor of_a_layer[9] = {{"attn_norm", HIDDEN, 0},
                                         {"attn_q", HIDDEN, HEADS * HEAD_DIM},
                                         {"attn_k", HIDDEN, KV_HEADS * HEAD_DIM},
                                         {"attn_v", HIDDEN, KV_HEADS * HEAD_DIM},
                                         {"attn_output", HEADS * HEAD_DIM, HIDDEN},
                                         {"ffn_norm", HIDDEN, 0},
                                         {"ffn_gate", HIDDEN, FFN},
                                         {"ffn_up", HIDDEN, FFN},
                                         {"ffn_down", FFN, HIDDEN}};

    out[0] = (tensor){"token_embd.weight", HIDDEN, BT_TINY_VOCAB};
    out[1] = (tensor){"output_norm.weight", HIDDEN, 0};
    for (int i = 0; i < 9 * LAYERS; i++) {
        out[2 + i] = of_a_layer[i % 9];
        snprintf(out[2 + i].name, sizeof out->name, "blk.%d.%s.weight", i / 9, of_a_layer[i % 9].name);
    }
}

static size_t
tensor_bytes(const tensor *of, uint32_t type)
{
    size_t row = of->rows == 0 || type == BT_TINY_F32          ? of->cols * 4
                 : type == BT_TINY_F16 || type == BT_TINY_BF16 ? of->cols * 2
                                                               : of->cols / 32 * (type == BT_TINY_Q4_0 ? 18 : 34);
    size_t bytes = row * (of->rows != 0 ? of->rows : 1);

    return (bytes + 31) / 32 * 32;
}

static void
put_q4_0(bt_buf *out, const float *values)
{
    float largest = 0, scale;
    uint8_t codes[32];
    uint16_t half;

    for (int i = 0; i < 32; i++) {
        largest = fabsf(values[i]) > fabsf(largest) ? values[i] : largest;
    }
    half = bt_f32_to_f16(largest / -8);
    scale = bt_f16_to_f32(half);
    for (int i = 0; i < 32; i++) {
        long code = scale != 0 ? lrintf(values[i] / scale) + 8 : 8;
        codes[i] = (uint8_t)(code > 15 ? 15 : code < 0 ? 0 : code);
    }
    bt_buf_append(out, &half, 2);
    for (int i = 0; i < 16; i++) {
        bt_buf_append_char(out, (char)(codes[i] | codes[i + 16] << 4));
    }
}

static void
put_q8_0(bt_buf *out, const float *values)
{
    float largest = 0, scale;
    uint16_t half;

    for (int i = 0; i < 32; i++) {
        largest = fmaxf(largest, fabsf(values[i]));
    }
    half = bt_f32_to_f16(largest / 127);
    scale = bt_f16_to_f32(half);
    bt_buf_append(out, &half, 2);
    for (int i = 0; i < 32; i++) {
        long code = scale != 0 ? lrintf(values[i] / scale) : 0;
        bt_buf_append_char(out, (char)(code > 127 ? 127 : code < -127 ? -127 : code));
    }
}

static void
put_halves(bt_buf *out, const float *values, uint32_t type)
{
    for (int i = 0; i < 32; i++) {
        uint16_t half = type == BT_TINY_F16 ? bt_f32_to_f16(values[i]) : bt_f32_to_bf16(values[i]);

        bt_buf_append(out, &half, 2);
    }
}

static void
put_row(bt_buf *out, const float *values, uint32_t cols, uint32_t type)
{
    for (uint32_t i = 0; i < cols; i += 32) {
        if (type == BT_TINY_Q4_0) {
            put_q4_0(out, values + i);
        } else if (type == BT_TINY_Q8_0) {
            put_q8_0(out, values + i);
        } else if (type != BT_TINY_F32) {
            put_halves(out, values + i, type);
        } else {
            bt_buf_append(out, values + i, 32 * sizeof *values);
        }
    }
}

// How loud a row of the tied embedding is: control tokens and bytes that are no printable ASCII stay quiet.
static float
loudness(uint32_t id)
{
    uint32_t byte = id - FIRST_BYTE;

    return id < FIRST_BYTE || (is_byte(id) && (byte < 0x20 || byte > 0x7e)) ? 0.05f : 1;
}

static void
put_tensor(bt_buf *out, const tensor *of, uint32_t type, bt_rng *rng)
{
    bool embedding = of->rows == BT_TINY_VOCAB;
    size_t end = out->len + tensor_bytes(of, type);
    float row[FFN], size = embedding ? 1 : sqrtf(3 / (float)of->cols) * 1.5f;

    for (uint32_t r = 0; r < (of->rows != 0 ? of->rows : 1); r++) {
        for (uint32_t c = 0; c < of->cols; c++) {
            float drawn = 2 * bt_rng_float(rng) - 1;
            row[c] = of->rows == 0 ? 1 + 0.2f * drawn : drawn * size * (embedding ? loudness(r) : 1);
        }
        put_row(out, row, of->cols, of->rows == 0 ? BT_TINY_F32 : type);
    }
    while (out->len < end) {
        bt_buf_append_char(out, 0);
    }
}

static void
put_infos(bt_buf *out, const tensor *tensors, uint32_t type)
{
    uint64_t offset = 0;

    for (int i = 0; i < TENSORS; i++) {
        put_text(out, tensors[i].name);
        put_u32(out, tensors[i].rows != 0 ? 2 : 1);
        put_u64(out, tensors[i].cols);
        if (tensors[i].rows != 0) {
            put_u64(out, tensors[i].rows);
        }
        put_u32(out, tensors[i].rows != 0 ? type : BT_TINY_F32);
        put_u64(out, offset);
        offset += tensor_bytes(&tensors[i], type);
    }
    while (out->len % 32 != 0) {
        bt_buf_append_char(out, 0);
    }
}

char *
bt_test_tiny_gguf(uint32_t type, size_t *bytes)
{
    tensor tensors[TENSORS];
    bt_rng rng = {260};
    bt_buf out;
    char *copy;

    bt_buf_init(&out, 4 << 20);
    list_tensors(tensors);
    bt_buf_append_text(&out, "GGUF");
    put_u32(&out, 3);
    put_u64(&out, TENSORS);
    put_u64(&out, 11 + 11);
    put_metadata(&out);
    put_infos(&out, tensors, type);
    for (int i = 0; i < TENSORS; i++) {
        put_tensor(&out, &tensors[i], type, &rng);
    }
    copy = malloc(out.len);
    ck_assert(!out.failed && copy != NULL);
    *bytes = out.len;
    memcpy(copy, out.data, out.len);
    bt_buf_fini(&out);
    return copy;
}

void
bt_test_write_tiny_gguf_as(const char *path, uint32_t type)
{
    size_t bytes;
    char *data = bt_test_tiny_gguf(type, &bytes);
    FILE *file = fopen(path, "wb");

    ck_assert_msg(file != NULL && fwrite(data, 1, bytes, file) == bytes && fclose(file) == 0, "%s: cannot be written",
                  path);
    free(data);
}

void
bt_test_write_tiny_gguf(const char *path)
{
    bt_test_write_tiny_gguf_as(path, BT_TINY_F32);
}
