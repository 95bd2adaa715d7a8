// The inside of a tokenizer, for the files of common/text that build, run and read it.
#pragma once

#include "common/text/added.h"
#include "common/text/merge.h"
#include "common/text/normalize.h"
#include "common/text/pretokenize.h"
#include "common/text/unigram.h"

#include "common/base/mem.h"

#define BT_ENDS_MAX 32 // tokens that end a generation

struct bt_tokenizer {
    bt_vocab_kind kind;
    bt_token_table tokens;
    bt_added added;            // found in the raw text
    bt_added added_normalized; // found in the normalised text; their texts are in `arena`
    bt_normalizer normalizer;
    bt_pre_tokenizer pre;
    bt_merge_table merges; // BPE
    uint32_t *order;       // SPM: bt_merge_rules
    float *scores;         // unigram
    bt_unigram unigram;
    int32_t byte_ids[256]; // the token of each single byte, −1 = none
    uint32_t longest;      // bytes of the longest token text
    int32_t bos, eos, unknown, pad;
    bool add_bos;
    bool ignore_merges;     // a piece that is a token is not merged
    bool byte_fallback;     // a character without a token is written in byte tokens
    bool fuse_unknown;      // neighbouring unknown characters are one unknown token
    bool drops_first_space; // the text begins with a space that encoding put there
    // crosses[left][right] bit: some token has these two character classes side by side. Where none has, no merge can
    // ever cross, and a text may be cut there: the same ids, in shorter pieces (bt_cut_class).
    uint8_t crosses[256][32];
    int32_t ends[BT_ENDS_MAX];
    uint32_t end_count;
    char *chat_template;
    bt_arena arena;
};

// ▁ is a class of its own, or nearly nothing could be cut: its bytes begin and end many other characters.
static inline uint8_t
bt_cut_class(const char *character, size_t len, bool last_byte)
{
    if (len == 3 && memcmp(character, "\xe2\x96\x81", 3) == 0) {
        return 0xff; // never a byte of UTF-8
    }
    return (uint8_t)character[last_byte ? len - 1 : 0];
}

// Takes the tokens; bos, eos, unknown and pad are −1 afterwards.
bt_err bt_tokenizer_begin(bt_tokenizer **out, bt_vocab_kind kind, const bt_str *tokens, const uint8_t *types,
                          uint32_t count, bt_why *why);
// Adds the merge of two tokens given by their texts. False when one of the three is no token: such a merge can never
// take place.
bool bt_tokenizer_add_merge(bt_tokenizer *tokenizer, uint32_t rank, bt_str left, bt_str right);
// What follows from all that was set before: decoded bytes, byte tokens, cuts, sorted tokens, ends.
bt_err bt_tokenizer_finish(bt_tokenizer *tokenizer, bt_why *why);
