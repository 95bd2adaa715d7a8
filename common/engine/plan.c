#include "common/engine/plan.h"

#include "common/base/log.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MIB 1048576.0

// The start of a small text file, NUL-terminated; false when there is none.
static bool
read_text(const char *path, char *out, size_t room)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd >= 0 ? read(fd, out, room - 1) : -1;

    if (fd >= 0) {
        close(fd);
    }
    out[got > 0 ? got : 0] = 0;
    return got > 0;
}

static size_t
machine_available(void)
{
    char text[2048], *line;

    if (!read_text("/proc/meminfo", text, sizeof text) || (line = strstr(text, "MemAvailable:")) == NULL) {
        return SIZE_MAX;
    }
    return (size_t)strtoull(line + strlen("MemAvailable:"), NULL, 10) * 1024;
}

// cgroup v2, as a container sees itself. "max" is no number, so no limit.
static size_t
group_available(void)
{
    char most[64], now[64];
    unsigned long long limit, used;

    if (!read_text("/sys/fs/cgroup/memory.max", most, sizeof most) ||
        !read_text("/sys/fs/cgroup/memory.current", now, sizeof now) || most[0] < '0' || most[0] > '9') {
        return SIZE_MAX;
    }
    limit = strtoull(most, NULL, 10);
    used = strtoull(now, NULL, 10);
    return limit > used ? (size_t)(limit - used) : 0;
}

size_t
bt_engine_plan_available(void)
{
    size_t machine = machine_available(), group = group_available();

    return machine < group ? machine : group;
}

static bt_err
refuse(const bt_engine_plan *plan, const char *part, bt_why *why)
{
    return bt_fail(why, BT_ERR_NO_MEMORY,
                   "%s not fit in memory: weights %.1f MiB + scratch %.1f MiB + logits %.1f MiB + KV %.1f MiB "
                   "(%u blocks of %zu bytes) is over the limit of %.1f MiB",
                   part, (double)plan->weights / MIB, (double)plan->scratch / MIB, (double)plan->logits / MIB,
                   (double)plan->kv / MIB, plan->blocks, plan->block_bytes, (double)plan->limit / MIB);
}

bt_err
bt_engine_plan_make(bt_engine_plan *plan, bt_why *why)
{
    size_t fixed = plan->weights + plan->scratch + plan->logits, room;

    // A tenth of what is free stays free: others live here too.
    plan->limit = plan->memory_max != 0 ? plan->memory_max : plan->available - plan->available / 10;
    plan->blocks = plan->blocks_fixed != 0 ? plan->blocks_fixed : plan->blocks_wanted;
    room = fixed < plan->limit ? (plan->limit - fixed) / plan->block_bytes : 0;
    if (plan->blocks_fixed == 0 && plan->blocks > room) {
        plan->blocks = room > plan->blocks_least ? (uint32_t)room : plan->blocks_least;
    }
    plan->kv = plan->blocks * plan->block_bytes;
    plan->total = fixed + plan->kv;
    if (plan->weights > plan->limit) {
        return refuse(plan, "the weights do", why);
    }
    if (fixed > plan->limit) {
        return refuse(plan, "scratch and logits do", why);
    }
    return plan->blocks > room ? refuse(plan, "the KV cache does", why) : BT_OK;
}

void
bt_engine_plan_log(const bt_engine_plan *plan)
{
    bt_log_info("ENGINE-PLAN", "weights %.1f MiB", (double)plan->weights / MIB);
    bt_log_info("ENGINE-PLAN", "kv %.1f MiB: %u blocks of %zu bytes%s", (double)plan->kv / MIB, plan->blocks,
                plan->block_bytes,
                plan->blocks < plan->blocks_wanted ? ", fewer than all sequences at full length would need" : "");
    bt_log_info("ENGINE-PLAN", "scratch %.1f MiB, logits %.1f MiB", (double)plan->scratch / MIB,
                (double)plan->logits / MIB);
    bt_log_info("ENGINE-PLAN", "total %.1f MiB of %.1f MiB", (double)plan->total / MIB, (double)plan->limit / MIB);
}
