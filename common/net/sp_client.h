// The client's side of common/net/sp.h for a program without a loop: it dials, and each call waits, until its deadline at the latest
// (on bt_time_now's clock).
//
// One thread. After an error other than BT_ERR_TIMEOUT of `receive` the connection is of no more use: close it and open another.
#pragma once

#include "common/base/err.h"
#include "common/base/time.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    const char *url;          // "tcp://10.0.0.7:8090", "tls+tcp://router:8090"
    const char *ca_file;      // tls+tcp: who signs the server's certificate, PEM
    const char *tls_name;     // tls+tcp: the name in it; NULL = the host of the url
    size_t message_bytes_max; // of one that comes in
} bt_sp_client_options;

typedef struct bt_sp_client bt_sp_client;

// BT_ERR_INVALID: the options (`why` says which). BT_ERR_PEER: nobody there, or nobody who speaks this. BT_ERR_TIMEOUT.
bt_err bt_sp_client_open(bt_sp_client **out, const bt_sp_client_options *options, bt_time deadline, bt_why *why);
void bt_sp_client_close(bt_sp_client *client); // NULL is fine

// Is it still there, as far as this side has heard? Takes a millisecond.
bool bt_sp_client_is_open(bt_sp_client *client);

// BT_ERR_PEER: the connection is lost. BT_ERR_TIMEOUT: part of the message may be sent. A server that waits until it is read from is read
// from meanwhile: what it says is kept for `receive`.
bt_err bt_sp_client_send(bt_sp_client *client, const void *bytes, size_t length, bt_time deadline);
// The next message, borrowed until the next call. BT_ERR_TIMEOUT: none until now; BT_ERR_TOO_LONG: larger than may be.
bt_err bt_sp_client_receive(bt_sp_client *client, const uint8_t **bytes, size_t *length, bt_time deadline);
