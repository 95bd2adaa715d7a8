// Text from outside through small vocabularies of each kind: what decodes must be what was encoded, and stop strings
// must cut a stream as they cut the whole text.
#include "common/base/log.h"
#include "common/text/byte_level.h"
#include "common/text/detok.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static bt_tokenizer *
open_bpe(const char *pre)
{
    static const char *const more[] = {"th", "the", "\xc4\xa0the", "<|im_end|>", "<b>"};
    static const bt_str merges[] = {{"t h", 3}, {"th e", 4}, {"\xc4\xa0 the", 6}};
    char letters[256][4];
    bt_str tokens[261];
    uint8_t types[261];
    bt_vocab vocab = {.count = 261,
                      .tokens = tokens,
                      .types = types,
                      .merges = merges,
                      .merge_count = 3,
                      .pre = pre,
                      .bos = -1,
                      .eos = -1,
                      .unknown = -1,
                      .pad = -1};
    bt_tokenizer *tokenizer = NULL;

    memset(types, BT_TOKEN_NORMAL, sizeof types);
    for (unsigned byte = 0; byte < 256; byte++) {
        tokens[byte] = (bt_str){letters[byte], bt_utf8_encode(bt_byte_level_letter((uint8_t)byte), letters[byte])};
    }
    for (unsigned i = 0; i < 5; i++) {
        tokens[256 + i] = bt_str_of(more[i]);
    }
    types[259] = BT_TOKEN_CONTROL;
    types[260] = BT_TOKEN_USER_DEFINED;
    return bt_tokenizer_open(&tokenizer, &vocab, NULL) == BT_OK ? tokenizer : (abort(), NULL);
}

static void
check_decoded(const bt_tokenizer *tokenizer, bt_str text, const int32_t *ids, size_t count)
{
    size_t at = 0;

    for (size_t i = 0; i < count; i++) {
        bt_str piece = bt_tokenizer_bytes(tokenizer, ids[i], true);

        if (piece.len > text.len - at || memcmp(text.data + at, piece.data, piece.len) != 0) {
            abort();
        }
        at += piece.len;
    }
    if (at != text.len) {
        abort();
    }
}

// The first stop string by its end; what comes out must be the text before it.
static void
check_stopped(const bt_tokenizer *tokenizer, bt_str text, const int32_t *ids, size_t count, bt_str stop)
{
    const char *found = memmem(text.data, text.len, stop.data, stop.len);
    size_t expected = found != NULL ? (size_t)(found - text.data) : text.len, at = 0;
    static bt_stop_strings stops;
    char out[BT_DETOK_OUT_MAX];
    bt_detok detok;

    memset(&stops, 0, sizeof stops);
    if (bt_stop_strings_add(&stops, stop, NULL) != BT_OK) {
        return;
    }
    bt_detok_init(&detok, tokenizer, &stops, true, false);
    for (size_t i = 0; i <= count; i++) {
        size_t got =
            i < count ? bt_detok_push(&detok, ids[i], out, sizeof out) : bt_detok_finish(&detok, out, sizeof out);

        if (got > expected - at || memcmp(text.data + at, out, got) != 0) {
            abort();
        }
        at += got;
    }
    if (at != expected) {
        abort();
    }
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const char *const pres[] = {"gpt-2",          "smollm",      "llama-bpe", "qwen35", "falcon", "deepseek-llm",
                                       "deepseek-coder", "deepseek-v3", "tekken",    "gpt-4o", "qwen2"};
    static bt_tokenizer *tokenizers[sizeof pres / sizeof *pres];
    uint8_t which = bytes > 1 ? data[0] % (sizeof pres / sizeof *pres) : 0, stop_bytes = bytes > 1 ? data[1] % 8 : 0;
    bt_str text = {(const char *)data + (bytes > 1 ? 2 : 0), bytes > 1 ? bytes - 2 : 0};
    bt_str stop = {text.data, stop_bytes < text.len ? stop_bytes : 0};
    int32_t *ids = malloc((text.len + 1) * sizeof *ids);
    size_t count = 0;

    if (tokenizers[which] == NULL) {
        tokenizers[which] = open_bpe(pres[which]);
    }
    for (unsigned flags = 0; flags < 2; flags++) {
        if (bt_tokenizer_encode(tokenizers[which], text, flags, ids, text.len + 1, &count, NULL) == BT_OK &&
            strcmp(pres[which], "qwen2") != 0) { // which composes characters
            check_decoded(tokenizers[which], text, ids, count);
            check_stopped(tokenizers[which], text, ids, count, stop);
        }
    }
    free(ids);
    return 0;
}
