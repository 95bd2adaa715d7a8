// Settings in scopes: kept as the file has them, put together for a node on demand. A plain file is the smallest case.
#include "common/config/pools.h"

#include "common/config/impl.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define ARENA_BYTES_MAX (16u << 20)

bt_err
bt_config_apply(const bt_setting *row, void *values, const bt_config_entry *entry, bt_why *why)
{
    bt_err err = BT_OK;

    if (entry->null) {
        return BT_OK;
    }
    if (!entry->list) {
        return bt_config_set_row(row, values, entry->items[0], why);
    }
    if (row->kind != BT_SETTING_LIST) {
        return bt_fail(why, BT_ERR_INVALID, "%s: expected one value", row->key);
    }
    bt_config_clear_list(row, values);
    for (uint32_t i = 0; i < entry->count && err == BT_OK; i++) {
        err = bt_config_add_item(row, values, entry->items[i], why);
    }
    return err;
}

bt_err
bt_config_tree_add(bt_config_tree *tree, bt_config_entry *entry, bt_why *why)
{
    bt_err err;

    if (tree->count == tree->cap) {
        size_t cap = tree->cap != 0 ? tree->cap * 2 : 64;
        const bt_config_entry **grown = bt_realloc(tree->entries, cap * sizeof *grown);

        if (grown == NULL) {
            return bt_fail(why, BT_ERR_NO_MEMORY, "no memory");
        }
        tree->entries = grown;
        tree->cap = cap;
    }
    for (uint32_t pool = 0; pool < tree->pool_count; pool++) {
        const bt_setting *row = entry->scope.pool < 0 || entry->scope.pool == (int)pool
                                    ? bt_config_row(tree->pools[pool].table, entry->key)
                                    : NULL;

        if (row != NULL && (err = bt_config_apply(row, tree->scratch[pool], entry, why)) != BT_OK) {
            return err;
        }
    }
    tree->entries[tree->count++] = entry;
    return BT_OK;
}

void
bt_config_tree_fini(bt_config_tree *tree)
{
    bt_free(tree->entries);
    bt_arena_fini(&tree->arena);
}

// ---- a plain file ----

bt_err
bt_config_parse(const bt_setting *table, void *values, const char *name, bt_str yaml, bt_why *why)
{
    bt_config_pool only = {.table = table};
    bt_config_tree tree = {.pools = &only, .pool_count = 1, .name = name, .scratch = {values}};
    bt_err err;

    bt_arena_init(&tree.arena, ARENA_BYTES_MAX);
    err = bt_config_read_yaml(&tree, (bt_config_scope){0, 0}, yaml, why);
    bt_config_tree_fini(&tree);
    return err;
}

bt_err
bt_config_read_file(const bt_setting *table, void *values, const char *path, bt_why *why)
{
    bt_buf text;
    bt_err err = bt_config_read_text(&text, path, why);

    if (err != BT_OK) {
        return err;
    }
    err = bt_config_parse(table, values, path, (bt_str){text.data, text.len}, why);
    bt_buf_fini(&text);
    return err;
}

// ---- a file with pools ----

static bt_err
allocate(bt_config_tree *tree)
{
    for (uint32_t pool = 0; pool < tree->pool_count; pool++) {
        const bt_config_pool *p = &tree->pools[pool];

        tree->scratch[pool] = bt_alloc(p->bytes);
        tree->places[pool] = bt_alloc_array(p->nodes_max, sizeof *tree->places[pool]);
        if (tree->scratch[pool] == NULL || tree->places[pool] == NULL) {
            return BT_ERR_NO_MEMORY;
        }
        bt_config_init(p->table, tree->scratch[pool]);
    }
    return BT_OK;
}

bt_err
bt_config_tree_parse(bt_config_tree **out, const bt_config_pool *pools, uint32_t pool_count, const char *name,
                     bt_str yaml, bt_why *why)
{
    bt_config_tree *tree = bt_alloc(sizeof *tree);
    bt_err err;

    assert(pool_count <= BT_CONFIG_POOLS_MAX);
    if (tree == NULL) {
        return bt_fail(why, BT_ERR_NO_MEMORY, "%s: no memory", name);
    }
    tree->pools = pools;
    tree->pool_count = pool_count;
    bt_arena_init(&tree->arena, ARENA_BYTES_MAX);
    if ((tree->name = bt_arena_copy(&tree->arena, name, strlen(name))) == NULL || allocate(tree) != BT_OK) {
        err = bt_fail(why, BT_ERR_NO_MEMORY, "%s: no memory", name);
    } else {
        err = bt_config_read_yaml(tree, (bt_config_scope){-1, -1}, yaml, why);
    }
    if (err != BT_OK) {
        bt_config_tree_close(tree);
        return err;
    }
    *out = tree;
    return BT_OK;
}

