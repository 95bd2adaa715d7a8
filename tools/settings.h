// Settings that several programs share: a struct of values, and the rows of a table that fill it in. A program nests the struct in its
// own and names where:
//
//     static const bt_setting table[] = {BT_ENGINE_ROWS(offsetof(my_config, engine)), …, {0}};
#pragma once

#include "common/config/config.h"
#include "common/engine/engine.h"
#include "router/gateway.h"
#include "router/http.h"

#include <stddef.h>

extern const char *const bt_settings_weights[], *const bt_settings_isas[], *const bt_settings_activations[],
                                                                               *const bt_settings_kv_formats[],
                                                                                   *const bt_settings_log_levels[];

typedef struct {
    char device[16];
    uint32_t threads, weights, isa, activations; // indices: bt_load_weights, bt_settings_isas, bt_settings_activations
    uint32_t chunk_tokens, max_sequences, context;
    double prefill_share;
    size_t memory;
    uint32_t kv_format, kv_blocks, kv_block_tokens; // bt_kv_format
    bool hasty_weights;                             // bt_model_options.hasty
    // For tests of what happens on a GPU:
    bool kv_apart;        // bt_engine_options
    uint32_t break_after; // bt_device_options
} bt_engine_settings;

// Tables print top-level settings first, so these two stand apart.
#define BT_ENGINE_TOP_ROWS(at)                                                                                         \
    {"device",                                                                                                         \
     BT_SETTING_TEXT,                                                                                                  \
     (at) + offsetof(bt_engine_settings, device),                                                                      \
     16,                                                                                                               \
     "cpu",                                                                                                            \
     "What steps run on: cpu or cuda:N.",                                                                              \
     0,                                                                                                                \
     0,                                                                                                                \
     NULL},                                                                                                            \
        {"threads",                                                                                                    \
         BT_SETTING_COUNT,                                                                                             \
         (at) + offsetof(bt_engine_settings, threads),                                                                 \
         0,                                                                                                            \
         "0",                                                                                                          \
         "Threads of the engine; 0 = all cores.",                                                                      \
         0,                                                                                                            \
         1024,                                                                                                         \
         NULL},                                                                                                        \
    {                                                                                                                  \
        "weights", BT_SETTING_WORD, (at) + offsetof(bt_engine_settings, weights), 0, "keep",                           \
            "What the weights become while they are loaded.", 0, 0, bt_settings_weights                                \
    }

