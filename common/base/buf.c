#include "common/base/buf.h"

#include "common/base/mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void
bt_buf_init(bt_buf *buf, size_t limit)
{
    *buf = (bt_buf){.limit = limit};
}

void
bt_buf_fini(bt_buf *buf)
{
    bt_free(buf->data);
    *buf = (bt_buf){.limit = buf->limit};
}

void
bt_buf_clear(bt_buf *buf)
{
    buf->len = 0;
    buf->failed = false;
    if (buf->data != NULL) {
        buf->data[0] = 0;
    }
}

bt_err
bt_buf_reserve(bt_buf *buf, size_t bytes_more)
{
    size_t need = buf->len + bytes_more + 1, cap = buf->cap != 0 ? buf->cap : 64;
    char *data;

    if (buf->failed || bytes_more > buf->limit || buf->len > buf->limit - bytes_more) {
        buf->failed = true;
        return BT_ERR_TOO_LONG;
    }
    if (need <= buf->cap) {
        return BT_OK;
    }
    while (cap < need) {
        cap *= 2;
    }
    data = bt_realloc(buf->data, cap);
    if (data == NULL) {
        buf->failed = true;
        return BT_ERR_NO_MEMORY;
    }
    data[buf->len] = 0;
    buf->data = data;
    buf->cap = cap;
    return BT_OK;
}

void
bt_buf_append(bt_buf *buf, const void *bytes, size_t count)
{
    if (bt_buf_reserve(buf, count) != BT_OK) {
        return;
    }
    if (count != 0) {
        memcpy(buf->data + buf->len, bytes, count);
    }
    buf->len += count;
    buf->data[buf->len] = 0;
}

void
bt_buf_append_text(bt_buf *buf, const char *text)
{
    bt_buf_append(buf, text, strlen(text));
}

void
bt_buf_append_char(bt_buf *buf, char c)
{
    bt_buf_append(buf, &c, 1);
}

void
bt_buf_printf(bt_buf *buf, const char *format, ...)
{
    va_list args;
    int count;

    va_start(args, format);
    count = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (count < 0 || bt_buf_reserve(buf, (size_t)count) != BT_OK) {
        buf->failed = true;
        return;
    }
    va_start(args, format);
    vsnprintf(buf->data + buf->len, (size_t)count + 1, format, args);
    va_end(args);
    buf->len += (size_t)count;
}
