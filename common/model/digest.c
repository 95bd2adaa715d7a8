#include "common/model/digest.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#define WHOLE_MAX ((size_t)64 << 10)
#define PIECES 16
#define PIECE_BYTES ((size_t)1 << 10)

static uint64_t
add(uint64_t digest, const void *bytes, size_t count)
{
    return XXH3_64bits_withSeed(bytes, count, digest);
}

static uint64_t
add_tensor(uint64_t digest, const bt_source_tensor *tensor)
{
    uint64_t facts[] = {tensor->type, tensor->rows, tensor->cols};

    digest = add(digest, tensor->name.data, tensor->name.len);
    digest = add(digest, facts, sizeof facts);
    if (tensor->bytes <= WHOLE_MAX) {
        return add(digest, tensor->data, tensor->bytes);
    }
    for (size_t i = 0; i < PIECES; i++) {
        digest = add(digest, tensor->data + (tensor->bytes - PIECE_BYTES) / (PIECES - 1) * i, PIECE_BYTES);
    }
    return digest;
}

uint64_t
bt_model_source_digest(const bt_plan *plan)
{
    uint64_t digest = add(0, plan->arch->name, strlen(plan->arch->name));

    for (uint32_t i = 0; i < plan->weight_count; i++) {
        digest = add_tensor(digest, &plan->weights[i].tensor);
    }
    for (uint32_t i = 0; i < plan->vector_count; i++) {
        digest = add_tensor(digest, &plan->vectors[i].tensor);
    }
    return digest;
}

uint64_t
bt_model_digest(uint64_t source, const bt_plan *plan, const bt_model_options *options)
{
    uint8_t choices[] = {(uint8_t)options->weights, options->equalise, (uint8_t)options->w8_act_block, options->rough};
    uint64_t digest = add(source, choices, sizeof choices);

    if (options->hasty) {
        digest = add(digest, "hasty", 5);
    }
    if (options->rounded && bt_plan_has_halves(plan)) {
        digest = add(digest, "rounded", 7);
    }
    for (uint32_t i = 0; i < plan->weight_count; i++) {
        char name[24];

        bt_format_name(plan->weights[i].weight->format, name);
        digest = add(digest, name, strlen(name));
    }
    return digest;
}

uint64_t
bt_model_family(uint64_t source, const bt_model_options *options)
{
    bool made = options->weights == BT_LOAD_W8 || options->weights == BT_LOAD_Q4;
    uint8_t choices[] = {options->equalise,
                         made && !options->rough}; // V's rows are divided where O's columns are smoothed

    return add(source, choices, sizeof choices);
}
