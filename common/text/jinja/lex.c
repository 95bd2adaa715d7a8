#include "common/text/jinja/lex.h"

#include "common/text/jinja/chars.h"

#include <stdlib.h>

#define NESTING_MAX 200

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
    char closers[NESTING_MAX]; // the brackets open in an expression, by what closes them
    size_t open;
} lexer;

static int
line_at(lexer *lx, size_t at)
{
    for (; lx->counted < at; lx->counted++) {
        lx->line += lx->s[lx->counted] == '\n';
    }
    return lx->line;
}

static bool
fault(lexer *lx, const char *what)
{
    if (lx->err == BT_OK) {
        lx->err = bt_fail(lx->why, BT_ERR_INVALID, "template line %d: %s", line_at(lx, lx->at), what);
    }
    return false;
}

static bool
no_memory(lexer *lx)
{
    lx->err = bt_fail(lx->why, BT_ERR_TOO_LONG, "the template takes too much memory");
    return false;
}

static bool
emit(lexer *lx, bt_jinja_token token, size_t at)
{
    if (lx->count == lx->cap) {
        size_t cap = lx->cap != 0 ? 2 * lx->cap : 256;
        bt_jinja_token *tokens = bt_arena_alloc(lx->arena, cap * sizeof *tokens);

        if (tokens == NULL) {
            return no_memory(lx);
        }
        if (lx->count != 0) {
            memcpy(tokens, lx->tokens, lx->count * sizeof *tokens);
        }
        lx->tokens = tokens;
        lx->cap = cap;
    }
    token.line = line_at(lx, at);
    lx->tokens[lx->count++] = token;
    return true;
}

// "\r\n" and "\r" become "\n", and one newline at the end goes, as Jinja has it.
static bool
normalise(lexer *lx, bt_str source)
{
    char *copy = bt_arena_alloc(lx->arena, source.len + 1);
    size_t len = 0;

    if (copy == NULL) {
        return no_memory(lx);
    }
    for (size_t i = 0; i < source.len; i++) {
        char c = source.data[i];

        if (c == '\r') {
            i += i + 1 < source.len && source.data[i + 1] == '\n';
            c = '\n';
        }
        copy[len++] = c;
    }
    lx->s = copy;
    lx->len = len > 0 && copy[len - 1] == '\n' ? len - 1 : len;
    return true;
}

static bool
looking_at(const lexer *lx, size_t at, const char *word)
{
    size_t len = strlen(word);

    return at + len <= lx->len && memcmp(lx->s + at, word, len) == 0;
}

static size_t
find(const lexer *lx, size_t from, const char *word)
{
    const char *hit = memmem(lx->s + from, lx->len - from, word, strlen(word));

    return hit != NULL ? (size_t)(hit - lx->s) : SIZE_MAX;
}

static size_t
skip_space(const lexer *lx, size_t at)
{
    return at + bt_jinja_leading_space((bt_str){lx->s + at, lx->len - at});
}

// The byte after the end tag at `at`, which may have a sign before it: "-" takes all white space after it, "+" takes
// nothing, else a block or comment takes one newline.
static size_t
after_end(const lexer *lx, size_t at, char sign, bool trims)
{
    at += 2;
    if (sign == '-') {
        return skip_space(lx, at);
    }
    return trims && sign != '+' && at < lx->len && lx->s[at] == '\n' ? at + 1 : at;
}

static char
sign_at(const lexer *lx, size_t at)
{
    return at < lx->len && (lx->s[at] == '-' || lx->s[at] == '+') ? lx->s[at] : 0;
}

// The text before a tag: a "-" strips it; a block or comment alone on its line takes its indent with it.
static bool
emit_data(lexer *lx, size_t from, size_t to, char sign, bool is_print)
{
    bt_str text = {lx->s + from, to - from};

    if (sign == '-') {
        text.len -= bt_jinja_trailing_space(text);
    } else if (sign != '+' && !is_print) {
        const char *newline = memrchr(text.data, '\n', text.len);
        size_t line = newline != NULL ? (size_t)(newline - text.data) + 1 : 0;
        bool starts = line > 0 || from == 0 || lx->s[from - 1] == '\n';
        bt_str rest = {text.data + line, text.len - line};

        if (starts && bt_jinja_leading_space(rest) == rest.len) {
            text.len = line;
        }
    }
    return text.len == 0 || emit(lx, (bt_jinja_token){.kind = BT_JINJA_TOKEN_DATA, .text = text}, from);
}

