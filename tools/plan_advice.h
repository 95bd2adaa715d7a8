// Which settings would make an engine fit that does not: each is tried on the plan itself, alone and then together.
#pragma once

#include "common/engine/outlook.h"

#define BT_PLAN_ADVICE_MAX 6

typedef struct {
    char lines[BT_PLAN_ADVICE_MAX][256]; // as a user would type them; the last says what memory it takes as it is
    uint32_t count;
} bt_plan_advice;

// `outlook` is of a bt_engine_foresee that said BT_ERR_NO_MEMORY.
void bt_plan_advise(bt_plan_advice *out, const bt_engine_outlook *outlook);
