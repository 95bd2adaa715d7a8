#include "common/net/flow.h"

#include <assert.h>

static const uint32_t credits[BT_LANES] = {[BT_LANE_DATA] = 32, [BT_LANE_CANCEL] = 16, [BT_LANE_HEARTBEAT] = 4};

static_assert(32 + 16 + 4 == BT_FLOW_WINDOW, "the window holds all credits");

uint32_t
bt_flow_credits(bt_lane lane)
{
    return credits[lane];
}

bool
bt_flow_may_send(const bt_flow *flow, bt_lane lane)
{
    return flow->in_flight[lane] < credits[lane];
}

bt_frame_head
bt_flow_send(bt_flow *flow, bt_lane lane)
{
    assert(bt_flow_may_send(flow, lane));
    flow->sent++;
    flow->sent_lanes[flow->sent % BT_FLOW_WINDOW] = (uint8_t)lane;
    flow->in_flight[lane]++;
    flow->told = flow->consumed;
    return (bt_frame_head){.kind = BT_FRAME_DATA, .lane = lane, .sequence = flow->sent, .acked = flow->consumed};
}

bt_frame_head
bt_flow_ack(bt_flow *flow)
{
    flow->told = flow->consumed;
    return (bt_frame_head){.kind = BT_FRAME_ACK, .sequence = flow->sent, .acked = flow->consumed};
}

// A smaller number than before is an acknowledgement that a duplicate repeats.
static bool
take_acked(bt_flow *flow, uint64_t acked)
{
    if (acked > flow->sent)
        return false;
    while (flow->acked < acked) {
        flow->acked++;
        flow->in_flight[flow->sent_lanes[flow->acked % BT_FLOW_WINDOW]]--;
    }
    return true;
}

bt_flow_verdict
bt_flow_receive(bt_flow *flow, const bt_frame_head *head)
{
    if (!take_acked(flow, head->acked))
        return BT_FLOW_BROKEN;
    if (head->kind == BT_FRAME_ACK)
        return head->sequence > flow->received ? BT_FLOW_BROKEN : BT_FLOW_NOTHING;
    if (head->kind != BT_FRAME_DATA || head->sequence > flow->received + 1)
        return BT_FLOW_BROKEN;
    if (head->sequence <= flow->received)
        return BT_FLOW_DUPLICATE;
    if (flow->unread[head->lane] >= credits[head->lane])
        return BT_FLOW_BROKEN;
    flow->received++;
    flow->their_lanes[flow->received % BT_FLOW_WINDOW] = (uint8_t)head->lane;
    flow->unread[head->lane]++;
    return BT_FLOW_NEW;
}

void
bt_flow_consume(bt_flow *flow)
{
    assert(flow->consumed < flow->received);
    flow->consumed++;
    flow->unread[flow->their_lanes[flow->consumed % BT_FLOW_WINDOW]]--;
}

uint64_t
bt_flow_owed(const bt_flow *flow)
{
    return flow->consumed - flow->told;
}
