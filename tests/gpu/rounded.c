#include "tests/gpu/rounded.h"

#include "common/engine/state.h"
#include "common/tensor/dtype.h"
#include "kernels/cpu/ref/math.h"
#include "kernels/cpu/ref/quantise.h"
#include "tests/support/test.h"

#include <math.h>
#include <stdlib.h>

void
bt_round_row(float *x, uint32_t cols, uint8_t kind)
{
    float power = 1;

    if (kind == BT_WEIGHT_F16) {
        uint32_t exponent = bt_ref_amax_bits(x, cols) >> 23;

        exponent = exponent < 15 ? 15 : exponent > 254 ? 254 : exponent;
        power = ldexpf(1, 141 - (int)exponent);
    }
    for (uint32_t k = 0; k < cols; k++) {
        x[k] = kind == BT_WEIGHT_F16 ? bt_f16_to_f32(bt_f32_to_f16(x[k] * power)) / power
                                     : bt_bf16_to_f32(bt_f32_to_bf16(x[k]));
    }
}

static const bt_ops *plain;
static bt_ops rounding;

static bool
is_rounded(const bt_linear_args *a)
{
    uint8_t kind = a->weights[0]->format.kind;

    for (uint32_t i = 1; i < a->weight_count; i++) {
        if (a->weights[i]->format.kind != kind) {
            return false;
        }
    }
    return kind == BT_WEIGHT_F16 || kind == BT_WEIGHT_BF16;
}

static bt_err
round_and_multiply(bt_device *device, const bt_linear_args *a)
{
    uint32_t cols = a->weights[0]->cols, stride = bt_cols_padded(cols);
    bt_linear_args rounded = *a;
    float *x;
    bt_err err;

    if (!is_rounded(a)) {
        return plain->linear(device, a);
    }
    ck_assert_ptr_nonnull(x = malloc((size_t)(a->tokens + 1) * stride * sizeof *x));
    for (uint32_t t = 0; t < a->tokens; t++) {
        bt_ref_norm_row(a->x + t * a->x_stride, cols, a->norm, a->norm_eps, x + t * stride);
        bt_round_row(x + t * stride, cols, a->weights[0]->format.kind);
    }
    rounded.x = x, rounded.x_stride = stride, rounded.norm = NULL;
    err = plain->linear(device, &rounded);
    free(x);
    return err;
}

void
bt_round_engine(bt_engine *engine)
{
    plain = engine->forward.ops;
    rounding = *plain;
    rounding.linear = round_and_multiply;
    engine->forward.ops = &rounding;
}
