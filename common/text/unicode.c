#include "common/text/unicode.h"

#include "common/base/mem.h"

#include <utf8proc.h>

#define EXPANSION_MAX 18 // U+FDFA has the longest compatibility decomposition

typedef struct {
    int32_t *items; // code points
    size_t count, cap;
} code_points;

static bt_err
reserve(code_points *list, size_t more)
{
    size_t cap = list->cap != 0 ? list->cap : 256;
    int32_t *items;

    while (cap < list->count + more) {
        cap *= 2;
    }
    if (cap == list->cap) {
        return BT_OK;
    }
    items = bt_realloc(list->items, cap * sizeof *items);
    if (items == NULL) {
        return BT_ERR_NO_MEMORY;
    }
    list->items = items;
    list->cap = cap;
    return BT_OK;
}

static unsigned
combining_class(int32_t c)
{
    return c < 0x300 ? 0 : (unsigned)utf8proc_get_property(c)->combining_class & 0xff;
}

// Sorts one run of combining marks by class and keeps equals in their order. By counting, because utf8proc's own sort
// takes quadratic time, and text is outside input.
static bt_err
sort_marks(int32_t *marks, size_t count)
{
    size_t starts[257] = {0};
    int32_t *copy;
    bool sorted = true;

    for (size_t i = 0; i < count; i++) {
        sorted &= i == 0 || combining_class(marks[i - 1]) <= combining_class(marks[i]);
        starts[combining_class(marks[i]) + 1]++;
    }
    if (sorted) {
        return BT_OK;
    }
    if ((copy = bt_alloc_array(count, sizeof *copy)) == NULL) {
        return BT_ERR_NO_MEMORY;
    }
    memcpy(copy, marks, count * sizeof *copy);
    for (size_t c = 1; c < 257; c++) {
        starts[c] += starts[c - 1];
    }
    for (size_t i = 0; i < count; i++) {
        marks[starts[combining_class(copy[i])]++] = copy[i];
    }
    bt_free(copy);
    return BT_OK;
}

static bt_err
order_marks(code_points *list)
{
    for (size_t i = 0; i < list->count;) {
        size_t end = i;
        bt_err err;

        while (end < list->count && combining_class(list->items[end]) != 0) {
            end++;
        }
        if (end - i > 1 && (err = sort_marks(list->items + i, end - i)) != BT_OK) {
            return err;
        }
        i = end + (end == i);
    }
    return BT_OK;
}

static bt_err
decompose(bt_str text, utf8proc_option_t options, code_points *list)
{
    for (size_t i = 0; i < text.len;) {
        uint32_t c = 0;
        size_t bytes = bt_utf8_decode(text.data + i, text.len - i, &c);
        int bound_class = 0;
        utf8proc_ssize_t got;
        bt_err err;

        if (bytes == 0) {
            return BT_ERR_INVALID;
        }
        if ((err = reserve(list, EXPANSION_MAX)) != BT_OK) {
            return err;
        }
        got = utf8proc_decompose_char((int32_t)c, list->items + list->count, EXPANSION_MAX, options, &bound_class);
        if (got < 0 || got > EXPANSION_MAX) {
            return BT_ERR_BUG;
        }
        list->count += (size_t)got;
        i += bytes;
    }
    return BT_OK;
}

static void
append_code_points(const int32_t *items, size_t count, bt_buf *out)
{
    for (size_t i = 0; i < count; i++) {
        char bytes[4];

        bt_buf_append(out, bytes, bt_utf8_encode((uint32_t)items[i], bytes));
    }
}

bt_err
bt_unicode_normal_form(bt_str text, bool compatibility, bool compose, bt_buf *out)
{
    utf8proc_option_t options =
        (utf8proc_option_t)(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (compatibility ? UTF8PROC_COMPAT : 0));
    code_points list = {0};
    bt_err err;

    if ((err = decompose(text, options, &list)) == BT_OK && (err = order_marks(&list)) == BT_OK) {
        if (compose) {
            options = (utf8proc_option_t)(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
            list.count = (size_t)utf8proc_normalize_utf32(list.items, (utf8proc_ssize_t)list.count, options);
        }
        append_code_points(list.items, list.count, out);
    }
    bt_free(list.items);
    return err;
}

void
bt_unicode_lowercase(bt_str text, bt_buf *out)
{
    for (size_t i = 0; i < text.len;) {
        uint32_t c = 0;
        size_t bytes = bt_utf8_decode(text.data + i, text.len - i, &c);
        int32_t lower[2] = {utf8proc_tolower((int32_t)c), 0x307};

        // İ is the one letter whose small form has two code points.
        lower[0] = c == 0x130 ? 'i' : lower[0];
        append_code_points(lower, c == 0x130 ? 2 : 1, out);
        i += bytes != 0 ? bytes : 1;
    }
}

bool
bt_unicode_is_space(uint32_t c)
{
    return (c >= 9 && c <= 13) || c == ' ' || c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) ||
           c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

bool
bt_unicode_is_word(uint32_t c)
{
    utf8proc_category_t category = utf8proc_category((int32_t)c);

    return (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_NO) || category == UTF8PROC_CATEGORY_PC;
}
