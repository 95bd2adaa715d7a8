// What can be known of a model without loading it, from the head of its file or directory and samples of its tensors: for a router its
// tokenizer and sizes, and for all programs of a cluster the digests by which nodes will call it.
#pragma once

#include "common/model/model.h"

// As bt_model has them after loading with these options.
typedef struct {
    uint64_t digest, family;
} bt_model_names;

typedef struct {
    bt_tokenizer *tokenizer;
    bt_model_config config; // without what it points to
} bt_model_card;

// Fills names[count] for options[count], whose paths are not looked at. BT_ERR_UNSUPPORTED where there is no tokenizer. Keeps nothing of
// the file mapped.
bt_err bt_model_card_open(bt_model_card *out, const char *path, const bt_model_options *options, bt_model_names *names,
                          uint32_t count, bt_why *why);
void bt_model_card_close(bt_model_card *card); // accepts a zeroed one

// The names alone: what a decode node expects of itself and of its prefill nodes. A tokenizer is not asked for.
bt_err bt_model_foresee(const char *path, const bt_model_options *options, bt_model_names *names, uint32_t count,
                        bt_why *why);
