#include "common/model/source.h"

#include "common/base/mem.h"
#include "common/model/file.h"

#include <stdio.h>
#include <sys/stat.h>

bt_err
bt_source_read_text(const char *folder, const char *name, char **out, size_t *bytes, bt_why *why)
{
    char path[4096];
    bt_file file;
    bt_err err;

    if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path) {
        return bt_fail(why, BT_ERR_INVALID, "%.100s…: the path is too long", folder);
    }
    if ((err = bt_file_open(&file, path, why)) != BT_OK) {
        return err;
    }
    if ((*out = bt_alloc(file.bytes + 1)) == NULL) {
        bt_file_close(&file);
        return bt_fail(why, BT_ERR_NO_MEMORY, "%s: out of memory", path);
    }
    if (file.bytes != 0) {
        memcpy(*out, file.data, file.bytes);
    }
    *bytes = file.bytes;
    bt_file_close(&file);
    return BT_OK;
}

static bt_err
open_config(bt_source *source, bt_why *why)
{
    char *text = NULL;
    size_t bytes;
    bt_why inner;
    bt_err err;

    if ((err = bt_source_read_text(source->path, "config.json", &text, &bytes, why)) != BT_OK) {
        return err;
    }
    if ((err = bt_json_parse(&source->config, (bt_str){text, bytes}, NULL, &inner)) != BT_OK) {
        err = bt_fail(why, err, "%.200s/config.json: %.290s", source->path, inner.text);
    }
    bt_free(text);
    return err;
}

bt_err
bt_source_open(bt_source *out, const char *path, bt_why *why)
{
    bt_source source = {.path = path};
    struct stat info;
    bt_err err;

    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode)) {
        if ((err = open_config(&source, why)) != BT_OK ||
            (err = bt_safetensors_open(&source.safetensors, path, why)) != BT_OK) {
            bt_source_close(&source);
            return err;
        }
    } else if ((err = bt_gguf_open(&source.gguf, path, why)) != BT_OK) {
        return err;
    }
    *out = source;
    return BT_OK;
}

void
bt_source_close(bt_source *source)
{
    bt_gguf_close(source->gguf);
    bt_safetensors_close(source->safetensors);
    bt_json_close(source->config);
    *source = (bt_source){0};
}

static bt_source_tensor
from_gguf(const bt_gguf_tensor *tensor)
{
    return (bt_source_tensor){
        .name = tensor->name,
        .type = tensor->type,
        .type_name = bt_str_of(bt_ggml_name(tensor->type)),
        .rows = tensor->shape[1] * tensor->shape[2] * tensor->shape[3],
        .cols = tensor->shape[0],
        .data = tensor->data,
        .bytes = tensor->bytes,
    };
}

static bt_source_tensor
from_safetensor(const bt_safetensor *tensor)
{
    bt_source_tensor out = {
        .name = tensor->name,
        .type = tensor->type,
        .type_name = tensor->dtype,
        .rows = 1,
        .cols = tensor->dims != 0 ? tensor->shape[tensor->dims - 1] : 1,
        .data = tensor->data,
        .bytes = tensor->bytes,
    };

    for (uint32_t i = 0; i + 1 < tensor->dims; i++) {
        out.rows *= tensor->shape[i];
    }
    return out;
}

size_t
bt_source_count(const bt_source *source)
{
    return source->gguf != NULL ? bt_gguf_tensor_count(source->gguf) : bt_safetensors_count(source->safetensors);
}

bt_source_tensor
bt_source_at(const bt_source *source, size_t index)
{
    return source->gguf != NULL ? from_gguf(bt_gguf_tensor_at(source->gguf, index))
                                : from_safetensor(bt_safetensors_at(source->safetensors, index));
}

bool
bt_source_find(const bt_source *source, const char *name, bt_source_tensor *out)
{
    if (source->gguf != NULL) {
        const bt_gguf_tensor *tensor = bt_gguf_find_tensor(source->gguf, name);

        if (tensor != NULL) {
            *out = from_gguf(tensor);
        }
        return tensor != NULL;
    }
    const bt_safetensor *tensor = bt_safetensors_find(source->safetensors, name);

    if (tensor != NULL) {
        *out = from_safetensor(tensor);
    }
    return tensor != NULL;
}

void
bt_source_will_read(const bt_source *source, bt_file_reading what)
{
    if (source->gguf != NULL) {
        bt_gguf_will_read(source->gguf, what);
    } else {
        bt_safetensors_will_read(source->safetensors, what);
    }
}
