// A template's source as tokens, with Jinja's rules of white space (trim_blocks and lstrip_blocks are on).
#pragma once

#include "common/text/jinja/ast.h"

typedef enum {
    BT_JINJA_TOKEN_END, // of the source; the last token always
    BT_JINJA_TOKEN_DATA,
    BT_JINJA_TOKEN_PRINT, // {{
    BT_JINJA_TOKEN_PRINT_END,
    BT_JINJA_TOKEN_BLOCK, // {%
    BT_JINJA_TOKEN_BLOCK_END,
    BT_JINJA_TOKEN_NAME,
    BT_JINJA_TOKEN_TEXT, // unescaped
    BT_JINJA_TOKEN_INT,
    BT_JINJA_TOKEN_REAL,
    BT_JINJA_TOKEN_OP // `op` is its character, or BT_JINJA_OP of its two
} bt_jinja_token_kind;

typedef struct {
    bt_jinja_token_kind kind;
    int line, op;
    bt_str text;
    int64_t whole;
    double real;
} bt_jinja_token;

// Tokens and texts lie in the arena, which the caller frees whatever comes back.
bt_err bt_jinja_lex(bt_arena *arena, bt_str source, bt_jinja_token **tokens, bt_why *why);
