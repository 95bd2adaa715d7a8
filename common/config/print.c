// Writes settings as YAML that reads back to the same values.
#include "common/config/impl.h"

#include <stdio.h>
#include <string.h>

static void
print_quoted(bt_buf *out, const char *text)
{
    bt_buf_append_char(out, '"');
    for (; *text != 0; text++) {
        unsigned char c = (unsigned char)*text;

        if (c == '"' || c == '\\') {
            bt_buf_printf(out, "\\%c", c);
        } else if (c < 32 || c == 127) {
            bt_buf_printf(out, "\\x%02x", c);
        } else {
            bt_buf_append_char(out, (char)c);
        }
    }
    bt_buf_append_char(out, '"');
}

static void
print_time(bt_buf *out, bt_time time)
{
    if (time % BT_SECOND == 0) {
        bt_buf_printf(out, "%llds", (long long)(time / BT_SECOND));
    } else {
        bt_buf_printf(out, "%.12gms", (double)time / BT_MILLISECOND);
    }
}

static void
print_bytes(bt_buf *out, size_t bytes)
{
    static const char units[] = {0, 'K', 'M', 'G', 'T'};
    unsigned unit = 0;

    for (; bytes != 0 && bytes % 1024 == 0 && unit < 4; unit++) {
        bytes /= 1024;
    }
    bt_buf_printf(out, "%zu%.1s", bytes, unit != 0 ? &units[unit] : "");
}

static void
print_list(bt_buf *out, const bt_text_list *list)
{
    bt_buf_append_char(out, '[');
    for (uint32_t i = 0; i < list->count; i++) {
        bt_buf_append_text(out, i != 0 ? ", " : "");
        print_quoted(out, list->items[i]);
    }
    bt_buf_append_char(out, ']');
}

static void
print_value(bt_buf *out, const bt_setting *row, const void *values)
{
    const void *field = (const char *)values + row->offset;
    char number[40];

    switch (row->kind) {
    case BT_SETTING_BOOL:
        bt_buf_append_text(out, *(const bool *)field ? "true" : "false");
        break;
    case BT_SETTING_COUNT:
        bt_buf_printf(out, "%u", *(const uint32_t *)field);
        break;
    case BT_SETTING_BYTES:
        print_bytes(out, *(const size_t *)field);
        break;
    case BT_SETTING_TIME:
        print_time(out, *(const bt_time *)field);
        break;
    case BT_SETTING_REAL:
        snprintf(number, sizeof number, "%.17g", *(const double *)field);
        bt_buf_append_text(out, number);
        break;
    case BT_SETTING_WORD:
        bt_buf_append_text(out, row->words[*(const uint32_t *)field]);
        break;
    case BT_SETTING_LIST:
        print_list(out, field);
        break;
    default:
        print_quoted(out, field);
    }
}

// Prints rows under the headings of their sections, `indent` deep.
typedef struct {
    bt_buf *out;
    int indent;
    bool help;
    char section[BT_CONFIG_KEY_MAX];
} printer;

static void
begin_row(printer *p, const bt_setting *row)
{
    const char *dot = strrchr(row->key, '.');
    size_t len = dot != NULL ? (size_t)(dot - row->key) : 0;
    int indent = p->indent + (dot != NULL ? 2 : 0);

    if (len != strlen(p->section) || strncmp(p->section, row->key, len) != 0) {
        snprintf(p->section, sizeof p->section, "%.*s", (int)len, row->key);
        if (len != 0) {
            bt_buf_printf(p->out, "%s%*s%s:\n", p->help ? "\n" : "", p->indent, "", p->section);
        }
    }
    if (p->help) {
        bt_buf_printf(p->out, "%*s# %s", indent, "", row->help);
        for (uint32_t i = 0; row->kind == BT_SETTING_WORD && row->words[i] != NULL; i++) {
            bt_buf_printf(p->out, "%s%s", i == 0 ? " One of " : ", ", row->words[i]);
        }
        bt_buf_append_text(p->out, row->kind == BT_SETTING_WORD ? ".\n" : "\n");
    }
    bt_buf_printf(p->out, "%*s%s: ", indent, "", dot != NULL ? dot + 1 : row->key);
}

static void
print_row(printer *p, const bt_setting *row, const void *values)
{
    begin_row(p, row);
    print_value(p->out, row, values);
    bt_buf_append_char(p->out, '\n');
}

