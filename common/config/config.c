// Values from text and back, by the table. YAML itself is in yaml.c.
#include "common/config/config.h"

#include "common/config/impl.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Letters to change to make one key of the other, capped: for "did you mean".
static size_t
distance(const char *a, const char *b)
{
    size_t row[96], a_len = strlen(a), b_len = strlen(b);

    if (a_len >= 96 || b_len >= 96) {
        return 96;
    }
    for (size_t i = 0; i <= b_len; i++) {
        row[i] = i;
    }
    for (size_t i = 1; i <= a_len; i++) {
        size_t diagonal = row[0];

        row[0] = i;
        for (size_t j = 1; j <= b_len; j++) {
            size_t change = diagonal + (a[i - 1] != b[j - 1]), step = (row[j] < row[j - 1] ? row[j] : row[j - 1]) + 1;

            diagonal = row[j];
            row[j] = change < step ? change : step;
        }
    }
    return row[b_len];
}

const bt_setting *
bt_config_row(const bt_setting *table, const char *key)
{
    for (; table->kind != BT_SETTING_END; table++) {
        if (strcmp(table->key, key) == 0) {
            return table;
        }
    }
    return NULL;
}

bool
bt_config_own(const bt_config_pool *pool, const char *key)
{
    const bt_setting *row = bt_config_row(pool->table, key);

    return row != NULL && row < pool->table + pool->own;
}

bt_err
bt_config_unknown(const bt_config_pool *pools, uint32_t count, const char *key, bt_why *why)
{
    const bt_setting *nearest = NULL;
    size_t best = strlen(key) / 3 + 2;

    for (uint32_t i = 0; i < count; i++) {
        for (const bt_setting *row = pools[i].table; row->kind != BT_SETTING_END; row++) {
            const char *last = strrchr(row->key, '.');
            // The right word without its section is as good as a slip of the pen.
            size_t away = last != NULL && strcmp(last + 1, key) == 0 ? 1 : distance(key, row->key);

            if (away < best) {
                best = away;
                nearest = row;
            }
        }
    }
    return nearest != NULL
               ? bt_fail(why, BT_ERR_INVALID, "unknown setting \"%s\"; did you mean \"%s\"?", key, nearest->key)
               : bt_fail(why, BT_ERR_INVALID, "unknown setting \"%s\"", key);
}

bool
bt_config_has_section(const bt_setting *table, const char *key)
{
    size_t len = strlen(key);

    for (; table->kind != BT_SETTING_END; table++) {
        if (strncmp(table->key, key, len) == 0 && table->key[len] == '.') {
            return true;
        }
    }
    return false;
}

static bt_err
wrong(const bt_setting *row, const char *text, const char *expected, bt_why *why)
{
    return bt_fail(why, BT_ERR_INVALID, "%s: \"%s\" is not %s", row->key, text, expected);
}

// A number and its unit: factors[i] for units[i]. "" is the bare number.
static bool
parse_number(const char *text, const char *const *units, const double *factors, double *out)
{
    char *end;
    double value = strtod(text, &end);

    if (end == text || !isfinite(value) || strspn(text, "0123456789.+-eE") < (size_t)(end - text)) {
        return false;
    }
    for (; *units != NULL; units++, factors++) {
        if (strcmp(end, *units) == 0) {
            *out = value * *factors;
            return true;
        }
    }
    return false;
}

static bt_err
within(const bt_setting *row, double value, bt_why *why)
{
    if ((row->min != 0 || row->max != 0) && (value < row->min || value > row->max)) {
        return bt_fail(why, BT_ERR_INVALID, "%s: %g is not within %g and %g", row->key, value, row->min, row->max);
    }
    return BT_OK;
}

static bt_err
set_bool(const bt_setting *row, bool *field, const char *text, bt_why *why)
{
    if (strcmp(text, "true") != 0 && strcmp(text, "false") != 0) {
        return wrong(row, text, "true or false", why);
    }
    *field = *text == 't';
    return BT_OK;
}

static bt_err
set_number(const bt_setting *row, void *field, const char *text, bt_why *why)
{
    static const char *const bare[] = {"", NULL}, *const bytes[] = {"", "K", "M", "G", "T", NULL},
                             *const times[] = {"s", "ms", "us", "m", "h", "", NULL};
    static const double byte_factors[] = {1, 1024, 1 << 20, 1 << 30, 1099511627776.0};
    static const double time_factors[] = {1, 1e-3, 1e-6, 60, 3600, 1}, one[] = {1};
    bool size = row->kind == BT_SETTING_BYTES, time = row->kind == BT_SETTING_TIME;
    double value = 0, limit = row->kind == BT_SETTING_COUNT ? UINT32_MAX : time ? 9e9 : size ? 0x1p62 : INFINITY;
    bt_err err;

    if (!parse_number(text,
                      size   ? bytes
                      : time ? times
                             : bare,
                      size   ? byte_factors
                      : time ? time_factors
                             : one,
                      &value)) {
        return wrong(row, text,
                     size   ? "a size such as 64K or 8M"
                     : time ? "a time such as 250ms or 30s"
                            : "a number",
                     why);
    }
    if ((err = within(row, value, why)) != BT_OK) {
        return err;
    }
    if (row->kind == BT_SETTING_REAL) {
        *(double *)field = value;
        return BT_OK;
    }
    if (value < 0 || value > limit || (!time && value != floor(value))) {
        return wrong(row, text, "a whole number in range", why);
    }
    if (time) {
        *(bt_time *)field = (bt_time)llround(value * (double)BT_SECOND);
    } else if (size) {
        *(size_t *)field = (size_t)value;
    } else {
        *(uint32_t *)field = (uint32_t)value;
    }
    return BT_OK;
}

