// Between the tags: text and its white space, comments, raw blocks, and where each tag ends.
#include "common/text/jinja/lex_impl.h"

#include "common/text/jinja/chars.h"

int
bt_jinja_lex_line(bt_jinja_lexer *lx, size_t at)
{
    for (; lx->counted < at; lx->counted++) {
        lx->line += lx->s[lx->counted] == '\n';
    }
    return lx->line;
}

bool
bt_jinja_lex_fault(bt_jinja_lexer *lx, const char *what)
{
    if (lx->err == BT_OK) {
        lx->err = bt_fail(lx->why, BT_ERR_INVALID, "template line %d: %s", bt_jinja_lex_line(lx, lx->at), what);
    }
    return false;
}

bool
bt_jinja_lex_no_memory(bt_jinja_lexer *lx)
{
    lx->err = bt_fail(lx->why, BT_ERR_TOO_LONG, "the template takes too much memory");
    return false;
}

bool
bt_jinja_lex_emit(bt_jinja_lexer *lx, bt_jinja_token token, size_t at)
{
    if (lx->count == lx->cap) {
        size_t cap = lx->cap != 0 ? 2 * lx->cap : 256;
        bt_jinja_token *tokens = bt_arena_alloc(lx->arena, cap * sizeof *tokens);

        if (tokens == NULL) {
            return bt_jinja_lex_no_memory(lx);
        }
        if (lx->count != 0) {
            memcpy(tokens, lx->tokens, lx->count * sizeof *tokens);
        }
        lx->tokens = tokens;
        lx->cap = cap;
    }
    token.line = bt_jinja_lex_line(lx, at);
    lx->tokens[lx->count++] = token;
    return true;
}

