#include "common/model/gguf.h"

#include "common/base/mem.h"
#include "common/model/file.h"
#include "common/quant/ggml.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define ENTRIES_MAX (1u << 20) // of metadata, and of tensors: far above any model, far below what hurts
#define NAME_MAX_BYTES 63      // of a tensor; ggml's own limit
#define KEY_MAX_BYTES 65535

typedef struct {
    bt_str name;
    uint32_t index;
} named;

struct bt_gguf {
    bt_file file; // zeroed when the bytes are the caller's
    uint32_t version;
    size_t alignment;
    bt_gguf_value *values;
    bt_gguf_tensor *tensors;
    named *keys, *names; // sorted by name
    size_t value_count, value_cap, tensor_count, tensor_cap;
};

// Where we are in the bytes.
typedef struct {
    const uint8_t *data;
    size_t bytes, at;
    const char *file;
    bt_why *why;
} cursor;

static bt_err
bad(const cursor *in, bt_str entry, const char *what)
{
    char name[72];

    return bt_fail(in->why, BT_ERR_INVALID, "%s: byte %zu: %s%s%s%s", in->file, in->at, entry.data != NULL ? "'" : "",
                   entry.data != NULL ? bt_printable(entry, name) : "", entry.data != NULL ? "': " : "", what);
}

static bool
take(cursor *in, void *out, size_t bytes)
{
    if (in->bytes - in->at < bytes) {
        return false;
    }
    memcpy(out, in->data + in->at, bytes);
    in->at += bytes;
    return true;
}

static bool
take_string(cursor *in, bt_str *out)
{
    uint64_t len;

    if (!take(in, &len, sizeof len) || len > in->bytes - in->at) {
        return false;
    }
    *out = (bt_str){(const char *)in->data + in->at, (size_t)len};
    in->at += (size_t)len;
    return true;
}

// Bytes of a scalar; 0 for strings, arrays and unknown types.
static size_t
scalar_bytes(uint32_t type)
{
    static const uint8_t sizes[BT_GGUF_TYPE_COUNT] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

    return type < BT_GGUF_TYPE_COUNT ? sizes[type] : 0;
}

static bool
skip_items(cursor *in, uint32_t type, uint64_t count)
{
    size_t bytes = scalar_bytes(type), total;
    bt_str item;

    if (bytes != 0) {
        if (__builtin_mul_overflow(count, bytes, &total) || total > in->bytes - in->at) {
            return false;
        }
        in->at += total;
        return true;
    }
    for (uint64_t i = 0; i < count; i++) {
        if (!take_string(in, &item)) {
            return false;
        }
    }
    return true;
}

static bt_err
read_value(cursor *in, bt_gguf_value *out)
{
    uint32_t type;

    if (!take_string(in, &out->key)) {
        return bad(in, (bt_str){0}, "expected a metadata key, found the end of the file");
    }
    if (out->key.len == 0 || out->key.len > KEY_MAX_BYTES) {
        return bad(in, out->key, "expected a key of 1 to 65535 bytes");
    }
    if (!take(in, &type, sizeof type)) {
        return bad(in, out->key, "expected a type, found the end of the file");
    }
    out->count = 1;
    out->item_type = out->type = (bt_gguf_type)type;
    if (type == BT_GGUF_ARRAY) {
        if (!take(in, &type, sizeof type) || !take(in, &out->count, sizeof out->count)) {
            return bad(in, out->key, "expected an array, found the end of the file");
        }
        out->item_type = (bt_gguf_type)type;
    }
    if (type != BT_GGUF_STRING && scalar_bytes(type) == 0) {
        return bad(in, out->key, type == BT_GGUF_ARRAY ? "arrays of arrays are not supported" : "unknown value type");
    }
    out->data = in->data + in->at;
    if (!skip_items(in, type, out->count)) {
        return bad(in, out->key, "the value goes beyond the end of the file");
    }
    out->bytes = (size_t)(in->data + in->at - out->data);
    return BT_OK;
}

