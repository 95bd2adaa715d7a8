// One file for the programs of a cluster: pools of nodes, and each node's settings put together. A setting may stand at the top of the
// file, in a pool or at a node, and the nearest wins:
//
//     kv: {format: int8}              # for every node whose table has this setting
//     decode:                         # a pool
//       weights: q4                   # for its nodes
//       nodes:
//         - {name: d1, threads: 8}    # for this one
//
//     bt_config_tree_read(&tree, pools, 2, "cluster.yaml", &why);     everything is checked: types, ranges, unknown and repeated settings
//     bt_config_tree_set(tree, 1, 0, "threads=4", &why);              --set of the program that runs: nearer than its node
//     bt_config_tree_fill(tree, 1, 0, &config);                       defaults, file, pool, node, sets
//     if (…) bt_config_tree_fail(tree, 1, 0, "link", &why, "…");      "cluster.yaml:7:21: …": where that value came from
//     bt_config_tree_close(tree);
#pragma once

#include "common/config/config.h"

#define BT_CONFIG_POOLS_MAX 8

typedef struct {
    const char *section;     // of the file: "decode"
    const bt_setting *table; // what a node of it knows
    size_t bytes;            // of the struct that the table fills in
    uint32_t nodes_max;
    uint32_t own; // the first so many rows are a node's own (its name, its addresses) and stand there alone
} bt_config_pool;

typedef struct bt_config_tree bt_config_tree;

// Errors as config.h says. `pools` is borrowed until close.
bt_err bt_config_tree_read(bt_config_tree **out, const bt_config_pool *pools, uint32_t pool_count, const char *path,
                           bt_why *why);
bt_err bt_config_tree_parse(bt_config_tree **out, const bt_config_pool *pools, uint32_t pool_count, const char *name,
                            bt_str yaml, bt_why *why);
void bt_config_tree_close(bt_config_tree *tree); // NULL is fine

uint32_t bt_config_tree_nodes(const bt_config_tree *tree, uint32_t pool);
bt_err bt_config_tree_set(bt_config_tree *tree, uint32_t pool, uint32_t node, const char *pair, bt_why *why);
void bt_config_tree_fill(const bt_config_tree *tree, uint32_t pool, uint32_t node, void *values);

// BT_ERR_INVALID, with the place of the setting that the node got its value from before the words: of the node itself when the file
// does not say it, of the file when `pool` has no such node. `key` may be NULL.
bt_err bt_config_tree_fail(const bt_config_tree *tree, uint32_t pool, uint32_t node, const char *key, bt_why *why,
                           const char *format, ...) __attribute__((format(printf, 6, 7)));
// "line 7": for words that point at a second place.
uint32_t bt_config_tree_line(const bt_config_tree *tree, uint32_t pool, uint32_t node, const char *key);

// Writes a file of `counts[pool]` nodes whose structs lie one after the other at `values[pool]`: what all nodes share stands at the top,
// what a pool shares in it. Reading it gives the same values.
void bt_config_tree_print(const bt_config_pool *pools, uint32_t pool_count, const void *const *values,
                          const uint32_t *counts, bt_buf *out);
