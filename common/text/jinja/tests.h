// Jinja's tests (`x is defined`), by name.
#pragma once

#include "common/text/jinja/run.h"

typedef struct bt_jinja_test {
    const char *name;
    bool (*holds)(bt_jinja_run *run, bt_jinja_value subject, const bt_jinja_args *args);
} bt_jinja_test;

const bt_jinja_test *bt_jinja_test_find(bt_str name); // NULL when there is none
