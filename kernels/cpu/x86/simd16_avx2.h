// Sixteen lanes at a time, as two halves, by AVX2: the vocabulary of attention_tile.h, as simd16_avx512.h has it.
//
// AVX2 multiplies unsigned by signed bytes into saturating int16. K · Q therefore goes as |k| · (q with k's sign), at most
// 2 · 127 · 127, and a u8 code p as 2 · (p >> 1) + (p & 1).
#pragma once

#include "kernels/cpu/x86/math_avx2.h"

typedef struct {
    __m256 low, high;
} vf;
typedef struct {
    __m256i low, high;
} vi;
typedef vi vb;
typedef struct {
    __m256i half, bit; // the same in both halves
} vp;
typedef vi vm;

#define SIMD_COLS 1
#define SIMD_K_OFFSET 0
#define SIMD(word) word##_avx2
#define SIMD_DOT16 bt_avx2_dot16

static inline vf
vf_set(float x)
{
    return (vf){_mm256_set1_ps(x), _mm256_set1_ps(x)};
}

static inline vf
vf_load(const float *from)
{
    return (vf){_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)};
}

static inline void
vf_store(float *to, vf a)
{
    _mm256_storeu_ps(to, a.low);
    _mm256_storeu_ps(to + 8, a.high);
}

static inline vm
vm_range(int32_t first, int32_t end)
{
    __m256i low = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), high = _mm256_add_epi32(low, _mm256_set1_epi32(8));
    __m256i f = _mm256_set1_epi32(first - 1), e = _mm256_set1_epi32(end);

    return (vm){_mm256_and_si256(_mm256_cmpgt_epi32(low, f), _mm256_cmpgt_epi32(e, low)),
                _mm256_and_si256(_mm256_cmpgt_epi32(high, f), _mm256_cmpgt_epi32(e, high))};
}

static inline void
vf_store_n(float *to, vf a, uint32_t count)
{
    vm m = vm_range(0, (int32_t)count);

    _mm256_maskstore_ps(to, m.low, a.low);
    _mm256_maskstore_ps(to + 8, m.high, a.high);
}

static inline vf
vf_load_n(const float *from, uint32_t count)
{
    vm m = vm_range(0, (int32_t)count);

    return (vf){_mm256_maskload_ps(from, m.low), _mm256_maskload_ps(from + 8, m.high)};
}

static inline vf
vf_load_half(const uint16_t *from)
{
    return (vf){_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)from)),
                _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(from + 8)))};
}

static inline vf
vf_load_half_n(const uint16_t *from, uint32_t count)
{
    uint16_t all[16] = {0};

    memcpy(all, from, count * sizeof *all);
    return vf_load_half(all);
}

static inline vf
vf_add(vf a, vf b)
{
    return (vf){_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
}

static inline vf
vf_sub(vf a, vf b)
{
    return (vf){_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)};
}

static inline vf
vf_mul(vf a, vf b)
{
    return (vf){_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
}

static inline vf
vf_fma(vf a, vf b, vf c)
{
    return (vf){_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}

static inline vf
vf_max(vf a, vf b)
{
    return (vf){_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)};
}

static inline vf
vf_min(vf a, vf b)
{
    return (vf){_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)};
}

static inline vf
vf_exp2(vf a)
{
    return (vf){bt_avx2_exp2(a.low), bt_avx2_exp2(a.high)};
}

static inline vf
vf_softcap(vf a, float softcap)
{
    return (vf){bt_avx2_softcap(a.low, softcap), bt_avx2_softcap(a.high, softcap)};
}

static inline __m256
vf_largest8(vf a)
{
    return _mm256_max_ps(a.low, a.high);
}

static inline float
vf_tree(vf a)
{
    return bt_avx2_tree16(a.low, a.high);
}

static inline vf
vf_pick(vm mask, vf a, vf b)
{
    return (vf){_mm256_blendv_ps(b.low, a.low, _mm256_castsi256_ps(mask.low)),
                _mm256_blendv_ps(b.high, a.high, _mm256_castsi256_ps(mask.high))};
}

static inline uint32_t
vf_nans(vf a)
{
    return (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(a.low, a.low, _CMP_UNORD_Q)) |
           (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(a.high, a.high, _CMP_UNORD_Q)) << 8;
}

static inline vf
vf_of(vi a)
{
    return (vf){_mm256_cvtepi32_ps(a.low), _mm256_cvtepi32_ps(a.high)};
}

static inline vi
vi_set(int32_t x)
{
    return (vi){_mm256_set1_epi32(x), _mm256_set1_epi32(x)};
}

static inline vb
vb_load(const void *from)
{
    return (vb){_mm256_loadu_si256((const __m256i *)from), _mm256_loadu_si256((const __m256i *)from + 1)};
}

static inline vb
vb_set(const void *four)
{
    int32_t bytes;

    memcpy(&bytes, four, 4);
    return vi_set(bytes);
}

static inline __m256i
dot_k8(__m256i acc, __m256i k, __m256i q)
{
    __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(k), _mm256_sign_epi8(q, k));

    return _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

