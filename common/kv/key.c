#include "common/kv/key.h"

#include <assert.h>
#include <string.h>
#include <xxhash.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "keys are hashes of little-endian bytes");

static bt_kv_key
hash(const void *bytes, size_t count, uint64_t seed)
{
    XXH128_hash_t h = XXH3_128bits_withSeed(bytes, count, seed);

    return (bt_kv_key){h.low64, h.high64};
}

bt_kv_key
bt_kv_key_root(uint64_t weights_digest)
{
    return hash("", 0, weights_digest);
}

bt_kv_key
bt_kv_key_next(uint64_t weights_digest, bt_kv_key previous, const int32_t *ids, uint32_t block_tokens)
{
    struct {
        bt_kv_key previous;
        int32_t ids[BT_KV_KEY_TOKENS_MAX];
    } hashed;

    assert(block_tokens <= BT_KV_KEY_TOKENS_MAX);
    hashed.previous = previous;
    memcpy(hashed.ids, ids, block_tokens * sizeof *ids);
    return hash(&hashed, sizeof previous + block_tokens * sizeof *ids, weights_digest);
}
