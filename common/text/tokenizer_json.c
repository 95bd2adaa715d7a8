// Opens the tokenizer of a Hugging Face tokenizer.json.
#include "common/base/log.h"
#include "common/json/json.h"
#include "common/text/json_pipeline.h"
#include "common/text/tokenizer_impl.h"

#include <math.h>

// What is gathered from the document before there is a tokenizer; texts are borrowed from the document.
typedef struct {
    bt_vocab_kind kind;
    bt_json_at root, model, vocab, added;
    bt_str *tokens;
    uint8_t *types;
    float *scores;
    uint32_t count;
    bt_why *why;
} reader;

static bt_err
read_kind(reader *read)
{
    bt_json_at merges = bt_json_get(&read->model, "merges");
    bt_json_type vocab = bt_json_type_of(&read->vocab);
    // Files of before `type` are told by what they hold.
    bt_str type = bt_str_of(bt_json_given(&merges) ? "BPE" : vocab == BT_JSON_ARRAY ? "Unigram" : "WordPiece");
    bt_err err = bt_json_maybe_text(&read->model, "type", &type, read->why);

    if (err != BT_OK) {
        return err;
    }
    if (bt_str_is(type, "BPE")) {
        read->kind = BT_VOCAB_BPE;
        return bt_json_as_object(&read->vocab, read->why);
    }
    if (bt_str_is(type, "Unigram")) {
        size_t count;

        read->kind = BT_VOCAB_UNIGRAM;
        return bt_json_as_array(&read->vocab, &count, read->why);
    }
    return bt_fail(read->why, BT_ERR_UNSUPPORTED, "model: tokenizers of type '%.*s' are not supported",
                   (int)(type.len < 64 ? type.len : 64), type.data);
}

static bt_err
as_id(const bt_json_at *at, int64_t *id, bt_why *why)
{
    return bt_json_as_int(at, 0, BT_TOKENS_MAX - 1, id, why);
}

static bt_err
count_tokens(reader *read)
{
    int64_t highest = read->kind == BT_VOCAB_UNIGRAM ? (int64_t)bt_json_count(&read->vocab) - 1 : -1;
    size_t added = bt_json_count(&read->added);
    bt_json_at member;
    void *step = NULL;
    int64_t id;
    bt_err err;

    while (read->kind == BT_VOCAB_BPE && bt_json_next(&read->vocab, &step, &member)) {
        if ((err = as_id(&member, &id, read->why)) != BT_OK) {
            return err;
        }
        highest = id > highest ? id : highest;
    }
    for (size_t i = 0; i < added; i++) {
        bt_json_at token = bt_json_item(&read->added, i), number = bt_json_get(&token, "id");

        if ((err = as_id(&number, &id, read->why)) != BT_OK) {
            return err;
        }
        highest = id > highest ? id : highest;
    }
    if (highest < 0 || highest >= BT_TOKENS_MAX) {
        return bt_json_wrong(&read->vocab, read->why, "%lld tokens, expected 1 to %u", (long long)highest + 1,
                             BT_TOKENS_MAX);
    }
    read->count = (uint32_t)highest + 1;
    return BT_OK;
}

static bt_err
read_bpe_vocab(reader *read)
{
    bt_json_at member;
    void *step = NULL;
    int64_t id;
    bt_err err;

    while (bt_json_next(&read->vocab, &step, &member)) {
        if ((err = as_id(&member, &id, read->why)) != BT_OK) {
            return err;
        }
        read->tokens[id] = member.key;
        read->types[id] = BT_TOKEN_NORMAL;
    }
    return BT_OK;
}

static bt_err
read_unigram_vocab(reader *read)
{
    size_t count = bt_json_count(&read->vocab);

    for (size_t id = 0; id < count; id++) {
        bt_json_at pair = bt_json_item(&read->vocab, id), text = bt_json_item(&pair, 0), score = bt_json_item(&pair, 1);
        double value;
        bt_err err;

        if ((err = bt_json_as_text(&text, &read->tokens[id], read->why)) != BT_OK ||
            (err = bt_json_as_real(&score, -1e30, 1e30, &value, read->why)) != BT_OK) {
            return err;
        }
        read->scores[id] = (float)value;
        read->types[id] = BT_TOKEN_NORMAL;
    }
    return BT_OK;
}

