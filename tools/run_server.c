// baton run --server: the same as run.c, asked of a router's gateway instead of a model at hand.
#include "common/base/mem.h"
#include "common/client/client.h"
#include "common/json/json.h"
#include "tools/args.h"
#include "tools/commands.h"
#include "tools/prompt.h"
#include "tools/run_report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const char *server, *key, *ca, *tls_name, *prompt, *ids, *messages, *model;
    uint32_t max_tokens, timeout;
    bt_sampling sampling;
    bool json;
    // the run
    bt_client *client;
    bt_gateway_input input;
    bt_json *document; // of the messages
    bt_buf file;
    bt_gateway_message *list;
    int32_t *given;      // --ids
    int32_t *prompt_ids; // as the router has them
    uint32_t prompt_count;
    bt_buf text, answer; // answer: its ids
    bt_finish finish;
    bt_usage usage;
    bt_time started, first, ended;
} run;

// ---- what is to be read ----

static bt_err
take_message(const bt_json_at *at, bt_gateway_message *out, bt_why *why)
{
    bt_json_at role = bt_json_get(at, "role"), content = bt_json_get(at, "content");
    bt_err err;

    *out = (bt_gateway_message){.name = {"", 0}};
    if ((err = bt_json_as_text(&role, &out->role, why)) != BT_OK ||
        (err = bt_json_as_text(&content, &out->content, why)) != BT_OK) {
        return err;
    }
    return bt_json_maybe_text(at, "name", &out->name, why);
}

static bt_err
read_messages(run *r, bt_why *why)
{
    bt_json_at root;
    size_t count = 0;
    bt_err err;

    bt_buf_init(&r->file, 64u << 20);
    if ((err = bt_read_file(r->messages, &r->file, why)) != BT_OK ||
        (err = bt_json_parse(&r->document, (bt_str){r->file.data, r->file.len}, NULL, why)) != BT_OK) {
        return err;
    }
    root = bt_json_root(r->document);
    if ((err = bt_json_as_array(&root, &count, why)) != BT_OK) {
        return err;
    }
    if (count > BT_GATEWAY_MESSAGES_MAX || (r->list = bt_alloc_array(count + 1, sizeof *r->list)) == NULL) {
        return bt_fail(why, BT_ERR_TOO_LONG, "%s: more messages than one call may have", r->messages);
    }
    for (size_t i = 0; i < count && err == BT_OK; i++) {
        bt_json_at item = bt_json_item(&root, i);

        err = take_message(&item, &r->list[i], why);
    }
    r->input = (bt_gateway_input){
        .kind = BT_INPUT_CHAT, .messages = r->list, .message_count = (uint32_t)count, .template_json = {"", 0}};
    return err;
}

static bt_err
take_input(run *r, bt_why *why)
{
    bt_err err;

    if (r->messages != NULL) {
        return read_messages(r, why);
    }
    if (r->ids != NULL) {
        r->input.kind = BT_INPUT_IDS;
        err = bt_prompt_ids(r->ids, INT32_MAX, &r->given, &r->input.id_count, why);
        r->input.ids = r->given;
        return err;
    }
    r->input.kind = BT_INPUT_PROMPT;
    r->input.prompt = bt_str_of(r->prompt);
    return BT_OK;
}

// For --json, which shows them.
static bt_err
ask_prompt_ids(run *r, bt_why *why)
{
    bt_gateway_tokenize ask = {.model = bt_str_of(r->model), .input = r->input};
    bt_gateway_tokenized tokenized = {r->input.ids, r->input.id_count, 0};
    bt_err err = r->ids != NULL ? BT_OK : bt_client_tokenize(r->client, &ask, &tokenized, why);

    if (err != BT_OK) {
        return err;
    }
    r->prompt_count = tokenized.id_count;
    r->prompt_ids = bt_alloc_array(tokenized.id_count + 1, sizeof *r->prompt_ids);
    if (r->prompt_ids == NULL) {
        return bt_fail(why, BT_ERR_NO_MEMORY, "no memory for the prompt");
    }
    if (tokenized.id_count > 0) {
        memcpy(r->prompt_ids, tokenized.ids, tokenized.id_count * sizeof *r->prompt_ids);
    }
    return BT_OK;
}

// ---- the answer ----

static bool
on_event(void *self, const bt_client_event *event)
{
    run *r = self;

    for (uint32_t i = 0; i < event->news.choice_count; i++) {
        const bt_gateway_choice *choice = &event->news.choices[i];

        r->first = r->first != 0 ? r->first : bt_time_now();
        bt_buf_append(&r->text, choice->text.data, choice->text.len);
        bt_buf_append(&r->answer, choice->tokens.ids, choice->tokens.count * sizeof(int32_t));
        r->finish = choice->finish != BT_FINISH_NONE ? choice->finish : r->finish;
        if (!r->json) {
            fwrite(choice->text.data, 1, choice->text.len, stdout);
            fflush(stdout);
        }
    }
    r->usage = event->news.has_usage ? event->news.usage : r->usage;
    return true;
}

