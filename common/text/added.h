// Tokens that are found in the text as they are, before anything else looks at it: control tokens (when asked for) and
// those a user defined. At each place the longest counts.
//
// Texts are kept sorted; a search narrows the range of texts that begin like the place at hand, byte by byte, so it
// takes at most the longest text's bytes a place. Immutable once built.
#pragma once

#include "common/base/err.h"
#include "common/base/str.h"

#define BT_ADDED_BYTES_MAX 1024 // of one such token

typedef struct {
    bt_str text; // borrowed from whoever lives as long
    int32_t id;
    bool special;     // only when control tokens are asked for
    bool left, right; // takes the whitespace on that side with it
    bool single_word; // not inside a word
} bt_added_token;

typedef struct {
    bt_added_token *tokens; // sorted by text
    uint32_t count, cap;
    uint32_t from[257]; // the first token that begins with this byte or a higher one
    bool begins[256];   // a token that needs no BT_ENCODE_SPECIAL begins with this byte
} bt_added;

bt_err bt_added_add(bt_added *added, bt_added_token token);
void bt_added_sort(bt_added *added); // once, after the last add
void bt_added_fini(bt_added *added); // accepts a zeroed one

// The first such token at or after `from`: its place [*begin, *end) with the whitespace it takes, which never begins
// before `from`. NULL when there is none.
const bt_added_token *bt_added_find(const bt_added *added, bt_str text, size_t from, bool special, size_t *begin,
                                    size_t *end);