static bt_err
read_added_types(reader *read)
{
    size_t count = bt_json_count(&read->added);

    for (size_t i = 0; i < count; i++) {
        bt_json_at token = bt_json_item(&read->added, i), number = bt_json_get(&token, "id");
        bt_json_at content = bt_json_get(&token, "content");
        bool special = false;
        int64_t id;
        bt_err err;

        if ((err = as_id(&number, &id, read->why)) != BT_OK ||
            (err = bt_json_as_text(&content, &read->tokens[id], read->why)) != BT_OK ||
            (err = bt_json_maybe_bool(&token, "special", &special, read->why)) != BT_OK) {
            return err;
        }
        read->types[id] = special ? BT_TOKEN_CONTROL : BT_TOKEN_USER_DEFINED;
    }
    return BT_OK;
}

static bt_err
gather_tokens(reader *read)
{
    bt_err err = count_tokens(read);

    if (err != BT_OK) {
        return err;
    }
    read->tokens = bt_alloc_array(read->count, sizeof *read->tokens);
    read->types = bt_alloc(read->count);
    read->scores = bt_alloc_array(read->count, sizeof *read->scores);
    if (read->tokens == NULL || read->types == NULL || read->scores == NULL) {
        return BT_ERR_NO_MEMORY;
    }
    memset(read->types, BT_TOKEN_UNUSED, read->count); // holes in the numbering
    err = read->kind == BT_VOCAB_BPE ? read_bpe_vocab(read) : read_unigram_vocab(read);
    return err != BT_OK ? err : read_added_types(read);
}

// "a b", or ["a", "b"] since tokens may hold spaces.
static bt_err
read_merge(const bt_json_at *merge, bt_str *left, bt_str *right, bt_why *why)
{
    const char *space;
    bt_str both;
    bt_err err;

    if (bt_json_type_of(merge) == BT_JSON_ARRAY) {
        bt_json_at first = bt_json_item(merge, 0), second = bt_json_item(merge, 1);

        err = bt_json_as_text(&first, left, why);
        return err != BT_OK ? err : bt_json_as_text(&second, right, why);
    }
    if ((err = bt_json_as_text(merge, &both, why)) != BT_OK) {
        return err;
    }
    space = both.len > 1 ? memchr(both.data + 1, ' ', both.len - 1) : NULL;
    if (space == NULL) {
        return bt_json_wrong(merge, why, "expected two tokens and a space");
    }
    *left = (bt_str){both.data, (size_t)(space - both.data)};
    *right = (bt_str){space + 1, both.len - left->len - 1};
    return BT_OK;
}

static bt_err
read_merges(reader *read, bt_tokenizer *tokenizer)
{
    bt_json_at merges = bt_json_get(&read->model, "merges");
    size_t count, lost = 0;
    bt_err err = bt_json_as_array(&merges, &count, read->why);

    if (err != BT_OK) {
        return err;
    }
    if (count > BT_MERGES_MAX) {
        return bt_json_wrong(&merges, read->why, "%zu merges, at most %u", count, BT_MERGES_MAX);
    }
    if ((err = bt_merge_table_init(&tokenizer->merges, (uint32_t)count)) != BT_OK) {
        return err;
    }
    for (size_t i = 0; i < count; i++) {
        bt_json_at merge = bt_json_item(&merges, i);
        bt_str left, right;

        if ((err = read_merge(&merge, &left, &right, read->why)) != BT_OK) {
            return err;
        }
        lost += !bt_tokenizer_add_merge(tokenizer, (uint32_t)i, left, right);
    }
    if (lost != 0) {
        bt_log_warn("VOCAB-MERGES", "%zu of %zu merges name tokens that the vocabulary lacks", lost, count);
    }
    return BT_OK;
}

static bt_err
refuse_affixes(reader *read)
{
    static const char *const names[] = {"continuing_subword_prefix", "end_of_word_suffix"};

    for (size_t i = 0; i < 2; i++) {
        bt_str affix = {0};
        bt_err err = bt_json_maybe_text(&read->model, names[i], &affix, read->why);

        if (err == BT_OK && affix.len != 0) {
            err = bt_fail(read->why, BT_ERR_UNSUPPORTED, "model.%s is not supported", names[i]);
        }
        if (err != BT_OK) {
            return err;
        }
    }
    return BT_OK;
}

