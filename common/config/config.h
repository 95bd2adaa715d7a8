// Settings: a table of keys beside the struct that they fill in. Read from a YAML file, then from key=value.
//
//     typedef struct { char listen[128]; uint32_t threads; bt_time idle; } my_config;
//     static const bt_setting table[] = {
//         {"listen", BT_SETTING_TEXT, offsetof(my_config, listen), 128, "127.0.0.1:8080", "Where to listen.", 0, 0, NULL},
//         {"http.idle", BT_SETTING_TIME, offsetof(my_config, idle), 0, "60s", "…", 0, 600, NULL}, {0}};
//
// A dot in a key is a level of the YAML file. Every error says where: "baton.yaml:7:3: unknown setting …; did you mean …?".
// Texts and lists are stored in the struct itself; nothing is allocated that outlives a call.
#pragma once

#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/base/str.h"
#include "common/base/time.h"

typedef enum {
    BT_SETTING_END,
    BT_SETTING_BOOL,  // bool: true, false
    BT_SETTING_COUNT, // uint32_t
    BT_SETTING_BYTES, // size_t: 4096, 64K, 8M, 2G (powers of 1024)
    BT_SETTING_TIME,  // bt_time: 250ms, 30s, 5m, 1h; bounds in seconds
    BT_SETTING_REAL,  // double
    BT_SETTING_TEXT,  // char[size]
    BT_SETTING_WORD,  // uint32_t, an index into `words`
    BT_SETTING_LIST,  // bt_text_list
} bt_setting_kind;

#define BT_TEXT_LIST_MAX 32
#define BT_TEXT_LIST_BYTES 160

typedef struct {
    uint32_t count;
    char items[BT_TEXT_LIST_MAX][BT_TEXT_LIST_BYTES];
} bt_text_list;

typedef struct {
    const char *key;
    bt_setting_kind kind;
    size_t offset, size;  // size: of a text
    const char *fallback; // the default, as a user would write it; lists: items with commas between
    const char *help;
    double min, max;          // of numbers; both 0 = no bounds
    const char *const *words; // of a WORD, NULL after the last
} bt_setting;

// Fills in every default. A default that its own row refuses is our mistake and asserts.
void bt_config_init(const bt_setting *table, void *values);

// BT_ERR_INVALID with file, line and column in `why`, BT_ERR_IO when the file cannot be read. On an error `values` may be
// half changed: the program ends with the message.
bt_err bt_config_read_file(const bt_setting *table, void *values, const char *path, bt_why *why);
// The same for text at hand; `name` stands for the file.
bt_err bt_config_parse(const bt_setting *table, void *values, const char *name, bt_str yaml, bt_why *why);

bt_err bt_config_set(const bt_setting *table, void *values, const char *key, bt_str value, bt_why *why);
// "key=value"
bt_err bt_config_set_pair(const bt_setting *table, void *values, const char *pair, bt_why *why);

// Writes a YAML file of all settings with their help and current values: reading it back gives the same values.
void bt_config_print(const bt_setting *table, const void *values, bt_buf *out);
