#include "common/quant/ggml.h"

// Every type that a file may name, those that we only skip over included: a reader must know their size.
static const struct {
    const char *name;
    uint16_t cols, bytes;
} types[BT_GGML_TYPE_COUNT] = {
    [BT_GGML_F32] = {"F32", 1, 4},
    [BT_GGML_F16] = {"F16", 1, 2},
    [BT_GGML_Q4_0] = {"Q4_0", 32, 18},
    [BT_GGML_Q4_1] = {"Q4_1", 32, 20},
    [BT_GGML_Q5_0] = {"Q5_0", 32, 22},
    [BT_GGML_Q5_1] = {"Q5_1", 32, 24},
    [BT_GGML_Q8_0] = {"Q8_0", 32, 34},
    [9] = {"Q8_1", 32, 36},
    [BT_GGML_Q2_K] = {"Q2_K", 256, 84},
    [BT_GGML_Q3_K] = {"Q3_K", 256, 110},
    [BT_GGML_Q4_K] = {"Q4_K", 256, 144},
    [BT_GGML_Q5_K] = {"Q5_K", 256, 176},
    [BT_GGML_Q6_K] = {"Q6_K", 256, 210},
    [15] = {"Q8_K", 256, 292},
    [16] = {"IQ2_XXS", 256, 66},
    [17] = {"IQ2_XS", 256, 74},
    [18] = {"IQ3_XXS", 256, 98},
    [19] = {"IQ1_S", 256, 50},
    [BT_GGML_IQ4_NL] = {"IQ4_NL", 32, 18},
    [21] = {"IQ3_S", 256, 110},
    [22] = {"IQ2_S", 256, 82},
    [BT_GGML_IQ4_XS] = {"IQ4_XS", 256, 136},
    [24] = {"I8", 1, 1},
    [25] = {"I16", 1, 2},
    [26] = {"I32", 1, 4},
    [27] = {"I64", 1, 8},
    [28] = {"F64", 1, 8},
    [29] = {"IQ1_M", 256, 56},
    [BT_GGML_BF16] = {"BF16", 1, 2},
    [34] = {"TQ1_0", 256, 54},
    [35] = {"TQ2_0", 256, 66},
    [39] = {"MXFP4", 32, 17},
    [40] = {"NVFP4", 64, 36},
    [41] = {"Q1_0", 128, 18},
    [42] = {"Q2_0", 64, 18},
};

const char *
bt_ggml_name(uint32_t type)
{
    return type < BT_GGML_TYPE_COUNT && types[type].name != NULL ? types[type].name : "unknown";
}

uint32_t
bt_ggml_block_cols(uint32_t type)
{
    return type < BT_GGML_TYPE_COUNT ? types[type].cols : 0;
}

uint32_t
bt_ggml_block_bytes(uint32_t type)
{
    return type < BT_GGML_TYPE_COUNT ? types[type].bytes : 0;
}

size_t
bt_ggml_row_bytes(uint32_t type, uint64_t cols)
{
    uint32_t block = bt_ggml_block_cols(type);

    return block != 0 ? (size_t)(cols / block * bt_ggml_block_bytes(type)) : 0;
}