static bt_err
read_bpe(reader *read, bt_tokenizer *tokenizer)
{
    bt_str unknown = {0};
    bt_err err;

    if ((err = refuse_affixes(read)) != BT_OK ||
        (err = bt_json_maybe_bool(&read->model, "ignore_merges", &tokenizer->ignore_merges, read->why)) != BT_OK ||
        (err = bt_json_maybe_bool(&read->model, "fuse_unk", &tokenizer->fuse_unknown, read->why)) != BT_OK ||
        (err = bt_json_maybe_text(&read->model, "unk_token", &unknown, read->why)) != BT_OK) {
        return err;
    }
    tokenizer->unknown = bt_tokenizer_find(tokenizer, unknown);
    return read_merges(read, tokenizer);
}

static bt_err
read_unigram(reader *read, bt_tokenizer *tokenizer)
{
    int64_t unknown = -1;
    bt_err err = bt_json_maybe_int(&read->model, "unk_id", 0, tokenizer->tokens.count - 1, &unknown, read->why);

    if (err != BT_OK) {
        return err;
    }
    tokenizer->unknown = (int32_t)unknown;
    tokenizer->fuse_unknown = true;
    tokenizer->scores = read->scores;
    read->scores = NULL;
    if (unknown >= 0) {
        tokenizer->tokens.types[unknown] = BT_TOKEN_UNKNOWN;
    }
    bt_unigram_init(&tokenizer->unigram, &tokenizer->tokens, tokenizer->scores);
    return BT_OK;
}

static void
mark_byte_tokens(bt_tokenizer *tokenizer)
{
    for (uint32_t id = 0; id < tokenizer->tokens.count && tokenizer->byte_fallback; id++) {
        if (tokenizer->tokens.types[id] == BT_TOKEN_NORMAL &&
            bt_token_byte_value(bt_token_table_text(&tokenizer->tokens, id)) >= 0) {
            tokenizer->tokens.types[id] = BT_TOKEN_BYTE;
        }
    }
}

static bt_err
read_pipeline(reader *read, bt_tokenizer *tokenizer)
{
    bt_json_at normalizer = bt_json_get(&read->root, "normalizer"), pre = bt_json_get(&read->root, "pre_tokenizer");
    bt_err err;

    if ((err = bt_json_read_normalizer(&normalizer, &tokenizer->normalizer, read->why)) != BT_OK ||
        (err = bt_json_read_pre_tokenizer(&pre, &tokenizer->pre, read->why)) != BT_OK) {
        return err;
    }
    for (uint32_t i = 0; i < tokenizer->normalizer.count; i++) {
        tokenizer->drops_first_space |= tokenizer->normalizer.steps[i].kind == BT_NORMALIZE_PREPEND;
    }
    for (uint32_t i = 0; i < tokenizer->pre.count; i++) {
        const bt_pre_step *step = &tokenizer->pre.steps[i];

        tokenizer->drops_first_space |= step->metaspace && step->prefix != BT_PREFIX_NEVER;
    }
    return BT_OK;
}

// A token that is looked for in normalised text is itself normalised.
static bt_err
normalize_token(bt_tokenizer *tokenizer, bt_added_token *token)
{
    bt_regex_finder *finder;
    bt_buf buffers[2];
    char *copy = NULL;
    bt_err err = bt_regex_finder_open(&finder, token->text.len);

    if (err != BT_OK) {
        return err;
    }
    bt_buf_init(&buffers[0], 1 << 16);
    bt_buf_init(&buffers[1], 1 << 16);
    err = bt_normalizer_apply(&tokenizer->normalizer, finder, buffers, token->text, &token->text);
    if (err == BT_OK) {
        copy = bt_arena_copy(&tokenizer->arena, token->text.data, token->text.len);
        token->text.data = copy;
        err = copy != NULL ? BT_OK : BT_ERR_NO_MEMORY;
    }
    bt_buf_fini(&buffers[0]);
    bt_buf_fini(&buffers[1]);
    bt_regex_finder_close(finder);
    return err;
}

