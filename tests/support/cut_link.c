#include "tests/support/cut_link.h"
#include "tests/support/must.h"

#include <stdlib.h>

typedef struct letter {
    struct letter *next;
    bt_message *message;
} letter;

typedef struct {
    bt_link link;
    cut_link *pair;
    int side;
    bool tell_down, tell_up;
    letter *first, **last; // to be received here
    letter *lent;
    bt_message_kind lose, refuse;
} cut_end;

struct cut_link {
    cut_end ends[2];
};

static void
free_letter(letter *l)
{
    if (l != NULL)
        free(l->message);
    free(l);
}

static letter *
take_letter(cut_end *end)
{
    letter *first = end->first;

    if (first == NULL)
        return NULL;
    end->first = first->next;
    if (end->first == NULL)
        end->last = &end->first;
    return first;
}

static bool
cut_receive(bt_link *link, bt_link_event *out)
{
    cut_end *end = (cut_end *)link;

    free_letter(end->lent);
    end->lent = NULL;
    if (end->tell_down || end->tell_up) {
        *out = (bt_link_event){.kind = end->tell_down ? BT_LINK_DOWN : BT_LINK_UP};
        end->tell_up = end->tell_up && end->tell_down;
        end->tell_down = false;
        return true;
    }
    end->lent = take_letter(end);
    if (end->lent == NULL)
        return false;
    *out = (bt_link_event){.kind = BT_LINK_MESSAGE, .message = end->lent->message};
    return true;
}

static bt_err
cut_send(bt_link *link, uint32_t peer, const bt_message *message)
{
    cut_end *end = (cut_end *)link, *to = &end->pair->ends[!end->side];
    letter *l;

    MUST(peer == 0);
    MUST(bt_message_check(message) == BT_OK);
    if (end->tell_down || end->tell_up) // it has not heard of the cut yet: what it says goes nowhere
        return BT_OK;
    if (end->refuse == message->kind)
        return BT_ERR_BUSY;
    if (end->lose == message->kind) {
        end->lose = BT_MESSAGE_NONE;
        return BT_OK;
    }
    l = calloc(1, sizeof *l);
    l->message = bt_message_copy(aligned_alloc(16, bt_message_size(message)), message);
    *to->last = l;
    to->last = &l->next;
    return BT_OK;
}

static bool
cut_pending(const bt_link *link)
{
    const cut_end *end = (const cut_end *)link;

    return end->tell_down || end->tell_up || end->first != NULL;
}

static void
cut_close(bt_link *link)
{
    (void)link;
}

static const bt_link_ops cut_ops = {cut_receive, cut_send, cut_pending, cut_close};

cut_link *
cut_link_open(void)
{
    cut_link *pair = calloc(1, sizeof *pair);

    for (int i = 0; i < 2; i++) {
        pair->ends[i] = (cut_end){.link.ops = &cut_ops, .pair = pair, .side = i, .tell_up = true};
        pair->ends[i].last = &pair->ends[i].first;
    }
    return pair;
}

static void
drop_letters(cut_end *end)
{
    letter *l;

    while ((l = take_letter(end)) != NULL)
        free_letter(l);
}

void
cut_link_close(cut_link *pair)
{
    for (int i = 0; i < 2; i++) {
        drop_letters(&pair->ends[i]);
        free_letter(pair->ends[i].lent);
    }
    free(pair);
}

bt_link *
cut_link_end(cut_link *pair, int side)
{
    return &pair->ends[side].link;
}

void
cut_link_cut(cut_link *pair)
{
    for (int i = 0; i < 2; i++) {
        drop_letters(&pair->ends[i]);
        pair->ends[i].tell_down = pair->ends[i].tell_up = true;
    }
}

void
cut_link_lose_next(cut_link *pair, int side, bt_message_kind kind)
{
    pair->ends[side].lose = kind;
}

void
cut_link_refuse(cut_link *pair, int side, bt_message_kind kind)
{
    pair->ends[side].refuse = kind;
}
