// The checksum's loop for AVX2 and AVX-512, with streaming stores when it copies: a landed block is far larger than what stays in a
// cache until it is attended to, and a plain store would read each line before it overwrites it (a third of the traffic).
// Two sums run side by side, since one multiply-add chain would wait for itself.
#include "common/kv/checksum.h"
#include "common/kv/trailer.h"

#if defined(__x86_64__)

#include <immintrin.h>

static inline size_t
words_to_boundary(const void *to, size_t boundary, size_t words)
{
    size_t off = (uintptr_t)to % boundary, head = off % 8 != 0 ? words : off == 0 ? 0 : (boundary - off) / 8;

    return to == NULL || head > words ? 0 : head;
}

__attribute__((target("avx512f,avx512dq"))) static inline __m512i
term_avx512(__m512i w, __m512i key)
{
    __m512i x = _mm512_xor_si512(w, key);

    return _mm512_add_epi64(w, _mm512_mul_epu32(x, _mm512_srli_epi64(x, 32)));
}

__attribute__((target("avx512f,avx512dq"))) uint64_t
bt_kv_checksum_avx512(void *to, const void *from, size_t words, uint64_t first)
{
    size_t head = words_to_boundary(to, 64, words), i = head;
    uint64_t sum = bt_kv_checksum_plain(to, from, head, first), part[8];
    const uint64_t *in = from;
    uint64_t *out = to;
    __m512i key, step = _mm512_set1_epi64((long long)(8 * BT_KV_CHECKSUM_KEY));
    __m512i a = _mm512_setzero_si512(), b = a;

    key = _mm512_add_epi64(_mm512_set1_epi64((long long)(first + head + 1)), _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0));
    key = _mm512_mullo_epi64(key, _mm512_set1_epi64((long long)BT_KV_CHECKSUM_KEY));
    for (; i + 16 <= words; i += 16) {
        __m512i u = _mm512_loadu_si512(in + i), v = _mm512_loadu_si512(in + i + 8);

        if (out != NULL) {
            _mm512_stream_si512((void *)(out + i), u);
            _mm512_stream_si512((void *)(out + i + 8), v);
        }
        a = _mm512_add_epi64(a, term_avx512(u, key));
        key = _mm512_add_epi64(key, step);
        b = _mm512_add_epi64(b, term_avx512(v, key));
        key = _mm512_add_epi64(key, step);
    }
    if (out != NULL) {
        _mm_sfence();
    }
    _mm512_storeu_si512(part, _mm512_add_epi64(a, b));
    for (int lane = 0; lane < 8; lane++) { // not reduce_add: it adds signed numbers
        sum += part[lane];
    }
    return sum + bt_kv_checksum_plain(out != NULL ? out + i : NULL, in + i, words - i, first + i);
}

__attribute__((target("avx2"))) static inline __m256i
term_avx2(__m256i w, __m256i key)
{
    __m256i x = _mm256_xor_si256(w, key);

    return _mm256_add_epi64(w, _mm256_mul_epu32(x, _mm256_srli_epi64(x, 32)));
}

__attribute__((target("avx2"))) uint64_t
bt_kv_checksum_avx2(void *to, const void *from, size_t words, uint64_t first)
{
    size_t head = words_to_boundary(to, 32, words), i = head;
    uint64_t sum = bt_kv_checksum_plain(to, from, head, first), k = (first + head + 1) * BT_KV_CHECKSUM_KEY, part[4];
    const uint64_t *in = from;
    uint64_t *out = to;
    __m256i step = _mm256_set1_epi64x((long long)(4 * BT_KV_CHECKSUM_KEY)), a = _mm256_setzero_si256(), b = a;
    __m256i key = _mm256_set_epi64x((long long)(k + 3 * BT_KV_CHECKSUM_KEY), (long long)(k + 2 * BT_KV_CHECKSUM_KEY),
                                    (long long)(k + BT_KV_CHECKSUM_KEY), (long long)k);

    for (; i + 8 <= words; i += 8) {
        __m256i u = _mm256_loadu_si256((const void *)(in + i)), v = _mm256_loadu_si256((const void *)(in + i + 4));

        if (out != NULL) {
            _mm256_stream_si256((void *)(out + i), u);
            _mm256_stream_si256((void *)(out + i + 4), v);
        }
        a = _mm256_add_epi64(a, term_avx2(u, key));
        key = _mm256_add_epi64(key, step);
        b = _mm256_add_epi64(b, term_avx2(v, key));
        key = _mm256_add_epi64(key, step);
    }
    if (out != NULL) {
        _mm_sfence();
    }
    _mm256_storeu_si256((void *)part, _mm256_add_epi64(a, b));
    sum += part[0] + part[1] + part[2] + part[3];
    return sum + bt_kv_checksum_plain(out != NULL ? out + i : NULL, in + i, words - i, first + i);
}

#endif
