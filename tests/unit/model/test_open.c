#include "tests/support/test.h"
#include "tests/support/tiny_gguf.h"

#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/model/card.h"
#include "common/model/model.h"
#include "common/model/plan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bt_device *device;
static char folder[] = "/tmp/baton-test-XXXXXX";

static const char *
in_folder(const char *name)
{
    static char paths[4][128];
    static unsigned turn;
    char *path = paths[turn++ % 4];

    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static void
write_file(const char *path, const void *data, size_t bytes)
{
    FILE *file = fopen(path, "wb");

    ck_assert(file != NULL && fwrite(data, 1, bytes, file) == bytes && fclose(file) == 0);
}

static bt_err
try_open(bt_model **out, const char *path, bt_load_weights mode, bt_why *why)
{
    return bt_model_open(out, &(bt_model_options){.path = path, .weights = mode}, device, why);
}

static bt_model *
open_model(const char *path, bt_load_weights mode)
{
    bt_model *model = NULL;
    bt_why why = {""};

    ck_assert_msg(try_open(&model, path, mode, &why) == BT_OK, "%s", why.text);
    return model;
}

// A row of any weight matrix as numbers: an embedding looks rows up in every format.
static void
read_row(const bt_weight *weight, int32_t row, float *out)
{
    bt_embed_args args = {
        .table = weight, .ids = &row, .tokens = 1, .out = out, .out_stride = weight->cols, .scale = 1};

    ck_assert_int_eq(bt_device_ops(device)->embed(device, &args), BT_OK);
}

static void
assert_same_weight(const bt_weight *a, const bt_weight *b, const char *what)
{
    float x[512], y[512];

    ck_assert_msg(a->rows == b->rows && a->cols == b->cols && a->cols <= 512, "%s: shapes differ", what);
    for (uint32_t row = 0; row < a->rows; row++) {
        read_row(a, (int32_t)row, x);
        read_row(b, (int32_t)row, y);
        ck_assert_msg(memcmp(x, y, a->cols * sizeof *x) == 0, "%s: row %u differs", what, row);
    }
}

static void
assert_same_vector(const float *a, const float *b, uint32_t count, const char *what)
{
    ck_assert_msg((a == NULL) == (b == NULL), "%s: is in one only", what);
    ck_assert_msg(a == NULL || memcmp(a, b, count * sizeof *a) == 0, "%s: differs", what);
}

static void
assert_same_layers(const bt_model *a, const bt_model *b)
{
    uint32_t hidden = a->config.hidden, head_dim = a->config.head_dim;

    for (uint32_t i = 0; i < a->config.layers; i++) {
        const bt_layer *x = &a->layers[i], *y = &b->layers[i];

        assert_same_weight(&x->q, &y->q, "q");
        assert_same_weight(&x->k, &y->k, "k");
        assert_same_weight(&x->v, &y->v, "v");
        assert_same_weight(&x->o, &y->o, "o");
        assert_same_weight(&x->gate, &y->gate, "gate");
        assert_same_weight(&x->up, &y->up, "up");
        assert_same_weight(&x->down, &y->down, "down");
        assert_same_vector(x->attention_norm, y->attention_norm, hidden, "attention norm");
        assert_same_vector(x->ffn_norm, y->ffn_norm, hidden, "ffn norm");
        assert_same_vector(x->q_norm, y->q_norm, head_dim, "q norm");
        assert_same_vector(x->k_norm, y->k_norm, head_dim, "k norm");
    }
}

static void
assert_same_config(const bt_model_config *a, const bt_model_config *b, double rope_tolerance)
{
    ck_assert(a->layers == b->layers && a->hidden == b->hidden && a->heads == b->heads && a->kv_heads == b->kv_heads &&
              a->head_dim == b->head_dim && a->ffn == b->ffn && a->vocab == b->vocab && a->context == b->context);
    ck_assert(a->norm_eps == b->norm_eps && a->rope_dims == b->rope_dims && a->activation == b->activation &&
              a->qk_norm_whole == b->qk_norm_whole);
    ck_assert(a->embed_scale == b->embed_scale && a->residual_scale == b->residual_scale &&
              a->logit_scale == b->logit_scale && a->attention_scale == b->attention_scale &&
              a->attention_softcap == b->attention_softcap && a->logit_softcap == b->logit_softcap);
    for (uint32_t i = 0; i < a->layers; i++) {
        const bt_rope_table *x = &a->ropes[a->layer[i].rope], *y = &b->ropes[b->layer[i].rope];

        ck_assert_uint_eq(a->layer[i].window, b->layer[i].window);
        ck_assert(x->factor == y->factor);
        for (uint32_t pair = 0; pair < a->rope_dims / 2; pair++) {
            ck_assert_double_le(fabs((double)x->inv_freq[pair] / (double)y->inv_freq[pair] - 1), rope_tolerance);
        }
    }
}

START_TEST(the_tiny_model_opens_in_every_format)
{
    static const uint32_t types[] = {BT_TINY_F32, BT_TINY_Q4_0, BT_TINY_Q8_0};
    static const char *const names[] = {"f32", "q4_32", "q8_32"};

    for (size_t i = 0; i < 3; i++) {
        bt_model *model;
        char name[24];

        bt_test_write_tiny_gguf_as(in_folder("tiny.gguf"), types[i]);
        model = open_model(in_folder("tiny.gguf"), BT_LOAD_KEEP);
        ck_assert_str_eq(model->config.architecture, "llama");
        ck_assert_str_eq(model->config.name, "tiny");
        ck_assert(model->config.layers == 2 && model->config.kv_heads == 2 && model->config.vocab == BT_TINY_VOCAB);
        ck_assert(model->config.bos == 1 && model->config.eos == 2);
        ck_assert_ptr_eq(model->head, &model->embed);
        ck_assert_str_eq(bt_format_name(model->layers[1].down.format, name), names[i]);
        ck_assert_ptr_nonnull(model->tokenizer);
        ck_assert_uint_eq(bt_tokenizer_vocab_size(model->tokenizer), BT_TINY_VOCAB);
        bt_model_close(model);
    }
}
END_TEST

START_TEST(quantised_weights_keep_every_value_of_the_file)
{
    static const uint32_t types[] = {BT_TINY_Q4_0, BT_TINY_Q8_0};

    for (size_t i = 0; i < 2; i++) {
        bt_model *kept, *exact;

        bt_test_write_tiny_gguf_as(in_folder("tiny.gguf"), types[i]);
        kept = open_model(in_folder("tiny.gguf"), BT_LOAD_KEEP);
        exact = open_model(in_folder("tiny.gguf"), BT_LOAD_EXACT);
        ck_assert_int_eq(exact->layers[0].q.format.kind, BT_WEIGHT_F32);
        assert_same_weight(&kept->embed, &exact->embed, "embed");
        assert_same_layers(kept, exact);
        ck_assert_uint_ne(kept->digest, exact->digest);
        bt_model_close(kept);
        bt_model_close(exact);
    }
}
END_TEST

START_TEST(llamas_interleaved_rows_are_put_in_order)
{
    bt_gguf *gguf = NULL;
    const bt_gguf_tensor *tensor;
    bt_model *model;
    float row[64];

    bt_test_write_tiny_gguf(in_folder("tiny.gguf"));
    model = open_model(in_folder("tiny.gguf"), BT_LOAD_KEEP);
    ck_assert_int_eq(bt_gguf_open(&gguf, in_folder("tiny.gguf"), NULL), BT_OK);
    tensor = bt_gguf_find_tensor(gguf, "blk.0.attn_q.weight");
    for (int32_t i = 0; i < 64; i++) {
        int32_t head = i / 16, half = i % 16 / 8, pair = i % 8;

        read_row(&model->layers[0].q, i, row);
        ck_assert(memcmp(row, tensor->data + 256 * (16 * head + 2 * pair + half), sizeof row) == 0);
    }
    tensor = bt_gguf_find_tensor(gguf, "blk.0.attn_v.weight");
    read_row(&model->layers[0].v, 5, row);
    ck_assert(memcmp(row, tensor->data + 256 * 5, sizeof row) == 0);
    bt_gguf_close(gguf);
    bt_model_close(model);
}
END_TEST

START_TEST(any_failing_allocation_is_reported_and_leaks_nothing)
{
    long live, nth = 0;
    bt_err err;

    bt_test_write_tiny_gguf_as(in_folder("tiny.gguf"), BT_TINY_Q4_0);
    bt_model_close(open_model(in_folder("tiny.gguf"), BT_LOAD_KEEP)); // whatever is made once is made
    live = bt_mem_live();
    do {
        bt_model *model = NULL;
        bt_why why = {""};

        bt_mem_fail_nth(++nth);
        err = try_open(&model, in_folder("tiny.gguf"), BT_LOAD_KEEP, &why);
        bt_mem_fail_nth(0);
        ck_assert_msg(err == BT_OK || err == BT_ERR_NO_MEMORY, "allocation %ld: %s: %s", nth, bt_err_name(err),
                      why.text);
        ck_assert_msg(err == BT_OK || why.text[0] != 0, "allocation %ld: no words", nth);
        bt_model_close(model);
        ck_assert_msg(bt_mem_live() == live, "allocation %ld leaks %ld", nth, bt_mem_live() - live);
    } while (err != BT_OK);
    ck_assert_int_gt(nth, 20);
}
END_TEST

// The tiny file with `from` replaced by `to` (of equal length) at its `nth` occurrence from 0.
static void
write_patched(const char *from, const char *to, size_t len, int nth)
{
    size_t bytes;
    char *data = bt_test_tiny_gguf(BT_TINY_F32, &bytes), *at = data - 1;

    do {
        at = memmem(at + 1, bytes - (size_t)(at + 1 - data), from, len);
        ck_assert_ptr_nonnull(at);
    } while (nth-- > 0);
    memcpy(at, to, len);
    write_file(in_folder("bad.gguf"), data, bytes);
    free(data);
}

static void
assert_refused(bt_err expected, const char *words)
{
    bt_model *model = NULL;
    bt_why why = {""};
    bt_err err = try_open(&model, in_folder("bad.gguf"), BT_LOAD_KEEP, &why);

    ck_assert_msg(err == expected, "%s: %s", bt_err_name(err), why.text);
    ck_assert_ptr_null(model);
    ck_assert_msg(strstr(why.text, in_folder("bad.gguf")) == why.text, "no file's name: %s", why.text);
    ck_assert_msg(strstr(why.text, words) != NULL, "expected '%s' in: %s", words, why.text);
    ck_assert_ptr_null(strchr(why.text, '\n'));
}

START_TEST(what_is_wrong_with_a_file_is_said_in_one_line)
{
    char info[] = "blk.0.attn_q.weight\2\0\0\0\100\0\0\0\0\0\0\0\100\0\0\0\0\0\0\0\0\0\0\0";

    write_patched("llama", "lluma", 5, 0);
    assert_refused(BT_ERR_UNSUPPORTED, "architecture 'lluma' is not supported, expected one of llama, qwen2");
    write_patched("blk.1.ffn_up.", "blk.1.ffn_uq.", 13, 0);
    assert_refused(BT_ERR_INVALID, "'blk.1.ffn_up.weight' is missing");
    write_patched("llama.block_count\4\0\0\0\2", "llama.block_count\4\0\0\0\1", 22, 0);
    assert_refused(BT_ERR_UNSUPPORTED, "is no part of a llama model");
    write_patched("feed_forward_length\4\0\0\0\200", "feed_forward_length\4\0\0\0\100", 24, 0);
    assert_refused(BT_ERR_INVALID, "'blk.0.ffn_gate.weight': expected 64 rows of 64, found 128 of 64");
    write_patched("head_count_kv\4\0\0\0\2", "head_count_kv\4\0\0\0\3", 18, 0);
    assert_refused(BT_ERR_INVALID, "expected heads to be a multiple of KV heads, found 4 and 3");
    write_patched("llama.block_count\4", "llama.block_count\6", 18, 0);
    assert_refused(BT_ERR_INVALID, "llama.block_count: expected one number from 1 to 1024");
    write_patched("embedding_length", "embedding_lengtx", 16, 0);
    assert_refused(BT_ERR_INVALID, "llama.embedding_length: expected a number, found none");
    ck_assert_uint_eq(sizeof info - 1, 43);
    info[39] = 0;
    write_patched(info, "blk.0.attn_q.weight\2\0\0\0\100\0\0\0\0\0\0\0\100\0\0\0\0\0\0\0\32\0\0\0", 43, 0);
    assert_refused(BT_ERR_UNSUPPORTED, "'blk.0.attn_q.weight': expected F32, F16, BF16");
    assert_refused(BT_ERR_UNSUPPORTED, "found I32");
}
END_TEST

START_TEST(a_cut_file_is_refused)
{
    size_t bytes;
    char *data = bt_test_tiny_gguf(BT_TINY_F32, &bytes);

    write_file(in_folder("bad.gguf"), data, bytes - 1);
    assert_refused(BT_ERR_INVALID, "truncated: 'blk.1.ffn_down.weight' needs bytes ");
    write_file(in_folder("bad.gguf"), data, 0);
    assert_refused(BT_ERR_INVALID, "expected a GGUF file");
    free(data);
}
END_TEST

static void
count_progress(void *arg, size_t done, size_t total)
{
    size_t *last = arg;

    ck_assert(done >= last[0] && done <= total);
    last[0] = done;
    last[1] = total;
}

START_TEST(progress_rises_to_the_total)
{
    size_t last[2] = {0};
    bt_model *model = NULL;
    bt_model_options options = {.path = in_folder("tiny.gguf"), .progress = count_progress, .progress_arg = last};

    bt_test_write_tiny_gguf(options.path);
    ck_assert_int_eq(bt_model_open(&model, &options, device, NULL), BT_OK);
    ck_assert(last[1] > 0 && last[0] == last[1]);
    bt_model_close(model);
}
END_TEST

START_TEST(the_digest_names_weights_and_options)
{
    bt_model *first, *second;
    uint64_t digest;

    bt_test_write_tiny_gguf(in_folder("tiny.gguf"));
    first = open_model(in_folder("tiny.gguf"), BT_LOAD_KEEP);
    second = open_model(in_folder("tiny.gguf"), BT_LOAD_KEEP);
    digest = first->digest;
    ck_assert_uint_eq(digest, second->digest);
    bt_model_close(first);
    bt_model_close(second);
    bt_test_write_tiny_gguf_as(in_folder("tiny.gguf"), BT_TINY_Q8_0);
    first = open_model(in_folder("tiny.gguf"), BT_LOAD_KEEP);
    ck_assert_uint_ne(first->digest, digest);
    bt_model_close(first);
}
END_TEST

// On a GPU activations that meet 16-bit weights are rounded: another model. All else has the same bits there.
START_TEST(a_gpu_makes_another_model_of_16_bit_layers_alone)
{
    static const uint32_t types[] = {BT_TINY_F32, BT_TINY_F16, BT_TINY_BF16, BT_TINY_Q4_0, BT_TINY_Q8_0};
    static const bt_load_weights modes[] = {BT_LOAD_KEEP, BT_LOAD_W8, BT_LOAD_Q4, BT_LOAD_EXACT};

    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        const char *path = in_folder("tiny.gguf");

        bt_test_write_tiny_gguf_as(path, types[t]);
        for (size_t m = 0; m < sizeof modes / sizeof *modes; m++) {
            bt_model_options options[] = {{.weights = modes[m]}, {.weights = modes[m], .rounded = true}};
            bool halves = (types[t] == BT_TINY_F16 || types[t] == BT_TINY_BF16) && modes[m] == BT_LOAD_KEEP;
            bt_model_names names[2];

            ck_assert_int_eq(bt_model_foresee(path, options, names, 2, NULL), BT_OK);
            ck_assert_int_eq(names[0].digest != names[1].digest, halves);
            ck_assert_uint_eq(names[0].family, names[1].family); // caches mean the same
        }
    }
}
END_TEST

