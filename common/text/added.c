#include "common/text/added.h"

#include "common/base/mem.h"
#include "common/text/unicode.h"

#include <stdlib.h>

bt_err
bt_added_add(bt_added *added, bt_added_token token)
{
    if (token.text.len == 0) {
        return BT_OK;
    }
    if (token.text.len > BT_ADDED_BYTES_MAX) {
        return BT_ERR_TOO_LONG;
    }
    if (added->count == added->cap) {
        uint32_t cap = added->cap != 0 ? 2 * added->cap : 64;
        bt_added_token *tokens = bt_realloc(added->tokens, cap * sizeof *tokens);

        if (tokens == NULL) {
            return BT_ERR_NO_MEMORY;
        }
        added->tokens = tokens;
        added->cap = cap;
    }
    added->tokens[added->count++] = token;
    return BT_OK;
}

static int
compare(const void *left, const void *right)
{
    const bt_added_token *a = left, *b = right;
    size_t len = a->text.len < b->text.len ? a->text.len : b->text.len;
    int order = memcmp(a->text.data, b->text.data, len);

    if (order != 0) {
        return order;
    }
    if (a->text.len != b->text.len) {
        return a->text.len < b->text.len ? -1 : 1;
    }
    return a->id < b->id ? -1 : a->id > b->id;
}

void
bt_added_sort(bt_added *added)
{
    uint32_t i = 0;

    if (added->count != 0) {
        qsort(added->tokens, added->count, sizeof *added->tokens, compare);
    }
    for (uint32_t byte = 0; byte < 257; byte++) {
        while (i < added->count && (uint8_t)added->tokens[i].text.data[0] < byte) {
            i++;
        }
        added->from[byte] = i;
    }
    for (i = 0; i < added->count; i++) {
        added->begins[(uint8_t)added->tokens[i].text.data[0]] |= !added->tokens[i].special;
    }
}

void
bt_added_fini(bt_added *added)
{
    bt_free(added->tokens);
    *added = (bt_added){0};
}

// The first token in [low, high) whose byte at `depth` is at least `byte`; those that end before `depth` sort first.
static uint32_t
lower_bound(const bt_added *added, uint32_t low, uint32_t high, size_t depth, unsigned byte)
{
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        bt_str text = added->tokens[middle].text;

        if (text.len <= depth || (uint8_t)text.data[depth] < byte) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static const bt_added_token *
longest_at(const bt_added *added, bt_str text, size_t at, bool special)
{
    uint8_t first = (uint8_t)text.data[at];
    uint32_t low = added->from[first], high = added->from[first + 1];
    const bt_added_token *best = NULL;

    for (size_t depth = 1; low < high; depth++) {
        // Equal texts lie together, the lowest id first: it answers unless it is special and not asked for.
        for (uint32_t i = low; i < high && added->tokens[i].text.len == depth; i++) {
            if (special || !added->tokens[i].special) {
                best = &added->tokens[i];
                break;
            }
        }
        if (at + depth == text.len) {
            break;
        }
        low = lower_bound(added, low, high, depth, (uint8_t)text.data[at + depth]);
        high = lower_bound(added, low, high, depth, (uint8_t)text.data[at + depth] + 1u);
    }
    return best;
}

static size_t
last_character(bt_str text, size_t end, uint32_t *c)
{
    size_t at = end - 1;

    while (at != 0 && ((uint8_t)text.data[at] & 0xc0) == 0x80) {
        at--;
    }
    return bt_utf8_decode(text.data + at, end - at, c);
}

static bool
inside_word(bt_str text, size_t begin, size_t end)
{
    uint32_t c;

    if (begin != 0 && last_character(text, begin, &c) != 0 && bt_unicode_is_word(c)) {
        return true;
    }
    return bt_utf8_decode(text.data + end, text.len - end, &c) != 0 && bt_unicode_is_word(c);
}

static void
take_whitespace(const bt_added_token *token, bt_str text, size_t from, size_t *begin, size_t *end)
{
    uint32_t c;
    size_t bytes;

    while (token->left && *begin > from && (bytes = last_character(text, *begin, &c)) != 0 && bt_unicode_is_space(c)) {
        *begin -= bytes;
    }
    while (token->right && (bytes = bt_utf8_decode(text.data + *end, text.len - *end, &c)) != 0 &&
           bt_unicode_is_space(c)) {
        *end += bytes;
    }
}

const bt_added_token *
bt_added_find(const bt_added *added, bt_str text, size_t from, bool special, size_t *begin, size_t *end)
{
    if (added->count == 0) {
        return NULL;
    }
    for (size_t at = from; at < text.len; at++) {
        uint8_t byte = (uint8_t)text.data[at];
        const bt_added_token *token;

        if (!(special ? added->from[byte] != added->from[byte + 1] : added->begins[byte])) {
            continue;
        }
        token = longest_at(added, text, at, special);
        if (token == NULL || (token->single_word && inside_word(text, at, at + token->text.len))) {
            continue;
        }
        *begin = at;
        *end = at + token->text.len;
        take_whitespace(token, text, from, begin, end);
        return token;
    }
    return NULL;
}
