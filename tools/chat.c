// baton chat: a conversation in the terminal, streamed. Each turn renders the whole conversation again; what the cache
// already holds of it is not computed twice.
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/json/write.h"
#include "common/text/detok.h"
#include "tools/commands.h"
#include "tools/engine_args.h"
#include "tools/prompt.h"
#include "tools/session.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    bt_engine_args engine;
    const char *system;
    bt_sampling sampling;
    uint32_t max_tokens;
    bt_engine *open;
    bt_session session;
    bt_buf messages; // the JSON array without its closing bracket
} chat;

static volatile sig_atomic_t interrupted;

static void
on_interrupt(int signal_number)
{
    (void)signal_number;
    interrupted = 1;
}

static void
add_message(chat *c, const char *role, const char *text, size_t len)
{
    bt_buf_printf(&c->messages, "%s{\"role\":\"%s\",\"content\":", c->messages.len > 1 ? "," : "", role);
    bt_json_append_text(&c->messages, (bt_str){text, len});
    bt_buf_append_char(&c->messages, '}');
}

static void
begin(chat *c)
{
    bt_buf_clear(&c->messages);
    bt_buf_append_char(&c->messages, '[');
    if (c->system != NULL) {
        add_message(c, "system", c->system, strlen(c->system));
    }
}

static bt_err
load_prompt(chat *c, bt_why *why)
{
    const bt_tokenizer *tokenizer = bt_engine_model(c->open)->tokenizer;
    int32_t *ids = NULL;
    uint32_t count, reused;
    bt_buf json, text;
    bt_err err;

    bt_buf_init(&json, c->messages.limit + 1);
    bt_buf_init(&text, 64u << 20);
    bt_buf_append(&json, c->messages.data, c->messages.len);
    bt_buf_append_char(&json, ']');
    if ((err = bt_prompt_render(tokenizer, (bt_str){json.data, json.len}, true, &text, why)) == BT_OK &&
        (err = bt_prompt_encode(tokenizer, (bt_str){text.data, text.len}, true, false, &ids, &count, why)) == BT_OK) {
        err = bt_session_prompt(&c->session, ids, count, &reused, why);
    }
    bt_free(ids);
    bt_buf_fini(&json);
    bt_buf_fini(&text);
    return err;
}

static bt_err
answer(chat *c, bt_why *why)
{
    const bt_tokenizer *tokenizer = bt_engine_model(c->open)->tokenizer;
    char out[BT_DETOK_OUT_MAX];
    bt_token_result drawn;
    bt_detok detok;
    bt_buf text;
    bt_err err = load_prompt(c, why);

    if (err != BT_OK) {
        return err;
    }
    bt_buf_init(&text, SIZE_MAX / 4);
    bt_detok_init(&detok, tokenizer, NULL, false, false);
    for (uint32_t i = 0; i < c->max_tokens && !interrupted; i++) {
        size_t bytes;

        if ((err = bt_session_next(&c->session, &c->sampling, &drawn)) != BT_OK ||
            bt_tokenizer_is_end(tokenizer, drawn.id)) {
            break;
        }
        bytes = bt_detok_push(&detok, drawn.id, out, sizeof out);
        bt_buf_append(&text, out, bytes);
        fwrite(out, 1, bytes, stdout);
        fflush(stdout);
    }
    {
        size_t bytes = bt_detok_finish(&detok, out, sizeof out);

        bt_buf_append(&text, out, bytes);
        fwrite(out, 1, bytes, stdout);
    }
    printf(interrupted ? " [stopped]\n" : "\n");
    interrupted = 0;
    add_message(c, "assistant", text.data != NULL ? text.data : "", text.len);
    bt_buf_fini(&text);
    return err == BT_ERR_TOO_LONG
               ? bt_fail(why, err, "the context of %u tokens is full: /new begins again", c->session.cap)
               : err;
}

