// baton inspect: what a model file holds, and what Baton would make of it. Reads no weights.
#include "common/base/mem.h"
#include "common/json/write.h"
#include "common/model/file.h"
#include "common/model/outline.h"
#include "common/model/tokenizer.h"
#include "tools/args.h"
#include "tools/commands.h"

#include <inttypes.h>
#include <stdio.h>

typedef struct {
    const char *path;
    bt_source source;
    bt_model model;
    bt_arena arena;
    bt_plan plan;
    bt_tokenizer *tokenizer; // NULL = none
    bt_err unservable;       // BT_OK: the plan and the model's config are whole
    bt_why why;              // else the reason
    uint64_t parameters, bytes;
} findings;

static bt_err
find_out(findings *f, const char *path)
{
    bt_err err;

    f->path = path;
    bt_arena_init(&f->arena, 64u << 20);
    if ((err = bt_source_open(&f->source, path, &f->why)) != BT_OK) {
        return err;
    }
    for (size_t i = 0; i < bt_source_count(&f->source); i++) {
        bt_source_tensor tensor = bt_source_at(&f->source, i);

        f->parameters += tensor.rows * tensor.cols;
        f->bytes += tensor.bytes;
    }
    if (f->source.gguf != NULL) {
        (void)bt_model_tokenizer_of_gguf(&f->tokenizer, f->source.gguf, path, NULL);
    } else {
        (void)bt_model_tokenizer_of_folder(&f->tokenizer, path, NULL);
    }
    f->unservable = bt_model_outline(&f->plan, &f->model, &f->source, BT_LOAD_KEEP, 0, &f->arena, &f->why);
    return BT_OK;
}

static void
forget(findings *f)
{
    bt_tokenizer_close(f->tokenizer);
    bt_plan_close(&f->plan);
    bt_arena_fini(&f->arena);
    bt_source_close(&f->source);
}

// The format that a tensor's weights would be held in; "" for vectors and where there is no plan.
static const char *
format_of(const findings *f, bt_str name, char out[24])
{
    out[0] = 0;
    for (uint32_t i = 0; f->unservable == BT_OK && i < f->plan.weight_count; i++) {
        if (f->plan.weights[i].tensor.name.data == name.data) {
            return bt_format_name(f->plan.weights[i].weight->format, out);
        }
    }
    return out;
}

// Tensors and bytes of the type of tensor `index`; false when an earlier tensor has counted them.
static bool
count_type(const bt_source *source, size_t index, uint64_t *count, uint64_t *bytes)
{
    bt_str type = bt_source_at(source, index).type_name;

    *count = *bytes = 0;
    for (size_t i = 0; i < bt_source_count(source); i++) {
        bt_source_tensor tensor = bt_source_at(source, i);

        if (bt_str_equal(tensor.type_name, type)) {
            if (i < index) {
                return false;
            }
            ++*count;
            *bytes += tensor.bytes;
        }
    }
    return true;
}

static void
print_config(const bt_model_config *c)
{
    uint32_t windows = 0, window = 0;

    for (uint32_t i = 0; i < c->layers; i++) {
        windows += c->layer[i].window != 0;
        window = c->layer[i].window != 0 ? c->layer[i].window : window;
    }
    printf("model         %s \"%s\": %u layers, width %u, FFN %u, vocabulary %u, context %u\n", c->architecture,
           c->name, c->layers, c->hidden, c->ffn, c->vocab, c->context);
    printf("attention     %u heads over %u KV heads of %u", c->heads, c->kv_heads, c->head_dim);
    if (windows != 0) {
        printf("; window %u on %u of %u layers", window, windows, c->layers);
    }
    printf("\n");
}

static void
print_tokenizer(const bt_tokenizer *t)
{
    const char *template = t != NULL ? bt_tokenizer_chat_template(t) : NULL;

    if (t == NULL) {
        printf("tokenizer     none\n");
        return;
    }
    printf("tokenizer     %u tokens, bos %d%s, eos %d, ", bt_tokenizer_vocab_size(t), bt_tokenizer_bos(t),
           bt_tokenizer_adds_bos(t) ? " (put in front)" : "", bt_tokenizer_eos(t));
    if (template != NULL) {
        printf("chat template of %zu bytes\n", strlen(template));
    } else {
        printf("no chat template\n");
    }
}

