#include "tests/golden/tokenizer_cases.h"

#include "common/base/mem.h"
#include "common/base/time.h"
#include "common/model/gguf_vocab.h"
#include "common/text/detok.h"
#include "tests/support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define IDS_MAX (1u << 20)

static struct {
    const char *name, *path, *config; // paths below the data folder; ~ is where the real models are kept
    bt_tokenizer *tokenizer;
} sources[] = {
    {"smollm2", "tokenizers/smollm2/tokenizer.json.gz", NULL, NULL},
    {"qwen3", "tokenizers/qwen3/tokenizer.json.gz", "tokenizers/qwen3/tokenizer_config.json", NULL},
    {"llama3", "tokenizers/llama3/tokenizer.json.gz", "tokenizers/llama3/tokenizer_config.json", NULL},
    {"gpt2", "tokenizers/kitoken/models/gpt2.json.gz", NULL, NULL},
    {"gpt_neox", "tokenizers/kitoken/models/gpt_neox.json.gz", NULL, NULL},
    {"llama2", "tokenizers/kitoken/models/llama2.json.gz", NULL, NULL},
    {"mistral01", "tokenizers/kitoken/models/mistral01.json.gz", NULL, NULL},
    {"llama-spm", "tokenizers/ggml-vocab/ggml-vocab-llama-spm.gguf", NULL, NULL},
    {"phi-3", "tokenizers/ggml-vocab/ggml-vocab-phi-3.gguf", NULL, NULL},
    {"gpt-2", "tokenizers/ggml-vocab/ggml-vocab-gpt-2.gguf", NULL, NULL},
    {"deepseek-coder", "tokenizers/ggml-vocab/ggml-vocab-deepseek-coder.gguf", NULL, NULL},
    {"deepseek-llm", "tokenizers/ggml-vocab/ggml-vocab-deepseek-llm.gguf.gz", NULL, NULL},
    {"falcon", "tokenizers/ggml-vocab/ggml-vocab-falcon.gguf.gz", NULL, NULL},
    {"mpt", "tokenizers/ggml-vocab/ggml-vocab-mpt.gguf.gz", NULL, NULL},
    {"starcoder", "tokenizers/ggml-vocab/ggml-vocab-starcoder.gguf.gz", NULL, NULL},
    {"refact", "tokenizers/ggml-vocab/ggml-vocab-refact.gguf.gz", NULL, NULL},
    {"gpt-neox", "tokenizers/ggml-vocab/ggml-vocab-gpt-neox.gguf.gz", NULL, NULL},
    {"baichuan", "tokenizers/ggml-vocab/ggml-vocab-baichuan.gguf.gz", NULL, NULL},
    {"stories", "models/stories260K/gguf/stories260K-f32.gguf", NULL, NULL},
    {"smol.gguf", "~/smol.gguf", NULL, NULL},
    {"gemma", "~/gemma.gguf", NULL, NULL},
};
#define SOURCES (sizeof sources / sizeof *sources)

static const char *
path_of(const char *path)
{
    static char real[512];

    if (path[0] != '~') {
        return bt_test_path("%s", path);
    }
    snprintf(real, sizeof real, "%s/.cache/baton-verify%s", getenv("HOME") != NULL ? getenv("HOME") : "", path + 1);
    return real;
}

static bt_err
open_gguf(bt_tokenizer **out, const char *path, bt_why *why)
{
    bool packed = strcmp(path + strlen(path) - 3, ".gz") == 0;
    size_t bytes = 0;
    char *data = packed ? bt_test_read(path, &bytes) : NULL;
    bt_gguf *gguf = NULL;
    bt_gguf_vocab *vocab = NULL;
    bt_time begin = bt_time_now(), opened;
    bt_err err = packed ? bt_gguf_parse(&gguf, data, bytes, path, true, why) : bt_gguf_open(&gguf, path, why);

    opened = bt_time_now();
    if (err == BT_OK && (err = bt_gguf_vocab_open(&vocab, gguf, why)) == BT_OK) {
        err = bt_tokenizer_open(out, &vocab->vocab, why);
    }
    printf("  %s: file %.1f ms, tokenizer %.1f ms\n", path, (double)(opened - begin) / 1e6,
           (double)(bt_time_now() - opened) / 1e6);
    bt_gguf_vocab_close(vocab);
    bt_gguf_close(gguf);
    free(data);
    return err;
}

