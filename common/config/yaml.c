// Reads YAML by libyaml's events. The subset that settings need: mappings of mappings, scalars, lists of scalars, and the `nodes:` of
// a pool. Anchors, tags, directives and further documents are refused where they stand. Only this file includes libyaml.
#include "common/config/impl.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <yaml.h>

#define FILE_BYTES_MAX (1u << 20)

typedef struct {
    bt_config_tree *tree;
    bt_config_scope scope;
    bt_why *why;
    yaml_parser_t parser;
    yaml_event_t event;
    bool held; // event is ours to delete
} reader;

static bt_err
fail_at(reader *r, bt_err err, yaml_mark_t at, const char *words)
{
    return bt_fail(r->why, err, "%s:%zu:%zu: %s", r->tree->name, at.line + 1, at.column + 1, words);
}

static bt_err
fail_here(reader *r, const char *words)
{
    return fail_at(r, BT_ERR_INVALID, r->event.start_mark, words);
}

static bt_err
next(reader *r)
{
    yaml_mark_t at;

    if (r->held) {
        yaml_event_delete(&r->event);
        r->held = false;
    }
    if (!yaml_parser_parse(&r->parser, &r->event)) {
        at = r->parser.error == YAML_READER_ERROR ? r->parser.mark : r->parser.problem_mark;
        return fail_at(r, BT_ERR_INVALID, at, r->parser.problem != NULL ? r->parser.problem : "not YAML");
    }
    r->held = true;
    if (r->event.type == YAML_ALIAS_EVENT ||
        (r->event.type == YAML_SCALAR_EVENT && r->event.data.scalar.anchor != NULL) ||
        (r->event.type == YAML_MAPPING_START_EVENT && r->event.data.mapping_start.anchor != NULL) ||
        (r->event.type == YAML_SEQUENCE_START_EVENT && r->event.data.sequence_start.anchor != NULL)) {
        return fail_here(r, "anchors and aliases are not used here");
    }
    if ((r->event.type == YAML_SCALAR_EVENT && r->event.data.scalar.tag != NULL) ||
        (r->event.type == YAML_MAPPING_START_EVENT && r->event.data.mapping_start.tag != NULL) ||
        (r->event.type == YAML_SEQUENCE_START_EVENT && r->event.data.sequence_start.tag != NULL)) {
        return fail_here(r, "tags are not used here");
    }
    return BT_OK;
}

static bt_str
scalar(const reader *r)
{
    return (bt_str){(const char *)r->event.data.scalar.value, r->event.data.scalar.length};
}

// An empty plain scalar or ~ says nothing: the default stays.
static bool
is_null(const reader *r)
{
    bt_str text = scalar(r);

    return r->event.data.scalar.style == YAML_PLAIN_SCALAR_STYLE &&
           (text.len == 0 || bt_str_is(text, "~") || bt_str_is(text, "null"));
}

// ---- values ----

static bt_config_place
place_of(yaml_mark_t at)
{
    return (bt_config_place){at.line + 1, at.column + 1};
}

static bt_err
keep_item(reader *r, bt_config_entry *entry)
{
    bt_str text = scalar(r);
    char *copy = bt_arena_copy(&r->tree->arena, text.data, text.len);

    if (copy == NULL) {
        return fail_at(r, BT_ERR_NO_MEMORY, r->event.start_mark, "no memory");
    }
    entry->items[entry->count++] = (bt_str){copy, text.len};
    return BT_OK;
}

static bt_err
read_items(reader *r, bt_config_entry *entry)
{
    bt_err err;

    while ((err = next(r)) == BT_OK && r->event.type != YAML_SEQUENCE_END_EVENT) {
        if (r->event.type != YAML_SCALAR_EVENT) {
            return fail_here(r, "expected a list of plain values");
        }
        if (entry->count == BT_TEXT_LIST_MAX) {
            return fail_here(r, "expected a shorter list");
        }
        if ((err = keep_item(r, entry)) != BT_OK) {
            return err;
        }
    }
    return err;
}

// The event is the value of `row`.
static bt_err
read_value(reader *r, const bt_setting *row)
{
    bool list = r->event.type == YAML_SEQUENCE_START_EVENT && row->kind == BT_SETTING_LIST;
    size_t items = list ? BT_TEXT_LIST_MAX : 1;
    yaml_mark_t at = r->event.start_mark;
    bt_config_entry *entry;
    bt_why why = {""};
    bt_err err;

    if (!list && r->event.type != YAML_SCALAR_EVENT) {
        snprintf(why.text, sizeof why.text, "%s: expected %s", row->key,
                 row->kind == BT_SETTING_LIST ? "a list" : "one value");
        return fail_here(r, why.text);
    }
    if ((entry = bt_arena_alloc(&r->tree->arena, sizeof *entry + items * sizeof *entry->items)) == NULL) {
        return fail_at(r, BT_ERR_NO_MEMORY, at, "too many settings");
    }
    *entry = (bt_config_entry){.scope = r->scope, .place = place_of(at), .key = row->key, .list = list};
    entry->null = !list && is_null(r);
    if ((err = list ? read_items(r, entry) : keep_item(r, entry)) != BT_OK) {
        return err;
    }
    err = bt_config_tree_add(r->tree, entry, &why);
    return err == BT_OK ? BT_OK : fail_at(r, err, at, why.text);
}

