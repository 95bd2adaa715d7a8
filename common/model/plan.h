// Which of a file's tensors becomes which part of a model, and in which format: everything that can be wrong with a file
// is found here, before the first weight is packed.
//
// The way of a weight: bt_plan_open finds and checks the tensors; bt_plan_formats chooses each one's format; pack.c makes
// rows of codes (or floats) and hands them to the device's packer. A quantiser joins in at the second step by setting a
// job's format and `produce`, and takes the file's own numbers from bt_weight_job_floats.
#pragma once

#include "common/model/config.h"

typedef struct bt_weight_job bt_weight_job;

// Rows of a weight in our order, which may differ from the file's: fused tensors are cut, interleaved rotary pairs taken
// apart.
struct bt_weight_job {
    bt_weight *weight; // rows, cols and format are set; data is pack.c's
    bt_source_tensor tensor;
    uint32_t first_row;           // of ours within the tensor
    uint32_t head_dim, rope_dims; // of interleaved rows; 0 where rows are in order
    bool is_end;                  // embedding or head
    bool is_table;                // rows are looked up and nothing else: an embedding that is not the head, too
    uint32_t call;                // jobs with the same number > 0 are parts of one linear call
    // Writes `rows` rows from `first` (a multiple of 64) as codes of weight->format: codes [rows, padded cols], scales and
    // minima [rows, blocks]. NULL = as bt_ggml_codes maps the file's type. Called from many threads at once.
    void (*produce)(const bt_weight_job *job, uint32_t first, uint32_t rows, uint8_t *codes, uint16_t *scales,
                    uint16_t *minima);
    void *produce_arg;
};

// A vector of f32: norms and biases.
typedef struct {
    float **out;
    bt_source_tensor tensor;
    uint32_t count;
    uint32_t head_dim, rope_dims;
    float add; // to each number
} bt_vector_job;

typedef struct {
    const bt_source *source;
    const bt_arch *arch;
    bt_weight_job *weights;
    bt_vector_job *vectors;
    uint32_t weight_count, weight_cap, vector_count, vector_cap;
} bt_plan;

// `model` has its config and layers; its weights and vectors are pointed to by the jobs. Missing tensors, wrong shapes,
// types we cannot read and tensors that belong to no part are errors. Sets model->head.
bt_err bt_plan_open(bt_plan *plan, const bt_source *source, const bt_arch *arch, bt_model *model, bt_why *why);
void bt_plan_close(bt_plan *plan); // accepts a zeroed one

// Sets every weight's format for `mode`; w8_act_block as in bt_model_options.
void bt_plan_formats(bt_plan *plan, bt_load_weights mode, uint32_t w8_act_block);
// One line for the log and for `inspect`: "Q4_1 as q4a_32 ×210 (lossless), Q8_0 as q8_32 ×1 (lossless)".
void bt_plan_describe(const bt_plan *plan, char *out, size_t bytes);

// Is there a linear call all of whose weights are F16, or all BF16? By the formats that were set.
bool bt_plan_has_halves(const bt_plan *plan);

// Row `row` of a job within its tensor.
uint64_t bt_weight_job_row(const bt_weight_job *job, uint32_t row);
// `rows` rows from `first`, dequantised: out [rows, cols], rows `stride` floats apart.
void bt_weight_job_floats(const bt_weight_job *job, uint32_t first, uint32_t rows, float *out, size_t stride);
