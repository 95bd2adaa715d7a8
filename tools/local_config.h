// The settings of `baton local`, and their table.
#pragma once

#include "common/config/config.h"

typedef struct {
    char model[1024], listen[128], model_name[128], auth_file[1024];
    uint32_t threads, weights, isa, log_level;
    uint32_t chunk_tokens, max_sequences, context;
    uint32_t kv_format, kv_blocks, kv_block_tokens;
    size_t memory;
    double prefill_share;
    uint32_t connections, connections_each, calls, choices, queue, text_workers;
    size_t header_bytes, body_bytes, body_bytes_total, out_bytes;
    bt_time header_time, body_time, idle_time, stall_time, request_time, drain_time;
    bt_text_list keys;
} bt_local_config;

extern const bt_setting bt_local_settings[];

// The words of weights, cpu.isa, kv.format and log.level, in the order of their indices.
extern const char *const bt_local_isas[];

// Adds the keys of auth.file, one a line (# begins a comment), to auth.keys.
bt_err bt_local_read_keys(bt_local_config *config, bt_why *why);
