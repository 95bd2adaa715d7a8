#include "common/text/tokenizer.h"

#include "common/base/log.h"
#include "common/text/byte_level.h"
#include "common/text/tokenizer_impl.h"

#include <math.h>

// Tokens that end a turn or a text, as the models of the last years name them.
static const char *const end_names[] = {
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|end|>",
    "<end_of_turn>",
    "<|end_of_turn|>",
    "<turn|>",
    "<EOT>",
    "_<EOT>",
    "<|eot|>",
    "<|eom|>",
    "<|return|>",
    "<|call|>",
    "<eos>",
    "<|endofprompt|>",
    "<|END_OF_TURN_TOKEN|>",
    "[EOS]",
    "<end_of_utterance>",
    "<｜end▁of▁sentence｜>",
    "<|end_of_role|>",
};

bt_err
bt_tokenizer_begin(bt_tokenizer **out, bt_vocab_kind kind, const bt_str *tokens, const uint8_t *types, uint32_t count,
                   bt_why *why)
{
    bt_tokenizer *tokenizer = bt_alloc(sizeof *tokenizer);
    bt_err err;

    if (tokenizer == NULL) {
        return BT_ERR_NO_MEMORY;
    }
    tokenizer->kind = kind;
    tokenizer->bos = tokenizer->eos = tokenizer->unknown = tokenizer->pad = -1;
    bt_arena_init(&tokenizer->arena, BT_TOKEN_TEXT_BYTES_MAX);
    if ((err = bt_token_table_init(&tokenizer->tokens, tokens, types, count, why)) != BT_OK) {
        bt_tokenizer_close(tokenizer);
        return err;
    }
    *out = tokenizer;
    return BT_OK;
}

void
bt_tokenizer_close(bt_tokenizer *tokenizer)
{
    if (tokenizer == NULL) {
        return;
    }
    bt_token_table_fini(&tokenizer->tokens);
    bt_added_fini(&tokenizer->added);
    bt_added_fini(&tokenizer->added_normalized);
    bt_normalizer_fini(&tokenizer->normalizer);
    bt_pre_tokenizer_fini(&tokenizer->pre);
    bt_merge_table_fini(&tokenizer->merges);
    bt_arena_fini(&tokenizer->arena);
    bt_free(tokenizer->order);
    bt_free(tokenizer->scores);
    bt_free(tokenizer->chat_template);
    bt_free(tokenizer);
}

bool
bt_tokenizer_add_merge(bt_tokenizer *tokenizer, uint32_t rank, bt_str left, bt_str right)
{
    char joined[256];
    int32_t a = bt_token_table_find(&tokenizer->tokens, left.data, left.len);
    int32_t b = bt_token_table_find(&tokenizer->tokens, right.data, right.len);
    int32_t both = -1;

    if (a < 0 || b < 0) {
        return false;
    }
    if (left.len + right.len <= sizeof joined) {
        memcpy(joined, left.data, left.len);
        memcpy(joined + left.len, right.data, right.len);
        both = bt_token_table_find(&tokenizer->tokens, joined, left.len + right.len);
    } else {
        char *longer = bt_arena_alloc(&tokenizer->arena, left.len + right.len);

        if (longer != NULL) {
            memcpy(longer, left.data, left.len);
            memcpy(longer + left.len, right.data, right.len);
            both = bt_token_table_find(&tokenizer->tokens, longer, left.len + right.len);
        }
    }
    if (both >= 0) {
        bt_merge_table_add(&tokenizer->merges, (bt_merge){(uint32_t)a, (uint32_t)b, rank, (uint32_t)both});
    }
    return both >= 0;
}

