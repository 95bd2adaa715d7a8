#include "common/model/safetensors.h"

#include "common/base/mem.h"
#include "common/json/json.h"
#include "common/model/file.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define HEADER_MAX ((uint64_t)100000000)
#define FILES_MAX 4096u
#define TENSORS_MAX (1u << 20)

typedef struct {
    char *path;
    bt_file map;     // zeroed when the bytes are the caller's
    bt_json *header; // owns the names
    const uint8_t *bytes;
    size_t count;
} shard;

struct bt_safetensors {
    shard *shards;
    uint32_t shard_count;
    bt_safetensor *tensors; // sorted by name at the end
    size_t count, cap;
};

static const struct {
    const char *name;
    uint8_t bits;
    uint32_t type;
} dtypes[] = {
    {"F32", 32, BT_GGML_F32},           {"F16", 16, BT_GGML_F16},           {"BF16", 16, BT_GGML_BF16},
    {"F64", 64, BT_GGML_TYPE_COUNT},    {"I64", 64, BT_GGML_TYPE_COUNT},    {"U64", 64, BT_GGML_TYPE_COUNT},
    {"C64", 64, BT_GGML_TYPE_COUNT},    {"I32", 32, BT_GGML_TYPE_COUNT},    {"U32", 32, BT_GGML_TYPE_COUNT},
    {"I16", 16, BT_GGML_TYPE_COUNT},    {"U16", 16, BT_GGML_TYPE_COUNT},    {"I8", 8, BT_GGML_TYPE_COUNT},
    {"U8", 8, BT_GGML_TYPE_COUNT},      {"BOOL", 8, BT_GGML_TYPE_COUNT},    {"F8_E5M2", 8, BT_GGML_TYPE_COUNT},
    {"F8_E4M3", 8, BT_GGML_TYPE_COUNT}, {"F8_E8M0", 8, BT_GGML_TYPE_COUNT}, {"F6_E2M3", 6, BT_GGML_TYPE_COUNT},
    {"F6_E3M2", 6, BT_GGML_TYPE_COUNT}, {"F4", 4, BT_GGML_TYPE_COUNT},
};

static bt_err
out_of_memory(const char *path, bt_why *why)
{
    return bt_fail(why, BT_ERR_NO_MEMORY, "%s: out of memory", path);
}

// A JSON error with the file's name in front.
static bt_err
in_file(const char *path, bt_err err, const bt_why *inner, bt_why *why)
{
    return bt_fail(why, err, "%.200s: %.300s", path, inner->text);
}

static bt_err
read_dtype(const bt_json_at *entry, bt_safetensor *out, unsigned *bits, bt_why *why)
{
    bt_json_at at = bt_json_get(entry, "dtype");
    char name[72];
    bt_err err;

    if ((err = bt_json_as_text(&at, &out->dtype, why)) != BT_OK) {
        return err;
    }
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        if (bt_str_is(out->dtype, dtypes[i].name)) {
            *bits = dtypes[i].bits;
            out->type = dtypes[i].type;
            return BT_OK;
        }
    }
    return bt_json_wrong(&at, why, "unknown type %s", bt_printable(out->dtype, name));
}

static bt_err
read_shape(const bt_json_at *entry, bt_safetensor *out, uint64_t *elements, bt_why *why)
{
    bt_json_at at = bt_json_get(entry, "shape");
    size_t dims;
    bt_err err;

    if ((err = bt_json_as_array(&at, &dims, why)) != BT_OK) {
        return err;
    }
    if (dims > BT_SAFETENSOR_DIMS) {
        return bt_json_wrong(&at, why, "at most %d dimensions are read, found %zu", BT_SAFETENSOR_DIMS, dims);
    }
    out->dims = (uint32_t)dims;
    *elements = 1;
    for (size_t i = 0; i < dims; i++) {
        bt_json_at item = bt_json_item(&at, i);
        int64_t size = 0;

        if ((err = bt_json_as_int(&item, 0, INT64_MAX, &size, why)) != BT_OK) {
            return err;
        }
        out->shape[i] = (uint64_t)size;
        if (__builtin_mul_overflow(*elements, out->shape[i], elements)) {
            return bt_json_wrong(&at, why, "the number of elements overflows");
        }
    }
    return BT_OK;
}

