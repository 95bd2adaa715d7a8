// baton synth: files that load and answer, and are the same whoever writes them.
#include "common/base/log.h"
#include "common/engine/engine.h"
#include "tests/support/test.h"
#include "tools/synth/synth.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[] = "/tmp/baton-test-synth-XXXXXX";
static bt_why why;

static const char *
path_of(const char *name)
{
    static char paths[4][80];
    static int next;
    char *path = paths[next++ % 4];

    snprintf(path, sizeof *paths, "%s/%s", folder, name);
    return path;
}

static uint64_t
write_model(const bt_synth_options *options, const char *path, uint32_t threads)
{
    bt_device_options o = {.kind = BT_DEVICE_CPU, .threads = threads};
    uint64_t bytes = 0;
    bt_device *device;

    ck_assert_msg(bt_device_open(&device, &o, &why) == BT_OK, "%s", why.text);
    ck_assert_msg(bt_synth_write(options, path, device, &bytes, &why) == BT_OK, "%s", why.text);
    bt_device_close(device);
    return bytes;
}

// The first tokens of an answer, and that its logits are numbers of a sensible size.
static void
answer(const char *path, bt_load_weights weights, int32_t ids[8])
{
    bt_engine_options o = {.model = {.path = path, .weights = weights},
                           .device = {.threads = 1, .isa = "auto"},
                           .max_sequences = 1,
                           .chunk_tokens = 64,
                           .context = 64};
    const uint32_t blocks[] = {0, 1};
    const int32_t prompt[] = {1, 7, 300, 901};
    bt_engine *engine;
    int32_t next = 0;

    ck_assert_msg(bt_engine_open(&engine, &o, &why) == BT_OK, "%s", why.text);
    for (uint32_t i = 0; i < 8; i++) {
        bt_token_result drawn;
        bt_batch_item item = {.ids = i == 0 ? prompt : &next,
                              .count = i == 0 ? 4 : 1,
                              .position = i == 0 ? 0 : 3 + i,
                              .blocks = blocks,
                              .want = BT_LOGITS_LAST,
                              .next_id = -1};
        const float *logits;
        float most = 0;
        uint32_t rows;

        ck_assert_int_eq(bt_engine_step(engine, &item, 1, &(bt_step_result){.drawn = &drawn}), BT_OK);
        logits = bt_engine_logits(engine, &rows);
        for (uint32_t j = 0; j < bt_engine_model(engine)->config.vocab; j++) {
            ck_assert(isfinite(logits[j]));
            most = fabsf(logits[j]) > most ? fabsf(logits[j]) : most;
        }
        ck_assert(most > 0.5f && most < 50);
        ids[i] = next = drawn.id;
    }
    bt_engine_close(engine);
}

static bool
same_files(const char *a, const char *b)
{
    size_t a_bytes, b_bytes;
    char *x = bt_test_read(a, &a_bytes), *y = bt_test_read(b, &b_bytes);
    bool same = a_bytes == b_bytes && memcmp(x, y, a_bytes) == 0;

    free(x);
    free(y);
    return same;
}

START_TEST(every_type_loads_and_answers_with_finite_logits)
{
    static const uint32_t types[] = {BT_GGML_F32, BT_GGML_F16, BT_GGML_BF16, BT_GGML_Q8_0, BT_GGML_Q4_0};
    bt_synth_options options = {.shape = bt_synth_shape_find("tiny"), .type = types[_i], .seed = 1};
    const char *path = path_of("types.gguf");
    struct stat written;
    uint64_t bytes = write_model(&options, path, 2);
    int32_t ids[8];

    ck_assert_int_eq(stat(path, &written), 0);
    ck_assert_uint_eq(bytes, (uint64_t)written.st_size);
    answer(path, BT_LOAD_KEEP, ids);
}
END_TEST

