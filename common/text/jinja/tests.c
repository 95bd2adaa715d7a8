#include "common/text/jinja/tests.h"

#include "common/text/jinja/filters.h"

static bool
is_defined(bt_jinja_run *run, bt_jinja_value v, const bt_jinja_args *args)
{
    (void)run;
    (void)args;
    return v.kind != BT_JINJA_UNDEFINED;
}

static bool
is_undefined(bt_jinja_run *run, bt_jinja_value v, const bt_jinja_args *args)
{
    return !is_defined(run, v, args);
}

static bool
is_none(bt_jinja_run *run, bt_jinja_value v, const bt_jinja_args *args)
{
    (void)run;
    (void)args;
    return v.kind == BT_JINJA_NONE;
}

static bool
is_boolean(bt_jinja_run *run, bt_jinja_value v, const bt_jinja_args *args)
{
    (void)run;
    (void)args;
    return v.kind == BT_JINJA_BOOL;
}

static bool
is_true(bt_jinja_run *run, bt_jinja_value v, const bt_jinja_args *args)
{
    return is_boolean(run, v, args) && v.flag;
}

static bool
is_false(bt_jinja_run *run, bt_jinja_value v, const bt_jinja_args *args)
{
    return is_boolean(run, v, args) && !v.flag;
}

static bool
is_integer(bt_jinja_run *run, bt_jinja_value v, const bt_jinja_args *args)
{
    (void)run;
    (void)args;
    return v.kind == BT_JINJA_INT;
}

static bool
is_float(bt_jinja_run *run, bt_jinja_value v, const bt_jinja_args *args)
{
    (void)run;
    (void)args;
    return v.kind == BT_JINJA_REAL;
}

static bool
is_number(bt_jinja_run *run, bt_jinja_value v, const bt_jinja_args *args)
{
    (void)run;
    (void)args;
    return bt_jinja_is_number(v);
}

static bool
is_string(bt_jinja_run *run, bt_jinja_value v, const bt_jinja_args *args)
{
    (void)run;
    (void)args;
    return v.kind == BT_JINJA_TEXT;
}

static bool
is_mapping(bt_jinja_run *run, bt_jinja_value v, const bt_jinja_args *args)
{
    (void)run;
    (void)args;
    return v.kind == BT_JINJA_DICT;
}

static bool
is_iterable(bt_jinja_run *run, bt_jinja_value v, const bt_jinja_args *args)
{
    (void)run;
    (void)args;
    return bt_jinja_is_iterable(v) || v.kind == BT_JINJA_LOOP;
}

// What has a length and can be indexed, even if by keys.
static bool
is_sequence(bt_jinja_run *run, bt_jinja_value v, const bt_jinja_args *args)
{
    (void)run;
    (void)args;
    return v.kind == BT_JINJA_TEXT || v.kind == BT_JINJA_DICT || v.kind == BT_JINJA_UNDEFINED ||
           (v.kind == BT_JINJA_LIST && v.list->shape <= BT_JINJA_SHAPE_RANGE);
}

static bool
is_callable(bt_jinja_run *run, bt_jinja_value v, const bt_jinja_args *args)
{
    (void)run;
    (void)args;
    return v.kind == BT_JINJA_MACRO || v.kind == BT_JINJA_GLOBAL || v.kind == BT_JINJA_METHOD ||
           v.kind == BT_JINJA_LOOP || v.kind == BT_JINJA_JOINER || v.kind == BT_JINJA_UNDEFINED;
}

static bool
is_escaped(bt_jinja_run *run, bt_jinja_value v, const bt_jinja_args *args)
{
    (void)run;
    (void)args;
    return v.kind == BT_JINJA_TEXT && v.markup;
}

static bool
remainder_is(bt_jinja_run *run, bt_jinja_value v, bt_jinja_value by, int64_t wanted)
{
    bt_jinja_value rest = bt_jinja_binary(run, '%', v, by);
    double real;

    return run->err == BT_OK && bt_jinja_as_real(rest, &real) && real == (double)wanted;
}

static bool
is_odd(bt_jinja_run *run, bt_jinja_value v, const bt_jinja_args *args)
{
    (void)args;
    return remainder_is(run, v, bt_jinja_int(2), 1);
}

static bool
is_even(bt_jinja_run *run, bt_jinja_value v, const bt_jinja_args *args)
{
    (void)args;
    return remainder_is(run, v, bt_jinja_int(2), 0);
}

// The one argument that the rest take.
static bool
other(bt_jinja_run *run, const bt_jinja_args *args, bt_jinja_value *out)
{
    return bt_jinja_take_args(run, args, "this test", "other", 1, out);
}

static bool
is_divisibleby(bt_jinja_run *run, bt_jinja_value v, const bt_jinja_args *args)
{
    bt_jinja_value by;

    return other(run, args, &by) && remainder_is(run, v, by, 0);
}

