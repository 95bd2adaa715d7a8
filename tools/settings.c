#include "tools/settings.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

const char *const bt_settings_weights[] = {"keep", "w8", "q4", "exact", NULL};
const char *const bt_settings_isas[] = {"auto", "ref", "avx2", "avx512", "amx", NULL};
const char *const bt_settings_activations[] = {"auto", "f32", NULL};
const char *const bt_settings_kv_formats[] = {"int8", "f16", "f32", NULL};
const char *const bt_settings_log_levels[] = {"debug", "info", "warn", "error", "none", NULL};

// ---- the engine ----

bt_err
bt_engine_settings_check(const bt_engine_settings *s, const char **key, bt_why *why)
{
    bt_device_options device;

    if (bt_device_parse(&device, s->device, why) != BT_OK) {
        *key = "device";
        return BT_ERR_INVALID;
    }
    if (s->chunk_tokens < s->max_sequences) {
        *key = "engine.chunk_tokens";
        return bt_fail(why, BT_ERR_INVALID, "engine.chunk_tokens: %u, fewer than engine.max_sequences: %u",
                       s->chunk_tokens, s->max_sequences);
    }
    if (s->kv_block_tokens != 16 && s->kv_block_tokens != 32 && s->kv_block_tokens != 64) {
        *key = "kv.block_tokens";
        return bt_fail(why, BT_ERR_INVALID, "kv.block_tokens: %u is none of 16, 32, 64", s->kv_block_tokens);
    }
    return BT_OK;
}

bt_engine_options
bt_engine_settings_options(const bt_engine_settings *s, const char *path)
{
    bt_engine_options options = {
        .model = {.path = path,
                  .weights = (bt_load_weights)s->weights,
                  .hasty = s->hasty_weights,
                  .equalise = s->kv_format == BT_KV_INT8 && s->weights != BT_LOAD_EXACT},
        .device = {.kind = BT_DEVICE_CPU,
                   .threads = s->threads,
                   .isa = bt_settings_isas[s->isa],
                   .break_after = s->break_after},
        .kv_format = (bt_kv_format)s->kv_format,
        .kv_block_tokens = s->kv_block_tokens,
        .kv_blocks = s->kv_blocks,
        .kv_apart = s->kv_apart,
        .max_sequences = s->max_sequences,
        .chunk_tokens = s->chunk_tokens,
        .context = s->context,
        .memory_max = s->memory,
    };
    bt_why why;

    (void)bt_device_parse(&options.device, s->device, &why); // checked
    options.device.float_activations = s->activations == 1;
    options.model.rounded = bt_device_would_round(&options.device);
    return options;
}

// ---- HTTP ----

bt_err
bt_http_settings_check(const bt_http_settings *s, const char **key, bt_why *why)
{
    if (s->queue < s->choices) {
        *key = "http.queue";
        return bt_fail(why, BT_ERR_INVALID, "http.queue: %u, fewer than the http.choices: %u of one request", s->queue,
                       s->choices);
    }
    return BT_OK;
}

static void
trim(char *line)
{
    size_t begin = strspn(line, " \t"), len;

    memmove(line, line + begin, strlen(line + begin) + 1);
    line[strcspn(line, "\r\n")] = 0;
    for (len = strlen(line); len != 0 && (line[len - 1] == ' ' || line[len - 1] == '\t'); len--) {
        line[len - 1] = 0;
    }
}

bt_err
bt_http_settings_read_keys(bt_http_settings *s, bt_why *why)
{
    FILE *file = fopen(s->auth_file, "r");
    bt_err err = BT_OK;
    char line[512];

    if (file == NULL) {
        return bt_fail(why, BT_ERR_IO, "auth.file: %s: %s", s->auth_file, strerror(errno));
    }
    while (err == BT_OK && fgets(line, sizeof line, file) != NULL) {
        trim(line);
        if (*line == 0 || *line == '#') {
            continue;
        }
        if (s->keys.count == BT_TEXT_LIST_MAX || strlen(line) >= BT_TEXT_LIST_BYTES) {
            err = bt_fail(why, BT_ERR_TOO_LONG, "auth.file: %s: at most %d keys of %d bytes", s->auth_file,
                          BT_TEXT_LIST_MAX, BT_TEXT_LIST_BYTES - 1);
        } else {
            memcpy(s->keys.items[s->keys.count++], line, strlen(line) + 1);
        }
    }
    fclose(file);
    return err;
}

bt_router_http_options
bt_http_settings_options(const bt_http_settings *s, const char *listen, const char *model_name)
{
    bt_router_http_options options = {
        .http = {.listen = listen,
                 .connections_max = s->connections,
                 .connections_each_max = s->connections_each,
                 .header_bytes_max = s->header_bytes,
                 .body_bytes_max = s->body_bytes,
                 .body_bytes_total_max = s->body_bytes_total,
                 .out_bytes_max = s->out_bytes,
                 .header_time_max = s->header_time,
                 .body_time_max = s->body_time,
                 .idle_time_max = s->idle_time,
                 .stall_time_max = s->stall_time},
        .calls_max = s->calls,
        .choices_max = s->choices,
        .answers_max = s->queue,
        .text_workers = s->text_workers,
        .request_time_max = s->request_time,
        .keys = &s->keys,
        .trace_requests = s->trace_requests,
    };

    snprintf(options.model, sizeof options.model, "%s", model_name);
    return options;
}

bt_router_gateway_options
bt_http_settings_gateway(const bt_http_settings *s, const char *listen, const char *cert_key_file)
{
    return (bt_router_gateway_options){
        .sp = {.listen = listen,
               .cert_key_file = cert_key_file,
               .connections_max = s->connections,
               .connections_each_max = s->connections_each,
               .message_bytes_max = s->body_bytes,
               .in_bytes_total_max = s->body_bytes_total,
               .out_bytes_max = s->out_bytes,
               .greeting_time_max = s->header_time,
               .message_time_max = s->body_time,
               .stall_time_max = s->stall_time,
               .idle_time_max = s->idle_time},
        .calls_each_max = s->calls,
    };
}

// ---- the model ----

void
bt_settings_model_name(const char *path, char out[128])
{
    char copy[1024], *slash;
    size_t len;

    snprintf(copy, sizeof copy, "%s", path);
    for (len = strlen(copy); len > 1 && copy[len - 1] == '/'; len--) {
        copy[len - 1] = 0;
    }
    if (len > 5 && strcasecmp(copy + len - 5, ".gguf") == 0) {
        copy[len - 5] = 0;
    }
    slash = strrchr(copy, '/');
    snprintf(out, 128, "%.127s", slash != NULL ? slash + 1 : copy);
}
