#include "router/text_guard.h"

#include <string.h>

#define OPEN "\xef\xb7\x92"  // U+FDD2
#define CLOSE "\xef\xb7\x93" // U+FDD3
#define MARK_BYTES 3

static bool
is_guarded(const bt_tokenizer *tokenizer, int32_t id)
{
    return bt_tokenizer_type(tokenizer, id) == BT_TOKEN_CONTROL && bt_tokenizer_token_text(tokenizer, id).len != 0;
}

bt_err
bt_text_guard_init(bt_text_guard *guard, const bt_tokenizer *tokenizer)
{
    uint32_t vocab = bt_tokenizer_vocab_size(tokenizer), count = 0;

    for (uint32_t id = 0; id < vocab; id++) {
        count += is_guarded(tokenizer, (int32_t)id);
    }
    memset(guard, 0, sizeof *guard);
    if ((guard->tokens = bt_alloc_array(count, sizeof *guard->tokens)) == NULL) {
        return BT_ERR_NO_MEMORY;
    }
    for (uint32_t id = 0; id < vocab; id++) {
        if (is_guarded(tokenizer, (int32_t)id)) {
            bt_str text = bt_tokenizer_token_text(tokenizer, (int32_t)id);

            guard->tokens[guard->count++] = text;
            guard->begins[(unsigned char)text.data[0]] = true;
        }
    }
    return BT_OK;
}

void
bt_text_guard_fini(bt_text_guard *guard)
{
    bt_free(guard->tokens);
    memset(guard, 0, sizeof *guard);
}

// Bytes of the longest special token at `at`, 0 = none.
static size_t
token_at(const bt_text_guard *guard, const char *at, size_t left)
{
    size_t longest = 0;

    if (!guard->begins[(unsigned char)*at]) {
        return 0;
    }
    for (uint32_t i = 0; i < guard->count; i++) {
        bt_str token = guard->tokens[i];

        if (token.len <= left && token.len > longest && memcmp(token.data, at, token.len) == 0) {
            longest = token.len;
        }
    }
    return longest;
}

// In JSON only quotes, backslashes and controls are written otherwise, and no special token has them.
void
bt_text_guard_mark(const bt_text_guard *guard, bt_str text, bt_buf *out)
{
    size_t done = 0;

    for (size_t i = 0; i < text.len;) {
        size_t found = token_at(guard, text.data + i, text.len - i), left = text.len - i;
        bool mark = left >= MARK_BYTES &&
                    (memcmp(text.data + i, OPEN, MARK_BYTES) == 0 || memcmp(text.data + i, CLOSE, MARK_BYTES) == 0);

        if (found == 0 && !mark) {
            i++;
            continue;
        }
        bt_buf_append(out, text.data + done, i - done);
        if (mark) {
            bt_buf_append_text(out, "\xef\xbf\xbd");
            i += MARK_BYTES;
        } else {
            bt_buf_append_text(out, OPEN);
            bt_buf_append(out, text.data + i, found);
            bt_buf_append_text(out, CLOSE);
            i += found;
        }
        done = i;
    }
    bt_buf_append(out, text.data + done, text.len - done);
}

bool
bt_text_guard_next(bt_str *rest, bt_str *piece, bool *plain)
{
    const char *mark, *end = rest->data + rest->len;

    if (rest->len == 0) {
        return false;
    }
    *plain = rest->len >= MARK_BYTES && memcmp(rest->data, OPEN, MARK_BYTES) == 0;
    piece->data = rest->data + (*plain ? MARK_BYTES : 0);
    mark = memmem(piece->data, (size_t)(end - piece->data), *plain ? CLOSE : OPEN, MARK_BYTES);
    piece->len = (size_t)((mark != NULL ? mark : end) - piece->data);
    rest->data = mark == NULL ? end : *plain ? mark + MARK_BYTES : mark;
    rest->len = (size_t)(end - rest->data);
    return true;
}
