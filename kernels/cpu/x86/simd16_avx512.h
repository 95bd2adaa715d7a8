// Sixteen lanes at a time, by AVX-512 VNNI: the vocabulary of attention_tile.h. simd16_avx2.h has the same words.
//
// vf 16 floats, vi 16 int32, vb 64 bytes, vm a mask of 16 lanes; max(a, b) is `a > b ? a : b` also when a NaN is there.
#pragma once

#include "kernels/cpu/x86/math_avx2.h"
#include "kernels/cpu/x86/math_avx512.h"

typedef __m512 vf;
typedef __m512i vi;
typedef __m512i vb;
typedef __m512i vp; // four u8 codes in every lane
typedef __mmask16 vm;

#define SIMD_COLS 4       // vectors of keys or dims that fit the registers beside four rows
#define SIMD_K_OFFSET 128 // K codes are kept + 128: the dot product takes unsigned by signed
#define SIMD(word) word##_avx512
#define SIMD_DOT16 bt_avx512_dot16

static inline vf
vf_set(float x)
{
    return _mm512_set1_ps(x);
}

static inline vf
vf_load(const float *from)
{
    return _mm512_loadu_ps(from);
}

static inline void
vf_store(float *to, vf a)
{
    _mm512_storeu_ps(to, a);
}

static inline void
vf_store_n(float *to, vf a, uint32_t count)
{
    _mm512_mask_storeu_ps(to, bt_avx512_mask(count), a);
}

static inline vf
vf_load_n(const float *from, uint32_t count)
{
    return _mm512_maskz_loadu_ps(bt_avx512_mask(count), from);
}

static inline vf
vf_load_half(const uint16_t *from)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)from));
}

static inline vf
vf_load_half_n(const uint16_t *from, uint32_t count)
{
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(bt_avx512_mask(count), from));
}

static inline vf
vf_add(vf a, vf b)
{
    return _mm512_add_ps(a, b);
}

static inline vf
vf_sub(vf a, vf b)
{
    return _mm512_sub_ps(a, b);
}

static inline vf
vf_mul(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}

static inline vf
vf_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}

static inline vf
vf_max(vf a, vf b)
{
    return _mm512_max_ps(a, b);
}

static inline vf
vf_min(vf a, vf b)
{
    return _mm512_min_ps(a, b);
}

static inline vf
vf_exp2(vf a)
{
    return bt_avx512_exp2(a);
}

static inline vf
vf_softcap(vf a, float softcap)
{
    return bt_avx512_softcap(a, softcap);
}

static inline __m256
vf_largest8(vf a)
{
    return _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
}

static inline float
vf_tree(vf a)
{
    return bt_avx512_tree16(a);
}

// Lanes first … end − 1 (any integers; lanes are 0 … 15).
static inline vm
vm_range(int32_t first, int32_t end)
{
    uint32_t low = first <= 0 ? 0xffffu : first >= 16 ? 0 : 0xffffu << first;

    return (vm)(low & (end <= 0 ? 0 : end >= 16 ? 0xffffu : (1u << end) - 1));
}

static inline vf
vf_pick(vm mask, vf a, vf b) // a where the mask is set
{
    return _mm512_mask_blend_ps(mask, b, a);
}

static inline uint32_t
vf_nans(vf a) // a bit a lane
{
    return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
}

static inline vf
vf_of(vi a)
{
    return _mm512_cvtepi32_ps(a);
}

static inline vi
vi_set(int32_t x)
{
    return _mm512_set1_epi32(x);
}

static inline vb
vb_load(const void *from)
{
    return _mm512_loadu_si512(from);
}

static inline vb
vb_set(const void *four) // the same four bytes in every lane
{
    int32_t bytes;

    memcpy(&bytes, four, 4);
    return _mm512_set1_epi32(bytes);
}

// acc + the dot products of four unsigned and four signed bytes, lane by lane. Written as an instruction, since gcc 12
// surrounds the intrinsic with copies of its accumulators: a quarter of the loop's time.
static inline vi
dot_bytes(vi acc, vb a, vb b)
{
    __asm__("vpdpbusd %2, %1, %0" : "+v"(acc) : "v"(a), "v"(b));
    return acc;
}

// K bytes (+ 128) by Q codes.
static inline vi
vi_dot_k(vi acc, vb k, vb q)
{
    return dot_bytes(acc, k, q);
}

static inline vp
vp_set(const uint8_t *four)
{
    return vb_set(four);
}

