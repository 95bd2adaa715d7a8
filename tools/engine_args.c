#include "tools/engine_args.h"

#include "common/base/log.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    const char *key;
    size_t offset;
} number_setting;

// Settings of two words. len: of the key.
static bt_err
set_switch(bt_engine_args *args, const char *value, size_t len, bt_why *why)
{
    static const struct {
        const char *key, *otherwise, *word; // `word` sets
        size_t offset;
    } switches[] = {
        {"cuda.activations", "auto", "f32", offsetof(bt_engine_args, options.device.float_activations)},
        {"kv.equalise", "on", "off", offsetof(bt_engine_args, unequal)},
        {"weights.smooth", "on", "off", offsetof(bt_engine_args, options.model.rough)},
        {"engine.hasty_weights", "false", "true", offsetof(bt_engine_args, options.model.hasty)},
    };
    const char *given = value + len + 1;

    for (size_t i = 0; i < sizeof switches / sizeof *switches; i++) {
        if (strlen(switches[i].key) == len && memcmp(switches[i].key, value, len) == 0) {
            bool sets = strcmp(given, switches[i].word) == 0;

            if (!sets && strcmp(given, switches[i].otherwise) != 0) {
                return bt_fail(why, BT_ERR_INVALID, "%s: expected %s or %s, not '%s'", switches[i].key,
                               switches[i].otherwise, switches[i].word, given);
            }
            *(bool *)(void *)((char *)args + switches[i].offset) = sets;
            return BT_OK;
        }
    }
    return bt_fail(why, BT_ERR_INVALID, "'%.*s' is no setting of this command", (int)len, value);
}

static bt_err
set_setting(void *target, const char *value, bt_why *why)
{
    static const number_setting numbers[] = {
        {"engine.chunk_tokens", offsetof(bt_engine_options, chunk_tokens)},
        {"engine.max_sequences", offsetof(bt_engine_options, max_sequences)},
        {"engine.context", offsetof(bt_engine_options, context)},
        {"kv.blocks", offsetof(bt_engine_options, kv_blocks)},
        {"kv.block_tokens", offsetof(bt_engine_options, kv_block_tokens)},
        {"weights.act_block", offsetof(bt_engine_options, model.w8_act_block)},
    };
    bt_engine_args *args = target;
    const char *equals = strchr(value, '=');
    size_t len = equals != NULL ? (size_t)(equals - value) : 0;

    if (equals == NULL) {
        return bt_fail(why, BT_ERR_INVALID, "expected key=value, not '%s'", value);
    }
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        if (strlen(numbers[i].key) == len && memcmp(numbers[i].key, value, len) == 0) {
            char *end;
            unsigned long number = strtoul(equals + 1, &end, 10);

            if (equals[1] < '0' || equals[1] > '9' || *end != 0 || number > UINT32_MAX) {
                return bt_fail(why, BT_ERR_INVALID, "%s: expected a whole number, not '%s'", numbers[i].key,
                               equals + 1);
            }
            *(uint32_t *)(void *)((char *)&args->options + numbers[i].offset) = (uint32_t)number;
            return BT_OK;
        }
    }
    if (len == 7 && memcmp(value, "cpu.isa", 7) == 0) {
        args->options.device.isa = equals + 1;
    } else if (len == 9 && memcmp(value, "kv.format", 9) == 0) {
        args->kv = equals + 1;
    } else if (len == 7 && memcmp(value, "weights", 7) == 0) {
        args->weights = equals + 1;
    } else {
        return set_switch(args, value, len, why);
    }
    return BT_OK;
}

static const char *const kv_names[] = {[BT_KV_INT8] = "int8", [BT_KV_F16] = "f16", [BT_KV_F32] = "f32"};
static const char *const weight_names[] = {[BT_LOAD_KEEP] = "keep", [BT_LOAD_W8] = "w8", [BT_LOAD_Q4] = "q4"};

static bt_err
pick(const char *what, const char *word, const char *const *names, size_t count, unsigned *out, bt_why *why)
{
    for (size_t i = 0; i < count; i++) {
        if (strcmp(word, names[i]) == 0) {
            *out = (unsigned)i;
            return BT_OK;
        }
    }
    return bt_fail(why, BT_ERR_INVALID, "%s: expected %s, %s or %s, not '%s'", what, names[0], names[1], names[2],
                   word);
}

void
bt_engine_args_init(bt_engine_args *args)
{
    const bt_arg table[] = {
        {"device", BT_ARG_STRING, &args->device, "WHICH", "cpu or cuda:N [cpu]", NULL},
        {"threads", BT_ARG_U32, &args->options.device.threads, "N", "threads, 0 = all cores", NULL},
        {"kv", BT_ARG_STRING, &args->kv, "FORMAT", "KV cache: int8, f16 or f32", NULL},
        {"weights", BT_ARG_STRING, &args->weights, "HOW", "keep, w8 or q4: requantise while loading", NULL},
        {"exact", BT_ARG_FLAG, &args->exact, NULL, "f32 weights and f32 KV: slow, the yardstick", NULL},
        {"context", BT_ARG_U32, &args->options.context, "N", "longest sequence, 0 = the model's", NULL},
        {"set", BT_ARG_CALL, args, "KEY=VALUE", "engine.chunk_tokens, kv.format, cpu.isa, …", set_setting},
        {"quiet", BT_ARG_FLAG, &args->quiet, NULL, "warnings and errors only", NULL},
        {NULL, BT_ARG_FLAG, NULL, NULL, NULL, NULL},
    };

    memset(args, 0, sizeof *args);
    args->options.chunk_tokens = 512;
    args->options.max_sequences = 1;
    memcpy(args->table, table, sizeof table);
}

bt_err
bt_engine_args_finish(bt_engine_args *args, const char *model_path, bt_why *why)
{
    bt_engine_options *options = &args->options;
    unsigned kv = args->exact ? BT_KV_F32 : BT_KV_INT8, weights = BT_LOAD_KEEP;
    bt_err err;

    if (options->model.w8_act_block != 0 && options->model.w8_act_block != 128) {
        return bt_fail(why, BT_ERR_INVALID, "weights.act_block: expected 0 (one scale a token) or 128, not %u",
                       options->model.w8_act_block);
    }
    if (args->exact && args->weights != NULL) {
        return bt_fail(why, BT_ERR_INVALID, "--exact and --weights exclude each other");
    }
    if ((args->kv != NULL && (err = pick("--kv", args->kv, kv_names, 3, &kv, why)) != BT_OK) ||
        (args->weights != NULL && (err = pick("--weights", args->weights, weight_names, 3, &weights, why)) != BT_OK)) {
        return err;
    }
    if (args->device != NULL && (err = bt_device_parse(&options->device, args->device, why)) != BT_OK) {
        return err;
    }
    if (access(model_path, R_OK) != 0) {
        return bt_fail(why, BT_ERR_NOT_FOUND, "%s: no such file or directory, or not readable", model_path);
    }
    if (args->quiet) {
        bt_log_set_level(BT_LOG_WARN);
    }
    options->model.path = model_path;
    options->model.weights = args->exact ? BT_LOAD_EXACT : (bt_load_weights)weights;
    options->kv_format = (bt_kv_format)kv;
    options->model.equalise = kv == BT_KV_INT8 && !args->unequal;
    return BT_OK;
}
