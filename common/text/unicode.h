// The Unicode tables that tokenizers need (utf8proc stays behind this header).
#pragma once

#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/base/str.h"

// Appends the normal form (compatibility: NFKC/NFKD; compose: NFC/NFKC) of valid UTF-8. Linear in the text, also for
// long runs of combining marks in the wrong order.
bt_err bt_unicode_normal_form(bt_str text, bool compatibility, bool compose, bt_buf *out);
void bt_unicode_lowercase(bt_str text, bt_buf *out);
bool bt_unicode_is_space(uint32_t code_point); // White_Space
bool bt_unicode_is_word(uint32_t code_point);  // what \w matches
