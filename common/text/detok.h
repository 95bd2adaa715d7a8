// Token ids to text as it is streamed: never half a character, never a stop string or what might become one.
//
// One object a stream, one thread; it is a plain struct with fixed buffers, so a stream costs no allocation.
#pragma once

#include "common/text/tokenizer.h"

#define BT_STOP_MAX 16        // stop strings a request
#define BT_STOP_BYTES_MAX 256 // bytes of each

// Filled by bt_stop_strings_add; the fields are read by the detokenizer only. Zeroed is empty.
typedef struct {
    uint32_t count;
    uint16_t bytes[BT_STOP_MAX];
    char text[BT_STOP_MAX][BT_STOP_BYTES_MAX];
    // fall[s][n]: of the first n + 1 bytes of stop s, how many at their end are also its beginning (Knuth-Morris-Pratt):
    // a stream is matched in constant time a byte, whatever the stop strings are.
    uint16_t fall[BT_STOP_MAX][BT_STOP_BYTES_MAX];
} bt_stop_strings;

// BT_ERR_INVALID for an empty string or one that is not UTF-8, BT_ERR_TOO_LONG for too many or too long ones; `why` says
// which in the words of the API ("stop: …").
bt_err bt_stop_strings_add(bt_stop_strings *stops, bt_str text, bt_why *why);

typedef struct {
    const bt_tokenizer *tokenizer;
    const bt_stop_strings *stops; // borrowed, may be NULL
    bool special;                 // show control tokens
    bool first;                   // the space that encoding put before the text is still to be dropped
    bool stopped;                 // a stop string was met: what follows it is dropped, push returns nothing more
    uint32_t partial_bytes;       // of an unfinished character
    char partial[4];
    uint16_t matched[BT_STOP_MAX]; // how much of each stop string the text ends with
    uint32_t held;                 // the longest of them, and the bytes held back for it
    char hold[BT_STOP_BYTES_MAX];
} bt_detok;

// `at_start` is true when the first pushed id begins the text (an echo), false when it continues a prompt.
void bt_detok_init(bt_detok *detok, const bt_tokenizer *tokenizer, const bt_stop_strings *stops, bool special,
                   bool at_start);

// Writes the text that `id` makes certain to out and returns its byte count; what one push writes is always valid UTF-8.
// Bytes that can never become valid UTF-8 come out as U+FFFD, one for each longest run that began a character.
// `cap` is at least BT_DETOK_OUT_MAX; a token whose text does not fit (none of a real vocabulary) is cut at the end.
#define BT_DETOK_OUT_MAX 4096
size_t bt_detok_push(bt_detok *detok, int32_t id, char *out, size_t cap);
// The end of the stream: what was held back (an unfinished character as U+FFFD). BT_DETOK_OUT_MAX is room enough.
size_t bt_detok_finish(bt_detok *detok, char *out, size_t cap);