static const bt_format of_f32 = {.kind = BT_WEIGHT_F32}, of_f16 = {.kind = BT_WEIGHT_F16},
                       of_bf16 = {.kind = BT_WEIGHT_BF16}, of_w8 = {.kind = BT_WEIGHT_INT, .bits = 8};

START_TEST(layers_are_of_16_bits_where_a_whole_call_is)
{
    const struct {
        bt_format table, parts[2], alone;
        bool is_head, halves;
    } cases[] = {
        {of_w8, {of_w8, of_w8}, of_w8, true, false},    {of_f32, {of_f32, of_f32}, of_f32, true, false},
        {of_bf16, {of_w8, of_w8}, of_w8, false, false}, // an embedding is looked up
        {of_bf16, {of_w8, of_w8}, of_w8, true, true},   {of_w8, {of_bf16, of_bf16}, of_w8, true, true},
        {of_w8, {of_f16, of_f16}, of_w8, true, true},   {of_w8, {of_w8, of_w8}, of_f16, true, true},
        {of_w8, {of_f16, of_bf16}, of_w8, true, false}, // such a call has no kernel of its own
        {of_w8, {of_f32, of_bf16}, of_w8, true, false},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bt_weight weights[4] = {{.format = cases[i].table},
                                {.format = cases[i].parts[0]},
                                {.format = cases[i].parts[1]},
                                {.format = cases[i].alone}};
        bt_weight_job jobs[4] = {{.weight = &weights[0], .is_end = true, .is_table = !cases[i].is_head},
                                 {.weight = &weights[1], .call = 1},
                                 {.weight = &weights[2], .call = 1},
                                 {.weight = &weights[3], .call = 2}};
        bt_plan plan = {.weights = jobs, .weight_count = 4};

        ck_assert_msg(bt_plan_has_halves(&plan) == cases[i].halves, "case %zu", i);
    }
}
END_TEST

