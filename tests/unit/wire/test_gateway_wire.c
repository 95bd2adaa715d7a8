// The gateway's messages as bytes. The golden ones were written by Python's protobuf 7.36 from proto/gateway.proto.
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/wire/gateway.h"
#include "tests/support/test.h"

#include <stdio.h>
#include <string.h>

#define SCRATCH_BYTES (64u << 10)

static _Alignas(16) uint8_t memory[2][SCRATCH_BYTES];
static bt_wire_scratch write_scratch, read_scratch;
static uint8_t frame[SCRATCH_BYTES];

static const char golden_request[] = "08ac02100118dc0b22036b65792a057265712d3130083a9f010a0474696e79123d0a130a067379737"
                                     "4656d120942652073686f72742e0a1b0a047573"
                                     "6572120e4772c3bcc39f65200020646963681a03416e6e12077b2261223a317d1801280230003d000"
                                     "00000450000003f4828550000803e5d000080bf"
                                     "650000003f6d0000c03f71feffffffffffffff78018001038801019001019a010407f0a204a201080"
                                     "000c8c200002040aa01020a0aaa0103454e44b2"
                                     "01027531";
static const char golden_reply[] =
    "08ac0212057265712d311a2108081204627573791a11746f6f5f6d616e795f726571756573747322016e28e80722450a3908011205636166c3"
    "a91a21"
    "0a0305d8041208000000bf000000c01a020200220205092a08000000bf0000c0bf22090a01011204000080c028010a001206080a10021808";
static const char golden_stats[] = "080110021803200428053006380740084809500a580b600c68808080808020";

static void
set_up(void)
{
    bt_wire_scratch_init(&write_scratch, memory[0], SCRATCH_BYTES);
    bt_wire_scratch_init(&read_scratch, memory[1], SCRATCH_BYTES);
}

static bt_str
bytes_of(const char *hex)
{
    size_t length = 0;

    for (; hex[0] != 0; hex += 2)
        sscanf(hex, "%2hhx", &frame[length++]);
    return (bt_str){(const char *)frame, length};
}

static void
check_is(bt_str text, const char *words)
{
    ck_assert_msg(bt_str_is(text, words), "\"%.*s\" and not \"%s\"", (int)text.len, text.data, words);
}

START_TEST(a_request_of_another_implementation_says_what_it_said)
{
    bt_str from = bytes_of(golden_request);
    bt_gateway_request request;
    bt_gateway_generate ask;

    ck_assert_int_eq(bt_gateway_read_request(&request, from.data, from.len, &read_scratch), BT_OK);
    ck_assert_uint_eq(request.id, 300);
    ck_assert_int_eq(request.method, BT_GATEWAY_GENERATE);
    ck_assert_uint_eq(request.timeout_ms, 1500);
    ck_assert_uint_eq(request.credits, 8);
    check_is(request.auth, "key");
    check_is(request.name, "req-1");
    ck_assert_int_eq(bt_gateway_read_generate(&ask, request.body, &read_scratch), BT_OK);
    check_is(ask.model, "tiny");
    check_is(ask.user, "u1");
    ck_assert_int_eq(ask.input.kind, BT_INPUT_CHAT);
    ck_assert_uint_eq(ask.input.message_count, 2);
    check_is(ask.input.messages[0].role, "system");
    check_is(ask.input.messages[1].name, "Ann");
    ck_assert(
        bt_str_equal(ask.input.messages[1].content, (bt_str){"Gr\xc3\xbc\xc3\x9f\x65 \0 dich", 14})); // its NUL too
    check_is(ask.input.template_json, "{\"a\":1}");
    ck_assert(ask.input.no_generation_prompt && ask.prompt_logprobs && ask.seed_given);
    ck_assert_uint_eq(ask.n, 2);
    ck_assert_uint_eq(ask.max_tokens, 0);
    ck_assert(ask.sampling.temperature == 0 && ask.sampling.top_p == 0.5f && ask.sampling.min_p == 0.25f);
    ck_assert(ask.sampling.presence_penalty == -1 && ask.sampling.frequency_penalty == 0.5f);
    ck_assert(ask.sampling.repetition_penalty == 1.5f && ask.sampling.logprobs && ask.sampling.ignore_eos);
    ck_assert_uint_eq(ask.sampling.top_k, 40);
    ck_assert_uint_eq(ask.sampling.seed, UINT64_MAX - 1);
    ck_assert_uint_eq(ask.sampling.top_logprobs, 3);
    ck_assert_uint_eq(ask.sampling.bias_count, 2);
    ck_assert_int_eq(ask.sampling.bias_ids[1], 70000);
    ck_assert(ask.sampling.bias_values[0] == -100 && ask.sampling.bias_values[1] == 2.5f);
    ck_assert_uint_eq(ask.stop_count, 2);
    check_is(ask.stops[1], "END");
}
END_TEST

