// What values (config.c) and the YAML reader (yaml.c) share.
#pragma once

#include "common/config/config.h"

#include <stdbool.h>

// NULL with "unknown setting …" in `why`.
const bt_setting *bt_config_find(const bt_setting *table, const char *key, bt_why *why);
bool bt_config_has_section(const bt_setting *table, const char *key);
bt_err bt_config_set_row(const bt_setting *row, void *values, bt_str value, bt_why *why);
void bt_config_clear_list(const bt_setting *row, void *values);
bt_err bt_config_add_item(const bt_setting *row, void *values, bt_str item, bt_why *why);
