// baton synth: a random model of a named shape, for measuring.
#include "common/base/time.h"
#include "common/json/write.h"
#include "tools/args.h"
#include "tools/commands.h"
#include "tools/synth/synth.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static void
list_shapes(FILE *to)
{
    const bt_synth_shape *s;

    for (uint32_t i = 0; (s = bt_synth_shape_at(i)) != NULL; i++) {
        fprintf(to, "  %-13s %-5s %2u layers, width %4u, %2u heads over %u of %3u, FFN %5u, vocabulary %u%s\n", s->name,
                s->arch, s->layers, s->hidden, s->heads, s->kv_heads, s->head_dim, s->ffn, s->vocab,
                s->tied ? ", tied" : "");
    }
}

static bt_err
settle(bt_synth_options *o, const char *shape, const char *format, const char *type, bt_why *why)
{
    if ((o->shape = bt_synth_shape_find(shape)) == NULL) {
        return bt_fail(why, BT_ERR_INVALID, "'%s' is no shape, 'baton synth --shapes' lists them", shape);
    }
    if (strcmp(format, "gguf") != 0 && strcmp(format, "safetensors") != 0) {
        return bt_fail(why, BT_ERR_INVALID, "--format: expected gguf or safetensors, not '%s'", format);
    }
    o->safetensors = strcmp(format, "safetensors") == 0;
    if (o->layers > 1024) {
        return bt_fail(why, BT_ERR_INVALID, "--layers: expected at most 1024, not %" PRIu32, o->layers);
    }
    return bt_synth_type(type != NULL ? type : o->safetensors ? "bf16" : "q8_0", o->safetensors, &o->type, why);
}

static void
say(const char *path, uint64_t bytes, double seconds, bool json)
{
    bt_json_writer w;
    bt_buf out;

    if (!json) {
        printf("%s: %.1f MiB in %.2f s\n", path, (double)bytes / 0x1p20, seconds);
        return;
    }
    bt_buf_init(&out, 1u << 20);
    bt_json_write(&w, &out);
    bt_json_begin_object(&w, NULL);
    bt_json_put_text(&w, "path", bt_str_of(path));
    bt_json_put_int(&w, "bytes", (int64_t)bytes);
    bt_json_put_real(&w, "seconds", seconds);
    bt_json_end(&w);
    printf("%.*s\n", (int)out.len, out.data);
    bt_buf_fini(&out);
}

int
bt_synth_main(int argc, char **argv)
{
    bt_synth_options options = {.seed = 1};
    bt_device_options threads = {.kind = BT_DEVICE_CPU};
    const char *format = "gguf", *type = NULL, *positional[2];
    bool shapes = false, json = false;
    const bt_arg args[] = {
        {"format", BT_ARG_STRING, &format, "NAME", "gguf, or safetensors: a folder without a tokenizer", NULL},
        {"type", BT_ARG_STRING, &type, "NAME", "f32, f16, bf16, q8_0 or q4_0 [q8_0; bf16]", NULL},
        {"layers", BT_ARG_U32, &options.layers, "N", "layers, 0 = the shape's", NULL},
        {"seed", BT_ARG_U64, &options.seed, "N", "other weights [1]", NULL},
        {"threads", BT_ARG_U32, &threads.threads, "N", "threads, 0 = all cores", NULL},
        {"shapes", BT_ARG_FLAG, &shapes, NULL, "list the shapes", NULL},
        {"json", BT_ARG_FLAG, &json, NULL, "print one JSON object", NULL},
        {NULL, BT_ARG_FLAG, NULL, NULL, NULL, NULL},
    };
    bt_args_spec spec = {
        .usage = "baton synth SHAPE OUT [options]",
        .about = "Writes a model of random weights in a real model's shape, to measure speed with. Answers are noise. "
                 "The same options give the same bytes.",
        .example =
            "  baton synth llama-1b /tmp/llama-1b.gguf --type q4_0\n  baton synth llama-8b /tmp/llama-8b.gguf && "
            "baton bench engine /tmp/llama-8b.gguf --weights q4 --set engine.hasty_weights=true --device cuda:0",
        .args = args,
        .positional_max = 2,
    };
    bt_time began = bt_time_now();
    bt_device *device = NULL;
    uint32_t count = 0;
    uint64_t bytes = 0;
    bt_why why = {""};
    bt_err err;
    int code = bt_args_parse(&spec, argc, argv, positional, &count);

    if (code >= 0) {
        return code;
    }
    if (shapes) {
        list_shapes(stdout);
        return 0;
    }
    if (count != 2) {
        fprintf(stderr, "baton synth: expected a shape and where to write\n");
        return 2;
    }
    if ((err = settle(&options, positional[0], format, type, &why)) != BT_OK) {
        fprintf(stderr, "baton synth: %s\n", why.text);
        return 2;
    }
    if ((err = bt_device_open(&device, &threads, &why)) == BT_OK) {
        err = bt_synth_write(&options, positional[1], device, &bytes, &why);
        bt_device_close(device);
    }
    if (err != BT_OK) {
        fprintf(stderr, "baton synth: %s\n", why.text);
        return 1;
    }
    say(positional[1], bytes, (double)(bt_time_now() - began) / (double)BT_SECOND, json);
    return 0;
}
