// Reads safetensors files: an 8-byte header length, a JSON header that says where each tensor lies, and the data.
// https://github.com/huggingface/safetensors#format
//
// Files are mapped; names live until close. As with GGUF nothing in a file is trusted: the header has at most 100 MB,
// every extent must equal shape × element size, and together the extents fill the data without gap or overlap. Any thread
// may read after open.
#pragma once

#include "common/base/err.h"
#include "common/base/str.h"
#include "common/model/file.h"
#include "common/quant/ggml.h"

#define BT_SAFETENSOR_DIMS 8

typedef struct {
    bt_str name;
    bt_str dtype;  // as the file has it: "F32", "F16", "BF16", "I64", …
    uint32_t type; // the ggml type of F32, F16 and BF16; BT_GGML_TYPE_COUNT for what we do not read
    uint32_t dims; // up to BT_SAFETENSOR_DIMS
    uint64_t shape[BT_SAFETENSOR_DIMS]; // slowest dimension first
    const uint8_t *data;
    size_t bytes;
    uint32_t file; // which of the files
} bt_safetensor;

typedef struct bt_safetensors bt_safetensors;

// A directory's model.safetensors, or the shards that model.safetensors.index.json names: each tensor must be in the shard
// that the index says. BT_ERR_NOT_FOUND when there is neither.
bt_err bt_safetensors_open(bt_safetensors **out, const char *folder, bt_why *why);
// One file's bytes in memory, borrowed until close.
bt_err bt_safetensors_parse(bt_safetensors **out, const void *bytes, size_t count, const char *name, bt_why *why);
void bt_safetensors_close(bt_safetensors *files);

size_t bt_safetensors_count(const bt_safetensors *files);
const bt_safetensor *bt_safetensors_at(const bt_safetensors *files, size_t index);       // by name, rising
const bt_safetensor *bt_safetensors_find(const bt_safetensors *files, const char *name); // NULL when absent
void bt_safetensors_will_read(const bt_safetensors *files, bt_file_reading what);
