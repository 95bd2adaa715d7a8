// Text to ids: cut out added tokens, normalise, split, and encode each piece by the model.
#include "common/text/byte_level.h"
#include "common/text/tokenizer_impl.h"

#include <assert.h>

// One call of bt_tokenizer_encode.
typedef struct {
    const bt_tokenizer *tokenizer;
    bool special;
    int32_t *ids;
    size_t cap, count; // counts on when `ids` is full
    bool unknown_last; // the last id of this piece is an unknown token
    bt_regex_finder *finder;
    bt_pre_scratch pre;
    bt_buf normalized[2];
    bt_buf word; // byte letters of a piece
    bt_merge_scratch merge;
    bt_unigram_step *steps;
    size_t step_cap;
} encoder;

static void
emit(encoder *run, int32_t id)
{
    if (run->count < run->cap) {
        run->ids[run->count] = id;
    }
    run->count++;
    run->unknown_last = false;
}

static void
emit_unknown(encoder *run)
{
    const bt_tokenizer *tokenizer = run->tokenizer;

    // Without an unknown token there is nothing to write: the character is lost, as it is for other implementations.
    if (tokenizer->unknown >= 0 && !(tokenizer->fuse_unknown && run->unknown_last)) {
        emit(run, tokenizer->unknown);
    }
    run->unknown_last = true;
}

static void
emit_character(encoder *run, const char *character, size_t len)
{
    const int32_t *byte_ids = run->tokenizer->byte_ids;
    bool known = run->tokenizer->byte_fallback;

    for (size_t i = 0; i < len; i++) {
        known = known && byte_ids[(uint8_t)character[i]] >= 0;
    }
    if (!known) {
        emit_unknown(run);
        return;
    }
    for (size_t i = 0; i < len; i++) {
        emit(run, byte_ids[(uint8_t)character[i]]);
    }
}

static void
merge_and_emit(encoder *run, bt_str piece)
{
    bt_merge_rules rules = {&run->tokenizer->merges, &run->tokenizer->tokens, run->tokenizer->order};

    bt_merge_run(&run->merge, &rules, piece.data);
    for (uint32_t i = 0; i < run->merge.count; i++) {
        const bt_symbol *symbol = &run->merge.symbols[i];

        if (symbol->len == 0) {
            continue;
        }
        if (symbol->id >= 0) {
            emit(run, symbol->id);
        } else {
            emit_character(run, piece.data + symbol->at, symbol->len);
        }
    }
}

static int32_t
find_word(encoder *run, bt_str piece)
{
    bt_str word = piece;

    if (piece.len > run->tokenizer->longest) {
        return -1;
    }
    if (run->tokenizer->pre.byte_level) {
        bt_buf_clear(&run->word);
        if (bt_buf_reserve(&run->word, 2 * piece.len) != BT_OK) {
            return -1;
        }
        word = (bt_str){run->word.data, bt_byte_level_encode(piece, run->word.data)};
    }
    return bt_token_table_find(&run->tokenizer->tokens, word.data, word.len);
}

static bt_err
encode_bytes(encoder *run, bt_str piece)
{
    bt_err err = bt_merge_scratch_reserve(&run->merge, piece.len);

    if (err != BT_OK) {
        return err;
    }
    run->merge.count = 0;
    for (size_t i = 0; i < piece.len; i++) {
        bt_merge_push(&run->merge, (uint32_t)i, 1, run->tokenizer->byte_ids[(uint8_t)piece.data[i]]);
    }
    merge_and_emit(run, piece);
    return BT_OK;
}

// Merges a piece character by character, cut where no token crosses (tokenizer_impl.h).
static bt_err
encode_characters(encoder *run, bt_str piece)
{
    const bt_tokenizer *tokenizer = run->tokenizer;
    size_t before = 0;

    run->merge.count = 0;
    for (size_t at = 0; at < piece.len;) {
        uint32_t c;
        size_t len = bt_utf8_decode(piece.data + at, piece.len - at, &c);
        bt_err err;

        assert(len != 0); // checked at the door
        if (before != 0) {
            uint8_t left = bt_cut_class(piece.data + at - before, before, true);
            uint8_t right = bt_cut_class(piece.data + at, len, false);

            if (!(tokenizer->crosses[left][right / 8] >> right % 8 & 1)) {
                merge_and_emit(run, piece);
                run->merge.count = 0;
            }
        }
        if ((err = bt_merge_scratch_reserve(&run->merge, (size_t)run->merge.count + 1)) != BT_OK) {
            return err;
        }
        bt_merge_push(&run->merge, (uint32_t)at, (uint32_t)len,
                      bt_token_table_find(&tokenizer->tokens, piece.data + at, len));
        before = len;
        at += len;
    }
    merge_and_emit(run, piece);
    return BT_OK;
}

