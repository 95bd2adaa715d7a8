// The tile instructions that we use, each under a name; with BT_AMX_EMULATE plain C in their place, so that a machine
// without AMX tests everything but the instructions themselves (tests/kernels/test_amx.c compiles linear_amx.c that way).
//
// Tiles 0 and 1 are results [tokens][16] int32; 2, 4 and 6 activations [tokens][depth] int8; 3, 5 and 7 codes
// [depth / 4][16][4] int8.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

// What ldtilecfg reads: 64 bytes.
typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} bt_amx_config;

_Static_assert(sizeof(bt_amx_config) == 64, "the hardware reads 64 bytes");

static inline bt_amx_config
bt_amx_shapes(uint32_t tokens, uint32_t depth)
{
    bt_amx_config c = {.palette = 1};

    for (int i = 0; i < 8; i++) {
        bool is_codes = i >= 2 && i % 2 == 1;

        c.rows[i] = (uint8_t)(is_codes ? depth / 4 : tokens);
        c.row_bytes[i] = (uint16_t)(i < 2 || is_codes ? 64 : depth);
    }
    return c;
}

#ifdef BT_AMX_EMULATE

static _Thread_local bt_amx_config emulated_config;
static _Thread_local uint8_t emulated_tiles[8][16][64];

static inline void
bt_amx_configure(const bt_amx_config *config)
{
    emulated_config = *config;
    memset(emulated_tiles, 0, sizeof emulated_tiles);
}

static inline void
bt_amx_release(void)
{
    memset(&emulated_config, 0, sizeof emulated_config);
}

static inline void
emulate_zero(int tile)
{
    memset(emulated_tiles[tile], 0, sizeof emulated_tiles[tile]);
}

static inline void
emulate_load(int tile, const void *from, size_t stride)
{
    emulate_zero(tile);
    for (int i = 0; i < emulated_config.rows[tile]; i++) {
        memcpy(emulated_tiles[tile][i], (const uint8_t *)from + i * stride, emulated_config.row_bytes[tile]);
    }
}

static inline void
emulate_store(int tile, void *to, size_t stride)
{
    for (int i = 0; i < emulated_config.rows[tile]; i++) {
        memcpy((uint8_t *)to + i * stride, emulated_tiles[tile][i], emulated_config.row_bytes[tile]);
    }
}

// c[m][n] += Σ signed a[m][k] · b[k / 4][4 n + k % 4]
static inline void
emulate_dot(int c, int a, int b)
{
    for (int m = 0; m < emulated_config.rows[c]; m++) {
        for (int n = 0; n < emulated_config.row_bytes[c] / 4; n++) {
            int32_t sum;

            memcpy(&sum, &emulated_tiles[c][m][4 * n], 4);
            for (int k = 0; k < emulated_config.row_bytes[a]; k++) {
                sum += (int8_t)emulated_tiles[a][m][k] * (int8_t)emulated_tiles[b][k / 4][4 * n + k % 4];
            }
            memcpy(&emulated_tiles[c][m][4 * n], &sum, 4);
        }
    }
}

#define BT_AMX_ZERO(tile) emulate_zero(tile)
#define BT_AMX_LOAD(tile, from, stride) emulate_load(tile, from, stride)
#define BT_AMX_STORE(tile, to, stride) emulate_store(tile, to, stride)
#define BT_AMX_DOT(c, a, b) emulate_dot(c, a, b)

#else

#include <immintrin.h>

// gcc 12's intrinsic claims to read 8 of the 64 bytes, and what fills the rest is optimised away: so by hand.
static inline void
bt_amx_configure(const bt_amx_config *config)
{
    __asm__ volatile("ldtilecfg %0" : : "m"(*config));
}

static inline void
bt_amx_release(void)
{
    _tile_release();
}

#define BT_AMX_ZERO(tile) _tile_zero(tile)
#define BT_AMX_LOAD(tile, from, stride) _tile_loadd(tile, from, stride)
#define BT_AMX_STORE(tile, to, stride) _tile_stored(tile, to, stride)
#define BT_AMX_DOT(c, a, b) _tile_dpbssd(c, a, b)

#endif
