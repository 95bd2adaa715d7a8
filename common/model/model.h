// A model in memory: what it is (config), and its weights in the device's layout, ready for an engine.
//
// bt_model_open takes a GGUF file or a Hugging Face directory, finds the architecture (common/model/arch, one file each),
// checks every tensor's presence and shape, and packs the weights in parallel. Immutable after open except through
// common/model/calibrate; any thread may read.
#pragma once

#include "common/base/err.h"
#include "common/text/tokenizer.h"
#include "kernels/ops.h"

typedef enum { BT_ACT_SILU, BT_ACT_GELU_TANH } bt_activation;

// A RoPE table: inverse frequencies after any scaling (linear, llama3, YaRN, rope_freqs), and the factor on cos and sin.
typedef struct {
    float *inv_freq; // [rope_dims / 2]
    float factor;
} bt_rope_table;

typedef struct {
    uint32_t window; // 0 = attends to everything
    uint8_t rope;    // index into config.ropes; BT_ROPE_NONE = none
} bt_layer_config;
#define BT_ROPE_NONE 0xff

typedef struct {
    char architecture[32]; // "llama", "qwen2", "qwen3", "gemma3", …
    char name[96];
    uint32_t layers, hidden, heads, kv_heads, head_dim, ffn, vocab;
    uint32_t context; // positions the model was trained for
    float norm_eps;
    uint32_t rope_dims;
    bt_rope_table ropes[2]; // 0 global, 1 local
    bt_layer_config *layer; // [layers]
    bt_activation activation;
    bool qk_norm_whole;
    float embed_scale, residual_scale, logit_scale;          // 1 where the architecture has none
    float attention_scale, attention_softcap, logit_softcap; // softcaps 0 = none
    int32_t bos, eos;                                        // of config.json / metadata, -1 = none
} bt_model_config;

// Norms that an architecture lacks are NULL. Pre-norms act on the input of a block, post-norms on its output before the
// residual is added.
typedef struct {
    bt_weight q, k, v, o, gate, up, down;
    float *q_bias, *k_bias, *v_bias, *o_bias;
    float *attention_norm, *attention_post_norm, *ffn_norm, *ffn_post_norm; // [hidden]
    float *q_norm, *k_norm;                                                 // [head_dim], or whole width
    int8_t *k_shift;                                                        // K equaliser, NULL = none
} bt_layer;

typedef struct bt_model {
    bt_model_config config;
    bt_weight embed;       // [vocab, hidden]
    const bt_weight *head; // == &embed when tied
    bt_weight head_own;
    float *output_norm; // [hidden]
    bt_layer *layers;
    bt_tokenizer *tokenizer; // NULL when the source has none
    size_t weight_bytes;     // all of it, as planned and allocated
    uint64_t digest;         // of the source's tensor bytes sampled and the load options: names the weights in KV keys
    // Of the source and of what the numbers in the KV cache mean: models with the same family read each other's caches, whatever their
    // weights (w8 and q4 divide V's rows by the same factors; a file's own weights do not).
    uint64_t family;
    struct bt_model_memory *memory; // owner of everything above
} bt_model;

typedef enum {
    BT_LOAD_KEEP, // the file's formats, or the nearest that does not lose measurably
    BT_LOAD_W8,
    BT_LOAD_Q4,
    BT_LOAD_EXACT, // f32 of the file's own weights: slow, the yardstick
} bt_load_weights;

typedef struct {
    const char *path; // a .gguf file or a directory with config.json
    bt_load_weights weights;
    bool equalise;         // K equaliser, for INT8 KV
    uint32_t w8_act_block; // W8: columns that share an activation scale, 128 or 0 = one a token
    bool rough;            // W8 without smoothing: to measure what it brings
    bool hasty;            // W8 and Q4: no search for scales: quick and worse, to measure speed
    bool rounded;          // by bt_device_would_round, for the digest (common/model/digest.h): set by the engine
    const struct bt_calibration *calibration; // for W8 and Q4: set by the engine (common/engine/calibrate.h)
    void (*progress)(void *arg, size_t bytes_done, size_t bytes_total); // may be NULL; called from the opening thread
    void *progress_arg;
} bt_model_options;

// Errors are one line that names the file, the tensor or key, and what was expected.
bt_err bt_model_open(bt_model **out, const bt_model_options *options, bt_device *device, bt_why *why);
void bt_model_close(bt_model *model);
