#include "common/model/card.h"

#include "common/model/digest.h"
#include "common/model/outline.h"
#include "common/model/tokenizer.h"

#define ARENA_MAX ((size_t)64 << 20)

static bt_err
open_tokenizer(bt_tokenizer **out, const bt_source *source, bt_why *why)
{
    bt_err err = source->gguf != NULL ? bt_model_tokenizer_of_gguf(out, source->gguf, source->path, why)
                                      : bt_model_tokenizer_of_folder(out, source->path, why);

    return err == BT_ERR_NOT_FOUND
               ? bt_fail(why, BT_ERR_UNSUPPORTED, "%s: has no tokenizer, so it cannot be served as text", source->path)
               : err;
}

static void
name(bt_model_names *out, uint64_t sampled, bt_plan *plan, const bt_model_options *options)
{
    bt_plan_formats(plan, options->weights, options->w8_act_block);
    out->digest = bt_model_digest(sampled, plan, options);
    out->family = bt_model_family(sampled, options);
}

bt_err
bt_model_card_open(bt_model_card *out, const char *path, const bt_model_options *options, bt_model_names *names,
                   uint32_t count, bt_why *why)
{
    bt_source source = {0};
    bt_model model = {0};
    bt_model_card card = {0};
    bt_plan plan = {0};
    bt_arena arena;
    bt_err err;

    if ((err = bt_source_open(&source, path, why)) != BT_OK) {
        return err;
    }
    bt_arena_init(&arena, ARENA_MAX);
    if ((err = bt_model_outline(&plan, &model, &source, BT_LOAD_KEEP, 0, &arena, why)) == BT_OK) {
        err = open_tokenizer(&card.tokenizer, &source, why);
    }
    if (err == BT_OK) {
        uint64_t sampled;

        bt_source_will_read(&source, BT_READ_BITS);
        sampled = count != 0 ? bt_model_source_digest(&plan) : 0;

        for (uint32_t i = 0; i < count; i++) {
            name(&names[i], sampled, &plan, &options[i]);
        }
        card.config = model.config;
        card.config.ropes[0].inv_freq = card.config.ropes[1].inv_freq = NULL;
        card.config.layer = NULL;
        *out = card;
    }
    bt_plan_close(&plan);
    bt_arena_fini(&arena);
    bt_source_close(&source);
    return err;
}

void
bt_model_card_close(bt_model_card *card)
{
    bt_tokenizer_close(card->tokenizer);
    card->tokenizer = NULL;
}
