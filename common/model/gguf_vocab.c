#include "common/model/gguf_vocab.h"

#include "common/base/mem.h"

#define KEY "tokenizer.ggml."

static bt_err
read_strings(const bt_gguf_value *value, bt_str **out, uint32_t *count, bt_why *why)
{
    size_t cursor = 0;

    if (value->type != BT_GGUF_ARRAY || value->item_type != BT_GGUF_STRING || value->count > UINT32_MAX) {
        return bt_fail(why, BT_ERR_INVALID, "%.*s: expected an array of strings", (int)value->key.len, value->key.data);
    }
    // The reader has checked that the file holds so many strings: 8 bytes each at least.
    *out = bt_alloc_array(value->count, sizeof **out);
    if (*out == NULL) {
        return BT_ERR_NO_MEMORY;
    }
    while (*count < value->count && bt_gguf_next_string(value, &cursor, &(*out)[*count])) {
        (*count)++;
    }
    return *count == value->count ? BT_OK : BT_ERR_BUG;
}

static bt_err
wrong_count(const char *key, uint64_t count, uint32_t expected, bt_why *why)
{
    return bt_fail(why, BT_ERR_INVALID, KEY "%s: expected an array of %u numbers, got %llu items", key, expected,
                   (unsigned long long)count);
}

static bt_err
read_scores(bt_gguf_vocab *vocab, const bt_gguf *gguf, bt_why *why)
{
    const bt_gguf_value *value = bt_gguf_find(gguf, KEY "scores");
    uint32_t count = vocab->vocab.count;

    if (value == NULL || vocab->vocab.kind == BT_VOCAB_BPE) {
        return BT_OK;
    }
    if (value->type != BT_GGUF_ARRAY || value->item_type != BT_GGUF_F32 || value->count != count) {
        return wrong_count("scores", value->count, count, why);
    }
    if ((vocab->scores = bt_alloc_array(count, sizeof *vocab->scores)) == NULL) {
        return BT_ERR_NO_MEMORY;
    }
    memcpy(vocab->scores, value->data, count * sizeof *vocab->scores);
    vocab->vocab.scores = vocab->scores;
    return BT_OK;
}

static bt_err
read_types(bt_gguf_vocab *vocab, const bt_gguf *gguf, bt_why *why)
{
    const bt_gguf_value *value = bt_gguf_find(gguf, KEY "token_type");
    uint32_t count = vocab->vocab.count;
    bool words;

    if (value == NULL) {
        return BT_OK;
    }
    words = value->item_type == BT_GGUF_I32 || value->item_type == BT_GGUF_U32;
    if (value->type != BT_GGUF_ARRAY || !words || value->count != count) {
        return wrong_count("token_type", value->count, count, why);
    }
    if ((vocab->types = bt_alloc(count)) == NULL) {
        return BT_ERR_NO_MEMORY;
    }
    for (uint32_t id = 0; id < count; id++) {
        uint32_t type;

        memcpy(&type, value->data + (size_t)id * sizeof type, sizeof type);
        vocab->types[id] = type <= BT_TOKEN_BYTE ? (uint8_t)type : BT_TOKEN_NORMAL;
    }
    vocab->vocab.types = vocab->types;
    return BT_OK;
}

static bt_err
read_merges(bt_gguf_vocab *vocab, const bt_gguf *gguf, bt_why *why)
{
    const bt_gguf_value *value = bt_gguf_find(gguf, KEY "merges");
    bt_err err;

    if (vocab->vocab.kind != BT_VOCAB_BPE) {
        return BT_OK;
    }
    if (value == NULL) {
        return bt_fail(why, BT_ERR_INVALID, KEY "merges: missing; a BPE vocabulary needs them");
    }
    err = read_strings(value, &vocab->merges, &vocab->vocab.merge_count, why);
    vocab->vocab.merges = vocab->merges;
    return err;
}

static bt_err
read_kind(bt_gguf_vocab *vocab, const bt_gguf *gguf, bt_why *why)
{
    static const struct {
        const char *name;
        bt_vocab_kind kind;
    } kinds[] = {{"gpt2", BT_VOCAB_BPE}, {"gemma4", BT_VOCAB_BPE}, {"llama", BT_VOCAB_SPM}, {"t5", BT_VOCAB_UNIGRAM}};
    const bt_gguf_value *charsmap = bt_gguf_find(gguf, KEY "precompiled_charsmap");
    bt_str model = {0};

    if (!bt_gguf_get_str(gguf, KEY "model", &model)) {
        return bt_fail(why, BT_ERR_INVALID, KEY "model: missing, expected the name of a tokenizer");
    }
    if (charsmap != NULL && charsmap->count != 0) {
        return bt_fail(why, BT_ERR_UNSUPPORTED, KEY "precompiled_charsmap: this normaliser is not supported");
    }
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (bt_str_is(model, kinds[i].name)) {
            vocab->vocab.kind = kinds[i].kind;
            // Gemma 4's pre-tokenizer goes with its model name; others have a name of their own.
            vocab->vocab.pre = bt_str_is(model, "gemma4") ? "gemma4" : NULL;
            return BT_OK;
        }
    }
    return bt_fail(why, BT_ERR_UNSUPPORTED, KEY "model: tokenizers of kind '%.*s' are not supported",
                   (int)(model.len < 64 ? model.len : 64), model.data);
}

