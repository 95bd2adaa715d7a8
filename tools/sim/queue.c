#include "tools/sim/queue.h"
#include "common/base/mem.h"

static bool
goes_before(const sim_event *a, const sim_event *b)
{
    return a->at != b->at ? a->at < b->at : a->serial < b->serial;
}

bt_err
sim_queue_push(sim_queue *queue, sim_event event)
{
    size_t at = queue->count;

    if (queue->count == queue->max) {
        size_t more = queue->max > 0 ? 2 * queue->max : 1024;
        sim_event *events = bt_realloc(queue->events, more * sizeof *events);

        if (events == NULL)
            return BT_ERR_NO_MEMORY;
        queue->events = events;
        queue->max = more;
    }
    event.serial = queue->serial++;
    queue->count++;
    while (at > 0 && goes_before(&event, &queue->events[(at - 1) / 2])) {
        queue->events[at] = queue->events[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    queue->events[at] = event;
    return BT_OK;
}

bool
sim_queue_pop(sim_queue *queue, sim_event *out)
{
    sim_event last;
    size_t at = 0, child;

    if (queue->count == 0)
        return false;
    *out = queue->events[0];
    last = queue->events[--queue->count];
    while ((child = 2 * at + 1) < queue->count) {
        child += child + 1 < queue->count && goes_before(&queue->events[child + 1], &queue->events[child]);
        if (!goes_before(&queue->events[child], &last))
            break;
        queue->events[at] = queue->events[child];
        at = child;
    }
    queue->events[at] = last;
    return true;
}

void
sim_queue_free(sim_queue *queue)
{
    bt_free(queue->events);
    *queue = (sim_queue){0};
}
