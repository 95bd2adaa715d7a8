#include "common/base/rng.h"
#include "common/net/challenge.h"
#include "common/net/flow.h"
#include "tests/support/test.h"

#include <stdio.h>
#include <string.h>

START_TEST(heads_come_back_and_foreign_bytes_are_told)
{
    bt_frame_head head = {BT_FRAME_DATA, BT_LANE_HEARTBEAT, 0x0123456789abcdef, 0xfedcba9876543210, 77}, back;
    uint8_t bytes[BT_FRAME_HEAD_BYTES];

    bt_frame_write(&head, bytes);
    ck_assert_int_eq(bt_frame_read(&back, bytes, sizeof bytes), BT_OK);
    ck_assert(back.kind == head.kind && back.lane == head.lane && back.sequence == head.sequence &&
              back.acked == head.acked && back.length == head.length);
    ck_assert_int_eq(bt_frame_read(&back, bytes, sizeof bytes - 1), BT_ERR_BUSY);
    ck_assert_int_eq(bt_frame_read(&back, bytes, 0), BT_ERR_BUSY);
    bytes[5] = BT_LANES;
    ck_assert_int_eq(bt_frame_read(&back, bytes, sizeof bytes), BT_ERR_INVALID);
    bytes[5] = 0;
    bytes[4] = 0;
    ck_assert_int_eq(bt_frame_read(&back, bytes, sizeof bytes), BT_ERR_INVALID);
    bytes[4] = BT_FRAME_ACK;
    bytes[8] = BT_FRAME_HEAD_BYTES - 1;
    ck_assert_int_eq(bt_frame_read(&back, bytes, sizeof bytes), BT_ERR_INVALID);
    bytes[8] = 77;
    ck_assert_int_eq(bt_frame_read(&back, bytes, sizeof bytes), BT_OK);
    bytes[0] = 'H';
    ck_assert_int_eq(bt_frame_read(&back, bytes, 1), BT_ERR_INVALID);
    ck_assert_int_eq(bt_frame_read(&back, bytes, sizeof bytes), BT_ERR_INVALID);
}
END_TEST

START_TEST(a_full_lane_leaves_the_others_open_until_it_is_acknowledged)
{
    bt_flow us = {0}, them = {0};
    bt_frame_head head;

    for (uint32_t i = 0; i < bt_flow_credits(BT_LANE_DATA); i++) {
        ck_assert(bt_flow_may_send(&us, BT_LANE_DATA));
        head = bt_flow_send(&us, BT_LANE_DATA);
        ck_assert_int_eq(bt_flow_receive(&them, &head), BT_FLOW_NEW);
    }
    ck_assert(!bt_flow_may_send(&us, BT_LANE_DATA));
    ck_assert(bt_flow_may_send(&us, BT_LANE_CANCEL) && bt_flow_may_send(&us, BT_LANE_HEARTBEAT));
    head = bt_flow_ack(&them); // received, not consumed: no credit comes back
    ck_assert_int_eq(bt_flow_receive(&us, &head), BT_FLOW_NOTHING);
    ck_assert(!bt_flow_may_send(&us, BT_LANE_DATA));
    bt_flow_consume(&them);
    ck_assert_uint_eq(bt_flow_owed(&them), 1);
    head = bt_flow_ack(&them);
    ck_assert_int_eq(bt_flow_receive(&us, &head), BT_FLOW_NOTHING);
    ck_assert(bt_flow_may_send(&us, BT_LANE_DATA));
}
END_TEST

START_TEST(the_loss_of_the_very_last_frame_shows_in_the_next_acknowledgement)
{
    bt_flow us = {0}, them = {0};
    bt_frame_head head = bt_flow_send(&us, BT_LANE_DATA);

    head = bt_flow_ack(&us);
    ck_assert_int_eq(bt_flow_receive(&them, &head), BT_FLOW_BROKEN);
}
END_TEST

START_TEST(who_does_not_keep_to_the_rules_is_told)
{
    bt_flow flow = {0};
    bt_frame_head ahead = {.kind = BT_FRAME_DATA, .sequence = 2},
                  acks_what_was_not_sent = {.kind = BT_FRAME_ACK, .acked = 1};

    ck_assert_int_eq(bt_flow_receive(&flow, &ahead), BT_FLOW_BROKEN);
    ck_assert_int_eq(bt_flow_receive(&flow, &acks_what_was_not_sent), BT_FLOW_BROKEN);
    for (uint32_t i = 1; i <= bt_flow_credits(BT_LANE_CANCEL); i++) {
        bt_frame_head head = {.kind = BT_FRAME_DATA, .lane = BT_LANE_CANCEL, .sequence = i};

        ck_assert_int_eq(bt_flow_receive(&flow, &head), BT_FLOW_NEW);
    }
    ahead =
        (bt_frame_head){.kind = BT_FRAME_DATA, .lane = BT_LANE_CANCEL, .sequence = bt_flow_credits(BT_LANE_CANCEL) + 1};
    ck_assert_int_eq(bt_flow_receive(&flow, &ahead), BT_FLOW_BROKEN); // beyond their credit
}
END_TEST

