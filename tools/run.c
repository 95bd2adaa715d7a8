// baton run: one prompt, one answer.
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/time.h"
#include "common/text/detok.h"
#include "tools/commands.h"
#include "tools/engine_args.h"
#include "tools/prompt.h"
#include "tools/run_report.h"
#include "tools/session.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    bt_engine_args engine;
    const char *prompt, *ids, *messages;
    bt_sampling sampling;
    uint32_t max_tokens;
    bool json, special;
    // the run
    bt_engine *open;
    bt_session session;
    int32_t *prompt_ids;
    uint32_t prompt_count, answer_count, cached;
    bt_buf text;
    const char *finish_reason;
    bt_time started, loaded, first, ended;
} run;

static bt_err
prompt_to_ids(run *r, bt_why *why)
{
    const bt_model *model = bt_engine_model(r->open);
    bt_buf rendered, file;
    bt_err err;

    if (r->ids != NULL) {
        return bt_prompt_ids(r->ids, model->config.vocab, &r->prompt_ids, &r->prompt_count, why);
    }
    if (r->messages == NULL) {
        return bt_prompt_encode(model->tokenizer, bt_str_of(r->prompt), r->special, true, &r->prompt_ids,
                                &r->prompt_count, why);
    }
    bt_buf_init(&rendered, 64u << 20);
    bt_buf_init(&file, 64u << 20);
    if ((err = bt_read_file(r->messages, &file, why)) == BT_OK &&
        (err = bt_prompt_render(model->tokenizer, (bt_str){file.data, file.len}, true, &rendered, why)) == BT_OK) {
        err = bt_prompt_encode(model->tokenizer, (bt_str){rendered.data, rendered.len}, true, false, &r->prompt_ids,
                               &r->prompt_count, why);
    }
    bt_buf_fini(&file);
    bt_buf_fini(&rendered);
    return err;
}

static void
emit(run *r, const char *text, size_t bytes)
{
    bt_buf_append(&r->text, text, bytes);
    if (!r->json) {
        fwrite(text, 1, bytes, stdout);
        fflush(stdout);
    }
}

// Only the model's own end token stops a run of raw ids; a conversation also ends at the turn's end.
static bool
ends(const run *r, int32_t id)
{
    const bt_model *model = bt_engine_model(r->open);

    if (r->sampling.ignore_eos) {
        return false;
    }
    if (model->tokenizer == NULL) {
        return false;
    }
    return r->messages != NULL ? bt_tokenizer_is_end(model->tokenizer, id) : id == bt_tokenizer_eos(model->tokenizer);
}

static bt_err
answer(run *r, bt_why *why)
{
    const bt_model *model = bt_engine_model(r->open);
    char out[BT_DETOK_OUT_MAX];
    bt_detok detok;
    bt_err err;

    if ((err = bt_session_prompt(&r->session, r->prompt_ids, r->prompt_count, &r->cached, why)) != BT_OK) {
        return err;
    }
    if (model->tokenizer != NULL) {
        bt_detok_init(&detok, model->tokenizer, NULL, r->special, false);
    }
    r->finish_reason = "length";
    while (r->answer_count < r->max_tokens) {
        bt_token_result drawn;

        if ((err = bt_session_next(&r->session, &r->sampling, &drawn)) != BT_OK) {
            return err == BT_ERR_TOO_LONG ? BT_OK : bt_fail(why, err, "the engine failed (%s)", bt_err_name(err));
        }
        if (r->answer_count++ == 0) {
            r->first = bt_time_now();
        }
        if (ends(r, drawn.id)) {
            r->finish_reason = "stop";
            break;
        }
        if (model->tokenizer != NULL) {
            emit(r, out, bt_detok_push(&detok, drawn.id, out, sizeof out));
        }
    }
    if (model->tokenizer != NULL) {
        emit(r, out, bt_detok_finish(&detok, out, sizeof out));
    }
    return BT_OK;
}

static void
report(const run *r)
{
    bt_run_report report = {
        .prompt_ids = r->prompt_ids,
        .prompt_count = r->prompt_count,
        .ids = r->session.ids + r->prompt_count,
        .count = r->answer_count,
        .text = {r->text.data, r->text.len},
        .finish_reason = r->finish_reason,
        .usage = {r->prompt_count, r->answer_count, r->cached},
        .started = r->started,
        .loaded = r->loaded,
        .first = r->first,
        .ended = r->ended,
    };

    bt_run_report_print(&report, r->json);
}

