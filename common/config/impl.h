// What values (config.c), printing (print.c), the YAML reader (yaml.c) and pools (pools.c) share.
#pragma once

#include "common/base/mem.h"
#include "common/config/pools.h"

#include <stdbool.h>

#define BT_CONFIG_KEY_MAX 96

const bt_setting *bt_config_row(const bt_setting *table, const char *key); // NULL = none
bool bt_config_own(const bt_config_pool *pool, const char *key);
// BT_ERR_INVALID "unknown setting …", with the nearest of all tables.
bt_err bt_config_unknown(const bt_config_pool *pools, uint32_t count, const char *key, bt_why *why);
bool bt_config_has_section(const bt_setting *table, const char *key);
bt_err bt_config_set_row(const bt_setting *row, void *values, bt_str value, bt_why *why);
void bt_config_clear_list(const bt_setting *row, void *values);
bt_err bt_config_add_item(const bt_setting *row, void *values, bt_str item, bt_why *why);
bt_err bt_config_split_pair(const char *pair, char key[BT_CONFIG_KEY_MAX], bt_str *value, bt_why *why);

// Where a setting stands: the whole file, a pool, or one of its nodes. -1 = not in one.
typedef struct {
    int pool, node;
} bt_config_scope;

typedef struct {
    size_t line, column; // from 1; line 0 = --set
} bt_config_place;

// A setting as the file has it.
typedef struct {
    bt_config_scope scope;
    bt_config_place place;
    const char *key;
    bool list, null; // null: given, and says nothing
    uint32_t count;
    bt_str items[]; // [count], one unless it is a list
} bt_config_entry;

// A plain file (bt_config_parse) is one nameless pool of one node whose scratch is the caller's struct.
struct bt_config_tree {
    const bt_config_pool *pools;
    uint32_t pool_count;
    const char *name;
    bt_arena arena;
    const bt_config_entry **entries;
    size_t count, cap;
    void *scratch[BT_CONFIG_POOLS_MAX]; // values are tried here when they are read
    bool seen[BT_CONFIG_POOLS_MAX], listed[BT_CONFIG_POOLS_MAX];
    uint32_t nodes[BT_CONFIG_POOLS_MAX];
    bt_config_place *places[BT_CONFIG_POOLS_MAX]; // [nodes] where each begins
};

// The tree is zeroed but for pools, name and scratch; `scope` is that of the top.
bt_err bt_config_read_yaml(bt_config_tree *tree, bt_config_scope scope, bt_str yaml, bt_why *why);
bt_err bt_config_read_text(bt_buf *out, const char *path, bt_why *why);

// Keeps a setting, whose items belong to the arena, and tries it on every pool of its scope.
bt_err bt_config_tree_add(bt_config_tree *tree, bt_config_entry *entry, bt_why *why);
bt_err bt_config_apply(const bt_setting *row, void *values, const bt_config_entry *entry, bt_why *why);
void bt_config_tree_fini(bt_config_tree *tree);
