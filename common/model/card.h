// What a router needs of a model: its tokenizer, its sizes, and the digests by which nodes will call it, read from the file or directory
// without the weights.
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
