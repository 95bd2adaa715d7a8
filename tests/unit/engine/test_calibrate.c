#include "tests/support/test.h"

#include "common/base/log.h"
#include "common/engine/calibrate.h"
#include "common/engine/engine.h"
#include "common/model/card.h"
#include "tests/support/tiny_gguf.h"

#include <stdlib.h>
#include <unistd.h>

static char path[] = "/tmp/baton-calibrate-XXXXXX.gguf";

static bt_device *
open_device(uint32_t threads)
{
    bt_device_options options = {.kind = BT_DEVICE_CPU, .threads = threads};
    bt_device *device = NULL;

    ck_assert_int_eq(bt_device_open(&device, &options, NULL), BT_OK);
    return device;
}

static bt_model *
open_model(bt_device *device, bt_load_weights weights, const bt_calibration *calibration)
{
    bt_model_options options = {.path = path, .weights = weights, .calibration = calibration};
    bt_model *model = NULL;
    bt_why why = {""};

    ck_assert_msg(bt_model_open(&model, &options, device, &why) == BT_OK, "%s", why.text);
    return model;
}

START_TEST(figures_are_positive_and_do_not_depend_on_threads)
{
    bt_calibration first = {0}, second = {0};

    for (uint32_t threads = 1; threads <= 2; threads++) {
        bt_device *device = open_device(threads);
        bt_model *model = open_model(device, BT_LOAD_KEEP, NULL);

        ck_assert_int_eq(bt_calibrate(threads == 1 ? &first : &second, model, device, true, NULL), BT_OK);
        bt_model_close(model);
        bt_device_close(device);
    }
    for (uint32_t i = 0; i < first.layer_count; i++) {
        const bt_column_stats *a[] = {&first.layers[i].qkv, &first.layers[i].o, &first.layers[i].gate_up,
                                      &first.layers[i].down};
        const bt_column_stats *b[] = {&second.layers[i].qkv, &second.layers[i].o, &second.layers[i].gate_up,
                                      &second.layers[i].down};

        for (int s = 0; s < 4; s++) {
            for (uint32_t j = 0; j < a[s]->cols; j++) {
                ck_assert(a[s]->moment[j] > 0 && a[s]->amax[j] * a[s]->amax[j] >= a[s]->moment[j] * 0.999f);
            }
            ck_assert_mem_eq(a[s]->moment, b[s]->moment, a[s]->cols * sizeof(float));
        }
        ck_assert_mem_eq(first.layers[i].k_shift, second.layers[i].k_shift, first.pairs);
    }
    bt_calibration_close(&first);
    bt_calibration_close(&second);
}
END_TEST

// Weights of 8 bits stay near the file's own, of 4 bits further away, and neither is the file's own.
START_TEST(weights_made_at_load_are_near_the_files_own)
{
    bt_device *device = open_device(2);
    bt_model *keep = open_model(device, BT_LOAD_KEEP, NULL), *w8, *q4;
    bt_calibration calibration;
    double kl_w8 = -1, kl_q4 = -1;

    ck_assert_int_eq(bt_calibrate(&calibration, keep, device, true, NULL), BT_OK);
    w8 = open_model(device, BT_LOAD_W8, &calibration);
    q4 = open_model(device, BT_LOAD_Q4, &calibration);
    ck_assert_uint_eq(w8->layers[0].q.format.bits, 8);
    ck_assert_uint_eq(q4->layers[0].q.format.bits, 4);
    ck_assert_uint_eq(q4->layers[0].q.format.block, 128);
    ck_assert_uint_eq(q4->embed.format.bits, 8);
    ck_assert_ptr_nonnull(q4->layers[1].down.outliers.row_start);
    ck_assert_uint_gt(q4->layers[1].down.outliers.row_start[q4->layers[1].down.rows], 0);
    ck_assert_int_eq(bt_calibrate_divergence(keep, w8, device, &kl_w8, NULL), BT_OK);
    ck_assert_int_eq(bt_calibrate_divergence(keep, q4, device, &kl_q4, NULL), BT_OK);
    ck_assert_msg(kl_w8 > 0 && kl_w8 < 0.02, "w8: KL %g", kl_w8);
    // A step sixteen times as large makes errors, and KL goes with their square.
    ck_assert_msg(kl_q4 > kl_w8 && kl_q4 < 256 * kl_w8, "q4: KL %g, w8 %g", kl_q4, kl_w8);
    bt_model_close(q4);
    bt_model_close(w8);
    bt_model_close(keep);
    bt_calibration_close(&calibration);
    bt_device_close(device);
}
END_TEST

// What a node may know about the weights of others without loading them.
START_TEST(models_that_read_each_others_caches_are_of_one_family)
{
    static const bt_load_weights ways[] = {BT_LOAD_KEEP, BT_LOAD_W8, BT_LOAD_Q4};
    bt_device *device = open_device(2);
    bt_model *model[3] = {open_model(device, BT_LOAD_KEEP, NULL)};
    bt_calibration calibration;

    ck_assert_int_eq(bt_calibrate(&calibration, model[0], device, true, NULL), BT_OK);
    for (int i = 1; i < 3; i++) {
        model[i] = open_model(device, ways[i], &calibration);
        ck_assert_uint_ne(model[i]->digest, model[i - 1]->digest);
    }
    ck_assert_uint_eq(model[1]->family, model[2]->family);
    ck_assert_uint_ne(model[0]->family, model[1]->family); // only made weights divide V
    for (int i = 0; i < 3; i++) {
        bt_model_options options[] = {{.weights = ways[i]}, {.weights = ways[i], .equalise = true}};
        bt_model_names names[2];

        ck_assert_int_eq(bt_model_foresee(path, options, names, 2, NULL), BT_OK);
        ck_assert_uint_eq(names[0].digest, model[i]->digest);
        ck_assert_uint_eq(names[0].family, model[i]->family);
        ck_assert_uint_ne(names[0].family, names[1].family);
        bt_model_close(model[i]);
    }
    bt_calibration_close(&calibration);
    bt_device_close(device);
}
END_TEST

