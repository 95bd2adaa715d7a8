// baton tokenize and baton render: what a model's tokenizer and chat template make of text. They read the file's metadata
// alone, so they answer at once for a model of any size.
#include "common/base/mem.h"
#include "common/json/write.h"
#include "common/model/tokenizer.h"
#include "tools/args.h"
#include "tools/commands.h"
#include "tools/prompt.h"

#include <stdio.h>

static int
failed(const char *command, const bt_why *why, bt_err err)
{
    fprintf(stderr, "baton %s: %s\n", command, why->text[0] != 0 ? why->text : bt_err_name(err));
    return err <= BT_ERR_NOT_FOUND ? 2 : 1;
}

static void
print_ids(const int32_t *ids, uint32_t count, bool json)
{
    bt_json_writer w;
    bt_buf out;

    if (!json) {
        for (uint32_t i = 0; i < count; i++) {
            printf("%s%d", i != 0 ? " " : "", ids[i]);
        }
        printf("\n");
        return;
    }
    bt_buf_init(&out, SIZE_MAX / 4);
    bt_json_write(&w, &out);
    bt_json_begin_object(&w, NULL);
    bt_json_begin_array(&w, "ids");
    for (uint32_t i = 0; i < count; i++) {
        bt_json_put_int(&w, NULL, ids[i]);
    }
    bt_json_end(&w);
    bt_json_end(&w);
    puts(out.data);
    bt_buf_fini(&out);
}

int
bt_tokenize_main(int argc, char **argv)
{
    bool json = false, special = false, bos = false;
    const bt_arg args[] = {
        {"special", BT_ARG_FLAG, &special, NULL, "control tokens in the text become their ids", NULL},
        {"bos", BT_ARG_FLAG, &bos, NULL, "begin with BOS where the model's file asks for it", NULL},
        {"json", BT_ARG_FLAG, &json, NULL, "{\"ids\":[…]} on stdout", NULL},
        {NULL, BT_ARG_FLAG, NULL, NULL, NULL, NULL},
    };
    bt_args_spec spec = {
        .usage = "baton tokenize MODEL [options] < text",
        .about = "Reads text on stdin and prints its token ids.",
        .example = "  printf 'Hello world' | baton tokenize smollm2.gguf",
        .args = args,
        .positional_min = 1,
        .positional_max = 1,
    };
    const char *model;
    bt_tokenizer *tokenizer = NULL;
    int32_t *ids = NULL;
    uint32_t count = 0;
    bt_why why = {""};
    bt_buf text;
    bt_err err;
    int code = bt_args_parse(&spec, argc, argv, &model, NULL);

    if (code >= 0) {
        return code;
    }
    bt_buf_init(&text, 1u << 30);
    if ((err = bt_model_tokenizer_open(&tokenizer, model, &why)) == BT_OK &&
        (err = bt_read_file("-", &text, &why)) == BT_OK &&
        (err = bt_prompt_encode(tokenizer, (bt_str){text.data, text.len}, special, bos, &ids, &count, &why)) == BT_OK) {
        print_ids(ids, count, json);
    }
    bt_free(ids);
    bt_buf_fini(&text);
    bt_tokenizer_close(tokenizer);
    return err == BT_OK ? 0 : failed("tokenize", &why, err);
}

int
bt_render_main(int argc, char **argv)
{
    bool no_prompt = false;
    const bt_arg args[] = {
        {"no-generation-prompt", BT_ARG_FLAG, &no_prompt, NULL, "do not open the assistant's turn", NULL},
        {NULL, BT_ARG_FLAG, NULL, NULL, NULL, NULL},
    };
    bt_args_spec spec = {
        .usage = "baton render MODEL [--no-generation-prompt] < messages.json",
        .about = "Reads a JSON array of messages on stdin and prints the prompt text that the model's chat template "
                 "makes of it.",
        .example = "  echo '[{\"role\":\"user\",\"content\":\"Hi\"}]' | baton render smollm2.gguf",
        .args = args,
        .positional_min = 1,
        .positional_max = 1,
    };
    const char *model;
    bt_tokenizer *tokenizer = NULL;
    bt_why why = {""};
    bt_buf messages, out;
    bt_err err;
    int code = bt_args_parse(&spec, argc, argv, &model, NULL);

    if (code >= 0) {
        return code;
    }
    bt_buf_init(&messages, 64u << 20);
    bt_buf_init(&out, 64u << 20);
    if ((err = bt_model_tokenizer_open(&tokenizer, model, &why)) == BT_OK &&
        (err = bt_read_file("-", &messages, &why)) == BT_OK &&
        (err = bt_prompt_render(tokenizer, (bt_str){messages.data, messages.len}, !no_prompt, &out, &why)) == BT_OK) {
        fwrite(out.data, 1, out.len, stdout);
    }
    bt_buf_fini(&messages);
    bt_buf_fini(&out);
    bt_tokenizer_close(tokenizer);
    return err == BT_OK ? 0 : failed("render", &why, err);
}
