// Small vocabularies of our own, for the tests of common/text.
#pragma once

#include "common/text/tokenizer.h"

// Byte-level BPE. Ids 0–255 are the bytes, so that an id below 256 is the byte; then the merges below, in rank order,
// then control and user-defined tokens.
enum {
    SMALL_TH = 256,    // t h
    SMALL_THE,         // th e
    SMALL_SPACE_THE,   // ␣ the
    SMALL_AA,          // a a
    SMALL_AAA,         // aa a
    SMALL_E_ACUTE,     // é, of its two bytes
    SMALL_DIGITS,      // 1 2
    SMALL_CONTROL,     // <|im_end|>
    SMALL_BOS,         // <s>
    SMALL_USER,        // <b>
    SMALL_USER_LONGER, // <b><b>
    SMALL_COUNT
};
bt_tokenizer *small_bpe(const char *pre);
// The vocabulary itself, for tests that spoil it; static memory.
bt_vocab small_bpe_vocab(const char *pre);

// SentencePiece with scores: 0 <unk>, 1 <s>, 2 </s>, 3–258 the bytes unless `bytes` is false, then pieces.
bt_tokenizer *small_spm(bool bytes, bool space_prefix);
bt_vocab small_spm_vocab(bool bytes, bool space_prefix);

// The ids of a text, or a failed test. Static memory, until the next call.
const int32_t *encode(const bt_tokenizer *tokenizer, const char *text, unsigned flags, size_t *count);
// "1 2 3": what a test compares.
const char *encoded(const bt_tokenizer *tokenizer, const char *text, unsigned flags);
// The bytes of ids one after the other.
size_t decode(const bt_tokenizer *tokenizer, const int32_t *ids, size_t count, char *out, size_t cap);
