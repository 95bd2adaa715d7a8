// The balanced pairwise tree over the segments of K (kernels/cpu/ref/linear.c), for all results of a tile at once.
//
// A kernel writes each segment's results to sums[depth] and calls carry; at the end finish leaves the whole in sums[0].
#pragma once

#include "kernels/cpu/tiled.h"

typedef struct {
    _Alignas(64) float sums[BT_TREE_DEPTH][2 * BT_TILE_TOKENS * BT_PANEL_ROWS];
    uint32_t depth, count;
} bt_tree;

// The sums themselves need no zeros.
static inline void
bt_tree_init(bt_tree *t)
{
    t->depth = t->count = 0;
}

static inline void
bt_tree_join(bt_tree *t, uint32_t floats)
{
    float *left = t->sums[t->depth - 2], *right = t->sums[t->depth - 1];

    for (uint32_t i = 0; i < floats; i++) {
        left[i] += right[i];
    }
    t->depth--;
}

// Takes the segment at sums[depth] in: equal sums are added at once.
static inline void
bt_tree_carry(bt_tree *t, uint32_t floats)
{
    t->depth++;
    t->count++;
    for (uint32_t n = t->count; n % 2 == 0; n /= 2) {
        bt_tree_join(t, floats);
    }
}

// What is left, from the right.
static inline void
bt_tree_finish(bt_tree *t, uint32_t floats)
{
    while (t->depth > 1) {
        bt_tree_join(t, floats);
    }
}