static bt_err
read_added_token(const bt_json_at *at, bt_tokenizer *tokenizer, bt_why *why)
{
    bt_json_at number = bt_json_get(at, "id");
    bt_added_token token = {0};
    bool normalized = false;
    int64_t id;
    bt_err err;

    if ((err = as_id(&number, &id, why)) != BT_OK ||
        (err = bt_json_maybe_bool(at, "lstrip", &token.left, why)) != BT_OK ||
        (err = bt_json_maybe_bool(at, "rstrip", &token.right, why)) != BT_OK ||
        (err = bt_json_maybe_bool(at, "single_word", &token.single_word, why)) != BT_OK ||
        (err = bt_json_maybe_bool(at, "special", &token.special, why)) != BT_OK ||
        (err = bt_json_maybe_bool(at, "normalized", &normalized, why)) != BT_OK) {
        return err;
    }
    token.id = (int32_t)id;
    token.text = bt_token_table_text(&tokenizer->tokens, (uint32_t)id);
    if (token.text.len > BT_ADDED_BYTES_MAX) {
        return bt_json_wrong(at, why, "%zu bytes, at most %d", token.text.len, BT_ADDED_BYTES_MAX);
    }
    if (!normalized) {
        return bt_added_add(&tokenizer->added, token);
    }
    err = normalize_token(tokenizer, &token);
    return err != BT_OK ? err : bt_added_add(&tokenizer->added_normalized, token);
}

static bt_err
read_added(reader *read, bt_tokenizer *tokenizer)
{
    size_t count = bt_json_count(&read->added);
    bt_err err = BT_OK;

    for (size_t i = 0; err == BT_OK && i < count; i++) {
        bt_json_at token = bt_json_item(&read->added, i);

        err = read_added_token(&token, tokenizer, read->why);
    }
    return err;
}

// TemplateProcessing tells which token is put in front of a prompt.
static bt_err
read_template(const bt_json_at *at, bt_tokenizer *tokenizer, bt_why *why)
{
    bt_json_at single = bt_json_get(at, "single"), first = bt_json_item(&single, 0);
    bt_json_at special = bt_json_get(&first, "SpecialToken"), name = bt_json_get(&special, "id");
    bt_str text;
    bt_err err;

    if (!bt_json_given(&special)) {
        return BT_OK;
    }
    if ((err = bt_json_as_text(&name, &text, why)) != BT_OK) {
        return err;
    }
    tokenizer->bos = bt_tokenizer_find(tokenizer, text);
    tokenizer->add_bos = tokenizer->bos >= 0;
    return BT_OK;
}

static bt_err
read_post_processor(const bt_json_at *at, bt_tokenizer *tokenizer, bt_why *why)
{
    bt_json_at list = bt_json_get(at, "processors");
    bt_str type = {0};
    bt_err err = bt_json_maybe_text(at, "type", &type, why);

    if (err == BT_OK && bt_str_is(type, "TemplateProcessing")) {
        return read_template(at, tokenizer, why);
    }
    for (size_t i = 0; err == BT_OK && i < bt_json_count(&list); i++) {
        bt_json_at item = bt_json_item(&list, i);

        err = bt_json_maybe_text(&item, "type", &type, why);
        if (err == BT_OK && bt_str_is(type, "TemplateProcessing")) {
            err = read_template(&item, tokenizer, why);
        }
    }
    return err;
}

static bt_err
build(reader *read, bt_tokenizer *tokenizer)
{
    bt_json_at post = bt_json_get(&read->root, "post_processor");
    bt_err err;

    if ((err = bt_json_maybe_bool(&read->model, "byte_fallback", &tokenizer->byte_fallback, read->why)) != BT_OK ||
        (err = read->kind == BT_VOCAB_BPE ? read_bpe(read, tokenizer) : read_unigram(read, tokenizer)) != BT_OK ||
        (err = read_pipeline(read, tokenizer)) != BT_OK || (err = read_added(read, tokenizer)) != BT_OK ||
        (err = read_post_processor(&post, tokenizer, read->why)) != BT_OK) {
        return err;
    }
    mark_byte_tokens(tokenizer);
    return BT_OK;
}

// "bos_token": "<s>", or an object with its "content".
static bt_err
read_token_name(const bt_json_at *config, const char *key, const bt_tokenizer *tokenizer, int32_t *id, bt_why *why)
{
    bt_json_at token = bt_json_get(config, key), content = bt_json_get(&token, "content");
    bt_str text;
    bt_err err;

    if (!bt_json_given(&token)) {
        return BT_OK;
    }
    err = bt_json_as_text(bt_json_type_of(&token) == BT_JSON_OBJECT ? &content : &token, &text, why);
    if (err == BT_OK) {
        *id = bt_tokenizer_find(tokenizer, text);
    }
    return err;
}

