#include "common/text/token_table.h"

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/text/byte_level.h"

#define FREE UINT32_MAX
#define AHEAD 12 // slots fetched ahead while the index is built: it waits for memory and for nothing else

static uint64_t
load(const char *data, size_t len)
{
    uint64_t word = 0;

    memcpy(&word, data, len < 8 ? len : 8);
    return word;
}

static uint64_t
hash_text(const char *text, size_t len)
{
    uint64_t hash = len * 0x9e3779b97f4a7c15u;

    for (; len > 8; text += 8, len -= 8) {
        hash = (hash ^ load(text, 8)) * 0xff51afd7ed558ccdu;
        hash ^= hash >> 32;
    }
    return bt_mix64(hash ^ load(text, len));
}

static uint32_t
hash_len(uint64_t hash, size_t len)
{
    return (uint32_t)(hash >> 36) << 4 | (uint32_t)(len < 15 ? len : 15);
}

static bt_err
copy_texts(bt_token_table *table, const bt_str *tokens, bt_why *why)
{
    size_t total = 0;
    uint32_t at = 0;

    for (uint32_t id = 0; id < table->count; id++) {
        if (tokens[id].len > BT_TOKEN_TEXT_BYTES_MAX - total) {
            return bt_fail(why, BT_ERR_TOO_LONG, "vocabulary: the token texts are over 1 GiB");
        }
        total += tokens[id].len;
    }
    table->text_at = bt_alloc_array((size_t)table->count + 1, sizeof *table->text_at);
    table->texts = bt_alloc(total + 1);
    if (table->text_at == NULL || table->texts == NULL) {
        return BT_ERR_NO_MEMORY;
    }
    for (uint32_t id = 0; id < table->count; id++) {
        table->text_at[id] = at;
        if (tokens[id].len != 0) {
            memcpy(table->texts + at, tokens[id].data, tokens[id].len);
        }
        at += (uint32_t)tokens[id].len;
    }
    table->text_at[table->count] = at;
    return BT_OK;
}

static bool
is_text(const bt_token_table *table, uint32_t id, const char *text, size_t len)
{
    bt_str found = bt_token_table_text(table, id);

    return found.len == len && memcmp(found.data, text, len) == 0;
}

static uint32_t
slot_of(const bt_token_table *table, const char *text, size_t len)
{
    uint64_t hash = hash_text(text, len), start = load(text, len);
    uint32_t tag = hash_len(hash, len), at = (uint32_t)hash & table->mask;

    for (;; at = (at + 1) & table->mask) {
        const bt_token_slot *slot = &table->slots[at];

        if (slot->id == FREE ||
            (slot->hash_len == tag && slot->start == start && (len <= 8 || is_text(table, slot->id, text, len)))) {
            return at;
        }
    }
}

static bt_err
index_texts(bt_token_table *table)
{
    uint32_t slots = 16;

    while (slots < 2 * table->count) {
        slots *= 2;
    }
    table->mask = slots - 1;
    table->slots = bt_alloc_pages(slots * sizeof *table->slots);
    if (table->slots == NULL) {
        return BT_ERR_NO_MEMORY;
    }
    memset(table->slots, 0xff, slots * sizeof *table->slots);
    for (uint32_t id = 0; id < table->count; id++) {
        bt_str text = bt_token_table_text(table, id);
        bt_token_slot *slot;

        if (id + AHEAD < table->count) {
            bt_str later = bt_token_table_text(table, id + AHEAD);

            __builtin_prefetch(&table->slots[(uint32_t)hash_text(later.data, later.len) & table->mask], 1);
        }
        if (text.len == 0) {
            continue; // a hole in the numbering
        }
        slot = &table->slots[slot_of(table, text.data, text.len)];
        if (slot->id == FREE) {
            *slot = (bt_token_slot){load(text.data, text.len), hash_len(hash_text(text.data, text.len), text.len), id};
        }
    }
    return BT_OK;
}