// ---- names ----

// The tables of the scope: all pools' at the top of the file.
static const bt_config_pool *
scope_pools(const reader *r, uint32_t *count)
{
    *count = r->scope.pool < 0 ? r->tree->pool_count : 1;
    return r->tree->pools + (r->scope.pool < 0 ? 0 : r->scope.pool);
}

static bool
is_section(const reader *r, const char *key)
{
    uint32_t count;
    const bt_config_pool *pools = scope_pools(r, &count);

    while (count-- != 0) {
        if (bt_config_has_section(pools[count].table, key)) {
            return true;
        }
    }
    return false;
}

static const bt_setting *
find_row(const reader *r, const char *key)
{
    const bt_setting *row = NULL;
    uint32_t count;
    const bt_config_pool *pools = scope_pools(r, &count);

    for (uint32_t i = 0; i < count && row == NULL; i++) {
        row = bt_config_row(pools[i].table, key);
    }
    return row;
}

static bt_err
unknown(reader *r, const char *key)
{
    const bt_config_tree *tree = r->tree;
    bt_why why = {""};
    uint32_t count;
    const bt_config_pool *pools = scope_pools(r, &count);

    for (uint32_t i = 0; i < tree->pool_count && r->scope.pool >= 0; i++) {
        if (bt_config_row(tree->pools[i].table, key) != NULL) {
            snprintf(why.text, sizeof why.text, "\"%s\" is a setting of %s, not of %s", key, tree->pools[i].section,
                     tree->pools[r->scope.pool].section);
            return fail_here(r, why.text);
        }
    }
    bt_config_unknown(pools, count, key, &why);
    return fail_here(r, why.text);
}

static int
find_pool(const bt_config_tree *tree, const char *key)
{
    for (uint32_t i = 0; i < tree->pool_count; i++) {
        if (tree->pools[i].section != NULL && strcmp(tree->pools[i].section, key) == 0) {
            return (int)i;
        }
    }
    return -1;
}

// May the setting stand here?
static bt_err
check_new(reader *r, const char *key)
{
    bt_config_scope here = r->scope;
    bt_why why = {""};
    uint32_t count;
    const bt_config_pool *pools = scope_pools(r, &count);

    for (size_t i = 0; i < r->tree->count; i++) {
        const bt_config_entry *entry = r->tree->entries[i];

        if (entry->scope.pool == here.pool && entry->scope.node == here.node && strcmp(entry->key, key) == 0) {
            return fail_here(r, "this setting is given twice");
        }
    }
    while (here.node < 0 && count-- != 0) {
        if (bt_config_own(&pools[count], key)) {
            snprintf(why.text, sizeof why.text, "\"%s\" is each node's own: expected under %s: nodes:", key,
                     pools[count].section);
            return fail_here(r, why.text);
        }
    }
    return BT_OK;
}

// ---- the tree ----

static bt_err read_mapping(reader *r, const char *prefix);

static bt_err
read_nodes(reader *r)
{
    bt_config_tree *tree = r->tree;
    int pool = r->scope.pool;
    bt_err err;

    if (tree->listed[pool]) {
        return fail_here(r, "these nodes are given twice");
    }
    tree->listed[pool] = true;
    if ((err = next(r)) != BT_OK || (r->event.type == YAML_SCALAR_EVENT && is_null(r))) {
        return err;
    }
    if (r->event.type != YAML_SEQUENCE_START_EVENT) {
        return fail_here(r, "nodes: expected a list of nodes");
    }
    while ((err = next(r)) == BT_OK && r->event.type != YAML_SEQUENCE_END_EVENT) {
        if (r->event.type != YAML_MAPPING_START_EVENT) {
            return fail_here(r, "expected a node: its settings as key: value");
        }
        if (tree->nodes[pool] == tree->pools[pool].nodes_max) {
            return fail_here(r, "too many nodes in this pool");
        }
        tree->places[pool][tree->nodes[pool]] = place_of(r->event.start_mark);
        r->scope.node = (int)tree->nodes[pool]++;
        if ((err = read_mapping(r, "")) != BT_OK) {
            return err;
        }
        r->scope.node = -1;
    }
    return err;
}

