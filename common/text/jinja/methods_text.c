// The methods of str: the table, and those that search and cut.
#include "common/text/jinja/chars.h"
#include "common/text/jinja/methods.h"
#include "common/text/jinja/text.h"

// A text bt_jinja_text_like `self`: what is marked safe stays so.
bt_jinja_value
bt_jinja_text_like(bt_jinja_value self, bt_str text)
{
    self.text = text;
    return self;
}

bool
bt_jinja_want_text(bt_jinja_run *run, bt_jinja_value v, const char *what)
{
    if (v.kind != BT_JINJA_TEXT && run->err == BT_OK) {
        bt_jinja_fail(run, "%s: expected str, got %s", what, bt_jinja_type_name(v));
    }
    return run->err == BT_OK;
}

static bt_jinja_value
strip(bt_jinja_run *run, bt_jinja_value self, const bt_jinja_args *args, bool left, bool right)
{
    bt_jinja_value chars;

    if (!bt_jinja_take_args(run, args, "strip", "chars", 0, &chars)) {
        return self;
    }
    if (chars.kind == BT_JINJA_UNSET || chars.kind == BT_JINJA_NONE) {
        return bt_jinja_text_like(self, bt_jinja_text_strip(run, self.text, NULL, left, right));
    }
    return bt_jinja_want_text(run, chars, "strip")
               ? bt_jinja_text_like(self, bt_jinja_text_strip(run, self.text, &chars.text, left, right))
               : self;
}

static bt_jinja_value
text_strip(bt_jinja_run *run, bt_jinja_value self, const bt_jinja_args *args)
{
    return strip(run, self, args, true, true);
}

static bt_jinja_value
text_lstrip(bt_jinja_run *run, bt_jinja_value self, const bt_jinja_args *args)
{
    return strip(run, self, args, true, false);
}

static bt_jinja_value
text_rstrip(bt_jinja_run *run, bt_jinja_value self, const bt_jinja_args *args)
{
    return strip(run, self, args, false, true);
}

static bt_jinja_value
split(bt_jinja_run *run, bt_jinja_value self, const bt_jinja_args *args, bool from_right)
{
    bt_jinja_value places[2];
    int64_t times = -1;
    bool spaces;

    if (!bt_jinja_take_args(run, args, "split", "sep maxsplit", 0, places)) {
        return self;
    }
    spaces = places[0].kind == BT_JINJA_UNSET || places[0].kind == BT_JINJA_NONE;
    if (!spaces && !bt_jinja_want_text(run, places[0], "split")) {
        return self;
    }
    if (places[1].kind != BT_JINJA_UNSET && !bt_jinja_as_int(places[1], &times)) {
        return bt_jinja_fail(run, "split: maxsplit must be an integer");
    }
    return bt_jinja_text_split(run, self.text, spaces ? NULL : &places[0].text, times, from_right);
}

static bt_jinja_value
text_split(bt_jinja_run *run, bt_jinja_value self, const bt_jinja_args *args)
{
    return split(run, self, args, false);
}

static bt_jinja_value
text_rsplit(bt_jinja_run *run, bt_jinja_value self, const bt_jinja_args *args)
{
    return split(run, self, args, true);
}

static bt_jinja_value
text_splitlines(bt_jinja_run *run, bt_jinja_value self, const bt_jinja_args *args)
{
    bt_jinja_value keep;

    return bt_jinja_take_args(run, args, "splitlines", "keepends", 0, &keep)
               ? bt_jinja_text_lines(run, self.text, bt_jinja_truth(keep))
               : self;
}

