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
name_all(bt_model_names *names, const bt_model_options *options, uint32_t count, bt_plan *plan)
{
    uint64_t sampled;

    if (count == 0) {
        return;
    }
    bt_source_will_read(plan->source, BT_READ_BITS);
    sampled = bt_model_source_digest(plan);
    for (uint32_t i = 0; i < count; i++) {
        bt_plan_formats(plan, options[i].weights, options[i].w8_act_block);
        names[i] = (bt_model_names){.digest = bt_model_digest(sampled, plan, &options[i]),
                                    .family = bt_model_family(sampled, &options[i])};
    }
}

static bt_err
fill_card(bt_model_card *card, const bt_model *model, const bt_source *source, bt_why *why)
{
    *card = (bt_model_card){.config = model->config};
    card->config.ropes[0].inv_freq = card->config.ropes[1].inv_freq = NULL;
    card->config.layer = NULL;
    return open_tokenizer(&card->tokenizer, source, why);
}

// Without a card: the names alone.
static bt_err
look(const char *path, bt_model_card *card, bt_model_names *names, const bt_model_options *options, uint32_t count,
     bt_why *why)
{
    bt_source source = {0};
    bt_model model = {0};
    bt_plan plan = {0};
    bt_arena arena;
    bt_err err;

    if ((err = bt_source_open(&source, path, why)) != BT_OK) {
        return err;
    }
    bt_arena_init(&arena, ARENA_MAX);
    if ((err = bt_model_outline(&plan, &model, &source, BT_LOAD_KEEP, 0, &arena, why)) == BT_OK &&
        (card == NULL || (err = fill_card(card, &model, &source, why)) == BT_OK)) {
        name_all(names, options, count, &plan);
    }
    bt_plan_close(&plan);
    bt_arena_fini(&arena);
    bt_source_close(&source);
    return err;
}

bt_err
bt_model_card_open(bt_model_card *out, const char *path, const bt_model_options *options, bt_model_names *names,
                   uint32_t count, bt_why *why)
{
    bt_model_card card;
    bt_err err = look(path, &card, names, options, count, why);

    if (err == BT_OK) {
        *out = card;
    }
    return err;
}

bt_err
bt_model_foresee(const char *path, const bt_model_options *options, bt_model_names *names, uint32_t count, bt_why *why)
{
    return look(path, NULL, names, options, count, why);
}

void
bt_model_card_close(bt_model_card *card)
{
    bt_tokenizer_close(card->tokenizer);
    card->tokenizer = NULL;
}