static void
find_byte_tokens(bt_tokenizer *tokenizer)
{
    for (unsigned byte = 0; byte < 256; byte++) {
        char text[8];
        size_t len;

        if (tokenizer->pre.byte_level) {
            len = bt_utf8_encode(bt_byte_level_letter((uint8_t)byte), text);
        } else {
            static const char hex[] = "0123456789ABCDEF";

            memcpy(text, (char[]){'<', '0', 'x', hex[byte >> 4], hex[byte & 15], '>'}, 6);
            len = 6;
        }
        tokenizer->byte_ids[byte] = bt_token_table_find(&tokenizer->tokens, text, len);
    }
}

static void
note_crossings(bt_tokenizer *tokenizer, bt_str text)
{
    size_t before = 0;

    for (size_t at = 0; at < text.len;) {
        uint32_t c;
        size_t len = bt_utf8_decode(text.data + at, text.len - at, &c);

        len = len != 0 ? len : 1; // no such token can be met in valid text
        if (at != 0) {
            uint8_t left = bt_cut_class(text.data + at - before, before, true);
            uint8_t right = bt_cut_class(text.data + at, len, false);

            tokenizer->crosses[left][right / 8] |= (uint8_t)(1u << right % 8);
        }
        before = len;
        at += len;
    }
}

static void
find_ends(bt_tokenizer *tokenizer)
{
    if (tokenizer->eos >= 0) {
        tokenizer->ends[tokenizer->end_count++] = tokenizer->eos;
    }
    for (size_t i = 0; i < sizeof end_names / sizeof *end_names && tokenizer->end_count < BT_ENDS_MAX; i++) {
        int32_t id = bt_token_table_find(&tokenizer->tokens, end_names[i], strlen(end_names[i]));

        // A word of the language that happens to be spelt so is no end.
        if (id >= 0 && tokenizer->tokens.types[id] != BT_TOKEN_NORMAL && id != tokenizer->eos) {
            tokenizer->ends[tokenizer->end_count++] = id;
        }
    }
}

bt_err
bt_tokenizer_finish(bt_tokenizer *tokenizer, bt_why *why)
{
    bt_err err = bt_token_table_decode(&tokenizer->tokens,
                                       tokenizer->pre.byte_level ? BT_TOKEN_TEXT_BYTE_LEVEL : BT_TOKEN_TEXT_SPACES);
    int32_t *ids[] = {&tokenizer->bos, &tokenizer->eos, &tokenizer->unknown, &tokenizer->pad};

    if (err != BT_OK) {
        return err;
    }
    for (size_t i = 0; i < 4; i++) {
        if (*ids[i] >= 0 && (uint32_t)*ids[i] >= tokenizer->tokens.count) {
            return bt_fail(why, BT_ERR_INVALID, "vocabulary: special token id %d, but there are %u tokens", *ids[i],
                           tokenizer->tokens.count);
        }
    }
    for (uint32_t id = 0; id < tokenizer->tokens.count; id++) {
        bt_str text = bt_token_table_text(&tokenizer->tokens, id);

        tokenizer->longest = text.len > tokenizer->longest ? (uint32_t)text.len : tokenizer->longest;
        if (!tokenizer->pre.byte_level) {
            note_crossings(tokenizer, text);
        }
    }
    find_byte_tokens(tokenizer);
    find_ends(tokenizer);
    bt_added_sort(&tokenizer->added);
    bt_added_sort(&tokenizer->added_normalized);
    return BT_OK;
}

static bt_err
add_typed_token(bt_tokenizer *tokenizer, uint32_t id)
{
    bt_str text = bt_token_table_text(&tokenizer->tokens, id);
    bool special = tokenizer->tokens.types[id] != BT_TOKEN_USER_DEFINED;
    bt_added_token token = {.text = text, .id = (int32_t)id, .special = special};
    bt_str spelt;
    char *copy;

    if (special || tokenizer->pre.byte_level) {
        return bt_added_add(&tokenizer->added, token);
    }
    if ((copy = bt_arena_alloc(&tokenizer->arena, 3 * text.len)) == NULL) {
        return BT_ERR_NO_MEMORY;
    }
    token.text = spelt = bt_token_spell(text, copy);
    // SentencePiece looks for them in the normalised text, where a typed ▁ is a space. With a space put in front of
    // each fragment they are later additions, made by Hugging Face's tokenizers, which cut the raw text at them.
    if (tokenizer->drops_first_space) {
        return bt_added_add(&tokenizer->added, token);
    }
    if ((token.text.data = copy = bt_arena_alloc(&tokenizer->arena, 3 * text.len)) == NULL) {
        return BT_ERR_NO_MEMORY;
    }
    token.text.len = bt_token_unspell(spelt, copy).len;
    return bt_added_add(&tokenizer->added_normalized, token);
}

