#include "tools/prompt.h"

#include "common/base/mem.h"
#include "common/text/template.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bt_err
bt_read_file(const char *path, bt_buf *out, bt_why *why)
{
    FILE *file = strcmp(path, "-") == 0 ? stdin : fopen(path, "rb");
    char chunk[1 << 16];
    size_t got;
    bool failed;

    if (file == NULL) {
        return bt_fail(why, BT_ERR_NOT_FOUND, "%s: %s", path, strerror(errno));
    }
    while (!out->failed && (got = fread(chunk, 1, sizeof chunk, file)) != 0) {
        bt_buf_append(out, chunk, got);
    }
    failed = ferror(file) != 0;
    if (file != stdin) {
        fclose(file);
    }
    if (failed) {
        return bt_fail(why, BT_ERR_IO, "%s: cannot be read", path);
    }
    return out->failed ? bt_fail(why, BT_ERR_TOO_LONG, "%s: more than %zu bytes", path, out->limit) : BT_OK;
}

bt_err
bt_prompt_ids(const char *list, uint32_t vocab, int32_t **ids, uint32_t *count, bt_why *why)
{
    size_t cap = 1;
    int32_t *out;
    uint32_t used = 0;

    for (const char *at = list; *at != 0; at++) {
        cap += *at == ',';
    }
    if ((out = bt_alloc_array(cap, sizeof *out)) == NULL) {
        return BT_ERR_NO_MEMORY;
    }
    for (const char *at = list;;) {
        char *end;
        unsigned long id = strtoul(at, &end, 10);

        if (*at < '0' || *at > '9' || (*end != ',' && *end != 0) || id >= vocab) {
            bt_free(out);
            return bt_fail(why, BT_ERR_INVALID, "ids: number %u is no id from 0 to %u: '%.20s'", used + 1, vocab - 1,
                           at);
        }
        out[used++] = (int32_t)id;
        if (*end == 0) {
            break;
        }
        at = end + 1;
    }
    *ids = out;
    *count = used;
    return BT_OK;
}

bt_err
bt_prompt_encode(const bt_tokenizer *tokenizer, bt_str text, bool special, bool bos, int32_t **ids, uint32_t *count,
                 bt_why *why)
{
    size_t cap = text.len + 8, used = 0; // no token is shorter than a byte but BOS, EOS and a space prefix
    unsigned flags = (special ? BT_ENCODE_SPECIAL : 0u) | (bos ? BT_ENCODE_BOS : 0u);
    int32_t *out;
    bt_err err;

    if (tokenizer == NULL) {
        return bt_fail(why, BT_ERR_UNSUPPORTED, "the model has no tokenizer: give ids (--ids)");
    }
    if (cap > UINT32_MAX || (out = bt_alloc_array(cap, sizeof *out)) == NULL) {
        return BT_ERR_NO_MEMORY;
    }
    if ((err = bt_tokenizer_encode(tokenizer, text, flags, out, cap, &used, why)) != BT_OK) {
        bt_free(out);
        return err;
    }
    *ids = out;
    *count = (uint32_t)used;
    return BT_OK;
}

static bt_str
token_text(const bt_tokenizer *tokenizer, int32_t id)
{
    return id >= 0 ? bt_tokenizer_token_text(tokenizer, id) : (bt_str){"", 0};
}

bt_err
bt_prompt_render(const bt_tokenizer *tokenizer, bt_str messages_json, bool add_generation_prompt, bt_buf *out,
                 bt_why *why)
{
    const char *source = tokenizer != NULL ? bt_tokenizer_chat_template(tokenizer) : NULL;
    bt_template_input input = {.messages_json = messages_json, .add_generation_prompt = add_generation_prompt};
    bt_template *compiled = NULL;
    bt_err err;

    if (tokenizer == NULL) {
        return bt_fail(why, BT_ERR_UNSUPPORTED, "the model has no tokenizer, so it has no chat template");
    }
    input.bos_token = token_text(tokenizer, bt_tokenizer_bos(tokenizer));
    input.eos_token = token_text(tokenizer, bt_tokenizer_eos(tokenizer));
    if ((err = bt_template_open(&compiled, source != NULL ? source : bt_template_chatml, why)) == BT_OK) {
        err = bt_template_render(compiled, &input, out, why);
    }
    bt_template_close(compiled);
    return err;
}
