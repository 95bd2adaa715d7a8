#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/time.h"
#include "common/model/digest.h"
#include "common/model/memory.h"
#include "common/model/outline.h"
#include "common/model/pack.h"
#include "common/model/requantise.h"
#include "common/model/tokenizer.h"

#include <string.h>

#define ARENA_MAX ((size_t)64 << 20)

static bt_err
out_of_memory(const bt_model_options *options, bt_why *why)
{
    return bt_fail(why, BT_ERR_NO_MEMORY, "%s: out of memory", options->path);
}

// An empty model with its memory.
static bt_model *
new_model(void)
{
    bt_model *model = bt_alloc(sizeof *model);

    if (model != NULL && (model->memory = bt_alloc(sizeof *model->memory)) == NULL) {
        bt_free(model);
        return NULL;
    }
    if (model != NULL) {
        bt_arena_init(&model->memory->arena, ARENA_MAX);
    }
    return model;
}

void
bt_model_close(bt_model *model)
{
    if (model != NULL) {
        bt_tokenizer_close(model->tokenizer);
        bt_free_pages(model->memory->pages, model->memory->bytes);
        if (model->memory->device != NULL) {
            bt_device_free(model->memory->device, model->memory->on_device, model->memory->on_device_bytes);
        }
        bt_arena_fini(&model->memory->arena);
        bt_free(model->memory);
        bt_free(model);
    }
}

// A model without a tokenizer is a model all the same: ids in, ids out.
static bt_err
open_tokenizer(bt_model *model, const bt_source *source, bt_why *why)
{
    bt_err err = source->gguf != NULL ? bt_model_tokenizer_of_gguf(&model->tokenizer, source->gguf, source->path, why)
                                      : bt_model_tokenizer_of_folder(&model->tokenizer, source->path, why);

    return err == BT_ERR_NOT_FOUND ? BT_OK : err;
}

static bt_err
load_weights(bt_model *model, bt_plan *plan, const bt_model_options *options, bt_device *device, bt_why *why)
{
    struct bt_model_memory *memory = model->memory;
    bt_requantise *requantise = NULL;
    bool made = options->weights == BT_LOAD_W8 || options->weights == BT_LOAD_Q4;
    bt_err err;

    memory->bytes = bt_pack_bytes(plan, bt_device_ops(device));
    if ((memory->pages = bt_alloc_pages(memory->bytes)) == NULL) {
        return out_of_memory(options, why);
    }
    model->weight_bytes = memory->bytes;
    bt_source_will_read(plan->source, BT_READ_ALL);
    if (made && (err = bt_requantise_open(&requantise, plan, model, options, device, why)) != BT_OK) {
        return err;
    }
    err = bt_pack(plan, device, memory->pages, options->progress, options->progress_arg, why);
    if (err == BT_OK && made) {
        err = bt_requantise_finish(requantise, &memory->arena, why);
    }
    bt_requantise_close(requantise);
    return err;
}

bt_err
bt_model_equalise(bt_model *model, const bt_calibration *calibration)
{
    for (uint32_t i = 0; i < model->config.layers; i++) {
        int8_t *shift = bt_arena_alloc(&model->memory->arena, calibration->pairs);

        if (shift == NULL) {
            return BT_ERR_NO_MEMORY;
        }
        memcpy(shift, calibration->layers[i].k_shift, calibration->pairs);
        model->layers[i].k_shift = shift;
    }
    return BT_OK;
}

static void
log_model(const bt_model *model, const bt_plan *plan, const bt_model_options *options, double seconds)
{
    char formats[400];

    bt_plan_describe(plan, formats, sizeof formats);
    bt_log_info("MODEL-OPEN", "%s: %s, %u layers, %.1f MiB of weights in %.2f s, digest %016llx", options->path,
                model->config.architecture, model->config.layers, (double)model->weight_bytes / 0x1p20, seconds,
                (unsigned long long)model->digest);
    bt_log_info("MODEL-FORMATS", "%s", formats);
}

static bt_err
load(bt_model *model, const bt_source *source, const bt_model_options *options, bt_device *device, bt_why *why)
{
    bt_time begin = bt_time_now();
    uint64_t sampled;
    bt_plan plan;
    bt_err err;

    if ((err = bt_model_outline(&plan, model, source, options->weights, options->w8_act_block, &model->memory->arena,
                                why)) != BT_OK ||
        (err = load_weights(model, &plan, options, device, why)) != BT_OK ||
        (err = open_tokenizer(model, source, why)) != BT_OK) {
        bt_plan_close(&plan);
        return err;
    }
    sampled = bt_model_source_digest(&plan);
    model->digest = bt_model_digest(sampled, &plan, options);
    model->family = bt_model_family(sampled, options);
    log_model(model, &plan, options, (double)(bt_time_now() - begin) / (double)BT_SECOND);
    bt_plan_close(&plan);
    return BT_OK;
}

bt_err
bt_model_open(bt_model **out, const bt_model_options *options, bt_device *device, bt_why *why)
{
    bt_source source = {0};
    bt_model *model;
    bt_err err;

    if ((err = bt_source_open(&source, options->path, why)) != BT_OK) {
        return err;
    }
    if ((model = new_model()) == NULL) {
        err = out_of_memory(options, why);
    } else if ((err = load(model, &source, options, device, why)) != BT_OK) {
        bt_model_close(model);
    }
    bt_source_close(&source);
    if (err == BT_OK) {
        *out = model;
    }
    return err;
}