static bt_err
encode_unigram(encoder *run, bt_str piece)
{
    bt_unigram_step *steps;
    uint32_t next = 0;

    if (run->step_cap < piece.len + 1) {
        bt_free(run->steps);
        run->step_cap = 0;
        if ((run->steps = bt_alloc_array(2 * (piece.len + 1), sizeof *run->steps)) == NULL) {
            return BT_ERR_NO_MEMORY;
        }
        run->step_cap = 2 * (piece.len + 1);
    }
    steps = run->steps;
    bt_unigram_run(&run->tokenizer->unigram, piece, steps);
    // The way is known from its end: turn the links round, then walk them from the start.
    for (uint32_t at = (uint32_t)piece.len; at != 0;) {
        uint32_t from = steps[at].from;

        steps[at].score = next; // the end of the step after this one
        next = at;
        at = from;
    }
    for (uint32_t at = next; at != 0; at = (uint32_t)steps[at].score) {
        if (steps[at].id >= 0) {
            emit(run, steps[at].id);
        } else {
            emit_character(run, piece.data + steps[at].from, at - steps[at].from);
        }
    }
    return BT_OK;
}

static bt_err
encode_piece(void *context, bt_str piece)
{
    encoder *run = context;
    int32_t id = run->tokenizer->ignore_merges ? find_word(run, piece) : -1;

    run->unknown_last = false;
    if (id >= 0) {
        emit(run, id);
        return BT_OK;
    }
    if (run->tokenizer->kind == BT_VOCAB_UNIGRAM) {
        return encode_unigram(run, piece);
    }
    return run->tokenizer->pre.byte_level ? encode_bytes(run, piece) : encode_characters(run, piece);
}

static bt_err
encode_plain(encoder *run, bt_str text, bool at_start)
{
    return bt_pre_tokenizer_run(&run->tokenizer->pre, &run->pre, text, at_start, encode_piece, run);
}

typedef bt_err (*fragment_fn)(encoder *run, bt_str text, bool at_start);

// Encodes what lies between added tokens by `plain`, and the tokens themselves as their ids.
static bt_err
encode_around(encoder *run, const bt_added *added, bt_str text, bool at_start, fragment_fn plain)
{
    size_t from = 0, begin = 0, end = 0;
    const bt_added_token *token;
    bt_err err;

    while ((token = bt_added_find(added, text, from, run->special, &begin, &end)) != NULL) {
        if ((err = plain(run, (bt_str){bt_str_from(text, from).data, begin - from}, at_start && from == 0)) != BT_OK) {
            return err;
        }
        emit(run, token->id);
        from = end;
    }
    return plain(run, bt_str_from(text, from), at_start && from == 0);
}

static bt_err
encode_fragment(encoder *run, bt_str text, bool at_start)
{
    bt_err err;

    if (text.len == 0) {
        return BT_OK;
    }
    err = bt_normalizer_apply(&run->tokenizer->normalizer, run->finder, run->normalized, text, &text);
    return err != BT_OK ? err : encode_around(run, &run->tokenizer->added_normalized, text, at_start, encode_plain);
}

static bt_err
encode_all(encoder *run, bt_str text, bool bos)
{
    size_t limit = 16 * text.len + ((size_t)1 << 20);
    bt_err err = bt_regex_finder_open(&run->finder, text.len);

    if (err != BT_OK) {
        return err;
    }
    bt_pre_scratch_init(&run->pre, run->finder, limit);
    bt_buf_init(&run->normalized[0], limit);
    bt_buf_init(&run->normalized[1], limit);
    bt_buf_init(&run->word, limit);
    if (bos && bt_tokenizer_adds_bos(run->tokenizer)) {
        emit(run, run->tokenizer->bos);
    }
    return encode_around(run, &run->tokenizer->added, text, true, encode_fragment);
}

static void
free_scratch(encoder *run)
{
    bt_regex_finder_close(run->finder);
    bt_pre_scratch_fini(&run->pre);
    bt_buf_fini(&run->normalized[0]);
    bt_buf_fini(&run->normalized[1]);
    bt_buf_fini(&run->word);
    bt_merge_scratch_fini(&run->merge);
    bt_free(run->steps);
}

bt_err
bt_tokenizer_encode(const bt_tokenizer *tokenizer, bt_str text, unsigned flags, int32_t *ids, size_t cap, size_t *count,
                    bt_why *why)
{
    encoder run = {.tokenizer = tokenizer, .special = flags & BT_ENCODE_SPECIAL, .ids = ids, .cap = cap};
    size_t valid;
    bt_err err;

    if (text.len > BT_ENCODE_BYTES_MAX) {
        *count = cap + 1;
        return bt_fail(why, BT_ERR_TOO_LONG, "text: %zu bytes, at most %zu are encoded", text.len, BT_ENCODE_BYTES_MAX);
    }
    if ((valid = bt_utf8_valid_prefix(text.data, text.len)) != text.len) {
        return bt_fail(why, BT_ERR_INVALID, "text: byte %zu is not UTF-8", valid);
    }
    err = encode_all(&run, text, flags & BT_ENCODE_BOS);
    free_scratch(&run);
    if (err != BT_OK) {
        *count = cap + 1;
        return bt_fail(why, err,
                       err == BT_ERR_NO_MEMORY ? "text: out of memory while encoding"
                                               : "text: a limit of the pre-tokenizer's regex was hit");
    }
    *count = run.count;
    return run.count <= cap ? BT_OK : bt_fail(why, BT_ERR_TOO_LONG, "text: %zu tokens, at most %zu", run.count, cap);
}
