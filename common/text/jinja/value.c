#include "common/text/jinja/value.h"

const char *
bt_jinja_type_name(bt_jinja_value v)
{
    static const char *const names[] = {
        [BT_JINJA_UNSET] = "missing",    [BT_JINJA_UNDEFINED] = "Undefined",
        [BT_JINJA_NONE] = "NoneType",    [BT_JINJA_BOOL] = "bool",
        [BT_JINJA_INT] = "int",          [BT_JINJA_REAL] = "float",
        [BT_JINJA_TEXT] = "str",         [BT_JINJA_LIST] = "list",
        [BT_JINJA_DICT] = "dict",        [BT_JINJA_NAMESPACE] = "Namespace",
        [BT_JINJA_LOOP] = "LoopContext", [BT_JINJA_MACRO] = "Macro",
        [BT_JINJA_GLOBAL] = "function",  [BT_JINJA_METHOD] = "method",
        [BT_JINJA_CYCLER] = "Cycler",    [BT_JINJA_JOINER] = "Joiner",
    };
    static const char *const shapes[] = {
        [BT_JINJA_SHAPE_LIST] = "list",           [BT_JINJA_SHAPE_TUPLE] = "tuple",
        [BT_JINJA_SHAPE_RANGE] = "range",         [BT_JINJA_SHAPE_VIEW] = "dict_items",
        [BT_JINJA_SHAPE_GENERATOR] = "generator",
    };
    return v.kind == BT_JINJA_LIST ? shapes[v.list->shape] : names[v.kind];
}

bool
bt_jinja_truth(bt_jinja_value v)
{
    switch (v.kind) {
    case BT_JINJA_UNSET:
    case BT_JINJA_UNDEFINED:
    case BT_JINJA_NONE:
        return false;
    case BT_JINJA_BOOL:
        return v.flag;
    case BT_JINJA_INT:
        return v.whole != 0;
    case BT_JINJA_REAL:
        return v.real != 0;
    case BT_JINJA_TEXT:
        return v.text.len != 0;
    case BT_JINJA_LIST:
        return v.list->count != 0 || v.list->shape == BT_JINJA_SHAPE_GENERATOR;
    case BT_JINJA_DICT:
        return v.dict->count != 0;
    default:
        return true;
    }
}

bool
bt_jinja_as_int(bt_jinja_value v, int64_t *out)
{
    if (v.kind != BT_JINJA_INT && v.kind != BT_JINJA_BOOL) {
        return false;
    }
    *out = v.kind == BT_JINJA_INT ? v.whole : v.flag;
    return true;
}

bool
bt_jinja_as_real(bt_jinja_value v, double *out)
{
    int64_t whole;

    if (v.kind == BT_JINJA_REAL) {
        *out = v.real;
        return true;
    }
    if (!bt_jinja_as_int(v, &whole)) {
        return false;
    }
    *out = (double)whole;
    return true;
}

bt_jinja_value
bt_jinja_item(const bt_jinja_list *list, size_t i)
{
    return list->shape == BT_JINJA_SHAPE_RANGE ? bt_jinja_int(list->start + list->step * (int64_t)i) : list->items[i];
}
