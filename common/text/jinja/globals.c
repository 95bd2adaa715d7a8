// The functions that every template finds.
#include "common/text/jinja/run.h"

#include <time.h>

// As Jinja's sandbox: a longer range is a mistake or an attack.
#define RANGE_MAX 100000

static bt_jinja_value
global_range(bt_jinja_run *run, const bt_jinja_args *args)
{
    bt_jinja_value places[3], range;
    int64_t ends[3] = {0, 0, 1}, from, to, step;
    uint64_t gap, stride, count;

    if (!bt_jinja_take_args(run, args, "range", "start stop step", 1, places)) {
        return places[0];
    }
    for (int i = 0; i < 3; i++) {
        if (places[i].kind != BT_JINJA_UNSET && !bt_jinja_as_int(places[i], &ends[i])) {
            return bt_jinja_fail(run, "'%s' object cannot be interpreted as an integer", bt_jinja_type_name(places[i]));
        }
    }
    from = places[1].kind != BT_JINJA_UNSET ? ends[0] : 0;
    to = places[1].kind != BT_JINJA_UNSET ? ends[1] : ends[0];
    step = ends[2];
    if (step == 0) {
        return bt_jinja_fail(run, "range() arg 3 must not be zero");
    }
    gap = (step > 0 ? from < to : from > to)
              ? (step > 0 ? (uint64_t)to - (uint64_t)from : (uint64_t)from - (uint64_t)to)
              : 0;
    stride = step > 0 ? (uint64_t)step : 0 - (uint64_t)step;
    count = gap / stride + (gap % stride != 0);
    if (count > RANGE_MAX) {
        return bt_jinja_fail(run, "range too big: at most %d are allowed", RANGE_MAX);
    }
    range = bt_jinja_list_new(run, BT_JINJA_SHAPE_RANGE, 0);
    if (run->err == BT_OK) {
        *range.list =
            (bt_jinja_list){.shape = BT_JINJA_SHAPE_RANGE, .count = (size_t)count, .start = from, .step = step};
    }
    return range;
}

// dict(…) and namespace(…): an optional dict or list of pairs, then names.
static bt_jinja_value
make_dict(bt_jinja_run *run, const bt_jinja_args *args, const char *what)
{
    bt_jinja_value dict = bt_jinja_dict_new(run, args->named_count), item;
    bt_jinja_iter iter;

    if (args->count > 1) {
        return bt_jinja_fail(run, "%s() takes at most 1 positional argument", what);
    }
    if (args->count == 1 && args->items[0].kind == BT_JINJA_DICT) {
        const bt_jinja_dict *from = args->items[0].dict;

        for (size_t i = 0; i < from->count && run->err == BT_OK; i++) {
            bt_jinja_dict_set(run, dict.dict, from->entries[i].key, from->entries[i].value);
        }
    } else if (args->count == 1 && bt_jinja_iter_begin(run, &iter, args->items[0])) {
        while (bt_jinja_iter_next(run, &iter, &item)) {
            bt_jinja_value pair = bt_jinja_to_list(run, item);

            if (run->err != BT_OK || pair.list->count != 2) {
                return bt_jinja_fail(run, "%s() wants a mapping or pairs", what);
            }
            bt_jinja_dict_set(run, dict.dict, pair.list->items[0], pair.list->items[1]);
        }
    }
    for (size_t i = 0; i < args->named_count && run->err == BT_OK; i++) {
        bt_jinja_dict_set(run, dict.dict, bt_jinja_text(args->named[i].name), args->named[i].value);
    }
    return dict;
}

static bt_jinja_value
global_dict(bt_jinja_run *run, const bt_jinja_args *args)
{
    return make_dict(run, args, "dict");
}

static bt_jinja_value
global_namespace(bt_jinja_run *run, const bt_jinja_args *args)
{
    bt_jinja_value dict = make_dict(run, args, "namespace");

    if (run->err == BT_OK) {
        dict.kind = BT_JINJA_NAMESPACE;
    }
    return dict;
}

