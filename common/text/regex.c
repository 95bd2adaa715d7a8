#define PCRE2_CODE_UNIT_WIDTH 8
#include "common/text/regex.h"

#include "common/base/mem.h"

#include <pcre2.h>

#define PATTERN_BYTES_MAX (64u << 10)
// A linear pattern takes a few steps a byte for its longest run; what needs more is a pattern that explodes.
#define STEPS_MIN 1000000u
#define STEPS_PER_BYTE 16u
#define HEAP_KIB_MAX (64u << 10)

struct bt_regex {
    pcre2_code *code;
    bool compiled; // to machine code
};

struct bt_regex_finder {
    pcre2_general_context *general;
    pcre2_match_context *match;
    pcre2_match_data *data;
};

static void *
take(size_t bytes, void *unused)
{
    (void)unused;
    return bt_alloc(bytes);
}

static void
give(void *memory, void *unused)
{
    (void)unused;
    bt_free(memory);
}

static bt_err
compile(bt_regex *regex, bt_str pattern, bt_why *why)
{
    pcre2_general_context *general = pcre2_general_context_create(take, give, NULL);
    pcre2_compile_context *context = general != NULL ? pcre2_compile_context_create(general) : NULL;
    int code = PCRE2_ERROR_NOMEMORY;
    PCRE2_SIZE at = 0;
    bt_err err = BT_OK;

    if (context != NULL) {
        pcre2_set_newline(context, PCRE2_NEWLINE_LF);
        pcre2_set_parens_nest_limit(context, 100);
        regex->code =
            pcre2_compile((PCRE2_SPTR)pattern.data, pattern.len,
                          PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &code, &at, context);
    }
    if (regex->code == NULL && (code == PCRE2_ERROR_NOMEMORY || code == PCRE2_ERROR_HEAP_FAILED)) {
        err = BT_ERR_NO_MEMORY;
    } else if (regex->code == NULL) {
        PCRE2_UCHAR words[128];

        pcre2_get_error_message(code, words, sizeof words);
        err = bt_fail(why, BT_ERR_INVALID, "pre-tokenizer regex, byte %zu: %s", (size_t)at, (char *)words);
    }
    pcre2_compile_context_free(context);
    pcre2_general_context_free(general);
    return err;
}

bt_err
bt_regex_open(bt_regex **out, bt_str pattern, bt_why *why)
{
    bt_regex *regex;
    bt_err err;

    if (pattern.len > PATTERN_BYTES_MAX) {
        return bt_fail(why, BT_ERR_TOO_LONG, "pre-tokenizer regex: %zu bytes, at most %u", pattern.len,
                       PATTERN_BYTES_MAX);
    }
    // Oniguruma intersects classes with &&; PCRE2 would read two literal ampersands and split wrongly in silence.
    if (memmem(pattern.data, pattern.len, "&&", 2) != NULL) {
        return bt_fail(why, BT_ERR_UNSUPPORTED, "pre-tokenizer regex: class intersection (&&)");
    }
    if ((regex = bt_alloc(sizeof *regex)) == NULL) {
        return BT_ERR_NO_MEMORY;
    }
    if ((err = compile(regex, pattern, why)) != BT_OK) {
        bt_regex_close(regex);
        return err;
    }
    // Without machine code (no permission for executable pages) the interpreter gives the same matches, slower.
    regex->compiled = pcre2_jit_compile(regex->code, PCRE2_JIT_COMPLETE) == 0;
    *out = regex;
    return BT_OK;
}

void
bt_regex_close(bt_regex *regex)
{
    if (regex != NULL) {
        pcre2_code_free(regex->code);
        bt_free(regex);
    }
}

bt_err
bt_regex_finder_open(bt_regex_finder **out, size_t text_bytes)
{
    bt_regex_finder *finder = bt_alloc(sizeof *finder);
    size_t steps = STEPS_MIN + STEPS_PER_BYTE * text_bytes;

    if (finder == NULL) {
        return BT_ERR_NO_MEMORY;
    }
    finder->general = pcre2_general_context_create(take, give, NULL);
    finder->match = finder->general != NULL ? pcre2_match_context_create(finder->general) : NULL;
    finder->data = finder->match != NULL ? pcre2_match_data_create(1, finder->general) : NULL;
    if (finder->data == NULL) {
        bt_regex_finder_close(finder);
        return BT_ERR_NO_MEMORY;
    }
    pcre2_set_match_limit(finder->match, steps < UINT32_MAX ? (uint32_t)steps : UINT32_MAX);
    pcre2_set_heap_limit(finder->match, HEAP_KIB_MAX);
    *out = finder;
    return BT_OK;
}

void
bt_regex_finder_close(bt_regex_finder *finder)
{
    if (finder != NULL) {
        pcre2_match_data_free(finder->data);
        pcre2_match_context_free(finder->match);
        pcre2_general_context_free(finder->general);
        bt_free(finder);
    }
}

bt_err
bt_regex_find(const bt_regex *regex, bt_regex_finder *finder, bt_str text, size_t from, size_t *begin, size_t *end)
{
    PCRE2_SPTR subject = (PCRE2_SPTR)(text.data != NULL ? text.data : "");
    int got = PCRE2_ERROR_JIT_STACKLIMIT;
    const PCRE2_SIZE *bounds;

    if (regex->compiled) {
        got = pcre2_jit_match(regex->code, subject, text.len, from, PCRE2_NO_UTF_CHECK, finder->data, finder->match);
    }
    // The machine code has 32 KiB of stack; the interpreter backtracks on the heap, up to its limit.
    if (got == PCRE2_ERROR_JIT_STACKLIMIT) {
        got = pcre2_match(regex->code, subject, text.len, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, finder->data,
                          finder->match);
    }
    if (got == PCRE2_ERROR_NOMATCH) {
        return BT_ERR_NOT_FOUND;
    }
    if (got < 0) {
        return got == PCRE2_ERROR_NOMEMORY ? BT_ERR_NO_MEMORY : BT_ERR_TOO_LONG;
    }
    bounds = pcre2_get_ovector_pointer(finder->data);
    *begin = bounds[0];
    *end = bounds[1];
    // \K in a lookahead can put the end before the beginning: no span of text.
    return *begin <= *end && *begin >= from ? BT_OK : BT_ERR_INVALID;
}
