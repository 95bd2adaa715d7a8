// The chain of keys that names finished KV blocks by what they hold.
//
//     root = XXH3-128(nothing, seed = weights digest)      key of a block = XXH3-128(previous key ‖ its ids, seed = digest)
//
// so a key stands for all tokens from the first on and for the weights that wrote them. Router and nodes compute the same
// keys from the same ids (ids as little-endian int32). A key finds; only comparing ids confirms (prefix.h). Pure; any
// thread.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define BT_KV_KEY_TOKENS_MAX 64 // of a block

typedef struct {
    uint64_t low, high;
} bt_kv_key;

bt_kv_key bt_kv_key_root(uint64_t weights_digest);
// `ids`: the block_tokens ≤ BT_KV_KEY_TOKENS_MAX ids of the next full block.
bt_kv_key bt_kv_key_next(uint64_t weights_digest, bt_kv_key previous, const int32_t *ids, uint32_t block_tokens);

static inline bool
bt_kv_key_equal(bt_kv_key a, bt_kv_key b)
{
    return a.low == b.low && a.high == b.high;
}
