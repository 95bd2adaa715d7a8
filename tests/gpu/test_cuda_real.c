// SmolLM2 and Gemma 3 answer the golden prompts on the GPU as on the CPU, token for token, in the file's formats and in weights made at
// load; what the golden answers (f32, other software) say is printed beside it. Models are looked for in $BATON_MODELS.
#include "common/base/log.h"
#include "common/base/time.h"
#include "common/json/json.h"
#include "tests/gpu/gpu.h"
#include "tests/support/play.h"
#include "tests/support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PROMPTS_MAX 41
#define PROMPT_TOKENS_MAX 1600
#define ANSWER 64

typedef struct {
    int32_t prompt[PROMPT_TOKENS_MAX], golden[ANSWER], cpu[ANSWER], gpu[ANSWER];
    uint32_t prompt_count, golden_count, near_tie; // near_tie: the first step that may go either way, or the end
} real_prompt;

static real_prompt prompts[PROMPTS_MAX];
static uint32_t prompt_count;

static uint32_t
ids_of(const bt_json_at *object, const char *key, int32_t *out, uint32_t limit)
{
    bt_json_at array = bt_json_get(object, key);
    uint32_t count = (uint32_t)bt_json_count(&array);

    ck_assert_uint_le(count, limit);
    for (uint32_t i = 0; i < count; i++) {
        bt_json_at item = bt_json_item(&array, i);
        int64_t id = -1;

        ck_assert(bt_json_as_int(&item, 0, INT32_MAX, &id, NULL) == BT_OK);
        out[i] = (int32_t)id;
    }
    return count;
}

static void
read_prompt(const char *line, real_prompt *p)
{
    bt_json *document = NULL;
    bt_json_at root, ties, tie;
    int64_t step = 0;

    ck_assert(bt_json_parse(&document, bt_str_of(line), NULL, NULL) == BT_OK);
    root = bt_json_root(document);
    p->prompt_count = ids_of(&root, "prompt_ids", p->prompt, PROMPT_TOKENS_MAX);
    p->golden_count = ids_of(&root, "greedy_ids", p->golden, ANSWER);
    ties = bt_json_get(&root, "near_ties");
    tie = bt_json_item(&ties, 0);
    p->near_tie = bt_json_as_int(&tie, 0, ANSWER, &step, NULL) == BT_OK ? (uint32_t)step : p->golden_count;
    bt_json_close(document);
}

static void
read_prompts(const char *folder)
{
    char *lines = bt_test_read(bt_test_path("golden/%s/greedy.jsonl.gz", folder), NULL), *line = lines;

    for (prompt_count = 0; *line != 0 && prompt_count < PROMPTS_MAX; prompt_count++) {
        char *end = strchr(line, '\n');

        *end = 0;
        read_prompt(line, &prompts[prompt_count]);
        line = end + 1;
    }
    free(lines);
}

static void
answer_on(bt_device_kind kind, bt_engine_options options, const bt_play_options *ways, uint32_t count)
{
    bt_play_request requests[PROMPTS_MAX];
    bt_engine *engine;

    options.device = (bt_device_options){.kind = kind};
    engine = bt_play_open(&options);
    for (uint32_t w = 0; w < count; w++) {
        for (uint32_t i = 0; i < prompt_count; i++) {
            real_prompt *p = &prompts[i];
            int32_t *answer = kind == BT_DEVICE_CPU ? p->cpu : p->gpu;

            memset(p->gpu, 0xff, sizeof p->gpu);
            requests[i] = (bt_play_request){p->prompt, p->prompt_count, ANSWER, NULL, answer, NULL, 0};
        }
        bt_play(engine, requests, prompt_count, &ways[w]);
        for (uint32_t i = 0; i < prompt_count && kind != BT_DEVICE_CPU; i++) {
            ck_assert_msg(memcmp(prompts[i].cpu, prompts[i].gpu, sizeof prompts[i].cpu) == 0,
                          "batch %u, chunk %u: prompt %u has other tokens than on the CPU", ways[w].batch,
                          ways[w].chunk, i);
        }
    }
    bt_engine_close(engine);
}

static void
say(const char *file, const char *weights, bt_time spent)
{
    uint32_t to_end = 0, to_tie = 0;

    for (uint32_t i = 0; i < prompt_count; i++) {
        const real_prompt *p = &prompts[i];
        uint32_t same = 0;

        while (same < p->golden_count && p->gpu[same] == p->golden[same]) {
            same++;
        }
        to_end += same == p->golden_count;
        to_tie += same >= p->near_tie;
    }
    printf("%s, %s: %u prompts of %u tokens' answers equal on GPU and CPU, no near-tie apart (%.1f s). Against f32 of "
           "other "
           "software: %u equal to their end, %u to their first near-tie\n",
           file, weights, prompt_count, ANSWER, (double)spent / (double)BT_SECOND, to_end, to_tie);
}

static const struct {
    const char *file, *folder, *weights;
    bt_load_weights load;
} runs[] = {
    {"smol", "smollm2-135m-instruct-q4_1", "the file's formats", BT_LOAD_KEEP},
    {"smol", "smollm2-135m-instruct-q4_1", "w8", BT_LOAD_W8},
    {"smol", "smollm2-135m-instruct-q4_1", "q4", BT_LOAD_Q4},
    {"gemma", "gemma-3-270m-q4_k_m", "the file's formats", BT_LOAD_KEEP},
    {"gemma", "gemma-3-270m-q4_k_m", "w8", BT_LOAD_W8},
    {"gemma", "gemma-3-270m-q4_k_m", "q4", BT_LOAD_Q4},
};

START_TEST(golden_prompts_are_answered_as_on_the_cpu)
{
    static const bt_play_options ways[] = {{PROMPTS_MAX, 512, true}, {16, 64, false}, {1, 512, false}};
    bt_time begin = bt_time_now();
    bt_engine_options options = {
        .model = {.weights = runs[_i].load,
                  .equalise = true,
                  .hasty = true}, // a search takes minutes and shows no more
        .max_sequences = PROMPTS_MAX,
        .chunk_tokens = 512,
        .context = 2048,
        .kv_blocks = 1600,
    };
    char path[1024];

    snprintf(path, sizeof path, "%s/%s.gguf", getenv("BATON_MODELS") != NULL ? getenv("BATON_MODELS") : ".",
             runs[_i].file);
    if (bt_test_data() == NULL || access(path, R_OK) != 0) {
        bt_test_skip(path);
        return;
    }
    options.model.path = path;
    read_prompts(runs[_i].folder);
    answer_on(BT_DEVICE_CPU, options, ways, 1);
    answer_on(BT_DEVICE_CUDA, options, ways, runs[_i].load == BT_LOAD_KEEP ? 3 : 1);
    say(runs[_i].file, runs[_i].weights, bt_time_now() - begin);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("cuda_real");
    TCase *tests = tcase_create("real");

    bt_log_set_level(BT_LOG_ERROR);
    tcase_add_loop_test(tests, golden_prompts_are_answered_as_on_the_cpu, 0, (int)(sizeof runs / sizeof *runs));
    suite_add_tcase(suite, tests);
    return bt_gpu_run(suite);
}
