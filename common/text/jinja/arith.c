// Python's arithmetic. Integers are 64 bits wide here: what does not fit is a fault.
#include "common/text/jinja/run.h"

#include <math.h>

static bt_jinja_value
no_such(bt_jinja_run *run, int op, bt_jinja_value a, bt_jinja_value b)
{
    char name[3] = {(char)(op < 256 ? op : op >> 8), (char)(op < 256 ? 0 : op & 255), 0};

    if (a.kind == BT_JINJA_UNDEFINED || b.kind == BT_JINJA_UNDEFINED) {
        bt_str words = a.kind == BT_JINJA_UNDEFINED ? a.text : b.text;

        return bt_jinja_fail(run, "%.*s", (int)words.len, words.data);
    }
    if (op == '+' && a.kind == BT_JINJA_TEXT) {
        return bt_jinja_fail(run, "can only concatenate str (not \"%s\") to str", bt_jinja_type_name(b));
    }
    return bt_jinja_fail(run, "unsupported operand type(s) for %s: '%s' and '%s'", name, bt_jinja_type_name(a),
                         bt_jinja_type_name(b));
}

static bt_jinja_value
overflow(bt_jinja_run *run)
{
    return bt_jinja_fail(run, "an integer does not fit 64 bits");
}

static bt_jinja_value
int_power(bt_jinja_run *run, int64_t base, int64_t exponent)
{
    int64_t result = 1;

    if (exponent < 0) {
        return base == 0 ? bt_jinja_fail(run, "0.0 cannot be raised to a negative power")
                         : bt_jinja_real(pow((double)base, (double)exponent));
    }
    if (base == 0 || base == 1 || base == -1) {
        return bt_jinja_int(exponent == 0 ? 1 : base == -1 && exponent % 2 == 0 ? 1 : base);
    }
    for (; exponent > 0; exponent--) {
        if (__builtin_mul_overflow(result, base, &result)) {
            return overflow(run);
        }
    }
    return bt_jinja_int(result);
}

static bt_jinja_value
int_divide(bt_jinja_run *run, int op, int64_t a, int64_t b)
{
    int64_t quotient, rest;

    if (b == 0) {
        return bt_jinja_fail(run, "division by zero");
    }
    if (op == '/') {
        return bt_jinja_real((double)a / (double)b);
    }
    if (b == -1) {
        return op == '%' ? bt_jinja_int(0) : a == INT64_MIN ? overflow(run) : bt_jinja_int(-a);
    }
    // Python rounds down, C towards zero.
    quotient = a / b;
    rest = a % b;
    if (rest != 0 && (rest < 0) != (b < 0)) {
        quotient--;
        rest += b;
    }
    return bt_jinja_int(op == '%' ? rest : quotient);
}

static bt_jinja_value
int_binary(bt_jinja_run *run, int op, int64_t a, int64_t b)
{
    int64_t result;
    bool over;

    switch (op) {
    case '+':
        over = __builtin_add_overflow(a, b, &result);
        break;
    case '-':
        over = __builtin_sub_overflow(a, b, &result);
        break;
    case '*':
        over = __builtin_mul_overflow(a, b, &result);
        break;
    case BT_JINJA_OP('*', '*'):
        return int_power(run, a, b);
    default:
        return int_divide(run, op, a, b);
    }
    return over ? overflow(run) : bt_jinja_int(result);
}

static bt_jinja_value
real_binary(bt_jinja_run *run, int op, double a, double b)
{
    double rest;

    switch (op) {
    case '+':
        return bt_jinja_real(a + b);
    case '-':
        return bt_jinja_real(a - b);
    case '*':
        return bt_jinja_real(a * b);
    case BT_JINJA_OP('*', '*'):
        return bt_jinja_real(pow(a, b));
    default:
        break;
    }
    if (b == 0) {
        return bt_jinja_fail(run, "float division by zero");
    }
    if (op == '/') {
        return bt_jinja_real(a / b);
    }
    rest = fmod(a, b);
    if (rest != 0 && (rest < 0) != (b < 0)) {
        rest += b;
    }
    return bt_jinja_real(op == '%' ? rest : floor(a / b));
}

static bt_jinja_value
repeat_text(bt_jinja_run *run, bt_jinja_value text, int64_t times)
{
    size_t len = text.text.len, total;
    char *data;

    if (times <= 0 || len == 0) {
        text.text.len = 0;
        return text;
    }
    if (__builtin_mul_overflow(len, (size_t)times, &total) || (data = bt_jinja_alloc(run, total, 1)) == NULL) {
        return bt_jinja_limit(run, "memory");
    }
    for (size_t at = 0; at < total; at += len) {
        memcpy(data + at, text.text.data, len);
    }
    text.text = (bt_str){data, total};
    return text;
}

