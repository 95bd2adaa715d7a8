// The AVX-512 path of linear layers: which kernel for which width, and unpacking.
#include "kernels/cpu/x86/dot_avx512.h"

#include <assert.h>

static bt_dot_fn *
pick_dot(unsigned bits, bool asymmetric, uint32_t tokens)
{
    static bt_dot_fn *const(*const tables[9])[BT_TILE_TOKENS] = {
        [2] = bt_dot_avx512_q2, [3] = bt_dot_avx512_q3, [4] = bt_dot_avx512_q4,
        [5] = bt_dot_avx512_q5, [6] = bt_dot_avx512_q6, [8] = bt_dot_avx512_q8,
    };

    assert(tokens >= 1 && tokens <= (asymmetric ? 8u : 12u) && bits <= 8 && tables[bits] != NULL);
    return tables[bits][asymmetric][tokens - 1];
}

INLINE void
unpack_units(const uint8_t *codes, unsigned bits, uint8_t more, uint32_t units, uint8_t *out)
{
    __m512i add = _mm512_set1_epi8((char)more);

    for (uint32_t u = 0; u < units; u++, codes += 32 * bits, out += 256) {
        __m512i rest = load_rest(codes, bits);

        _mm_prefetch(codes + BT_PREFETCH_BYTES, _MM_HINT_T0);
        if (bits > 2) {
            _mm_prefetch(codes + BT_PREFETCH_BYTES + 64, _MM_HINT_T0);
        }
#pragma GCC unroll 4
        for (unsigned j = 0; j < 4; j++) {
            _mm512_store_si512(out + 64 * j, _mm512_add_epi8(load_vector(codes, bits, j, rest), add));
        }
    }
}

void
bt_avx512_unpack_around(const uint8_t *codes, bt_format format, uint32_t units, int zero, uint8_t *out)
{
    uint8_t more = (uint8_t)(format.asymmetric ? 0 : zero - (1 << (format.bits - 1)));

    switch (format.bits) {
    case 2:
        unpack_units(codes, 2, more, units, out);
        break;
    case 3:
        unpack_units(codes, 3, more, units, out);
        break;
    case 4:
        unpack_units(codes, 4, more, units, out);
        break;
    case 5:
        unpack_units(codes, 5, more, units, out);
        break;
    case 6:
        unpack_units(codes, 6, more, units, out);
        break;
    default:
        unpack_units(codes, 8, more, units, out);
    }
}

static void
unpack(const uint8_t *codes, bt_format format, uint32_t units, uint8_t *out)
{
    bt_avx512_unpack_around(codes, format, units, 128, out);
}

const bt_linear_path bt_linear_avx512 = {
    .tile_symmetric = 12,
    .tile_asymmetric = 8,
    .direct_tokens = 12,
    .direct_tiles = 3, // each multiplies while memory streams, which unpacking beforehand would not (kernels/README.md)
    .code_group = 4,
    .quantise = bt_avx512_quantise,
    .norm = bt_avx512_norm,
    .dot = pick_dot,
    .unpack = unpack,
    .float_dot = bt_avx512_float_dot,
    .finish = bt_avx512_finish,
};
