#include "kernels/bench/probe_x86.h"

#include <immintrin.h>

uint64_t
bt_probe_read(const uint8_t *memory, size_t bytes)
{
    size_t quarter = bytes / 4;
    __m512i sum[4] = {0};

    for (size_t i = 0; i < quarter; i += 64) {
        for (int s = 0; s < 4; s++) {
            const uint8_t *p = memory + s * quarter + i;

            _mm_prefetch(p + 1024, _MM_HINT_T0);
            sum[s] = _mm512_xor_si512(sum[s], _mm512_load_si512(p));
        }
    }
    return (uint64_t)_mm512_reduce_add_epi64(sum[0] + sum[1] + sum[2] + sum[3]);
}

uint64_t
bt_probe_int8(void)
{
    __m512i acc[12], a = _mm512_set1_epi8(3), b = _mm512_set1_epi8(5);

    for (int j = 0; j < 12; j++) { // all different, lest they be one
        acc[j] = _mm512_set1_epi32(j);
    }
    for (int i = 0; i < BT_PROBE_ROUNDS; i++) {
#pragma GCC unroll 12
        for (int j = 0; j < 12; j++) {
            acc[j] = _mm512_dpbusd_epi32(acc[j], a, b);
        }
        __asm__ volatile("" : "+v"(a), "+v"(b));
    }
    for (int j = 1; j < 12; j++) {
        acc[0] = _mm512_add_epi32(acc[0], acc[j]);
    }
    return (uint64_t)_mm512_reduce_add_epi32(acc[0]);
}

uint64_t
bt_probe_f32(void)
{
    __m512 acc[12], a = _mm512_set1_ps(0.5f), b = _mm512_set1_ps(0.25f);

    for (int j = 0; j < 12; j++) {
        acc[j] = _mm512_set1_ps((float)j);
    }
    for (int i = 0; i < BT_PROBE_ROUNDS; i++) {
#pragma GCC unroll 12
        for (int j = 0; j < 12; j++) {
            acc[j] = _mm512_fmadd_ps(a, b, acc[j]);
        }
        __asm__ volatile("" : "+v"(a), "+v"(b));
    }
    for (int j = 1; j < 12; j++) {
        acc[0] = _mm512_add_ps(acc[0], acc[j]);
    }
    return (uint64_t)_mm512_reduce_add_ps(acc[0]);
}