static bt_err
set_word(const bt_setting *row, uint32_t *field, const char *text, bt_why *why)
{
    char all[256] = "";
    size_t used = 0;

    for (uint32_t i = 0; row->words[i] != NULL; i++) {
        if (strcmp(row->words[i], text) == 0) {
            *field = i;
            return BT_OK;
        }
        used += (size_t)snprintf(all + used, sizeof all - used, "%s%s", i != 0 ? ", " : "", row->words[i]);
        used = used < sizeof all ? used : sizeof all - 1;
    }
    return bt_fail(why, BT_ERR_INVALID, "%s: \"%s\" is none of %s", row->key, text, all);
}

bt_err
bt_config_add_item(const bt_setting *row, void *values, bt_str item, bt_why *why)
{
    bt_text_list *list = (bt_text_list *)((char *)values + row->offset);

    if (list->count == BT_TEXT_LIST_MAX || item.len >= BT_TEXT_LIST_BYTES) {
        return bt_fail(why, BT_ERR_TOO_LONG, "%s: at most %d items of %d bytes", row->key, BT_TEXT_LIST_MAX,
                       BT_TEXT_LIST_BYTES - 1);
    }
    memcpy(list->items[list->count], item.data, item.len);
    list->items[list->count++][item.len] = 0;
    return BT_OK;
}

static bt_err
set_list(const bt_setting *row, void *values, const char *text, bt_why *why)
{
    bt_err err = BT_OK;

    bt_config_clear_list(row, values);
    while (*text != 0 && err == BT_OK) {
        size_t len = strcspn(text, ",");

        err = bt_config_add_item(row, values, (bt_str){text, len}, why);
        text += len + (text[len] == ',');
    }
    return err;
}

void
bt_config_clear_list(const bt_setting *row, void *values)
{
    memset((char *)values + row->offset, 0, sizeof(bt_text_list));
}

bt_err
bt_config_set_row(const bt_setting *row, void *values, bt_str value, bt_why *why)
{
    void *field = (char *)values + row->offset;
    char text[4096];

    if (value.len >= sizeof text || memchr(value.data, 0, value.len) != NULL) {
        return bt_fail(why, BT_ERR_INVALID, "%s: longer than %zu bytes, or with a NUL in it", row->key,
                       sizeof text - 1);
    }
    memcpy(text, value.data, value.len);
    text[value.len] = 0;
    switch (row->kind) {
    case BT_SETTING_BOOL:
        return set_bool(row, field, text, why);
    case BT_SETTING_WORD:
        return set_word(row, field, text, why);
    case BT_SETTING_LIST:
        return set_list(row, values, text, why);
    case BT_SETTING_TEXT:
        if (value.len >= row->size) {
            return bt_fail(why, BT_ERR_TOO_LONG, "%s: longer than %zu bytes", row->key, row->size - 1);
        }
        memcpy(field, text, value.len + 1);
        return BT_OK;
    default:
        return set_number(row, field, text, why);
    }
}

void
bt_config_init(const bt_setting *table, void *values)
{
    for (; table->kind != BT_SETTING_END; table++) {
        bt_err err = bt_config_set_row(table, values, bt_str_of(table->fallback), NULL);

        assert(err == BT_OK && "a default that its own row refuses");
        (void)err;
    }
}

bt_err
bt_config_set(const bt_setting *table, void *values, const char *key, bt_str value, bt_why *why)
{
    const bt_setting *row = bt_config_row(table, key);

    return row != NULL ? bt_config_set_row(row, values, value, why)
                       : bt_config_unknown(&(bt_config_pool){.table = table}, 1, key, why);
}

bt_err
bt_config_split_pair(const char *pair, char key[BT_CONFIG_KEY_MAX], bt_str *value, bt_why *why)
{
    const char *equals = strchr(pair, '=');

    if (equals == NULL || (size_t)(equals - pair) >= BT_CONFIG_KEY_MAX) {
        return bt_fail(why, BT_ERR_INVALID, "\"%s\" is not key=value", pair);
    }
    memcpy(key, pair, (size_t)(equals - pair));
    key[equals - pair] = 0;
    *value = bt_str_of(equals + 1);
    return BT_OK;
}

bt_err
bt_config_set_pair(const bt_setting *table, void *values, const char *pair, bt_why *why)
{
    char key[BT_CONFIG_KEY_MAX];
    bt_str value;
    bt_err err = bt_config_split_pair(pair, key, &value, why);

    return err == BT_OK ? bt_config_set(table, values, key, value, why) : err;
}
