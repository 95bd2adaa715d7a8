// What must hold in a cluster's file beyond the type of each value. Private to cluster_config.c and its parts: cluster_check.c (names, what
// nodes share), cluster_address.c, and cluster_here.c (what the program that runs needs of this machine).
#pragma once

#include "common/config/pools.h"
#include "tools/cluster_config.h"

enum { BT_CLUSTER_ROUTERS, BT_CLUSTER_PREFILL, BT_CLUSTER_DECODE };

uint32_t bt_cluster_pool_of(bt_node_role role);
const char *bt_cluster_section(uint32_t pool);

bt_err bt_cluster_check_names(const bt_cluster_config *c, const bt_config_tree *tree, bt_why *why);
// Everything else; fills in link_listen and tls_name. `here` is the file's path where the program is to run on this machine: its secret and
// its keys are filled in too. NULL = it is only looked at.
bt_err bt_cluster_check(bt_cluster_config *c, const bt_config_tree *tree, const char *here, bt_why *why);

// ---- between the parts ----

typedef struct {
    bt_cluster_config *c;
    const bt_config_tree *tree;
    bt_why *why;
} bt_cluster_checker;

// A program of the file, whichever pool it is in.
typedef struct {
    uint32_t pool, node;
    const char *name;
    bt_cluster_settings *cluster;
    const char *model;
    bt_node_config *as_node; // NULL for a router
    bt_router_config *as_router;
} bt_cluster_program;

uint32_t bt_cluster_count(const bt_cluster_config *c, uint32_t pool);
bt_cluster_program bt_cluster_get(bt_cluster_config *c, uint32_t pool, uint32_t node);

// Fails at the place of a program's setting.
#define BT_CLUSTER_FAIL(k, p, key, ...) bt_config_tree_fail((k)->tree, (p)->pool, (p)->node, key, (k)->why, __VA_ARGS__)

bt_err bt_cluster_check_addresses(bt_cluster_checker *k, const bt_cluster_program *p);
bt_err bt_cluster_check_here(bt_cluster_checker *k, const bt_cluster_program *p, const char *path);