// What only the equaliser asks for is less work, and tells it the same.
START_TEST(shifts_are_the_same_with_and_without_column_figures)
{
    bt_device *device = open_device(1);
    bt_model *model = open_model(device, BT_LOAD_KEEP, NULL);
    bt_calibration with, without;

    ck_assert_int_eq(bt_calibrate(&with, model, device, true, NULL), BT_OK);
    ck_assert_int_eq(bt_calibrate(&without, model, device, false, NULL), BT_OK);
    for (uint32_t i = 0; i < with.layer_count; i++) {
        ck_assert_mem_eq(with.layers[i].k_shift, without.layers[i].k_shift, with.pairs);
        ck_assert(without.layers[i].qkv.amax[0] == 0);
    }
    bt_calibration_close(&with);
    bt_calibration_close(&without);
    bt_model_close(model);
    bt_device_close(device);
}
END_TEST

START_TEST(weights_are_not_made_without_a_calibration)
{
    bt_device *device = open_device(1);
    bt_model_options options = {.path = path, .weights = BT_LOAD_W8};
    bt_model *model = NULL;

    ck_assert_int_eq(bt_model_open(&model, &options, device, NULL), BT_ERR_INVALID);
    bt_device_close(device);
}
END_TEST

// One pair of a key is 32 times as large as the others and its query as small: the shift takes the difference out.
START_TEST(a_large_pair_is_divided_and_its_query_multiplied)
{
    bt_layer_config layer = {0};
    bt_model_config config = {
        .layers = 1, .hidden = 32, .heads = 2, .kv_heads = 1, .head_dim = 16, .ffn = 32, .layer = &layer};
    bt_calibration c;

    ck_assert_int_eq(bt_calibration_open(&c, &config), BT_OK);
    for (uint32_t p = 0; p < c.pairs; p++) {
        float large = p == 3 ? 32 : 1;

        c.layers[0].k.amax[p] = large;
        c.layers[0].k.moment[p] = large * large / 4;
        c.layers[0].q.amax[p] = 1 / large;
        c.layers[0].q.moment[p] = 1 / (4 * large * large);
    }
    bt_equalise(&c, &config);
    for (uint32_t p = 0; p < c.pairs; p++) { // 2^5 evens it out; a step more or less is as good within rounding
        int shift = c.layers[0].k_shift[p] - c.layers[0].k_shift[0];

        ck_assert_msg(p == 3 ? shift >= 4 && shift <= 6 : shift == 0, "pair %u: %d", p, shift);
    }
    bt_calibration_close(&c);
}
END_TEST

// With F32 KV the shift is exact: not one bit of the logits moves.
START_TEST(the_equaliser_changes_nothing_where_nothing_is_rounded)
{
    float kept[BT_TINY_VOCAB];

    for (int equalise = 0; equalise <= 1; equalise++) {
        const int32_t ids[] = {1, 20, 40, 60, 80};
        const uint32_t block = 0;
        bt_engine_options options = {
            .model = {.path = path, .weights = BT_LOAD_KEEP, .equalise = equalise != 0},
            .device = {.kind = BT_DEVICE_CPU, .threads = 1},
            .kv_format = BT_KV_F32,
            .kv_blocks = 16,
            .max_sequences = 1,
            .chunk_tokens = 64,
        };
        bt_batch_item item = {.ids = ids, .count = 5, .blocks = &block, .want = BT_LOGITS_LAST, .next_id = -1};
        bt_token_result drawn;
        bt_engine *engine = NULL;
        uint32_t rows;
        bt_why why = {""};

        ck_assert_msg(bt_engine_open(&engine, &options, &why) == BT_OK, "%s", why.text);
        ck_assert_int_eq(bt_engine_step(engine, &item, 1, &(bt_step_result){.drawn = &drawn}), BT_OK);
        if (equalise == 0) {
            memcpy(kept, bt_engine_logits(engine, &rows), sizeof kept);
        } else {
            ck_assert_mem_eq(kept, bt_engine_logits(engine, &rows), sizeof kept);
            ck_assert_ptr_nonnull(bt_engine_model(engine)->layers[0].k_shift);
        }
        bt_engine_close(engine);
    }
}
END_TEST

static void
write_model(void)
{
    int fd = mkstemps(path, 5);

    ck_assert_int_ge(fd, 0);
    close(fd);
    bt_test_write_tiny_gguf(path);
    bt_log_set_level(BT_LOG_ERROR);
}

static void
remove_model(void)
{
    unlink(path);
}

int
main(void)
{
    Suite *suite = suite_create("calibrate");
    TCase *all = tcase_create("all");

    tcase_set_timeout(all, 120);
    tcase_add_unchecked_fixture(all, write_model, remove_model);
    tcase_add_test(all, figures_are_positive_and_do_not_depend_on_threads);
    tcase_add_test(all, weights_made_at_load_are_near_the_files_own);
    tcase_add_test(all, models_that_read_each_others_caches_are_of_one_family);
    tcase_add_test(all, shifts_are_the_same_with_and_without_column_figures);
    tcase_add_test(all, weights_are_not_made_without_a_calibration);
    tcase_add_test(all, a_large_pair_is_divided_and_its_query_multiplied);
    tcase_add_test(all, the_equaliser_changes_nothing_where_nothing_is_rounded);
    suite_add_tcase(suite, all);
    return bt_test_run(suite);
}
