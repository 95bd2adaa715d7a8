#include "common/text/json_pipeline.h"

#include "common/text/tokenizer.h"

// Sequences in sequences; the document's own depth limit is above this.
#define DEPTH_MAX 8

static bt_err
unsupported(const bt_json_at *at, bt_str type, bt_why *why)
{
    char path[128];

    bt_json_path(at, path, sizeof path);
    return bt_fail(why, BT_ERR_UNSUPPORTED, "%s: '%.*s' is not supported", path, (int)(type.len < 64 ? type.len : 64),
                   type.data);
}

static bt_err
get_type(const bt_json_at *at, bt_str *type, bt_why *why)
{
    bt_json_at name = bt_json_get(at, "type");

    return bt_json_as_text(&name, type, why);
}

// A literal as an expression: everything but letters, digits and non-ASCII gets a backslash.
static void
quote(bt_str text, bt_buf *out)
{
    for (size_t i = 0; i < text.len; i++) {
        uint8_t c = (uint8_t)text.data[i];
        bool plain = c >= 0x80 || (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');

        if (c < ' ' || c == 0x7f) {
            bt_buf_printf(out, "\\x{%02x}", c);
            continue;
        }
        if (!plain) {
            bt_buf_append_char(out, '\\');
        }
        bt_buf_append_char(out, (char)c);
    }
}

// {"String": "…"} or {"Regex": "…"}.
static bt_err
read_pattern(const bt_json_at *at, bt_str *literal, bt_str *regex, bt_why *why)
{
    bt_json_at expression = bt_json_get(at, "Regex"), text = bt_json_get(at, "String");

    *literal = *regex = (bt_str){0};
    return bt_json_given(&expression) ? bt_json_as_text(&expression, regex, why) : bt_json_as_text(&text, literal, why);
}

static bt_err
read_replace(const bt_json_at *at, bt_normalizer *out, bt_why *why)
{
    bt_normalize_step step = {.kind = BT_NORMALIZE_REPLACE};
    bt_json_at pattern = bt_json_get(at, "pattern");
    bt_str literal, regex, content = {0};
    bt_err err;

    if ((err = read_pattern(&pattern, &literal, &regex, why)) != BT_OK ||
        (err = bt_json_maybe_text(at, "content", &content, why)) != BT_OK ||
        (regex.data != NULL && (err = bt_regex_open(&step.regex, regex, why)) != BT_OK)) {
        return err;
    }
    return bt_normalizer_add(out, step, literal, content);
}

static bt_err
read_strip(const bt_json_at *at, bt_normalizer *out, bt_why *why)
{
    bt_normalize_step step = {.kind = BT_NORMALIZE_STRIP, .left = true, .right = true};
    bt_err err;

    if ((err = bt_json_maybe_bool(at, "strip_left", &step.left, why)) != BT_OK ||
        (err = bt_json_maybe_bool(at, "strip_right", &step.right, why)) != BT_OK) {
        return err;
    }
    return bt_normalizer_add(out, step, (bt_str){0}, (bt_str){0});
}

static bt_err
read_prepend(const bt_json_at *at, bt_normalizer *out, bt_why *why)
{
    bt_json_at prefix = bt_json_get(at, "prepend");
    bt_str text;
    bt_err err = bt_json_as_text(&prefix, &text, why);

    return err != BT_OK ? err
                        : bt_normalizer_add(out, (bt_normalize_step){.kind = BT_NORMALIZE_PREPEND}, (bt_str){0}, text);
}

static bt_err read_normalizer(const bt_json_at *at, bt_normalizer *out, unsigned depth, bt_why *why);

static bt_err
read_normalizers(const bt_json_at *at, bt_normalizer *out, unsigned depth, bt_why *why)
{
    bt_json_at list = bt_json_get(at, "normalizers");
    size_t count;
    bt_err err = bt_json_as_array(&list, &count, why);

    for (size_t i = 0; err == BT_OK && i < count; i++) {
        bt_json_at item = bt_json_item(&list, i);

        err = read_normalizer(&item, out, depth + 1, why);
    }
    return err;
}

static bt_err
read_normalizer(const bt_json_at *at, bt_normalizer *out, unsigned depth, bt_why *why)
{
    static const struct {
        const char *name;
        bt_normalize_kind kind;
    } plain[] = {{"NFC", BT_NORMALIZE_NFC},
                 {"NFD", BT_NORMALIZE_NFD},
                 {"NFKC", BT_NORMALIZE_NFKC},
                 {"NFKD", BT_NORMALIZE_NFKD},
                 {"Lowercase", BT_NORMALIZE_LOWERCASE}};
    bt_str type;
    bt_err err = get_type(at, &type, why);

    if (err != BT_OK) {
        return err;
    }
    if (depth > DEPTH_MAX || out->count == BT_NORMALIZE_STEPS_MAX) {
        return bt_json_wrong(at, why, "more than %d steps", BT_NORMALIZE_STEPS_MAX);
    }
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++) {
        if (bt_str_is(type, plain[i].name)) {
            return bt_normalizer_add(out, (bt_normalize_step){.kind = plain[i].kind}, (bt_str){0}, (bt_str){0});
        }
    }
    if (bt_str_is(type, "Sequence")) {
        return read_normalizers(at, out, depth, why);
    }
    if (bt_str_is(type, "Replace")) {
        return read_replace(at, out, why);
    }
    if (bt_str_is(type, "Prepend")) {
        return read_prepend(at, out, why);
    }
    return bt_str_is(type, "Strip") ? read_strip(at, out, why) : unsupported(at, type, why);
}

