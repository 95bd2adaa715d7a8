// SentencePiece's unigram model: of all ways to cut a piece into tokens, the one with the highest sum of scores.
#pragma once

#include "common/text/token_table.h"

#define BT_UNIGRAM_TOKEN_BYTES_MAX 512 // longer tokens are never looked for: the search is linear in text × this

typedef struct {
    const bt_token_table *tokens;
    const float *scores; // [count]
    float unknown_score;
    uint32_t longest;                                      // bytes of the longest token
    uint64_t lengths[BT_UNIGRAM_TOKEN_BYTES_MAX / 64 + 1]; // bit n: some token has n bytes
} bt_unigram;

void bt_unigram_init(bt_unigram *model, const bt_token_table *tokens, const float *scores);

typedef struct {
    double score;  // of the best way to here
    uint32_t from; // where its last token begins
    int32_t id;    // −1 = a character without a token
} bt_unigram_step;

// Fills steps[0 … piece.len]; the way is read backwards from the end by `from`. Offsets inside characters have score
// −infinity.
void bt_unigram_run(const bt_unigram *model, bt_str piece, bt_unigram_step *steps);
