// A model's file or folder, opened: its tensors under the names that it gives them, whatever the container.
//
// Belongs to the thread that opens a model and lives as long as the loading does; inspecting opens one too.
#pragma once

#include "common/json/json.h"
#include "common/model/gguf.h"
#include "common/model/safetensors.h"

// A tensor as rows of columns, in either container. Vectors are one row.
typedef struct {
    bt_str name;
    uint32_t type; // ggml's number; BT_GGML_TYPE_COUNT where there is none
    bt_str type_name;
    uint64_t rows, cols; // rows · cols = all elements
    const uint8_t *data;
    size_t bytes;
} bt_source_tensor;

typedef struct {
    const char *path;            // as given; borrowed
    bt_gguf *gguf;               // either this,
    bt_safetensors *safetensors; // or these two
    bt_json *config;             // config.json
} bt_source;

// BT_ERR_NOT_FOUND and BT_ERR_INVALID with a line that names the file.
bt_err bt_source_open(bt_source *out, const char *path, bt_why *why);
void bt_source_close(bt_source *source); // accepts a zeroed one

size_t bt_source_count(const bt_source *source);
bt_source_tensor bt_source_at(const bt_source *source, size_t index);
bool bt_source_find(const bt_source *source, const char *name, bt_source_tensor *out); // false when absent
void bt_source_will_read(const bt_source *source, bt_file_reading what);

// The whole of folder/name in memory for bt_free, NUL-terminated; BT_ERR_NOT_FOUND when it is not there.
bt_err bt_source_read_text(const char *folder, const char *name, char **out, size_t *bytes, bt_why *why);
