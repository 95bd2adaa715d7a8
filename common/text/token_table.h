// The tokens of a vocabulary: id → text as stored in the file, id → bytes that it stands for, and text → id.
//
// Texts lie in one block; the way back is an open-addressing hash over byte strings (a slot holds enough of a text to
// tell a short one without touching it: opening a vocabulary is bound by cache misses). Immutable once built: any thread may look up.
#pragma once

#include "common/text/tokenizer.h"

// Outside numbers are checked against these before memory is taken.
#define BT_TOKENS_MAX (1u << 22)
#define BT_TOKEN_TEXT_BYTES_MAX (1u << 30) // of all texts together
#define BT_MERGES_MAX (1u << 24)

typedef struct {
    uint64_t start;    // the text's first 8 bytes, zeros behind a shorter one
    uint32_t hash_len; // 28 bits of the text's hash over the text's length, 15 standing for all above 14
    uint32_t id;       // UINT32_MAX = free
} bt_token_slot;

typedef struct {
    uint32_t count;
    uint32_t mask;        // slots − 1
    bt_token_slot *slots; // [mask + 1]
    uint32_t *text_at;    // [count + 1] offsets into `texts`
    char *texts;
    uint32_t *bytes_at; // [count + 1] offsets into `bytes`; NULL until bt_token_table_decode
    char *bytes;
    uint8_t *types; // [count] bt_token_type
} bt_token_table;

// How a stored text becomes the bytes it stands for.
typedef enum {
    BT_TOKEN_TEXT_BYTE_LEVEL, // GPT-2's letters for bytes
    BT_TOKEN_TEXT_SPACES,     // SentencePiece: ▁ is a space, <0x0A> a byte
} bt_token_text;

// Copies texts and types (NULL = all normal). When a text comes twice, the first id answers to it. A zeroed table is
// fine for fini, a half-built one too.
bt_err bt_token_table_init(bt_token_table *table, const bt_str *tokens, const uint8_t *types, uint32_t count,
                           bt_why *why);
bt_err bt_token_table_decode(bt_token_table *table, bt_token_text how);
void bt_token_table_fini(bt_token_table *table);

int32_t bt_token_table_find(const bt_token_table *table, const char *text, size_t len); // -1 = none

static inline bt_str
bt_token_table_text(const bt_token_table *table, uint32_t id)
{
    return (bt_str){table->texts + table->text_at[id], table->text_at[id + 1] - table->text_at[id]};
}

static inline bt_str
bt_token_table_bytes(const bt_token_table *table, uint32_t id)
{
    return (bt_str){table->bytes + table->bytes_at[id], table->bytes_at[id + 1] - table->bytes_at[id]};
}

// Copies a text with a space for each ▁ to `out` (room for text.len bytes) and returns the copy.
bt_str bt_token_spell(bt_str text, char *out);
// The other way round (room for 3 × text.len bytes).
bt_str bt_token_unspell(bt_str text, char *out);

// "<0x0A>" → 10, anything else −1.
int bt_token_byte_value(bt_str text);