static bt_err
converse(chat *c, bt_why *why)
{
    bool terminal = isatty(STDIN_FILENO) != 0;
    char *line = NULL;
    size_t cap = 0;
    ssize_t len;

    if (terminal) {
        printf("%s. /new begins again, /quit or Ctrl-D ends, Ctrl-C stops an answer.\n",
               bt_engine_model(c->open)->config.name);
    }
    for (;;) {
        bt_err err;

        if (terminal) {
            printf("\n> ");
            fflush(stdout);
        }
        len = getline(&line, &cap, stdin);
        if (len < 0) {
            if (interrupted) {
                interrupted = 0;
                clearerr(stdin);
                continue;
            }
            break;
        }
        while (len > 0 && (line[len - 1] == '\n' || line[len - 1] == '\r')) {
            len--;
        }
        line[len] = 0;
        if (strcmp(line, "/quit") == 0) {
            break;
        }
        if (strcmp(line, "/new") == 0) {
            begin(c);
            continue;
        }
        if (len == 0) {
            continue;
        }
        add_message(c, "user", line, (size_t)len);
        if ((err = answer(c, why)) != BT_OK) {
            fprintf(stderr, "baton chat: %s\n", why->text[0] != 0 ? why->text : bt_err_name(err));
            if (!terminal) {
                free(line);
                return err;
            }
            begin(c);
        }
    }
    free(line);
    return BT_OK;
}

static int
parse(chat *c, int argc, char **argv, bt_why *why)
{
    const bt_arg args[] = {
        {"system", BT_ARG_STRING, &c->system, "TEXT", "the system message", NULL},
        {"max-tokens", BT_ARG_U32, &c->max_tokens, "N", "longest answer", NULL},
        {"temperature", BT_ARG_FLOAT, &c->sampling.temperature, "T", "0 = always the likeliest token", NULL},
        {"top-p", BT_ARG_FLOAT, &c->sampling.top_p, "P", "nucleus", NULL},
        {"seed", BT_ARG_U64, &c->sampling.seed, "S", "of the draws", NULL},
        {NULL, BT_ARG_FLAG, NULL, NULL, NULL, NULL},
    };
    bt_args_spec spec = {
        .usage = "baton chat MODEL [options]",
        .about = "Talks to a model in the terminal. Each line is a message; without a terminal, each line of stdin.",
        .example = "  baton chat smollm2.gguf --system 'You answer in one sentence.'",
        .args = args,
        .more = c->engine.table,
        .positional_min = 1,
        .positional_max = 1,
    };
    const char *model;
    int code = bt_args_parse(&spec, argc, argv, &model, NULL);

    if (code >= 0) {
        return code;
    }
    if (c->sampling.temperature < 0 || !(c->sampling.top_p > 0 && c->sampling.top_p <= 1)) {
        bt_fail(why, BT_ERR_INVALID, "--temperature must not be negative, --top-p lies in (0, 1]");
        return 2;
    }
    return bt_engine_args_finish(&c->engine, model, why) == BT_OK ? -1 : 2;
}

int
bt_chat_main(int argc, char **argv)
{
    chat c = {.max_tokens = 512, .sampling = {.temperature = 0.7f, .top_p = 0.95f, .repetition_penalty = 1, .seed = 1}};
    struct sigaction action = {.sa_handler = on_interrupt};
    bt_why why = {""};
    bt_err err;
    int code;

    bt_engine_args_init(&c.engine);
    bt_log_set_level(BT_LOG_WARN);
    if ((code = parse(&c, argc, argv, &why)) >= 0) {
        if (why.text[0] != 0) {
            fprintf(stderr, "baton chat: %s\n", why.text);
        }
        return code;
    }
    bt_buf_init(&c.messages, 64u << 20);
    if ((err = bt_engine_open(&c.open, &c.engine.options, &why)) == BT_OK) {
        if (bt_engine_model(c.open)->tokenizer == NULL) {
            err = bt_fail(&why, BT_ERR_UNSUPPORTED, "%s: the model has no tokenizer", c.engine.options.model.path);
        } else if ((err = bt_session_open(&c.session, c.open, c.engine.options.chunk_tokens)) == BT_OK) {
            sigaction(SIGINT, &action, NULL);
            begin(&c);
            code = converse(&c, &why) == BT_OK ? 0 : 1;
        }
    }
    if (err != BT_OK) {
        fprintf(stderr, "baton chat: %s\n", why.text[0] != 0 ? why.text : bt_err_name(err));
        code = err <= BT_ERR_NOT_FOUND || c.open == NULL ? 2 : 1;
    }
    bt_session_close(&c.session);
    bt_engine_close(c.open);
    bt_buf_fini(&c.messages);
    return code;
}
