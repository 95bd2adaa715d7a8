// A borrowed span of bytes, not NUL-terminated, and UTF-8 checking. An empty one may have no data (NULL).
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct {
    const char *data;
    size_t len;
} bt_str;

static inline bt_str
bt_str_of(const char *text)
{
    return (bt_str){text, strlen(text)};
}

static inline bool
bt_str_equal(bt_str a, bt_str b)
{
    return a.len == b.len && (a.len == 0 || memcmp(a.data, b.data, a.len) == 0);
}

static inline bool
bt_str_is(bt_str a, const char *text)
{
    return bt_str_equal(a, bt_str_of(text));
}

// What is left of a text from byte `at` on, at most its length; of an empty one without data as well, to which C adds not even 0.
static inline bt_str
bt_str_from(bt_str text, size_t at)
{
    return at == 0 ? text : (bt_str){text.data + at, text.len - at};
}

// Decodes one code point at data[0]; returns its byte count, or 0 when the bytes are no valid UTF-8 (overlong forms,
// surrogates and values above U+10FFFF are invalid) or end within it.
size_t bt_utf8_decode(const char *data, size_t len, uint32_t *code_point);
// Writes 1..4 bytes; returns the count, 0 for a surrogate or a value above U+10FFFF.
size_t bt_utf8_encode(uint32_t code_point, char out[4]);
// Returns `len` when all is valid, else the offset of the first byte that is not part of a valid sequence.
size_t bt_utf8_valid_prefix(const char *data, size_t len);
