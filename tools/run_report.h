// What `baton run` says at its end: the same of a model at hand (run.c) and of a router (run_server.c).
#pragma once

#include "common/base/str.h"
#include "common/base/time.h"
#include "common/wire/message.h"

typedef struct {
    const int32_t *prompt_ids, *ids;
    uint32_t prompt_count, count;
    bt_str text;
    const char *finish_reason;
    bt_usage usage;
    bt_time started, loaded, first, ended; // loaded = started: there was nothing to load; first 0 = no token came
} bt_run_report;

// With `json` one object on stdout, else the end of the answer's line there and a summary in the log.
void bt_run_report_print(const bt_run_report *report, bool json);
