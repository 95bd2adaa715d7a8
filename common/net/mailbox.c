#include "common/net/mailbox.h"

#include "common/base/mem.h"

#include <pthread.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct bt_mailbox {
    pthread_mutex_t lock;
    pthread_cond_t filled;
    uint32_t capacity, count, first;
    size_t message_bytes;
    bool ended;
    int event_fd;
    bt_loop *loop; // the reader's, as all below
    bt_watch watch;
    void (*read)(void *self, const void *message);
    void *self;
    char *taken;    // [message_bytes] the message that `read` looks at
    char *messages; // [capacity][message_bytes]
};

static void
init_locks(bt_mailbox *box)
{
    pthread_condattr_t attributes;

    pthread_mutex_init(&box->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&box->filled, &attributes);
    pthread_condattr_destroy(&attributes);
}

bt_err
bt_mailbox_open(bt_mailbox **out, uint32_t capacity, size_t message_bytes)
{
    bt_mailbox *box = bt_alloc(sizeof *box);

    if (box == NULL) {
        return BT_ERR_NO_MEMORY;
    }
    init_locks(box);
    box->capacity = capacity;
    box->message_bytes = message_bytes;
    box->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    box->messages = bt_alloc_array(capacity, message_bytes);
    box->taken = bt_alloc(message_bytes);
    if (box->messages == NULL || box->taken == NULL || box->event_fd < 0) {
        bt_err err = box->event_fd < 0 ? BT_ERR_IO : BT_ERR_NO_MEMORY;

        bt_mailbox_close(box);
        return err;
    }
    *out = box;
    return BT_OK;
}

void
bt_mailbox_close(bt_mailbox *box)
{
    if (box == NULL) {
        return;
    }
    bt_mailbox_detach(box);
    if (box->event_fd >= 0) {
        close(box->event_fd);
    }
    pthread_mutex_destroy(&box->lock);
    pthread_cond_destroy(&box->filled);
    bt_free(box->messages);
    bt_free(box->taken);
    bt_free(box);
}

static void
ring(bt_mailbox *box)
{
    uint64_t one = 1;
    ssize_t put = write(box->event_fd, &one, sizeof one);

    (void)put;
}

static void
read_some(void *self, uint32_t events)
{
    bt_mailbox *box = self;
    uint64_t rings;
    ssize_t got = read(box->event_fd, &rings, sizeof rings);

    (void)events, (void)got;
    // Senders that are faster than we are must not keep the loop here: what is left rings again.
    for (uint32_t i = 0; i < box->capacity; i++) {
        if (!box->watch.set || !bt_mailbox_try(box, box->taken)) {
            return;
        }
        box->read(box->self, box->taken);
    }
    if (bt_mailbox_count(box) != 0) {
        ring(box);
    }
}

bt_err
bt_mailbox_attach(bt_mailbox *box, bt_loop *loop, void (*read)(void *self, const void *message), void *self)
{
    bt_err err;

    box->watch = (bt_watch){.ready = read_some, .self = box};
    if ((err = bt_loop_watch(loop, &box->watch, box->event_fd, EPOLLIN)) != BT_OK) {
        return err;
    }
    box->loop = loop;
    box->read = read;
    box->self = self;
    if (bt_mailbox_count(box) != 0) {
        ring(box);
    }
    return BT_OK;
}

void
bt_mailbox_detach(bt_mailbox *box)
{
    if (box->loop != NULL) {
        bt_loop_unwatch(box->loop, &box->watch);
        box->loop = NULL;
    }
}

bt_err
bt_mailbox_post(bt_mailbox *box, const void *message)
{
    bt_err err = BT_OK;
    bool first = false;

    pthread_mutex_lock(&box->lock);
    if (box->ended) {
        err = BT_ERR_CLOSED;
    } else if (box->count == box->capacity) {
        err = BT_ERR_BUSY;
    } else {
        uint64_t at = ((uint64_t)box->first + box->count) % box->capacity;

        memcpy(box->messages + at * box->message_bytes, message, box->message_bytes);
        first = box->count++ == 0;
        pthread_cond_signal(&box->filled);
    }
    pthread_mutex_unlock(&box->lock);
    // One ring for a run of messages: the reader empties the box before it sleeps again.
    if (first) {
        ring(box);
    }
    return err;
}

static bool
take_locked(bt_mailbox *box, void *message)
{
    if (box->count == 0) {
        return false;
    }
    memcpy(message, box->messages + (size_t)box->first * box->message_bytes, box->message_bytes);
    box->first = (box->first + 1) % box->capacity;
    box->count--;
    return true;
}

bool
bt_mailbox_try(bt_mailbox *box, void *message)
{
    bool taken;

    pthread_mutex_lock(&box->lock);
    taken = take_locked(box, message);
    pthread_mutex_unlock(&box->lock);
    return taken;
}

bool
bt_mailbox_wait(bt_mailbox *box, void *message)
{
    return bt_mailbox_wait_until(box, message, BT_TIME_NEVER) == BT_OK;
}

bt_err
bt_mailbox_wait_until(bt_mailbox *box, void *message, bt_time deadline)
{
    struct timespec until = {deadline / BT_SECOND, deadline % BT_SECOND};
    bool taken, late = false;

    pthread_mutex_lock(&box->lock);
    while (!(taken = take_locked(box, message)) && !box->ended && !late) {
        if (deadline == BT_TIME_NEVER) {
            pthread_cond_wait(&box->filled, &box->lock);
        } else {
            late = pthread_cond_timedwait(&box->filled, &box->lock, &until) != 0;
        }
    }
    pthread_mutex_unlock(&box->lock);
    return taken ? BT_OK : late ? BT_ERR_TIMEOUT : BT_ERR_CLOSED;
}

void
bt_mailbox_end(bt_mailbox *box)
{
    pthread_mutex_lock(&box->lock);
    box->ended = true;
    pthread_cond_broadcast(&box->filled);
    pthread_mutex_unlock(&box->lock);
}

uint32_t
bt_mailbox_count(bt_mailbox *box)
{
    uint32_t count;

    pthread_mutex_lock(&box->lock);
    count = box->count;
    pthread_mutex_unlock(&box->lock);
    return count;
}
