// The tokenizer of a model file or directory, without its weights.
#pragma once

#include "common/text/tokenizer.h"

// `path` is a .gguf file or a directory with tokenizer.json. BT_ERR_NOT_FOUND when it holds no tokenizer.
bt_err bt_model_tokenizer_open(bt_tokenizer **out, const char *path, bt_why *why);