static bt_jinja_value
partition(bt_jinja_run *run, bt_jinja_value self, const bt_jinja_args *args, bool last)
{
    bt_jinja_value sep, result = bt_jinja_list_new(run, BT_JINJA_SHAPE_TUPLE, 3),
                        none = bt_jinja_text_like(self, (bt_str){"", 0});
    bt_str text = self.text;
    size_t hit;

    if (!bt_jinja_take_args(run, args, "partition", "sep", 1, &sep) || !bt_jinja_want_text(run, sep, "partition")) {
        return self;
    }
    if (sep.text.len == 0) {
        return bt_jinja_fail(run, "empty separator");
    }
    hit = last ? bt_jinja_text_find_last(run, text, sep.text) : bt_jinja_text_find(run, text, sep.text, 0);
    if (hit == SIZE_MAX) {
        bt_jinja_list_put(result, last ? none : self);
        bt_jinja_list_put(result, none);
        bt_jinja_list_put(result, last ? self : none);
        return result;
    }
    bt_jinja_list_put(result, bt_jinja_text_like(self, (bt_str){text.data, hit}));
    bt_jinja_list_put(result, sep);
    bt_jinja_list_put(
        result, bt_jinja_text_like(self, (bt_str){text.data + hit + sep.text.len, text.len - hit - sep.text.len}));
    return result;
}

static bt_jinja_value
text_partition(bt_jinja_run *run, bt_jinja_value self, const bt_jinja_args *args)
{
    return partition(run, self, args, false);
}

static bt_jinja_value
text_rpartition(bt_jinja_run *run, bt_jinja_value self, const bt_jinja_args *args)
{
    return partition(run, self, args, true);
}

static bt_jinja_value
text_replace(bt_jinja_run *run, bt_jinja_value self, const bt_jinja_args *args)
{
    bt_jinja_value places[3];
    int64_t count = -1;

    if (!bt_jinja_take_args(run, args, "replace", "old new count", 2, places) ||
        !bt_jinja_want_text(run, places[0], "replace") || !bt_jinja_want_text(run, places[1], "replace")) {
        return self;
    }
    if (places[2].kind != BT_JINJA_UNSET && !bt_jinja_as_int(places[2], &count)) {
        return bt_jinja_fail(run, "replace: count must be an integer");
    }
    return bt_jinja_text_like(
        self, bt_jinja_text_replace(run, self.text, places[0].text,
                                    self.markup ? bt_jinja_escape(run, places[1]) : places[1].text, count));
}

static bool
affix_is(bt_str text, bt_str affix, bool front)
{
    return affix.len <= text.len &&
           bt_str_equal((bt_str){front ? text.data : text.data + text.len - affix.len, affix.len}, affix);
}

// startswith and endswith take one text or a tuple of them.
static bt_jinja_value
has_affix(bt_jinja_run *run, bt_jinja_value self, const bt_jinja_args *args, bool front)
{
    bt_jinja_value places[3];
    bt_str text = self.text;
    size_t count;

    if (!bt_jinja_take_args(run, args, front ? "startswith" : "endswith", "affix start end", 1, places)) {
        return self;
    }
    if (places[1].kind != BT_JINJA_UNSET) {
        text = bt_jinja_slice(run, self, places[1], places[2], bt_jinja_none()).text;
    }
    if (bt_jinja_is_shape(places[0], BT_JINJA_SHAPE_TUPLE)) {
        count = places[0].list->count;
        for (size_t i = 0;
             i < count && bt_jinja_charge(run, 1) && bt_jinja_want_text(run, places[0].list->items[i], "startswith");
             i++) {
            if (affix_is(text, places[0].list->items[i].text, front)) {
                return bt_jinja_bool(true);
            }
        }
        return bt_jinja_bool(false);
    }
    return bt_jinja_want_text(run, places[0], front ? "startswith" : "endswith")
               ? bt_jinja_bool(affix_is(text, places[0].text, front))
               : self;
}

static bt_jinja_value
text_startswith(bt_jinja_run *run, bt_jinja_value self, const bt_jinja_args *args)
{
    return has_affix(run, self, args, true);
}

static bt_jinja_value
text_endswith(bt_jinja_run *run, bt_jinja_value self, const bt_jinja_args *args)
{
    return has_affix(run, self, args, false);
}

