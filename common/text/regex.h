// Regular expressions over UTF-8, as pre-tokenizers use them: PCRE2 with Unicode properties, compiled to machine code
// where PCRE2 can, and with limits, because pattern and text both come from outside.
//
// An expression is immutable: any number of threads search with it, each with a finder of its own.
#pragma once

#include "common/base/err.h"
#include "common/base/str.h"

typedef struct bt_regex bt_regex;
typedef struct bt_regex_finder bt_regex_finder;

// `why` has the pattern's fault and its offset. Written for Oniguruma (as tokenizer.json is): ^ and $ match at lines.
bt_err bt_regex_open(bt_regex **out, bt_str pattern, bt_why *why);
void bt_regex_close(bt_regex *regex);

// A finder serves every expression; its step limit follows the length of the text.
bt_err bt_regex_finder_open(bt_regex_finder **out, size_t text_bytes);
void bt_regex_finder_close(bt_regex_finder *finder);

// The first match at or after `from`; the text must be valid UTF-8. BT_ERR_NOT_FOUND when there is none,
// BT_ERR_TOO_LONG when a limit of steps or memory was hit.
bt_err bt_regex_find(const bt_regex *regex, bt_regex_finder *finder, bt_str text, size_t from, size_t *begin,
                     size_t *end);
