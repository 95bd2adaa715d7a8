#include "common/text/jinja/chars.h"

#include <utf8proc.h>

bool
bt_jinja_is_space(uint32_t c)
{
    if (c < 0x80) {
        return c == ' ' || (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x1f);
    }
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
        return true;
    default:
        return c == 0x85;
    }
}

bool
bt_jinja_is_printable(uint32_t c)
{
    if (c < 0x80) {
        return c >= 0x20 && c != 0x7f;
    }
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
        return false;
    default:
        return true;
    }
}

bool
bt_jinja_is_alpha(uint32_t c)
{
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);

    return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}

bool
bt_jinja_is_numeric(uint32_t c)
{
    return utf8proc_category((utf8proc_int32_t)c) == UTF8PROC_CATEGORY_ND;
}

bool
bt_jinja_is_upper(uint32_t c)
{
    return utf8proc_category((utf8proc_int32_t)c) == UTF8PROC_CATEGORY_LU;
}

bool
bt_jinja_is_lower(uint32_t c)
{
    return utf8proc_category((utf8proc_int32_t)c) == UTF8PROC_CATEGORY_LL;
}

uint32_t
bt_jinja_to_upper(uint32_t c)
{
    return (uint32_t)utf8proc_toupper((utf8proc_int32_t)c);
}

uint32_t
bt_jinja_to_lower(uint32_t c)
{
    return (uint32_t)utf8proc_tolower((utf8proc_int32_t)c);
}

uint32_t
bt_jinja_char_at(bt_str text, size_t at, size_t *bytes)
{
    uint32_t c = 0xfffd;

    *bytes = bt_utf8_decode(text.data + at, text.len - at, &c);
    *bytes += *bytes == 0;
    return c;
}

size_t
bt_jinja_char_before(bt_str text, size_t at)
{
    at--;
    for (int i = 0; i < 3 && at > 0 && ((uint8_t)text.data[at] & 0xc0) == 0x80; i++) {
        at--;
    }
    return at;
}

size_t
bt_jinja_char_count(bt_str text)
{
    size_t count = 0;

    for (size_t i = 0; i < text.len; i++) {
        count += ((uint8_t)text.data[i] & 0xc0) != 0x80;
    }
    return count;
}

size_t
bt_jinja_char_offset(bt_str text, size_t index)
{
    size_t at = 0;

    for (; at < text.len; at++) {
        if (((uint8_t)text.data[at] & 0xc0) != 0x80 && index-- == 0) {
            break;
        }
    }
    return at;
}

size_t
bt_jinja_leading_space(bt_str text)
{
    size_t at = 0, bytes;

    while (at < text.len && bt_jinja_is_space(bt_jinja_char_at(text, at, &bytes))) {
        at += bytes;
    }
    return at;
}

size_t
bt_jinja_trailing_space(bt_str text)
{
    size_t end = text.len, bytes;

    while (end > 0) {
        size_t before = bt_jinja_char_before(text, end);

        if (!bt_jinja_is_space(bt_jinja_char_at(text, before, &bytes))) {
            break;
        }
        end = before;
    }
    return text.len - end;
}

bool
bt_jinja_hex(const char *s, size_t digits, uint32_t *out)
{
    uint32_t value = 0;

    for (size_t i = 0; i < digits; i++) {
        char c = s[i];

        if (bt_jinja_is_digit(c)) {
            value = value << 4 | (uint32_t)(c - '0');
        } else if ((c | 32) >= 'a' && (c | 32) <= 'f') {
            value = value << 4 | (uint32_t)((c | 32) - 'a' + 10);
        } else {
            return false;
        }
    }
    *out = value;
    return true;
}