static bt_jinja_value
remove_affix(bt_jinja_run *run, bt_jinja_value self, const bt_jinja_args *args, bool front)
{
    bt_jinja_value affix;
    bt_str text = self.text;

    if (!bt_jinja_take_args(run, args, front ? "removeprefix" : "removesuffix", "affix", 1, &affix) ||
        !bt_jinja_want_text(run, affix, "removeprefix")) {
        return self;
    }
    if (affix_is(text, affix.text, front)) {
        text = (bt_str){front ? text.data + affix.text.len : text.data, text.len - affix.text.len};
    }
    return bt_jinja_text_like(self, text);
}

static bt_jinja_value
text_removeprefix(bt_jinja_run *run, bt_jinja_value self, const bt_jinja_args *args)
{
    return remove_affix(run, self, args, true);
}

static bt_jinja_value
text_removesuffix(bt_jinja_run *run, bt_jinja_value self, const bt_jinja_args *args)
{
    return remove_affix(run, self, args, false);
}

// The character index of a hit, or -1.
static int64_t
find(bt_jinja_run *run, bt_jinja_value self, const bt_jinja_args *args, const char *what, bool last)
{
    bt_jinja_value places[3];
    int64_t start = 0;
    bt_str text = self.text;
    size_t hit, from;

    if (!bt_jinja_take_args(run, args, what, "sub start end", 1, places) || !bt_jinja_want_text(run, places[0], what)) {
        return -1;
    }
    if (places[1].kind != BT_JINJA_UNSET) {
        if (!bt_jinja_as_int(places[1], &start) || start < 0) {
            bt_jinja_fail(run, "%s: start must be an integer that is not negative", what);
            return -1;
        }
        from = bt_jinja_char_offset(text, (size_t)start);
        if (places[2].kind != BT_JINJA_UNSET) {
            text = bt_jinja_slice(run, self, places[1], places[2], bt_jinja_none()).text;
        } else {
            text = (bt_str){text.data + from, text.len - from};
        }
    }
    hit = last ? bt_jinja_text_find_last(run, text, places[0].text) : bt_jinja_text_find(run, text, places[0].text, 0);
    return hit == SIZE_MAX || !bt_jinja_charge(run, hit / 64)
               ? -1
               : start + (int64_t)bt_jinja_char_count((bt_str){text.data, hit});
}

static bt_jinja_value
text_find(bt_jinja_run *run, bt_jinja_value self, const bt_jinja_args *args)
{
    return bt_jinja_int(find(run, self, args, "find", false));
}

static bt_jinja_value
text_rfind(bt_jinja_run *run, bt_jinja_value self, const bt_jinja_args *args)
{
    return bt_jinja_int(find(run, self, args, "rfind", true));
}

static bt_jinja_value
found(bt_jinja_run *run, int64_t at)
{
    return at < 0 ? bt_jinja_fail(run, "substring not found") : bt_jinja_int(at);
}

static bt_jinja_value
text_index(bt_jinja_run *run, bt_jinja_value self, const bt_jinja_args *args)
{
    return found(run, find(run, self, args, "index", false));
}

static bt_jinja_value
text_rindex(bt_jinja_run *run, bt_jinja_value self, const bt_jinja_args *args)
{
    return found(run, find(run, self, args, "rindex", true));
}

static bt_jinja_value
text_count(bt_jinja_run *run, bt_jinja_value self, const bt_jinja_args *args)
{
    bt_jinja_value what;
    int64_t count = 0;

    if (!bt_jinja_take_args(run, args, "count", "sub", 1, &what) || !bt_jinja_want_text(run, what, "count")) {
        return self;
    }
    if (what.text.len == 0) {
        return bt_jinja_int((int64_t)bt_jinja_char_count(self.text) + 1);
    }
    for (size_t at = 0; (at = bt_jinja_text_find(run, self.text, what.text, at)) != SIZE_MAX; at += what.text.len) {
        count++;
    }
    return bt_jinja_int(count);
}

