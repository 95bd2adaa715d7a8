// Maps of matrices in device memory for Hopper's copy engine (TMA), which moves boxes of them into shared memory.
#pragma once

#include <cuda.h>

#include <stdbool.h>
#include <stdint.h>

// Does the driver know them?
bool bt_cuda_has_boxes(void);
// A plane of `rows` rows of `width` elements at `at`, `stride` bytes from one to the next (a multiple of 16), as boxes. What lies beyond reads as
// zeros. False: not with these sizes. Only where bt_cuda_has_boxes.
bool bt_cuda_plane(CUtensorMap *map, CUtensorMapDataType type, const void *at, uint64_t width, uint64_t rows,
                   uint64_t stride, uint32_t box_width, uint32_t box_rows, CUtensorMapSwizzle swizzle);