static bt_err
shape_bytes(const cursor *in, bt_gguf_tensor *tensor)
{
    uint32_t block = bt_ggml_block_cols(tensor->type);
    uint64_t elements = 1;
    char name[72];

    for (uint32_t i = 0; i < 4; i++) {
        if (tensor->shape[i] > INT64_MAX || __builtin_mul_overflow(elements, tensor->shape[i], &elements) ||
            elements > INT64_MAX) {
            return bad(in, tensor->name, "its shape overflows");
        }
    }
    if (tensor->shape[0] % block != 0) {
        return bt_fail(in->why, BT_ERR_INVALID,
                       "%s: byte %zu: '%s': rows of %s hold a multiple of %" PRIu32 " elements, found %" PRIu64,
                       in->file, in->at, bt_printable(tensor->name, name), bt_ggml_name(tensor->type), block,
                       tensor->shape[0]);
    }
    if (__builtin_mul_overflow(elements / block, bt_ggml_block_bytes(tensor->type), &tensor->bytes) ||
        tensor->bytes > INT64_MAX) {
        return bad(in, tensor->name, "its size overflows");
    }
    return BT_OK;
}

static bt_err
read_tensor(cursor *in, bt_gguf_tensor *out, uint64_t *offset)
{
    char name[72];

    if (!take_string(in, &out->name)) {
        return bad(in, (bt_str){0}, "expected a tensor name, found the end of the file");
    }
    if (out->name.len > NAME_MAX_BYTES || memchr(out->name.data, 0, out->name.len) != NULL) {
        return bad(in, out->name, "a tensor name has at most 63 bytes, none of them 0");
    }
    if (!take(in, &out->dims, sizeof out->dims) || out->dims > 4) {
        return bad(in, out->name, "expected 0 to 4 dimensions");
    }
    out->shape[0] = out->shape[1] = out->shape[2] = out->shape[3] = 1;
    if (!take(in, out->shape, 8 * (size_t)out->dims) || !take(in, &out->type, sizeof out->type) ||
        !take(in, offset, sizeof *offset)) {
        return bad(in, out->name, "expected shape, type and offset, found the end of the file");
    }
    if (bt_ggml_block_cols(out->type) == 0) {
        return bt_fail(in->why, BT_ERR_INVALID, "%s: byte %zu: '%s': unknown tensor type %" PRIu32, in->file, in->at,
                       bt_printable(out->name, name), out->type);
    }
    return shape_bytes(in, out);
}

// Grows by doubling and never by the count that a file claims.
static bool
grow(void **array, size_t *cap, size_t count, size_t bytes)
{
    size_t more = *cap != 0 ? *cap * 2 : 64;
    void *grown;

    if (count < *cap) {
        return true;
    }
    if ((grown = bt_realloc(*array, more * bytes)) == NULL) {
        return false;
    }
    *array = grown;
    *cap = more;
    return true;
}

static bt_err
out_of_memory(const cursor *in)
{
    return bt_fail(in->why, BT_ERR_NO_MEMORY, "%s: out of memory", in->file);
}

static bt_err
read_values(bt_gguf *gguf, cursor *in, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        bt_err err;

        if (!grow((void **)&gguf->values, &gguf->value_cap, gguf->value_count, sizeof *gguf->values)) {
            return out_of_memory(in);
        }
        if ((err = read_value(in, &gguf->values[gguf->value_count])) != BT_OK) {
            return err;
        }
        gguf->value_count++;
    }
    return BT_OK;
}

static size_t
aligned(size_t bytes, size_t alignment)
{
    return (bytes + alignment - 1) & ~(alignment - 1);
}

// `total` is the data's size so far. A tensor begins where the one before it ends, padded: so writers write them, and so
// they cannot overlap.
static bt_err
read_tensors(bt_gguf *gguf, cursor *in, uint64_t count)
{
    size_t total = 0;
    char name[72];

    for (uint64_t i = 0; i < count; i++) {
        bt_gguf_tensor *tensor;
        uint64_t offset = 0;
        bt_err err;

        if (!grow((void **)&gguf->tensors, &gguf->tensor_cap, gguf->tensor_count, sizeof *gguf->tensors)) {
            return out_of_memory(in);
        }
        tensor = &gguf->tensors[gguf->tensor_count];
        if ((err = read_tensor(in, tensor, &offset)) != BT_OK) {
            return err;
        }
        if (offset != total) {
            return bt_fail(in->why, BT_ERR_INVALID, "%s: byte %zu: '%s': expected offset %zu, found %" PRIu64, in->file,
                           in->at, bt_printable(tensor->name, name), total, offset);
        }
        if (__builtin_add_overflow(total, tensor->bytes, &total) || total > INT64_MAX / 2) {
            return bad(in, tensor->name, "the sizes of the tensors overflow");
        }
        total = aligned(total, gguf->alignment);
        gguf->tensor_count++;
    }
    return BT_OK;
}