static void
check_bytes(const bt_gateway_draft *draft, const char *hex)
{
    static uint8_t ours[SCRATCH_BYTES];
    bt_str theirs = bytes_of(hex);

    ck_assert_uint_eq(draft->bytes, theirs.len);
    bt_gateway_write(draft, ours);
    ck_assert_mem_eq(ours, theirs.data, theirs.len);
}

START_TEST(what_is_read_is_written_as_the_same_bytes)
{
    bt_str from = bytes_of(golden_request);
    bt_gateway_request request;
    bt_gateway_generate ask;
    bt_gateway_draft draft;

    ck_assert_int_eq(bt_gateway_read_request(&request, from.data, from.len, &read_scratch), BT_OK);
    ck_assert_int_eq(bt_gateway_read_generate(&ask, request.body, &read_scratch), BT_OK);
    ck_assert_int_eq(bt_gateway_pack_generate(&request.body, &ask, &write_scratch), BT_OK);
    ck_assert_int_eq(bt_gateway_draft_request(&draft, &request, &write_scratch), BT_OK);
    check_bytes(&draft, golden_request);
}
END_TEST

START_TEST(a_reply_is_read_and_written_as_another_implementation_does)
{
    bt_str from = bytes_of(golden_reply);
    bt_gateway_generated generated;
    bt_gateway_reply reply;
    bt_gateway_draft draft;

    ck_assert_int_eq(bt_gateway_read_reply(&reply, from.data, from.len, &read_scratch), BT_OK);
    ck_assert(reply.id == 300 && reply.last);
    ck_assert_int_eq(reply.status.code, BT_CODE_RESOURCE_EXHAUSTED);
    check_is(reply.status.message, "busy");
    check_is(reply.status.reason, "too_many_requests");
    check_is(reply.status.field, "n");
    ck_assert_uint_eq(reply.status.retry_after_ms, 1000);
    ck_assert_int_eq(bt_gateway_read_generated(&generated, reply.body, &read_scratch), BT_OK);
    ck_assert_uint_eq(generated.choice_count, 2);
    check_is(generated.choices[0].text, "caf\xc3\xa9");
    ck_assert_uint_eq(generated.choices[0].index, 1);
    ck_assert_int_eq(generated.choices[0].finish, BT_FINISH_STOP);
    ck_assert_uint_eq(generated.choices[0].tokens.count, 2);
    ck_assert_uint_eq(generated.choices[0].tokens.top_total, 2);
    ck_assert_int_eq(generated.choices[0].tokens.top_ids[1], 9);
    ck_assert_uint_eq(generated.choices[0].prompt.count, 1);
    ck_assert_uint_eq(generated.choices[1].tokens.count, 0);
    ck_assert(generated.has_usage && generated.usage.cached_tokens == 8);
    ck_assert_int_eq(bt_gateway_pack_generated(&reply.body, &generated, &write_scratch), BT_OK);
    ck_assert_int_eq(bt_gateway_draft_reply(&draft, &reply, &write_scratch), BT_OK);
    check_bytes(&draft, golden_reply);
}
END_TEST

START_TEST(a_degraded_answer_says_so)
{
    bt_gateway_generated generated = {.degraded = true}, back;
    bt_str body;

    ck_assert_int_eq(bt_gateway_pack_generated(&body, &generated, &write_scratch), BT_OK);
    ck_assert(bt_str_equal(body, bytes_of("1801")));
    ck_assert_int_eq(bt_gateway_read_generated(&back, body, &read_scratch), BT_OK);
    ck_assert(back.degraded && back.choice_count == 0 && !back.has_usage);
}
END_TEST

