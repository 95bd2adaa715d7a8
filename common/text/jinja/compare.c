// Python's ==, <, in, and sorting.
#include "common/text/jinja/run.h"

static bool
lists_equal(bt_jinja_run *run, const bt_jinja_list *a, const bt_jinja_list *b)
{
    bool same = a->shape == b->shape && a->count == b->count;

    if (a == b || a->shape == BT_JINJA_SHAPE_GENERATOR || !same) {
        return a == b;
    }
    for (size_t i = 0; same && i < a->count; i++) {
        same = bt_jinja_equal(run, bt_jinja_item(a, i), bt_jinja_item(b, i));
    }
    return same;
}

static bool
dicts_equal(bt_jinja_run *run, const bt_jinja_dict *a, const bt_jinja_dict *b)
{
    bool same = a->count == b->count;

    for (size_t i = 0; same && i < a->count; i++) {
        const bt_jinja_value *other = bt_jinja_dict_find(run, b, a->entries[i].key);

        same = other != NULL && bt_jinja_equal(run, a->entries[i].value, *other);
    }
    return same;
}

static bool
numbers_equal(bt_jinja_value a, bt_jinja_value b)
{
    int64_t x, y;
    double u = 0, v = 0;

    if (bt_jinja_as_int(a, &x) && bt_jinja_as_int(b, &y)) {
        return x == y;
    }
    return bt_jinja_as_real(a, &u) && bt_jinja_as_real(b, &v) && u == v;
}

bool
bt_jinja_equal(bt_jinja_run *run, bt_jinja_value a, bt_jinja_value b)
{
    bool same;

    if (bt_jinja_is_number(a) && bt_jinja_is_number(b)) {
        return numbers_equal(a, b);
    }
    if (a.kind != b.kind) {
        return false;
    }
    switch (a.kind) {
    case BT_JINJA_UNDEFINED:
    case BT_JINJA_NONE:
        return true;
    case BT_JINJA_TEXT:
        return bt_jinja_charge(run, a.text.len / 256) && bt_str_equal(a.text, b.text);
    case BT_JINJA_LIST:
    case BT_JINJA_DICT:
        if (!bt_jinja_charge(run, 1) || !bt_jinja_enter(run)) {
            return false;
        }
        same = a.kind == BT_JINJA_LIST ? lists_equal(run, a.list, b.list) : dicts_equal(run, a.dict, b.dict);
        bt_jinja_leave(run);
        return same;
    default:
        return a.dict == b.dict;
    }
}

static int
sign_of(bool less, bool more)
{
    return less ? -1 : more;
}

static int
text_order(bt_str a, bt_str b)
{
    // The order of UTF-8's bytes is that of the characters.
    size_t least = a.len < b.len ? a.len : b.len;
    int order = least != 0 ? memcmp(a.data, b.data, least) : 0;

    return order != 0 ? order : sign_of(a.len<b.len, a.len> b.len);
}

static int
list_order(bt_jinja_run *run, const bt_jinja_list *a, const bt_jinja_list *b)
{
    for (size_t i = 0; i < a->count && i < b->count; i++) {
        if (!bt_jinja_equal(run, a->items[i], b->items[i])) {
            return bt_jinja_order(run, a->items[i], b->items[i]);
        }
    }
    return sign_of(a->count<b->count, a->count> b->count);
}

int
bt_jinja_order(bt_jinja_run *run, bt_jinja_value a, bt_jinja_value b)
{
    int64_t x, y;
    double u, v;
    int order;

    if (bt_jinja_as_int(a, &x) && bt_jinja_as_int(b, &y)) {
        return sign_of(x<y, x> y);
    }
    if (bt_jinja_as_real(a, &u) && bt_jinja_as_real(b, &v)) {
        return sign_of(u<v, u> v);
    }
    if (a.kind == BT_JINJA_TEXT && b.kind == BT_JINJA_TEXT) {
        return bt_jinja_charge(run, a.text.len / 256) ? text_order(a.text, b.text) : 0;
    }
    if (a.kind == BT_JINJA_LIST && b.kind == BT_JINJA_LIST && a.list->shape == b.list->shape &&
        a.list->shape <= BT_JINJA_SHAPE_TUPLE) {
        if (!bt_jinja_enter(run)) {
            return 0;
        }
        order = list_order(run, a.list, b.list);
        bt_jinja_leave(run);
        return order;
    }
    if (a.kind == BT_JINJA_UNDEFINED || b.kind == BT_JINJA_UNDEFINED) {
        bt_str words = a.kind == BT_JINJA_UNDEFINED ? a.text : b.text;

        bt_jinja_fail(run, "%.*s", (int)words.len, words.data);
        return 0;
    }
    bt_jinja_fail(run, "'%s' and '%s' have no order", bt_jinja_type_name(a), bt_jinja_type_name(b));
    return 0;
}

static bool
text_contains(bt_jinja_run *run, bt_str text, bt_jinja_value item)
{
    if (item.kind != BT_JINJA_TEXT) {
        bt_jinja_fail(run, "'in <string>' requires string as left operand, not %s", bt_jinja_type_name(item));
        return false;
    }
    return bt_jinja_charge(run, text.len / 64) &&
           (item.text.len == 0 ||
            (text.len != 0 && memmem(text.data, text.len, item.text.data, item.text.len) != NULL));
}

bool
bt_jinja_contains(bt_jinja_run *run, bt_jinja_value container, bt_jinja_value item)
{
    bt_jinja_value other;
    bt_jinja_iter iter;

    if (container.kind == BT_JINJA_TEXT) {
        return text_contains(run, container.text, item);
    }
    if (container.kind == BT_JINJA_DICT) {
        return bt_jinja_dict_find(run, container.dict, item) != NULL;
    }
    if (!bt_jinja_is_iterable(container)) {
        bt_jinja_fail(run, "argument of type '%s' is not iterable", bt_jinja_type_name(container));
        return false;
    }
    bt_jinja_iter_begin(run, &iter, container);
    while (bt_jinja_iter_next(run, &iter, &other)) {
        if (bt_jinja_equal(run, other, item)) {
            return true;
        }
    }
    return false;
}

static void
merge(bt_jinja_run *run, bt_jinja_value *items, bt_jinja_value *spare, size_t middle, size_t count,
      bt_jinja_order_fn *order, const void *with)
{
    size_t left = 0, right = middle, used = 0;

    while (left < middle && right < count && bt_jinja_charge(run, 1)) {
        spare[used++] = order(run, &items[right], &items[left], with) < 0 ? items[right++] : items[left++];
    }
    while (left < middle) {
        spare[used++] = items[left++];
    }
    while (right < count) {
        spare[used++] = items[right++];
    }
    memcpy(items, spare, count * sizeof *items);
}

void
bt_jinja_sort(bt_jinja_run *run, bt_jinja_value *items, size_t count, bt_jinja_order_fn *order, const void *with)
{
    bt_jinja_value *spare = bt_jinja_alloc(run, count + 1, sizeof *spare);

    // From runs of one upwards: no recursion, and equal items stay in their order.
    for (size_t width = 1; spare != NULL && run->err == BT_OK && width < count; width *= 2) {
        for (size_t at = 0; at + width < count; at += 2 * width) {
            size_t rest = count - at;

            merge(run, items + at, spare, width, rest < 2 * width ? rest : 2 * width, order, with);
        }
    }
}