START_TEST(a_call_of_mixed_kinds_becomes_all_floats)
{
    bt_weight weights[3] = {{.rows = 64, .cols = 64}, {.rows = 64, .cols = 64}, {.rows = 64, .cols = 64}};
    bt_weight_job jobs[3] = {{.weight = &weights[0], .tensor.type = BT_GGML_Q8_0, .call = 1},
                             {.weight = &weights[1], .tensor.type = BT_GGML_F16, .call = 1},
                             {.weight = &weights[2], .tensor.type = BT_GGML_Q8_0, .call = 2}};
    bt_plan plan = {.weights = jobs, .weight_count = 3};

    bt_plan_formats(&plan, BT_LOAD_KEEP, 0);
    ck_assert_int_eq(weights[0].format.kind, BT_WEIGHT_F32);
    ck_assert_int_eq(weights[1].format.kind, BT_WEIGHT_F16);
    ck_assert_int_eq(weights[2].format.kind, BT_WEIGHT_INT);
}
END_TEST

START_TEST(a_file_and_a_folder_of_one_model_are_the_same_model)
{
    static const char *const models[] = {"llama-gqa-llama3rope-bf16", "qwen3-bf16"};

    if (bt_test_data() == NULL) {
        bt_test_skip("golden/tiny");
        return;
    }
    for (size_t i = 0; i < 2; i++) {
        bt_model *hf = open_model(bt_test_path("golden/tiny/%s", models[i]), BT_LOAD_EXACT);
        bt_model *gguf = open_model(bt_test_path("golden/tiny/%s/model-f32.gguf", models[i]), BT_LOAD_KEEP);

        assert_same_config(&hf->config, &gguf->config, 1e-6);
        assert_same_weight(&hf->embed, &gguf->embed, "embed");
        assert_same_layers(hf, gguf);
        assert_same_vector(hf->output_norm, gguf->output_norm, hf->config.hidden, "output norm");
        ck_assert_ptr_null(hf->tokenizer);
        ck_assert_ptr_null(gguf->tokenizer);
        bt_model_close(hf);
        bt_model_close(gguf);
    }
}
END_TEST