// Two sides and a network that loses, doubles and turns around: what is received is 1, 2, 3 … without exception, and whatever was
// lost is noticed at the latest with the next acknowledgement.
START_TEST(frames_are_received_once_and_in_order_or_the_loss_shows)
{
    bt_rng rng = {_i};
    bt_flow sides[2] = {0};
    bt_frame_head wire[2][8];
    int count[2] = {0}, broken = 0, lost[2] = {0};
    uint64_t received[2] = {0};

    for (int step = 0; step < 20000 && !broken; step++) {
        int from = (int)bt_rng_below(&rng, 2), to = !from;
        bt_lane lane = (bt_lane)bt_rng_below(&rng, BT_LANES);

        if (count[from] < 8 && bt_rng_below(&rng, 2) == 0) {
            bool ack = !bt_flow_may_send(&sides[from], lane) || bt_rng_below(&rng, 4) == 0;
            bt_frame_head head = ack ? bt_flow_ack(&sides[from]) : bt_flow_send(&sides[from], lane);
            uint64_t fate = bt_rng_below(&rng, 4000);

            if (fate == 0)
                lost[from] += !ack;
            else
                wire[from][count[from]++] = head;
            if (fate == 1 && count[from] < 8)
                wire[from][count[from]++] = head;
            if (fate == 2 && count[from] > 1) {
                bt_frame_head swapped = wire[from][count[from] - 2];

                wire[from][count[from] - 2] = wire[from][count[from] - 1];
                wire[from][count[from] - 1] = swapped;
            }
        } else if (count[from] > 0) {
            bt_flow_verdict verdict = bt_flow_receive(&sides[to], &wire[from][0]);

            if (verdict == BT_FLOW_NEW)
                ck_assert_uint_eq(wire[from][0].sequence, ++received[to]);
            broken |= verdict == BT_FLOW_BROKEN;
            count[from]--;
            memmove(wire[from], wire[from] + 1, count[from] * sizeof *wire[from]);
        }
        if (sides[to].received > sides[to].consumed && bt_rng_below(&rng, 2) == 0)
            bt_flow_consume(&sides[to]);
    }
    for (int from = 0; from < 2 && !broken; from++) {
        bt_frame_head last = bt_flow_ack(&sides[from]);

        for (int i = 0; i < count[from]; i++)
            broken |= bt_flow_receive(&sides[!from], &wire[from][i]) == BT_FLOW_BROKEN;
        broken |= bt_flow_receive(&sides[!from], &last) == BT_FLOW_BROKEN;
    }
    ck_assert_msg(broken || lost[0] + lost[1] == 0, "seed %d: lost %d and %d, and nobody noticed", _i, lost[0],
                  lost[1]);
}
END_TEST

static void
expect_mac(bt_side side, const bt_nonces *nonces, const char *hex)
{
    uint8_t mac[BT_MAC_BYTES];
    char text[2 * BT_MAC_BYTES + 1];

    ck_assert_int_eq(bt_mac_make(mac, "a secret", side, nonces), BT_OK);
    for (int i = 0; i < BT_MAC_BYTES; i++)
        snprintf(text + 2 * i, 3, "%02x", mac[i]);
    ck_assert_str_eq(text, hex);
}

// The expected values are of Python's hmac.
START_TEST(proofs_are_hmacs_of_both_nonces_and_differ_by_side)
{
    bt_nonces nonces;
    uint8_t mac[BT_MAC_BYTES], other[BT_MAC_BYTES];

    for (int i = 0; i < BT_NONCE_BYTES; i++) {
        nonces.listener[i] = (uint8_t)i;
        nonces.dialer[i] = (uint8_t)(100 + i);
    }
    expect_mac(BT_SIDE_DIALER, &nonces, "0c409db546c467f5684c45c003a88dcfe52be02d98736fe10a5a31fb4f8006ec");
    expect_mac(BT_SIDE_LISTENER, &nonces, "eb2e5918bcb60d418c97974df14e17791d33828f89cf142e31b2447572b4d0fc");
    bt_mac_make(mac, "a secret", BT_SIDE_DIALER, &nonces);
    bt_mac_make(other, "a Secret", BT_SIDE_DIALER, &nonces);
    ck_assert(bt_mac_is(mac, mac) && !bt_mac_is(mac, other));
    other[31] = mac[31];
    memcpy(other, mac, 31);
    other[0] ^= 1;
    ck_assert(!bt_mac_is(mac, other));
}
END_TEST

START_TEST(nonces_differ)
{
    uint8_t a[BT_NONCE_BYTES], b[BT_NONCE_BYTES];

    ck_assert_int_eq(bt_nonce_draw(a), BT_OK);
    ck_assert_int_eq(bt_nonce_draw(b), BT_OK);
    ck_assert(memcmp(a, b, sizeof a) != 0);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("flow");
    TCase *all = tcase_create("all");

    tcase_add_test(all, heads_come_back_and_foreign_bytes_are_told);
    tcase_add_test(all, a_full_lane_leaves_the_others_open_until_it_is_acknowledged);
    tcase_add_test(all, the_loss_of_the_very_last_frame_shows_in_the_next_acknowledgement);
    tcase_add_test(all, who_does_not_keep_to_the_rules_is_told);
    tcase_add_loop_test(all, frames_are_received_once_and_in_order_or_the_loss_shows, 0, 100);
    tcase_add_test(all, proofs_are_hmacs_of_both_nonces_and_differ_by_side);
    tcase_add_test(all, nonces_differ);
    suite_add_tcase(suite, all);
    return bt_test_run(suite);
}
