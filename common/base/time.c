#include "common/base/time.h"

#include <time.h>

bt_time
bt_time_now(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (bt_time)now.tv_sec * BT_SECOND + now.tv_nsec;
}