static bt_err
copy_text(const bt_gguf *gguf, const char *key, char **out)
{
    bt_str text = {0};

    if (!bt_gguf_get_str(gguf, key, &text)) {
        return BT_OK;
    }
    if ((*out = bt_alloc(text.len + 1)) == NULL) {
        return BT_ERR_NO_MEMORY;
    }
    memcpy(*out, text.data, text.len);
    return BT_OK;
}

static int32_t
read_id(const bt_gguf *gguf, const char *key)
{
    uint32_t id;

    // Some writers put 4294967295 for "none".
    return bt_gguf_get_u32(gguf, key, &id) && id <= INT32_MAX ? (int32_t)id : -1;
}

static void
read_settings(bt_vocab *vocab, const bt_gguf *gguf)
{
    bool sentencepiece = vocab->kind != BT_VOCAB_BPE;

    vocab->bos = read_id(gguf, KEY "bos_token_id");
    vocab->eos = read_id(gguf, KEY "eos_token_id");
    vocab->unknown = read_id(gguf, KEY "unknown_token_id");
    vocab->pad = read_id(gguf, KEY "padding_token_id");
    // What is meant when the keys are missing is what llama.cpp does.
    vocab->add_bos = vocab->kind == BT_VOCAB_SPM;
    vocab->add_space_prefix = sentencepiece;
    bt_gguf_get_bool(gguf, KEY "add_bos_token", &vocab->add_bos);
    bt_gguf_get_bool(gguf, KEY "add_eos_token", &vocab->add_eos);
    bt_gguf_get_bool(gguf, KEY "add_space_prefix", &vocab->add_space_prefix);
    bt_gguf_get_bool(gguf, KEY "remove_extra_whitespaces", &vocab->remove_extra_spaces);
}

static bool
adds_bos_by_name(const char *pre)
{
    // Llama 3's converters leave the key out.
    return pre != NULL && (strcmp(pre, "llama-bpe") == 0 || strcmp(pre, "llama3") == 0 || strcmp(pre, "llama-v3") == 0);
}

static bt_err
fill(bt_gguf_vocab *vocab, const bt_gguf *gguf, bt_why *why)
{
    const bt_gguf_value *tokens = bt_gguf_find(gguf, KEY "tokens");
    bool named;
    bt_err err;

    if (tokens == NULL) {
        return bt_fail(why, BT_ERR_NOT_FOUND, KEY "tokens: the file has no tokenizer");
    }
    if ((err = read_kind(vocab, gguf, why)) != BT_OK ||
        (err = read_strings(tokens, &vocab->tokens, &vocab->vocab.count, why)) != BT_OK ||
        (err = read_scores(vocab, gguf, why)) != BT_OK || (err = read_types(vocab, gguf, why)) != BT_OK ||
        (err = read_merges(vocab, gguf, why)) != BT_OK || (err = copy_text(gguf, KEY "pre", &vocab->pre)) != BT_OK ||
        (err = copy_text(gguf, "tokenizer.chat_template", &vocab->chat_template)) != BT_OK) {
        return err;
    }
    read_settings(&vocab->vocab, gguf);
    vocab->vocab.tokens = vocab->tokens;
    vocab->vocab.chat_template = vocab->chat_template;
    vocab->vocab.pre = vocab->vocab.pre != NULL ? vocab->vocab.pre : vocab->pre;
    named = bt_gguf_find(gguf, KEY "add_bos_token") == NULL && vocab->vocab.kind == BT_VOCAB_BPE;
    vocab->vocab.add_bos |= named && adds_bos_by_name(vocab->pre);
    return BT_OK;
}

bt_err
bt_gguf_vocab_open(bt_gguf_vocab **out, const bt_gguf *gguf, bt_why *why)
{
    bt_gguf_vocab *vocab = bt_alloc(sizeof *vocab);
    bt_err err = vocab != NULL ? fill(vocab, gguf, why) : BT_ERR_NO_MEMORY;

    if (err != BT_OK) {
        bt_gguf_vocab_close(vocab);
        return err == BT_ERR_NO_MEMORY ? bt_fail(why, err, "vocabulary: out of memory") : err;
    }
    *out = vocab;
    return BT_OK;
}

void
bt_gguf_vocab_close(bt_gguf_vocab *vocab)
{
    if (vocab != NULL) {
        bt_free(vocab->tokens);
        bt_free(vocab->merges);
        bt_free(vocab->scores);
        bt_free(vocab->types);
        bt_free(vocab->pre);
        bt_free(vocab->chat_template);
        bt_free(vocab);
    }
}