static bt_err
read_pool(reader *r, int pool)
{
    bt_err err;

    if (r->tree->seen[pool]) {
        return fail_here(r, "this pool is given twice");
    }
    r->tree->seen[pool] = true;
    if ((err = next(r)) != BT_OK || (r->event.type == YAML_SCALAR_EVENT && is_null(r))) {
        return err;
    }
    if (r->event.type != YAML_MAPPING_START_EVENT) {
        return fail_here(r, "expected settings of this pool, and its nodes");
    }
    r->scope.pool = pool;
    err = read_mapping(r, "");
    r->scope.pool = -1;
    return err;
}

static bt_err
read_section(reader *r, const char *prefix)
{
    bt_err err = next(r);

    if (err != BT_OK || (r->event.type == YAML_SCALAR_EVENT && is_null(r))) {
        return err;
    }
    return r->event.type == YAML_MAPPING_START_EVENT ? read_mapping(r, prefix)
                                                     : fail_here(r, "expected settings of this section");
}

// The event is a key; `prefix` is "" or "engine.".
static bt_err
read_member(reader *r, const char *prefix)
{
    const bt_setting *row;
    char key[BT_CONFIG_KEY_MAX];
    bt_err err;

    if (r->event.type != YAML_SCALAR_EVENT || strlen(prefix) + scalar(r).len + 2 > sizeof key) {
        return fail_here(r, "expected the name of a setting");
    }
    snprintf(key, sizeof key, "%s%s", prefix, (const char *)r->event.data.scalar.value);
    if (r->scope.pool < 0 && *prefix == 0 && find_pool(r->tree, key) >= 0) {
        return read_pool(r, find_pool(r->tree, key));
    }
    if (r->scope.pool >= 0 && r->scope.node < 0 && strcmp(key, "nodes") == 0) {
        return read_nodes(r);
    }
    if (is_section(r, key)) {
        strcat(key, ".");
        return read_section(r, key);
    }
    if ((row = find_row(r, key)) == NULL) {
        return unknown(r, key);
    }
    if ((err = check_new(r, key)) != BT_OK) {
        return err;
    }
    return (err = next(r)) != BT_OK ? err : read_value(r, row);
}

// Recursion is as deep as the table's keys have dots.
static bt_err
read_mapping(reader *r, const char *prefix)
{
    bt_err err;

    while ((err = next(r)) == BT_OK && r->event.type != YAML_MAPPING_END_EVENT) {
        if ((err = read_member(r, prefix)) != BT_OK) {
            break;
        }
    }
    return err;
}

static bt_err
read_stream(reader *r)
{
    bt_err err;

    if ((err = next(r)) != BT_OK || (err = next(r)) != BT_OK || r->event.type == YAML_STREAM_END_EVENT) {
        return err; // an empty file is a file of defaults
    }
    if (r->event.data.document_start.version_directive != NULL ||
        r->event.data.document_start.tag_directives.start != r->event.data.document_start.tag_directives.end) {
        return fail_here(r, "directives are not used here");
    }
    if ((err = next(r)) != BT_OK) {
        return err;
    }
    if (r->event.type == YAML_MAPPING_START_EVENT) {
        err = read_mapping(r, "");
    } else if (r->event.type != YAML_SCALAR_EVENT || !is_null(r)) {
        err = fail_here(r, "expected settings as key: value");
    }
    if (err != BT_OK || (err = next(r)) != BT_OK || (err = next(r)) != BT_OK) {
        return err;
    }
    return r->event.type == YAML_STREAM_END_EVENT ? BT_OK : fail_here(r, "only one document is read");
}

bt_err
bt_config_read_yaml(bt_config_tree *tree, bt_config_scope scope, bt_str yaml, bt_why *why)
{
    reader r = {.tree = tree, .scope = scope, .why = why};
    bt_err err;

    if (!yaml_parser_initialize(&r.parser)) {
        return bt_fail(why, BT_ERR_NO_MEMORY, "%s: no memory", tree->name);
    }
    yaml_parser_set_input_string(&r.parser, (const unsigned char *)(yaml.data != NULL ? yaml.data : ""), yaml.len);
    err = read_stream(&r);
    if (r.held) {
        yaml_event_delete(&r.event);
    }
    yaml_parser_delete(&r.parser);
    return err;
}

bt_err
bt_config_read_text(bt_buf *out, const char *path, bt_why *why)
{
    FILE *file = fopen(path, "rb");
    char block[4096];
    bt_err err = BT_OK;
    size_t got;

    if (file == NULL) {
        return bt_fail(why, BT_ERR_IO, "%s: %s", path, strerror(errno));
    }
    bt_buf_init(out, FILE_BYTES_MAX);
    while ((got = fread(block, 1, sizeof block, file)) != 0) {
        bt_buf_append(out, block, got);
    }
    if (ferror(file) || out->failed) {
        err = bt_fail(why, BT_ERR_IO, "%s: cannot be read, or larger than 1 MiB", path);
        bt_buf_fini(out);
    }
    fclose(file);
    return err;
}