bt_err
bt_json_read_normalizer(const bt_json_at *at, bt_normalizer *out, bt_why *why)
{
    return bt_json_given(at) ? read_normalizer(at, out, 0, why) : BT_OK;
}

static bt_err
read_behavior(const bt_json_at *at, bt_split_behavior *out, bt_why *why)
{
    static const char *const names[] = {
        [BT_SPLIT_ISOLATED] = "Isolated",
        [BT_SPLIT_REMOVED] = "Removed",
        [BT_SPLIT_WITH_PREVIOUS] = "MergedWithPrevious",
        [BT_SPLIT_WITH_NEXT] = "MergedWithNext",
        [BT_SPLIT_CONTIGUOUS] = "Contiguous",
    };
    bt_str name = bt_str_of(names[*out]);
    bt_json_at field = bt_json_get(at, "behavior");
    bt_err err = bt_json_maybe_text(at, "behavior", &name, why);

    if (err != BT_OK) {
        return err;
    }
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
        if (bt_str_is(name, names[i])) {
            *out = (bt_split_behavior)i;
            return BT_OK;
        }
    }
    return unsupported(&field, name, why);
}

static bt_err
add_literal(bt_pre_tokenizer *out, bt_str literal, bt_split_behavior behavior, bool invert, bt_why *why)
{
    bt_buf quoted;
    bt_err err = BT_ERR_NO_MEMORY;

    bt_buf_init(&quoted, 8 * literal.len + 1);
    quote(literal, &quoted);
    if (!quoted.failed && quoted.len != 0) {
        err = bt_pre_tokenizer_add_regex(out, (bt_str){quoted.data, quoted.len}, behavior, invert, why);
    } else if (!quoted.failed) {
        err = bt_fail(why, BT_ERR_INVALID, "pre_tokenizer: an empty pattern splits nothing");
    }
    bt_buf_fini(&quoted);
    return err;
}

static bt_err
read_split(const bt_json_at *at, bt_pre_tokenizer *out, bt_why *why)
{
    bt_json_at pattern = bt_json_get(at, "pattern");
    bt_split_behavior behavior = BT_SPLIT_ISOLATED;
    bool invert = false;
    bt_str literal, regex;
    bt_err err;

    if ((err = read_pattern(&pattern, &literal, &regex, why)) != BT_OK ||
        (err = read_behavior(at, &behavior, why)) != BT_OK ||
        (err = bt_json_maybe_bool(at, "invert", &invert, why)) != BT_OK) {
        return err;
    }
    return regex.data != NULL ? bt_pre_tokenizer_add_regex(out, regex, behavior, invert, why)
                              : add_literal(out, literal, behavior, invert, why);
}

static bt_err
read_byte_level(const bt_json_at *at, bt_pre_tokenizer *out, bt_why *why)
{
    bt_pre_step step = {.behavior = BT_SPLIT_ISOLATED};
    bool prefix = true, split = true;
    bt_err err;

    if ((err = bt_json_maybe_bool(at, "add_prefix_space", &prefix, why)) != BT_OK ||
        (err = bt_json_maybe_bool(at, "use_regex", &split, why)) != BT_OK ||
        (split && (err = bt_regex_open(&step.regex, bt_str_of(bt_pre_regex_gpt2), why)) != BT_OK)) {
        return err;
    }
    out->byte_level = true;
    step.prefix = prefix ? BT_PREFIX_ALWAYS : BT_PREFIX_NEVER;
    return bt_pre_tokenizer_add(out, step);
}