START_TEST(weights_made_at_load_work_on_a_synthetic_model)
{
    bt_synth_options options = {.shape = bt_synth_shape_find("tiny"), .type = BT_GGML_Q8_0, .seed = 1};
    int32_t ids[8];

    write_model(&options, path_of("made.gguf"), 1);
    answer(path_of("made.gguf"), BT_LOAD_Q4, ids);
    answer(path_of("made.gguf"), BT_LOAD_W8, ids);
}
END_TEST

START_TEST(bytes_depend_on_the_seed_and_not_on_the_threads)
{
    bt_synth_options options = {.shape = bt_synth_shape_find("tiny"), .type = BT_GGML_Q4_0, .seed = 7};

    write_model(&options, path_of("one.gguf"), 1);
    write_model(&options, path_of("three.gguf"), 3);
    options.seed = 8;
    write_model(&options, path_of("other.gguf"), 1);
    ck_assert(same_files(path_of("one.gguf"), path_of("three.gguf")));
    ck_assert(!same_files(path_of("one.gguf"), path_of("other.gguf")));
}
END_TEST

START_TEST(both_containers_of_a_shape_hold_the_same_model)
{
    bt_synth_options options = {
        .shape = bt_synth_shape_find("qwen3-0.6b"), .type = BT_GGML_BF16, .layers = 1, .seed = 1};
    int32_t gguf[8], folders[8];

    write_model(&options, path_of("qwen.gguf"), 2);
    answer(path_of("qwen.gguf"), BT_LOAD_KEEP, gguf);
    options.safetensors = true;
    write_model(&options, path_of("qwen"), 2);
    answer(path_of("qwen"), BT_LOAD_KEEP, folders);
    ck_assert_mem_eq(gguf, folders, sizeof gguf); // Qwen's rows lie alike in both
}
END_TEST

START_TEST(a_place_that_cannot_be_written_is_an_error_with_the_systems_words)
{
    bt_synth_options options = {.shape = bt_synth_shape_find("tiny"), .type = BT_GGML_Q8_0};
    bt_device_options o = {.kind = BT_DEVICE_CPU, .threads = 1};
    bt_device *device;
    uint64_t bytes;

    ck_assert_int_eq(bt_device_open(&device, &o, &why), BT_OK);
    ck_assert_int_eq(bt_synth_write(&options, path_of("no/such/folder.gguf"), device, &bytes, &why), BT_ERR_IO);
    ck_assert(strstr(why.text, "No such file") != NULL);
    bt_device_close(device);
}
END_TEST

START_TEST(unknown_shapes_and_types_are_named)
{
    uint32_t type;

    ck_assert(bt_synth_shape_find("llama-9b") == NULL);
    ck_assert_int_eq(bt_synth_type("q9_0", false, &type, &why), BT_ERR_INVALID);
    ck_assert(strstr(why.text, "q9_0") != NULL);
    ck_assert_int_eq(bt_synth_type("q8_0", true, &type, &why), BT_ERR_INVALID);
}
END_TEST

// main's own: bt_test_remove is for tests.
static void
remove_folder(void)
{
    char command[80];

    snprintf(command, sizeof command, "rm -r %s", folder);
    if (system(command) != 0) {
        fprintf(stderr, "%s is left behind\n", folder);
    }
}

int
main(void)
{
    Suite *suite = suite_create("synth");
    TCase *tests = tcase_create("synth");
    int code;

    bt_log_set_level(BT_LOG_WARN);
    if (mkdtemp(folder) == NULL) {
        return 1;
    }
    tcase_set_timeout(tests, 120);
    tcase_add_loop_test(tests, every_type_loads_and_answers_with_finite_logits, 0, 5);
    tcase_add_test(tests, weights_made_at_load_work_on_a_synthetic_model);
    tcase_add_test(tests, bytes_depend_on_the_seed_and_not_on_the_threads);
    tcase_add_test(tests, both_containers_of_a_shape_hold_the_same_model);
    tcase_add_test(tests, a_place_that_cannot_be_written_is_an_error_with_the_systems_words);
    tcase_add_test(tests, unknown_shapes_and_types_are_named);
    suite_add_tcase(suite, tests);
    code = bt_test_run(suite);
    remove_folder();
    return code;
}
