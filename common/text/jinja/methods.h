// The methods of str in two files: methods_text.c has the table, methods_case.c those below.
#pragma once

#include "common/text/jinja/run.h"

typedef bt_jinja_value bt_jinja_method_fn(bt_jinja_run *run, bt_jinja_value self, const bt_jinja_args *args);

// A text like `self`: what is marked safe stays so.
bt_jinja_value bt_jinja_text_like(bt_jinja_value self, bt_str text);
// False, with a fault that names the method, when it is no text or a fault was noted before.
bool bt_jinja_want_text(bt_jinja_run *run, bt_jinja_value v, const char *what);

bt_jinja_method_fn bt_jinja_text_ljust;
bt_jinja_method_fn bt_jinja_text_rjust;
bt_jinja_method_fn bt_jinja_text_center;
bt_jinja_method_fn bt_jinja_text_zfill;
bt_jinja_method_fn bt_jinja_text_lower;
bt_jinja_method_fn bt_jinja_text_upper;
bt_jinja_method_fn bt_jinja_text_capitalize;
bt_jinja_method_fn bt_jinja_text_title;
bt_jinja_method_fn bt_jinja_text_swapcase;
bt_jinja_method_fn bt_jinja_text_isalnum;
bt_jinja_method_fn bt_jinja_text_isalpha;
bt_jinja_method_fn bt_jinja_text_isdigit;
bt_jinja_method_fn bt_jinja_text_isspace;
bt_jinja_method_fn bt_jinja_text_islower;
bt_jinja_method_fn bt_jinja_text_isupper;