static bt_jinja_value
repeat_list(bt_jinja_run *run, const bt_jinja_list *list, int64_t times)
{
    size_t total = 0;
    bt_jinja_value result;

    if (__builtin_mul_overflow(list->count, (size_t)(times > 0 ? times : 0), &total)) {
        return bt_jinja_limit(run, "memory");
    }
    result = bt_jinja_list_new(run, list->shape, total);
    for (size_t i = 0; i < total; i++) {
        bt_jinja_list_put(result, list->items[i % list->count]);
    }
    return result;
}

static bool
is_display(bt_jinja_value v)
{
    return bt_jinja_is_shape(v, BT_JINJA_SHAPE_LIST) || bt_jinja_is_shape(v, BT_JINJA_SHAPE_TUPLE);
}

static bt_jinja_value
add_lists(bt_jinja_run *run, const bt_jinja_list *a, const bt_jinja_list *b)
{
    bt_jinja_value result = bt_jinja_list_new(run, a->shape, a->count + b->count);

    for (size_t i = 0; i < a->count + b->count; i++) {
        bt_jinja_list_put(result, i < a->count ? a->items[i] : b->items[i - a->count]);
    }
    return result;
}

static bt_jinja_value
add_texts(bt_jinja_run *run, bt_jinja_value a, bt_jinja_value b)
{
    bt_jinja_value sum = {.kind = BT_JINJA_TEXT, .markup = a.markup || b.markup};

    sum.text = sum.markup ? bt_jinja_join(run, bt_jinja_escape(run, a), bt_jinja_escape(run, b))
                          : bt_jinja_join(run, a.text, b.text);
    return sum;
}

static bt_jinja_value
multiply(bt_jinja_run *run, bt_jinja_value a, bt_jinja_value b)
{
    int64_t times;

    if (bt_jinja_as_int(a, &times)) {
        bt_jinja_value swap = a;

        a = b;
        b = swap;
    }
    if (bt_jinja_as_int(b, &times) && a.kind == BT_JINJA_TEXT) {
        return repeat_text(run, a, times);
    }
    if (bt_jinja_as_int(b, &times) && is_display(a)) {
        return repeat_list(run, a.list, times);
    }
    return no_such(run, '*', a, b);
}

static bt_jinja_value
percent(bt_jinja_run *run, bt_jinja_value format, bt_jinja_value with)
{
    bool tuple = bt_jinja_is_shape(with, BT_JINJA_SHAPE_TUPLE);
    bt_jinja_args args = {.items = tuple ? with.list->items : &with, .count = tuple ? with.list->count : 1};

    return bt_jinja_format_percent(run, format, &args);
}

bt_jinja_value
bt_jinja_binary(bt_jinja_run *run, int op, bt_jinja_value a, bt_jinja_value b)
{
    int64_t x, y;
    double u, v;

    if (bt_jinja_as_int(a, &x) && bt_jinja_as_int(b, &y)) {
        return int_binary(run, op, x, y);
    }
    if (bt_jinja_as_real(a, &u) && bt_jinja_as_real(b, &v)) {
        return real_binary(run, op, u, v);
    }
    if (op == '+' && a.kind == BT_JINJA_TEXT && b.kind == BT_JINJA_TEXT) {
        return add_texts(run, a, b);
    }
    if (op == '+' && is_display(a) && is_display(b) && a.list->shape == b.list->shape) {
        return add_lists(run, a.list, b.list);
    }
    if (op == '%' && a.kind == BT_JINJA_TEXT) {
        return percent(run, a, b);
    }
    return op == '*' ? multiply(run, a, b) : no_such(run, op, a, b);
}

bt_jinja_value
bt_jinja_sign(bt_jinja_run *run, int op, bt_jinja_value v)
{
    int64_t whole;

    if (v.kind == BT_JINJA_REAL) {
        return bt_jinja_real(op == '-' ? -v.real : v.real);
    }
    if (v.kind == BT_JINJA_UNDEFINED) {
        return bt_jinja_fail(run, "%.*s", (int)v.text.len, v.text.data);
    }
    if (!bt_jinja_as_int(v, &whole)) {
        return bt_jinja_fail(run, "bad operand type for unary %c: '%s'", op, bt_jinja_type_name(v));
    }
    return op == '-' && whole == INT64_MIN ? overflow(run) : bt_jinja_int(op == '-' ? -whole : whole);
}
