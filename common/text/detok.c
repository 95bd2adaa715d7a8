#include "common/text/detok.h"

#include <assert.h>

bt_err
bt_stop_strings_add(bt_stop_strings *stops, bt_str text, bt_why *why)
{
    uint16_t *fall = stops->fall[stops->count % BT_STOP_MAX];
    uint16_t prefix = 0;

    if (stops->count == BT_STOP_MAX) {
        return bt_fail(why, BT_ERR_TOO_LONG, "stop: at most %d strings", BT_STOP_MAX);
    }
    if (text.len > BT_STOP_BYTES_MAX) {
        return bt_fail(why, BT_ERR_TOO_LONG, "stop: %zu bytes, at most %d", text.len, BT_STOP_BYTES_MAX);
    }
    if (text.len == 0 || bt_utf8_valid_prefix(text.data, text.len) != text.len) {
        return bt_fail(why, BT_ERR_INVALID, "stop: expected non-empty UTF-8 text");
    }
    fall[0] = 0;
    for (size_t i = 1; i < text.len; i++) {
        while (prefix != 0 && text.data[i] != text.data[prefix]) {
            prefix = fall[prefix - 1];
        }
        prefix = (uint16_t)(prefix + (text.data[i] == text.data[prefix]));
        fall[i] = prefix;
    }
    memcpy(stops->text[stops->count], text.data, text.len);
    stops->bytes[stops->count++] = (uint16_t)text.len;
    return BT_OK;
}

void
bt_detok_init(bt_detok *detok, const bt_tokenizer *tokenizer, const bt_stop_strings *stops, bool special, bool at_start)
{
    *detok = (bt_detok){.tokenizer = tokenizer, .stops = stops, .special = special};
    detok->first = at_start && bt_tokenizer_drops_first_space(tokenizer);
}

typedef struct {
    char *data;
    size_t used, cap;
} output;

// All or nothing, so that a cut leaves whole characters.
static void
put(output *out, const char *bytes, size_t count)
{
    if (count > out->cap - out->used) {
        out->cap = out->used; // nor what comes after
        return;
    }
    memcpy(out->data + out->used, bytes, count);
    out->used += count;
}

// Feeds one byte to each stop string's matcher; returns the length of the longest that it completes.
static uint32_t
match_byte(bt_detok *detok, char byte)
{
    const bt_stop_strings *stops = detok->stops;
    uint32_t complete = 0;

    for (uint32_t s = 0; s < stops->count; s++) {
        uint16_t matched = detok->matched[s];

        while (matched != 0 && stops->text[s][matched] != byte) {
            matched = stops->fall[s][matched - 1];
        }
        matched = (uint16_t)(matched + (stops->text[s][matched] == byte));
        if (matched == stops->bytes[s]) {
            complete = matched > complete ? matched : complete;
            matched = stops->fall[s][matched - 1];
        }
        detok->matched[s] = matched;
    }
    return complete;
}

// Takes a whole character: holds back what may begin a stop string and lets go of the rest.
static void
take_character(bt_detok *detok, const char *bytes, size_t count, output *out)
{
    char text[BT_STOP_BYTES_MAX + 4];
    uint32_t len = detok->held, complete = 0, keep = 0;

    if (detok->stops == NULL || detok->stops->count == 0) {
        put(out, bytes, count);
        return;
    }
    memcpy(text, detok->hold, len);
    memcpy(text + len, bytes, count);
    len += (uint32_t)count;
    for (size_t i = 0; i < count; i++) {
        complete = match_byte(detok, bytes[i]); // stop strings end with a character
    }
    if (complete != 0) {
        put(out, text, len - complete);
        detok->stopped = true;
        detok->held = 0;
        return;
    }
    for (uint32_t s = 0; s < detok->stops->count; s++) {
        keep = detok->matched[s] > keep ? detok->matched[s] : keep;
    }
    put(out, text, len - keep);
    memcpy(detok->hold, text + len - keep, keep);
    detok->held = keep;
}

static void
take_replacement(bt_detok *detok, output *out)
{
    detok->partial_bytes = 0;
    take_character(detok, "\xef\xbf\xbd", 3, out);
}

// How many bytes a character that begins so has, and whether its second byte may be this one.
static uint32_t
length_of(uint8_t lead)
{
    return lead < 0x80                    ? 1
           : lead >= 0xc2 && lead <= 0xdf ? 2
           : (lead & 0xf0) == 0xe0        ? 3
           : lead >= 0xf0 && lead <= 0xf4 ? 4
                                          : 0;
}

static bool
may_follow(const bt_detok *detok, uint8_t byte)
{
    uint8_t lead = (uint8_t)detok->partial[0], low = 0x80, high = 0xbf;

    if (detok->partial_bytes == 1) {
        low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : low;
        high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : high;
    }
    return byte >= low && byte <= high;
}

static void
take_byte(bt_detok *detok, char byte, output *out)
{
    if (detok->partial_bytes != 0 && !may_follow(detok, (uint8_t)byte)) {
        take_replacement(detok, out);
        if (detok->stopped) {
            return;
        }
    }
    if (detok->partial_bytes == 0 && length_of((uint8_t)byte) == 0) {
        take_replacement(detok, out);
        return;
    }
    detok->partial[detok->partial_bytes++] = byte;
    if (detok->partial_bytes == length_of((uint8_t)detok->partial[0])) {
        uint32_t count = detok->partial_bytes;

        detok->partial_bytes = 0;
        take_character(detok, detok->partial, count, out);
    }
}

size_t
bt_detok_push(bt_detok *detok, int32_t id, char *out, size_t cap)
{
    bt_str bytes = bt_tokenizer_bytes(detok->tokenizer, id, detok->special);
    output to = {out, 0, cap};
    size_t from = 0;

    assert(cap >= BT_DETOK_OUT_MAX);
    if (detok->first && bytes.len != 0) {
        from = bytes.data[0] == ' ';
        detok->first = false;
    }
    for (size_t i = from; i < bytes.len && !detok->stopped; i++) {
        take_byte(detok, bytes.data[i], &to);
    }
    return to.used;
}

size_t
bt_detok_finish(bt_detok *detok, char *out, size_t cap)
{
    output to = {out, 0, cap};

    assert(cap >= BT_DETOK_OUT_MAX);
    if (detok->partial_bytes != 0 && !detok->stopped) {
        take_replacement(detok, &to);
    }
    if (!detok->stopped) {
        put(&to, detok->hold, detok->held);
    }
    detok->held = 0;
    detok->stopped = true;
    return to.used;
}