#define BT_ENGINE_ROWS(at)                                                                                             \
    {"cpu.isa",                                                                                                        \
     BT_SETTING_WORD,                                                                                                  \
     (at) + offsetof(bt_engine_settings, isa),                                                                         \
     0,                                                                                                                \
     "auto",                                                                                                           \
     "Which kernels; auto = the best that this machine has.",                                                          \
     0,                                                                                                                \
     0,                                                                                                                \
     bt_settings_isas},                                                                                                \
        {"cuda.activations",                                                                                           \
         BT_SETTING_WORD,                                                                                              \
         (at) + offsetof(bt_engine_settings, activations),                                                             \
         0,                                                                                                            \
         "auto",                                                                                                       \
         "What 16-bit weights meet on a GPU; auto = 16 bits by tensor cores, f32 = what a CPU gives, slowly.",         \
         0,                                                                                                            \
         0,                                                                                                            \
         bt_settings_activations},                                                                                     \
        {"engine.chunk_tokens",                                                                                        \
         BT_SETTING_COUNT,                                                                                             \
         (at) + offsetof(bt_engine_settings, chunk_tokens),                                                            \
         0,                                                                                                            \
         "512",                                                                                                        \
         "Tokens of one step, all sequences together.",                                                                \
         1,                                                                                                            \
         65536,                                                                                                        \
         NULL},                                                                                                        \
        {"engine.max_sequences",                                                                                       \
         BT_SETTING_COUNT,                                                                                             \
         (at) + offsetof(bt_engine_settings, max_sequences),                                                           \
         0,                                                                                                            \
         "16",                                                                                                         \
         "Sequences that are written at once.",                                                                        \
         1,                                                                                                            \
         256,                                                                                                          \
         NULL},                                                                                                        \
        {"engine.context",                                                                                             \
         BT_SETTING_COUNT,                                                                                             \
         (at) + offsetof(bt_engine_settings, context),                                                                 \
         0,                                                                                                            \
         "0",                                                                                                          \
         "Longest prompt and answer together; 0 = the model's.",                                                       \
         0,                                                                                                            \
         16777216,                                                                                                     \
         NULL},                                                                                                        \
        {"engine.prefill_share",                                                                                       \
         BT_SETTING_REAL,                                                                                              \
         (at) + offsetof(bt_engine_settings, prefill_share),                                                           \
         0,                                                                                                            \
         "0.5",                                                                                                        \
         "Share of a step that prompts may take while answers are written.",                                           \
         0.01,                                                                                                         \
         1,                                                                                                            \
         NULL},                                                                                                        \
        {"engine.memory",                                                                                              \
         BT_SETTING_BYTES,                                                                                             \
         (at) + offsetof(bt_engine_settings, memory),                                                                  \
         0,                                                                                                            \
         "0",                                                                                                          \
         "Weights, KV and scratch together; 0 = what is free.",                                                        \
         0,                                                                                                            \
         0,                                                                                                            \
         NULL},                                                                                                        \
        {"engine.hasty_weights",                                                                                       \
         BT_SETTING_BOOL,                                                                                              \
         (at) + offsetof(bt_engine_settings, hasty_weights),                                                           \
         0,                                                                                                            \
         "false",                                                                                                      \
         "For measuring speed: weights made at load get no search for their scales, quicker and worse.",               \
         0,                                                                                                            \
         0,                                                                                                            \
         NULL},                                                                                                        \
        {"engine.break_after",                                                                                         \
         BT_SETTING_COUNT,                                                                                             \
         (at) + offsetof(bt_engine_settings, break_after),                                                             \
         0,                                                                                                            \
         "0",                                                                                                          \
         "For tests: steps after which the CPU counts as broken; 0 = never.",                                          \
         0,                                                                                                            \
         0,                                                                                                            \
         NULL},                                                                                                        \
        {"kv.apart",                                                                                                   \
         BT_SETTING_BOOL,                                                                                              \
         (at) + offsetof(bt_engine_settings, kv_apart),                                                                \
         0,                                                                                                            \
         "false",                                                                                                      \
         "For tests: the CPU too has a cache of its own beside the one that nodes fetch from.",                        \
         0,                                                                                                            \
         0,                                                                                                            \
         NULL},                                                                                                        \
        {"kv.format",                                                                                                  \
         BT_SETTING_WORD,                                                                                              \
         (at) + offsetof(bt_engine_settings, kv_format),                                                               \
         0,                                                                                                            \
         "int8",                                                                                                       \
         "How keys and values are stored.",                                                                            \
         0,                                                                                                            \
         0,                                                                                                            \
         bt_settings_kv_formats},                                                                                      \
        {"kv.blocks",                                                                                                  \
         BT_SETTING_COUNT,                                                                                             \
         (at) + offsetof(bt_engine_settings, kv_blocks),                                                               \
         0,                                                                                                            \
         "0",                                                                                                          \
         "Blocks of the cache; 0 = enough for max_sequences of the longest, within memory.",                           \
         0,                                                                                                            \
         0,                                                                                                            \
         NULL},                                                                                                        \
    {                                                                                                                  \
        "kv.block_tokens", BT_SETTING_COUNT, (at) + offsetof(bt_engine_settings, kv_block_tokens), 0, "32",            \
            "Tokens of a block: 16, 32 or 64.", 16, 64, NULL                                                           \
    }

// What holds between settings, and what a range cannot say. `key` (may be NULL) gets the key of the setting that is wrong.
bt_err bt_engine_settings_check(const bt_engine_settings *settings, const char **key, bt_why *why);
// Options for bt_engine_open; `path` is borrowed.
bt_engine_options bt_engine_settings_options(const bt_engine_settings *settings, const char *path);

typedef struct {
    uint32_t connections, connections_each, calls, choices, queue, text_workers, trace_requests;
    size_t header_bytes, body_bytes, body_bytes_total, out_bytes;
    bt_time header_time, body_time, idle_time, stall_time, request_time, drain_time;
    bt_text_list keys;
    char auth_file[1024];
} bt_http_settings;

#define BT_HTTP_ROW(key, kind, at, field, fallback, help, min, max)                                                    \
    {                                                                                                                  \
        key, kind, (at) + offsetof(bt_http_settings, field), 0, fallback, help, min, max, NULL                         \
    }

