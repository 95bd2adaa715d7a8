// Keeps special tokens that a user typed from being read as special tokens.
//
// A message's text goes through the chat template and comes back as part of a longer text, in which "<|im_end|>" of the
// template and "<|im_end|>" of a user look the same. So each one that a user typed is put between two marks before the
// template runs (noncharacters, which no text has), and afterwards what is between marks is encoded as plain text.
#pragma once

#include "common/base/buf.h"
#include "common/base/mem.h"
#include "common/text/tokenizer.h"

typedef struct {
    bt_str *tokens; // those that encode as one id where BT_ENCODE_SPECIAL is given
    uint32_t count;
    bool begins[256]; // first bytes
} bt_text_guard;

bt_err bt_text_guard_init(bt_text_guard *guard, const bt_tokenizer *tokenizer);
void bt_text_guard_fini(bt_text_guard *guard);

// Appends the messages with marks around special tokens in their texts. Marks that were there before become U+FFFD.
void bt_text_guard_mark(const bt_text_guard *guard, bt_str messages_json, bt_buf *out);

// The next piece of a rendered text: true while there is one. `plain` says that it stood between marks.
bool bt_text_guard_next(bt_str *rest, bt_str *piece, bool *plain);
