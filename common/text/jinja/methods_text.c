// The methods of str.
#include "common/text/jinja/chars.h"
#include "common/text/jinja/text.h"

// A text like `self`: what is marked safe stays so.
static bt_jinja_value
like(bt_jinja_value self, bt_str text)
{
    self.text = text;
    return self;
}

static bool
want_text(bt_jinja_run *run, bt_jinja_value v, const char *what)
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
        return like(self, bt_jinja_text_strip(run, self.text, NULL, left, right));
    }
    return want_text(run, chars, "strip") ? like(self, bt_jinja_text_strip(run, self.text, &chars.text, left, right))
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
    if (!spaces && !want_text(run, places[0], "split")) {
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
    bt_jinja_value sep, result = bt_jinja_list_new(run, BT_JINJA_SHAPE_TUPLE, 3), none = like(self, (bt_str){"", 0});
    bt_str text = self.text;
    size_t hit;

    if (!bt_jinja_take_args(run, args, "partition", "sep", 1, &sep) || !want_text(run, sep, "partition")) {
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
    bt_jinja_list_put(result, like(self, (bt_str){text.data, hit}));
    bt_jinja_list_put(result, sep);
    bt_jinja_list_put(result, like(self, (bt_str){text.data + hit + sep.text.len, text.len - hit - sep.text.len}));
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
        !want_text(run, places[0], "replace") || !want_text(run, places[1], "replace")) {
        return self;
    }
    if (places[2].kind != BT_JINJA_UNSET && !bt_jinja_as_int(places[2], &count)) {
        return bt_jinja_fail(run, "replace: count must be an integer");
    }
    return like(self, bt_jinja_text_replace(run, self.text, places[0].text,
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
             i < count && bt_jinja_charge(run, 1) && want_text(run, places[0].list->items[i], "startswith"); i++) {
            if (affix_is(text, places[0].list->items[i].text, front)) {
                return bt_jinja_bool(true);
            }
        }
        return bt_jinja_bool(false);
    }
    return want_text(run, places[0], front ? "startswith" : "endswith")
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
        !want_text(run, affix, "removeprefix")) {
        return self;
    }
    if (affix_is(text, affix.text, front)) {
        text = (bt_str){front ? text.data + affix.text.len : text.data, text.len - affix.text.len};
    }
    return like(self, text);
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

    if (!bt_jinja_take_args(run, args, what, "sub start end", 1, places) || !want_text(run, places[0], what)) {
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

    if (!bt_jinja_take_args(run, args, "count", "sub", 1, &what) || !want_text(run, what, "count")) {
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
        if (!want_text(run, item, "join")) {
            break;
        }
        text = bt_jinja_join(run, text, first ? (bt_str){"", 0} : self.text);
        text = bt_jinja_join(run, text, self.markup ? bt_jinja_escape(run, item) : item.text);
        first = false;
    }
    return like(self, text);
}

static bt_jinja_value
text_format(bt_jinja_run *run, bt_jinja_value self, const bt_jinja_args *args)
{
    return bt_jinja_format_braces(run, self, args);
}

// Padding to a width with a character; side: -1 text to the left, 0 in the middle, 1 to the right.
static bt_jinja_value
padded(bt_jinja_run *run, bt_jinja_value self, const bt_jinja_args *args, const char *what, int side)
{
    bt_jinja_value places[2], fill = bt_jinja_text(bt_str_of(" "));
    int64_t width, missing, left;

    if (!bt_jinja_take_args(run, args, what, "width fillchar", 1, places)) {
        return self;
    }
    if (!bt_jinja_as_int(places[0], &width) || !bt_jinja_charge(run, self.text.len / 64)) {
        return bt_jinja_fail(run, "%s: width must be an integer", what);
    }
    fill = places[1].kind != BT_JINJA_UNSET ? places[1] : fill;
    if (!want_text(run, fill, what) || bt_jinja_char_count(fill.text) != 1) {
        return bt_jinja_fail(run, "%s: the fill character must be one character", what);
    }
    missing = width - (int64_t)bt_jinja_char_count(self.text);
    if (missing <= 0) {
        return self;
    }
    // The odd one goes where CPython puts it.
    left = side < 0 ? 0 : side > 0 ? missing : missing / 2 + (missing & width & 1);
    return like(self, bt_jinja_join(
                          run, bt_jinja_join(run, bt_jinja_binary(run, '*', fill, bt_jinja_int(left)).text, self.text),
                          bt_jinja_binary(run, '*', fill, bt_jinja_int(missing - left)).text));
}

static bt_jinja_value
text_ljust(bt_jinja_run *run, bt_jinja_value self, const bt_jinja_args *args)
{
    return padded(run, self, args, "ljust", -1);
}

static bt_jinja_value
text_rjust(bt_jinja_run *run, bt_jinja_value self, const bt_jinja_args *args)
{
    return padded(run, self, args, "rjust", 1);
}

static bt_jinja_value
text_center(bt_jinja_run *run, bt_jinja_value self, const bt_jinja_args *args)
{
    return padded(run, self, args, "center", 0);
}