static bt_err
place_tensors(bt_gguf *gguf, const cursor *in, bool metadata_only)
{
    char name[72];
    size_t start = aligned(in->at, gguf->alignment);

    // No overflow: read_tensors has kept the sum far from it. The padding behind the last tensor belongs to the file.
    for (size_t i = 0; i < gguf->tensor_count; i++) {
        bt_gguf_tensor *tensor = &gguf->tensors[i];
        size_t end = aligned(start + tensor->bytes, gguf->alignment);

        tensor->data = end <= in->bytes ? in->data + start : NULL;
        if (tensor->data == NULL && !metadata_only) {
            return bt_fail(in->why, BT_ERR_INVALID, "%s: truncated: '%s' needs bytes %zu to %zu, the file has %zu",
                           in->file, bt_printable(tensor->name, name), start, end, in->bytes);
        }
        start = end;
    }
    return BT_OK;
}

static bt_err
read_alignment(bt_gguf *gguf, const cursor *in)
{
    const bt_gguf_value *value = bt_gguf_find(gguf, "general.alignment");
    uint32_t alignment = 32;

    if (value != NULL && value->type == BT_GGUF_U32) {
        memcpy(&alignment, value->data, sizeof alignment);
    } else if (value != NULL) {
        alignment = 0;
    }
    if (alignment == 0 || (alignment & (alignment - 1)) != 0) {
        return bad(in, bt_str_of("general.alignment"), "expected a power of two of type u32");
    }
    gguf->alignment = alignment;
    return BT_OK;
}

static int
by_name(const void *a, const void *b)
{
    const bt_str *x = &((const named *)a)->name, *y = &((const named *)b)->name;
    int order = memcmp(x->data, y->data, x->len < y->len ? x->len : y->len);

    return order != 0 ? order : (x->len > y->len) - (x->len < y->len);
}

// Sorts `index` and refuses a name that occurs twice.
static bt_err
sort_names(named *index, size_t count, const cursor *in, const char *twice)
{
    qsort(index, count, sizeof *index, by_name);
    for (size_t i = 1; i < count; i++) {
        if (by_name(&index[i - 1], &index[i]) == 0) {
            return bad(in, index[i].name, twice);
        }
    }
    return BT_OK;
}

static bt_err
index_values(bt_gguf *gguf, const cursor *in)
{
    gguf->keys = bt_alloc_array(gguf->value_count, sizeof *gguf->keys);
    if (gguf->keys == NULL) {
        return out_of_memory(in);
    }
    for (size_t i = 0; i < gguf->value_count; i++) {
        gguf->keys[i] = (named){gguf->values[i].key, (uint32_t)i};
    }
    return sort_names(gguf->keys, gguf->value_count, in, "the key is there twice");
}

static bt_err
index_tensors(bt_gguf *gguf, const cursor *in)
{
    gguf->names = bt_alloc_array(gguf->tensor_count, sizeof *gguf->names);
    if (gguf->names == NULL) {
        return out_of_memory(in);
    }
    for (size_t i = 0; i < gguf->tensor_count; i++) {
        gguf->names[i] = (named){gguf->tensors[i].name, (uint32_t)i};
    }
    return sort_names(gguf->names, gguf->tensor_count, in, "the tensor is there twice");
}

