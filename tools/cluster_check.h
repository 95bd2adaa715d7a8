// What must hold in a cluster's file beyond the type of each value. Private to cluster_config.c.
#pragma once

#include "common/config/pools.h"
#include "tools/cluster_config.h"

enum { BT_CLUSTER_ROUTERS, BT_CLUSTER_PREFILL, BT_CLUSTER_DECODE };

uint32_t bt_cluster_pool_of(bt_node_role role);
const char *bt_cluster_section(uint32_t pool);

bt_err bt_cluster_check_names(const bt_cluster_config *c, const bt_config_tree *tree, bt_why *why);
// Everything else; fills in link_listen and tls_name, and with `here` the secret and the keys of the program that runs.
bt_err bt_cluster_check(bt_cluster_config *c, const bt_config_tree *tree, bool here, bt_why *why);