static bool
lex_comment(lexer *lx)
{
    size_t end = find(lx, lx->at, "#}");
    char sign;

    if (end == SIZE_MAX) {
        return fault(lx, "a comment is not closed");
    }
    sign = end > lx->at ? sign_at(lx, end - 1) : 0;
    lx->at = after_end(lx, end, sign, true);
    return true;
}

// The byte after "{% raw %}" at `at` (behind the "{%" and its sign), or 0 when it is another tag.
static size_t
raw_body(const lexer *lx, size_t at, const char *word, bool trims)
{
    char sign;

    at = skip_space(lx, at);
    if (!looking_at(lx, at, word)) {
        return 0;
    }
    at = skip_space(lx, at + strlen(word));
    sign = sign_at(lx, at);
    at += sign != 0 && (sign == '-' || trims);
    return looking_at(lx, at, "%}") ? after_end(lx, at, sign, trims) : 0;
}

static bool
lex_raw(lexer *lx, size_t body)
{
    for (size_t tag = find(lx, body, "{%"); tag != SIZE_MAX; tag = find(lx, tag + 2, "{%")) {
        char sign = sign_at(lx, tag + 2);
        size_t after = raw_body(lx, tag + 2 + (sign != 0), "endraw", true);

        if (after != 0) {
            lx->at = after;
            return emit_data(lx, body, tag, sign, false);
        }
    }
    return fault(lx, "a raw block is not closed");
}

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
lex_text(lexer *lx)
{
    char quote = lx->s[lx->at];
    size_t from = lx->at + 1, to = from, used = 0;
    char *text;

    while (to < lx->len && lx->s[to] != quote) {
        to += lx->s[to] == '\\' ? 2 : 1;
    }
    if (to >= lx->len) {
        return fault(lx, "a string is not closed");
    }
    // No escape is shorter than what it means.
    text = bt_arena_alloc(lx->arena, to - from + 1);
    if (text == NULL) {
        return no_memory(lx);
    }
    for (size_t i = from; i < to;) {
        if (lx->s[i] == '\\') {
            i += 1 + unescape(lx->s + i + 1, to - i - 1, text, &used);
        } else {
            text[used++] = lx->s[i++];
        }
    }
    lx->at = to + 1;
    return emit(lx, (bt_jinja_token){.kind = BT_JINJA_TOKEN_TEXT, .text = {text, used}}, from - 1);
}

static size_t
digits_end(const lexer *lx, size_t at)
{
    while (at < lx->len && (bt_jinja_is_digit(lx->s[at]) ||
                            (lx->s[at] == '_' && at + 1 < lx->len && bt_jinja_is_digit(lx->s[at + 1])))) {
        at++;
    }
    return at;
}

static size_t
exponent_end(const lexer *lx, size_t at)
{
    size_t digits = at + 1;

    if (at >= lx->len || (lx->s[at] != 'e' && lx->s[at] != 'E')) {
        return at;
    }
    digits += sign_at(lx, digits) != 0;
    return digits < lx->len && bt_jinja_is_digit(lx->s[digits]) ? digits_end(lx, digits) : at;
}

// A number's digits without the underscores.
static bool
plain_digits(const lexer *lx, size_t end, char *out, size_t bytes)
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
lex_number(lexer *lx)
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
        return fault(lx, "a number is too long");
    }
    if (token.kind == BT_JINJA_TOKEN_REAL) {
        token.real = strtod(digits, NULL);
    } else {
        for (const char *c = digits; *c != 0; c++) {
            if (__builtin_mul_overflow(token.whole, 10, &token.whole) ||
                __builtin_add_overflow(token.whole, *c - '0', &token.whole)) {
                return fault(lx, "an integer does not fit 64 bits");
            }
        }
    }
    lx->at = fraction;
    return emit(lx, token, from);
}

static bool
balance(lexer *lx, char c)
{
    char closer = c == '(' ? ')' : c == '[' ? ']' : c == '{' ? '}' : 0;

    if (closer != 0) {
        if (lx->open == NESTING_MAX) {
            return fault(lx, "brackets are nested too deep");
        }
        lx->closers[lx->open++] = closer;
    } else if (c == ')' || c == ']' || c == '}') {
        if (lx->open == 0 || lx->closers[--lx->open] != c) {
            return fault(lx, "a closing bracket that matches none");
        }
    }
    return true;
}

