#include "common/model/plan.h"

#include "common/model/file.h"
#include "common/model/names.h"

#include <inttypes.h>
#include <stdio.h>

// What a file and a model have to do with each other while a plan is made.
typedef struct {
    bt_plan *plan;
    bt_model *model;
    bool gguf;
    bt_why *why;
} planner;

static bt_err
out_of_memory(const planner *p)
{
    return bt_fail(p->why, BT_ERR_NO_MEMORY, "%s: out of memory", p->plan->source->path);
}

static bool
is_readable(uint32_t type)
{
    return type < BT_GGML_TYPE_COUNT && bt_ggml_readable(type);
}

static bt_err
require(const planner *p, const char *name, bt_source_tensor *out)
{
    if (!bt_source_find(p->plan->source, name, out)) {
        return bt_fail(p->why, BT_ERR_INVALID, "%s: '%s' is missing", p->plan->source->path, name);
    }
    if (!is_readable(out->type)) {
        return bt_fail(p->why, BT_ERR_UNSUPPORTED,
                       "%s: '%s': expected F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K to Q6_K, IQ4_NL or "
                       "IQ4_XS, found %.*s",
                       p->plan->source->path, name, (int)out->type_name.len, out->type_name.data);
    }
    return BT_OK;
}

static bt_err
wrong_shape(const planner *p, const bt_source_tensor *tensor, uint64_t rows, uint64_t cols)
{
    char name[72];

    return bt_fail(p->why, BT_ERR_INVALID,
                   "%s: '%s': expected %" PRIu64 " rows of %" PRIu64 ", found %" PRIu64 " of %" PRIu64,
                   p->plan->source->path, bt_printable(tensor->name, name), rows, cols, tensor->rows, tensor->cols);
}

static void
add_weight(planner *p, const bt_weight_job *job, uint32_t rows, uint32_t cols)
{
    job->weight->rows = rows;
    job->weight->cols = cols;
    p->plan->weights[p->plan->weight_count++] = *job;
}

// The rotary layout of a part's rows: only Q and K, and only where the file interleaves.
static bool
is_interleaved(const planner *p, bt_part part)
{
    return p->gguf && p->plan->arch->gguf_interleaved && (part == BT_PART_Q || part == BT_PART_K);
}

static bt_err
plan_vector(planner *p, const char *name, uint32_t count, bool norm, float **out)
{
    bt_vector_job job = {.out = out, .count = count};
    bt_err err = require(p, name, &job.tensor);

    if (err != BT_OK) {
        return err;
    }
    if (job.tensor.rows != 1 || job.tensor.cols != count) {
        return wrong_shape(p, &job.tensor, 1, count);
    }
    job.add = norm && !p->gguf && p->plan->arch->hf_norm_plus_one ? 1 : 0;
    p->plan->vectors[p->plan->vector_count++] = job;
    return BT_OK;
}

// A bias, if it is there or must be.
static bt_err
plan_bias(planner *p, bt_part part, uint32_t layer, uint32_t rows, float **out)
{
    bool required = p->plan->arch->qkv_bias && part <= BT_PART_V;
    bt_tensor_name name;
    bt_source_tensor found;
    bt_err err;

    bt_part_name(p->plan->arch, p->gguf, part, layer, "bias", name);
    if (!required && !bt_source_find(p->plan->source, name, &found)) {
        return BT_OK;
    }
    if ((err = plan_vector(p, name, rows, false, out)) == BT_OK && is_interleaved(p, part)) {
        bt_vector_job *job = &p->plan->vectors[p->plan->vector_count - 1];

        job->head_dim = p->model->config.head_dim;
        job->rope_dims = p->model->config.rope_dims;
    }
    return err;
}

static bt_err
plan_weight(planner *p, bt_part part, uint32_t layer, uint32_t rows, uint32_t cols, uint32_t call, bt_weight *weight)
{
    bt_weight_job job = {.weight = weight, .call = call};
    bt_tensor_name name;
    bt_err err;

    err = require(p, bt_part_name(p->plan->arch, p->gguf, part, layer, "weight", name), &job.tensor);
    if (err != BT_OK) {
        return err;
    }
    if (job.tensor.rows != rows || job.tensor.cols != cols) {
        return wrong_shape(p, &job.tensor, rows, cols);
    }
    if (is_interleaved(p, part)) {
        job.head_dim = p->model->config.head_dim;
        job.rope_dims = p->model->config.rope_dims;
    }
    add_weight(p, &job, rows, cols);
    return BT_OK;
}