static void
print_value(const bt_gguf_value *value)
{
    char key[72], text[72];
    size_t cursor = 0;
    bt_str string = {(const char *)value->data + 8, value->bytes - 8};

    printf("  %-42s ", bt_printable(value->key, key));
    if (value->type == BT_GGUF_STRING) {
        printf("\"%s\"\n", bt_printable(string, text));
    } else if (value->type != BT_GGUF_ARRAY) {
        printf("%.10g\n", bt_gguf_item_number(value, 0));
    } else if (bt_gguf_next_string(value, &cursor, &string)) {
        printf("%" PRIu64 " texts, the first \"%s\"\n", value->count, bt_printable(string, text));
    } else {
        printf("%" PRIu64 " numbers, the first %.10g\n", value->count, bt_gguf_item_number(value, 0));
    }
}

static void
print_tensors(const findings *f)
{
    for (size_t i = 0; i < bt_source_count(&f->source); i++) {
        bt_source_tensor tensor = bt_source_at(&f->source, i);
        char name[72], format[24];

        printf("  %-42s %8" PRIu64 " x %-7" PRIu64 " %-6.*s %s\n", bt_printable(tensor.name, name), tensor.rows,
               tensor.cols, (int)tensor.type_name.len, tensor.type_name.data, format_of(f, tensor.name, format));
    }
}

static void
print_text(const findings *f, bool all)
{
    char formats[1000];
    uint64_t count, bytes;

    printf("file          %s (%s)\n", f->path, f->source.gguf != NULL ? "GGUF" : "safetensors");
    if (f->unservable == BT_OK) {
        print_config(&f->model.config);
    }
    printf("parameters    %.1f M in %zu tensors, %.1f MiB\n", (double)f->parameters / 1e6, bt_source_count(&f->source),
           (double)f->bytes / 0x1p20);
    for (size_t i = 0; i < bt_source_count(&f->source); i++) {
        if (count_type(&f->source, i, &count, &bytes)) {
            bt_str type = bt_source_at(&f->source, i).type_name;

            printf("              %-6.*s %4" PRIu64 " tensors %9.1f MiB\n", (int)type.len, type.data, count,
                   (double)bytes / 0x1p20);
        }
    }
    if (f->unservable == BT_OK) {
        bt_plan_describe(&f->plan, formats, sizeof formats);
        printf("held as       %s\n", formats);
    }
    print_tokenizer(f->tokenizer);
    if (f->source.gguf != NULL) {
        printf("metadata\n");
        for (size_t i = 0; i < bt_gguf_value_count(f->source.gguf); i++) {
            print_value(bt_gguf_value_at(f->source.gguf, i));
        }
    }
    if (all) {
        printf("tensors\n");
        print_tensors(f);
    } else {
        printf("(--tensors lists them)\n");
    }
}

static void
write_config(bt_json_writer *w, const bt_model_config *c)
{
    bt_json_begin_object(w, "config");
    bt_json_put_text(w, "architecture", bt_str_of(c->architecture));
    bt_json_put_text(w, "name", bt_str_of(c->name));
    bt_json_put_int(w, "layers", c->layers);
    bt_json_put_int(w, "hidden", c->hidden);
    bt_json_put_int(w, "heads", c->heads);
    bt_json_put_int(w, "kv_heads", c->kv_heads);
    bt_json_put_int(w, "head_dim", c->head_dim);
    bt_json_put_int(w, "ffn", c->ffn);
    bt_json_put_int(w, "vocab", c->vocab);
    bt_json_put_int(w, "context", c->context);
    bt_json_begin_array(w, "windows");
    for (uint32_t i = 0; i < c->layers; i++) {
        bt_json_put_int(w, NULL, c->layer[i].window);
    }
    bt_json_end(w);
    bt_json_end(w);
}

static void
write_tokenizer(bt_json_writer *w, const bt_tokenizer *t)
{
    const char *template = t != NULL ? bt_tokenizer_chat_template(t) : NULL;

    if (t == NULL) {
        bt_json_put_null(w, "tokenizer");
        return;
    }
    bt_json_begin_object(w, "tokenizer");
    bt_json_put_int(w, "tokens", bt_tokenizer_vocab_size(t));
    bt_json_put_int(w, "bos", bt_tokenizer_bos(t));
    bt_json_put_int(w, "eos", bt_tokenizer_eos(t));
    bt_json_put_bool(w, "adds_bos", bt_tokenizer_adds_bos(t));
    bt_json_put_int(w, "chat_template_bytes", template != NULL ? (int64_t)strlen(template) : 0);
    bt_json_end(w);
}