// The folder's files under another config.json.
static const char *
with_old_config(const char *model)
{
    char command[2048];

    snprintf(command, sizeof command,
             "rm -rf %s && mkdir %s && cp '%s'/model*.safetensors* %s && cp '%s'/config.v4.json %s/config.json",
             in_folder("old"), in_folder("old"), bt_test_path("golden/tiny/%s", model), in_folder("old"),
             bt_test_path("golden/tiny/%s", model), in_folder("old"));
    ck_assert_int_eq(system(command), 0);
    return in_folder("old");
}

START_TEST(both_styles_of_config_json_say_the_same)
{
    static const char *const models[] = {"llama-mha-f32",      "llama-gqa-llama3rope-bf16",
                                         "mistral-swa16-bf16", "qwen2-f16",
                                         "qwen3-bf16",         "gemma3-bf16",
                                         "gemma2-f32",         "phi3-f32",
                                         "olmo2-f32",          "granite-f32",
                                         "llama-2shard-bf16",  "llama-linear-f16",
                                         "llama-yarn-bf16"};

    if (bt_test_data() == NULL) {
        bt_test_skip("golden/tiny");
        return;
    }
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        bt_model *new = open_model(bt_test_path("golden/tiny/%s", models[i]), BT_LOAD_KEEP);
        bt_model *old = open_model(with_old_config(models[i]), BT_LOAD_KEEP);

        assert_same_config(&new->config, &old->config, 0);
        ck_assert_uint_eq(new->digest, old->digest);
        ck_assert(new->config.bos == 1 && new->config.eos == 2);
        bt_model_close(new);
        bt_model_close(old);
    }
}
END_TEST

