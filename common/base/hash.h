// The hash of a text, to tell names apart by where nobody means harm.
#pragma once

#include "common/base/rng.h"

#include <stddef.h>

static inline uint64_t
bt_hash_text(const char *text, size_t len)
{
    uint64_t hash = 0;

    for (size_t i = 0; i < len; i++)
        hash = bt_mix64(hash ^ (unsigned char)text[i]);
    return hash;
}