static bt_jinja_value
make_cycler(bt_jinja_run *run, bt_jinja_kind kind, const bt_jinja_args *args, bt_str separator)
{
    bt_jinja_cycler *cycler = bt_jinja_alloc(run, 1, sizeof *cycler);
    bt_jinja_value *items = bt_jinja_alloc(run, args->count + 1, sizeof *items);

    if (cycler == NULL || items == NULL) {
        return bt_jinja_undefined((bt_str){"", 0});
    }
    for (size_t i = 0; i < args->count; i++) {
        items[i] = args->items[i];
    }
    *cycler = (bt_jinja_cycler){.items = items, .count = args->count, .separator = separator};
    return (bt_jinja_value){.kind = (uint8_t)kind, .cycler = cycler};
}

static bt_jinja_value
global_cycler(bt_jinja_run *run, const bt_jinja_args *args)
{
    return args->count == 0 ? bt_jinja_fail(run, "at least one item has to be provided")
                            : make_cycler(run, BT_JINJA_CYCLER, args, (bt_str){"", 0});
}

static bt_jinja_value
global_joiner(bt_jinja_run *run, const bt_jinja_args *args)
{
    bt_jinja_value sep;

    if (!bt_jinja_take_args(run, args, "joiner", "sep", 0, &sep)) {
        return sep;
    }
    return make_cycler(run, BT_JINJA_JOINER, &(bt_jinja_args){0},
                       sep.kind != BT_JINJA_UNSET ? bt_jinja_to_text(run, sep) : bt_str_of(", "));
}

// The template's own words reach the caller as they are, for the person whose request it refuses.
static bt_jinja_value
global_raise(bt_jinja_run *run, const bt_jinja_args *args)
{
    bt_jinja_value message;
    bt_str words;

    if (!bt_jinja_take_args(run, args, "raise_exception", "message", 1, &message)) {
        return message;
    }
    words = bt_jinja_to_text(run, message);
    if (run->err == BT_OK) {
        int len = (int)(words.len < 400 ? bt_utf8_valid_prefix(words.data, words.len) : 400);

        run->err = bt_fail(run->why, BT_ERR_INVALID, "%.*s (template line %d)", len, words.data, run->line);
    }
    return message;
}

static bool
read_now(const char *now, struct tm *out)
{
    time_t wall;

    memset(out, 0, sizeof *out);
    if (now == NULL) {
        wall = time(NULL);
        return localtime_r(&wall, out) != NULL;
    }
    if (strptime(now, "%Y-%m-%d %H:%M:%S", out) == NULL) {
        return false;
    }
    // Fills in the days of the week and of the year.
    timegm(out);
    return true;
}

static bt_jinja_value
global_strftime_now(bt_jinja_run *run, const bt_jinja_args *args)
{
    char format[128], text[512];
    bt_jinja_value value;
    struct tm now;
    bt_str wanted;

    if (!bt_jinja_take_args(run, args, "strftime_now", "format", 1, &value)) {
        return value;
    }
    wanted = bt_jinja_to_text(run, value);
    if (wanted.len >= sizeof format || memchr(wanted.data, 0, wanted.len) != NULL) {
        return bt_jinja_fail(run, "strftime_now: the format is too long");
    }
    memcpy(format, wanted.data, wanted.len);
    format[wanted.len] = 0;
    if (!read_now(run->now, &now)) {
        return bt_jinja_fail(run, "strftime_now: the time is not YYYY-MM-DD HH:MM:SS");
    }
    text[strftime(text, sizeof text, format, &now)] = 0;
    return bt_jinja_text_copy(run, bt_str_of(text));
}

static const struct bt_jinja_global globals[] = {
    {"range", global_range},
    {"dict", global_dict},
    {"namespace", global_namespace},
    {"cycler", global_cycler},
    {"joiner", global_joiner},
    {"raise_exception", global_raise},
    {"strftime_now", global_strftime_now},
};

void
bt_jinja_define_globals(bt_jinja_run *run, bt_jinja_scope *scope)
{
    for (size_t i = 0; i < sizeof globals / sizeof *globals; i++) {
        bt_jinja_scope_set(run, scope, bt_jinja_tree_name(run->tree, bt_str_of(globals[i].name)),
                           (bt_jinja_value){.kind = BT_JINJA_GLOBAL, .global = &globals[i]});
    }
}