// Several weights that are rows of one tensor.
static bt_err
plan_fused(planner *p, bt_part part, uint32_t layer, uint32_t cols, uint32_t call, bt_weight *const weights[],
           const uint32_t rows[], uint32_t count)
{
    bt_weight_job job = {.call = call};
    bt_tensor_name name;
    uint32_t total = 0;
    bt_err err;

    err = require(p, bt_part_name(p->plan->arch, p->gguf, part, layer, "weight", name), &job.tensor);
    if (err != BT_OK) {
        return err;
    }
    for (uint32_t i = 0; i < count; i++) {
        total += rows[i];
    }
    if (job.tensor.rows != total || job.tensor.cols != cols) {
        return wrong_shape(p, &job.tensor, total, cols);
    }
    for (uint32_t i = 0; i < count; i++) {
        job.weight = weights[i];
        add_weight(p, &job, rows[i], cols);
        job.first_row += rows[i];
    }
    return BT_OK;
}

static bt_err
plan_attention(planner *p, uint32_t index)
{
    const bt_model_config *config = &p->model->config;
    uint32_t width = config->heads * config->head_dim, kv_width = config->kv_heads * config->head_dim;
    bt_layer *layer = &p->model->layers[index];
    bt_weight *const weights[] = {&layer->q, &layer->k, &layer->v};
    float **const biases[] = {&layer->q_bias, &layer->k_bias, &layer->v_bias};
    const uint32_t rows[] = {width, kv_width, kv_width};
    uint32_t call = 2 * index + 1;
    bt_err err = BT_OK;

    if (p->plan->arch->fused) {
        err = plan_fused(p, BT_PART_QKV, index, config->hidden, call, weights, rows, 3);
    }
    for (uint32_t i = 0; i < 3 && err == BT_OK && !p->plan->arch->fused; i++) {
        bt_part part = (bt_part)(BT_PART_Q + i);

        if ((err = plan_weight(p, part, index, rows[i], config->hidden, call, weights[i])) == BT_OK) {
            err = plan_bias(p, part, index, rows[i], biases[i]);
        }
    }
    if (err != BT_OK || (err = plan_weight(p, BT_PART_O, index, config->hidden, width, 0, &layer->o)) != BT_OK) {
        return err;
    }
    return plan_bias(p, BT_PART_O, index, config->hidden, &layer->o_bias);
}

static bt_err
plan_ffn(planner *p, uint32_t index)
{
    const bt_model_config *config = &p->model->config;
    bt_layer *layer = &p->model->layers[index];
    bt_weight *const weights[] = {&layer->gate, &layer->up};
    const uint32_t rows[] = {config->ffn, config->ffn};
    uint32_t call = 2 * index + 2;
    bt_err err;

    if (p->plan->arch->fused) {
        err = plan_fused(p, BT_PART_GATE_UP, index, config->hidden, call, weights, rows, 2);
    } else if ((err = plan_weight(p, BT_PART_GATE, index, config->ffn, config->hidden, call, &layer->gate)) == BT_OK) {
        err = plan_weight(p, BT_PART_UP, index, config->ffn, config->hidden, call, &layer->up);
    }
    return err != BT_OK ? err : plan_weight(p, BT_PART_DOWN, index, config->hidden, config->ffn, 0, &layer->down);
}

static bt_err
plan_norm(planner *p, bt_part part, uint32_t layer, uint32_t count, float **out)
{
    bt_tensor_name name;

    return plan_vector(p, bt_part_name(p->plan->arch, p->gguf, part, layer, "weight", name), count, true, out);
}

static bt_err
plan_norms(planner *p, uint32_t index)
{
    const bt_model_config *config = &p->model->config;
    const bt_arch *arch = p->plan->arch;
    uint32_t q_count = config->head_dim * (config->qk_norm_whole ? config->heads : 1);
    uint32_t k_count = config->head_dim * (config->qk_norm_whole ? config->kv_heads : 1);
    bt_layer *layer = &p->model->layers[index];
    bt_err err = BT_OK;

    if (arch->pre_norms &&
        ((err = plan_norm(p, BT_PART_ATTENTION_NORM, index, config->hidden, &layer->attention_norm)) != BT_OK ||
         (err = plan_norm(p, BT_PART_FFN_NORM, index, config->hidden, &layer->ffn_norm)) != BT_OK)) {
        return err;
    }
    if (arch->post_norms &&
        ((err = plan_norm(p, BT_PART_ATTENTION_POST_NORM, index, config->hidden, &layer->attention_post_norm)) !=
             BT_OK ||
         (err = plan_norm(p, BT_PART_FFN_POST_NORM, index, config->hidden, &layer->ffn_post_norm)) != BT_OK)) {
        return err;
    }
    if (arch->qk_norm != BT_QK_NORM_NONE &&
        ((err = plan_norm(p, BT_PART_Q_NORM, index, q_count, &layer->q_norm)) != BT_OK ||
         (err = plan_norm(p, BT_PART_K_NORM, index, k_count, &layer->k_norm)) != BT_OK)) {
        return err;
    }
    return err;
}

