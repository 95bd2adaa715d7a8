#include "common/base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>

static _Atomic int level_min = BT_LOG_INFO;

void
bt_log_set_level(bt_log_level level)
{
    atomic_store_explicit(&level_min, (int)level, memory_order_relaxed);
}

bt_log_level
bt_log_get_level(void)
{
    return (bt_log_level)atomic_load_explicit(&level_min, memory_order_relaxed);
}

void
bt_log_write(bt_log_level level, const char *event, const char *format, ...)
{
    static const char letters[] = {'D', 'I', 'W', 'E'};
    char line[1024];
    struct timespec now;
    struct tm utc;
    va_list args;
    int used;

    if (level < bt_log_get_level() || level >= BT_LOG_NONE) {
        return;
    }
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    used = snprintf(line, sizeof line, "%02d:%02d:%02d.%03ld %c %s ", utc.tm_hour, utc.tm_min, utc.tm_sec,
                    now.tv_nsec / 1000000, letters[level], event);
    va_start(args, format);
    vsnprintf(line + used, sizeof line - (size_t)used, format, args);
    va_end(args);
    // One call a line, so that lines of several threads do not mix.
    fprintf(stderr, "%s\n", line);
}