START_TEST(architectures_have_their_own_settings)
{
    bt_model *model;

    if (bt_test_data() == NULL) {
        bt_test_skip("golden/tiny");
        return;
    }
    model = open_model(bt_test_path("golden/tiny/gemma3-bf16"), BT_LOAD_KEEP);
    ck_assert(model->config.layer[0].window == 12 && model->config.layer[1].window == 12 &&
              model->config.layer[2].window == 0);
    ck_assert(model->config.layer[0].rope == 1 && model->config.layer[2].rope == 0);
    ck_assert(model->config.embed_scale == 8 && model->config.attention_scale == 1 / sqrtf(24));
    ck_assert_ptr_nonnull(model->layers[0].attention_post_norm);
    bt_model_close(model);
    model = open_model(bt_test_path("golden/tiny/gemma2-f32"), BT_LOAD_KEEP);
    ck_assert(model->config.attention_softcap == 5 && model->config.logit_softcap == 6);
    ck_assert(model->config.layer[0].window == 16 && model->config.layer[1].window == 0);
    bt_model_close(model);
    model = open_model(bt_test_path("golden/tiny/granite-f32"), BT_LOAD_KEEP);
    ck_assert(model->config.embed_scale == 6 && model->config.logit_scale == 0.5f &&
              model->config.residual_scale == 0.6f);
    bt_model_close(model);
    model = open_model(bt_test_path("golden/tiny/qwen2-f16"), BT_LOAD_KEEP);
    ck_assert_ptr_nonnull(model->layers[0].q_bias);
    ck_assert_ptr_eq(model->head, &model->head_own);
    bt_model_close(model);
}
END_TEST