static bt_err
open_json(bt_tokenizer **out, const char *path, const char *config, bt_why *why)
{
    bt_str text = {0}, settings = {0};
    char *data = bt_test_read(path, &text.len), *more = NULL;
    bt_time begin;
    bt_err err;

    text.data = data;
    if (config != NULL) {
        settings.data = more = bt_test_read(bt_test_path("%s", config), &settings.len);
    }
    begin = bt_time_now();
    err = bt_tokenizer_open_json(out, text, settings, why);
    printf("  %s: tokenizer %.1f ms\n", path, (double)(bt_time_now() - begin) / 1e6);
    free(data);
    free(more);
    return err;
}

bt_tokenizer *
open_tokenizer(const char *name)
{
    bt_why why = {{0}};

    for (size_t i = 0; i < SOURCES; i++) {
        const char *path;
        bt_err err;

        if (strcmp(sources[i].name, name) != 0) {
            continue;
        }
        path = path_of(sources[i].path);
        if (sources[i].tokenizer != NULL || access(path, R_OK) != 0) {
            return sources[i].tokenizer;
        }
        err = strstr(path, ".json") != NULL ? open_json(&sources[i].tokenizer, path, sources[i].config, &why)
                                            : open_gguf(&sources[i].tokenizer, path, &why);
        ck_assert_msg(err == BT_OK, "%s: %s", path, why.text);
        return sources[i].tokenizer;
    }
    ck_abort_msg("no source is called %s", name);
    return NULL;
}

void
close_tokenizers(void)
{
    for (size_t i = 0; i < SOURCES; i++) {
        bt_tokenizer_close(sources[i].tokenizer);
        sources[i].tokenizer = NULL;
    }
}

size_t
read_ids(const char *begin, const char *end, int32_t *out, size_t cap)
{
    size_t count = 0;

    while (begin < end) {
        int32_t id = 0;

        if (*begin < '0' || *begin > '9') {
            begin++;
            continue;
        }
        while (begin < end && *begin >= '0' && *begin <= '9') {
            id = 10 * id + (*begin++ - '0');
        }
        if (count == cap) {
            ck_abort_msg("more than %zu ids", cap); // an assertion for each of a million ids would be slow
        }
        out[count++] = id;
    }
    return count;
}

static bool
decodes_to(const bt_tokenizer *tokenizer, const int32_t *ids, size_t count, bt_str text)
{
    char out[BT_DETOK_OUT_MAX];
    size_t at = 0;
    bt_detok detok;

    bt_detok_init(&detok, tokenizer, NULL, true, true);
    for (size_t i = 0; i <= count; i++) {
        size_t got =
            i < count ? bt_detok_push(&detok, ids[i], out, sizeof out) : bt_detok_finish(&detok, out, sizeof out);

        if (got > text.len - at || memcmp(text.data + at, out, got) != 0) {
            return false;
        }
        at += got;
    }
    return at == text.len;
}

static void
show(const char *label, const int32_t *ids, size_t count, size_t from)
{
    printf("    %s [%zu]:", label, count);
    for (size_t i = from < 3 ? 0 : from - 3; i < count && i < from + 12; i++) {
        printf(" %d", ids[i]);
    }
    printf("\n");
}