bt_err
bt_token_table_init(bt_token_table *table, const bt_str *tokens, const uint8_t *types, uint32_t count, bt_why *why)
{
    bt_err err;

    *table = (bt_token_table){.count = count};
    if (count == 0 || count > BT_TOKENS_MAX) {
        return bt_fail(why, BT_ERR_INVALID, "vocabulary: %u tokens, expected 1 to %u", count, BT_TOKENS_MAX);
    }
    if ((err = copy_texts(table, tokens, why)) != BT_OK || (err = index_texts(table)) != BT_OK) {
        return err;
    }
    table->types = bt_alloc(count);
    if (table->types == NULL) {
        return BT_ERR_NO_MEMORY;
    }
    for (uint32_t id = 0; id < count; id++) {
        uint8_t type = types != NULL ? types[id] : BT_TOKEN_NORMAL;

        // Some converters write 0 for what they do not know.
        table->types[id] = type >= BT_TOKEN_NORMAL && type <= BT_TOKEN_BYTE ? type : BT_TOKEN_NORMAL;
    }
    return BT_OK;
}

int32_t
bt_token_table_find(const bt_token_table *table, const char *text, size_t len)
{
    uint32_t id = len != 0 ? table->slots[slot_of(table, text, len)].id : FREE;

    return id == FREE ? -1 : (int32_t)id;
}

static int
hex_value(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                  : -1;
}

int
bt_token_byte_value(bt_str text)
{
    int high, low;

    if (text.len != 6 || memcmp(text.data, "<0x", 3) != 0 || text.data[5] != '>') {
        return -1;
    }
    high = hex_value(text.data[3]);
    low = hex_value(text.data[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

bt_str
bt_token_spell(bt_str text, char *out)
{
    size_t used = 0;

    for (size_t i = 0; i < text.len;) {
        if (text.len - i >= 3 && memcmp(text.data + i, "\xe2\x96\x81", 3) == 0) {
            out[used++] = ' ';
            i += 3;
        } else {
            out[used++] = text.data[i++];
        }
    }
    return (bt_str){out, used};
}

bt_str
bt_token_unspell(bt_str text, char *out)
{
    size_t used = 0;

    for (size_t i = 0; i < text.len; i++) {
        size_t len = text.data[i] == ' ' ? 3 : 1;

        memcpy(out + used, len == 3 ? "\xe2\x96\x81" : text.data + i, len);
        used += len;
    }
    return (bt_str){out, used};
}

static size_t
decode_text(const bt_token_table *table, uint32_t id, bt_token_text how, char *out)
{
    bt_str text = bt_token_table_text(table, id);
    uint8_t type = table->types[id];
    int byte = how == BT_TOKEN_TEXT_SPACES && type != BT_TOKEN_USER_DEFINED ? bt_token_byte_value(text) : -1;

    if (byte >= 0) {
        out[0] = (char)byte;
        return 1;
    }
    if (how == BT_TOKEN_TEXT_BYTE_LEVEL && (type == BT_TOKEN_NORMAL || type == BT_TOKEN_UNUSED)) {
        return bt_byte_level_decode(text, out);
    }
    if (how == BT_TOKEN_TEXT_SPACES && type != BT_TOKEN_CONTROL && type != BT_TOKEN_UNKNOWN) {
        return bt_token_spell(text, out).len;
    }
    memcpy(out, text.data, text.len);
    return text.len;
}

bt_err
bt_token_table_decode(bt_token_table *table, bt_token_text how)
{
    uint32_t at = 0;

    // No way of decoding makes a text longer.
    table->bytes_at = bt_alloc_array((size_t)table->count + 1, sizeof *table->bytes_at);
    table->bytes = bt_alloc((size_t)table->text_at[table->count] + 1);
    if (table->bytes_at == NULL || table->bytes == NULL) {
        return BT_ERR_NO_MEMORY;
    }
    for (uint32_t id = 0; id < table->count; id++) {
        table->bytes_at[id] = at;
        at += (uint32_t)decode_text(table, id, how, table->bytes + at);
    }
    table->bytes_at[table->count] = at;
    return BT_OK;
}

void
bt_token_table_fini(bt_token_table *table)
{
    bt_free_pages(table->slots, ((size_t)table->mask + 1) * sizeof *table->slots);
    bt_free(table->text_at);
    bt_free(table->texts);
    bt_free(table->bytes_at);
    bt_free(table->bytes);
    bt_free(table->types);
    *table = (bt_token_table){0};
}
