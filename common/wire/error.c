// bt_err on the wire: both directions from one table, so that the enum may be sorted anew and the wire stays.
#include "common/wire/wire_impl.h"

static const Baton__Error errors[BT_ERR_COUNT] = {
    [BT_OK] = BATON__ERROR__ERROR_OK,
    [BT_ERR_INVALID] = BATON__ERROR__ERROR_INVALID,
    [BT_ERR_TOO_LONG] = BATON__ERROR__ERROR_TOO_LONG,
    [BT_ERR_UNSUPPORTED] = BATON__ERROR__ERROR_UNSUPPORTED,
    [BT_ERR_NOT_FOUND] = BATON__ERROR__ERROR_NOT_FOUND,
    [BT_ERR_BUSY] = BATON__ERROR__ERROR_BUSY,
    [BT_ERR_TIMEOUT] = BATON__ERROR__ERROR_TIMEOUT,
    [BT_ERR_PEER] = BATON__ERROR__ERROR_PEER,
    [BT_ERR_CANCELLED] = BATON__ERROR__ERROR_CANCELLED,
    [BT_ERR_CLOSED] = BATON__ERROR__ERROR_CLOSED,
    [BT_ERR_NO_MEMORY] = BATON__ERROR__ERROR_NO_MEMORY,
    [BT_ERR_DEVICE] = BATON__ERROR__ERROR_DEVICE,
    [BT_ERR_IO] = BATON__ERROR__ERROR_IO,
    [BT_ERR_BUG] = BATON__ERROR__ERROR_BUG,
};

Baton__Error
bt_encode_error(bt_err err)
{
    return (unsigned)err < BT_ERR_COUNT ? errors[err] : BATON__ERROR__ERROR_BUG;
}

bool
bt_decode_error(Baton__Error form, bt_err *out)
{
    for (int err = 0; err < BT_ERR_COUNT; err++) {
        if (errors[err] == form) {
            *out = (bt_err)err;
            return true;
        }
    }
    return false;
}