static void
write_value(bt_json_writer *w, const bt_gguf_value *value)
{
    char key[72];

    bt_printable(value->key, key);
    if (value->type == BT_GGUF_STRING) {
        bt_json_put_text(w, key, (bt_str){(const char *)value->data + 8, value->bytes - 8});
    } else if (value->type == BT_GGUF_BOOL) {
        bt_json_put_bool(w, key, value->data[0] != 0);
    } else if (value->type == BT_GGUF_ARRAY) {
        bt_json_begin_object(w, key);
        bt_json_put_int(w, "array_length", (int64_t)value->count);
        bt_json_end(w);
    } else if (value->type == BT_GGUF_F32 || value->type == BT_GGUF_F64) {
        bt_json_put_real(w, key, bt_gguf_item_number(value, 0));
    } else {
        bt_json_put_int(w, key, (int64_t)bt_gguf_item_number(value, 0));
    }
}

static void
write_metadata(bt_json_writer *w, const bt_source *source)
{
    if (source->gguf == NULL) {
        bt_json_at config = bt_json_root(source->config);

        bt_json_put_value(w, "metadata", &config);
        return;
    }
    bt_json_begin_object(w, "metadata");
    for (size_t i = 0; i < bt_gguf_value_count(source->gguf); i++) {
        write_value(w, bt_gguf_value_at(source->gguf, i));
    }
    bt_json_end(w);
}

static void
write_tensors(bt_json_writer *w, const findings *f)
{
    bt_json_begin_array(w, "tensors");
    for (size_t i = 0; i < bt_source_count(&f->source); i++) {
        bt_source_tensor tensor = bt_source_at(&f->source, i);
        char format[24];

        bt_json_begin_object(w, NULL);
        bt_json_put_text(w, "name", tensor.name);
        bt_json_put_text(w, "type", tensor.type_name);
        bt_json_put_int(w, "rows", (int64_t)tensor.rows);
        bt_json_put_int(w, "cols", (int64_t)tensor.cols);
        bt_json_put_int(w, "bytes", (int64_t)tensor.bytes);
        if (*format_of(f, tensor.name, format) != 0) {
            bt_json_put_text(w, "format", bt_str_of(format));
        }
        bt_json_end(w);
    }
    bt_json_end(w);
}

static void
print_json(const findings *f)
{
    bt_json_writer w;
    bt_buf out;

    bt_buf_init(&out, 1u << 30);
    bt_json_write(&w, &out);
    bt_json_begin_object(&w, NULL);
    bt_json_put_text(&w, "path", bt_str_of(f->path));
    bt_json_put_text(&w, "container", bt_str_of(f->source.gguf != NULL ? "gguf" : "safetensors"));
    bt_json_put_bool(&w, "servable", f->unservable == BT_OK);
    if (f->unservable != BT_OK) {
        bt_json_put_text(&w, "reason", bt_str_of(f->why.text));
    }
    bt_json_put_int(&w, "parameters", (int64_t)f->parameters);
    bt_json_put_int(&w, "tensor_bytes", (int64_t)f->bytes);
    if (f->unservable == BT_OK) {
        write_config(&w, &f->model.config);
    }
    write_tokenizer(&w, f->tokenizer);
    write_metadata(&w, &f->source);
    write_tensors(&w, f);
    bt_json_end(&w);
    puts(out.data);
    bt_buf_fini(&out);
}

int
bt_inspect_main(int argc, char **argv)
{
    bool json = false, all = false;
    const bt_arg args[] = {
        {"tensors", BT_ARG_FLAG, &all, NULL, "list every tensor and the format it would be held in", NULL},
        {"json", BT_ARG_FLAG, &json, NULL, "one JSON object on stdout, tensors included", NULL},
        {NULL, BT_ARG_FLAG, NULL, NULL, NULL, NULL},
    };
    bt_args_spec spec = {
        .usage = "baton inspect MODEL [options]",
        .about = "Says what a .gguf file or a Hugging Face folder holds, and what Baton would make of it. A file that "
                 "cannot be served is described as far as it can be read, with the reason on stderr and exit code 2.",
        .example = "  baton inspect smollm2.gguf",
        .args = args,
        .positional_min = 1,
        .positional_max = 1,
    };
    findings found = {.why = {""}};
    const char *path;
    bt_err err;
    int code = bt_args_parse(&spec, argc, argv, &path, NULL);

    if (code >= 0) {
        return code;
    }
    if ((err = find_out(&found, path)) == BT_OK) {
        if (json) {
            print_json(&found);
        } else {
            print_text(&found, all);
        }
        err = found.unservable;
    }
    if (err != BT_OK) {
        fprintf(stderr, "baton inspect: %s\n", found.why.text);
    }
    forget(&found);
    return err == BT_OK ? 0 : err == BT_ERR_NO_MEMORY ? 1 : 2;
}
