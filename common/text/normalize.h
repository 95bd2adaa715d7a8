// What happens to text before it is split: Unicode normal forms, replacements, a prefix. The `normalizer` of a
// tokenizer.json, or what GGUF's names imply.
//
// Immutable once built: any thread may apply it.
#pragma once

#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/base/str.h"
#include "common/text/regex.h"

#define BT_NORMALIZE_STEPS_MAX 16

typedef enum {
    BT_NORMALIZE_NFC,
    BT_NORMALIZE_NFD,
    BT_NORMALIZE_NFKC,
    BT_NORMALIZE_NFKD,
    BT_NORMALIZE_LOWERCASE,
    BT_NORMALIZE_PREPEND, // `content`, before a text that is not empty
    BT_NORMALIZE_REPLACE, // every match of `regex`, or of `pattern` where that is NULL, by `content`
    BT_NORMALIZE_STRIP,   // whitespace at the ends that are set
    BT_NORMALIZE_SQUEEZE, // runs of spaces become one, those at the ends go (SentencePiece)
} bt_normalize_kind;

typedef struct {
    bt_normalize_kind kind;
    bool left, right;
    bt_regex *regex;
    char *pattern, *content; // owned; content may be NULL (empty)
    size_t pattern_len, content_len;
} bt_normalize_step;

typedef struct {
    uint32_t count;
    bt_normalize_step steps[BT_NORMALIZE_STEPS_MAX];
} bt_normalizer;

// Appends a step and copies its texts; a `regex` is the normalizer's from here on, also when this fails.
bt_err bt_normalizer_add(bt_normalizer *normalizer, bt_normalize_step step, bt_str pattern, bt_str content);
void bt_normalizer_fini(bt_normalizer *normalizer); // accepts a zeroed one

// The normalised text, in one of the two buffers or `text` itself where nothing changed. Valid UTF-8 in and out.
// BT_ERR_TOO_LONG when a buffer's limit or a regex limit was hit.
bt_err bt_normalizer_apply(const bt_normalizer *normalizer, bt_regex_finder *finder, bt_buf buffers[2], bt_str text,
                           bt_str *out);
