// The methods of str that pad, change case, or ask what kind of letters there are.
#include "common/text/jinja/chars.h"
#include "common/text/jinja/methods.h"
#include "common/text/jinja/text.h"

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
    if (!bt_jinja_want_text(run, fill, what) || bt_jinja_char_count(fill.text) != 1) {
        return bt_jinja_fail(run, "%s: the fill character must be one character", what);
    }
    missing = width - (int64_t)bt_jinja_char_count(self.text);
    if (missing <= 0) {
        return self;
    }
    // The odd one goes where CPython puts it.
    left = side < 0 ? 0 : side > 0 ? missing : missing / 2 + (missing & width & 1);
    return bt_jinja_text_like(
        self,
        bt_jinja_join(run, bt_jinja_join(run, bt_jinja_binary(run, '*', fill, bt_jinja_int(left)).text, self.text),
                      bt_jinja_binary(run, '*', fill, bt_jinja_int(missing - left)).text));
}

bt_jinja_value
bt_jinja_text_ljust(bt_jinja_run *run, bt_jinja_value self, const bt_jinja_args *args)
{
    return padded(run, self, args, "ljust", -1);
}

bt_jinja_value
bt_jinja_text_rjust(bt_jinja_run *run, bt_jinja_value self, const bt_jinja_args *args)
{
    return padded(run, self, args, "rjust", 1);
}

bt_jinja_value
bt_jinja_text_center(bt_jinja_run *run, bt_jinja_value self, const bt_jinja_args *args)
{
    return padded(run, self, args, "center", 0);
}

bt_jinja_value
bt_jinja_text_zfill(bt_jinja_run *run, bt_jinja_value self, const bt_jinja_args *args)
{
    bool sign = self.text.len != 0 && (self.text.data[0] == '-' || self.text.data[0] == '+');
    bt_jinja_value width, digits = bt_jinja_text_like(self, (bt_str){self.text.data + sign, self.text.len - sign});
    int64_t count;
    bt_jinja_value places[2];

    if (!bt_jinja_take_args(run, args, "zfill", "width", 1, &width) || !bt_jinja_as_int(width, &count)) {
        return bt_jinja_fail(run, "zfill: width must be an integer");
    }
    places[0] = bt_jinja_int(count > 0 ? count - sign : 0);
    places[1] = bt_jinja_text(bt_str_of("0"));
    digits = padded(run, digits, &(bt_jinja_args){.items = places, .count = 2}, "zfill", 1);
    return bt_jinja_text_like(self, bt_jinja_join(run, (bt_str){self.text.data, sign}, digits.text));
}

static bt_jinja_value
with_case(bt_jinja_run *run, bt_jinja_value self, const bt_jinja_args *args, const char *what, bt_jinja_case how)
{
    return bt_jinja_take_args(run, args, what, "", 0, NULL)
               ? bt_jinja_text_like(self, bt_jinja_text_case(run, self.text, how))
               : self;
}

bt_jinja_value
bt_jinja_text_lower(bt_jinja_run *run, bt_jinja_value self, const bt_jinja_args *args)
{
    return with_case(run, self, args, "lower", BT_JINJA_LOWER);
}

bt_jinja_value
bt_jinja_text_upper(bt_jinja_run *run, bt_jinja_value self, const bt_jinja_args *args)
{
    return with_case(run, self, args, "upper", BT_JINJA_UPPER);
}

bt_jinja_value
bt_jinja_text_capitalize(bt_jinja_run *run, bt_jinja_value self, const bt_jinja_args *args)
{
    return with_case(run, self, args, "capitalize", BT_JINJA_CAPITALIZE);
}

bt_jinja_value
bt_jinja_text_title(bt_jinja_run *run, bt_jinja_value self, const bt_jinja_args *args)
{
    return with_case(run, self, args, "title", BT_JINJA_TITLE);
}

bt_jinja_value
bt_jinja_text_swapcase(bt_jinja_run *run, bt_jinja_value self, const bt_jinja_args *args)
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

bt_jinja_value
bt_jinja_text_isalnum(bt_jinja_run *run, bt_jinja_value self, const bt_jinja_args *args)
{
    (void)args;
    return every(run, self, is_alnum);
}

bt_jinja_value
bt_jinja_text_isalpha(bt_jinja_run *run, bt_jinja_value self, const bt_jinja_args *args)
{
    (void)args;
    return every(run, self, bt_jinja_is_alpha);
}

bt_jinja_value
bt_jinja_text_isdigit(bt_jinja_run *run, bt_jinja_value self, const bt_jinja_args *args)
{
    (void)args;
    return every(run, self, bt_jinja_is_numeric);
}

bt_jinja_value
bt_jinja_text_isspace(bt_jinja_run *run, bt_jinja_value self, const bt_jinja_args *args)
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

bt_jinja_value
bt_jinja_text_islower(bt_jinja_run *run, bt_jinja_value self, const bt_jinja_args *args)
{
    (void)args;
    return only_case(run, self, false);
}

bt_jinja_value
bt_jinja_text_isupper(bt_jinja_run *run, bt_jinja_value self, const bt_jinja_args *args)
{
    (void)args;
    return only_case(run, self, true);
}
