// What makes a copied block trustworthy: the checksum over its bytes, and the trailer that names the life it belongs to.
//
//     sum   = Σ over the words w[i] (64 bits, little-endian) of  w[i] + low32(x) · high32(x),   x = w[i] ^ (i + 1) · 0x9e3779b97f4a7c15
//     value = mix64(sum ^ words), and 1 in place of 0
//
// Everything modulo 2^64. The sum has no order, so that threads, AVX and a CUDA kernel compute parts of it as they like; the index in
// each word's key makes it see swaps. Of changed blocks about one in 2^64 goes unseen (a single bit: one in 2^32 at worst).
// It is for accidents and not for forgers.
//
// The writer of a block calls `clear` when the block is lent, before the first byte is written, and `stamp` when it is finished. Then
// a reader that copies the bytes first and the trailer last notices a block that was lent anew, with or without the checksum.
// Pure arithmetic on the caller's memory; any thread.
#pragma once

#include "common/kv/layout.h"

#include <stdbool.h>

#define BT_KV_CHECKSUM_KEY 0x9e3779b97f4a7c15u

// The sum's part of `bytes` (a multiple of 8) that begin with word `first` of the block; parts are added.
uint64_t bt_kv_checksum_part(const void *data, size_t bytes, uint64_t first);
// The same while copying, in one pass; memory must not overlap. `to` and `from` at 8-byte boundaries.
uint64_t bt_kv_checksum_copy(void *to, const void *from, size_t bytes, uint64_t first);
// The value of the whole from its sum; `bytes` is the length of all parts. Never 0.
uint64_t bt_kv_checksum_end(uint64_t sum, size_t bytes);

typedef enum { BT_KV_GOOD, BT_KV_BAD_EPOCH, BT_KV_BAD_GENERATION, BT_KV_BAD_CHECKSUM } bt_kv_verdict;

static inline bt_kv_trailer *
bt_kv_trailer_of(const bt_kv_layout *l, uint8_t *block)
{
    return (bt_kv_trailer *)(void *)(block + l->trailer_offset);
}

void bt_kv_trailer_clear(const bt_kv_layout *layout, uint8_t *block);
void bt_kv_trailer_stamp(const bt_kv_layout *layout, uint8_t *block, uint64_t epoch, uint64_t generation);
// The same with a checksum that is known already (bt_kv_checksum_end over all bytes before the trailer).
void bt_kv_trailer_put(const bt_kv_layout *layout, uint8_t *block, uint64_t epoch, uint64_t generation,
                       uint64_t checksum);

// Is it the block that was asked for? With `sum` (from bt_kv_checksum_copy over trailer_offset bytes) the bytes are not read again; NULL
// computes it. The first thing that is wrong, in the order of the enum.
bt_kv_verdict bt_kv_trailer_check(const bt_kv_layout *layout, const uint8_t *block, uint64_t epoch, uint64_t generation,
                                  const uint64_t *sum);
// The same of a trailer that was read from where this process cannot, with its block's sum; NULL: only names.
bt_kv_verdict bt_kv_trailer_judge(const bt_kv_layout *layout, const bt_kv_trailer *trailer, uint64_t epoch,
                                  uint64_t generation, const uint64_t *sum);
// Without the checksum: what a reader that trusts its memory is content with.
bt_kv_verdict bt_kv_trailer_check_names(const bt_kv_layout *layout, const uint8_t *block, uint64_t epoch,
                                        uint64_t generation);

// Tests only: the largest form that may be used (0 plain, 1 AVX2, 2 AVX-512), and which are there. Not while others compute.
void bt_kv_checksum_limit(int form);
int bt_kv_checksum_form(void);
