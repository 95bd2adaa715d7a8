#include "tests/support/test.h"

#include "common/base/rng.h"
#include "common/quant/ggml.h"
#include "common/tensor/dtype.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COLS 256
#define ROWS 24

static const uint32_t readable[] = {BT_GGML_F32,  BT_GGML_F16,  BT_GGML_BF16, BT_GGML_Q4_0,   BT_GGML_Q4_1,
                                    BT_GGML_Q5_0, BT_GGML_Q5_1, BT_GGML_Q8_0, BT_GGML_Q2_K,   BT_GGML_Q3_K,
                                    BT_GGML_Q4_K, BT_GGML_Q5_K, BT_GGML_Q6_K, BT_GGML_IQ4_NL, BT_GGML_IQ4_XS};
#define READABLE (sizeof readable / sizeof *readable)

// What a row of codes stands for.
static void
code_values(bt_format format, const uint8_t *codes, const uint16_t *scales, const uint16_t *minima, float *out)
{
    for (uint32_t i = 0; i < COLS; i++) {
        float scale = bt_f16_to_f32(scales[i / 32]);

        out[i] = format.asymmetric ? scale * (float)codes[i] + bt_f16_to_f32(minima[i / 32])
                                   : scale * (float)(codes[i] - (1 << (format.bits - 1)));
    }
}

// |through codes − values| / |values| over some rows of `type`.
static double
rms_added(uint32_t type, const uint8_t *packed, uint32_t rows)
{
    double error = 0, size = 0;

    for (uint32_t row = 0; row < rows; row++) {
        const uint8_t *at = packed + row * bt_ggml_row_bytes(type, COLS);
        float values[COLS], through[COLS];
        uint8_t codes[COLS];
        uint16_t scales[8], minima[8];

        bt_ggml_dequantise(type, at, COLS, values);
        bt_ggml_codes(type, at, COLS, codes, scales, minima);
        code_values(bt_ggml_format(type, NULL), codes, scales, minima, through);
        for (uint32_t i = 0; i < COLS; i++) {
            error += pow((double)through[i] - (double)values[i], 2);
            size += pow((double)values[i], 2);
        }
    }
    return sqrt(error / size);
}

static bt_ggml_loss
loss_of(uint32_t type)
{
    bt_ggml_loss loss;

    bt_ggml_format(type, &loss);
    return loss;
}

// What bt_ggml_loss promises, as a bound on rms_added: fp16 keeps 11 bits, of two terms that may each be larger than their
// sum; two 16-wide blocks share a grid of 8 bits.
static double
bound_of(uint32_t type)
{
    static const double bounds[] = {
        [BT_GGML_LOSSLESS] = 0, [BT_GGML_SCALES] = 3 * 0x1p-11, [BT_GGML_REQUANTISED] = 8e-3};

    return bounds[loss_of(type)];
}

static bool
is_block_type(uint32_t type)
{
    return bt_ggml_block_cols(type) > 1;
}

// Rows of random codes with sensible scales: the fp16 fields of every type, at their offsets.
static void
random_row(uint32_t type, bt_rng *rng, uint8_t *row)
{
    static const uint8_t scale_at[BT_GGML_TYPE_COUNT] = {
        [BT_GGML_Q2_K] = 80, [BT_GGML_Q3_K] = 108, [BT_GGML_Q6_K] = 208};
    static const uint8_t second_at[BT_GGML_TYPE_COUNT] = {
        [BT_GGML_Q4_1] = 2, [BT_GGML_Q5_1] = 2, [BT_GGML_Q4_K] = 2, [BT_GGML_Q5_K] = 2, [BT_GGML_Q2_K] = 82};
    uint32_t bytes = bt_ggml_block_bytes(type);

    for (uint32_t i = 0; i < bt_ggml_row_bytes(type, COLS); i++) {
        row[i] = (uint8_t)bt_rng_next(rng);
    }
    for (uint32_t at = 0; at < bt_ggml_row_bytes(type, COLS); at += bytes) {
        uint16_t scale = bt_f32_to_f16(0.01f + 0.0001f * (float)(bt_rng_next(rng) % 100));

        memcpy(row + at + scale_at[type], &scale, 2);
        if (second_at[type] != 0) {
            memcpy(row + at + second_at[type], &scale, 2);
        }
    }
}

START_TEST(conversion_adds_no_more_than_its_kind_of_loss)
{
    uint8_t rows[ROWS * 512];
    bt_rng rng = {7};

    for (size_t i = 0; i < READABLE; i++) {
        uint32_t type = readable[i];
        double added;

        if (!is_block_type(type)) {
            continue;
        }
        for (size_t row = 0; row < ROWS; row++) {
            random_row(type, &rng, rows + row * bt_ggml_row_bytes(type, COLS));
        }
        added = rms_added(type, rows, ROWS);
        printf("%s random codes: %.2e\n", bt_ggml_name(type), added);
        ck_assert_msg(added <= bound_of(type), "%s: %g added", bt_ggml_name(type), added);
    }
}
END_TEST

