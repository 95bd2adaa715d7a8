// The vocabulary in a GGUF file's metadata (tokenizer.ggml.*), as bt_tokenizer_open takes it.
//
//     if ((err = bt_gguf_vocab_open(&vocab, gguf, why)) == BT_OK) {
//         err = bt_tokenizer_open(&tokenizer, &vocab->vocab, why);
//         bt_gguf_vocab_close(vocab);
//     }
//
// Texts are borrowed from the file: close this before the file. Once built nothing is written: any thread may read.
#pragma once

#include "common/model/gguf.h"
#include "common/text/tokenizer.h"

typedef struct {
    bt_vocab vocab;
    bt_str *tokens, *merges;
    float *scores;
    uint8_t *types;
    char *pre, *chat_template; // NUL-terminated copies
} bt_gguf_vocab;

// BT_ERR_NOT_FOUND when the file has no tokenizer.ggml.tokens; BT_ERR_UNSUPPORTED names a model (bert, rwkv …) or a
// normaliser that we do not do; BT_ERR_INVALID names the key that is wrong.
bt_err bt_gguf_vocab_open(bt_gguf_vocab **out, const bt_gguf *gguf, bt_why *why);
void bt_gguf_vocab_close(bt_gguf_vocab *vocab); // NULL is fine