bt_err
bt_config_tree_read(bt_config_tree **out, const bt_config_pool *pools, uint32_t pool_count, const char *path,
                    bt_why *why)
{
    bt_buf text;
    bt_err err = bt_config_read_text(&text, path, why);

    if (err != BT_OK) {
        return err;
    }
    err = bt_config_tree_parse(out, pools, pool_count, path, (bt_str){text.data, text.len}, why);
    bt_buf_fini(&text);
    return err;
}

void
bt_config_tree_close(bt_config_tree *tree)
{
    if (tree == NULL) {
        return;
    }
    for (uint32_t pool = 0; pool < tree->pool_count; pool++) {
        bt_free(tree->scratch[pool]);
        bt_free(tree->places[pool]);
    }
    bt_config_tree_fini(tree);
    bt_free(tree);
}

uint32_t
bt_config_tree_nodes(const bt_config_tree *tree, uint32_t pool)
{
    return tree->nodes[pool];
}

bt_err
bt_config_tree_set(bt_config_tree *tree, uint32_t pool, uint32_t node, const char *pair, bt_why *why)
{
    bt_config_entry *entry = bt_arena_alloc(&tree->arena, sizeof *entry + sizeof *entry->items);
    const bt_setting *row;
    char key[BT_CONFIG_KEY_MAX], *copy;
    bt_str value;
    bt_err err;

    assert(pool < tree->pool_count && node < tree->nodes[pool]);
    if ((err = bt_config_split_pair(pair, key, &value, why)) != BT_OK) {
        return err;
    }
    if ((row = bt_config_row(tree->pools[pool].table, key)) == NULL) {
        return bt_config_unknown(&tree->pools[pool], 1, key, why);
    }
    if (entry == NULL || (copy = bt_arena_copy(&tree->arena, value.data, value.len)) == NULL) {
        return bt_fail(why, BT_ERR_NO_MEMORY, "no memory");
    }
    *entry = (bt_config_entry){.scope = {(int)pool, (int)node}, .key = row->key, .count = 1};
    entry->items[0] = (bt_str){copy, value.len};
    return bt_config_tree_add(tree, entry, why);
}

// How near to the node a setting stands: 0 = not its own, 1 file, 2 pool, 3 node, 4 --set.
static unsigned
nearness(const bt_config_entry *entry, uint32_t pool, uint32_t node)
{
    if (entry->scope.pool < 0) {
        return 1;
    }
    if (entry->scope.pool != (int)pool || (entry->scope.node >= 0 && entry->scope.node != (int)node)) {
        return 0;
    }
    return entry->scope.node < 0 ? 2 : entry->place.line != 0 ? 3 : 4;
}

void
bt_config_tree_fill(const bt_config_tree *tree, uint32_t pool, uint32_t node, void *values)
{
    const bt_setting *table = tree->pools[pool].table;

    bt_config_init(table, values);
    for (unsigned near = 1; near <= 4; near++) {
        for (size_t i = 0; i < tree->count; i++) {
            const bt_config_entry *entry = tree->entries[i];
            const bt_setting *row = nearness(entry, pool, node) == near ? bt_config_row(table, entry->key) : NULL;
            bt_err err = row != NULL ? bt_config_apply(row, values, entry, NULL) : BT_OK;

            assert(err == BT_OK && "it was tried when it was read");
            (void)err;
        }
    }
}

// ---- where ----

static const bt_config_entry *
nearest(const bt_config_tree *tree, uint32_t pool, uint32_t node, const char *key)
{
    const bt_config_entry *found = NULL;
    unsigned best = 0;

    for (size_t i = 0; i < tree->count && key != NULL; i++) {
        unsigned near = nearness(tree->entries[i], pool, node);

        if (near != 0 && near >= best && !tree->entries[i]->null && strcmp(tree->entries[i]->key, key) == 0) {
            best = near;
            found = tree->entries[i];
        }
    }
    return found;
}

static bt_config_place
place(const bt_config_tree *tree, uint32_t pool, uint32_t node, const char *key)
{
    const bt_config_entry *entry = nearest(tree, pool, node, key);

    if (entry != NULL) {
        return entry->place;
    }
    return node < tree->nodes[pool] ? tree->places[pool][node] : (bt_config_place){1, 1};
}

bt_err
bt_config_tree_fail(const bt_config_tree *tree, uint32_t pool, uint32_t node, const char *key, bt_why *why,
                    const char *format, ...)
{
    bt_config_place at = place(tree, pool, node, key);
    va_list args;
    bt_why words;

    va_start(args, format);
    vsnprintf(words.text, sizeof words.text, format, args);
    va_end(args);
    return at.line == 0 ? bt_fail(why, BT_ERR_INVALID, "--set %s: %s", key, words.text)
                        : bt_fail(why, BT_ERR_INVALID, "%s:%zu:%zu: %s", tree->name, at.line, at.column, words.text);
}

uint32_t
bt_config_tree_line(const bt_config_tree *tree, uint32_t pool, uint32_t node, const char *key)
{
    return (uint32_t)place(tree, pool, node, key).line;
}