static bt_jinja_value
text_zfill(bt_jinja_run *run, bt_jinja_value self, const bt_jinja_args *args)
{
    bool sign = self.text.len != 0 && (self.text.data[0] == '-' || self.text.data[0] == '+');
    bt_jinja_value width, digits = like(self, (bt_str){self.text.data + sign, self.text.len - sign});
    int64_t count;
    bt_jinja_value places[2];

    if (!bt_jinja_take_args(run, args, "zfill", "width", 1, &width) || !bt_jinja_as_int(width, &count)) {
        return bt_jinja_fail(run, "zfill: width must be an integer");
    }
    places[0] = bt_jinja_int(count > 0 ? count - sign : 0);
    places[1] = bt_jinja_text(bt_str_of("0"));
    digits = padded(run, digits, &(bt_jinja_args){.items = places, .count = 2}, "zfill", 1);
    return like(self, bt_jinja_join(run, (bt_str){self.text.data, sign}, digits.text));
}

static bt_jinja_value
with_case(bt_jinja_run *run, bt_jinja_value self, const bt_jinja_args *args, const char *what, bt_jinja_case how)
{
    return bt_jinja_take_args(run, args, what, "", 0, NULL) ? like(self, bt_jinja_text_case(run, self.text, how))
                                                            : self;
}

static bt_jinja_value
text_lower(bt_jinja_run *run, bt_jinja_value self, const bt_jinja_args *args)
{
    return with_case(run, self, args, "lower", BT_JINJA_LOWER);
}

static bt_jinja_value
text_upper(bt_jinja_run *run, bt_jinja_value self, const bt_jinja_args *args)
{
    return with_case(run, self, args, "upper", BT_JINJA_UPPER);
}

static bt_jinja_value
text_capitalize(bt_jinja_run *run, bt_jinja_value self, const bt_jinja_args *args)
{
    return with_case(run, self, args, "capitalize", BT_JINJA_CAPITALIZE);
}

static bt_jinja_value
text_title(bt_jinja_run *run, bt_jinja_value self, const bt_jinja_args *args)
{
    return with_case(run, self, args, "title", BT_JINJA_TITLE);
}

static bt_jinja_value
text_swapcase(bt_jinja_run *run, bt_jinja_value self, const bt_jinja_args *args)
{
    return with_case(run, self, args, "swapcase", BT_JINJA_SWAP);
}

static bt_jinja_value
every(bt_jinja_run *run, bt_jinja_value self, bool (*holds)(uint32_t c))
{
    size_t bytes;

    bt_jinja_charge(run, self.text.len / 16);
    for (size_t at = 0; at < self.text.len; at += bytes) {
        if (!holds(bt_jinja_char_at(self.text, at, &bytes))) {
            return bt_jinja_bool(false);
        }
    }
    return bt_jinja_bool(self.text.len != 0);
}

static bool
is_alnum(uint32_t c)
{
    return bt_jinja_is_alpha(c) || bt_jinja_is_numeric(c);
}

static bt_jinja_value
text_isalnum(bt_jinja_run *run, bt_jinja_value self, const bt_jinja_args *args)
{
    (void)args;
    return every(run, self, is_alnum);
}

static bt_jinja_value
text_isalpha(bt_jinja_run *run, bt_jinja_value self, const bt_jinja_args *args)
{
    (void)args;
    return every(run, self, bt_jinja_is_alpha);
}

static bt_jinja_value
text_isdigit(bt_jinja_run *run, bt_jinja_value self, const bt_jinja_args *args)
{
    (void)args;
    return every(run, self, bt_jinja_is_numeric);
}

static bt_jinja_value
text_isspace(bt_jinja_run *run, bt_jinja_value self, const bt_jinja_args *args)
{
    (void)args;
    return every(run, self, bt_jinja_is_space);
}

// Some letter of the case, and none of the other.
static bt_jinja_value
only_case(bt_jinja_run *run, bt_jinja_value self, bool upper)
{
    bool some = false;
    size_t bytes;

    bt_jinja_charge(run, self.text.len / 16);
    for (size_t at = 0; at < self.text.len; at += bytes) {
        uint32_t c = bt_jinja_char_at(self.text, at, &bytes);

        if (upper ? bt_jinja_is_lower(c) : bt_jinja_is_upper(c)) {
            return bt_jinja_bool(false);
        }
        some = some || (upper ? bt_jinja_is_upper(c) : bt_jinja_is_lower(c));
    }
    return bt_jinja_bool(some);
}

static bt_jinja_value
text_islower(bt_jinja_run *run, bt_jinja_value self, const bt_jinja_args *args)
{
    (void)args;
    return only_case(run, self, false);
}

static bt_jinja_value
text_isupper(bt_jinja_run *run, bt_jinja_value self, const bt_jinja_args *args)
{
    (void)args;
    return only_case(run, self, true);
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
    {"ljust", text_ljust},
    {"rjust", text_rjust},
    {"center", text_center},
    {"zfill", text_zfill},
    {"lower", text_lower},
    {"casefold", text_lower},
    {"upper", text_upper},
    {"capitalize", text_capitalize},
    {"title", text_title},
    {"swapcase", text_swapcase},
    {"isalnum", text_isalnum},
    {"isalpha", text_isalpha},
    {"isdigit", text_isdigit},
    {"isdecimal", text_isdigit},
    {"isnumeric", text_isdigit},
    {"isspace", text_isspace},
    {"islower", text_islower},
    {"isupper", text_isupper},
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
