// A tokenizer.json from outside, and a text for it: the input is the document, a NUL and the text.
#include "common/base/log.h"
#include "common/text/detok.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void
use(const bt_tokenizer *tokenizer, bt_str text)
{
    size_t cap = 4 * text.len + 64, count = 0;
    int32_t *ids = malloc(cap * sizeof *ids);
    char out[BT_DETOK_OUT_MAX];
    bt_detok detok;
    bt_why why;

    for (unsigned flags = 0; flags < 4; flags++) {
        if (bt_tokenizer_encode(tokenizer, text, flags, ids, cap, &count, &why) != BT_OK) {
            continue;
        }
        bt_detok_init(&detok, tokenizer, NULL, flags & 1, true);
        for (size_t i = 0; i < count; i++) {
            size_t got = bt_detok_push(&detok, ids[i], out, sizeof out);

            if (bt_utf8_valid_prefix(out, got) != got) {
                abort();
            }
        }
        bt_detok_finish(&detok, out, sizeof out);
    }
    free(ids);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const char *start = (const char *)data, *end = bytes != 0 ? memchr(data, 0, bytes) : NULL;
    bt_str json = {start, end != NULL ? (size_t)(end - start) : bytes}, text = {"", 0};
    bt_tokenizer *tokenizer;
    bt_why why;

    bt_log_set_level(BT_LOG_NONE);
    if (end != NULL) {
        text = (bt_str){end + 1, bytes - json.len - 1};
    }
    if (bt_tokenizer_open_json(&tokenizer, json, (bt_str){0}, &why) == BT_OK) {
        use(tokenizer, text);
        bt_tokenizer_close(tokenizer);
    }
    return 0;
}
