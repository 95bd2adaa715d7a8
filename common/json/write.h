// Writes JSON onto a buffer as it is decided, with no tree in between.
//
//     bt_json_writer w;
//     bt_json_write(&w, out);
//     bt_json_begin_object(&w, NULL);
//     bt_json_put_text(&w, "id", id);
//     bt_json_begin_array(&w, "choices");
//     bt_json_put_int(&w, NULL, 3);          // an item has no key
//     bt_json_end(&w);
//     bt_json_end(&w);                       // {"id":"…","choices":[3]}
//
// Compact, no trailing newline. A buffer that is full shows in out->failed, to be looked at once at the end. Using it
// wrongly (a key in an array, none in an object, an end too many) is our own mistake and asserts. One thread.
#pragma once

#include "common/base/buf.h"
#include "common/base/str.h"
#include "common/json/json.h"

#define BT_JSON_WRITER_DEPTH 32

typedef struct {
    bt_buf *out;
    unsigned depth;
    bool object[BT_JSON_WRITER_DEPTH], filled[BT_JSON_WRITER_DEPTH];
} bt_json_writer;

void bt_json_write(bt_json_writer *writer, bt_buf *out);
void bt_json_begin_object(bt_json_writer *writer, const char *key);
void bt_json_begin_array(bt_json_writer *writer, const char *key);
void bt_json_end(bt_json_writer *writer);

void bt_json_put_text(bt_json_writer *writer, const char *key, bt_str text);
void bt_json_put_int(bt_json_writer *writer, const char *key, int64_t value);
void bt_json_put_real(bt_json_writer *writer, const char *key, double value); // NaN and infinities become null
void bt_json_put_bool(bt_json_writer *writer, const char *key, bool value);
void bt_json_put_null(bt_json_writer *writer, const char *key);
void bt_json_put_raw(bt_json_writer *writer, const char *key, bt_str json);               // JSON text, taken as it is
void bt_json_put_value(bt_json_writer *writer, const char *key, const bt_json_at *value); // absent writes null

// The parts, for those who write JSON some other way.
// With its quotes; UTF-8 is kept, invalid bytes become U+FFFD, controls are escaped.
void bt_json_append_text(bt_buf *out, bt_str text);
// A parsed value, compact.
void bt_json_append_value(bt_buf *out, const bt_json_at *value);
// The shortest text that reads back as the same double, whatever the locale, in Python's manner: "1.0", "0.1", "1e+16",
// "nan", "-inf". Returns its length.
#define BT_REAL_TEXT_BYTES 32
size_t bt_real_text(double value, char out[BT_REAL_TEXT_BYTES]);