static bool
lex_operator(lexer *lx)
{
    static const char *const pairs[] = {"//", "**", "==", "!=", ">=", "<="};
    int op = (uint8_t)lx->s[lx->at];
    size_t from = lx->at;

    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        if (looking_at(lx, from, pairs[i])) {
            op = BT_JINJA_OP(pairs[i][0], pairs[i][1]);
        }
    }
    if (op < 256 && (op == 0 || strchr("+-/*%~[](){}><=.:|,;", op) == NULL)) {
        return fault(lx, "an unexpected character in an expression");
    }
    lx->at += op < 256 ? 1 : 2;
    return (op >= 256 || balance(lx, (char)op)) &&
           emit(lx, (bt_jinja_token){.kind = BT_JINJA_TOKEN_OP, .op = op}, from);
}

static bool
lex_one(lexer *lx)
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
    return emit(lx, (bt_jinja_token){.kind = BT_JINJA_TOKEN_NAME, .text = {lx->s + from, end - from}}, from);
}

// From behind "{{" or "{%" to behind its end.
static bool
lex_tag(lexer *lx, bool is_print)
{
    const char *end = is_print ? "}}" : "%}";

    lx->open = 0;
    while ((lx->at = skip_space(lx, lx->at)) < lx->len) {
        char sign = sign_at(lx, lx->at);
        size_t tail = lx->at + (sign == '-' || (sign == '+' && !is_print));

        if (lx->open == 0 && looking_at(lx, tail, end)) {
            size_t from = lx->at;

            lx->at = after_end(lx, tail, tail != from ? sign : 0, !is_print);
            return emit(lx, (bt_jinja_token){.kind = is_print ? BT_JINJA_TOKEN_PRINT_END : BT_JINJA_TOKEN_BLOCK_END},
                        from);
        }
        if (!lex_one(lx)) {
            return false;
        }
    }
    return fault(lx, is_print ? "'{{' is not closed" : "'{%' is not closed");
}

static size_t
next_tag(const lexer *lx, size_t at)
{
    for (; at + 1 < lx->len; at++) {
        const char *brace = memchr(lx->s + at, '{', lx->len - 1 - at);

        if (brace == NULL) {
            break;
        }
        at = (size_t)(brace - lx->s);
        if (brace[1] == '{' || brace[1] == '%' || brace[1] == '#') {
            return at;
        }
    }
    return lx->len;
}

static bool
lex_next(lexer *lx)
{
    size_t from = lx->at, tag = next_tag(lx, from), raw;
    char kind, sign;

    if (tag == lx->len) {
        lx->at = tag;
        return tag == from ||
               emit(lx, (bt_jinja_token){.kind = BT_JINJA_TOKEN_DATA, .text = {lx->s + from, tag - from}}, from);
    }
    kind = lx->s[tag + 1];
    sign = sign_at(lx, tag + 2);
    if (!emit_data(lx, from, tag, sign, kind == '{')) {
        return false;
    }
    lx->at = tag + 2 + (sign != 0);
    if (kind == '#') {
        return lex_comment(lx);
    }
    if (kind == '%' && (raw = raw_body(lx, lx->at, "raw", false)) != 0) {
        return lex_raw(lx, raw);
    }
    return emit(lx, (bt_jinja_token){.kind = kind == '{' ? BT_JINJA_TOKEN_PRINT : BT_JINJA_TOKEN_BLOCK}, tag) &&
           lex_tag(lx, kind == '{');
}

bt_err
bt_jinja_lex(bt_arena *arena, bt_str source, bt_jinja_token **tokens, bt_why *why)
{
    lexer lx = {.arena = arena, .why = why, .line = 1};
    size_t valid = bt_utf8_valid_prefix(source.data, source.len);

    if (valid != source.len) {
        return bt_fail(why, BT_ERR_INVALID, "the template is not UTF-8 at byte %zu", valid);
    }
    if (!normalise(&lx, source)) {
        return lx.err;
    }
    while (lx.at < lx.len) {
        if (!lex_next(&lx)) {
            return lx.err;
        }
    }
    if (!emit(&lx, (bt_jinja_token){.kind = BT_JINJA_TOKEN_END}, lx.len)) {
        return lx.err;
    }
    *tokens = lx.tokens;
    return BT_OK;
}
