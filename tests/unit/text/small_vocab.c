#include "tests/unit/text/small_vocab.h"

#include "common/text/byte_level.h"
#include "tests/support/test.h"

#include <stdio.h>

static const char *const merges[] = {"t h", "th e", "\xc4\xa0 the", "a a", "aa a", "\xc3\x83 \xc2\xa9", "1 2"};
#define MERGES (sizeof merges / sizeof *merges)

bt_vocab
small_bpe_vocab(const char *pre)
{
    static char letters[256][3];
    static const char *const more[] = {"th", "the",        "\xc4\xa0the", "aa",  "aaa",   "\xc3\x83\xc2\xa9",
                                       "12", "<|im_end|>", "<s>",         "<b>", "<b><b>"};
    static bt_str tokens[SMALL_COUNT], merge_texts[MERGES];
    static uint8_t types[SMALL_COUNT];

    for (unsigned byte = 0; byte < 256; byte++) {
        tokens[byte] = (bt_str){letters[byte], bt_utf8_encode(bt_byte_level_letter((uint8_t)byte), letters[byte])};
        types[byte] = BT_TOKEN_NORMAL;
    }
    for (unsigned id = SMALL_TH; id < SMALL_COUNT; id++) {
        tokens[id] = bt_str_of(more[id - SMALL_TH]);
        types[id] = id < SMALL_CONTROL ? BT_TOKEN_NORMAL : id < SMALL_USER ? BT_TOKEN_CONTROL : BT_TOKEN_USER_DEFINED;
    }
    for (size_t i = 0; i < MERGES; i++) {
        merge_texts[i] = bt_str_of(merges[i]);
    }
    return (bt_vocab){.kind = BT_VOCAB_BPE,
                      .count = SMALL_COUNT,
                      .tokens = tokens,
                      .types = types,
                      .merges = merge_texts,
                      .merge_count = MERGES,
                      .pre = pre,
                      .bos = SMALL_BOS,
                      .eos = -1,
                      .unknown = -1,
                      .pad = -1,
                      .add_bos = true};
}

bt_vocab
small_spm_vocab(bool bytes, bool space_prefix)
{
    static char spelt[256][8];
    static bt_str tokens[300];
    static float scores[300];
    static uint8_t types[300];
    static const struct {
        const char *text;
        float score;
    } pieces[] = {{"\xe2\x96\x81", -9},
                  {"a", -9},
                  {"b", -9},
                  {"c", -9},
                  {"\xc3\xa9", -9},
                  {"ab", -2},
                  {"bc", -1},
                  {"abc", -3},
                  {"\xe2\x96\x81"
                   "a",
                   -4},
                  {"\xe2\x96\x81\xe2\x96\x81", -5}};
    uint32_t count = 0;

    tokens[count++] = bt_str_of("<unk>");
    tokens[count++] = bt_str_of("<s>");
    tokens[count++] = bt_str_of("</s>");
    types[0] = BT_TOKEN_UNKNOWN;
    types[1] = types[2] = BT_TOKEN_CONTROL;
    for (unsigned byte = 0; bytes && byte < 256; byte++) {
        snprintf(spelt[byte], sizeof spelt[byte], "<0x%02X>", byte);
        types[count] = BT_TOKEN_BYTE;
        tokens[count++] = bt_str_of(spelt[byte]);
    }
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        types[count] = BT_TOKEN_NORMAL;
        scores[count] = pieces[i].score;
        tokens[count++] = bt_str_of(pieces[i].text);
    }
    return (bt_vocab){.kind = BT_VOCAB_SPM,
                      .count = count,
                      .tokens = tokens,
                      .scores = scores,
                      .types = types,
                      .bos = 1,
                      .eos = 2,
                      .unknown = 0,
                      .pad = -1,
                      .add_bos = true,
                      .add_space_prefix = space_prefix};
}

static bt_tokenizer *
opened(const bt_vocab *vocab)
{
    bt_tokenizer *tokenizer = NULL;
    bt_why why = {{0}};

    ck_assert_msg(bt_tokenizer_open(&tokenizer, vocab, &why) == BT_OK, "%s", why.text);
    return tokenizer;
}

bt_tokenizer *
small_bpe(const char *pre)
{
    bt_vocab vocab = small_bpe_vocab(pre);

    return opened(&vocab);
}

bt_tokenizer *
small_spm(bool bytes, bool space_prefix)
{
    bt_vocab vocab = small_spm_vocab(bytes, space_prefix);

    return opened(&vocab);
}

const int32_t *
encode(const bt_tokenizer *tokenizer, const char *text, unsigned flags, size_t *count)
{
    static int32_t ids[1 << 16];
    bt_why why = {{0}};

    ck_assert_msg(bt_tokenizer_encode(tokenizer, bt_str_of(text), flags, ids, 1 << 16, count, &why) == BT_OK, "%s",
                  why.text);
    return ids;
}

const char *
encoded(const bt_tokenizer *tokenizer, const char *text, unsigned flags)
{
    static char out[4][4096];
    static unsigned turn;
    char *to = out[turn++ % 4];
    size_t count, used = 0;
    const int32_t *ids = encode(tokenizer, text, flags, &count);

    to[0] = 0;
    for (size_t i = 0; i < count && used < 4000; i++) {
        used += (size_t)sprintf(to + used, i == 0 ? "%d" : " %d", ids[i]);
    }
    return to;
}

size_t
decode(const bt_tokenizer *tokenizer, const int32_t *ids, size_t count, char *out, size_t cap)
{
    size_t used = 0;

    for (size_t i = 0; i < count; i++) {
        bt_str bytes = bt_tokenizer_bytes(tokenizer, ids[i], true);

        // check writes to a file for each assertion that holds, which is slow for a million of them
        if (bytes.len > cap - used) {
            ck_abort_msg("the text is longer than %zu bytes", cap);
        }
        memcpy(out + used, bytes.data, bytes.len);
        used += bytes.len;
    }
    return used;
}
