// The settings of `baton local`, and their table.
#pragma once

#include "tools/settings.h"

typedef struct {
    char model[1024], listen[128], gateway[160], cert_key[1024], model_name[128];
    bt_engine_settings engine;
    bt_http_settings http;
    uint32_t prompt_weights; // 0 = as engine.weights, else 1 + bt_load_weights
    uint32_t log_level;
} bt_local_config;

extern const bt_setting bt_local_settings[];