// The output matrix is the embedding's own copy where the file has no other, or says that they are tied.
static bool
is_tied(const planner *p)
{
    bt_source_tensor found;
    bool tied = !bt_source_find(p->plan->source, bt_head_name(p->gguf), &found);

    if (!p->gguf && !tied) {
        bt_json_at root = bt_json_root(p->plan->source->config), at = bt_json_get(&root, "tie_word_embeddings");

        (void)bt_json_as_bool(&at, &tied, NULL);
    }
    return tied;
}

static bt_err
plan_ends(planner *p)
{
    const bt_model_config *config = &p->model->config;
    bt_weight_job embed = {.weight = &p->model->embed, .is_end = true};
    bt_weight_job head = {.weight = &p->model->head_own, .is_end = true};
    bt_err err;

    if ((err = require(p, bt_embedding_name(p->gguf), &embed.tensor)) != BT_OK) {
        return err;
    }
    if (embed.tensor.rows != config->vocab || embed.tensor.cols != config->hidden) {
        return wrong_shape(p, &embed.tensor, config->vocab, config->hidden);
    }
    add_weight(p, &embed, config->vocab, config->hidden);
    p->model->head = &p->model->embed;
    if (!is_tied(p)) {
        if ((err = require(p, bt_head_name(p->gguf), &head.tensor)) != BT_OK) {
            return err;
        }
        if (head.tensor.rows != config->vocab || head.tensor.cols != config->hidden) {
            return wrong_shape(p, &head.tensor, config->vocab, config->hidden);
        }
        p->plan->weights[p->plan->weight_count - 1].is_table = true;
        add_weight(p, &head, config->vocab, config->hidden);
        p->model->head = &p->model->head_own;
    }
    return plan_vector(p, bt_output_norm_name(p->gguf), config->hidden, true, &p->model->output_norm);
}

static bool
is_used(const bt_plan *plan, bt_str name)
{
    for (uint32_t i = 0; i < plan->weight_count; i++) {
        if (plan->weights[i].tensor.name.data == name.data) {
            return true;
        }
    }
    for (uint32_t i = 0; i < plan->vector_count; i++) {
        if (plan->vectors[i].tensor.name.data == name.data) {
            return true;
        }
    }
    return bt_name_is_ignored(name);
}

// A tensor that we do not know would change the answers if we left it out: the model is another than we think. Quadratic,
// over at most some thousand names.
static bt_err
check_all_used(const planner *p)
{
    char name[72];

    for (size_t i = 0; i < bt_source_count(p->plan->source); i++) {
        bt_source_tensor tensor = bt_source_at(p->plan->source, i);

        if (!is_used(p->plan, tensor.name)) {
            return bt_fail(p->why, BT_ERR_UNSUPPORTED, "%s: '%s' is no part of a %s model", p->plan->source->path,
                           bt_printable(tensor.name, name), p->plan->arch->name);
        }
    }
    return BT_OK;
}

bt_err
bt_plan_open(bt_plan *plan, const bt_source *source, const bt_arch *arch, bt_model *model, bt_why *why)
{
    planner p = {.plan = plan, .model = model, .gguf = source->gguf != NULL, .why = why};
    uint32_t layers = model->config.layers;
    bt_err err;

    *plan = (bt_plan){.source = source, .arch = arch, .weight_cap = 7 * layers + 2, .vector_cap = 10 * layers + 1};
    plan->weights = bt_alloc_array(plan->weight_cap, sizeof *plan->weights);
    plan->vectors = bt_alloc_array(plan->vector_cap, sizeof *plan->vectors);
    if (plan->weights == NULL || plan->vectors == NULL) {
        return out_of_memory(&p);
    }
    err = plan_ends(&p);
    for (uint32_t i = 0; i < layers && err == BT_OK; i++) {
        if ((err = plan_norms(&p, i)) == BT_OK && (err = plan_attention(&p, i)) == BT_OK) {
            err = plan_ffn(&p, i);
        }
    }
    return err == BT_OK ? check_all_used(&p) : err;
}

void
bt_plan_close(bt_plan *plan)
{
    bt_free(plan->weights);
    bt_free(plan->vectors);
    *plan = (bt_plan){0};
}

// Parts of a call lie next to each other: where those of the one that begins at `first` end.
static uint32_t
end_of_call(const bt_plan *plan, uint32_t first)
{
    uint32_t end = first + 1;

    while (end < plan->weight_count && plan->weights[first].call != 0 &&
           plan->weights[end].call == plan->weights[first].call) {
        end++;
    }
    return end;
}

