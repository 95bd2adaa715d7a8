#include "common/base/err.h"

#include <stdarg.h>
#include <stdio.h>

const char *
bt_err_name(bt_err err)
{
    static const char *const names[BT_ERR_COUNT] = {
        [BT_OK] = "OK",
        [BT_ERR_INVALID] = "INVALID",
        [BT_ERR_TOO_LONG] = "TOO_LONG",
        [BT_ERR_UNSUPPORTED] = "UNSUPPORTED",
        [BT_ERR_NOT_FOUND] = "NOT_FOUND",
        [BT_ERR_BUSY] = "BUSY",
        [BT_ERR_TIMEOUT] = "TIMEOUT",
        [BT_ERR_PEER] = "PEER",
        [BT_ERR_CANCELLED] = "CANCELLED",
        [BT_ERR_CLOSED] = "CLOSED",
        [BT_ERR_NO_MEMORY] = "NO_MEMORY",
        [BT_ERR_DEVICE] = "DEVICE",
        [BT_ERR_IO] = "IO",
        [BT_ERR_BUG] = "BUG",
    };
    return (unsigned)err < BT_ERR_COUNT && names[err] != NULL ? names[err] : "UNKNOWN";
}

bt_err
bt_fail(bt_why *why, bt_err err, const char *format, ...)
{
    if (why != NULL) {
        va_list args;

        va_start(args, format);
        vsnprintf(why->text, sizeof why->text, format, args);
        va_end(args);
    }
    return err;
}
