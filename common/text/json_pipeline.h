// The `normalizer` and `pre_tokenizer` of a tokenizer.json, read into ours. What we do not do is refused by its name.
#pragma once

#include "common/json/json.h"
#include "common/text/normalize.h"
#include "common/text/pretokenize.h"

// Absent and null are no step at all.
bt_err bt_json_read_normalizer(const bt_json_at *at, bt_normalizer *out, bt_why *why);
bt_err bt_json_read_pre_tokenizer(const bt_json_at *at, bt_pre_tokenizer *out, bt_why *why);