static bt_err
read_extent(const bt_json_at *entry, const shard *from, size_t header_end, bt_safetensor *out, bt_why *why)
{
    bt_json_at at = bt_json_get(entry, "data_offsets"), first = bt_json_item(&at, 0), second = bt_json_item(&at, 1);
    int64_t begin = 0, end = 0, most = (int64_t)(from->count - header_end);
    bt_err err;

    if ((err = bt_json_as_int(&first, 0, most, &begin, why)) != BT_OK ||
        (err = bt_json_as_int(&second, begin, most, &end, why)) != BT_OK) {
        return err;
    }
    if (bt_json_count(&at) != 2) {
        return bt_json_wrong(&at, why, "expected begin and end, found %zu numbers", bt_json_count(&at));
    }
    out->data = from->bytes + header_end + begin;
    out->bytes = (size_t)(end - begin);
    return BT_OK;
}

static bt_err
read_tensor(const bt_json_at *entry, const shard *from, size_t header_end, bt_safetensor *out, bt_why *why)
{
    uint64_t elements = 0, total_bits;
    unsigned bits = 0;
    bt_err err;

    out->name = entry->key;
    if ((err = read_dtype(entry, out, &bits, why)) != BT_OK ||
        (err = read_shape(entry, out, &elements, why)) != BT_OK ||
        (err = read_extent(entry, from, header_end, out, why)) != BT_OK) {
        return err;
    }
    if (__builtin_mul_overflow(elements, bits, &total_bits) || total_bits % 8 != 0 || total_bits / 8 != out->bytes) {
        return bt_json_wrong(entry, why, "%" PRIu64 " elements of %u bits do not fill %zu bytes", elements, bits,
                             out->bytes);
    }
    return BT_OK;
}

