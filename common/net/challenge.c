#include "common/net/challenge.h"

#include <mbedtls/md.h>
#include <string.h>
#include <sys/random.h>

bt_err
bt_nonce_draw(uint8_t out[BT_NONCE_BYTES])
{
    return getrandom(out, BT_NONCE_BYTES, 0) == BT_NONCE_BYTES ? BT_OK : BT_ERR_IO;
}

bt_err
bt_mac_make(uint8_t out[BT_MAC_BYTES], const char *secret, bt_side side, const bt_nonces *nonces)
{
    const mbedtls_md_info_t *sha256 = mbedtls_md_info_from_type(MBEDTLS_MD_SHA256);
    const char *label = side == BT_SIDE_DIALER ? "baton-1 dialer  " : "baton-1 listener";
    uint8_t text[16 + 2 * BT_NONCE_BYTES];

    memcpy(text, label, 16);
    memcpy(text + 16, nonces->listener, BT_NONCE_BYTES);
    memcpy(text + 16 + BT_NONCE_BYTES, nonces->dialer, BT_NONCE_BYTES);
    if (sha256 == NULL || mbedtls_md_hmac(sha256, (const uint8_t *)secret, strlen(secret), text, sizeof text, out) != 0)
        return BT_ERR_UNSUPPORTED;
    return BT_OK;
}

bool
bt_mac_is(const uint8_t mac[BT_MAC_BYTES], const uint8_t *given)
{
    volatile uint8_t differs = 0; // volatile: no compiler leaves the loop early

    for (int i = 0; i < BT_MAC_BYTES; i++)
        differs = (uint8_t)(differs | (mac[i] ^ given[i]));
    return differs == 0;
}
