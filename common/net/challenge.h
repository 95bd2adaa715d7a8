// Both sides show that they know the cluster's secret without saying it, before anything else is said.
//
//     dialer                                          listener
//       |  GREET  ---------------------------------------> |
//       |  <------------------------- CHALLENGE(nonce_l)   |
//       |  PROOF(nonce_d, mac("dialer", nonce_l, nonce_d)) > |   wrong: closed without a word
//       |  <---- WELCOME(mac("listener", nonce_l, nonce_d)) |
//
// mac is HMAC-SHA256 with the secret as its key. A dialer proves first: a listener answers any address, a dialer chooses its own. What
// follows is not authenticated by this: on a network with strangers in the middle, use TLS too. Any thread.
#pragma once

#include "common/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BT_NONCE_BYTES 32
#define BT_MAC_BYTES 32
#define BT_SECRET_BYTES_MAX 128

typedef enum { BT_SIDE_DIALER, BT_SIDE_LISTENER } bt_side;

typedef struct {
    uint8_t listener[BT_NONCE_BYTES], dialer[BT_NONCE_BYTES];
} bt_nonces;

bt_err bt_nonce_draw(uint8_t out[BT_NONCE_BYTES]); // BT_ERR_IO when the system has no randomness
bt_err bt_mac_make(uint8_t out[BT_MAC_BYTES], const char *secret, bt_side side, const bt_nonces *nonces);
// Takes as long whether and wherever they differ.
bool bt_mac_is(const uint8_t mac[BT_MAC_BYTES], const uint8_t *given);