START_TEST(small_bodies_come_back_as_they_were)
{
    static const int32_t ids[] = {1, 70000, 0};
    bt_gateway_stats stats = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, (uint64_t)1 << 40}, stats_back;
    bt_gateway_model models[] = {{bt_str_of("a"), 512}, {bt_str_of("b"), 1}};
    bt_gateway_tokenize ask = {bt_str_of("m"), {.kind = BT_INPUT_PROMPT, .prompt = bt_str_of("")}, true}, ask_back;
    bt_gateway_tokenized tokenized = {ids, 3, 99}, tokenized_back;
    bt_gateway_detokenize detokenize = {bt_str_of("m"), ids, 3}, detokenize_back;
    const bt_gateway_model *models_back;
    bt_gateway_state state;
    uint32_t count;
    uint64_t id;
    bt_str body, text;

    ck_assert_int_eq(bt_gateway_pack_stats(&body, &stats, &write_scratch), BT_OK);
    ck_assert(bt_str_equal(body, bytes_of(golden_stats)));
    ck_assert_int_eq(bt_gateway_read_stats(&stats_back, body, &read_scratch), BT_OK);
    ck_assert_int_eq(bt_gateway_pack_stats(&text, &stats_back, &write_scratch), BT_OK);
    ck_assert(bt_str_equal(text, body));
    ck_assert_int_eq(bt_gateway_pack_models(&body, models, 2, &write_scratch), BT_OK);
    ck_assert_int_eq(bt_gateway_read_models(&models_back, &count, body, &read_scratch), BT_OK);
    ck_assert(count == 2 && models_back[0].context == 512 && bt_str_is(models_back[1].name, "b"));
    ck_assert_int_eq(bt_gateway_pack_tokenize(&body, &ask, &write_scratch), BT_OK);
    ck_assert_int_eq(bt_gateway_read_tokenize(&ask_back, body, &read_scratch), BT_OK);
    ck_assert(ask_back.input.kind == BT_INPUT_PROMPT && ask_back.input.prompt.len == 0 && ask_back.plain);
    ck_assert_int_eq(bt_gateway_pack_tokenized(&body, &tokenized, &write_scratch), BT_OK);
    ck_assert_int_eq(bt_gateway_read_tokenized(&tokenized_back, body, &read_scratch), BT_OK);
    ck_assert(tokenized_back.id_count == 3 && tokenized_back.ids[1] == 70000 && tokenized_back.context == 99);
    ck_assert_int_eq(bt_gateway_pack_detokenize(&body, &detokenize, &write_scratch), BT_OK);
    ck_assert_int_eq(bt_gateway_read_detokenize(&detokenize_back, body, &read_scratch), BT_OK);
    ck_assert(detokenize_back.id_count == 3 && bt_str_is(detokenize_back.model, "m"));
    ck_assert_int_eq(bt_gateway_pack_text(&body, (bt_str){"a\0b", 3}, &write_scratch), BT_OK);
    ck_assert_int_eq(bt_gateway_read_text(&text, body, &read_scratch), BT_OK);
    ck_assert(bt_str_equal(text, (bt_str){"a\0b", 3}));
    ck_assert_int_eq(bt_gateway_pack_health(&body, BT_STATE_DRAINING, &write_scratch), BT_OK);
    ck_assert_int_eq(bt_gateway_read_health(&state, body, &read_scratch), BT_OK);
    ck_assert_int_eq(state, BT_STATE_DRAINING);
    ck_assert_int_eq(bt_gateway_pack_cancel(&body, UINT64_MAX, &write_scratch), BT_OK);
    ck_assert_int_eq(bt_gateway_read_cancel(&id, body, &read_scratch), BT_OK);
    ck_assert_uint_eq(id, UINT64_MAX);
}
END_TEST

START_TEST(what_is_not_given_is_what_the_wire_means_by_it)
{
    bt_gateway_generate ask, fallback;

    bt_gateway_generate_defaults(&fallback);
    ck_assert_int_eq(bt_gateway_read_generate(&ask, (bt_str){"", 0}, &read_scratch), BT_OK);
    ck_assert(ask.input.kind == BT_INPUT_NONE && ask.n == 1 && ask.max_tokens == UINT32_MAX && !ask.seed_given);
    ck_assert_mem_eq(&ask.sampling, &fallback.sampling, sizeof ask.sampling);
}
END_TEST

START_TEST(an_unknown_method_and_an_unknown_code_are_known_as_such)
{
    bt_str from = bytes_of("08011063");
    bt_gateway_request request;
    bt_gateway_reply reply;

    ck_assert_int_eq(bt_gateway_read_request(&request, from.data, from.len, &read_scratch), BT_OK);
    ck_assert_int_eq(request.method, BT_GATEWAY_METHODS);
    from = bytes_of("08011a020863");
    ck_assert_int_eq(bt_gateway_read_reply(&reply, from.data, from.len, &read_scratch), BT_OK);
    ck_assert_int_eq(reply.status.code, BT_CODE_UNKNOWN);
}
END_TEST

START_TEST(what_may_not_be_is_refused)
{
    bt_gateway_generated generated;
    bt_gateway_request request;
    bt_gateway_generate ask;

    ck_assert_int_eq(bt_gateway_read_request(&request, "", 0, &read_scratch), BT_ERR_INVALID); // no id
    ck_assert_int_eq(bt_gateway_read_request(&request, "\x08\x01\xff", 3, &read_scratch), BT_ERR_INVALID);
    // a bias without a value; more log-probabilities than ids; alternatives that do not add up
    ck_assert_int_eq(bt_gateway_read_generate(&ask, bytes_of("9a010107"), &read_scratch), BT_ERR_INVALID);
    ck_assert_int_eq(bt_gateway_read_generated(&generated, bytes_of("0a081a061204000080c0"), &read_scratch),
                     BT_ERR_INVALID);
    ck_assert_int_eq(bt_gateway_read_generated(&generated, bytes_of("0a081a060a01051a0102"), &read_scratch),
                     BT_ERR_INVALID);
}
END_TEST

