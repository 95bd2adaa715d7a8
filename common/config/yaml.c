// Reads YAML by libyaml's events. The subset that settings need: mappings of mappings, scalars, lists of scalars. Anchors,
// tags, directives and further documents are refused where they stand. Only this file includes libyaml.
#include "common/config/impl.h"

#include "common/base/mem.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <yaml.h>

#define KEYS_SEEN_MAX 256
#define FILE_BYTES_MAX (1u << 20)

typedef struct {
    const bt_setting *table;
    void *values;
    const char *name;
    bt_why *why;
    yaml_parser_t parser;
    yaml_event_t event;
    bool held; // event is ours to delete
    const bt_setting *seen[KEYS_SEEN_MAX];
    size_t seen_count;
} reader;

static bt_err
fail_at(reader *r, bt_err err, yaml_mark_t at, const char *words)
{
    return bt_fail(r->why, err, "%s:%zu:%zu: %s", r->name, at.line + 1, at.column + 1, words);
}

static bt_err
fail_here(reader *r, const char *words)
{
    return fail_at(r, BT_ERR_INVALID, r->event.start_mark, words);
}

// Prefixes a value's own words with the place.
static bt_err
fail_value(reader *r, bt_err err, const bt_why *why)
{
    return fail_at(r, err, r->event.start_mark, why->text);
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

static bt_err
note_seen(reader *r, const bt_setting *row)
{
    for (size_t i = 0; i < r->seen_count; i++) {
        if (r->seen[i] == row) {
            return fail_here(r, "this setting is given twice");
        }
    }
    if (r->seen_count == KEYS_SEEN_MAX) {
        return fail_here(r, "too many settings");
    }
    r->seen[r->seen_count++] = row;
    return BT_OK;
}

static bt_err
read_list(reader *r, const bt_setting *row)
{
    bt_why why = {""};
    bt_err err;

    bt_config_clear_list(row, r->values);
    while ((err = next(r)) == BT_OK && r->event.type != YAML_SEQUENCE_END_EVENT) {
        if (r->event.type != YAML_SCALAR_EVENT) {
            return fail_here(r, "expected a list of plain values");
        }
        if ((err = bt_config_add_item(row, r->values, scalar(r), &why)) != BT_OK) {
            return fail_value(r, err, &why);
        }
    }
    return err;
}

static bt_err
read_value(reader *r, const bt_setting *row)
{
    bt_why why = {""};
    bt_err err;

    if (r->event.type == YAML_SEQUENCE_START_EVENT && row->kind == BT_SETTING_LIST) {
        return read_list(r, row);
    }
    if (r->event.type != YAML_SCALAR_EVENT) {
        snprintf(why.text, sizeof why.text, "%s: expected %s", row->key,
                 row->kind == BT_SETTING_LIST ? "a list" : "one value");
        return fail_here(r, why.text);
    }
    if (is_null(r)) {
        return BT_OK;
    }
    err = bt_config_set_row(row, r->values, scalar(r), &why);
    return err == BT_OK ? BT_OK : fail_value(r, err, &why);
}

static bt_err read_mapping(reader *r, const char *prefix);

// The event is a key; `prefix` is "" or "engine.".
static bt_err
read_member(reader *r, const char *prefix)
{
    const bt_setting *row;
    bt_why why = {""};
    char key[96];
    bt_err err;

    if (r->event.type != YAML_SCALAR_EVENT || strlen(prefix) + scalar(r).len + 2 > sizeof key) {
        return fail_here(r, "expected the name of a setting");
    }
    snprintf(key, sizeof key, "%s%s", prefix, (const char *)r->event.data.scalar.value);
    if (bt_config_has_section(r->table, key)) {
        if ((err = next(r)) != BT_OK || (r->event.type == YAML_SCALAR_EVENT && is_null(r))) {
            return err;
        }
        strcat(key, ".");
        return r->event.type == YAML_MAPPING_START_EVENT ? read_mapping(r, key)
                                                         : fail_here(r, "expected settings of this section");
    }
    if ((row = bt_config_find(r->table, key, &why)) == NULL) {
        return fail_value(r, BT_ERR_INVALID, &why);
    }
    if ((err = note_seen(r, row)) != BT_OK || (err = next(r)) != BT_OK) {
        return err;
    }
    return read_value(r, row);
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
bt_config_parse(const bt_setting *table, void *values, const char *name, bt_str yaml, bt_why *why)
{
    reader r = {.table = table, .values = values, .name = name, .why = why};
    bt_err err;

    if (!yaml_parser_initialize(&r.parser)) {
        return bt_fail(why, BT_ERR_NO_MEMORY, "%s: no memory", name);
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
bt_config_read_file(const bt_setting *table, void *values, const char *path, bt_why *why)
{
    FILE *file = fopen(path, "rb");
    bt_err err = BT_OK;
    char block[4096];
    size_t got;
    bt_buf text;

    if (file == NULL) {
        return bt_fail(why, BT_ERR_IO, "%s: %s", path, strerror(errno));
    }
    bt_buf_init(&text, FILE_BYTES_MAX);
    while ((got = fread(block, 1, sizeof block, file)) != 0) {
        bt_buf_append(&text, block, got);
    }
    if (ferror(file) || text.failed) {
        err = bt_fail(why, BT_ERR_IO, "%s: cannot be read, or larger than 1 MiB", path);
    }
    fclose(file);
    if (err == BT_OK) {
        err = bt_config_parse(table, values, path, (bt_str){text.data, text.len}, why);
    }
    bt_buf_fini(&text);
    return err;
}