static bt_err
answer(run *r, bt_why *why)
{
    bt_gateway_generate ask;
    bt_err err;

    bt_gateway_generate_defaults(&ask);
    ask.model = bt_str_of(r->model);
    ask.user = (bt_str){"", 0};
    ask.input = r->input;
    ask.max_tokens = r->max_tokens;
    ask.sampling = r->sampling;
    ask.seed_given = true;
    if (r->json && (err = ask_prompt_ids(r, why)) != BT_OK) {
        return err;
    }
    return bt_client_run(r->client, &ask, NULL, on_event, r, why);
}

// ---- the end ----

static void
report(const run *r)
{
    bt_run_report report = {
        .prompt_ids = r->prompt_ids,
        .prompt_count = r->prompt_count,
        .ids = (const int32_t *)(const void *)r->answer.data,
        .count = (uint32_t)(r->answer.len / sizeof(int32_t)),
        .text = {r->text.data, r->text.len},
        .finish_reason = bt_finish_name(r->finish),
        .usage = r->usage,
        .started = r->started,
        .loaded = r->started,
        .first = r->first,
        .ended = r->ended,
    };

    bt_run_report_print(&report, r->json);
}

static int
parse(run *r, int argc, char **argv, bt_why *why)
{
    const bt_arg args[] = {
        {"server", BT_ARG_STRING, &r->server, "URL", "the gateway of a router, tcp://HOST:PORT or tls+tcp://…", NULL},
        {"key", BT_ARG_STRING, &r->key, "KEY", "one of the router's keys [$BATON_KEY]", NULL},
        {"ca", BT_ARG_STRING, &r->ca, "FILE", "tls: who signs the router's certificate, PEM", NULL},
        {"tls-name", BT_ARG_STRING, &r->tls_name, "NAME", "tls: the name in it, where that is not the host", NULL},
        {"model", BT_ARG_STRING, &r->model, "NAME", "which model, where the router has several", NULL},
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
        {"timeout", BT_ARG_U32, &r->timeout, "SECONDS", "for all of it", NULL},
        {"json", BT_ARG_FLAG, &r->json, NULL, "one JSON object on stdout", NULL},
        {NULL, BT_ARG_FLAG, NULL, NULL, NULL, NULL},
    };
    bt_args_spec spec = {
        .usage = "baton run --server URL [--prompt TEXT | --ids 1,2,3 | --messages FILE.json] [options]",
        .about = "Has a router complete one prompt, over its gateway, and prints the answer as it comes.",
        .example = "  baton run --server tcp://127.0.0.1:8090 --prompt 'The capital of France is' --max-tokens 16",
        .args = args,
    };
    int code = bt_args_parse(&spec, argc, argv, NULL, NULL);

    if (code >= 0) {
        return code;
    }
    if ((r->prompt != NULL) + (r->ids != NULL) + (r->messages != NULL) != 1) {
        bt_fail(why, BT_ERR_INVALID, "give one of --prompt, --ids and --messages");
        return 2;
    }
    return -1;
}

static bt_err
connect_to(run *r, bt_why *why)
{
    bt_client_options options = bt_client_defaults();

    options.url = r->server;
    options.key = r->key != NULL ? r->key : getenv("BATON_KEY");
    options.ca_file = r->ca;
    options.tls_name = r->tls_name;
    options.timeout = (r->timeout > 0 ? r->timeout : 1) * BT_SECOND;
    return bt_client_open(&r->client, &options, why);
}

bool
bt_run_asks_server(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--server") == 0 || strncmp(argv[i], "--server=", 9) == 0) {
            return true;
        }
    }
    return false;
}

int
bt_run_server_main(int argc, char **argv)
{
    run r = {.model = "",
             .max_tokens = 128,
             .timeout = 600,
             .sampling = {.top_p = 1, .repetition_penalty = 1},
             .started = bt_time_now()};
    bt_why why = {""};
    bt_err err = BT_OK;
    int code = parse(&r, argc, argv, &why);

    if (code < 0) {
        bt_buf_init(&r.text, SIZE_MAX / 4);
        bt_buf_init(&r.answer, SIZE_MAX / 4);
        if ((err = take_input(&r, &why)) == BT_OK && (err = connect_to(&r, &why)) == BT_OK) {
            err = answer(&r, &why);
        }
        r.ended = bt_time_now();
        code = err == BT_OK ? 0 : err <= BT_ERR_NOT_FOUND ? 2 : 1;
        if (err == BT_OK) {
            report(&r);
        }
    }
    if (why.text[0] != 0 && code != 0) {
        fprintf(stderr, "baton run: %s\n", why.text);
    }
    bt_client_close(r.client);
    bt_json_close(r.document);
    bt_buf_fini(&r.file);
    bt_buf_fini(&r.text);
    bt_buf_fini(&r.answer);
    bt_free(r.list);
    bt_free(r.given);
    bt_free(r.prompt_ids);
    return code;
}
