#include "common/quant/format.h"

#include <stdio.h>

const char *
bt_format_name(bt_format format, char out[24])
{
    static const char *const floats[] = {"f32", "f16", "bf16"};
    const char *offset = format.asymmetric ? "a" : "";

    if (format.kind != BT_WEIGHT_INT) {
        snprintf(out, 24, "%s", format.kind < BT_WEIGHT_INT ? floats[format.kind] : "unknown");
    } else if (format.block != BT_BLOCK_ROW) {
        snprintf(out, 24, "q%u%s_%u", format.bits, offset, format.block);
    } else if (format.act_block == BT_BLOCK_ROW) {
        snprintf(out, 24, "w%u", format.bits);
    } else {
        snprintf(out, 24, "w%u_g%u", format.bits, format.act_block);
    }
    return out;
}

static bool
is_block(unsigned block)
{
    return block == 32 || block == 64 || block == 128;
}

bool
bt_format_valid(bt_format format)
{
    bool width = (format.bits >= 2 && format.bits <= 6) || format.bits == 8;

    if (format.kind != BT_WEIGHT_INT) {
        return format.kind < BT_WEIGHT_INT;
    }
    if (format.block == BT_BLOCK_ROW) {
        return format.bits == 8 && !format.asymmetric &&
               (format.act_block == BT_BLOCK_ROW || is_block(format.act_block));
    }
    if (!width || (format.asymmetric && format.bits == 8) || !is_block(format.act_block)) {
        return false;
    }
    // An activation block covers whole weight blocks; 16-wide ones come from imports and take 32.
    return (format.block == 16 || is_block(format.block)) && format.act_block % format.block == 0;
}

double
bt_format_bits(bt_format format)
{
    if (format.kind != BT_WEIGHT_INT) {
        return format.kind == BT_WEIGHT_F32 ? 32 : 16;
    }
    if (format.block == BT_BLOCK_ROW) {
        return format.bits; // one scale a row is lost in the rounding
    }
    return format.bits + (format.asymmetric ? 32.0 : 16.0) / format.block;
}