START_TEST(a_half_filled_last_unit_is_padded_with_zeros)
{
    uint8_t row[20] = {0x00, 0x3c, 0x00, 0x40, 0xf0}, codes[64];
    uint16_t scales[2], minima[2];

    memset(codes, 99, sizeof codes);
    bt_ggml_codes(BT_GGML_Q4_1, row, 32, codes, scales, minima);
    ck_assert_int_eq(codes[0], 0);
    ck_assert_int_eq(codes[16], 15);
    ck_assert_int_eq(scales[0], 0x3c00);
    ck_assert_int_eq(minima[0], 0x4000);
    ck_assert(scales[1] == 0 && minima[1] == 0 && codes[32] == 0 && codes[63] == 0);
    bt_ggml_codes(BT_GGML_Q4_0, row, 32, codes, scales, NULL);
    ck_assert(scales[1] == 0 && codes[32] == 8 && codes[63] == 8);
}
END_TEST

START_TEST(types_we_only_know_by_size_are_not_readable)
{
    ck_assert(!bt_ggml_readable(16) && !bt_ggml_readable(24) && !bt_ggml_readable(35) && !bt_ggml_readable(39));
    ck_assert(!bt_ggml_readable(4) && !bt_ggml_readable(UINT32_MAX));
}
END_TEST

START_TEST(broken_scales_do_not_break_the_reader)
{
    uint8_t row[512], codes[COLS];
    uint16_t scales[8], minima[8];
    float values[COLS];

    memset(row, 0xff, sizeof row); // NaN in every fp16 field
    for (size_t i = 0; i < READABLE; i++) {
        bt_ggml_dequantise(readable[i], row, 64 < bt_ggml_block_cols(readable[i]) ? COLS : 64, values);
        if (is_block_type(readable[i])) {
            bt_ggml_codes(readable[i], row, COLS, codes, scales, minima);
        }
    }
}
END_TEST

static void
check_vectors(const char *folder, uint32_t type)
{
    char path[200], name[16];
    size_t packed_bytes, value_bytes;
    float values[COLS];
    char *packed, *expected;

    for (size_t i = 0; i <= strlen(bt_ggml_name(type)); i++) {
        char c = bt_ggml_name(type)[i];
        name[i] = c >= 'A' && c <= 'Z' && c != 'K' ? (char)(c + 32) : c;
    }
    snprintf(path, sizeof path, "%s/%s.q", folder, name);
    packed = bt_test_read(path, &packed_bytes);
    snprintf(path, sizeof path, "%s/%s.f32", folder, name);
    expected = bt_test_read(path, &value_bytes);
    ck_assert_uint_eq(packed_bytes, ROWS * bt_ggml_row_bytes(type, COLS));
    ck_assert_uint_eq(value_bytes, ROWS * COLS * 4);
    for (uint32_t row = 0; row < ROWS; row++) {
        bt_ggml_dequantise(type, packed + row * bt_ggml_row_bytes(type, COLS), COLS, values);
        ck_assert_msg(memcmp(values, expected + row * sizeof values, sizeof values) == 0, "%s row %u", name, row);
    }
    if (is_block_type(type)) {
        double added = rms_added(type, (const uint8_t *)packed, 20); // rows 0–19 are real weights

        printf("%s real weights: %.2e\n", name, added);
        ck_assert_msg(added <= bound_of(type), "%s: %g added", name, added);
    }
    free(packed);
    free(expected);
}

START_TEST(values_are_ggmls_bit_for_bit)
{
    const char *folder;

    if (bt_test_data() == NULL) {
        bt_test_skip("quant/ggml_quant_vectors");
        return;
    }
    folder = bt_test_unpack(bt_test_path("quant/ggml_quant_vectors.tar.gz"));
    for (size_t i = 1; i < READABLE; i++) { // there is no f32.q
        check_vectors(folder, readable[i]);
    }
    bt_test_remove(folder);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("ggml");
    TCase *tests = tcase_create("ggml");

    tcase_add_test(tests, conversion_adds_no_more_than_its_kind_of_loss);
    tcase_add_test(tests, a_half_filled_last_unit_is_padded_with_zeros);
    tcase_add_test(tests, types_we_only_know_by_size_are_not_readable);
    tcase_add_test(tests, broken_scales_do_not_break_the_reader);
    tcase_add_test(tests, values_are_ggmls_bit_for_bit);
    suite_add_tcase(suite, tests);
    return bt_test_run(suite);
}
