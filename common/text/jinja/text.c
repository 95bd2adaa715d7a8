#include "common/text/jinja/text.h"

#include "common/text/jinja/chars.h"

static uint32_t
cased(uint32_t c, bt_jinja_case how, bool begins)
{
    switch (how) {
    case BT_JINJA_LOWER:
        return bt_jinja_to_lower(c);
    case BT_JINJA_UPPER:
        return bt_jinja_to_upper(c);
    case BT_JINJA_SWAP:
        return bt_jinja_is_upper(c) ? bt_jinja_to_lower(c) : bt_jinja_to_upper(c);
    default:
        return begins ? bt_jinja_to_upper(c) : bt_jinja_to_lower(c);
    }
}

bt_str
bt_jinja_text_case(bt_jinja_run *run, bt_str text, bt_jinja_case how)
{
    bool begins = true;
    size_t bytes;
    bt_buf out;

    bt_jinja_charge(run, text.len / 8);
    bt_jinja_buf_init(run, &out);
    for (size_t at = 0; at < text.len && run->err == BT_OK && !out.failed; at += bytes) {
        uint32_t c = bt_jinja_char_at(text, at, &bytes);
        uint32_t turned = cased(c, how, begins);
        char encoded[4];

        if (turned == 0x1e9e && c == 0xdf) {
            // The one letter of daily use that grows: its capital is two.
            bt_buf_append_text(&out, how == BT_JINJA_UPPER || how == BT_JINJA_SWAP ? "SS" : "Ss");
        } else {
            bt_buf_append(&out, encoded, bt_utf8_encode(turned, encoded));
        }
        begins = how == BT_JINJA_TITLE && !bt_jinja_is_alpha(c);
    }
    return bt_jinja_text_of_buf(run, &out).text;
}

// Whether the character at `at` is one to strip.
static bool
in_set(bt_str text, size_t at, size_t *bytes, const bt_str *set)
{
    uint32_t c = bt_jinja_char_at(text, at, bytes);

    if (set == NULL) {
        return bt_jinja_is_space(c);
    }
    return *bytes <= set->len && memmem(set->data, set->len, text.data + at, *bytes) != NULL;
}

bt_str
bt_jinja_text_strip(bt_jinja_run *run, bt_str text, const bt_str *set, bool left, bool right)
{
    size_t cost = set != NULL ? set->len / 64 + 1 : 1, bytes;

    while (left && text.len != 0 && in_set(text, 0, &bytes, set) && bt_jinja_charge(run, cost)) {
        text = (bt_str){text.data + bytes, text.len - bytes};
    }
    while (right && text.len != 0 && bt_jinja_charge(run, cost)) {
        size_t before = bt_jinja_char_before(text, text.len);

        if (!in_set(text, before, &bytes, set)) {
            break;
        }
        text.len = before;
    }
    return text;
}

size_t
bt_jinja_text_find(bt_jinja_run *run, bt_str text, bt_str what, size_t from)
{
    const char *hit;

    if (from > text.len || !bt_jinja_charge(run, 1)) {
        return SIZE_MAX;
    }
    if (what.len == 0) {
        return from;
    }
    hit = text.len != 0 ? memmem(text.data + from, text.len - from, what.data, what.len) : NULL;
    bt_jinja_charge(run, (hit != NULL ? (size_t)(hit - text.data) - from : text.len - from) / 64);
    return hit != NULL ? (size_t)(hit - text.data) : SIZE_MAX;
}

size_t
bt_jinja_text_find_last(bt_jinja_run *run, bt_str text, bt_str what)
{
    size_t at;

    if (what.len > text.len) {
        return SIZE_MAX;
    }
    for (at = text.len - what.len;; at--) {
        if (what.len == 0 || memcmp(text.data + at, what.data, what.len) == 0) {
            return at;
        }
        if (at == 0 || !bt_jinja_charge(run, what.len / 256 + (at % 16 == 0))) {
            return SIZE_MAX;
        }
    }
}

// Python finds "" before every character and at the end.
static size_t
next_hit(bt_jinja_run *run, bt_str text, bt_str from, size_t at, bool first)
{
    size_t bytes;

    if (from.len != 0 || first) {
        return bt_jinja_text_find(run, text, from, at);
    }
    if (at >= text.len || !bt_jinja_charge(run, 1)) {
        return SIZE_MAX;
    }
    bt_jinja_char_at(text, at, &bytes);
    return at + bytes;
}

bt_str
bt_jinja_text_replace(bt_jinja_run *run, bt_str text, bt_str from, bt_str to, int64_t count)
{
    size_t done = 0, hit;
    bool first = true;
    bt_buf out;

    bt_jinja_buf_init(run, &out);
    while (count != 0 && !out.failed && (hit = next_hit(run, text, from, done, first)) != SIZE_MAX) {
        bt_buf_append(&out, text.data + done, hit - done);
        bt_buf_append(&out, to.data, to.len);
        done = hit + from.len;
        first = false;
        count--;
    }
    if (first) {
        bt_buf_fini(&out);
        return text;
    }
    bt_buf_append(&out, text.data + done, text.len - done);
    return bt_jinja_text_of_buf(run, &out).text;
}

