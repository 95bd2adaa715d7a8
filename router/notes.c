#include "router/notes.h"

#include "common/base/log.h"

#include <string.h>

static void
note_ready(bt_router_note *note, const bt_router_node *now)
{
    const bt_hello *hello = now->hello;

    if (note->state != BT_NODE_READY || note->epoch != hello->epoch)
        bt_log_info("NODE-READY", "%s: %s, epoch %016llx, %u sequences, %u blocks of %u tokens", hello->name,
                    bt_node_role_name(hello->role), (unsigned long long)hello->epoch, hello->sequences, hello->blocks,
                    hello->block_tokens);
    if (hello->draining && !note->draining)
        bt_log_info("NODE-DRAINS", "%s: takes nothing new", hello->name);
    note->draining = hello->draining;
    if (now->breaker == BT_BREAKER_OPEN && note->breaker == BT_BREAKER_CLOSED)
        bt_log_warn("NODE-BREAKER", "%s: fails what it is given, and is passed over for a while", hello->name);
    if (now->breaker == BT_BREAKER_CLOSED && note->breaker != BT_BREAKER_CLOSED)
        bt_log_info("NODE-BREAKER", "%s: is used again", hello->name);
    note->breaker = now->breaker;
}

void
bt_router_note_node(bt_router_note *note, const bt_router *router, uint32_t node)
{
    bt_router_node now;

    bt_router_get_node(router, node, &now);
    if (now.state == BT_NODE_READY) {
        note_ready(note, &now);
    } else if (now.state == BT_NODE_REFUSED) {
        // It is asked again with every heartbeat, and says the same again.
        if (note->state != BT_NODE_REFUSED || note->epoch != now.hello->epoch || note->refused != now.refusal->field)
            bt_log_warn("NODE-REFUSED", "%s: %s: expected %s, found %s", now.hello->name, now.refusal->field,
                        now.refusal->expected, now.refusal->found);
        note->refused = now.refusal->field;
    } else if (note->state == BT_NODE_READY) {
        if (note->draining)
            bt_log_info("NODE-GONE", "%s: has drained and left", note->name);
        else
            bt_log_warn("NODE-LOST", "%s: %s", note->name,
                        now.state == BT_NODE_MET ? "silent for too long, or messages were lost" : "its link is down");
    }
    note->state = now.state;
    if (now.state == BT_NODE_READY || now.state == BT_NODE_REFUSED) {
        note->epoch = now.hello->epoch;
        memcpy(note->name, now.hello->name, sizeof note->name);
    } else {
        note->draining = false;
    }
}
