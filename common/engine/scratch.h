// Everything a step writes besides the KV cache: activations between operations, the flattened batch, the logits.
//
// Two pieces, each cut once at open: what operations read and write is the device's memory, the rest the program's. Rows of
// activations begin at 64-byte boundaries.
#pragma once

#include "common/model/model.h"

typedef struct {
    uint32_t tokens, rows, sequences; // what fits
    // Strides in floats.
    size_t hidden_stride, qkv_stride, attended_stride, ffn_stride, logit_stride;
    float *x;                 // [tokens, hidden] the residual stream
    float *qkv;               // [tokens, q | k | v]
    float *attended;          // [tokens, heads · head_dim]
    float *ffn;               // [tokens, ffn]
    float *block_out;         // [tokens, hidden] a block's output before its post-norm
    float *cos[2], *sin[2];   // [tokens, rope_dims / 2], one pair a RoPE table
    float *logits;            // [rows, vocab]
    float *host_logits;       // the same where the program can read it; == logits when the device is the host
    int32_t *ids;             // [tokens]
    uint32_t *positions;      // [tokens]
    bt_attention_span *spans; // [sequences]
    uint32_t *logit_rows;     // [rows] which token each row of logits comes from, rising
    uint32_t *row_items;      // [rows] and which item of the batch
    bt_draw *draws;           // [rows] how a device that draws is to draw them
    uint8_t *sampling;        // [threads, sampling_bytes]
    size_t sampling_bytes;

    bt_device *device;
    uint8_t *on_device, *pages;
    size_t device_bytes, host_bytes;
} bt_scratch;

typedef struct {
    uint32_t tokens, rows, sequences, threads;
    bool host; // the device is the host: logits lie where the program reads them
} bt_scratch_limits;

// Sizes only: device_bytes and host_bytes as they will be allocated; `device` may be NULL.
void bt_scratch_plan(bt_scratch *scratch, bt_device *device, const bt_model_config *config,
                     const bt_scratch_limits *limits);
// Allocates what was planned.
bt_err bt_scratch_open(bt_scratch *scratch, bt_device *device, const bt_model_config *config,
                       const bt_scratch_limits *limits);
void bt_scratch_close(bt_scratch *scratch); // accepts a zeroed one
