// What the two halves of the lexer share: what lies between tags (lex.c) and inside them (lex_token.c).
#pragma once

#include "common/text/jinja/lex.h"

#define BT_JINJA_LEX_NESTING_MAX 200

typedef struct {
    bt_arena *arena;
    bt_why *why;
    bt_err err;
    const char *s; // newlines are "\n", the last one is cut off
    size_t len, at;
    size_t counted; // up to here newlines are counted in `line`
    int line;
    bt_jinja_token *tokens;
    size_t count, cap;
    char closers[BT_JINJA_LEX_NESTING_MAX]; // the brackets open in an expression, by what closes them
    size_t open;
} bt_jinja_lexer;

// The line of the byte `at`; asked in rising order.
int bt_jinja_lex_line(bt_jinja_lexer *lx, size_t at);
// Both note a fault and return false.
bool bt_jinja_lex_fault(bt_jinja_lexer *lx, const char *what);
bool bt_jinja_lex_no_memory(bt_jinja_lexer *lx);
// Appends a token that begins at byte `at`; false when memory is out.
bool bt_jinja_lex_emit(bt_jinja_lexer *lx, bt_jinja_token token, size_t at);
bool bt_jinja_lex_looking_at(const bt_jinja_lexer *lx, size_t at, const char *word);
// '-' or '+' when it stands at byte `at`, else 0.
char bt_jinja_lex_sign(const bt_jinja_lexer *lx, size_t at);
// Emits the token at lx->at, which is no white space, and moves behind it.
bool bt_jinja_lex_one(bt_jinja_lexer *lx);