// A linear call takes weights that are all integers or all floats. Files that mix them in one are rare: their integers
// become the floats they stand for.
static void
even_out(bt_plan *plan, uint32_t first, uint32_t end)
{
    bool floats = false;

    for (uint32_t i = first; i < end; i++) {
        floats = floats || plan->weights[i].weight->format.kind != BT_WEIGHT_INT;
    }
    for (uint32_t i = first; i < end && floats; i++) {
        if (plan->weights[i].weight->format.kind == BT_WEIGHT_INT) {
            plan->weights[i].weight->format = (bt_format){.kind = BT_WEIGHT_F32};
        }
    }
}

// Embedding and head are wide and sensitive: they stay at 8 bits a row.
static bt_format
made_format(const bt_weight_job *job, bt_load_weights mode, uint32_t w8_act_block)
{
    static const bt_format q4 = {.kind = BT_WEIGHT_INT, .bits = 4, .block = 128, .act_block = 128};
    bt_format w8 = {.kind = BT_WEIGHT_INT, .bits = 8, .block = BT_BLOCK_ROW, .act_block = (uint16_t)w8_act_block};

    return mode == BT_LOAD_Q4 && !job->is_end ? q4 : w8;
}

void
bt_plan_formats(bt_plan *plan, bt_load_weights mode, uint32_t w8_act_block)
{
    uint32_t end;

    for (uint32_t i = 0; i < plan->weight_count; i++) {
        const bt_weight_job *job = &plan->weights[i];

        job->weight->format = mode == BT_LOAD_EXACT  ? (bt_format){.kind = BT_WEIGHT_F32}
                              : mode == BT_LOAD_KEEP ? bt_ggml_format(job->tensor.type, NULL)
                                                     : made_format(job, mode, w8_act_block);
    }
    for (uint32_t i = 0; i < plan->weight_count; i = end) {
        end = end_of_call(plan, i);
        even_out(plan, i, end);
    }
}

bool
bt_plan_has_halves(const bt_plan *plan)
{
    uint32_t end;

    for (uint32_t i = 0; i < plan->weight_count; i = end) {
        uint8_t kind = plan->weights[i].weight->format.kind;
        bool halves = (kind == BT_WEIGHT_F16 || kind == BT_WEIGHT_BF16) && !plan->weights[i].is_table;

        end = end_of_call(plan, i);
        for (uint32_t j = i; j < end; j++) {
            halves = halves && plan->weights[j].weight->format.kind == kind;
        }
        if (halves) {
            return true;
        }
    }
    return false;
}

static const char *
loss_name(const bt_weight_job *job)
{
    static const char *const names[] = {"lossless", "scales rounded to fp16", "requantised to blocks of 32"};
    bt_ggml_loss loss;

    if (job->produce != NULL) {
        return "searched";
    }
    bt_ggml_format(job->tensor.type, &loss);
    return job->weight->format.kind == BT_WEIGHT_INT ? names[loss] : names[BT_GGML_LOSSLESS];
}

static bool
same_kind(const bt_weight_job *a, const bt_weight_job *b)
{
    return a->tensor.type == b->tensor.type && (a->produce == NULL) == (b->produce == NULL) &&
           bt_format_equal(a->weight->format, b->weight->format);
}

void
bt_plan_describe(const bt_plan *plan, char *out, size_t bytes)
{
    size_t used = 0;

    out[0] = 0;
    for (uint32_t i = 0; i < plan->weight_count && used < bytes; i++) {
        const bt_weight_job *job = &plan->weights[i];
        uint32_t count = 0, earlier = 0;
        char name[24];

        for (uint32_t j = 0; j < plan->weight_count; j++) {
            count += same_kind(job, &plan->weights[j]);
            earlier += j < i && same_kind(job, &plan->weights[j]);
        }
        if (earlier == 0) {
            used += (size_t)snprintf(out + used, bytes - used, "%s%.*s as %s \u00d7%" PRIu32 " (%s)",
                                     used != 0 ? ", " : "", (int)job->tensor.type_name.len, job->tensor.type_name.data,
                                     bt_format_name(job->weight->format, name), count, loss_name(job));
        }
    }
}

static uint64_t
source_row(uint32_t row, uint32_t head_dim, uint32_t rope_dims)
{
    uint32_t within, half = rope_dims / 2;

    if (half == 0 || (within = row % head_dim) >= rope_dims) {
        return row;
    }
    return row - within + 2 * (within % half) + within / half;
}

uint64_t
bt_weight_job_row(const bt_weight_job *job, uint32_t row)
{
    return job->first_row + source_row(row, job->head_dim, job->rope_dims);
}

void
bt_weight_job_floats(const bt_weight_job *job, uint32_t first, uint32_t rows, float *out, size_t stride)
{
    size_t row_bytes = bt_ggml_row_bytes(job->tensor.type, job->tensor.cols);

    for (uint32_t i = 0; i < rows; i++) {
        bt_ggml_dequantise(job->tensor.type, job->tensor.data + bt_weight_job_row(job, first + i) * row_bytes,
                           job->weight->cols, out + i * stride);
    }
}
