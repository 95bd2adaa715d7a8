// A linear call made up from a seed: weights of one or more formats, activations, biases, outliers, and what it says.
//
// A case owns all its arrays, exact to the byte, so that a sanitizer sees every step beyond them.
#pragma once

#include "kernels/ops.h"

#include "common/base/rng.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    bt_weight weight;
    float *bias; // NULL = none
    // What was packed:
    uint8_t *codes;
    uint16_t *scales, *minima;
    void *elements; // float formats
} linear_part;

typedef struct {
    bt_linear_args args; // y points at `y`
    linear_part parts[3];
    float *x, *norm, *y, *y_before;
    uint32_t y_rows; // columns of y
    size_t y_count;
} linear_case;

typedef struct {
    uint32_t part_count;
    bt_format formats[3];
    uint32_t rows[3];
    uint32_t cols, tokens;
    bool bias, norm, outliers;
    uint32_t outlier_every; // about one weight in so many; 0 = 50
    bt_linear_epilogue epilogue;
    float scale, softcap;
    float size; // of x; 0: 1
    bool
        integers; // float weights and x are whole numbers −8 … 8: every sum of their products is exact, whatever its order
    uint64_t seed;
} linear_shape;

void linear_case_init(linear_case *c, const linear_shape *shape, const bt_ops *ops);
void linear_case_fini(linear_case *c);
// y as it was before the first run.
void linear_case_reset(linear_case *c);

// Copies of a case's arrays in a device's own memory.
typedef struct {
    bt_device *device;
    void *memory[96];
    size_t count;
} linear_copies;

void *linear_copy(linear_copies *copies, const void *from, size_t bytes); // NULL of NULL
bt_weight linear_copy_weight(linear_copies *copies, const bt_weight *from);
void linear_copies_free(linear_copies *copies);

// The weight's value as the format defines it, in double; outliers apart.
double linear_part_value(const linear_part *part, uint32_t row, uint32_t col);

// "avx512 q4a_32 64x576 tokens 3": for messages, in a static buffer.
const char *linear_shape_name(const linear_shape *shape);

bt_device *linear_device(const char *isa, uint32_t threads, uint32_t tokens, uint32_t cols, uint32_t rows);

// The same bits, where any NaN equals any NaN. Returns the first index that differs, or `count`.
size_t first_difference(const float *a, const float *b, size_t count);
