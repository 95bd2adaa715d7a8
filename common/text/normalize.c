#include "common/text/normalize.h"

#include "common/base/mem.h"
#include "common/text/unicode.h"

static bt_err
copy_text(bt_str text, char **out, size_t *len)
{
    if (text.len == 0) {
        return BT_OK;
    }
    if ((*out = bt_alloc(text.len)) == NULL) {
        return BT_ERR_NO_MEMORY;
    }
    memcpy(*out, text.data, text.len);
    *len = text.len;
    return BT_OK;
}

bt_err
bt_normalizer_add(bt_normalizer *normalizer, bt_normalize_step step, bt_str pattern, bt_str content)
{
    bt_normalize_step *to = &normalizer->steps[normalizer->count];
    bt_err err;

    if (normalizer->count == BT_NORMALIZE_STEPS_MAX) {
        bt_regex_close(step.regex);
        return BT_ERR_TOO_LONG;
    }
    *to = step;
    normalizer->count++;
    if ((err = copy_text(pattern, &to->pattern, &to->pattern_len)) != BT_OK) {
        return err;
    }
    return copy_text(content, &to->content, &to->content_len);
}

void
bt_normalizer_fini(bt_normalizer *normalizer)
{
    for (uint32_t i = 0; i < normalizer->count; i++) {
        bt_regex_close(normalizer->steps[i].regex);
        bt_free(normalizer->steps[i].pattern);
        bt_free(normalizer->steps[i].content);
    }
    *normalizer = (bt_normalizer){0};
}

static bool
is_ascii(bt_str text)
{
    uint8_t seen = 0;

    for (size_t i = 0; i < text.len; i++) {
        seen |= (uint8_t)text.data[i];
    }
    return seen < 0x80;
}

static bt_err
find(const bt_normalize_step *step, bt_regex_finder *finder, bt_str text, size_t from, size_t *begin, size_t *end)
{
    const char *found;

    if (step->regex != NULL) {
        return bt_regex_find(step->regex, finder, text, from, begin, end);
    }
    found = step->pattern_len != 0 ? memmem(text.data + from, text.len - from, step->pattern, step->pattern_len) : NULL;
    if (found == NULL) {
        return BT_ERR_NOT_FOUND;
    }
    *begin = (size_t)(found - text.data);
    *end = *begin + step->pattern_len;
    return BT_OK;
}

static bt_err
replace(const bt_normalize_step *step, bt_regex_finder *finder, bt_str text, bt_buf *out)
{
    size_t from = 0, begin, end;
    bt_err err = BT_OK;

    while (from < text.len && (err = find(step, finder, text, from, &begin, &end)) == BT_OK) {
        bt_buf_append(out, text.data + from, begin - from);
        bt_buf_append(out, step->content, step->content_len);
        from = end;
        if (begin == end && from < text.len) {
            // An empty match: step over one whole character, or the search stands still.
            do {
                bt_buf_append_char(out, text.data[from++]);
            } while (from < text.len && ((uint8_t)text.data[from] & 0xc0) == 0x80);
        }
        if (out->failed) {
            return BT_OK; // the caller sees it
        }
    }
    bt_buf_append(out, text.data + from, text.len - from);
    return err == BT_ERR_NOT_FOUND ? BT_OK : err;
}

static bt_str
strip(const bt_normalize_step *step, bt_str text)
{
    uint32_t c;
    size_t bytes;

    while (step->left && (bytes = bt_utf8_decode(text.data, text.len, &c)) != 0 && bt_unicode_is_space(c)) {
        text.data += bytes;
        text.len -= bytes;
    }
    while (step->right && text.len != 0) {
        size_t at = text.len - 1;

        while (at != 0 && ((uint8_t)text.data[at] & 0xc0) == 0x80) {
            at--;
        }
        if (bt_utf8_decode(text.data + at, text.len - at, &c) == 0 || !bt_unicode_is_space(c)) {
            break;
        }
        text.len = at;
    }
    return text;
}

static void
squeeze(bt_str text, bt_buf *out)
{
    bool space = false;

    for (size_t i = 0; i < text.len; i++) {
        if (text.data[i] == ' ') {
            space = out->len != 0;
            continue;
        }
        if (space) {
            bt_buf_append_char(out, ' ');
        }
        space = false;
        bt_buf_append_char(out, text.data[i]);
    }
}

// Fills `out` and returns true in *changed, or leaves both alone.
static bt_err
apply(const bt_normalize_step *step, bt_regex_finder *finder, bt_str text, bt_buf *out, bool *changed)
{
    size_t begin, end;

    *changed = true;
    switch (step->kind) {
    case BT_NORMALIZE_NFC:
    case BT_NORMALIZE_NFD:
    case BT_NORMALIZE_NFKC:
    case BT_NORMALIZE_NFKD:
        *changed = !is_ascii(text);
        return *changed ? bt_unicode_normal_form(text, step->kind >= BT_NORMALIZE_NFKC,
                                                 step->kind == BT_NORMALIZE_NFC || step->kind == BT_NORMALIZE_NFKC, out)
                        : BT_OK;
    case BT_NORMALIZE_LOWERCASE:
        bt_unicode_lowercase(text, out);
        return BT_OK;
    case BT_NORMALIZE_PREPEND:
        if ((*changed = text.len != 0)) {
            bt_buf_append(out, step->content, step->content_len);
            bt_buf_append(out, text.data, text.len);
        }
        return BT_OK;
    case BT_NORMALIZE_REPLACE:
        if (step->regex == NULL && find(step, finder, text, 0, &begin, &end) != BT_OK) {
            *changed = false;
            return BT_OK;
        }
        return replace(step, finder, text, out);
    case BT_NORMALIZE_STRIP:
        text = strip(step, text);
        bt_buf_append(out, text.data, text.len);
        return BT_OK;
    case BT_NORMALIZE_SQUEEZE:
        squeeze(text, out);
        return BT_OK;
    }
    return BT_ERR_BUG;
}

bt_err
bt_normalizer_apply(const bt_normalizer *normalizer, bt_regex_finder *finder, bt_buf buffers[2], bt_str text,
                    bt_str *out)
{
    uint32_t turn = 0;

    for (uint32_t i = 0; i < normalizer->count && text.len != 0; i++) {
        bt_buf *buffer = &buffers[turn];
        bool changed;
        bt_err err;

        bt_buf_clear(buffer);
        if ((err = apply(&normalizer->steps[i], finder, text, buffer, &changed)) != BT_OK) {
            return err;
        }
        if (buffer->failed) {
            return buffer->len >= buffer->limit / 2 ? BT_ERR_TOO_LONG : BT_ERR_NO_MEMORY;
        }
        if (changed) {
            text = (bt_str){buffer->data, buffer->len};
            turn ^= 1;
        }
    }
    *out = text;
    return BT_OK;
}