// Tokens of a GGUF vocabulary that are found in the text as they are. One that is not UTF-8 could cut a character in
// two, and is never found.
static bt_err
add_typed_tokens(bt_tokenizer *tokenizer, bt_why *why)
{
    for (uint32_t id = 0; id < tokenizer->tokens.count; id++) {
        uint8_t type = tokenizer->tokens.types[id];
        bt_str text = bt_token_table_text(&tokenizer->tokens, id);
        bt_err err;

        if ((type != BT_TOKEN_CONTROL && type != BT_TOKEN_USER_DEFINED && type != BT_TOKEN_UNKNOWN) ||
            bt_utf8_valid_prefix(text.data, text.len) != text.len) {
            continue;
        }
        if ((err = add_typed_token(tokenizer, id)) != BT_OK) {
            return bt_fail(why, err, "vocabulary: token %u: %zu bytes, at most %d for one that is found as it is", id,
                           text.len, BT_ADDED_BYTES_MAX);
        }
    }
    return BT_OK;
}

static bt_err
replace_spaces(bt_tokenizer *tokenizer)
{
    return bt_normalizer_add(&tokenizer->normalizer, (bt_normalize_step){.kind = BT_NORMALIZE_REPLACE}, bt_str_of(" "),
                             bt_str_of("\xe2\x96\x81"));
}

static bt_err
set_pre(bt_tokenizer *tokenizer, const char *name, bt_why *why)
{
    const bt_pre_name *pre = bt_pre_name_find(name != NULL && name[0] != 0 ? name : "default");
    bt_err err = BT_OK;

    if (pre == NULL) {
        return bt_fail(why, BT_ERR_UNSUPPORTED, "tokenizer.ggml.pre: pre-tokenizer '%.64s' is not known", name);
    }
    tokenizer->pre.byte_level = !pre->spaces;
    tokenizer->byte_fallback = pre->spaces;
    tokenizer->fuse_unknown = pre->spaces;
    tokenizer->ignore_merges = pre->ignore_merges;
    if (pre->nfc) {
        err = bt_normalizer_add(&tokenizer->normalizer, (bt_normalize_step){.kind = BT_NORMALIZE_NFC}, (bt_str){0},
                                (bt_str){0});
    }
    if (err == BT_OK && pre->spaces) {
        err = replace_spaces(tokenizer);
    }
    for (uint32_t i = 0; err == BT_OK && pre->patterns[i] != NULL; i++) {
        err = bt_pre_tokenizer_add_regex(&tokenizer->pre, bt_str_of(pre->patterns[i]), BT_SPLIT_ISOLATED, false, why);
    }
    return err;
}