static inline vi
vi_dot_v(vi acc, vp p, vb v)
{
    return dot_bytes(acc, p, v);
}

// 64 numbers 0 … 255 rounded half to even to bytes; a NaN becomes 0. Packing leaves lane L of the four vectors side by side.
static inline void
vf_store_codes(uint8_t *to, const vf a[4])
{
    __m512i low = _mm512_packus_epi32(_mm512_cvtps_epi32(a[0]), _mm512_cvtps_epi32(a[1]));
    __m512i high = _mm512_packus_epi32(_mm512_cvtps_epi32(a[2]), _mm512_cvtps_epi32(a[3]));
    __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);

    _mm512_storeu_si512(to, _mm512_permutexvar_epi32(order, _mm512_packus_epi16(low, high)));
}

// 16 K rows `stride` bytes apart, 16 dims of each, to [4][to_stride]: 16 × 4 bytes for each four dims. Lane L of z_j is row
// 4L + j, so that transposing 4 × 4 within the lanes leaves the keys in order.
static inline void
transpose_k16(const uint8_t *rows, size_t stride, uint8_t *to, size_t to_stride)
{
    __m512i z[4], t[4], flip = _mm512_set1_epi8((char)0x80);

    for (int j = 0; j < 4; j++) {
        const uint8_t *row = rows + (size_t)j * stride;

        z[j] = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)(const void *)row));
        z[j] = _mm512_inserti32x4(z[j], _mm_loadu_si128((const __m128i *)(const void *)(row + 4 * stride)), 1);
        z[j] = _mm512_inserti32x4(z[j], _mm_loadu_si128((const __m128i *)(const void *)(row + 8 * stride)), 2);
        z[j] = _mm512_inserti32x4(z[j], _mm_loadu_si128((const __m128i *)(const void *)(row + 12 * stride)), 3);
        z[j] = _mm512_xor_si512(z[j], flip);
    }
    t[0] = _mm512_unpacklo_epi32(z[0], z[1]);
    t[1] = _mm512_unpackhi_epi32(z[0], z[1]);
    t[2] = _mm512_unpacklo_epi32(z[2], z[3]);
    t[3] = _mm512_unpackhi_epi32(z[2], z[3]);
    _mm512_storeu_si512(to, _mm512_unpacklo_epi64(t[0], t[2]));
    _mm512_storeu_si512(to + to_stride, _mm512_unpackhi_epi64(t[0], t[2]));
    _mm512_storeu_si512(to + 2 * to_stride, _mm512_unpacklo_epi64(t[1], t[3]));
    _mm512_storeu_si512(to + 3 * to_stride, _mm512_unpackhi_epi64(t[1], t[3]));
}

// The trees of 16 vectors at once: lane i = tree16(a[i]), by the same additions.
static inline vf
vf_trees(const vf a[16])
{
    __m512 z[4], q[2];

    for (int j = 0; j < 4; j++) {
        __m512 x =
            _mm512_add_ps(_mm512_shuffle_f32x4(a[j], a[j + 4], 0x44), _mm512_shuffle_f32x4(a[j], a[j + 4], 0xee));
        __m512 y = _mm512_add_ps(_mm512_shuffle_f32x4(a[j + 8], a[j + 12], 0x44),
                                 _mm512_shuffle_f32x4(a[j + 8], a[j + 12], 0xee));

        z[j] = _mm512_add_ps(_mm512_shuffle_f32x4(x, y, 0x88), _mm512_shuffle_f32x4(x, y, 0xdd));
    }
    for (int j = 0; j < 2; j++) {
        __m512d x = _mm512_castps_pd(z[2 * j]), y = _mm512_castps_pd(z[2 * j + 1]);

        q[j] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)), _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
    }
    return _mm512_add_ps(_mm512_shuffle_ps(q[0], q[1], 0x88), _mm512_shuffle_ps(q[0], q[1], 0xdd));
}

// bt_ref_int8_codes: conversion rounds half to even as the reference's magic number does.
static inline void
simd_int8_codes(const float *x, uint32_t count, float inverse, int8_t *codes)
{
    uint32_t i = 0;

    for (; inverse != 0.0f && i + 16 <= count; i += 16) {
        vf v = vf_mul(vf_load(x + i), vf_set(inverse));

        v = vf_max(vf_set(-127.0f), vf_min(vf_set(127.0f), v));
        _mm_storeu_si128((__m128i *)(void *)(codes + i), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(v)));
    }
    bt_ref_int8_codes(x + i, count - i, inverse, codes + i);
}
