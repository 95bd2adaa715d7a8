// Jinja's filters, by name.
//
// Not here, and a fault when reached: random, which would make a prompt differ from run to run, and those that write
// HTML or wrap text (urlize, xmlattr, striptags, wordwrap, pprint, filesizeformat).
#pragma once

#include "common/text/jinja/run.h"

typedef struct bt_jinja_filter {
    const char *name;
    bt_jinja_value (*apply)(bt_jinja_run *run, bt_jinja_value subject, const bt_jinja_args *args);
} bt_jinja_filter;

const bt_jinja_filter *bt_jinja_filter_find(bt_str name); // NULL when there is none

// The table, by file; each part ends with a NULL name.
extern const bt_jinja_filter bt_jinja_filters_text[], bt_jinja_filters_value[], bt_jinja_filters_items[],
    bt_jinja_filters_order[], bt_jinja_filters_map[];

// What "a.b.0" or 0 leads to from a value; a key may be any attribute filter's argument.
bt_jinja_value bt_jinja_follow(bt_jinja_run *run, bt_jinja_value from, bt_jinja_value path, bt_jinja_value fallback);
