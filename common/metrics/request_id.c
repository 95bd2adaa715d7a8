#include "common/metrics/request_id.h"

#include <stdio.h>
#include <string.h>

void
bt_request_name_draw(char out[BT_REQUEST_NAME_MAX + 1], bt_rng *rng)
{
    unsigned long long high = bt_rng_next(rng), low = bt_rng_next(rng);

    snprintf(out, BT_REQUEST_NAME_MAX + 1, "%016llx%016llx", high, low);
}

bool
bt_request_name_take(char out[BT_REQUEST_NAME_MAX + 1], const char *from)
{
    size_t len = strspn(from, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:/+=");

    if (len == 0 || len > BT_REQUEST_NAME_MAX || from[len] != 0) {
        return false;
    }
    memcpy(out, from, len + 1);
    return true;
}
