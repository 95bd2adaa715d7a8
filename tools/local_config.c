#include "tools/local_config.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define AT(field) offsetof(bt_local_config, field)

static const char *const weights[] = {"keep", "w8", "q4", "exact", NULL};
static const char *const formats[] = {"int8", "f16", "f32", NULL};
static const char *const levels[] = {"debug", "info", "warn", "error", "none", NULL};
const char *const bt_local_isas[] = {"auto", "ref", "avx2", "avx512", "amx", NULL};

const bt_setting bt_local_settings[] = {
    {"listen", BT_SETTING_TEXT, AT(listen), 128, "127.0.0.1:8080", "HOST:PORT; * as the host means every address.", 0,
     0, NULL},
    {"threads", BT_SETTING_COUNT, AT(threads), 0, "0", "Threads of the engine; 0 = all cores.", 0, 1024, NULL},
    {"weights", BT_SETTING_WORD, AT(weights), 0, "keep", "What the weights become while they are loaded.", 0, 0,
     weights},
    {"model.path", BT_SETTING_TEXT, AT(model), 1024, "", "A .gguf file or a Hugging Face directory.", 0, 0, NULL},
    {"model.name", BT_SETTING_TEXT, AT(model_name), 128, "",
     "The name that clients use; empty = the file's, without its ending.", 0, 0, NULL},
    {"cpu.isa", BT_SETTING_WORD, AT(isa), 0, "auto", "Which kernels; auto = the best that this machine has.", 0, 0,
     bt_local_isas},
    {"engine.chunk_tokens", BT_SETTING_COUNT, AT(chunk_tokens), 0, "512", "Tokens of one step, all sequences together.",
     1, 65536, NULL},
    {"engine.max_sequences", BT_SETTING_COUNT, AT(max_sequences), 0, "16", "Sequences that are written at once.", 1,
     256, NULL},
    {"engine.context", BT_SETTING_COUNT, AT(context), 0, "0", "Longest prompt and answer together; 0 = the model's.", 0,
     16777216, NULL},
    {"engine.prefill_share", BT_SETTING_REAL, AT(prefill_share), 0, "0.5",
     "Share of a step that prompts may take while answers are written.", 0.01, 1, NULL},
    {"engine.memory", BT_SETTING_BYTES, AT(memory), 0, "0", "Weights, KV and scratch together; 0 = what is free.", 0, 0,
     NULL},
    {"kv.format", BT_SETTING_WORD, AT(kv_format), 0, "int8", "How keys and values are stored.", 0, 0, formats},
    {"kv.blocks", BT_SETTING_COUNT, AT(kv_blocks), 0, "0",
     "Blocks of the cache; 0 = enough for max_sequences of the longest, within memory.", 0, 0, NULL},
    {"kv.block_tokens", BT_SETTING_COUNT, AT(kv_block_tokens), 0, "32", "Tokens of a block: 16, 32 or 64.", 16, 64,
     NULL},
    {"http.connections", BT_SETTING_COUNT, AT(connections), 0, "512", "Open connections; more wait.", 1, 65536, NULL},
    {"http.connections_each", BT_SETTING_COUNT, AT(connections_each), 0, "0", "From one address; 0 = no limit.", 0,
     65536, NULL},
    {"http.requests", BT_SETTING_COUNT, AT(calls), 0, "256", "Requests that are being answered; more are a 429.", 1,
     4096, NULL},
    {"http.choices", BT_SETTING_COUNT, AT(choices), 0, "16", "Answers of one request: n x prompts.", 1, 128, NULL},
    {"http.queue", BT_SETTING_COUNT, AT(queue), 0, "256", "Answers of all requests, queued or running; more are a 429.",
     1, 4096, NULL},
    {"http.text_workers", BT_SETTING_COUNT, AT(text_workers), 0, "1", "Threads that parse, render and tokenize.", 1, 8,
     NULL},
    {"http.header_bytes", BT_SETTING_BYTES, AT(header_bytes), 0, "32K", "Request line and headers.", 4096, 1048576,
     NULL},
    {"http.body_bytes", BT_SETTING_BYTES, AT(body_bytes), 0, "8M", "Of one request; more is a 413.", 1024, 1073741824,
     NULL},
    {"http.body_bytes_total", BT_SETTING_BYTES, AT(body_bytes_total), 0, "256M",
     "Bodies of all requests that are here; more is a 503.", 1024, 0x1p40, NULL},
    {"http.answer_bytes", BT_SETTING_BYTES, AT(out_bytes), 0, "16M", "Of one answer that waits for its client.", 65536,
     1073741824, NULL},
    {"http.header_time", BT_SETTING_TIME, AT(header_time), 0, "10s", "A client has to send its headers.", 0.01, 3600,
     NULL},
    {"http.body_time", BT_SETTING_TIME, AT(body_time), 0, "60s", "And its body.", 0.01, 3600, NULL},
    {"http.idle_time", BT_SETTING_TIME, AT(idle_time), 0, "120s", "A connection waits for its next request.", 0.01,
     86400, NULL},
    {"http.stall_time", BT_SETTING_TIME, AT(stall_time), 0, "30s", "A client may read nothing of what it is sent.",
     0.01, 3600, NULL},
    {"http.request_time", BT_SETTING_TIME, AT(request_time), 0, "600s", "From a request to the end of its answer.",
     0.01, 86400, NULL},
    {"http.drain_time", BT_SETTING_TIME, AT(drain_time), 0, "30s", "After SIGTERM, for what runs to finish.", 0, 3600,
     NULL},
    {"auth.keys", BT_SETTING_LIST, AT(keys), 0, "", "Bearer keys that clients may use; none = everyone may ask.", 0, 0,
     NULL},
    {"auth.file", BT_SETTING_TEXT, AT(auth_file), 1024, "", "A file with more of them, one a line.", 0, 0, NULL},
    {"log.level", BT_SETTING_WORD, AT(log_level), 0, "info", "What is logged, on stderr.", 0, 0, levels},
    {0},
};

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
bt_local_read_keys(bt_local_config *config, bt_why *why)
{
    FILE *file = fopen(config->auth_file, "r");
    bt_err err = BT_OK;
    char line[512];

    if (file == NULL) {
        return bt_fail(why, BT_ERR_IO, "auth.file: %s: %s", config->auth_file, strerror(errno));
    }
    while (err == BT_OK && fgets(line, sizeof line, file) != NULL) {
        trim(line);
        if (*line == 0 || *line == '#') {
            continue;
        }
        if (config->keys.count == BT_TEXT_LIST_MAX || strlen(line) >= BT_TEXT_LIST_BYTES) {
            err = bt_fail(why, BT_ERR_TOO_LONG, "auth.file: %s: at most %d keys of %d bytes", config->auth_file,
                          BT_TEXT_LIST_MAX, BT_TEXT_LIST_BYTES - 1);
        } else {
            memcpy(config->keys.items[config->keys.count++], line, strlen(line) + 1);
        }
    }
    fclose(file);
    return err;
}