static int
parse(run *r, int argc, char **argv, bt_why *why)
{
    const bt_arg args[] = {
        {"prompt", BT_ARG_STRING, &r->prompt, "TEXT", "the prompt", NULL},
        {"ids", BT_ARG_STRING, &r->ids, "1,2,3", "the prompt as token ids", NULL},
        {"messages", BT_ARG_STRING, &r->messages, "FILE.json", "the prompt as chat messages (- = stdin)", NULL},
        {"max-tokens", BT_ARG_U32, &r->max_tokens, "N", "longest answer", NULL},
        {"temperature", BT_ARG_FLOAT, &r->sampling.temperature, "T", "0 = always the likeliest token", NULL},
        {"top-p", BT_ARG_FLOAT, &r->sampling.top_p, "P", "nucleus", NULL},
        {"top-k", BT_ARG_U32, &r->sampling.top_k, "K", "0 = off", NULL},
        {"min-p", BT_ARG_FLOAT, &r->sampling.min_p, "P", "0 = off", NULL},
        {"repetition-penalty", BT_ARG_FLOAT, &r->sampling.repetition_penalty, "X", "1 = off", NULL},
        {"seed", BT_ARG_U64, &r->sampling.seed, "S", "of the draws", NULL},
        {"ignore-eos", BT_ARG_FLAG, &r->sampling.ignore_eos, NULL, "go on after the end token", NULL},
        {"special", BT_ARG_FLAG, &r->special, NULL, "parse and show control tokens", NULL},
        {"json", BT_ARG_FLAG, &r->json, NULL, "one JSON object on stdout", NULL},
        {NULL, BT_ARG_FLAG, NULL, NULL, NULL, NULL},
    };
    bt_args_spec spec = {
        .usage = "baton run MODEL [--prompt TEXT | --ids 1,2,3 | --messages FILE.json] [options]",
        .about =
            "Completes one prompt with a model (a .gguf file or a Hugging Face directory) and prints the answer "
            "as it comes.\nWith --server tcp://HOST:PORT instead of a model, a router's gateway does it: baton run "
            "--server URL --help.",
        .example = "  baton run smollm2.gguf --prompt 'The capital of France is' --max-tokens 16\n"
                   "  echo '[{\"role\":\"user\",\"content\":\"Name a colour.\"}]' | baton run smollm2.gguf --messages "
                   "- --json",
        .args = args,
        .more = r->engine.table,
        .positional_min = 1,
        .positional_max = 1,
    };
    const char *model;
    int code = bt_args_parse(&spec, argc, argv, &model, NULL);

    if (code >= 0) {
        return code;
    }
    if ((r->prompt != NULL) + (r->ids != NULL) + (r->messages != NULL) != 1) {
        bt_fail(why, BT_ERR_INVALID, "give one of --prompt, --ids and --messages");
        return 2;
    }
    if (r->sampling.temperature < 0 || !(r->sampling.top_p > 0 && r->sampling.top_p <= 1)) {
        bt_fail(why, BT_ERR_INVALID, "--temperature must not be negative, --top-p lies in (0, 1]");
        return 2;
    }
    if (!(r->sampling.min_p >= 0 && r->sampling.min_p <= 1) || !(r->sampling.repetition_penalty > 0)) {
        bt_fail(why, BT_ERR_INVALID, "--min-p lies in [0, 1], --repetition-penalty must be positive");
        return 2;
    }
    if (r->messages != NULL && strcmp(r->messages, "-") != 0 && access(r->messages, R_OK) != 0) {
        bt_fail(why, BT_ERR_NOT_FOUND, "%s: no such file, or not readable", r->messages); // before a model is loaded
        return 2;
    }
    return bt_engine_args_finish(&r->engine, model, why) == BT_OK ? -1 : 2;
}

// Exit codes: a bad file or prompt, or what this machine cannot run, is 2; a failure of ours 1.
static int
code_of(bt_err err, bool opened)
{
    return err == BT_OK ? 0 : err <= BT_ERR_NOT_FOUND || !opened ? 2 : 1;
}

int
bt_run_main(int argc, char **argv)
{
    run r = {.max_tokens = 128, .sampling = {.top_p = 1, .repetition_penalty = 1}, .started = bt_time_now()};
    bt_why why = {""};
    bt_err err = BT_OK;
    bool opened;
    int code;

    if (bt_run_asks_server(argc, argv)) {
        return bt_run_server_main(argc, argv);
    }
    bt_engine_args_init(&r.engine);
    if ((code = parse(&r, argc, argv, &why)) >= 0) {
        if (why.text[0] != 0) {
            fprintf(stderr, "baton run: %s\n", why.text);
        }
        return code;
    }
    if (r.json) {
        bt_log_set_level(BT_LOG_WARN);
    }
    bt_buf_init(&r.text, SIZE_MAX / 4);
    if ((err = bt_engine_open(&r.open, &r.engine.options, &why)) == BT_OK &&
        (err = bt_session_open(&r.session, r.open, r.engine.options.chunk_tokens)) == BT_OK) {
        if ((err = prompt_to_ids(&r, &why)) == BT_OK) {
            r.loaded = bt_time_now();
            err = answer(&r, &why);
        }
    }
    r.ended = bt_time_now();
    if (err != BT_OK) {
        fprintf(stderr, "baton run: %s\n", why.text[0] != 0 ? why.text : bt_err_name(err));
    } else {
        report(&r);
    }
    opened = r.open != NULL;
    bt_session_close(&r.session);
    bt_engine_close(r.open);
    bt_free(r.prompt_ids);
    bt_buf_fini(&r.text);
    return code_of(err, opened);
}
