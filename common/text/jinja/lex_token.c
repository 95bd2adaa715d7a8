// Inside a tag: names, strings, numbers, operators.
#include "common/text/jinja/lex_impl.h"

#include "common/text/jinja/chars.h"

#include <stdlib.h>

// After a backslash: appends what it means to `out` and returns how many bytes it took, as Python's unicode-escape.
static size_t
unescape(const char *s, size_t len, char *out, size_t *used)
{
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    const char *simple = memchr(from, s[0], sizeof from - 1);
    size_t digits = s[0] == 'x' ? 2 : s[0] == 'u' ? 4 : s[0] == 'U' ? 8 : 0, taken = 0, bytes;
    uint32_t value = 0;

    if (s[0] == '\n') {
        return 1;
    }
    if (simple != NULL) {
        out[(*used)++] = to[simple - from];
        return 1;
    }
    if (s[0] >= '0' && s[0] <= '7') {
        for (; taken < 3 && taken < len && s[taken] >= '0' && s[taken] <= '7'; taken++) {
            value = value * 8 + (uint32_t)(s[taken] - '0');
        }
    } else if (digits != 0 && digits < len && bt_jinja_hex(s + 1, digits, &value)) {
        taken = digits + 1;
    }
    if (taken == 0) {
        out[(*used)++] = '\\';
        return 0;
    }
    bytes = bt_utf8_encode(value, out + *used);
    if (bytes == 0) {
        bytes = bt_utf8_encode(0xfffd, out + *used);
    }
    *used += bytes;
    return taken;
}

static bool
lex_text(bt_jinja_lexer *lx)
{
    char quote = lx->s[lx->at];
    size_t from = lx->at + 1, to = from, used = 0;
    char *text;

    while (to < lx->len && lx->s[to] != quote) {
        to += lx->s[to] == '\\' ? 2 : 1;
    }
    if (to >= lx->len) {
        return bt_jinja_lex_fault(lx, "a string is not closed");
    }
    // No escape is shorter than what it means.
    text = bt_arena_alloc(lx->arena, to - from + 1);
    if (text == NULL) {
        return bt_jinja_lex_no_memory(lx);
    }
    for (size_t i = from; i < to;) {
        if (lx->s[i] == '\\') {
            i += 1 + unescape(lx->s + i + 1, to - i - 1, text, &used);
        } else {
            text[used++] = lx->s[i++];
        }
    }
    lx->at = to + 1;
    return bt_jinja_lex_emit(lx, (bt_jinja_token){.kind = BT_JINJA_TOKEN_TEXT, .text = {text, used}}, from - 1);
}

static size_t
digits_end(const bt_jinja_lexer *lx, size_t at)
{
    while (at < lx->len && (bt_jinja_is_digit(lx->s[at]) ||
                            (lx->s[at] == '_' && at + 1 < lx->len && bt_jinja_is_digit(lx->s[at + 1])))) {
        at++;
    }
    return at;
}

static size_t
exponent_end(const bt_jinja_lexer *lx, size_t at)
{
    size_t digits = at + 1;

    if (at >= lx->len || (lx->s[at] != 'e' && lx->s[at] != 'E')) {
        return at;
    }
    digits += bt_jinja_lex_sign(lx, digits) != 0;
    return digits < lx->len && bt_jinja_is_digit(lx->s[digits]) ? digits_end(lx, digits) : at;
}

// A number's digits without the underscores.
static bool
plain_digits(const bt_jinja_lexer *lx, size_t end, char *out, size_t bytes)
{
    size_t used = 0;

    for (size_t i = lx->at; i < end; i++) {
        if (lx->s[i] != '_' && used + 1 < bytes) {
            out[used++] = lx->s[i];
        }
    }
    out[used] = 0;
    return used + 1 < bytes;
}

static bool
lex_number(bt_jinja_lexer *lx)
{
    size_t from = lx->at, end = digits_end(lx, lx->at), fraction;
    bt_jinja_token token = {.kind = BT_JINJA_TOKEN_INT};
    char digits[400];

    fraction = end;
    if (end + 1 < lx->len && lx->s[end] == '.' && bt_jinja_is_digit(lx->s[end + 1])) {
        fraction = digits_end(lx, end + 1);
    }
    fraction = exponent_end(lx, fraction);
    token.kind = fraction != end ? BT_JINJA_TOKEN_REAL : BT_JINJA_TOKEN_INT;
    if (!plain_digits(lx, fraction, digits, sizeof digits)) {
        return bt_jinja_lex_fault(lx, "a number is too long");
    }
    if (token.kind == BT_JINJA_TOKEN_REAL) {
        token.real = strtod(digits, NULL);
    } else {
        for (const char *c = digits; *c != 0; c++) {
            if (__builtin_mul_overflow(token.whole, 10, &token.whole) ||
                __builtin_add_overflow(token.whole, *c - '0', &token.whole)) {
                return bt_jinja_lex_fault(lx, "an integer does not fit 64 bits");
            }
        }
    }
    lx->at = fraction;
    return bt_jinja_lex_emit(lx, token, from);
}

static bool
balance(bt_jinja_lexer *lx, char c)
{
    char closer = c == '(' ? ')' : c == '[' ? ']' : c == '{' ? '}' : 0;

    if (closer != 0) {
        if (lx->open == BT_JINJA_LEX_NESTING_MAX) {
            return bt_jinja_lex_fault(lx, "brackets are nested too deep");
        }
        lx->closers[lx->open++] = closer;
    } else if (c == ')' || c == ']' || c == '}') {
        if (lx->open == 0 || lx->closers[--lx->open] != c) {
            return bt_jinja_lex_fault(lx, "a closing bracket that matches none");
        }
    }
    return true;
}

static bool
lex_operator(bt_jinja_lexer *lx)
{
    static const char *const pairs[] = {"//", "**", "==", "!=", ">=", "<="};
    int op = (uint8_t)lx->s[lx->at];
    size_t from = lx->at;

    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        if (bt_jinja_lex_looking_at(lx, from, pairs[i])) {
            op = BT_JINJA_OP(pairs[i][0], pairs[i][1]);
        }
    }
    if (op < 256 && (op == 0 || strchr("+-/*%~[](){}><=.:|,;", op) == NULL)) {
        return bt_jinja_lex_fault(lx, "an unexpected character in an expression");
    }
    lx->at += op < 256 ? 1 : 2;
    return (op >= 256 || balance(lx, (char)op)) &&
           bt_jinja_lex_emit(lx, (bt_jinja_token){.kind = BT_JINJA_TOKEN_OP, .op = op}, from);
}

bool
bt_jinja_lex_one(bt_jinja_lexer *lx)
{
    size_t from = lx->at, end = from;

    if (bt_jinja_is_digit(lx->s[from])) {
        return lex_number(lx);
    }
    if (lx->s[from] == '"' || lx->s[from] == '\'') {
        return lex_text(lx);
    }
    while (end < lx->len && bt_jinja_is_name(lx->s[end])) {
        end++;
    }
    if (end == from) {
        return lex_operator(lx);
    }
    lx->at = end;
    return bt_jinja_lex_emit(lx, (bt_jinja_token){.kind = BT_JINJA_TOKEN_NAME, .text = {lx->s + from, end - from}},
                             from);
}