static bt_err
read_header(bt_gguf *gguf, cursor *in, uint64_t *tensors, uint64_t *values)
{
    char magic[4];

    if (!take(in, magic, 4) || memcmp(magic, "GGUF", 4) != 0) {
        return bad(in, (bt_str){0}, "expected a GGUF file, found another magic number");
    }
    if (!take(in, &gguf->version, 4) || gguf->version < 2 || gguf->version > 3) {
        return bt_fail(in->why, BT_ERR_INVALID, "%s: expected GGUF version 2 or 3, found %" PRIu32 "%s", in->file,
                       gguf->version, gguf->version >= 1u << 16 ? " (a big-endian file?)" : "");
    }
    if (!take(in, tensors, 8) || !take(in, values, 8)) {
        return bad(in, (bt_str){0}, "expected two counts, found the end of the file");
    }
    if (*tensors > ENTRIES_MAX || *values > ENTRIES_MAX) {
        return bt_fail(in->why, BT_ERR_INVALID,
                       "%s: %" PRIu64 " tensors and %" PRIu64 " metadata entries; at most %u each are read", in->file,
                       *tensors, *values, ENTRIES_MAX);
    }
    return BT_OK;
}

static bt_err
read_all(bt_gguf *gguf, cursor *in, bool metadata_only)
{
    uint64_t tensors = 0, values = 0;
    bt_err err;

    if ((err = read_header(gguf, in, &tensors, &values)) != BT_OK || (err = read_values(gguf, in, values)) != BT_OK ||
        (err = index_values(gguf, in)) != BT_OK || (err = read_alignment(gguf, in)) != BT_OK ||
        (err = read_tensors(gguf, in, tensors)) != BT_OK || (err = index_tensors(gguf, in)) != BT_OK) {
        return err;
    }
    return place_tensors(gguf, in, metadata_only);
}

bt_err
bt_gguf_parse(bt_gguf **out, const void *bytes, size_t count, const char *name, bool metadata_only, bt_why *why)
{
    cursor in = {bytes, count, 0, name, why};
    bt_gguf *gguf = bt_alloc(sizeof *gguf);
    bt_err err;

    if (gguf == NULL) {
        return out_of_memory(&in);
    }
    if ((err = read_all(gguf, &in, metadata_only)) != BT_OK) {
        bt_gguf_close(gguf);
        return err;
    }
    *out = gguf;
    return BT_OK;
}

bt_err
bt_gguf_open(bt_gguf **out, const char *path, bt_why *why)
{
    bt_file file;
    bt_err err;

    if ((err = bt_file_open(&file, path, why)) != BT_OK) {
        return err;
    }
    if ((err = bt_gguf_parse(out, file.data, file.bytes, path, false, why)) != BT_OK) {
        bt_file_close(&file);
        return err;
    }
    (*out)->file = file;
    return BT_OK;
}

void
bt_gguf_close(bt_gguf *gguf)
{
    if (gguf != NULL) {
        bt_file_close(&gguf->file);
        bt_free(gguf->values);
        bt_free(gguf->tensors);
        bt_free(gguf->keys);
        bt_free(gguf->names);
        bt_free(gguf);
    }
}

void
bt_gguf_will_read(const bt_gguf *gguf, bt_file_reading what)
{
    bt_file_will_read(&gguf->file, what);
}

size_t
bt_gguf_value_count(const bt_gguf *gguf)
{
    return gguf->value_count;
}

const bt_gguf_value *
bt_gguf_value_at(const bt_gguf *gguf, size_t index)
{
    return &gguf->values[index];
}

size_t
bt_gguf_tensor_count(const bt_gguf *gguf)
{
    return gguf->tensor_count;
}

const bt_gguf_tensor *
bt_gguf_tensor_at(const bt_gguf *gguf, size_t index)
{
    return &gguf->tensors[index];
}

static const named *
find(const named *index, size_t count, const char *name)
{
    named wanted = {bt_str_of(name), 0};

    return count != 0 ? bsearch(&wanted, index, count, sizeof *index, by_name) : NULL;
}

const bt_gguf_value *
bt_gguf_find(const bt_gguf *gguf, const char *key)
{
    const named *found = find(gguf->keys, gguf->value_count, key);

    return found != NULL ? &gguf->values[found->index] : NULL;
}

const bt_gguf_tensor *
bt_gguf_find_tensor(const bt_gguf *gguf, const char *name)
{
    const named *found = find(gguf->names, gguf->tensor_count, name);

    return found != NULL ? &gguf->tensors[found->index] : NULL;
}
