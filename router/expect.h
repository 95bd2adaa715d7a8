// What a node must be to belong to the cluster, compared field by field with what it says in its HELLO. Pure.
#pragma once

#include "common/wire/message.h"

// Zero and "" are not looked at, but for the role.
typedef struct {
    char name[BT_NODE_NAME_MAX];
    bt_node_role role;
    uint32_t version, block_tokens;
    uint32_t kv_format; // 1 + bt_kv_format
    uint64_t model, weights, layout;
} bt_router_expected;

// The first field that differs, and both values as text.
typedef struct {
    const char *field; // NULL = none
    char expected[BT_NODE_NAME_MAX], found[BT_NODE_NAME_MAX];
} bt_router_refusal;

bt_router_refusal bt_router_compare(const bt_router_expected *expected, const bt_hello *hello);
