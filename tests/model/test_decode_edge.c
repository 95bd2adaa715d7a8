// The decode node's edge with the real engine on the tiny model and real data planes: prefill nodes are met, proved, lost and met again,
// as routers hear. Links are played: what arrives is a list, what is sent is kept.
#include "common/base/log.h"
#include "common/kv/trailer.h"
#include "decode-node/main.h"
#include "tests/support/test.h"
#include "tests/support/tiny_gguf.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SOURCES 2
#define ROUTER SOURCES // its link peer; more follow
#define EPOCH 7
#define BLOCKS 40
#define BLOCK_TOKENS 16
#define CONTEXT 128
#define PATIENCE (20 * BT_SECOND)
#define KEPT 512

typedef struct {
    bt_link link;
    bt_link_event events[KEPT];
    uint32_t first, count;
    struct {
        uint32_t peer;
        bt_message *message;
    } sent[KEPT];
    uint32_t sent_count;
    bt_message_kind refuses; // the next message of this kind
} played_link;

typedef struct {
    bt_plane *plane;
    bt_transfer *transfer;
    uint8_t *pool;
    uint64_t epoch;
} owner;

static played_link link_;
static bt_engine *engine;
static bt_transfer *transfer;
static bt_plane *plane;
static bt_decode_node *node;
static owner owners[SOURCES];

// ---- the link ----

static bool
played_receive(bt_link *link, bt_link_event *out)
{
    (void)link;
    if (link_.first == link_.count)
        return false;
    *out = link_.events[link_.first++];
    return true;
}

static bt_err
played_send(bt_link *link, uint32_t peer, const bt_message *message)
{
    void *copy = aligned_alloc(16, bt_message_size(message));

    (void)link;
    ck_assert_int_eq(bt_message_check(message), BT_OK);
    ck_assert_uint_lt(link_.sent_count, KEPT);
    if (message->kind == link_.refuses) {
        link_.refuses = BT_MESSAGE_NONE;
        free(copy);
        return BT_ERR_NO_MEMORY;
    }
    link_.sent[link_.sent_count].peer = peer;
    link_.sent[link_.sent_count++].message = bt_message_copy(copy, message);
    return BT_OK;
}

static bool
played_pending(const bt_link *link)
{
    (void)link;
    return link_.first < link_.count;
}

static void
played_close(bt_link *link)
{
    (void)link;
}

static const bt_link_ops played_ops = {played_receive, played_send, played_pending, played_close};

static void
comes(bt_link_event_kind kind, uint32_t peer)
{
    ck_assert_uint_lt(link_.count, KEPT);
    link_.events[link_.count++] = (bt_link_event){.kind = kind, .peer = peer};
}

static void
says(uint32_t peer, const bt_message *message)
{
    ck_assert_int_eq(bt_message_check(message), BT_OK);
    comes(BT_LINK_MESSAGE, peer);
    link_.events[link_.count - 1].message = bt_message_copy(aligned_alloc(16, bt_message_size(message)), message);
}

static void
forget_sent(void)
{
    for (uint32_t i = 0; i < link_.sent_count; i++)
        free(link_.sent[i].message);
    link_.sent_count = 0;
}

static void
forget_events(void)
{
    for (uint32_t i = 0; i < link_.count; i++)
        free((void *)(uintptr_t)link_.events[i].message);
    link_.first = link_.count = 0;
}

// The last of this kind that was sent to the peer; NULL = none was.
static const bt_message *
heard(uint32_t peer, bt_message_kind kind)
{
    for (uint32_t i = link_.sent_count; i-- > 0;) {
        if (link_.sent[i].peer == peer && link_.sent[i].message->kind == kind)
            return link_.sent[i].message;
    }
    return NULL;
}

// ---- the node ----

static void
turn(void)
{
    bt_time now = bt_time_now();

    if (bt_decode_node_turn(node, now) > now)
        usleep(500);
    if (link_.first == link_.count)
        forget_events();
}

