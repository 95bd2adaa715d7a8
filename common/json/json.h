// JSON as requests and model files bring it: parsed whole, then read through typed getters whose errors name the field.
//
//     bt_json *document;
//     bt_json_at root, messages, message;
//     if ((err = bt_json_parse(&document, body, NULL, why)) != BT_OK) { return err; } // "line 1, column 9 (byte 8): …"
//     root = bt_json_root(document);
//     messages = bt_json_get(&root, "messages");
//     err = bt_json_as_array(&messages, &count, why);         // "messages: expected an array, got a string"
//     message = bt_json_item(&messages, 2);
//     role = bt_json_get(&message, "role");
//     err = bt_json_as_text(&role, &text, why);               // "messages[2].role: expected a string, got a number"
//     bt_json_close(document);
//
// Objects keep the order of their keys. Where a key comes twice the last one wins, in the place of the first, as in
// Python and JavaScript, unless the limits say to refuse. A top-level scalar is a document. Strings are valid UTF-8 and
// may hold NUL; U+0000 in a *key* reads as U+FDD0. An integer that does not fit int64 is a real, so that it is refused
// where an integer is asked for and nowhere else; a real beyond the range of double is an error. A document is
// immutable; any thread may read it while it is open.
#pragma once

#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/base/str.h"

typedef struct bt_json bt_json;

typedef enum {
    BT_JSON_ABSENT, // no such key or item
    BT_JSON_NULL,
    BT_JSON_BOOL,
    BT_JSON_INT,
    BT_JSON_REAL,
    BT_JSON_TEXT,
    BT_JSON_ARRAY,
    BT_JSON_OBJECT
} bt_json_type;

typedef struct {
    size_t bytes_max;       // 0: 64 MiB. Memory is at most about 30 times the bytes parsed.
    size_t depth_max;       // 0: 128 nested arrays and objects; never above 1024
    bool refuse_duplicates; // a key that comes twice is an error
    bool integers_as_reals; // every number is a real: files of others hold integers of 30 digits
} bt_json_limits;

// `limits` may be NULL. BT_ERR_INVALID with line, column and byte (from 0) of the fault in `why`, BT_ERR_TOO_LONG over a
// limit. The text need not outlive the call.
bt_err bt_json_parse(bt_json **out, bt_str text, const bt_json_limits *limits, bt_why *why);
void bt_json_close(bt_json *document); // NULL is fine

// A value and the way to it. Made by the functions below and passed by address: a child points to its parent's
// bt_json_at, which must stay where it is while the child is used (locals of one function, as above, do).
typedef struct bt_json_at {
    const bt_json *value; // NULL when absent
    const struct bt_json_at *parent;
    bt_str key;   // in an object
    size_t index; // in an array, where key.data is NULL
} bt_json_at;

bt_json_at bt_json_root(const bt_json *document);
bt_json_type bt_json_type_of(const bt_json_at *at);
// An absent value when there is no such key, or when the parent is no object (array): as_… then says what is missing.
bt_json_at bt_json_get(const bt_json_at *object, const char *key);
bt_json_at bt_json_item(const bt_json_at *array, size_t index);
// Walks an object in its order; *step begins at NULL; false after the last. member->key is the key. In a value that is
// no object there is nothing to walk.
bool bt_json_next(const bt_json_at *object, void **step, bt_json_at *member);
// Array items or object members; 0 for everything else.
size_t bt_json_count(const bt_json_at *at);

// True when there is a value and it is not null: what most optional settings want to know.
bool bt_json_given(const bt_json_at *at);

// Typed getters: BT_ERR_INVALID naming the field when it is absent, of another type or out of range; *out is then
// untouched. Texts live as long as the document and have a NUL after them.
bt_err bt_json_as_text(const bt_json_at *at, bt_str *out, bt_why *why);
bt_err bt_json_as_bool(const bt_json_at *at, bool *out, bt_why *why);
bt_err bt_json_as_int(const bt_json_at *at, int64_t min, int64_t max, int64_t *out, bt_why *why); // 3.0 is refused
bt_err bt_json_as_real(const bt_json_at *at, double min, double max, double *out, bt_why *why);   // takes integers too
bt_err bt_json_as_array(const bt_json_at *at, size_t *count, bt_why *why);
bt_err bt_json_as_object(const bt_json_at *at, bt_why *why);

// The same for an optional member: absent or null leaves *out as it is and is BT_OK.
bt_err bt_json_maybe_text(const bt_json_at *object, const char *key, bt_str *out, bt_why *why);
bt_err bt_json_maybe_bool(const bt_json_at *object, const char *key, bool *out, bt_why *why);
bt_err bt_json_maybe_int(const bt_json_at *object, const char *key, int64_t min, int64_t max, int64_t *out,
                         bt_why *why);

// Fills `why` with "messages[2].role: " and the words; for checks of the caller's own. Returns BT_ERR_INVALID.
bt_err bt_json_wrong(const bt_json_at *at, bt_why *why, const char *format, ...) __attribute__((format(printf, 3, 4)));
// The path itself, NUL-terminated and cut to fit; "the document" for the root.
void bt_json_path(const bt_json_at *at, char *out, size_t bytes);
