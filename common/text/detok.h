// Token ids to text as it is streamed: never half a character, never a stop string or what might become one.
//
// One object a stream, one thread; it is a plain struct with fixed buffers, so a stream costs no allocation.
#pragma once

#include "common/text/tokenizer.h"

#define BT_STOP_MAX 16        // stop strings a request
#define BT_STOP_BYTES_MAX 256 // bytes of each

typedef struct {
    uint32_t count;
    uint16_t bytes[BT_STOP_MAX];
    char text[BT_STOP_MAX][BT_STOP_BYTES_MAX];
} bt_stop_strings;

typedef struct {
    const bt_tokenizer *tokenizer;
    const bt_stop_strings *stops; // borrowed, may be NULL
    bool special;                 // show control tokens
    bool first;                   // SentencePiece drops the space that add_space_prefix put before the first piece
    bool stopped;                 // a stop string was met: what follows it is dropped, push returns nothing more
    uint32_t held;                // bytes held back: an unfinished character or a possible beginning of a stop string
    char hold[BT_STOP_BYTES_MAX * 2 + 8];
} bt_detok;

// `at_start` is true when the first pushed id begins the text (an echo), false when it continues a prompt.
void bt_detok_init(bt_detok *detok, const bt_tokenizer *tokenizer, const bt_stop_strings *stops, bool special,
                   bool at_start);
// Appends the text that `id` makes certain to out (cap bytes, at least BT_DETOK_OUT_MAX) and returns its byte count.
// Bytes that can never become valid UTF-8 come out as U+FFFD.
#define BT_DETOK_OUT_MAX 4096
size_t bt_detok_push(bt_detok *detok, int32_t id, char *out, size_t cap);
// The end of the stream: what was held back (an unfinished character as U+FFFD).
size_t bt_detok_finish(bt_detok *detok, char *out, size_t cap);
