// What Python's two ways of formatting share: a value's layout, and writing by it.
#pragma once

#include "common/text/jinja/run.h"

#define BT_JINJA_WIDTH_MAX 10000

typedef struct {
    bt_str fill;
    char align; // '<' '>' '^' '=' or 0
    char sign;  // '+', ' ' or 0
    char comma; // ',' '_' or 0
    bool alternate;
    int64_t width, precision; // precision: -1 when none
    char type;                // 0 when none
} bt_jinja_spec;

// A text cut to the precision, then padded: on the right unless the layout says else.
void bt_jinja_put_text(bt_buf *out, const bt_jinja_spec *s, bt_str text);
// Any value as its type and the layout's want it; a fault where they do not go together.
void bt_jinja_put_value(bt_jinja_run *run, bt_buf *out, const bt_jinja_spec *s, bt_jinja_value v);
// A number in a format, at byte *at; false with a fault when it is beyond all sense.
bool bt_jinja_format_number(bt_jinja_run *run, bt_str f, size_t *at, int64_t *out);
// Moves over `c` where it stands at byte *at.
bool bt_jinja_format_skip(bt_str f, size_t *at, char c);
