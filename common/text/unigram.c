#include "common/text/unigram.h"

#include <math.h>

#define UNKNOWN_PENALTY 10.0f // below the worst token, as SentencePiece has it

static bool
usable(const bt_token_table *tokens, uint32_t id)
{
    return tokens->types[id] == BT_TOKEN_NORMAL || tokens->types[id] == BT_TOKEN_USER_DEFINED;
}

void
bt_unigram_init(bt_unigram *model, const bt_token_table *tokens, const float *scores)
{
    float lowest = 0;

    *model = (bt_unigram){.tokens = tokens, .scores = scores};
    for (uint32_t id = 0; id < tokens->count; id++) {
        size_t len = bt_token_table_text(tokens, id).len;

        if (!usable(tokens, id) || len > BT_UNIGRAM_TOKEN_BYTES_MAX) {
            continue;
        }
        lowest = scores[id] < lowest ? scores[id] : lowest;
        model->longest = len > model->longest ? (uint32_t)len : model->longest;
        model->lengths[len / 64] |= (uint64_t)1 << len % 64;
    }
    model->unknown_score = lowest - UNKNOWN_PENALTY;
}

static void
offer(bt_unigram_step *step, double score, uint32_t from, int32_t id)
{
    if (score > step->score) {
        *step = (bt_unigram_step){score, from, id};
    }
}

void
bt_unigram_run(const bt_unigram *model, bt_str piece, bt_unigram_step *steps)
{
    for (size_t i = 0; i <= piece.len; i++) {
        steps[i] = (bt_unigram_step){-INFINITY, 0, -1};
    }
    steps[0].score = 0;
    for (size_t at = 0; at < piece.len;) {
        uint32_t c;
        size_t character = bt_utf8_decode(piece.data + at, piece.len - at, &c), left = piece.len - at;
        bool alone = false;

        for (size_t len = 1; len <= model->longest && len <= left; len++) {
            int32_t id;

            if (!(model->lengths[len / 64] >> len % 64 & 1)) {
                continue;
            }
            id = bt_token_table_find(model->tokens, piece.data + at, len);
            if (id >= 0 && usable(model->tokens, (uint32_t)id)) {
                offer(&steps[at + len], steps[at].score + (double)model->scores[id], (uint32_t)at, id);
                alone |= len == character;
            }
        }
        if (!alone) {
            offer(&steps[at + character], steps[at].score + (double)model->unknown_score, (uint32_t)at, -1);
        }
        at += character;
    }
}
