#include "router/request.h"
#include "common/base/mem.h"

#include <assert.h>

#define MOVE(to) (1u << BT_REQUEST_##to)
#define ENDS (MOVE(FAILED) | MOVE(CANCELLED))

// The only legal moves. A stop string ends a request from any state that can have tokens (DONE); a text edge may also stop one that
// was put back into the queue.
static const unsigned moves[BT_REQUEST_STATES] = {
    [BT_REQUEST_FREE] = MOVE(ARRIVED),
    [BT_REQUEST_ARRIVED] = MOVE(QUEUED) | MOVE(FREE),
    [BT_REQUEST_QUEUED] = MOVE(RESERVING) | MOVE(DONE) | ENDS,
    [BT_REQUEST_RESERVING] = MOVE(PREFILLING) | MOVE(QUEUED) | MOVE(DONE) | ENDS,
    [BT_REQUEST_PREFILLING] = MOVE(FETCHING) | MOVE(DECODING) | MOVE(QUEUED) | MOVE(DONE) | ENDS,
    [BT_REQUEST_FETCHING] = MOVE(DECODING) | MOVE(QUEUED) | MOVE(DONE) | ENDS,
    [BT_REQUEST_DECODING] = MOVE(QUEUED) | MOVE(DONE) | ENDS,
    [BT_REQUEST_DONE] = MOVE(FREE),
    [BT_REQUEST_FAILED] = MOVE(FREE),
    [BT_REQUEST_CANCELLED] = MOVE(FREE),
};

bool
bt_request_may_move(bt_request_state from, bt_request_state to)
{
    return from < BT_REQUEST_STATES && to < BT_REQUEST_STATES && (moves[from] >> to & 1) != 0;
}

void
bt_request_move(bt_request *request, bt_request_state to)
{
    assert(bt_request_may_move(request->state, to));
    request->state = to;
}

bt_err
bt_requests_init(bt_requests *requests, uint32_t capacity, uint32_t context, uint32_t keys_max)
{
    *requests = (bt_requests){.capacity = capacity, .context = context};
    requests->queue = bt_alloc_array(capacity, sizeof *requests->queue);
    requests->slots = bt_alloc_array(capacity, sizeof *requests->slots);
    requests->ids = bt_alloc_array(capacity, (size_t)context * sizeof *requests->ids);
    requests->keys = bt_alloc_array(capacity, (size_t)keys_max * sizeof *requests->keys);
    if (requests->slots == NULL || requests->ids == NULL || requests->keys == NULL || requests->queue == NULL) {
        bt_requests_fini(requests);
        return BT_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < capacity; i++) {
        requests->slots[i].ids = requests->ids + (size_t)i * context;
        requests->slots[i].keys = requests->keys + (size_t)i * keys_max;
        requests->slots[i].next = i + 1 < capacity ? i + 1 : BT_REQUEST_NONE;
    }
    return BT_OK;
}

void
bt_requests_fini(bt_requests *requests)
{
    bt_free(requests->slots);
    bt_free(requests->ids);
    bt_free(requests->keys);
    bt_free(requests->queue);
    *requests = (bt_requests){0};
}

bt_request *
bt_requests_take(bt_requests *requests)
{
    bt_request *request, kept;

    if (requests->free == BT_REQUEST_NONE)
        return NULL;
    request = &requests->slots[requests->free];
    kept = *request;
    requests->free = kept.next;
    requests->used++;
    *request = (bt_request){.ids = kept.ids,
                            .keys = kept.keys,
                            .generation = kept.generation + 1,
                            .node = BT_REQUEST_NONE,
                            .prefill = BT_REQUEST_NONE,
                            .prefill_at = BT_REQUEST_NONE,
                            .prefill_failed = BT_REQUEST_NONE,
                            .decode_failed = BT_REQUEST_NONE,
                            .reads_at = BT_REQUEST_NONE,
                            .next = BT_REQUEST_NONE,
                            .scored_next = 1};
    bt_request_move(request, BT_REQUEST_ARRIVED);
    return request;
}

void
bt_requests_release(bt_requests *requests, bt_request *request)
{
    assert(request->node == BT_REQUEST_NONE);
    bt_request_move(request, BT_REQUEST_FREE);
    request->next = requests->free;
    requests->free = (uint32_t)(request - requests->slots);
    requests->used--;
}

bt_request *
bt_requests_find(bt_requests *requests, bt_request_id id)
{
    bt_request *request;

    if (id.slot >= requests->capacity)
        return NULL;
    request = &requests->slots[id.slot];
    return request->state != BT_REQUEST_FREE && request->generation == id.generation ? request : NULL;
}

bt_request_id
bt_requests_id(const bt_requests *requests, const bt_request *request)
{
    return (bt_request_id){(uint32_t)(request - requests->slots), request->generation, 0};
}

bt_request_id
bt_requests_attempt(const bt_requests *requests, const bt_request *request)
{
    return (bt_request_id){(uint32_t)(request - requests->slots), request->generation, request->attempt};
}

static bt_time
rank_of(const bt_request *request)
{
    return request->arrived + request->priority * (2 * BT_SECOND) + request->prompt_count * (BT_MILLISECOND / 10);
}

// Equal ranks go by tag, so that the order does not depend on which slots they got.
static bool
goes_before(const bt_request *a, const bt_request *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->tag < b->tag;
}

static void
put(bt_requests *requests, uint32_t place, uint32_t index)
{
    requests->queue[place] = index;
    requests->slots[index].place = place;
}

static void
sift_up(bt_requests *requests, uint32_t place, uint32_t index)
{
    while (place > 0 && goes_before(&requests->slots[index], &requests->slots[requests->queue[(place - 1) / 2]])) {
        put(requests, place, requests->queue[(place - 1) / 2]);
        place = (place - 1) / 2;
    }
    put(requests, place, index);
}

static void
sift_down(bt_requests *requests, uint32_t place, uint32_t index)
{
    for (uint32_t child; (child = 2 * place + 1) < requests->queued; place = child) {
        if (child + 1 < requests->queued &&
            goes_before(&requests->slots[requests->queue[child + 1]], &requests->slots[requests->queue[child]]))
            child++;
        if (!goes_before(&requests->slots[requests->queue[child]], &requests->slots[index]))
            break;
        put(requests, place, requests->queue[child]);
    }
    put(requests, place, index);
}

void
bt_requests_enqueue(bt_requests *requests, bt_request *request)
{
    bt_request_move(request, BT_REQUEST_QUEUED);
    request->rank = rank_of(request);
    requests->queued_tokens += request->prompt_count;
    sift_up(requests, requests->queued++, (uint32_t)(request - requests->slots));
}

void
bt_requests_dequeue(bt_requests *requests, bt_request *request, bt_request_state to)
{
    uint32_t place = request->place, last;

    assert(request->state == BT_REQUEST_QUEUED && requests->queue[place] == (uint32_t)(request - requests->slots));
    bt_request_move(request, to);
    requests->queued_tokens -= request->prompt_count;
    last = requests->queue[--requests->queued];
    if (place == requests->queued)
        return;
    sift_down(requests, place, last);
    sift_up(requests, requests->slots[last].place, last);
}

bt_request *
bt_requests_first(bt_requests *requests)
{
    return requests->queued > 0 ? &requests->slots[requests->queue[0]] : NULL;
}