// "\r\n" and "\r" become "\n", and one newline at the end goes, as Jinja has it.
static bool
normalise(bt_jinja_lexer *lx, bt_str source)
{
    char *copy = bt_arena_alloc(lx->arena, source.len + 1);
    size_t len = 0;

    if (copy == NULL) {
        return bt_jinja_lex_no_memory(lx);
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

bool
bt_jinja_lex_looking_at(const bt_jinja_lexer *lx, size_t at, const char *word)
{
    size_t len = strlen(word);

    return at + len <= lx->len && memcmp(lx->s + at, word, len) == 0;
}

static size_t
find(const bt_jinja_lexer *lx, size_t from, const char *word)
{
    const char *hit = memmem(lx->s + from, lx->len - from, word, strlen(word));

    return hit != NULL ? (size_t)(hit - lx->s) : SIZE_MAX;
}

static size_t
skip_space(const bt_jinja_lexer *lx, size_t at)
{
    return at + bt_jinja_leading_space((bt_str){lx->s + at, lx->len - at});
}

// The byte after the end tag at `at`, which may have a sign before it: "-" takes all white space after it, "+" takes
// nothing, else a block or comment takes one newline.
static size_t
after_end(const bt_jinja_lexer *lx, size_t at, char sign, bool trims)
{
    at += 2;
    if (sign == '-') {
        return skip_space(lx, at);
    }
    return trims && sign != '+' && at < lx->len && lx->s[at] == '\n' ? at + 1 : at;
}

char
bt_jinja_lex_sign(const bt_jinja_lexer *lx, size_t at)
{
    return at < lx->len && (lx->s[at] == '-' || lx->s[at] == '+') ? lx->s[at] : 0;
}

// The text before a tag: a "-" strips it; a block or comment alone on its line takes its indent with it.
static bool
emit_data(bt_jinja_lexer *lx, size_t from, size_t to, char sign, bool is_print)
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
    return text.len == 0 || bt_jinja_lex_emit(lx, (bt_jinja_token){.kind = BT_JINJA_TOKEN_DATA, .text = text}, from);
}

static bool
lex_comment(bt_jinja_lexer *lx)
{
    size_t end = find(lx, lx->at, "#}");
    char sign;

    if (end == SIZE_MAX) {
        return bt_jinja_lex_fault(lx, "a comment is not closed");
    }
    sign = end > lx->at ? bt_jinja_lex_sign(lx, end - 1) : 0;
    lx->at = after_end(lx, end, sign, true);
    return true;
}

// The byte after "{% raw %}" at `at` (behind the "{%" and its sign), or 0 when it is another tag.
static size_t
raw_body(const bt_jinja_lexer *lx, size_t at, const char *word, bool trims)
{
    char sign;

    at = skip_space(lx, at);
    if (!bt_jinja_lex_looking_at(lx, at, word)) {
        return 0;
    }
    at = skip_space(lx, at + strlen(word));
    sign = bt_jinja_lex_sign(lx, at);
    at += sign != 0 && (sign == '-' || trims);
    return bt_jinja_lex_looking_at(lx, at, "%}") ? after_end(lx, at, sign, trims) : 0;
}

static bool
lex_raw(bt_jinja_lexer *lx, size_t body)
{
    for (size_t tag = find(lx, body, "{%"); tag != SIZE_MAX; tag = find(lx, tag + 2, "{%")) {
        char sign = bt_jinja_lex_sign(lx, tag + 2);
        size_t after = raw_body(lx, tag + 2 + (sign != 0), "endraw", true);

        if (after != 0) {
            lx->at = after;
            return emit_data(lx, body, tag, sign, false);
        }
    }
    return bt_jinja_lex_fault(lx, "a raw block is not closed");
}

// From behind "{{" or "{%" to behind its end.
static bool
lex_tag(bt_jinja_lexer *lx, bool is_print)
{
    const char *end = is_print ? "}}" : "%}";

    lx->open = 0;
    while ((lx->at = skip_space(lx, lx->at)) < lx->len) {
        char sign = bt_jinja_lex_sign(lx, lx->at);
        size_t tail = lx->at + (sign == '-' || (sign == '+' && !is_print));

        if (lx->open == 0 && bt_jinja_lex_looking_at(lx, tail, end)) {
            size_t from = lx->at;

            lx->at = after_end(lx, tail, tail != from ? sign : 0, !is_print);
            return bt_jinja_lex_emit(
                lx, (bt_jinja_token){.kind = is_print ? BT_JINJA_TOKEN_PRINT_END : BT_JINJA_TOKEN_BLOCK_END}, from);
        }
        if (!bt_jinja_lex_one(lx)) {
            return false;
        }
    }
    return bt_jinja_lex_fault(lx, is_print ? "'{{' is not closed" : "'{%' is not closed");
}

static size_t
next_tag(const bt_jinja_lexer *lx, size_t at)
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
lex_next(bt_jinja_lexer *lx)
{
    size_t from = lx->at, tag = next_tag(lx, from), raw;
    char kind, sign;

    if (tag == lx->len) {
        lx->at = tag;
        return tag == from ||
               bt_jinja_lex_emit(lx, (bt_jinja_token){.kind = BT_JINJA_TOKEN_DATA, .text = {lx->s + from, tag - from}},
                                 from);
    }
    kind = lx->s[tag + 1];
    sign = bt_jinja_lex_sign(lx, tag + 2);
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
    return bt_jinja_lex_emit(lx, (bt_jinja_token){.kind = kind == '{' ? BT_JINJA_TOKEN_PRINT : BT_JINJA_TOKEN_BLOCK},
                             tag) &&
           lex_tag(lx, kind == '{');
}

bt_err
bt_jinja_lex(bt_arena *arena, bt_str source, bt_jinja_token **tokens, bt_why *why)
{
    bt_jinja_lexer lx = {.arena = arena, .why = why, .line = 1};
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
    if (!bt_jinja_lex_emit(&lx, (bt_jinja_token){.kind = BT_JINJA_TOKEN_END}, lx.len)) {
        return lx.err;
    }
    *tokens = lx.tokens;
    return BT_OK;
}
