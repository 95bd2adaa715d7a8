#include "common/engine/plan.h"

#include "common/base/log.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
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
    char recorded[64] = "", available[64] = "";

    if (plan->graphs != 0) {
        snprintf(recorded, sizeof recorded, " + graphs %.1f MiB", (double)plan->graphs / MIB);
    }
    if (plan->memory_max == 0) {
        snprintf(available, sizeof available, " (%.1f MiB are free)", (double)plan->available / MIB);
    }
    return bt_fail(why, BT_ERR_NO_MEMORY,
                   "%s not fit in memory%s%s: weights %.1f MiB + scratch %.1f MiB + logits %.1f MiB%s + KV %.1f MiB "
                   "(%u blocks of %zu bytes) is over the limit of %.1f MiB%s",
                   part, *plan->where != 0 ? " of " : "", plan->where, (double)plan->weights / MIB,
                   (double)plan->scratch / MIB, (double)plan->logits / MIB, recorded, (double)plan->kv / MIB,
                   plan->blocks, plan->block_bytes, (double)plan->limit / MIB, available);
}

// Blocks that a pool of so many bytes holds: the pool itself is whole granules.
static size_t
blocks_in(const bt_engine_plan *plan, size_t bytes)
{
    size_t granule = plan->granule != 0 ? plan->granule : 1;

    return bytes / granule * granule / plan->block_bytes;
}

bt_err
bt_engine_plan_make(bt_engine_plan *plan, bt_why *why)
{
    size_t fixed = plan->weights + plan->scratch + plan->logits + plan->graphs, room;
    size_t granule = plan->granule != 0 ? plan->granule : 1;

    plan->limit = plan->memory_max != 0
                      ? plan->memory_max
                      : plan->available - (plan->spare < plan->available ? plan->spare : plan->available);
    plan->blocks = plan->blocks_fixed != 0 ? plan->blocks_fixed : plan->blocks_wanted;
    room = fixed < plan->limit ? blocks_in(plan, plan->limit - fixed) : 0;
    if (plan->blocks_fixed == 0 && plan->blocks > room) {
        plan->blocks = room > plan->blocks_least ? (uint32_t)room : plan->blocks_least;
    }
    plan->kv = (plan->blocks * plan->block_bytes + granule - 1) / granule * granule;
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
    if (plan->graphs == 0) {
        bt_log_info("ENGINE-PLAN", "scratch %.1f MiB, logits %.1f MiB", (double)plan->scratch / MIB,
                    (double)plan->logits / MIB);
    } else {
        bt_log_info("ENGINE-PLAN", "scratch %.1f MiB, logits %.1f MiB, graphs up to %.1f MiB",
                    (double)plan->scratch / MIB, (double)plan->logits / MIB, (double)plan->graphs / MIB);
    }
    bt_log_info("ENGINE-PLAN", "total %.1f MiB of %.1f MiB%s%s", (double)plan->total / MIB, (double)plan->limit / MIB,
                *plan->where != 0 ? " on " : "", plan->where);
}