static bool
is_eq(bt_jinja_run *run, bt_jinja_value v, const bt_jinja_args *args)
{
    bt_jinja_value with;

    return other(run, args, &with) && bt_jinja_equal(run, v, with);
}

static bool
is_ne(bt_jinja_run *run, bt_jinja_value v, const bt_jinja_args *args)
{
    bt_jinja_value with;

    return other(run, args, &with) && !bt_jinja_equal(run, v, with);
}

static bool
is_lt(bt_jinja_run *run, bt_jinja_value v, const bt_jinja_args *args)
{
    bt_jinja_value with;

    return other(run, args, &with) && bt_jinja_order(run, v, with) < 0;
}

static bool
is_le(bt_jinja_run *run, bt_jinja_value v, const bt_jinja_args *args)
{
    bt_jinja_value with;

    return other(run, args, &with) && bt_jinja_order(run, v, with) <= 0;
}

static bool
is_gt(bt_jinja_run *run, bt_jinja_value v, const bt_jinja_args *args)
{
    bt_jinja_value with;

    return other(run, args, &with) && bt_jinja_order(run, v, with) > 0;
}

static bool
is_ge(bt_jinja_run *run, bt_jinja_value v, const bt_jinja_args *args)
{
    bt_jinja_value with;

    return other(run, args, &with) && bt_jinja_order(run, v, with) >= 0;
}

static bool
is_in(bt_jinja_run *run, bt_jinja_value v, const bt_jinja_args *args)
{
    bt_jinja_value container;

    return other(run, args, &container) && bt_jinja_contains(run, container, v);
}

static bool
is_sameas(bt_jinja_run *run, bt_jinja_value v, const bt_jinja_args *args)
{
    bt_jinja_value with;

    if (!other(run, args, &with) || v.kind != with.kind) {
        return false;
    }
    // Numbers and texts have no identity here: equal ones of one type are the same.
    return v.kind == BT_JINJA_LIST || v.kind == BT_JINJA_DICT ? v.dict == with.dict : bt_jinja_equal(run, v, with);
}

static bool
case_is(bt_jinja_run *run, bt_jinja_value v, const char *method)
{
    bt_jinja_value bound = bt_jinja_text_method(run, bt_jinja_text(bt_jinja_to_text(run, v)), bt_str_of(method));

    return bt_jinja_truth(bt_jinja_call(run, bound, &(bt_jinja_args){0}));
}

static bool
is_lower(bt_jinja_run *run, bt_jinja_value v, const bt_jinja_args *args)
{
    (void)args;
    return case_is(run, v, "islower");
}

static bool
is_upper(bt_jinja_run *run, bt_jinja_value v, const bt_jinja_args *args)
{
    (void)args;
    return case_is(run, v, "isupper");
}

static bool
is_filter(bt_jinja_run *run, bt_jinja_value v, const bt_jinja_args *args)
{
    (void)run;
    (void)args;
    return v.kind == BT_JINJA_TEXT && bt_jinja_filter_find(v.text) != NULL;
}

static bool
is_test(bt_jinja_run *run, bt_jinja_value v, const bt_jinja_args *args)
{
    (void)run;
    (void)args;
    return v.kind == BT_JINJA_TEXT && bt_jinja_test_find(v.text) != NULL;
}

static const bt_jinja_test tests[] = {
    {"defined", is_defined},
    {"undefined", is_undefined},
    {"none", is_none},
    {"boolean", is_boolean},
    {"true", is_true},
    {"false", is_false},
    {"integer", is_integer},
    {"float", is_float},
    {"number", is_number},
    {"string", is_string},
    {"mapping", is_mapping},
    {"iterable", is_iterable},
    {"sequence", is_sequence},
    {"callable", is_callable},
    {"escaped", is_escaped},
    {"odd", is_odd},
    {"even", is_even},
    {"divisibleby", is_divisibleby},
    {"eq", is_eq},
    {"equalto", is_eq},
    {"==", is_eq},
    {"ne", is_ne},
    {"!=", is_ne},
    {"lt", is_lt},
    {"lessthan", is_lt},
    {"<", is_lt},
    {"le", is_le},
    {"<=", is_le},
    {"gt", is_gt},
    {"greaterthan", is_gt},
    {">", is_gt},
    {"ge", is_ge},
    {">=", is_ge},
    {"in", is_in},
    {"sameas", is_sameas},
    {"lower", is_lower},
    {"upper", is_upper},
    {"filter", is_filter},
    {"test", is_test},
};

const bt_jinja_test *
bt_jinja_test_find(bt_str name)
{
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
        if (bt_str_is(name, tests[i].name)) {
            return &tests[i];
        }
    }
    return NULL;
}
