#include "common/model/outline.h"

#include "common/model/file.h"

bt_err
bt_model_outline(bt_plan *plan, bt_model *model, const bt_source *source, bt_load_weights mode, uint32_t w8_act_block,
                 bt_arena *arena, bt_why *why)
{
    const bt_arch *arch;
    bt_keys keys;
    char shown[72], known[160];
    bt_err err;

    *plan = (bt_plan){0};
    if ((err = bt_keys_init(&keys, source, why)) != BT_OK) {
        return err;
    }
    if ((arch = bt_arch_find(keys.architecture, source->gguf != NULL)) == NULL) {
        return bt_fail(why, BT_ERR_UNSUPPORTED, "%s: architecture '%s' is not supported, expected one of %s",
                       source->path, bt_printable(bt_str_of(keys.architecture), shown),
                       bt_arch_list(source->gguf != NULL, known, sizeof known));
    }
    if ((err = bt_model_config_read(&keys, arch, arena, &model->config, why)) != BT_OK) {
        return err;
    }
    if ((model->layers = bt_arena_alloc(arena, model->config.layers * sizeof *model->layers)) == NULL) {
        return bt_fail(why, BT_ERR_NO_MEMORY, "%s: out of memory", source->path);
    }
    if ((err = bt_plan_open(plan, source, arch, model, why)) == BT_OK) {
        bt_plan_formats(plan, mode, w8_act_block);
    }
    return err;
}