void
bt_config_print(const bt_setting *table, const void *values, bt_buf *out)
{
    printer p = {.out = out, .help = true};

    for (const bt_setting *row = table; row->kind != BT_SETTING_END; row++) {
        print_row(&p, row, values);
    }
}

// ---- pools ----

typedef struct {
    const bt_config_pool *pools;
    uint32_t pool_count;
    const void *const *values;
    const uint32_t *counts;
    bt_buf first, other; // two values as text, to be compared
} forest;

static const void *
node_values(const forest *f, uint32_t pool, uint32_t node)
{
    return (const char *)f->values[pool] + node * f->pools[pool].bytes;
}

// Do the nodes of these pools that know the setting have one value, and may it stand above them? Its row and values go out; false too when no node knows it.
static bool
shared(forest *f, uint32_t from, uint32_t to, const char *key, const bt_setting **row, const void **values)
{
    bool found = false;

    for (uint32_t pool = from; pool < to; pool++) {
        const bt_setting *here = bt_config_row(f->pools[pool].table, key);

        if (bt_config_own(&f->pools[pool], key)) {
            return false;
        }
        for (uint32_t node = 0; here != NULL && node < f->counts[pool]; node++) {
            bt_buf *text = found ? &f->other : &f->first;

            bt_buf_clear(text);
            print_value(text, here, node_values(f, pool, node));
            if (found && !bt_str_equal((bt_str){f->first.data, f->first.len}, (bt_str){f->other.data, f->other.len})) {
                return false;
            }
            if (!found) {
                *row = here;
                *values = node_values(f, pool, node);
            }
            found = true;
        }
    }
    return found;
}

static void
print_top(forest *f, bt_buf *out)
{
    printer p = {.out = out, .help = true};

    for (uint32_t pool = 0; pool < f->pool_count; pool++) {
        for (const bt_setting *row = f->pools[pool].table; row->kind != BT_SETTING_END; row++) {
            const bt_setting *first;
            const void *values;
            bool before = false;

            for (uint32_t i = 0; i < pool; i++) {
                before = before || (f->counts[i] != 0 && bt_config_row(f->pools[i].table, row->key) != NULL);
            }
            if (!before && shared(f, 0, f->pool_count, row->key, &first, &values)) {
                print_row(&p, row, values);
            }
        }
    }
}

static void
print_node(forest *f, uint32_t pool, uint32_t node, bt_buf *out)
{
    printer p = {.out = out, .indent = 6};
    size_t start = out->len;
    const bt_setting *first;
    const void *values;

    for (const bt_setting *row = f->pools[pool].table; row->kind != BT_SETTING_END; row++) {
        if (!shared(f, pool, pool + 1, row->key, &first, &values)) {
            print_row(&p, row, node_values(f, pool, node));
        }
    }
    if (out->failed) {
        return;
    }
    if (out->len == start) {
        bt_buf_append_text(out, "    - {}\n"); // a node that is like its pool in everything
    } else {
        out->data[start + 4] = '-';
    }
}

static void
print_pool(forest *f, uint32_t pool, bt_buf *out)
{
    printer p = {.out = out, .indent = 2, .help = true};
    const bt_setting *first;
    const void *values;

    bt_buf_printf(out, "\n%s:\n", f->pools[pool].section);
    for (const bt_setting *row = f->pools[pool].table; row->kind != BT_SETTING_END; row++) {
        if (!shared(f, 0, f->pool_count, row->key, &first, &values) &&
            shared(f, pool, pool + 1, row->key, &first, &values)) {
            print_row(&p, row, values);
        }
    }
    bt_buf_printf(out, "  nodes:%s\n", f->counts[pool] == 0 ? " []" : "");
    for (uint32_t node = 0; node < f->counts[pool]; node++) {
        print_node(f, pool, node, out);
    }
}

void
bt_config_tree_print(const bt_config_pool *pools, uint32_t pool_count, const void *const *values,
                     const uint32_t *counts, bt_buf *out)
{
    forest f = {.pools = pools, .pool_count = pool_count, .values = values, .counts = counts};

    bt_buf_init(&f.first, 1 << 16);
    bt_buf_init(&f.other, 1 << 16);
    print_top(&f, out);
    for (uint32_t pool = 0; pool < pool_count; pool++) {
        print_pool(&f, pool, out);
    }
    out->failed = out->failed || f.first.failed || f.other.failed;
    bt_buf_fini(&f.first);
    bt_buf_fini(&f.other);
}