static bt_err
set_bpe(bt_tokenizer *tokenizer, const bt_vocab *vocab, bt_why *why)
{
    uint32_t lost = 0;
    bt_err err;

    if (vocab->merge_count > BT_MERGES_MAX) {
        return bt_fail(why, BT_ERR_TOO_LONG, "vocabulary: %u merges, at most %u", vocab->merge_count, BT_MERGES_MAX);
    }
    if ((err = set_pre(tokenizer, vocab->pre, why)) != BT_OK ||
        (err = bt_merge_table_init(&tokenizer->merges, vocab->merge_count)) != BT_OK) {
        return err;
    }
    for (uint32_t i = 0; i < vocab->merge_count; i++) {
        bt_str merge = vocab->merges[i];
        const char *space = merge.len > 1 ? memchr(merge.data + 1, ' ', merge.len - 1) : NULL;
        size_t left = space != NULL ? (size_t)(space - merge.data) : 0;

        if (space == NULL) {
            return bt_fail(why, BT_ERR_INVALID, "vocabulary: merge %u is not two tokens and a space", i);
        }
        lost += !bt_tokenizer_add_merge(tokenizer, i, (bt_str){merge.data, left},
                                        (bt_str){space + 1, merge.len - left - 1});
    }
    if (lost != 0) {
        bt_log_warn("VOCAB-MERGES", "%u of %u merges name tokens that the vocabulary lacks", lost, vocab->merge_count);
    }
    return BT_OK;
}

static bt_err
set_space_normalizer(bt_tokenizer *tokenizer, const bt_vocab *vocab)
{
    bt_err err = BT_OK;

    if (vocab->remove_extra_spaces && vocab->kind == BT_VOCAB_UNIGRAM) {
        err = bt_normalizer_add(&tokenizer->normalizer, (bt_normalize_step){.kind = BT_NORMALIZE_SQUEEZE}, (bt_str){0},
                                (bt_str){0});
    }
    if (err == BT_OK && vocab->add_space_prefix) {
        tokenizer->drops_first_space = true;
        err = bt_normalizer_add(&tokenizer->normalizer, (bt_normalize_step){.kind = BT_NORMALIZE_PREPEND}, (bt_str){0},
                                bt_str_of(" "));
    }
    return err != BT_OK ? err : replace_spaces(tokenizer);
}

// Higher scores merge first: floats as integers that sort the other way round.
static uint32_t
order_of(float score)
{
    uint32_t bits;

    memcpy(&bits, &score, sizeof bits);
    return bits >> 31 ? bits : ~(bits | 0x80000000u);
}

static bt_err
set_scores(bt_tokenizer *tokenizer, const bt_vocab *vocab, bt_why *why)
{
    uint32_t count = vocab->count;

    if (vocab->scores == NULL) {
        return bt_fail(why, BT_ERR_INVALID, "vocabulary: a SentencePiece model needs scores");
    }
    if (vocab->kind == BT_VOCAB_UNIGRAM) {
        tokenizer->scores = bt_alloc_array(count, sizeof *tokenizer->scores);
    } else {
        tokenizer->order = bt_alloc_array(count, sizeof *tokenizer->order);
    }
    if (tokenizer->scores == NULL && tokenizer->order == NULL) {
        return BT_ERR_NO_MEMORY;
    }
    for (uint32_t id = 0; id < count; id++) {
        uint8_t type = tokenizer->tokens.types[id];

        if (!isfinite(vocab->scores[id])) {
            return bt_fail(why, BT_ERR_INVALID, "vocabulary: the score of token %u is no number", id);
        }
        if (tokenizer->scores != NULL) {
            tokenizer->scores[id] = vocab->scores[id];
        } else {
            bool merges = type == BT_TOKEN_NORMAL || type == BT_TOKEN_USER_DEFINED;

            tokenizer->order[id] = merges ? order_of(vocab->scores[id]) : UINT32_MAX;
        }
    }
    return BT_OK;
}

static bt_err
set_spm(bt_tokenizer *tokenizer, const bt_vocab *vocab, bt_why *why)
{
    bt_err err;

    tokenizer->byte_fallback = true;
    tokenizer->fuse_unknown = true;
    if ((err = set_scores(tokenizer, vocab, why)) != BT_OK || (err = set_space_normalizer(tokenizer, vocab)) != BT_OK) {
        return err;
    }
    if (tokenizer->scores != NULL) {
        bt_unigram_init(&tokenizer->unigram, &tokenizer->tokens, tokenizer->scores);
    }
    return BT_OK;
}