START_TEST(fused_rows_are_cut_apart)
{
    bt_safetensors *files = NULL;
    const bt_safetensor *tensor;
    bt_model *model;
    float row[64];

    if (bt_test_data() == NULL) {
        bt_test_skip("golden/tiny");
        return;
    }
    model = open_model(bt_test_path("golden/tiny/phi3-f32"), BT_LOAD_KEEP);
    ck_assert_int_eq(bt_safetensors_open(&files, bt_test_path("golden/tiny/phi3-f32"), NULL), BT_OK);
    tensor = bt_safetensors_find(files, "model.layers.1.self_attn.qkv_proj.weight");
    read_row(&model->layers[1].v, 3, row); // behind 64 rows of Q and 32 of K
    ck_assert(memcmp(row, tensor->data + 256 * 99, sizeof row) == 0);
    tensor = bt_safetensors_find(files, "model.layers.1.mlp.gate_up_proj.weight");
    read_row(&model->layers[1].up, 1, row);
    ck_assert(memcmp(row, tensor->data + 256 * 65, sizeof row) == 0);
    bt_safetensors_close(files);
    bt_model_close(model);
}
END_TEST

START_TEST(mixtures_of_experts_are_refused_by_name)
{
    bt_model *model = NULL;
    bt_why why;

    if (bt_test_data() == NULL) {
        bt_test_skip("golden/tiny");
        return;
    }
    ck_assert_int_eq(try_open(&model, bt_test_path("golden/tiny/mixtral-f32"), BT_LOAD_KEEP, &why), BT_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(why.text, "architecture 'mixtral' is not supported, expected one of llama, mistral"));
    ck_assert_int_eq(try_open(&model, bt_test_path("golden/tiny/qwen3moe-f32"), BT_LOAD_KEEP, &why),
                     BT_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(why.text, "architecture 'qwen3_moe' is not supported"));
}
END_TEST