static inline vi
vi_dot_k(vi acc, vb k, vb q)
{
    return (vi){dot_k8(acc.low, k.low, q.low), dot_k8(acc.high, k.high, q.high)};
}

static inline vp
vp_set(const uint8_t *four)
{
    __m256i p = vb_set(four).low;

    return (vp){_mm256_and_si256(_mm256_srli_epi16(p, 1), _mm256_set1_epi8(127)),
                _mm256_and_si256(p, _mm256_set1_epi8(1))};
}

static inline __m256i
dot_v8(__m256i acc, vp p, __m256i v)
{
    acc = _mm256_add_epi32(acc, _mm256_madd_epi16(_mm256_maddubs_epi16(p.half, v), _mm256_set1_epi16(2)));
    return _mm256_add_epi32(acc, _mm256_madd_epi16(_mm256_maddubs_epi16(p.bit, v), _mm256_set1_epi16(1)));
}

static inline vi
vi_dot_v(vi acc, vp p, vb v)
{
    return (vi){dot_v8(acc.low, p, v.low), dot_v8(acc.high, p, v.high)};
}

static inline __m256i
words16(vf a)
{
    __m256i words = _mm256_packus_epi32(_mm256_cvtps_epi32(a.low), _mm256_cvtps_epi32(a.high));

    return _mm256_permute4x64_epi64(words, 0xd8);
}

static inline void
vf_store_codes(uint8_t *to, const vf a[4])
{
    for (int i = 0; i < 4; i += 2) {
        __m256i bytes = _mm256_packus_epi16(words16(a[i]), words16(a[i + 1]));

        _mm256_storeu_si256((__m256i *)(void *)(to + 16 * i), _mm256_permute4x64_epi64(bytes, 0xd8));
    }
}

static inline __m256i
two_rows(const uint8_t *row, size_t stride)
{
    return _mm256_loadu2_m128i((const __m128i *)(const void *)(row + 4 * stride), (const __m128i *)(const void *)row);
}

static inline void
transpose_k16(const uint8_t *rows, size_t stride, uint8_t *to, size_t to_stride)
{
    for (int half = 0; half < 2; half++, rows += 8 * stride, to += 32) {
        __m256i z0 = two_rows(rows, stride), z1 = two_rows(rows + stride, stride);
        __m256i z2 = two_rows(rows + 2 * stride, stride), z3 = two_rows(rows + 3 * stride, stride);
        __m256i t0 = _mm256_unpacklo_epi32(z0, z1), t1 = _mm256_unpackhi_epi32(z0, z1);
        __m256i t2 = _mm256_unpacklo_epi32(z2, z3), t3 = _mm256_unpackhi_epi32(z2, z3);

        _mm256_storeu_si256((__m256i *)(void *)to, _mm256_unpacklo_epi64(t0, t2));
        _mm256_storeu_si256((__m256i *)(void *)(to + to_stride), _mm256_unpackhi_epi64(t0, t2));
        _mm256_storeu_si256((__m256i *)(void *)(to + 2 * to_stride), _mm256_unpacklo_epi64(t1, t3));
        _mm256_storeu_si256((__m256i *)(void *)(to + 3 * to_stride), _mm256_unpackhi_epi64(t1, t3));
    }
}

static inline __m256
trees8(const vf a[8])
{
    __m256 z[4], q[2];

    for (int j = 0; j < 4; j++) {
        __m256 x = _mm256_add_ps(a[j].low, a[j].high), y = _mm256_add_ps(a[j + 4].low, a[j + 4].high);

        z[j] = _mm256_add_ps(_mm256_permute2f128_ps(x, y, 0x20), _mm256_permute2f128_ps(x, y, 0x31));
    }
    for (int j = 0; j < 2; j++) {
        __m256d x = _mm256_castps_pd(z[2 * j]), y = _mm256_castps_pd(z[2 * j + 1]);

        q[j] = _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(x, y)), _mm256_castpd_ps(_mm256_unpackhi_pd(x, y)));
    }
    return _mm256_add_ps(_mm256_shuffle_ps(q[0], q[1], 0x88), _mm256_shuffle_ps(q[0], q[1], 0xdd));
}

static inline vf
vf_trees(const vf a[16])
{
    return (vf){trees8(a), trees8(a + 8)};
}

static inline void
simd_int8_codes(const float *x, uint32_t count, float inverse, int8_t *codes)
{
    uint32_t i = 0;

    for (; inverse != 0.0f && i + 16 <= count; i += 16) {
        vf v = vf_mul(vf_load(x + i), vf_set(inverse));

        v = vf_max(vf_set(-127.0f), vf_min(vf_set(127.0f), v));
        __m256i words = _mm256_packs_epi32(_mm256_cvtps_epi32(v.low), _mm256_cvtps_epi32(v.high));

        words = _mm256_permute4x64_epi64(words, 0xd8);
        _mm_storeu_si128((__m128i *)(void *)(codes + i),
                         _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
    }
    bt_ref_int8_codes(x + i, count - i, inverse, codes + i);
}