static bt_err
read_metaspace(const bt_json_at *at, bt_pre_tokenizer *out, bt_why *why)
{
    bt_pre_step step = {.behavior = BT_SPLIT_WITH_NEXT, .metaspace = true};
    bool prefix = true, split = true;
    bt_str scheme = {0}, replacement = bt_str_of("\xe2\x96\x81");
    bt_json_at field = bt_json_get(at, "prepend_scheme");
    bt_err err;

    if ((err = bt_json_maybe_bool(at, "add_prefix_space", &prefix, why)) != BT_OK ||
        (err = bt_json_maybe_bool(at, "split", &split, why)) != BT_OK ||
        (err = bt_json_maybe_text(at, "prepend_scheme", &scheme, why)) != BT_OK ||
        (err = bt_json_maybe_text(at, "replacement", &replacement, why)) != BT_OK) {
        return err;
    }
    if (!bt_str_is(replacement, "\xe2\x96\x81")) {
        return bt_fail(why, BT_ERR_UNSUPPORTED, "pre_tokenizer: Metaspace with a replacement other than \xe2\x96\x81");
    }
    // Files of before prepend_scheme say add_prefix_space.
    scheme = scheme.data != NULL ? scheme : bt_str_of(prefix ? "always" : "never");
    if (!bt_str_is(scheme, "always") && !bt_str_is(scheme, "first") && !bt_str_is(scheme, "never")) {
        return unsupported(&field, scheme, why);
    }
    step.prefix = bt_str_is(scheme, "always")  ? BT_PREFIX_ALWAYS
                  : bt_str_is(scheme, "first") ? BT_PREFIX_FIRST
                                               : BT_PREFIX_NEVER;
    if (split && (err = bt_regex_open(&step.regex, bt_str_of("\\x{2581}"), why)) != BT_OK) {
        return err;
    }
    return bt_pre_tokenizer_add(out, step);
}

static bt_err
read_digits(const bt_json_at *at, bt_pre_tokenizer *out, bt_why *why)
{
    bool single = false;
    bt_err err = bt_json_maybe_bool(at, "individual_digits", &single, why);

    return err != BT_OK ? err
                        : bt_pre_tokenizer_add_regex(out, bt_str_of(single ? "\\p{N}" : "\\p{N}+"), BT_SPLIT_ISOLATED,
                                                     false, why);
}

static bt_err
read_punctuation(const bt_json_at *at, bt_pre_tokenizer *out, bt_why *why)
{
    bt_split_behavior behavior = BT_SPLIT_ISOLATED;
    bt_err err = read_behavior(at, &behavior, why);

    return err != BT_OK ? err
                        : bt_pre_tokenizer_add_regex(out, bt_str_of("[\\p{P}!-/:-@\\[-`{-~]"), behavior, false, why);
}

static bt_err
read_delimiter(const bt_json_at *at, bt_pre_tokenizer *out, bt_why *why)
{
    bt_json_at delimiter = bt_json_get(at, "delimiter");
    bt_str text;
    bt_err err = bt_json_as_text(&delimiter, &text, why);

    return err != BT_OK ? err : add_literal(out, text, BT_SPLIT_REMOVED, false, why);
}

static bt_err read_pre_tokenizer(const bt_json_at *at, bt_pre_tokenizer *out, unsigned depth, bt_why *why);

static bt_err
read_pre_tokenizers(const bt_json_at *at, bt_pre_tokenizer *out, unsigned depth, bt_why *why)
{
    bt_json_at list = bt_json_get(at, "pretokenizers");
    size_t count;
    bt_err err = bt_json_as_array(&list, &count, why);

    for (size_t i = 0; err == BT_OK && i < count; i++) {
        bt_json_at item = bt_json_item(&list, i);

        err = read_pre_tokenizer(&item, out, depth + 1, why);
    }
    return err;
}

static bt_err
read_pre_tokenizer(const bt_json_at *at, bt_pre_tokenizer *out, unsigned depth, bt_why *why)
{
    static const struct {
        const char *name;
        bt_err (*read)(const bt_json_at *at, bt_pre_tokenizer *out, bt_why *why);
    } readers[] = {{"ByteLevel", read_byte_level},    {"Split", read_split},
                   {"Digits", read_digits},           {"Metaspace", read_metaspace},
                   {"Punctuation", read_punctuation}, {"CharDelimiterSplit", read_delimiter}};
    bt_str type;
    bt_err err = get_type(at, &type, why);

    if (err != BT_OK) {
        return err;
    }
    if (depth > DEPTH_MAX || out->count == BT_PRE_STEPS_MAX) {
        return bt_json_wrong(at, why, "more than %d steps", BT_PRE_STEPS_MAX);
    }
    for (size_t i = 0; i < sizeof readers / sizeof *readers; i++) {
        if (bt_str_is(type, readers[i].name)) {
            return readers[i].read(at, out, why);
        }
    }
    if (bt_str_is(type, "Sequence")) {
        return read_pre_tokenizers(at, out, depth, why);
    }
    if (bt_str_is(type, "Whitespace")) {
        return bt_pre_tokenizer_add_regex(out, bt_str_of("\\w+|[^\\w\\s]+"), BT_SPLIT_REMOVED, true, why);
    }
    return bt_str_is(type, "WhitespaceSplit")
               ? bt_pre_tokenizer_add_regex(out, bt_str_of("\\s+"), BT_SPLIT_REMOVED, false, why)
               : unsupported(at, type, why);
}

bt_err
bt_json_read_pre_tokenizer(const bt_json_at *at, bt_pre_tokenizer *out, bt_why *why)
{
    return bt_json_given(at) ? read_pre_tokenizer(at, out, 0, why) : BT_OK;
}
