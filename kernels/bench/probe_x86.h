// The inner loops of the probes for AVX-512 machines.
#pragma once

#include <stddef.h>
#include <stdint.h>

#define BT_PROBE_ROUNDS 1000000
#define BT_PROBE_INT8_OPS (BT_PROBE_ROUNDS * 12.0 * 64 * 2)
#define BT_PROBE_F32_OPS (BT_PROBE_ROUNDS * 12.0 * 16 * 2)

uint64_t bt_probe_read(const uint8_t *memory, size_t bytes); // multiples of 4096
uint64_t bt_probe_int8(void);
uint64_t bt_probe_f32(void);
