// What methods and filters do to texts in common.
#pragma once

#include "common/text/jinja/run.h"

typedef enum { BT_JINJA_LOWER, BT_JINJA_UPPER, BT_JINJA_SWAP, BT_JINJA_CAPITALIZE, BT_JINJA_TITLE } bt_jinja_case;

// Each charges for the bytes it walks over; results may share the bytes of what they come from.
bt_str bt_jinja_text_case(bt_jinja_run *run, bt_str text, bt_jinja_case how);
// Without the characters of `set` (white space when it is NULL) at either or both ends.
bt_str bt_jinja_text_strip(bt_jinja_run *run, bt_str text, const bt_str *set, bool left, bool right);
// The first `count` hits replaced; all when it is negative.
bt_str bt_jinja_text_replace(bt_jinja_run *run, bt_str text, bt_str from, bt_str to, int64_t count);
bt_jinja_value bt_jinja_text_lines(bt_jinja_run *run, bt_str text, bool keep_ends);
// The byte of the first hit at or after `from`, of the last one before it ends; SIZE_MAX when there is none.
size_t bt_jinja_text_find(bt_jinja_run *run, bt_str text, bt_str what, size_t from);
size_t bt_jinja_text_find_last(bt_jinja_run *run, bt_str text, bt_str what);
// Split at a separator, or at runs of white space when it is NULL; at most `times` when that is not negative.
bt_jinja_value bt_jinja_text_split(bt_jinja_run *run, bt_str text, const bt_str *separator, int64_t times,
                                   bool from_right);