bt_err
bt_tokenizer_open(bt_tokenizer **out, const bt_vocab *vocab, bt_why *why)
{
    bt_tokenizer *tokenizer;
    bt_err err = bt_tokenizer_begin(&tokenizer, vocab->kind, vocab->tokens, vocab->types, vocab->count, why);

    if (err != BT_OK) {
        return err == BT_ERR_NO_MEMORY ? bt_fail(why, err, "vocabulary: out of memory") : err;
    }
    tokenizer->bos = vocab->bos;
    tokenizer->eos = vocab->eos;
    tokenizer->unknown = vocab->unknown;
    tokenizer->pad = vocab->pad;
    tokenizer->add_bos = vocab->add_bos;
    err = vocab->kind == BT_VOCAB_BPE ? set_bpe(tokenizer, vocab, why) : set_spm(tokenizer, vocab, why);
    if (err == BT_OK && vocab->chat_template != NULL) {
        tokenizer->chat_template = bt_strdup(vocab->chat_template);
        err = tokenizer->chat_template != NULL ? BT_OK : BT_ERR_NO_MEMORY;
    }
    if (err != BT_OK || (err = add_typed_tokens(tokenizer, why)) != BT_OK ||
        (err = bt_tokenizer_finish(tokenizer, why)) != BT_OK) {
        bt_tokenizer_close(tokenizer);
        return err == BT_ERR_NO_MEMORY ? bt_fail(why, err, "vocabulary: out of memory") : err;
    }
    *out = tokenizer;
    return BT_OK;
}

uint32_t
bt_tokenizer_vocab_size(const bt_tokenizer *tokenizer)
{
    return tokenizer->tokens.count;
}

int32_t
bt_tokenizer_bos(const bt_tokenizer *tokenizer)
{
    return tokenizer->bos;
}

int32_t
bt_tokenizer_eos(const bt_tokenizer *tokenizer)
{
    return tokenizer->eos;
}

bool
bt_tokenizer_adds_bos(const bt_tokenizer *tokenizer)
{
    return tokenizer->add_bos && tokenizer->bos >= 0;
}

bool
bt_tokenizer_drops_first_space(const bt_tokenizer *tokenizer)
{
    return tokenizer->drops_first_space;
}

bool
bt_tokenizer_is_end(const bt_tokenizer *tokenizer, int32_t id)
{
    for (uint32_t i = 0; i < tokenizer->end_count; i++) {
        if (tokenizer->ends[i] == id) {
            return true;
        }
    }
    return false;
}

static bool
in_range(const bt_tokenizer *tokenizer, int32_t id)
{
    return id >= 0 && (uint32_t)id < tokenizer->tokens.count;
}

bt_token_type
bt_tokenizer_type(const bt_tokenizer *tokenizer, int32_t id)
{
    return in_range(tokenizer, id) ? (bt_token_type)tokenizer->tokens.types[id] : BT_TOKEN_UNUSED;
}

const char *
bt_tokenizer_chat_template(const bt_tokenizer *tokenizer)
{
    return tokenizer->chat_template;
}

int32_t
bt_tokenizer_find(const bt_tokenizer *tokenizer, bt_str token)
{
    return bt_token_table_find(&tokenizer->tokens, token.data, token.len);
}

bt_str
bt_tokenizer_token_text(const bt_tokenizer *tokenizer, int32_t id)
{
    return in_range(tokenizer, id) ? bt_token_table_text(&tokenizer->tokens, (uint32_t)id) : (bt_str){"", 0};
}

bt_str
bt_tokenizer_bytes(const bt_tokenizer *tokenizer, int32_t id, bool special)
{
    bt_token_type type = bt_tokenizer_type(tokenizer, id);

    if (!in_range(tokenizer, id) || (!special && (type == BT_TOKEN_CONTROL || type == BT_TOKEN_UNKNOWN))) {
        return (bt_str){"", 0};
    }
    return bt_token_table_bytes(&tokenizer->tokens, (uint32_t)id);
}
