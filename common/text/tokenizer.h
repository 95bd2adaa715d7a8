// Text to token ids and back: byte-level BPE (GPT-2 family, tiktoken-like regexes) and SentencePiece (BPE with scores
// and byte fallback; unigram), from GGUF metadata or a Hugging Face tokenizer.json.
//
// A tokenizer is immutable after open: any number of threads may encode and decode with it. Text comes from outside:
// invalid UTF-8 is BT_ERR_INVALID with its offset, a pre-tokenizer regex that exceeds its match limit is an error.
#pragma once

#include "common/base/err.h"
#include "common/base/str.h"

typedef enum { BT_VOCAB_BPE, BT_VOCAB_SPM, BT_VOCAB_UNIGRAM } bt_vocab_kind;

typedef enum {
    BT_TOKEN_NORMAL = 1, // the numbers are GGUF's
    BT_TOKEN_UNKNOWN = 2,
    BT_TOKEN_CONTROL = 3,
    BT_TOKEN_USER_DEFINED = 4,
    BT_TOKEN_UNUSED = 5,
    BT_TOKEN_BYTE = 6,
} bt_token_type;

// A vocabulary as its file gives it; whoever reads the file fills this in, open copies what it keeps.
typedef struct {
    bt_vocab_kind kind;
    uint32_t count;
    const bt_str *tokens; // [count]
    const float *scores;  // [count], NULL for BPE
    const uint8_t *types; // [count] bt_token_type, NULL = all normal
    const bt_str *merges; // [merge_count] "left right"; BPE only
    uint32_t merge_count;
    const char *
        pre; // name of the pre-tokenizer as in GGUF's tokenizer.ggml.pre ("llama-bpe", "smollm", "qwen2", …), NULL = default
    int32_t bos, eos, unknown, pad; // -1 = none
    bool add_bos, add_eos;          // what the model's file asks for in front of / behind a prompt
    bool add_space_prefix;          // SentencePiece: a space before the first piece
    bool remove_extra_spaces;       // SentencePiece normaliser
    const char *chat_template;      // Jinja source or NULL
} bt_vocab;

typedef struct bt_tokenizer bt_tokenizer;

bt_err bt_tokenizer_open(bt_tokenizer **out, const bt_vocab *vocab, bt_why *why);
// From the bytes of tokenizer.json; tokenizer_config.json (may be NULL) gives template, bos, eos and add_bos.
bt_err bt_tokenizer_open_json(bt_tokenizer **out, bt_str tokenizer_json, bt_str config_json, bt_why *why);
void bt_tokenizer_close(bt_tokenizer *tokenizer);

enum {
    BT_ENCODE_SPECIAL = 1, // control tokens written in the text become their ids; otherwise they are plain text
    BT_ENCODE_BOS = 2,     // put BOS in front if the model's file asks for it
};

// Most bytes that one call encodes.
#define BT_ENCODE_BYTES_MAX ((size_t)64 << 20)

// Writes up to `cap` ids; *count is the number needed, also when that is more than `cap` and BT_ERR_TOO_LONG is returned
// (a text over BT_ENCODE_BYTES_MAX is BT_ERR_TOO_LONG with *count = cap + 1). BT_ERR_INVALID with the offset for text
// that is not UTF-8. Takes working memory in proportion to the longest piece of the text and frees it before it returns,
// so it does not run on a thread that serves (bt_mem_serving_begin).
bt_err bt_tokenizer_encode(const bt_tokenizer *tokenizer, bt_str text, unsigned flags, int32_t *ids, size_t cap,
                           size_t *count, bt_why *why);

uint32_t bt_tokenizer_vocab_size(const bt_tokenizer *tokenizer);
int32_t bt_tokenizer_bos(const bt_tokenizer *tokenizer); // -1 = none
int32_t bt_tokenizer_eos(const bt_tokenizer *tokenizer);
bool bt_tokenizer_adds_bos(const bt_tokenizer *tokenizer);
// Encoding puts a space in front of the text, which decoding from the start of a text drops again (detok.h does).
bool bt_tokenizer_drops_first_space(const bt_tokenizer *tokenizer);
// Ends a generation: eos, and the turn-end tokens found by name (<|im_end|>, <end_of_turn>, <|eot_id|>, <|endoftext|>, …).
bool bt_tokenizer_is_end(const bt_tokenizer *tokenizer, int32_t id);
bt_token_type bt_tokenizer_type(const bt_tokenizer *tokenizer, int32_t id);
const char *bt_tokenizer_chat_template(const bt_tokenizer *tokenizer);  // NULL = none
int32_t bt_tokenizer_find(const bt_tokenizer *tokenizer, bt_str token); // id of a token by its stored text, -1 = none
bt_str bt_tokenizer_token_text(const bt_tokenizer *tokenizer,
                               int32_t id); // as stored in the file; empty when out of range

// The bytes that `id` stands for in running text (byte-level and byte tokens decoded, SentencePiece's ▁ a space; control
// tokens are empty unless `special`). Not always whole characters: see detok.h. Borrowed; empty for ids out of range.
bt_str bt_tokenizer_bytes(const bt_tokenizer *tokenizer, int32_t id, bool special);
