// The pieces of the x86 paths of linear layers, each in a file of its own.
#pragma once

#include "kernels/cpu/tiled.h"

// How far ahead of the multiplies weights are fetched: 2 KB, about 200 ns at the rate of one core (kernels/README.md).
#define BT_PREFETCH_BYTES 6144

// [asymmetric][tokens − 1]; asymmetric up to 8.
extern bt_dot_fn *const bt_dot_avx512_q2[2][BT_TILE_TOKENS];
extern bt_dot_fn *const bt_dot_avx512_q3[2][BT_TILE_TOKENS];
extern bt_dot_fn *const bt_dot_avx512_q4[2][BT_TILE_TOKENS];
extern bt_dot_fn *const bt_dot_avx512_q5[2][BT_TILE_TOKENS];
extern bt_dot_fn *const bt_dot_avx512_q6[2][BT_TILE_TOKENS];
extern bt_dot_fn *const bt_dot_avx512_q8[2][BT_TILE_TOKENS];

void bt_avx512_quantise(const bt_linear_args *args, uint32_t token, const bt_tile *tile, uint32_t slot, float *row,
                        int32_t *unit_sums);
// A panel's codes as bytes; symmetric ones with their zero at `zero`.
void bt_avx512_unpack_around(const uint8_t *codes, bt_format format, uint32_t units, int zero, uint8_t *out);
void bt_avx512_norm(const bt_linear_args *args, uint32_t token, float *row);
void bt_avx512_float_dot(const bt_float_dot_args *args);
void bt_avx512_finish(const bt_finish_args *args);

void bt_avx2_quantise(const bt_linear_args *args, uint32_t token, const bt_tile *tile, uint32_t slot, float *row,
                      int32_t *unit_sums);
void bt_avx2_norm(const bt_linear_args *args, uint32_t token, float *row);
void bt_avx2_float_dot(const bt_float_dot_args *args);
void bt_avx2_finish(const bt_finish_args *args);