#define BT_HTTP_ROWS(at)                                                                                               \
    BT_HTTP_ROW("http.connections", BT_SETTING_COUNT, at, connections, "512", "Open connections; more wait.", 1,       \
                65536),                                                                                                \
        BT_HTTP_ROW("http.connections_each", BT_SETTING_COUNT, at, connections_each, "0",                              \
                    "From one address; 0 = no limit.", 0, 65536),                                                      \
        BT_HTTP_ROW("http.requests", BT_SETTING_COUNT, at, calls, "256",                                               \
                    "Requests that are being answered; more are a 429.", 1, 4096),                                     \
        BT_HTTP_ROW("http.choices", BT_SETTING_COUNT, at, choices, "16", "Answers of one request: n x prompts.", 1,    \
                    128),                                                                                              \
        BT_HTTP_ROW("http.queue", BT_SETTING_COUNT, at, queue, "256",                                                  \
                    "Answers of all requests, queued or running; more are a 429.", 1, 4096),                           \
        BT_HTTP_ROW("http.text_workers", BT_SETTING_COUNT, at, text_workers, "1",                                      \
                    "Threads that parse, render and tokenize.", 1, 8),                                                 \
        BT_HTTP_ROW("http.header_bytes", BT_SETTING_BYTES, at, header_bytes, "32K", "Request line and headers.", 4096, \
                    1048576),                                                                                          \
        BT_HTTP_ROW("http.body_bytes", BT_SETTING_BYTES, at, body_bytes, "8M", "Of one request; more is a 413.", 1024, \
                    1073741824),                                                                                       \
        BT_HTTP_ROW("http.body_bytes_total", BT_SETTING_BYTES, at, body_bytes_total, "256M",                           \
                    "Bodies of all requests that are here; more is a 503.", 1024, 0x1p40),                             \
        BT_HTTP_ROW("http.answer_bytes", BT_SETTING_BYTES, at, out_bytes, "16M",                                       \
                    "Of one answer that waits for its client.", 65536, 1073741824),                                    \
        BT_HTTP_ROW("http.header_time", BT_SETTING_TIME, at, header_time, "10s", "A client has to send its headers.",  \
                    0.01, 3600),                                                                                       \
        BT_HTTP_ROW("http.body_time", BT_SETTING_TIME, at, body_time, "60s", "And its body.", 0.01, 3600),             \
        BT_HTTP_ROW("http.idle_time", BT_SETTING_TIME, at, idle_time, "120s",                                          \
                    "A connection waits for its next request.", 0.01, 86400),                                          \
        BT_HTTP_ROW("http.stall_time", BT_SETTING_TIME, at, stall_time, "30s",                                         \
                    "A client may read nothing of what it is sent.", 0.01, 3600),                                      \
        BT_HTTP_ROW("http.request_time", BT_SETTING_TIME, at, request_time, "600s",                                    \
                    "From a request to the end of its answer.", 0.01, 86400),                                          \
        BT_HTTP_ROW("http.drain_time", BT_SETTING_TIME, at, drain_time, "30s",                                         \
                    "After SIGTERM, for what runs to finish.", 0, 3600),                                               \
        BT_HTTP_ROW("auth.keys", BT_SETTING_LIST, at, keys, "",                                                        \
                    "Bearer keys that clients may use; none = everyone may ask.", 0, 0),                               \
        {"auth.file",                                                                                                  \
         BT_SETTING_TEXT,                                                                                              \
         (at) + offsetof(bt_http_settings, auth_file),                                                                 \
         1024,                                                                                                         \
         "",                                                                                                           \
         "A file with more of them, one a line.",                                                                      \
         0,                                                                                                            \
         0,                                                                                                            \
         NULL},                                                                                                        \
        BT_HTTP_ROW("trace.requests", BT_SETTING_COUNT, at, trace_requests, "0",                                       \
                    "So many of the last requests can be looked at with GET /v1/trace/ID; 7 KB each.", 0, 4096)

bt_err bt_http_settings_check(const bt_http_settings *settings, const char **key, bt_why *why);
// Adds the keys of auth.file, one a line (# begins a comment), to auth.keys.
bt_err bt_http_settings_read_keys(bt_http_settings *settings, bt_why *why);
// For bt_router_http_open, without more_metrics; keys and listen are borrowed.
bt_router_http_options bt_http_settings_options(const bt_http_settings *settings, const char *listen,
                                                const char *model_name);

// For bt_router_gateway_open: the limits are HTTP's. All is borrowed; `cert_key_file` is for tls+tcp.
bt_router_gateway_options bt_http_settings_gateway(const bt_http_settings *settings, const char *listen,
                                                   const char *cert_key_file);

#define BT_LOG_ROW(at)                                                                                                 \
    {                                                                                                                  \
        "log.level", BT_SETTING_WORD, at, 0, "info", "What is logged, on stderr.", 0, 0, bt_settings_log_levels        \
    }

// The file's name without folder and .gguf: what clients call the model where nobody has named it.
void bt_settings_model_name(const char *path, char out[128]);
