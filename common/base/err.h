// What can go wrong, grouped by what a caller can do about it.
//
// Functions that can fail return bt_err; results go out through the last arguments and are untouched by a failure.
// Whoever finds out logs it once (or fills a bt_why); the rest pass the code on.
#pragma once

typedef enum {
    BT_OK = 0,
    // Refuse the request: trying again changes nothing.
    BT_ERR_INVALID,     // malformed or out of range
    BT_ERR_TOO_LONG,    // over a configured limit
    BT_ERR_UNSUPPORTED, // well-formed, and not something we do
    BT_ERR_NOT_FOUND,
    // Try later or elsewhere.
    BT_ERR_BUSY, // a bounded thing is full
    BT_ERR_TIMEOUT,
    BT_ERR_PEER, // the other side is gone or broke the protocol
    BT_ERR_CANCELLED,
    BT_ERR_CLOSED,
    // This process is unwell.
    BT_ERR_NO_MEMORY,
    BT_ERR_DEVICE,
    BT_ERR_IO,
    BT_ERR_BUG,
    BT_ERR_COUNT
} bt_err;

// A short lasting word, as in "BUSY".
const char *bt_err_name(bt_err err);

// Text for a person: names what was wrong and where. Filled by the few functions whose errors a person reads.
typedef struct {
    char text[512];
} bt_why;

// Fills `why` (which may be NULL) and returns `err`, so that a check reads `return bt_fail(why, BT_ERR_INVALID, …)`.
bt_err bt_fail(bt_why *why, bt_err err, const char *format, ...) __attribute__((format(printf, 3, 4)));
