// What is told of an engine before it is opened is what it then takes.
#include "tests/support/play.h"
#include "tests/support/test.h"
#include "tests/support/tiny_gguf.h"

#include "common/base/log.h"
#include "common/engine/state.h"
#include "common/model/file.h"
#include "common/model/move.h"
#include "common/model/outline.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static char path[64];

static void
setup(void)
{
    bt_log_set_level(BT_LOG_ERROR);
    snprintf(path, sizeof path, "/tmp/bt-test-outlook-%d.gguf", (int)getpid());
    bt_test_write_tiny_gguf_as(path, BT_TINY_Q8_0);
}

static void
teardown(void)
{
    unlink(path);
}

static bt_engine_options
options_of(bt_load_weights weights)
{
    return (bt_engine_options){
        .model = {.path = path, .weights = weights, .equalise = true},
        .device = {.threads = 2},
        .max_sequences = 4,
        .chunk_tokens = 64,
    };
}

START_TEST(an_engine_takes_what_was_foreseen)
{
    bt_engine_options options = options_of((bt_load_weights)_i);
    bt_engine_outlook outlook;
    bt_engine *engine = bt_play_open(&options);
    const bt_engine_plan *taken = &engine->plan, *told = &outlook.plan;

    ck_assert(bt_engine_foresee(&outlook, &options, bt_engine_plan_available(), NULL) == BT_OK);
    ck_assert_uint_eq(told->total, taken->total);
    ck_assert_uint_eq(told->blocks, bt_engine_kv_blocks(engine));
    ck_assert_uint_eq(told->kv, (size_t)bt_engine_kv_blocks(engine) * engine->layout.block_bytes);
    ck_assert_uint_eq(told->weights - outlook.outliers, engine->model->weight_bytes);
    ck_assert_uint_eq(told->scratch + told->logits, bt_device_scratch_bytes(engine->device) +
                                                        engine->scratch.device_bytes + engine->scratch.host_bytes);
    ck_assert_uint_eq(outlook.options.context, bt_engine_context(engine));
    bt_engine_close(engine);
}
END_TEST

// Another device's memory, played by the CPU's: the walk and the count are the same for all.
START_TEST(a_moved_model_takes_what_was_foreseen)
{
    bt_engine_options options = options_of((bt_load_weights)_i);
    bt_engine *engine = bt_play_open(&options);
    bt_device *there;
    bt_source source = {0};
    bt_model outline = {0};
    bt_plan plan = {0};
    bt_move_sizes told;
    bt_arena arena;
    bt_why why;

    bt_arena_init(&arena, 1 << 20);
    ck_assert(bt_source_open(&source, path, &why) == BT_OK);
    ck_assert(bt_model_outline(&plan, &outline, &source, options.model.weights, 0, &arena, &why) == BT_OK);
    told = bt_model_move_sizes(&plan, &outline, &options.model, bt_device_ops(engine->host));
    ck_assert(bt_device_open(&there, &options.device, &why) == BT_OK);
    ck_assert_msg(bt_model_move(engine->model, engine->host, there, &why) == BT_OK, "%s", why.text);
    if (options.model.weights == BT_LOAD_Q4) {
        ck_assert_uint_gt(told.outliers, 0);
        ck_assert_uint_le(engine->model->weight_bytes, told.weights + told.vectors + told.outliers);
        ck_assert_uint_gt(engine->model->weight_bytes, told.weights + told.vectors);
    } else {
        ck_assert_uint_eq(engine->model->weight_bytes, told.weights + told.vectors);
    }
    bt_plan_close(&plan);
    bt_arena_fini(&arena);
    bt_source_close(&source);
    bt_engine_close(engine);
    bt_device_close(there);
}
END_TEST

START_TEST(formats_and_vectors_are_the_weights)
{
    bt_engine_options options = options_of(BT_LOAD_Q4);
    bt_engine_outlook o;
    size_t sum;

    ck_assert(bt_engine_foresee(&o, &options, (size_t)1 << 30, NULL) == BT_OK);
    ck_assert_uint_eq(o.format_count, 2); // q4, and the embedding at 8 bits
    ck_assert_uint_eq(o.formats[0].count + o.formats[1].count, 15);
    sum = o.formats[0].bytes + o.formats[1].bytes + o.vectors + o.outliers;
    ck_assert_uint_le(sum > o.plan.weights ? sum - o.plan.weights : o.plan.weights - sum, 40 * 256); // boundaries
    ck_assert_uint_gt(o.loading, 0); // a model in the file's formats comes first
}
END_TEST

START_TEST(what_does_not_fit_is_told_before_anything_is_loaded)
{
    bt_engine_options options = options_of(BT_LOAD_KEEP);
    bt_engine_outlook o;
    bt_engine *engine;
    bt_why why, open_why;

    ck_assert(bt_engine_foresee(&o, &options, 100 << 10, &why) == BT_ERR_NO_MEMORY);
    ck_assert_uint_gt(o.plan.total, o.plan.limit);
    ck_assert_msg(strstr(why.text, "is over the limit") != NULL, "%s", why.text);
    options.memory_max = 100 << 10;
    ck_assert(bt_engine_open(&engine, &options, &open_why) == BT_ERR_NO_MEMORY);
    ck_assert_msg(strstr(open_why.text, "is over the limit of 0.1 MiB") != NULL, "%s", open_why.text);
}
END_TEST

START_TEST(a_pool_of_whole_pages_stays_within_the_limit)
{
    bt_engine_plan plan = {.weights = 10 << 20,
                           .scratch = 10 << 20,
                           .logits = 1 << 20,
                           .graphs = 3 << 20,
                           .block_bytes = 300 << 10,
                           .granule = 2 << 20,
                           .blocks_wanted = 1000,
                           .blocks_least = 1,
                           .available = 100u << 20,
                           .spare = 1 << 20};

    ck_assert(bt_engine_plan_make(&plan, NULL) == BT_OK);
    ck_assert_uint_eq(plan.kv % plan.granule, 0);
    ck_assert_uint_le(plan.total, plan.limit);
    ck_assert_uint_le(plan.blocks * plan.block_bytes, plan.kv);
    ck_assert_uint_gt((plan.blocks + 1) * plan.block_bytes, plan.limit - (24u << 20) - plan.granule);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("outlook");
    TCase *all = tcase_create("all");

    tcase_add_checked_fixture(all, setup, teardown);
    tcase_add_loop_test(all, an_engine_takes_what_was_foreseen, BT_LOAD_KEEP, BT_LOAD_EXACT + 1);
    tcase_add_loop_test(all, a_moved_model_takes_what_was_foreseen, BT_LOAD_KEEP, BT_LOAD_Q4 + 1);
    tcase_add_test(all, formats_and_vectors_are_the_weights);
    tcase_add_test(all, what_does_not_fit_is_told_before_anything_is_loaded);
    tcase_add_test(all, a_pool_of_whole_pages_stays_within_the_limit);
    suite_add_tcase(suite, all);
    return bt_test_run(suite);
}
