// Time is a number that edges read and cores are given: nanoseconds on a clock that never goes back.
#pragma once

#include <stdint.h>

typedef int64_t bt_time; // nanoseconds

#define BT_TIME_NEVER INT64_MAX
#define BT_MICROSECOND ((bt_time)1000)
#define BT_MILLISECOND ((bt_time)1000000)
#define BT_SECOND ((bt_time)1000000000)

// CLOCK_MONOTONIC. Only edges call this.
bt_time bt_time_now(void);