static bool
ends_line(uint32_t c)
{
    return (c >= '\n' && c <= '\r') || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

// The byte where the line from `at` ends, and that where the next one begins.
static size_t
line_end(bt_str text, size_t at, size_t *next)
{
    size_t bytes;

    for (; at < text.len; at += bytes) {
        uint32_t c = bt_jinja_char_at(text, at, &bytes);

        if (ends_line(c)) {
            *next = at + bytes + (c == '\r' && at + 1 < text.len && text.data[at + 1] == '\n');
            return at;
        }
    }
    *next = at;
    return at;
}

bt_jinja_value
bt_jinja_text_lines(bt_jinja_run *run, bt_str text, bool keep_ends)
{
    size_t count = 0, next;
    bt_jinja_value lines;

    bt_jinja_charge(run, text.len / 8);
    for (size_t at = 0; at < text.len && run->err == BT_OK; at = next) {
        line_end(text, at, &next);
        count++;
    }
    lines = bt_jinja_list_new(run, BT_JINJA_SHAPE_LIST, count);
    for (size_t at = 0; at < text.len && run->err == BT_OK; at = next) {
        size_t end = line_end(text, at, &next);

        bt_jinja_list_put(lines, bt_jinja_text((bt_str){text.data + at, (keep_ends ? next : end) - at}));
    }
    return lines;
}

static bt_str
first_word(bt_str text, bool from_right)
{
    size_t at = from_right ? text.len : 0, bytes;

    while (from_right ? at > 0 : at < text.len) {
        size_t here = from_right ? bt_jinja_char_before(text, at) : at;

        if (bt_jinja_is_space(bt_jinja_char_at(text, here, &bytes))) {
            break;
        }
        at = from_right ? here : at + bytes;
    }
    return from_right ? (bt_str){text.data + at, text.len - at} : (bt_str){text.data, at};
}

// Takes one piece off `rest`; false when there is none and what remains is the last piece.
static bool
split_once(bt_jinja_run *run, bt_str *rest, const bt_str *separator, bool from_right, bt_str *piece)
{
    size_t hit;

    if (separator == NULL) {
        *rest = bt_jinja_text_strip(run, *rest, NULL, !from_right, from_right);
        *piece = first_word(*rest, from_right);
        bt_jinja_charge(run, piece->len / 16);
        if (piece->len == rest->len) {
            return false;
        }
        *rest = (bt_str){from_right ? rest->data : rest->data + piece->len, rest->len - piece->len};
        return true;
    }
    hit = from_right ? bt_jinja_text_find_last(run, *rest, *separator) : bt_jinja_text_find(run, *rest, *separator, 0);
    if (hit == SIZE_MAX) {
        return false;
    }
    *piece = from_right ? (bt_str){rest->data + hit + separator->len, rest->len - hit - separator->len}
                        : (bt_str){rest->data, hit};
    *rest = from_right ? (bt_str){rest->data, hit}
                       : (bt_str){rest->data + hit + separator->len, rest->len - hit - separator->len};
    return true;
}

static bt_jinja_value
split_pass(bt_jinja_run *run, bt_str rest, const bt_str *separator, int64_t times, bool from_right, bt_jinja_value list,
           size_t *count)
{
    bt_str piece;

    *count = 0;
    while (times != 0 && run->err == BT_OK && split_once(run, &rest, separator, from_right, &piece)) {
        if (list.kind == BT_JINJA_LIST) {
            bt_jinja_list_put(list, bt_jinja_text(piece));
        }
        times--;
        ++*count;
    }
    if (separator == NULL) {
        rest = bt_jinja_text_strip(run, rest, NULL, !from_right || times != 0, from_right || times != 0);
    }
    if (separator != NULL || rest.len != 0) {
        if (list.kind == BT_JINJA_LIST) {
            bt_jinja_list_put(list, bt_jinja_text(rest));
        }
        ++*count;
    }
    return list;
}

bt_jinja_value
bt_jinja_text_split(bt_jinja_run *run, bt_str text, const bt_str *separator, int64_t times, bool from_right)
{
    size_t count;
    bt_jinja_value list;

    if (separator != NULL && separator->len == 0) {
        return bt_jinja_fail(run, "empty separator");
    }
    // Once to count, once to fill.
    split_pass(run, text, separator, times, from_right, bt_jinja_none(), &count);
    list = bt_jinja_list_new(run, BT_JINJA_SHAPE_LIST, count);
    if (run->err != BT_OK) {
        return list;
    }
    split_pass(run, text, separator, times, from_right, list, &count);
    for (size_t i = 0; from_right && i < list.list->count / 2; i++) {
        bt_jinja_value *items = list.list->items, swap = items[i];

        items[i] = items[list.list->count - 1 - i];
        items[list.list->count - 1 - i] = swap;
    }
    return list;
}
