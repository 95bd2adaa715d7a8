#include "common/model/tokenizer.h"

#include "common/base/mem.h"
#include "common/model/gguf_vocab.h"
#include "common/model/source.h"

#include <sys/stat.h>

static bt_err
in_file(const char *path, bt_err err, const bt_why *inner, bt_why *why)
{
    return bt_fail(why, err, "%.200s: %.300s", path, inner->text[0] != 0 ? inner->text : bt_err_name(err));
}

bt_err
bt_model_tokenizer_of_gguf(bt_tokenizer **out, const bt_gguf *gguf, const char *path, bt_why *why)
{
    bt_gguf_vocab *vocab;
    bt_str kind = {0};
    bt_why inner = {""};
    bt_err err;

    if (!bt_gguf_get_str(gguf, "tokenizer.ggml.model", &kind) || bt_str_is(kind, "none")) {
        return bt_fail(why, BT_ERR_NOT_FOUND, "%s: holds no tokenizer", path);
    }
    if ((err = bt_gguf_vocab_open(&vocab, gguf, &inner)) != BT_OK) {
        return in_file(path, err, &inner, why);
    }
    err = bt_tokenizer_open(out, &vocab->vocab, &inner);
    bt_gguf_vocab_close(vocab);
    return err == BT_OK ? BT_OK : in_file(path, err, &inner, why);
}

bt_err
bt_model_tokenizer_of_folder(bt_tokenizer **out, const char *folder, bt_why *why)
{
    char *json = NULL, *config = NULL;
    bt_str text = {0}, config_text = {0};
    bt_why inner = {""};
    bt_err err;

    if ((err = bt_source_read_text(folder, "tokenizer.json", &json, &text.len, &inner)) != BT_OK) {
        return err == BT_ERR_NOT_FOUND ? bt_fail(why, err, "%s: holds no tokenizer.json", folder)
                                       : bt_fail(why, err, "%s", inner.text);
    }
    text.data = json;
    err = bt_source_read_text(folder, "tokenizer_config.json", &config, &config_text.len, &inner);
    if (err == BT_OK || err == BT_ERR_NOT_FOUND) {
        config_text.data = config;
        inner.text[0] = 0;
        err = bt_tokenizer_open_json(out, text, config_text, &inner);
    }
    bt_free(json);
    bt_free(config);
    return err == BT_OK ? BT_OK : in_file(folder, err, &inner, why);
}

bt_err
bt_model_tokenizer_open(bt_tokenizer **out, const char *path, bt_why *why)
{
    struct stat info;
    bt_gguf *gguf;
    bt_err err;

    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode)) {
        return bt_model_tokenizer_of_folder(out, path, why);
    }
    if ((err = bt_gguf_open(&gguf, path, why)) == BT_OK) {
        err = bt_model_tokenizer_of_gguf(out, gguf, path, why);
        bt_gguf_close(gguf);
    }
    return err;
}
