// The name of a request in headers, logs and spans: the client's own where it sent a proper one, else drawn.
#pragma once

#include "common/base/rng.h"

#include <stdbool.h>

#define BT_REQUEST_NAME_MAX 64

// Draws one: 32 hexadecimal digits.
void bt_request_name_draw(char out[BT_REQUEST_NAME_MAX + 1], bt_rng *rng);
// Takes a client's: 1 to 64 of letters, digits and -_.:/+= (nothing that could break a header or a log line).
bool bt_request_name_take(char out[BT_REQUEST_NAME_MAX + 1], const char *from);