static bt_jinja_value
text_join(bt_jinja_run *run, bt_jinja_value self, const bt_jinja_args *args)
{
    bt_str text = {"", 0};
    bt_jinja_value items, item;
    bool first = true;
    bt_jinja_iter iter;

    if (!bt_jinja_take_args(run, args, "join", "iterable", 1, &items) || !bt_jinja_iter_begin(run, &iter, items)) {
        return self;
    }
    while (bt_jinja_iter_next(run, &iter, &item)) {
        if (!bt_jinja_want_text(run, item, "join")) {
            break;
        }
        text = bt_jinja_join(run, text, first ? (bt_str){"", 0} : self.text);
        text = bt_jinja_join(run, text, self.markup ? bt_jinja_escape(run, item) : item.text);
        first = false;
    }
    return bt_jinja_text_like(self, text);
}

static bt_jinja_value
text_format(bt_jinja_run *run, bt_jinja_value self, const bt_jinja_args *args)
{
    return bt_jinja_format_braces(run, self, args);
}

static bt_jinja_value
not_done(bt_jinja_run *run, bt_jinja_value self, const bt_jinja_args *args)
{
    (void)args;
    (void)self;
    return bt_jinja_fail(run, "this method of str is not supported");
}

static const struct {
    const char *name;
    bt_jinja_value (*call)(bt_jinja_run *run, bt_jinja_value self, const bt_jinja_args *args);
} methods[] = {
    {"strip", text_strip},
    {"lstrip", text_lstrip},
    {"rstrip", text_rstrip},
    {"split", text_split},
    {"rsplit", text_rsplit},
    {"splitlines", text_splitlines},
    {"partition", text_partition},
    {"rpartition", text_rpartition},
    {"replace", text_replace},
    {"startswith", text_startswith},
    {"endswith", text_endswith},
    {"removeprefix", text_removeprefix},
    {"removesuffix", text_removesuffix},
    {"find", text_find},
    {"rfind", text_rfind},
    {"index", text_index},
    {"rindex", text_rindex},
    {"count", text_count},
    {"join", text_join},
    {"format", text_format},
    {"ljust", bt_jinja_text_ljust},
    {"rjust", bt_jinja_text_rjust},
    {"center", bt_jinja_text_center},
    {"zfill", bt_jinja_text_zfill},
    {"lower", bt_jinja_text_lower},
    {"casefold", bt_jinja_text_lower},
    {"upper", bt_jinja_text_upper},
    {"capitalize", bt_jinja_text_capitalize},
    {"title", bt_jinja_text_title},
    {"swapcase", bt_jinja_text_swapcase},
    {"isalnum", bt_jinja_text_isalnum},
    {"isalpha", bt_jinja_text_isalpha},
    {"isdigit", bt_jinja_text_isdigit},
    {"isdecimal", bt_jinja_text_isdigit},
    {"isnumeric", bt_jinja_text_isdigit},
    {"isspace", bt_jinja_text_isspace},
    {"islower", bt_jinja_text_islower},
    {"isupper", bt_jinja_text_isupper},
    // There in Python, so that "is defined" must find them.
    {"encode", not_done},
    {"expandtabs", not_done},
    {"format_map", not_done},
    {"isascii", not_done},
    {"isidentifier", not_done},
    {"isprintable", not_done},
    {"istitle", not_done},
    {"maketrans", not_done},
    {"translate", not_done},
};

bt_jinja_value
bt_jinja_text_method(bt_jinja_run *run, bt_jinja_value self, bt_str name)
{
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++) {
        if (bt_str_is(name, methods[i].name)) {
            return bt_jinja_bind_method(run, self, methods[i].name, methods[i].call);
        }
    }
    return (bt_jinja_value){0};
}
