// The forms of the checksum's one loop, for trailer.c alone: `to` NULL = only sum.
#pragma once

#include <stddef.h>
#include <stdint.h>

uint64_t bt_kv_checksum_plain(void *to, const void *from, size_t words, uint64_t first);
#if defined(__x86_64__)
uint64_t bt_kv_checksum_avx2(void *to, const void *from, size_t words, uint64_t first);
uint64_t bt_kv_checksum_avx512(void *to, const void *from, size_t words, uint64_t first);
#endif
