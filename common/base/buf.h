// A growable byte buffer with a limit. Bytes are always followed by a NUL that does not count, so `data` is also a C
// string once anything was appended. One thread.
#pragma once

#include "common/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    char *data;
    size_t len, cap, limit;
    bool failed; // an append did not fit or memory was out; later appends do nothing. Check once, at the end.
} bt_buf;

void bt_buf_init(bt_buf *buf, size_t limit);
void bt_buf_fini(bt_buf *buf);  // gives the memory back and keeps the limit; accepts a zeroed buffer
void bt_buf_clear(bt_buf *buf); // keeps the memory
bt_err bt_buf_reserve(bt_buf *buf, size_t bytes_more);
void bt_buf_append(bt_buf *buf, const void *bytes, size_t count);
void bt_buf_append_text(bt_buf *buf, const char *text);
void bt_buf_append_char(bt_buf *buf, char c);
void bt_buf_printf(bt_buf *buf, const char *format, ...) __attribute__((format(printf, 2, 3)));
