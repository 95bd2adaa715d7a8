// Characters as Python's str sees them: what is space, what is a letter, and case.
#pragma once

#include "common/base/str.h"

static inline bool
bt_jinja_is_digit(char c)
{
    return c >= '0' && c <= '9';
}

// In an identifier. Every byte above ASCII counts, so any script can be used.
static inline bool
bt_jinja_is_name(char c)
{
    return bt_jinja_is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (uint8_t)c >= 0x80;
}

bool bt_jinja_is_space(uint32_t c);
bool bt_jinja_is_printable(uint32_t c); // repr() shows it as it is
bool bt_jinja_is_alpha(uint32_t c);
bool bt_jinja_is_numeric(uint32_t c); // decimal digits of any script
bool bt_jinja_is_upper(uint32_t c);
bool bt_jinja_is_lower(uint32_t c);
uint32_t bt_jinja_to_upper(uint32_t c); // one character for one: "ß" stays
uint32_t bt_jinja_to_lower(uint32_t c);

// Bytes of white space at either end.
size_t bt_jinja_leading_space(bt_str text);
size_t bt_jinja_trailing_space(bt_str text);

// The character at byte `at`, and its bytes; U+FFFD and 1 where the bytes are none.
uint32_t bt_jinja_char_at(bt_str text, size_t at, size_t *bytes);
// The byte where the character before byte `at` begins; at > 0.
size_t bt_jinja_char_before(bt_str text, size_t at);
size_t bt_jinja_char_count(bt_str text);
// The byte at which character `index` begins; text.len when there are fewer.
size_t bt_jinja_char_offset(bt_str text, size_t index);

// Reads exactly `digits` hexadecimal digits.
bool bt_jinja_hex(const char *s, size_t digits, uint32_t *out);