#define TURN_UNTIL(condition)                                                                                          \
    do {                                                                                                               \
        bt_time until = bt_time_now() + PATIENCE;                                                                      \
        while (!(condition)) {                                                                                         \
            ck_assert_msg(bt_time_now() < until, "never: %s", #condition);                                             \
            turn();                                                                                                    \
        }                                                                                                              \
    } while (0)

static void
turn_for(bt_time span)
{
    for (bt_time until = bt_time_now() + span; bt_time_now() < until;)
        turn();
}

static bt_err
lend_pool(void *arg, bt_device *device, const bt_kv_layout *layout, uint32_t blocks, uint8_t **memory, bt_why *why)
{
    bt_transfer_options o = {.epoch = EPOCH, .layout = *layout, .blocks = blocks, .listen = "127.0.0.1:0"};
    bt_err err;

    (void)device;
    bt_plane_size_transfer(arg, &o);
    if ((err = bt_transfer_open(&transfer, &o, why)) == BT_OK)
        *memory = bt_transfer_pool(transfer);
    return err;
}

static void
set_up(void)
{
    const char *path = "/tmp/baton-test-decode-edge.gguf";
    bt_plane_options lanes = {.peers_max = SOURCES, .fetches_max = 4, .fetch_blocks_max = BT_DECODE_FETCH_BLOCKS};
    bt_engine_options options = {
        .model = {.path = path},
        .device = {.threads = 1},
        .kv_block_tokens = BLOCK_TOKENS,
        .kv_blocks = BLOCKS,
        .max_sequences = 4,
        .chunk_tokens = 40,
        .context = CONTEXT,
        .kv_pool = lend_pool,
        .kv_pool_arg = &lanes,
    };
    bt_decode_node_options as = {
        .name = "d1", .epoch = EPOCH, .max_sequences = 4, .chunk_tokens = 40, .sources = SOURCES};
    bt_why why;

    bt_log_set_level(getenv("BATON_TEST_LOG") != NULL ? BT_LOG_INFO : BT_LOG_ERROR);
    memset(&link_, 0, sizeof link_);
    memset(owners, 0, sizeof owners);
    link_.link.ops = &played_ops;
    bt_test_write_tiny_gguf(path);
    ck_assert_msg(bt_engine_open(&engine, &options, &why) == BT_OK, "%s", why.text);
    unlink(path);
    ck_assert_msg(bt_plane_open(&plane, transfer, &lanes, &why) == BT_OK, "%s", why.text);
    ck_assert_msg(bt_decode_node_open(&node, &as, engine, &link_.link, plane, &why) == BT_OK, "%s", why.text);
}

static void
close_owner(owner *o)
{
    bt_plane_close(o->plane);
    *o = (owner){0};
}

static void
tear_down(void)
{
    for (int i = 0; i < SOURCES; i++)
        close_owner(&owners[i]);
    bt_decode_node_close(node);
    bt_engine_close(engine);
    bt_plane_close(plane);
    forget_sent();
    forget_events();
}

// ---- who speaks to it ----

static bt_hello
hello_of(bt_node_role role, const char *name, uint64_t epoch)
{
    const bt_model *model = bt_engine_model(engine);
    bt_hello hello = {.role = role,
                      .version = BT_PROTOCOL_VERSION,
                      .epoch = epoch,
                      .model = model->family,
                      .weights = model->digest,
                      .layout = bt_kv_layout_fingerprint(bt_engine_kv_layout(engine)),
                      .kv_format = 1 + BT_KV_INT8,
                      .block_tokens = BLOCK_TOKENS,
                      .blocks = BLOCKS,
                      .context = CONTEXT};

    strcpy(hello.name, name);
    return hello;
}

static void
router_comes(uint32_t peer)
{
    bt_message hello = {.kind = BT_MESSAGE_HELLO, .hello = hello_of(BT_NODE_ROUTER, "router", 100 + peer)};

    comes(BT_LINK_UP, peer);
    says(peer, &hello);
}

static void
open_owner(owner *o, uint64_t epoch)
{
    bt_plane_options lanes = {.peers_max = 4, .fetches_max = 1, .fetch_blocks_max = 1};
    bt_transfer_options options = {
        .epoch = epoch, .layout = *bt_engine_kv_layout(engine), .blocks = BLOCKS, .listen = "127.0.0.1:0"};
    bt_why why;

    bt_plane_size_transfer(&lanes, &options);
    ck_assert_msg(bt_transfer_open(&o->transfer, &options, &why) == BT_OK, "%s", why.text);
    o->pool = bt_transfer_pool(o->transfer);
    o->epoch = epoch;
    ck_assert_msg(bt_plane_open(&o->plane, o->transfer, &lanes, &why) == BT_OK, "%s", why.text);
}

static void
owner_greets(uint32_t peer, uint64_t epoch)
{
    bt_message hello = {.kind = BT_MESSAGE_HELLO, .hello = hello_of(BT_NODE_PREFILL, peer == 0 ? "p1" : "p2", epoch)};

    says(peer, &hello);
}

static void
owner_describes(uint32_t peer, uint64_t epoch)
{
    bt_message description = {.kind = BT_MESSAGE_DESCRIPTION,
                              .description = {.epoch = epoch,
                                              .layout = bt_kv_layout_fingerprint(bt_engine_kv_layout(engine)),
                                              .blocks = BLOCKS}};

    description.description.bytes = bt_plane_description(owners[peer].plane, &description.description.byte_count);
    says(peer, &description);
}

static void
owner_comes(uint32_t peer, uint64_t epoch)
{
    open_owner(&owners[peer], epoch);
    comes(BT_LINK_UP, peer);
    owner_greets(peer, epoch);
    owner_describes(peer, epoch);
}

// What the router was told last: these epochs, no others.
static bool
sources_are(uint64_t a, uint64_t b)
{
    const bt_message *beat = heard(ROUTER, BT_MESSAGE_HEARTBEAT);
    bool found[2] = {a == 0, b == 0};

    for (uint32_t i = 0; beat != NULL && i < beat->heartbeat.source_count; i++) {
        found[0] |= beat->heartbeat.sources[i] == a;
        found[1] |= beat->heartbeat.sources[i] == b;
    }
    return beat != NULL && found[0] && found[1] &&
           beat->heartbeat.source_count == (uint32_t)(a != 0) + (uint32_t)(b != 0);
}

static bt_decode_source
source(uint32_t index)
{
    bt_decode_source out;

    bt_decode_node_source(node, index, &out);
    return out;
}

// ---- cases ----

START_TEST(routers_hear_of_prefill_nodes_whose_memory_was_read)
{
    const bt_message *ours;

    router_comes(ROUTER);
    TURN_UNTIL(sources_are(0, 0));
    owner_comes(0, 11);
    TURN_UNTIL(sources_are(11, 0));
    owner_comes(1, 22);
    TURN_UNTIL(sources_are(11, 22));
    ck_assert(source(0).ready && source(1).ready && source(0).gb_per_s > 0);
    ck_assert_str_eq(source(0).path, "direct");
    ck_assert_str_eq(source(1).name, "p2");
    ours = heard(0, BT_MESSAGE_DESCRIPTION); // so that the owner knows who reads
    ck_assert(ours != NULL && ours->description.epoch == EPOCH && ours->description.byte_count > 0);
}
END_TEST

START_TEST(who_does_not_suit_is_refused_and_hears_nothing_of_our_memory)
{
    router_comes(ROUTER);
    TURN_UNTIL(sources_are(0, 0));
    open_owner(&owners[0], 11);
    for (int i = 0; i < 6; i++) {
        bt_message hello = {.kind = BT_MESSAGE_HELLO, .hello = hello_of(BT_NODE_PREFILL, "p1", 11)};

        hello.hello.model += i == 0;
        hello.hello.weights += i == 1;
        hello.hello.layout += i == 2;
        hello.hello.kv_format += i == 3;
        hello.hello.block_tokens += i == 4;
        hello.hello.role = i == 5 ? BT_NODE_DECODE : BT_NODE_PREFILL;
        comes(BT_LINK_UP, 0);
        says(0, &hello);
        owner_describes(0, 11);
        turn_for(20 * BT_MILLISECOND);
        ck_assert_msg(source(0).refused && !source(0).ready, "case %d", i);
        ck_assert_ptr_null(heard(0, BT_MESSAGE_DESCRIPTION));
        ck_assert(sources_are(0, 0));
        comes(BT_LINK_DOWN, 0);
    }
    comes(BT_LINK_UP, 0);
    owner_greets(0, 11);
    owner_describes(0, 11);
    TURN_UNTIL(sources_are(11, 0));
}
END_TEST

START_TEST(a_program_that_ends_is_lost_and_its_successor_proved)
{
    router_comes(ROUTER);
    owner_comes(0, 11);
    TURN_UNTIL(sources_are(11, 0));
    close_owner(&owners[0]);
    TURN_UNTIL(sources_are(0, 0)); // the link has not gone yet
    comes(BT_LINK_DOWN, 0);
    owner_comes(0, 12);
    TURN_UNTIL(sources_are(12, 0));
}
END_TEST

START_TEST(a_link_that_was_away_needs_no_second_proof)
{
    bt_plane_stats before, after;

    router_comes(ROUTER);
    owner_comes(0, 11);
    TURN_UNTIL(sources_are(11, 0));
    turn_for(150 * BT_MILLISECOND);
    bt_plane_get_stats(plane, &before);
    comes(BT_LINK_DOWN, 0);
    TURN_UNTIL(sources_are(0, 0));
    comes(BT_LINK_UP, 0);
    owner_greets(0, 11);
    TURN_UNTIL(source(0).epoch == 11);
    owner_describes(0, 11);
    TURN_UNTIL(sources_are(11, 0));
    turn_for(150 * BT_MILLISECOND);
    bt_plane_get_stats(plane, &after);
    ck_assert_uint_eq(before.connects, after.connects);
}
END_TEST

START_TEST(a_description_of_another_program_than_said_hello_is_not_connected)
{
    router_comes(ROUTER);
    TURN_UNTIL(sources_are(0, 0));
    open_owner(&owners[0], 11);
    comes(BT_LINK_UP, 0);
    owner_describes(0, 11); // before its HELLO
    owner_greets(0, 12);
    owner_describes(0, 11);
    turn_for(50 * BT_MILLISECOND);
    ck_assert(sources_are(0, 0) && source(0).path[0] == 0);
    owner_greets(0, 11);
    owner_describes(0, 11);
    TURN_UNTIL(sources_are(11, 0));
}
END_TEST

START_TEST(memory_that_cannot_be_read_is_tried_again)
{
    uint8_t damaged[BT_TRANSFER_DESCRIPTION_MAX];
    bt_message description = {.kind = BT_MESSAGE_DESCRIPTION, .description = {.epoch = 11, .blocks = BLOCKS}};
    const uint8_t *bytes;
    bt_plane_stats stats;

    router_comes(ROUTER);
    TURN_UNTIL(sources_are(0, 0));
    open_owner(&owners[0], 11);
    comes(BT_LINK_UP, 0);
    owner_greets(0, 11);
    bytes = bt_plane_description(owners[0].plane, &description.description.byte_count);
    memcpy(damaged, bytes, description.description.byte_count);
    damaged[40] ^= 1;
    description.description.bytes = damaged;
    says(0, &description);
    turn_for(200 * BT_MILLISECOND);
    bt_plane_get_stats(plane, &stats);
    ck_assert_uint_ge(stats.refused, 1);
    ck_assert(sources_are(0, 0));
    owner_describes(0, 11);
    TURN_UNTIL(sources_are(11, 0));
    close_owner(&owners[0]); // now it cannot be reached, and the same words are good again later
    TURN_UNTIL(sources_are(0, 0));
    turn_for(300 * BT_MILLISECOND);
    bt_plane_get_stats(plane, &stats);
    ck_assert_uint_ge(stats.connects, 3);
}
END_TEST

START_TEST(a_seventeenth_router_waits_for_a_place)
{
    for (uint32_t i = 0; i < BT_DECODE_ROUTERS_MAX + 1; i++)
        router_comes(ROUTER + i);
    TURN_UNTIL(heard(ROUTER + BT_DECODE_ROUTERS_MAX - 1, BT_MESSAGE_HELLO) != NULL);
    turn_for(20 * BT_MILLISECOND);
    ck_assert_ptr_null(heard(ROUTER + BT_DECODE_ROUTERS_MAX, BT_MESSAGE_HELLO));
    comes(BT_LINK_DOWN, ROUTER + 3);
    router_comes(ROUTER + BT_DECODE_ROUTERS_MAX + 5);
    TURN_UNTIL(heard(ROUTER + BT_DECODE_ROUTERS_MAX + 5, BT_MESSAGE_HELLO) != NULL);
}
END_TEST

// ---- prompts that come from there ----

static const bt_sampling greedy = {.repetition_penalty = 1};
static int32_t ids[2 * BLOCK_TOKENS];

static bt_ticket
reserve(uint32_t slot, uint32_t max_tokens)
{
    bt_message job = {.kind = BT_MESSAGE_RESERVE};
    const bt_message *answer;

    for (int i = 0; i < 2 * BLOCK_TOKENS; i++)
        ids[i] = 10 + i;
    job.reserve = (bt_job){.request = {.slot = slot},
                           .ids = ids,
                           .prompt_count = 2 * BLOCK_TOKENS,
                           .max_tokens = max_tokens,
                           .sampling = &greedy,
                           .time_left = BT_TIME_NEVER};
    forget_sent();
    says(ROUTER, &job);
    TURN_UNTIL((answer = heard(ROUTER, BT_MESSAGE_TICKET)) != NULL);
    ck_assert_int_eq(answer->ticket.err, BT_OK);
    return answer->ticket.ticket;
}

static void
await(uint32_t slot, const bt_ticket *ticket, uint64_t epoch)
{
    bt_message message = {
        .kind = BT_MESSAGE_AWAIT,
        .await = {.request = {.slot = slot}, .ticket = *ticket, .prefill = "p1", .prefill_epoch = epoch}};

    says(ROUTER, &message);
}

static void
offer(const bt_ticket *ticket, uint64_t epoch, uint64_t generation)
{
    bt_offer_block blocks[2] = {{5, generation}, {6, generation}};
    bt_message message = {.kind = BT_MESSAGE_OFFER,
                          .offer = {.ticket = *ticket,
                                    .epoch = epoch,
                                    .token_count = 2 * BLOCK_TOKENS,
                                    .block_count = 2,
                                    .blocks = blocks,
                                    .last = true,
                                    .has_token = true,
                                    .token = {.id = 40}}};

    says(0, &message);
}

static void
write_blocks(uint64_t epoch, uint64_t generation)
{
    const bt_kv_layout *layout = bt_engine_kv_layout(engine);

    for (uint32_t b = 5; b <= 6; b++) {
        uint8_t *block = owners[0].pool + b * layout->block_bytes;

        memset(block, (int)b, layout->trailer_offset);
        bt_kv_trailer_stamp(layout, block, epoch, generation);
    }
}

static const bt_tokens_entry *
news_of(uint32_t slot)
{
    for (uint32_t i = link_.sent_count; i-- > 0;) {
        const bt_message *message = link_.sent[i].message;

        for (uint32_t e = 0; message->kind == BT_MESSAGE_TOKENS && e < message->tokens.entry_count; e++) {
            if (message->tokens.entries[e].request.slot == slot)
                return &message->tokens.entries[e];
        }
    }
    return NULL;
}

START_TEST(blocks_are_fetched_and_the_answer_goes_on)
{
    bt_ticket ticket;
    bt_decode_stats stats;

    router_comes(ROUTER);
    owner_comes(0, 11);
    TURN_UNTIL(sources_are(11, 0));
    write_blocks(11, 3);
    ticket = reserve(1, 5);
    await(1, &ticket, 11);
    offer(&ticket, 11, 3);
    TURN_UNTIL(news_of(1) != NULL && news_of(1)->finish == BT_FINISH_LENGTH);
    bt_decode_node_stats(node, &stats);
    ck_assert(stats.fetched_blocks == 2 && stats.fetched_sequences == 1 && stats.prompt_tokens == 0);
    ck_assert_uint_eq(heard(0, BT_MESSAGE_TAKEN)->taken.block_count, 2);
    ck_assert(bt_decode_node_idle(node) && stats.leak == 0);
}
END_TEST

START_TEST(blocks_that_are_not_what_was_offered_are_tried_once_more_and_given_up)
{
    bt_ticket ticket;
    bt_decode_stats stats;

    router_comes(ROUTER);
    owner_comes(0, 11);
    TURN_UNTIL(sources_are(11, 0));
    write_blocks(11, 4); // lent anew meanwhile
    ticket = reserve(1, 5);
    await(1, &ticket, 11);
    offer(&ticket, 11, 3);
    TURN_UNTIL(news_of(1) != NULL);
    ck_assert(news_of(1)->finish == BT_FINISH_ERROR && news_of(1)->err == BT_ERR_PEER);
    TURN_UNTIL(bt_decode_node_idle(node));
    bt_decode_node_stats(node, &stats);
    ck_assert(stats.refetches == 1 && stats.lost_fetches == 1 && stats.leak == 0);
}
END_TEST

START_TEST(a_fetch_from_memory_that_is_gone_ends_the_sequence_for_another_node)
{
    bt_ticket ticket;
    bt_decode_stats stats;

    router_comes(ROUTER);
    owner_comes(0, 11);
    TURN_UNTIL(sources_are(11, 0));
    ticket = reserve(1, 5);
    await(1, &ticket, 11);
    turn_for(5 * BT_MILLISECOND);
    bt_plane_disconnect(plane, 0); // as if LOST were on its way
    offer(&ticket, 11, 3);
    TURN_UNTIL(news_of(1) != NULL);
    ck_assert(news_of(1)->finish == BT_FINISH_ERROR && news_of(1)->err == BT_ERR_PEER);
    TURN_UNTIL(bt_decode_node_idle(node));
    bt_decode_node_stats(node, &stats);
    ck_assert(stats.lost_fetches == 1 && stats.leak == 0);
}
END_TEST

START_TEST(a_message_that_does_not_get_out_begins_the_relation_anew)
{
    bt_ticket ticket;

    router_comes(ROUTER);
    owner_comes(0, 11);
    TURN_UNTIL(sources_are(11, 0));
    write_blocks(11, 3);
    ticket = reserve(1, 5);
    link_.refuses = BT_MESSAGE_TAKEN;
    await(1, &ticket, 11);
    offer(&ticket, 11, 3);
    TURN_UNTIL(heard(0, BT_MESSAGE_HELLO) != NULL); // it greets again
    owner_greets(0, 11);
    owner_describes(0, 11);
    TURN_UNTIL(news_of(1) != NULL && news_of(1)->finish != BT_FINISH_NONE); // all was here already
    TURN_UNTIL(sources_are(11, 0));
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("decode_edge");
    TCase *all = tcase_create("all");

    tcase_add_checked_fixture(all, set_up, tear_down);
    tcase_set_timeout(all, 120);
    tcase_add_test(all, routers_hear_of_prefill_nodes_whose_memory_was_read);
    tcase_add_test(all, who_does_not_suit_is_refused_and_hears_nothing_of_our_memory);
    tcase_add_test(all, a_program_that_ends_is_lost_and_its_successor_proved);
    tcase_add_test(all, a_link_that_was_away_needs_no_second_proof);
    tcase_add_test(all, a_description_of_another_program_than_said_hello_is_not_connected);
    tcase_add_test(all, memory_that_cannot_be_read_is_tried_again);
    tcase_add_test(all, a_seventeenth_router_waits_for_a_place);
    tcase_add_test(all, blocks_are_fetched_and_the_answer_goes_on);
    tcase_add_test(all, blocks_that_are_not_what_was_offered_are_tried_once_more_and_given_up);
    tcase_add_test(all, a_fetch_from_memory_that_is_gone_ends_the_sequence_for_another_node);
    tcase_add_test(all, a_message_that_does_not_get_out_begins_the_relation_anew);
    suite_add_tcase(suite, all);
    return bt_test_run(suite);
}
