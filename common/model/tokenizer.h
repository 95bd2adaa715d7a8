// The tokenizer of a model file or directory, without its weights.
#pragma once

#include "common/model/gguf.h"
#include "common/text/tokenizer.h"

// `path` is a .gguf file or a directory with tokenizer.json. BT_ERR_NOT_FOUND when it holds no tokenizer.
bt_err bt_model_tokenizer_open(bt_tokenizer **out, const char *path, bt_why *why);

// The same from a file that is open, and from a folder. `path` is for messages.
bt_err bt_model_tokenizer_of_gguf(bt_tokenizer **out, const bt_gguf *gguf, const char *path, bt_why *why);
bt_err bt_model_tokenizer_of_folder(bt_tokenizer **out, const char *folder, bt_why *why);