START_TEST(counts_beyond_the_limits_are_refused)
{
    static uint8_t stops[(BT_GATEWAY_STOPS_MAX + 1) * 4];
    bt_gateway_generate ask;

    for (size_t i = 0; i < sizeof stops; i += 4)
        memcpy(stops + i, "\xaa\x01\x01x", 4);
    ck_assert_int_eq(bt_gateway_read_generate(&ask, (bt_str){(char *)stops, sizeof stops - 4}, &read_scratch), BT_OK);
    ck_assert_uint_eq(ask.stop_count, BT_GATEWAY_STOPS_MAX);
    ck_assert_int_eq(bt_gateway_read_generate(&ask, (bt_str){(char *)stops, sizeof stops}, &read_scratch),
                     BT_ERR_INVALID);
    ask.stop_count = BT_GATEWAY_STOPS_MAX + 1;
    ck_assert_int_eq(bt_gateway_pack_generate(&(bt_str){0}, &ask, &write_scratch), BT_ERR_INVALID);
}
END_TEST

// The scratch shrinks, so that each allocation in turn is the one that fails; nothing is allocated elsewhere.
START_TEST(too_small_a_scratch_is_an_error_at_every_size)
{
    bt_str from = bytes_of(golden_request);
    bt_gateway_request request;
    bt_gateway_generate ask;
    size_t needed;

    bt_mem_fail_nth(1);
    ck_assert_int_eq(bt_gateway_read_request(&request, from.data, from.len, &read_scratch), BT_OK);
    ck_assert_int_eq(bt_gateway_read_generate(&ask, request.body, &read_scratch), BT_OK);
    bt_mem_fail_nth(0);
    needed = read_scratch.used;
    for (size_t bytes = 0; bytes < needed; bytes += 16) {
        bt_err err;

        bt_wire_scratch_init(&read_scratch, memory[1], bytes);
        err = bt_gateway_read_request(&request, from.data, from.len, &read_scratch);
        if (err == BT_OK)
            err = bt_gateway_read_generate(&ask, request.body, &read_scratch);
        ck_assert_int_eq(err, BT_ERR_TOO_LONG);
    }
}
END_TEST

START_TEST(cut_and_bent_messages_never_break_anything)
{
    bt_rng rng = {_i};

    for (int i = 0; i < 3000; i++) {
        bt_str from = bytes_of(i % 2 ? golden_request : golden_reply);
        size_t length = bt_rng_below(&rng, 4) != 0 ? from.len : bt_rng_below(&rng, from.len);
        bt_gateway_generated generated;
        bt_gateway_request request;
        bt_gateway_generate ask;
        bt_gateway_reply reply;

        frame[bt_rng_below(&rng, from.len)] ^= (uint8_t)(1u << bt_rng_below(&rng, 8));
        bt_wire_scratch_reset(&read_scratch);
        if (i % 2 && bt_gateway_read_request(&request, frame, length, &read_scratch) == BT_OK &&
            bt_gateway_read_generate(&ask, request.body, &read_scratch) == BT_OK)
            ck_assert(ask.stop_count <= BT_GATEWAY_STOPS_MAX && ask.sampling.bias_count <= BT_LOGIT_BIAS_MAX);
        if (i % 2 == 0 && bt_gateway_read_reply(&reply, frame, length, &read_scratch) == BT_OK &&
            bt_gateway_read_generated(&generated, reply.body, &read_scratch) == BT_OK)
            ck_assert_uint_le(generated.choice_count, BT_GATEWAY_CHOICES_MAX);
    }
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("gateway_wire");
    TCase *tcase = tcase_create("gateway_wire");

    tcase_add_checked_fixture(tcase, set_up, NULL);
    tcase_add_test(tcase, a_request_of_another_implementation_says_what_it_said);
    tcase_add_test(tcase, what_is_read_is_written_as_the_same_bytes);
    tcase_add_test(tcase, a_reply_is_read_and_written_as_another_implementation_does);
    tcase_add_test(tcase, a_degraded_answer_says_so);
    tcase_add_test(tcase, small_bodies_come_back_as_they_were);
    tcase_add_test(tcase, what_is_not_given_is_what_the_wire_means_by_it);
    tcase_add_test(tcase, an_unknown_method_and_an_unknown_code_are_known_as_such);
    tcase_add_test(tcase, what_may_not_be_is_refused);
    tcase_add_test(tcase, counts_beyond_the_limits_are_refused);
    tcase_add_test(tcase, too_small_a_scratch_is_an_error_at_every_size);
    tcase_add_loop_test(tcase, cut_and_bent_messages_never_break_anything, 0, 8);
    suite_add_tcase(suite, tcase);
    return bt_test_run(suite);
}