static int
by_extent(const void *a, const void *b)
{
    const bt_safetensor *x = a, *y = b;

    return x->data != y->data ? (x->data > y->data) - (x->data < y->data)
                              : (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

// The extents of one file (tensors `first` to `end`), sorted, must follow on one another from the header to the end.
static bt_err
check_extents(bt_safetensor *tensors, size_t first, size_t end, const shard *from, size_t header_end, bt_why *why)
{
    const uint8_t *at = from->bytes + header_end, *last = from->bytes + from->count;
    char name[72];

    if (end != first) {
        qsort(tensors + first, end - first, sizeof *tensors, by_extent);
    }
    for (size_t i = first; i < end; i++) {
        if (tensors[i].data != at) {
            return bt_fail(why, BT_ERR_INVALID, "%s: '%s': expected to begin at byte %zu of the data, found %zu (%s)",
                           from->path, bt_printable(tensors[i].name, name), (size_t)(at - from->bytes) - header_end,
                           (size_t)(tensors[i].data - from->bytes) - header_end,
                           tensors[i].data < at ? "overlap" : "gap");
        }
        at += tensors[i].bytes;
    }
    return at == last ? BT_OK
                      : bt_fail(why, BT_ERR_INVALID, "%s: %zu bytes lie behind the last tensor", from->path,
                                (size_t)(last - at));
}

static bool
grow(bt_safetensors *files)
{
    size_t more = files->cap != 0 ? files->cap * 2 : 64;
    void *grown;

    if (files->count < files->cap) {
        return true;
    }
    if ((grown = bt_realloc(files->tensors, more * sizeof *files->tensors)) == NULL) {
        return false;
    }
    files->tensors = grown;
    files->cap = more;
    return true;
}

static bt_err
read_entries(bt_safetensors *files, uint32_t index, size_t header_end, bt_why *why)
{
    const shard *from = &files->shards[index];
    bt_json_at root = bt_json_root(from->header), entry;
    size_t first = files->count;
    void *step = NULL;
    bt_why inner;
    bt_err err;

    if ((err = bt_json_as_object(&root, &inner)) != BT_OK) {
        return in_file(from->path, err, &inner, why);
    }
    while (bt_json_next(&root, &step, &entry)) {
        if (bt_str_is(entry.key, "__metadata__")) {
            continue;
        }
        if (files->count >= TENSORS_MAX) {
            return bt_fail(why, BT_ERR_INVALID, "%s: more than %u tensors", from->path, TENSORS_MAX);
        }
        if (!grow(files)) {
            return out_of_memory(from->path, why);
        }
        files->tensors[files->count] = (bt_safetensor){.file = index};
        if ((err = read_tensor(&entry, from, header_end, &files->tensors[files->count], &inner)) != BT_OK) {
            return in_file(from->path, err, &inner, why);
        }
        files->count++;
    }
    return check_extents(files->tensors, first, files->count, from, header_end, why);
}

static bt_err
read_header(bt_safetensors *files, uint32_t index, bt_why *why)
{
    static const bt_json_limits limits = {.bytes_max = HEADER_MAX, .depth_max = 8, .refuse_duplicates = true};
    shard *from = &files->shards[index];
    uint64_t length;
    bt_why inner;
    bt_err err;

    if (from->count < sizeof length) {
        return bt_fail(why, BT_ERR_INVALID, "%s: expected 8 bytes of header length, found %zu", from->path,
                       from->count);
    }
    memcpy(&length, from->bytes, sizeof length);
    if (length > HEADER_MAX || length > from->count - sizeof length) {
        return bt_fail(why, BT_ERR_INVALID,
                       "%s: header of %" PRIu64 " bytes; the limit is %" PRIu64 ", the file has %zu", from->path,
                       length, HEADER_MAX, from->count);
    }
    err = bt_json_parse(&from->header, (bt_str){(const char *)from->bytes + sizeof length, (size_t)length}, &limits,
                        &inner);
    if (err != BT_OK) {
        return in_file(from->path, err, &inner, why);
    }
    return read_entries(files, index, sizeof length + (size_t)length, why);
}

static int
by_name(const void *a, const void *b)
{
    const bt_str *x = &((const bt_safetensor *)a)->name, *y = &((const bt_safetensor *)b)->name;
    int order = memcmp(x->data, y->data, x->len < y->len ? x->len : y->len);

    return order != 0 ? order : (x->len > y->len) - (x->len < y->len);
}

static bt_err
sort_tensors(bt_safetensors *files, bt_why *why)
{
    char name[72];

    if (files->count != 0) {
        qsort(files->tensors, files->count, sizeof *files->tensors, by_name);
    }
    for (size_t i = 1; i < files->count; i++) {
        if (by_name(&files->tensors[i - 1], &files->tensors[i]) == 0) {
            return bt_fail(why, BT_ERR_INVALID, "%s: '%s' is also in %s", files->shards[files->tensors[i].file].path,
                           bt_printable(files->tensors[i].name, name), files->shards[files->tensors[i - 1].file].path);
        }
    }
    return BT_OK;
}

// A place for one more file; NULL when memory is out.
static shard *
add_shard(bt_safetensors *files, const char *path)
{
    shard *grown = bt_realloc(files->shards, (files->shard_count + 1) * sizeof *files->shards);
    char *copy = bt_strdup(path);

    if (grown != NULL) {
        files->shards = grown;
    }
    if (grown == NULL || copy == NULL) {
        bt_free(copy);
        return NULL;
    }
    grown[files->shard_count] = (shard){.path = copy};
    return &grown[files->shard_count++];
}

static bt_err
add_file(bt_safetensors *files, const char *path, bt_why *why)
{
    shard *added = add_shard(files, path);
    bt_err err;

    if (added == NULL) {
        return out_of_memory(path, why);
    }
    if ((err = bt_file_open(&added->map, path, why)) != BT_OK) {
        return err;
    }
    added->bytes = added->map.data;
    added->count = added->map.bytes;
    return read_header(files, files->shard_count - 1, why);
}

// Opens the shard that the index names for a tensor, unless it is open. Names may not lead out of the folder.
static bt_err
add_named(bt_safetensors *files, const char *folder, const bt_json_at *entry, bt_why *why)
{
    char path[4096], name[72];
    bt_str file;
    bt_err err;

    if ((err = bt_json_as_text(entry, &file, why)) != BT_OK) {
        return err;
    }
    if (file.len == 0 || memchr(file.data, '/', file.len) != NULL || memchr(file.data, 0, file.len) != NULL) {
        return bt_json_wrong(entry, why, "expected the name of a file in this folder, found '%s'",
                             bt_printable(file, name));
    }
    if (snprintf(path, sizeof path, "%s/%s", folder, file.data) >= (int)sizeof path ||
        files->shard_count == FILES_MAX) {
        return bt_json_wrong(entry, why, "its path is too long, or there are more than %u files", FILES_MAX);
    }
    for (uint32_t i = files->shard_count; i-- > 0;) {
        if (strcmp(files->shards[i].path, path) == 0) {
            return BT_OK;
        }
    }
    return add_file(files, path, why);
}

static bt_err
check_index(const bt_safetensors *files, const bt_json_at *entry, const char *folder, bt_why *why)
{
    const bt_safetensor *tensor = bt_safetensors_find(files, entry->key.data);
    bt_str file = {0};
    char name[72];

    (void)bt_json_as_text(entry, &file, NULL);
    if (tensor == NULL || strcmp(strrchr(files->shards[tensor->file].path, '/') + 1, file.data) != 0) {
        return bt_fail(why, BT_ERR_INVALID, "%s: '%s' is not in the file that model.safetensors.index.json names",
                       folder, bt_printable(entry->key, name));
    }
    return BT_OK;
}

static bt_err
open_index(bt_safetensors *files, const char *folder, const bt_json *index, bt_why *why)
{
    bt_json_at root = bt_json_root(index), map = bt_json_get(&root, "weight_map"), entry;
    void *step = NULL;
    bt_err err;

    if ((err = bt_json_as_object(&map, why)) != BT_OK) {
        return err;
    }
    while (bt_json_next(&map, &step, &entry)) {
        if ((err = add_named(files, folder, &entry, why)) != BT_OK) {
            return err;
        }
    }
    if ((err = sort_tensors(files, why)) != BT_OK) {
        return err;
    }
    for (step = NULL; bt_json_next(&map, &step, &entry);) {
        if ((err = check_index(files, &entry, folder, why)) != BT_OK) {
            return err;
        }
    }
    return BT_OK;
}

static bt_err
open_sharded(bt_safetensors *files, const char *folder, bt_why *why)
{
    bt_json *index = NULL;
    char path[4096];
    bt_file file;
    bt_why inner;
    bt_err err;

    if (snprintf(path, sizeof path, "%s/model.safetensors.index.json", folder) >= (int)sizeof path) {
        return bt_fail(why, BT_ERR_INVALID, "%.100s…: the path is too long", folder);
    }
    if ((err = bt_file_open(&file, path, why)) != BT_OK) {
        return err == BT_ERR_NOT_FOUND
                   ? bt_fail(why, err, "%s: neither model.safetensors nor model.safetensors.index.json is there",
                             folder)
                   : err;
    }
    err = bt_json_parse(&index, (bt_str){(const char *)file.data, file.bytes}, NULL, &inner);
    bt_file_close(&file);
    if (err != BT_OK) {
        return in_file(path, err, &inner, why);
    }
    err = open_index(files, folder, index, why);
    bt_json_close(index);
    return err;
}

bt_err
bt_safetensors_open(bt_safetensors **out, const char *folder, bt_why *why)
{
    bt_safetensors *files = bt_alloc(sizeof *files);
    char path[4096];
    bt_err err;

    if (files == NULL) {
        return out_of_memory(folder, why);
    }
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    err = add_file(files, path, why);
    if (err == BT_OK) {
        err = sort_tensors(files, why);
    } else if (err == BT_ERR_NOT_FOUND) {
        bt_free(files->shards[0].path);
        files->shard_count = 0;
        err = open_sharded(files, folder, why);
    }
    if (err != BT_OK) {
        bt_safetensors_close(files);
        return err;
    }
    *out = files;
    return BT_OK;
}

bt_err
bt_safetensors_parse(bt_safetensors **out, const void *bytes, size_t count, const char *name, bt_why *why)
{
    bt_safetensors *files = bt_alloc(sizeof *files);
    shard *added = files != NULL ? add_shard(files, name) : NULL;
    bt_err err = added != NULL ? BT_OK : out_of_memory(name, why);

    if (added != NULL) {
        added->bytes = bytes;
        added->count = count;
    }
    if (err != BT_OK || (err = read_header(files, 0, why)) != BT_OK || (err = sort_tensors(files, why)) != BT_OK) {
        bt_safetensors_close(files);
        return err;
    }
    *out = files;
    return BT_OK;
}

void
bt_safetensors_close(bt_safetensors *files)
{
    if (files == NULL) {
        return;
    }
    for (uint32_t i = 0; i < files->shard_count; i++) {
        bt_json_close(files->shards[i].header);
        bt_file_close(&files->shards[i].map);
        bt_free(files->shards[i].path);
    }
    bt_free(files->shards);
    bt_free(files->tensors);
    bt_free(files);
}

size_t
bt_safetensors_count(const bt_safetensors *files)
{
    return files->count;
}

const bt_safetensor *
bt_safetensors_at(const bt_safetensors *files, size_t index)
{
    return &files->tensors[index];
}

const bt_safetensor *
bt_safetensors_find(const bt_safetensors *files, const char *name)
{
    bt_safetensor wanted = {.name = bt_str_of(name)};

    return files->count != 0 ? bsearch(&wanted, files->tensors, files->count, sizeof wanted, by_name) : NULL;
}

void
bt_safetensors_will_read(const bt_safetensors *files, bt_file_reading what)
{
    for (uint32_t i = 0; i < files->shard_count; i++) {
        bt_file_will_read(&files->shards[i].map, what);
    }
}
