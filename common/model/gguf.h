// Reads GGUF v2/v3 files: metadata and where each tensor lies. https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
//
// The file is mapped; strings and tensor data are borrowed from the map and live until close. A file is outside input:
// every count, length, offset and overflow is checked against the bytes that are there before anything is allocated by
// it, and duplicate keys or tensors, bad alignment and data past the end are refused. After open nothing is written:
// any thread may read.
#pragma once

#include "common/base/err.h"
#include "common/base/str.h"
#include "common/model/file.h"

typedef enum {
    BT_GGUF_U8,
    BT_GGUF_I8,
    BT_GGUF_U16,
    BT_GGUF_I16,
    BT_GGUF_U32,
    BT_GGUF_I32,
    BT_GGUF_F32,
    BT_GGUF_BOOL,
    BT_GGUF_STRING,
    BT_GGUF_ARRAY,
    BT_GGUF_U64,
    BT_GGUF_I64,
    BT_GGUF_F64,
    BT_GGUF_TYPE_COUNT
} bt_gguf_type;

typedef struct {
    bt_str key;
    bt_gguf_type type;      // of the value
    bt_gguf_type item_type; // of an array's items
    uint64_t count;         // items of an array, else 1
    const uint8_t *data;    // little-endian, unaligned; strings are u64 length + bytes
    size_t bytes;           // of data
} bt_gguf_value;

typedef struct {
    bt_str name;
    uint32_t dims;
    uint64_t shape[4];   // fastest dimension first, unused ones 1
    uint32_t type;       // ggml type number: common/quant/ggml.h
    const uint8_t *data; // NULL when opened without data
    size_t bytes;
} bt_gguf_tensor;

typedef struct bt_gguf bt_gguf;

// `why` names the file, the byte offset, the key or tensor, and what was expected.
bt_err bt_gguf_open(bt_gguf **out, const char *path, bt_why *why);
// The same over bytes in memory (borrowed until close). With `metadata_only` tensor data may be missing.
bt_err bt_gguf_parse(bt_gguf **out, const void *bytes, size_t count, const char *name, bool metadata_only, bt_why *why);
void bt_gguf_close(bt_gguf *gguf);
void bt_gguf_will_read(const bt_gguf *gguf, bt_file_reading what);

size_t bt_gguf_value_count(const bt_gguf *gguf);
const bt_gguf_value *bt_gguf_value_at(const bt_gguf *gguf, size_t index);
const bt_gguf_value *bt_gguf_find(const bt_gguf *gguf, const char *key); // NULL when absent
size_t bt_gguf_tensor_count(const bt_gguf *gguf);
const bt_gguf_tensor *bt_gguf_tensor_at(const bt_gguf *gguf, size_t index);
const bt_gguf_tensor *bt_gguf_find_tensor(const bt_gguf *gguf, const char *name); // NULL when absent

// Scalars: true and *out set when the key is there with a value that fits (integers of any width, signed or not,
// convert when in range; f32 takes f64); false otherwise with *out untouched.
bool bt_gguf_get_u32(const bt_gguf *gguf, const char *key, uint32_t *out);
bool bt_gguf_get_f32(const bt_gguf *gguf, const char *key, float *out);
bool bt_gguf_get_bool(const bt_gguf *gguf, const char *key, bool *out);
bool bt_gguf_get_str(const bt_gguf *gguf, const char *key, bt_str *out);

// Walks an array of strings: `cursor` starts at 0 and is advanced; false at the end or when `value` is no such array.
bool bt_gguf_next_string(const bt_gguf_value *value, size_t *cursor, bt_str *out);
// Item `index` of an array of numbers as a double / as an integer; 0 when out of range.
double bt_gguf_item_number(const bt_gguf_value *value, uint64_t index);
