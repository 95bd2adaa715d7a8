#include "common/kv/trailer.h"

#include "common/base/rng.h"
#include "common/kv/checksum.h"

#include <assert.h>
#include <stdatomic.h>
#include <string.h>

static int form_max = 2;

uint64_t
bt_kv_checksum_plain(void *to, const void *from, size_t words, uint64_t first)
{
    const uint8_t *in = from;
    uint8_t *out = to;
    uint64_t sum = 0;

    for (size_t i = 0; i < words; i++) {
        uint64_t w, x;

        memcpy(&w, in + 8 * i, 8);
        if (out != NULL) {
            memcpy(out + 8 * i, &w, 8);
        }
        x = w ^ (first + i + 1) * BT_KV_CHECKSUM_KEY;
        sum += w + (x & UINT32_MAX) * (x >> 32);
    }
    return sum;
}

void
bt_kv_checksum_limit(int form)
{
    form_max = form;
}

int
bt_kv_checksum_form(void)
{
#if defined(__x86_64__)
    if (form_max >= 2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq")) {
        return 2;
    }
    if (form_max >= 1 && __builtin_cpu_supports("avx2")) {
        return 1;
    }
#endif
    return 0;
}

static uint64_t
sum_words(void *to, const void *from, size_t bytes, uint64_t first)
{
    assert(bytes % 8 == 0);
#if defined(__x86_64__)
    switch (bt_kv_checksum_form()) {
    case 2:
        return bt_kv_checksum_avx512(to, from, bytes / 8, first);
    case 1:
        return bt_kv_checksum_avx2(to, from, bytes / 8, first);
    default:
        break;
    }
#endif
    return bt_kv_checksum_plain(to, from, bytes / 8, first);
}

uint64_t
bt_kv_checksum_part(const void *data, size_t bytes, uint64_t first)
{
    return sum_words(NULL, data, bytes, first);
}

uint64_t
bt_kv_checksum_copy(void *restrict to, const void *restrict from, size_t bytes, uint64_t first)
{
    return sum_words(to, from, bytes, first);
}

uint64_t
bt_kv_checksum_end(uint64_t sum, size_t bytes)
{
    uint64_t value = bt_mix64(sum ^ bytes / 8);

    return value != 0 ? value : 1;
}

void
bt_kv_trailer_clear(const bt_kv_layout *layout, uint8_t *block)
{
    memset(block + layout->trailer_offset, 0, sizeof(bt_kv_trailer));
    // A reader that sees a new byte shall not see the old trailer any more.
    atomic_thread_fence(memory_order_seq_cst);
}

void
bt_kv_trailer_stamp(const bt_kv_layout *layout, uint8_t *block, uint64_t epoch, uint64_t generation)
{
    uint64_t sum = bt_kv_checksum_part(block, layout->trailer_offset, 0);

    bt_kv_trailer_put(layout, block, epoch, generation, bt_kv_checksum_end(sum, layout->trailer_offset));
}

void
bt_kv_trailer_put(const bt_kv_layout *layout, uint8_t *block, uint64_t epoch, uint64_t generation, uint64_t checksum)
{
    atomic_thread_fence(memory_order_release);
    *bt_kv_trailer_of(layout, block) = (bt_kv_trailer){epoch, generation, checksum, 0};
}

bt_kv_verdict
bt_kv_trailer_judge(const bt_kv_layout *layout, const bt_kv_trailer *trailer, uint64_t epoch, uint64_t generation,
                    const uint64_t *sum)
{
    if (trailer->epoch != epoch) {
        return BT_KV_BAD_EPOCH;
    }
    if (trailer->generation != generation || trailer->checksum == 0) {
        return BT_KV_BAD_GENERATION;
    }
    return sum == NULL || trailer->checksum == bt_kv_checksum_end(*sum, layout->trailer_offset) ? BT_KV_GOOD
                                                                                                : BT_KV_BAD_CHECKSUM;
}

bt_kv_verdict
bt_kv_trailer_check_names(const bt_kv_layout *layout, const uint8_t *block, uint64_t epoch, uint64_t generation)
{
    bt_kv_trailer trailer;

    memcpy(&trailer, block + layout->trailer_offset, sizeof trailer);
    return bt_kv_trailer_judge(layout, &trailer, epoch, generation, NULL);
}

bt_kv_verdict
bt_kv_trailer_check(const bt_kv_layout *layout, const uint8_t *block, uint64_t epoch, uint64_t generation,
                    const uint64_t *sum)
{
    bt_kv_verdict verdict = bt_kv_trailer_check_names(layout, block, epoch, generation);
    bt_kv_trailer trailer;
    uint64_t own;

    if (verdict != BT_KV_GOOD) {
        return verdict;
    }
    memcpy(&trailer, block + layout->trailer_offset, sizeof trailer);
    own = sum != NULL ? *sum : bt_kv_checksum_part(block, layout->trailer_offset, 0);
    return bt_kv_trailer_judge(layout, &trailer, epoch, generation, &own);
}