void
check_encoding(tally *score, const char *what, const bt_tokenizer *tokenizer, bt_str text, unsigned flags,
               const int32_t *expected, size_t count, bool round_trip)
{
    static int32_t ids[IDS_MAX];
    size_t got = 0, same = 0;
    bt_why why = {{0}};
    bt_err err = bt_tokenizer_encode(tokenizer, text, flags, ids, IDS_MAX, &got, &why);
    bool decoded;

    ck_assert_msg(err == BT_OK, "%s: %s", what, why.text);
    while (same < got && same < count && ids[same] == expected[same]) {
        same++;
    }
    decoded = decodes_to(tokenizer, ids, got, text);
    score->cases++;
    score->ids += got;
    score->decoded += decoded;
    if (same == got && same == count && (decoded || !round_trip)) {
        return;
    }
    if (score->wrong++ < 4) {
        printf("    %s: case %u differs at %zu%s: '%.*s'\n", what, score->cases, same, decoded ? "" : ", decoded too",
               (int)(text.len < 120 ? text.len : 120), text.data);
        show("expected", expected, count, same);
        show("got", ids, got, same);
    }
}

static size_t
unescape(char *text, size_t len)
{
    size_t used = 0;

    for (size_t i = 0; i < len; i++) {
        if (text[i] == '\\' && i + 1 < len && (text[i + 1] == 'n' || text[i + 1] == 's' || text[i + 1] == 'x')) {
            i++;
            if (text[i] != 'x') {
                text[used++] = text[i] == 'n' ? '\n' : ' ';
            }
            continue;
        }
        text[used++] = text[i];
    }
    return used;
}

void
check_lines(tally *score, const char *what, const char *name, const char *input, size_t input_bytes,
            const char *expected, bool whole, bool escapes, unsigned flags)
{
    static int32_t ids[IDS_MAX];
    const bt_tokenizer *tokenizer = open_tokenizer(name);
    const char *at = input, *end = input + input_bytes;

    while (at < end) {
        const char *stop = whole ? end : memchr(at, '\n', (size_t)(end - at)), *ids_end = strchrnul(expected, '\n');
        char *line = NULL;
        size_t len, count;

        stop = stop != NULL ? stop : end;
        len = (size_t)(stop - at);
        line = malloc(len + 1);
        memcpy(line, at, len);
        len = escapes ? unescape(line, len) : len;
        count = read_ids(expected, ids_end, ids, IDS_MAX);
        check_encoding(score, what, tokenizer, (bt_str){line, len}, flags, ids, count, false);
        free(line);
        at = stop + 1;
        expected = *ids_end != 0 ? ids_end + 1 : ids_end;
    }
}

void
check_ggml(tally *score, const char *name, const char *pair)
{
    static int32_t ids[1 << 16];
    static const char separator[] = "\n__ggml_vocab_test__\n";
    const bt_tokenizer *tokenizer = open_tokenizer(name);
    char *input = bt_test_read(bt_test_path("tokenizers/ggml-vocab/ggml-vocab-%s.gguf.inp", pair), NULL);
    char *output = bt_test_read(bt_test_path("tokenizers/ggml-vocab/ggml-vocab-%s.gguf.out", pair), NULL);
    const char *at = input, *line = output;

    for (;;) {
        const char *stop = strstr(at, separator), *line_end = strchrnul(line, '\n');
        size_t count;

        if (stop == NULL) {
            break;
        }
        count = read_ids(line, line_end, ids, sizeof ids / sizeof *ids);
        check_encoding(score, pair, tokenizer, (bt_str){at, (size_t)(stop - at)}, 0, ids, count, false);
        at = stop + sizeof separator - 1;
        line = *line_end != 0 ? line_end + 1 : line_end;
    }
    free(input);
    free(output);
}

void
settle(const tally *score, const char *what)
{
    printf("  %s: %u of %u encodings equal, %zu ids; %u texts come back exactly\n", what, score->cases - score->wrong,
           score->cases, score->ids, score->decoded);
    ck_assert_msg(score->cases != 0, "%s: nothing was tested", what);
    ck_assert_msg(score->wrong == 0, "%s: %u of %u wrong", what, score->wrong, score->cases);
}