// A template, or a list of {"name", "template"} of which the one named "default" counts.
static bt_err
read_chat_template(const bt_json_at *config, bt_tokenizer *tokenizer, bt_why *why)
{
    bt_json_at at = bt_json_get(config, "chat_template");
    bt_str text = {0};
    bt_err err = BT_OK;

    if (!bt_json_given(&at)) {
        return BT_OK;
    }
    if (bt_json_type_of(&at) != BT_JSON_ARRAY) {
        err = bt_json_as_text(&at, &text, why);
    }
    for (size_t i = 0; err == BT_OK && bt_json_type_of(&at) == BT_JSON_ARRAY && i < bt_json_count(&at); i++) {
        bt_json_at item = bt_json_item(&at, i), body = bt_json_get(&item, "template");
        bt_str name = {0};

        err = bt_json_maybe_text(&item, "name", &name, why);
        if (err == BT_OK && bt_str_is(name, "default")) {
            err = bt_json_as_text(&body, &text, why);
        }
    }
    if (err != BT_OK || text.data == NULL) {
        return err;
    }
    tokenizer->chat_template = bt_strdup(text.data);
    return tokenizer->chat_template != NULL ? BT_OK : BT_ERR_NO_MEMORY;
}

static bt_err
read_config(bt_str text, bt_tokenizer *tokenizer, bt_why *why)
{
    // model_max_length is often 1000000000000000019884624838656.
    bt_json_limits limits = {.integers_as_reals = true};
    bt_json *document;
    bt_json_at root;
    bt_err err = bt_json_parse(&document, text, &limits, why);

    if (err != BT_OK) {
        return err;
    }
    root = bt_json_root(document);
    if ((err = read_token_name(&root, "bos_token", tokenizer, &tokenizer->bos, why)) == BT_OK &&
        (err = read_token_name(&root, "eos_token", tokenizer, &tokenizer->eos, why)) == BT_OK &&
        (err = read_token_name(&root, "pad_token", tokenizer, &tokenizer->pad, why)) == BT_OK &&
        (err = bt_json_maybe_bool(&root, "add_bos_token", &tokenizer->add_bos, why)) == BT_OK) {
        err = read_chat_template(&root, tokenizer, why);
    }
    bt_json_close(document);
    return err;
}

// Without a config the end is known by its usual names only.
static void
guess_eos(bt_tokenizer *tokenizer)
{
    static const char *const names[] = {"</s>", "<eos>", "<|end_of_text|>", "<|endoftext|>"};

    for (size_t i = 0; i < sizeof names / sizeof *names && tokenizer->eos < 0; i++) {
        int32_t id = bt_tokenizer_find(tokenizer, bt_str_of(names[i]));

        tokenizer->eos = bt_tokenizer_type(tokenizer, id) == BT_TOKEN_CONTROL ? id : -1;
    }
}

static bt_err
open_document(reader *read, bt_str config_json, bt_tokenizer **out)
{
    bt_tokenizer *tokenizer;
    bt_err err;

    read->model = bt_json_get(&read->root, "model");
    read->vocab = bt_json_get(&read->model, "vocab");
    read->added = bt_json_get(&read->root, "added_tokens");
    if ((err = bt_json_as_object(&read->model, read->why)) != BT_OK || (err = read_kind(read)) != BT_OK ||
        (err = gather_tokens(read)) != BT_OK ||
        (err = bt_tokenizer_begin(&tokenizer, read->kind, read->tokens, read->types, read->count, read->why)) !=
            BT_OK) {
        return err;
    }
    if ((err = build(read, tokenizer)) == BT_OK && config_json.len != 0) {
        err = read_config(config_json, tokenizer, read->why);
    }
    guess_eos(tokenizer);
    if (err != BT_OK || (err = bt_tokenizer_finish(tokenizer, read->why)) != BT_OK) {
        bt_tokenizer_close(tokenizer);
        return err;
    }
    *out = tokenizer;
    return BT_OK;
}

bt_err
bt_tokenizer_open_json(bt_tokenizer **out, bt_str tokenizer_json, bt_str config_json, bt_why *why)
{
    reader read = {.why = why};
    bt_json *document;
    bt_err err = bt_json_parse(&document, tokenizer_json, NULL, why);

    if (err != BT_OK) {
        return err;
    }
    read.root = bt_json_root(document);
    err = open_document(&read, config_json, out);
    bt_free(read.tokens);
    bt_free(read.types);
    bt_free(read.scores);
    bt_json_close(document);
    return err == BT_ERR_NO_MEMORY ? bt_fail(why, err, "tokenizer.json: out of memory") : err;
}