START_TEST(every_quantised_story_model_keeps_its_values)
{
    static const char *const files[] = {"Q6_K", "Q5_K_M", "Q4_K_M", "IQ4_XS",
                                        "TQ2_0"}; // q8_0 q5_1 q5_0 iq4_nl q4_0 f16

    if (bt_test_data() == NULL) {
        bt_test_skip("models/stories260K");
        return;
    }
    for (size_t i = 0; i < 5; i++) {
        const char *path = bt_test_path("models/stories260K/gguf/stories260K-%s.gguf", files[i]);
        bt_model *kept = open_model(path, BT_LOAD_KEEP), *exact = open_model(path, BT_LOAD_EXACT);

        assert_same_weight(&kept->embed, &exact->embed, "embed");
        assert_same_layers(kept, exact);
        bt_model_close(kept);
        bt_model_close(exact);
    }
}
END_TEST

static void
begin(void)
{
    bt_device_limits limits = {.tokens = 1,
                               .cols = 512,
                               .rows = 512,
                               .heads = 8,
                               .kv_heads = 8,
                               .head_dim = 64,
                               .context = 16,
                               .block_tokens = 16};

    ck_assert_ptr_nonnull(mkdtemp(folder));
    ck_assert_int_eq(bt_device_open(&device, &(bt_device_options){.threads = 2, .isa = "ref"}, NULL), BT_OK);
    ck_assert_int_eq(bt_device_reserve(device, &limits, NULL), BT_OK);
}

static void
end(void)
{
    bt_device_close(device);
    bt_test_remove(folder);
}

int
main(void)
{
    Suite *suite = suite_create("open");
    TCase *tests = tcase_create("open");

    bt_log_set_level(BT_LOG_WARN);
    tcase_add_unchecked_fixture(tests, begin, end);
    tcase_set_timeout(tests, 120);
    tcase_add_test(tests, the_tiny_model_opens_in_every_format);
    tcase_add_test(tests, quantised_weights_keep_every_value_of_the_file);
    tcase_add_test(tests, llamas_interleaved_rows_are_put_in_order);
    tcase_add_test(tests, any_failing_allocation_is_reported_and_leaks_nothing);
    tcase_add_test(tests, what_is_wrong_with_a_file_is_said_in_one_line);
    tcase_add_test(tests, a_cut_file_is_refused);
    tcase_add_test(tests, progress_rises_to_the_total);
    tcase_add_test(tests, the_digest_names_weights_and_options);
    tcase_add_test(tests, a_gpu_makes_another_model_of_16_bit_layers_alone);
    tcase_add_test(tests, layers_are_of_16_bits_where_a_whole_call_is);
    tcase_add_test(tests, a_call_of_mixed_kinds_becomes_all_floats);
    tcase_add_test(tests, a_file_and_a_folder_of_one_model_are_the_same_model);
    tcase_add_test(tests, both_styles_of_config_json_say_the_same);
    tcase_add_test(tests, architectures_have_their_own_settings);
    tcase_add_test(tests, fused_rows_are_cut_apart);
    tcase_add_test(tests, mixtures_of_experts_are_refused_by_name);
    tcase_add_test(tests, every_quantised_story_model_keeps_its_values);
    suite_add_tcase(suite, tests);
    return bt_test_run(suite);
}
