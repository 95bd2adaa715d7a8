// baton sim: traces as others write them, costs, and clusters that answer a small trace of our own (tests/data/sim).
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/json/json.h"
#include "tests/support/test.h"
#include "tools/sim/report.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define SESSIONS "tests/data/sim/sessions.jsonl"

static sim_trace trace;
static sim_profile profile;
static sim_result result;
static bt_why why;

static void
read_sessions(void)
{
    ck_assert_msg(sim_trace_read(&trace, SESSIONS, 0, &why) == BT_OK, "%s", why.text);
    ck_assert(sim_profile_find(&profile, "h200-8b", &why) == BT_OK);
}

static sim_setup
setup_of(uint32_t prefills, uint32_t decodes)
{
    return (sim_setup){.trace = &trace,
                       .profile = &profile,
                       .prefills = prefills,
                       .decodes = decodes,
                       .unit = 1,
                       .requests_max = 512,
                       .rate = 1,
                       .link = 50 * BT_MICROSECOND,
                       .seed = 1};
}

static void
run(const sim_setup *setup)
{
    bt_err err = sim_run(setup, &result, &why);

    ck_assert_msg(err == BT_OK, "%s: %s", bt_err_name(err), why.text);
}

static void
done(void)
{
    sim_result_free(&result);
    sim_trace_free(&trace);
}

static uint32_t
count_ends(sim_end end)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < result.count; i++)
        count += result.outcomes[i].end == end;
    return count;
}

static void
expect_no_trace(const char *text, const char *words)
{
    ck_assert(sim_trace_parse(&trace, text, "x", 0, &why) != BT_OK);
    ck_assert_msg(strstr(why.text, words) != NULL, "'%s' does not say '%s'", why.text, words);
}

// --- traces ------------------------------------------------------------------------------------------------------------------

START_TEST(an_azure_trace_is_read_from_its_first_request_on)
{
    ck_assert(sim_trace_parse(&trace,
                              "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:17:03.9799600,4808,10\r\n"
                              "2023-11-16 18:17:04.0319600,3180,0\r\n2023-11-17 00:00:00.0000000,7,8\r\n",
                              "azure", 0, &why) == BT_OK);
    ck_assert_uint_eq(trace.count, 3);
    ck_assert_int_eq(trace.rows[0].at, 0);
    ck_assert_int_eq(trace.rows[1].at, 52 * BT_MILLISECOND);
    ck_assert_int_eq(trace.rows[2].at, 5 * 3600 * BT_SECOND + 2576020040 * BT_MICROSECOND); // past midnight
    ck_assert_uint_eq(trace.rows[0].prompt, 4808);
    ck_assert_uint_eq(trace.rows[1].answer, 1); // none generated: one, so that there is an end
    ck_assert_uint_eq(sim_trace_longest(&trace), 4818);
    sim_trace_free(&trace);
}
END_TEST

START_TEST(a_vidur_trace_is_put_in_order_of_time)
{
    ck_assert(sim_trace_parse(&trace, "arrived_at,num_prefill_tokens,num_decode_tokens\n2.5,10,1\n0.5,20,2\n", "vidur",
                              0, &why) == BT_OK);
    ck_assert_uint_eq(trace.rows[0].prompt, 20);
    ck_assert_int_eq(trace.rows[1].at, 2 * BT_SECOND);
    sim_trace_free(&trace);
}
END_TEST

START_TEST(no_more_rows_are_kept_than_asked_for)
{
    ck_assert(sim_trace_read(&trace, SESSIONS, 17, &why) == BT_OK);
    ck_assert_uint_eq(trace.count, 17);
    sim_trace_free(&trace);
}
END_TEST

START_TEST(what_is_no_trace_is_refused_with_its_line)
{
    expect_no_trace("hello\n", "no trace");
    expect_no_trace("", "no trace");
    expect_no_trace("TIMESTAMP,ContextTokens,GeneratedTokens\n", "no request");
    expect_no_trace("TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,2\n", "x:2: expected a time");
    expect_no_trace("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9,0,2\n", "x:2: expected prompt");
    expect_no_trace("arrived_at,num_prefill_tokens,num_decode_tokens\n1,2,3\n1,2,x\n", "x:3: expected answer");
    expect_no_trace("{\"timestamp\":0,\"input_length\":513,\"output_length\":1,\"hash_ids\":[1]}\n",
                    "x:1: hash_ids: 1 ids for 513 tokens");
    expect_no_trace("{\"timestamp\":0,\"output_length\":1}\n", "x:1: input_length");
    expect_no_trace("{\"timestamp\":\n", "x:1: ");
    ck_assert(sim_trace_read(&trace, "tests/data/sim/none.jsonl.gz", 0, &why) == BT_ERR_IO);
}
END_TEST

START_TEST(prompts_begin_alike_as_far_as_their_hash_ids_do)
{
    ck_assert(sim_trace_parse(&trace,
                              "{\"timestamp\":0,\"input_length\":1100,\"output_length\":1,\"hash_ids\":[7,8,9]}\n"
                              "{\"timestamp\":1,\"input_length\":1100,\"output_length\":1,\"hash_ids\":[7,8,10]}\n"
                              "{\"timestamp\":2,\"input_length\":1100,\"output_length\":1}\n",
                              "three", 0, &why) == BT_OK);
    for (uint32_t i = 0; i < 1100; i++) {
        ck_assert((sim_trace_id(&trace, 0, i) == sim_trace_id(&trace, 1, i)) == (i < 1024));
        ck_assert(sim_trace_id(&trace, 0, i) != sim_trace_id(&trace, 2, i));
        ck_assert(sim_trace_id(&trace, 2, i) >= 0);
    }
    sim_trace_free(&trace);
}
END_TEST

START_TEST(a_cache_drops_the_longest_unused_first)
{
    double share;

    // 1 2 | 3 | 1 2 | 4 | 1 2 | 3: a cache of four has the 3 no more when it comes again, one of five has.
    ck_assert(sim_trace_parse(&trace,
                              "{\"timestamp\":0,\"input_length\":1024,\"output_length\":1,\"hash_ids\":[1,2]}\n"
                              "{\"timestamp\":1,\"input_length\":512,\"output_length\":1,\"hash_ids\":[3]}\n"
                              "{\"timestamp\":2,\"input_length\":1024,\"output_length\":1,\"hash_ids\":[1,2]}\n"
                              "{\"timestamp\":3,\"input_length\":1024,\"output_length\":1,\"hash_ids\":[4,5]}\n"
                              "{\"timestamp\":4,\"input_length\":512,\"output_length\":1,\"hash_ids\":[3]}\n",
                              "lru", 0, &why) == BT_OK);
    ck_assert(sim_trace_reuse(&trace, 0, &share) == BT_OK);
    ck_assert_double_eq_tol(share, 1536.0 / 4096, 1e-9);
    ck_assert(sim_trace_reuse(&trace, 5 * 512, &share) == BT_OK);
    ck_assert_double_eq_tol(share, 1536.0 / 4096, 1e-9);
    ck_assert(sim_trace_reuse(&trace, 4 * 512, &share) == BT_OK);
    ck_assert_double_eq_tol(share, 1024.0 / 4096, 1e-9);
    ck_assert(sim_trace_reuse(&trace, 512, &share) == BT_OK);
    ck_assert_double_eq_tol(share, 0, 1e-9);
    sim_trace_free(&trace);
}
END_TEST

// data/README.md counts blocks, so the prompts are filled up to whole ones.
START_TEST(reuse_of_the_conversation_trace_is_what_its_readme_counts)
{
    double share;

    if (bt_test_data() == NULL) {
        bt_test_skip("no outside data: the conversation trace");
        return;
    }
    ck_assert_msg(sim_trace_read(&trace, bt_test_path("traces/mooncake/conversation_trace.jsonl.gz"), 0, &why) == BT_OK,
                  "%s", why.text);
    ck_assert_uint_eq(trace.count, 12031);
    ck_assert_uint_eq(trace.hash_count, 288500);
    for (uint32_t i = 0; i < trace.count; i++)
        trace.rows[i].prompt = (trace.rows[i].prompt + 511) / 512 * 512;
    ck_assert(sim_trace_reuse(&trace, 0, &share) == BT_OK);
    ck_assert_double_eq_tol(share, 105710.0 / 288500, 1e-9);
    sim_trace_free(&trace);
}
END_TEST

// --- costs -------------------------------------------------------------------------------------------------------------------

static const sim_cost known = {.weights_us = 2000, .prompt_us = 470, .pair_ns = 126, .answer_us = 760, .read_ns = 600};

static double
tg_rate(double batch, double depth)
{
    return batch * 1e6 / (known.weights_us + batch * known.answer_us + batch * (depth + 64) * known.read_ns / 1e3);
}

static double
pp_rate(double depth)
{
    return 512 * 1e6 / (512 * known.prompt_us + 512 * (depth + 256) * known.pair_ns / 1e3);
}

START_TEST(an_engines_bench_lines_give_its_costs)
{
    char lines[2048] = "";
    sim_cost fit;

    for (int i = 0; i < 4; i++) {
        int batch = i % 2 == 0 ? 1 : 8, depth = i < 2 ? 0 : 4096;

        snprintf(lines + strlen(lines), sizeof lines - strlen(lines),
                 "{\"test\":\"pp\",\"batch\":1,\"depth\":%d,\"tokens_per_s\":%.6f}\n"
                 "{\"test\":\"tg\",\"batch\":%d,\"depth\":%d,\"threads\":2,\"tokens_per_s\":%.6f}\n",
                 depth, pp_rate(depth), batch, depth, tg_rate(batch, depth));
    }
    ck_assert_msg(sim_profile_fit(&fit, lines, &why) == BT_OK, "%s", why.text);
    ck_assert_double_eq_tol(fit.weights_us, known.weights_us, 1);
    ck_assert_double_eq_tol(fit.prompt_us, known.prompt_us, 0.1);
    ck_assert_double_eq_tol(fit.pair_ns, known.pair_ns, 0.1);
    ck_assert_double_eq_tol(fit.answer_us, known.answer_us, 0.1);
    ck_assert_double_eq_tol(fit.read_ns, known.read_ns, 0.1);
}
END_TEST

START_TEST(what_the_points_do_not_tell_is_no_cost)
{
    sim_cost fit;

    // One depth: nothing tells pairs from tokens. A larger batch that is no slower: an answer's own cost is not below zero.
    ck_assert(sim_profile_fit(&fit,
                              "{\"test\":\"pp\",\"batch\":1,\"depth\":0,\"tokens\":100,\"tokens_per_s\":1000}\n"
                              "{\"test\":\"tg\",\"batch\":1,\"depth\":0,\"tokens\":2,\"tokens_per_s\":100}\n"
                              "{\"test\":\"tg\",\"batch\":8,\"depth\":0,\"tokens\":2,\"tokens_per_s\":810}\n",
                              &why) == BT_OK);
    ck_assert(fit.pair_ns >= 0 && fit.prompt_us >= 0 && fit.answer_us >= 0 && fit.read_ns >= 0 && fit.weights_us > 0);
    ck_assert_double_eq_tol(100 * fit.prompt_us + 100 * 50 * fit.pair_ns / 1e3, 100000, 1);
    ck_assert(sim_profile_fit(&fit, "nothing\n", &why) == BT_ERR_INVALID);
    ck_assert(sim_profile_fit(&fit, "{\"test\":\"xx\",\"batch\":1,\"depth\":0,\"tokens_per_s\":1}\n", &why) ==
              BT_ERR_INVALID);
    ck_assert(sim_profile_find(&profile, "no-such", &why) == BT_ERR_NOT_FOUND);
    ck_assert(strstr(why.text, "h200-8b") != NULL);
}
END_TEST

START_TEST(a_token_that_stands_for_several_costs_as_much_as_they)
{
    const bt_batch_item one = {.count = 1, .position = 1600, .prompt_count = 1000};
    const bt_batch_item sixteenth = {.count = 1, .position = 100, .prompt_count = 62};
    const bt_batch_item chunk = {.count = 512, .position = 1024, .prompt_count = 4096};
    const bt_batch_item short_chunk = {.count = 32, .position = 64, .prompt_count = 256};
    bt_time fine, coarse;

    fine = 16 * sim_cost_step(&known, &one, 1, 1);
    coarse = sim_cost_step(&known, &sixteenth, 1, 16);
    ck_assert_int_lt(coarse < fine ? fine - coarse : coarse - fine, fine / 50);
    fine = sim_cost_step(&known, &chunk, 1, 1);
    coarse = sim_cost_step(&known, &short_chunk, 1, 16);
    ck_assert_int_lt(coarse < fine ? fine - coarse : coarse - fine, fine / 50);
}
END_TEST

// --- clusters ----------------------------------------------------------------------------------------------------------------

START_TEST(every_request_ends_with_all_its_tokens)
{
    sim_setup setup;

    read_sessions();
    setup = setup_of(2, 2);
    run(&setup);
    ck_assert_uint_eq(count_ends(SIM_DONE), trace.count);
    for (uint32_t i = 0; i < trace.count; i++) {
        const sim_outcome *outcome = &result.outcomes[i];

        ck_assert_uint_eq(outcome->tokens, trace.rows[i].answer);
        ck_assert(outcome->arrived < outcome->first && outcome->first <= outcome->last);
        ck_assert(outcome->last <= result.ends);
    }
    ck_assert(result.remote > 0 && result.moved == 0 && result.fetched_bytes > 0);
    ck_assert(result.computed_tokens < result.prompt_tokens); // conversations go on
    done();
}
END_TEST

START_TEST(decode_nodes_alone_read_every_prompt_themselves)
{
    sim_setup setup;

    read_sessions();
    setup = setup_of(0, 4);
    run(&setup);
    ck_assert_uint_eq(count_ends(SIM_DONE), trace.count);
    ck_assert(result.remote == 0 && result.fetched_bytes == 0);
    done();
}
END_TEST

START_TEST(with_two_weights_every_prompt_is_read_at_a_prefill_node)
{
    sim_setup setup;

    read_sessions();
    setup = setup_of(2, 2);
    setup.two_weights = true;
    run(&setup);
    ck_assert_uint_eq(count_ends(SIM_DONE), trace.count);
    ck_assert_uint_eq(result.remote, trace.count);
    done();
}
END_TEST

START_TEST(no_more_is_reused_than_a_cache_without_end_would)
{
    double endless, hits;
    sim_setup setup;

    read_sessions();
    setup = setup_of(0, 1); // one node sees everything
    run(&setup);
    ck_assert(sim_trace_reuse(&trace, 0, &endless) == BT_OK);
    hits = 1 - (double)result.computed_tokens / (double)result.prompt_tokens;
    // It finds smaller blocks than the trace's 512 tokens, and leaves a prompt's last token to compute.
    ck_assert_double_gt(hits, endless - 0.05);
    ck_assert_double_lt(hits, endless + 0.05);
    for (uint32_t i = 0; i < trace.count; i++)
        trace.rows[i].hash = SIM_HASH_NONE;
    sim_result_free(&result);
    run(&setup);
    ck_assert_uint_eq(result.computed_tokens, result.prompt_tokens);
    done();
}
END_TEST

START_TEST(killed_nodes_cost_time_and_no_request)
{
    sim_setup setup;

    read_sessions();
    setup = setup_of(2, 3);
    setup.rate = 0.1;
    setup.kills_per_hour = 200;
    run(&setup);
    // All decode nodes may be away when one comes: that is a 503.
    ck_assert_uint_eq(count_ends(SIM_DONE) + count_ends(SIM_REFUSED), trace.count);
    ck_assert(count_ends(SIM_REFUSED) < 24 && result.kills >= 5 && result.moved > 0);
    done();
}
END_TEST

START_TEST(what_no_node_can_hold_is_refused)
{
    sim_setup setup;

    read_sessions();
    setup = setup_of(1, 1);
    setup.kv_tokens = 4096;
    run(&setup);
    ck_assert(count_ends(SIM_REFUSED) > 0);
    ck_assert_uint_eq(count_ends(SIM_REFUSED) + count_ends(SIM_DONE), trace.count);
    done();
}
END_TEST

START_TEST(a_coarse_token_gives_about_the_same_times)
{
    bt_time fine = 0, coarse = 0;
    sim_setup setup;

    read_sessions();
    setup = setup_of(2, 2);
    run(&setup);
    for (uint32_t i = 0; i < trace.count; i++)
        fine += result.outcomes[i].first - result.outcomes[i].arrived;
    sim_result_free(&result);
    setup.unit = 16;
    run(&setup);
    ck_assert_uint_eq(count_ends(SIM_DONE), trace.count);
    for (uint32_t i = 0; i < trace.count; i++)
        coarse += result.outcomes[i].first - result.outcomes[i].arrived;
    ck_assert_int_lt(coarse < fine ? fine - coarse : coarse - fine, fine / 4);
    done();
}
END_TEST

static bt_time
sum_of_first_tokens(bt_place_policy place, double *hits)
{
    sim_setup setup = setup_of(3, 2);
    bt_time sum = 0;

    setup.rate = 4;
    setup.place = place;
    run(&setup);
    ck_assert_uint_eq(count_ends(SIM_DONE), trace.count);
    for (uint32_t i = 0; i < trace.count; i++)
        sum += result.outcomes[i].first - result.outcomes[i].arrived;
    *hits = 1 - (double)result.computed_tokens / (double)result.prompt_tokens;
    sim_result_free(&result);
    return sum;
}

START_TEST(our_placement_finds_more_again_and_answers_sooner_than_the_others)
{
    double hits[3];
    bt_time ours, least_load, random;

    read_sessions();
    ours = sum_of_first_tokens(BT_PLACE_OURS, &hits[0]);
    least_load = sum_of_first_tokens(BT_PLACE_LEAST_LOAD, &hits[1]);
    random = sum_of_first_tokens(BT_PLACE_RANDOM, &hits[2]);
    ck_assert_int_lt(ours, least_load);
    ck_assert_int_lt(least_load, random);
    ck_assert(hits[0] > hits[1] && hits[0] > hits[2]);
    done();
}
END_TEST

// --- two GPUs: one reads and one writes, or both do both -----------------------------------------------------------------------

// Prompts that have nothing in common, by a Poisson process.
static void
make_prompts(uint32_t count, uint32_t prompt, uint32_t answer, double per_s)
{
    static char text[1 << 15];
    size_t used = (size_t)snprintf(text, sizeof text, "arrived_at,num_prefill_tokens,num_decode_tokens\n");
    bt_rng rng = {1};
    double at = 0;

    for (uint32_t i = 0; i < count; i++) {
        used += (size_t)snprintf(text + used, sizeof text - used, "%.6f,%u,%u\n", at, prompt, answer);
        ck_assert_uint_lt(used, sizeof text);
        at -= log(1 - (double)bt_rng_float(&rng)) / per_s;
    }
    ck_assert_msg(sim_trace_parse(&trace, text, "poisson", 0, &why) == BT_OK, "%s", why.text);
}

typedef enum { READS_THERE, AS_IT_PAYS, BOTH_DO_BOTH } arrangement;

static void
run_pair(arrangement how, const char *profile_name, bool two_weights, sim_summary *out)
{
    sim_setup setup = setup_of(how == BOTH_DO_BOTH ? 0 : 1, how == BOTH_DO_BOTH ? 2 : 1);
    sim_report report = {.setup = &setup, .slo_ttft_ms = 1000, .slo_tpot_ms = 25};

    ck_assert(sim_profile_find(&profile, profile_name, &why) == BT_OK);
    setup.two_weights = two_weights && how != BOTH_DO_BOTH;
    setup.inexact = how == AS_IT_PAYS;
    run(&setup);
    ck_assert_uint_eq(count_ends(SIM_DONE), trace.count);
    ck_assert(sim_summarize(&report, &setup, &result, out) == BT_OK);
    sim_result_free(&result);
}

static sim_summary there, pays, both;

START_TEST(where_waiting_for_the_prefill_node_costs_more_than_a_neighbours_pause_the_decode_node_reads)
{
    for (uint32_t i = 0; i < 3; i++) {
        make_prompts(200, 8000, 200, (double[]){1, 2, 3.6}[i]);
        run_pair(AS_IT_PAYS, "h200-8b-w8", false, &pays);
        run_pair(BOTH_DO_BOTH, "h200-8b-w8", false, &both);
        ck_assert_double_lt(pays.ttft_ms.mean, 1.02 * both.ttft_ms.mean);
        ck_assert_double_lt(pays.ttft_ms.p99, 1.1 * both.ttft_ms.p99);
        ck_assert_double_lt(pays.tpot_ms.mean, 1.15 * both.tpot_ms.mean);
        sim_trace_free(&trace);
    }
}
END_TEST

START_TEST(at_saturation_the_decode_node_reads_what_the_prefill_node_has_no_time_for)
{
    make_prompts(200, 8000, 200, 100);
    run_pair(READS_THERE, "h200-8b-now", true, &there);
    run_pair(AS_IT_PAYS, "h200-8b-now", true, &pays);
    ck_assert_double_gt(pays.answer_tokens_s, 1.1 * there.answer_tokens_s);
    run_pair(AS_IT_PAYS, "h200-8b-w8", false, &pays);
    run_pair(BOTH_DO_BOTH, "h200-8b-w8", false, &both);
    ck_assert_double_gt(pays.answer_tokens_s, 0.94 * both.answer_tokens_s);
    sim_trace_free(&trace);
}
END_TEST

// Four of them are read in one step, which once made the prefill node look four times as slow as it is.
START_TEST(a_prefill_node_that_packs_short_prompts_is_not_passed_over)
{
    make_prompts(400, 2000, 200, 40);
    run_pair(READS_THERE, "h200-8b-now", true, &there);
    run_pair(AS_IT_PAYS, "h200-8b-now", true, &pays);
    ck_assert_double_gt(pays.answer_tokens_s, 0.98 * there.answer_tokens_s);
    ck_assert_double_lt(pays.ttft_ms.mean, there.ttft_ms.mean);
    sim_trace_free(&trace);
}
END_TEST

// q4 reads at less than half of w8's rate: while the prefill node is free it is never asked to.
START_TEST(slow_weights_read_only_under_load)
{
    make_prompts(200, 8000, 200, 1);
    run_pair(AS_IT_PAYS, "h200-8b-now", true, &pays);
    ck_assert_double_gt(pays.remote_share, 0.99);
    sim_trace_free(&trace);
    make_prompts(200, 8000, 200, 8);
    run_pair(READS_THERE, "h200-8b-now", true, &there);
    run_pair(AS_IT_PAYS, "h200-8b-now", true, &pays);
    ck_assert_double_gt(pays.good_share, 2 * there.good_share);
    sim_trace_free(&trace);
}
END_TEST

START_TEST(a_setup_that_makes_no_sense_is_refused)
{
    sim_setup setup;

    read_sessions();
    setup = setup_of(1, 0);
    ck_assert(sim_run(&setup, &result, &why) == BT_ERR_INVALID);
    setup = setup_of(1, 1);
    setup.unit = 3;
    ck_assert(sim_run(&setup, &result, &why) == BT_ERR_INVALID);
    setup = setup_of(1, 1);
    setup.rate = 0;
    ck_assert(sim_run(&setup, &result, &why) == BT_ERR_INVALID);
    done();
}
END_TEST

// --- reports -----------------------------------------------------------------------------------------------------------------

static sim_summary runs[2];

static void
report_of(const sim_setup *setup, sim_report *report)
{
    *report = (sim_report){.setup = setup,
                           .trace_name = "<sessions>",
                           .slo_ttft_ms = 500,
                           .slo_tpot_ms = 50,
                           .runs = runs,
                           .run_count = 1};
    run(setup);
    ck_assert(sim_summarize(report, setup, &result, &runs[0]) == BT_OK);
    sim_result_free(&result);
}

START_TEST(the_same_seed_gives_the_same_bytes)
{
    sim_report report;
    sim_setup setup;
    bt_buf json[2], page[2];

    read_sessions();
    setup = setup_of(2, 2);
    setup.kills_per_hour = 300;
    for (int i = 0; i < 2; i++) {
        report_of(&setup, &report);
        bt_buf_init(&json[i], 1 << 20);
        bt_buf_init(&page[i], 1 << 20);
        sim_report_json(&report, &json[i]);
        sim_report_html(&report, &page[i]);
    }
    ck_assert_str_eq(json[0].data, json[1].data);
    ck_assert_str_eq(page[0].data, page[1].data);
    for (int i = 0; i < 2; i++) {
        bt_buf_fini(&json[i]);
        bt_buf_fini(&page[i]);
    }
    done();
}
END_TEST

START_TEST(a_report_is_json_and_a_page_of_its_own)
{
    bt_json_at root, list, item, value;
    bt_json *document;
    sim_report report;
    sim_setup setup;
    int64_t count;
    bt_buf out;

    read_sessions();
    setup = setup_of(2, 2);
    report_of(&setup, &report);
    ck_assert(runs[0].ttft_ms.p50 > 0 && runs[0].ttft_ms.p50 <= runs[0].ttft_ms.p90);
    ck_assert(runs[0].good <= runs[0].done && runs[0].good_share > 0);
    bt_buf_init(&out, 1 << 20);
    sim_report_json(&report, &out);
    ck_assert(bt_json_parse(&document, (bt_str){out.data, out.len}, NULL, &why) == BT_OK);
    root = bt_json_root(document);
    list = bt_json_get(&root, "runs");
    item = bt_json_item(&list, 0);
    value = bt_json_get(&item, "done");
    ck_assert(bt_json_as_int(&value, 0, 1000, &count, &why) == BT_OK);
    ck_assert_int_eq(count, trace.count);
    bt_json_close(document);
    bt_buf_clear(&out);
    sim_report_html(&report, &out);
    ck_assert(!out.failed && strstr(out.data, "<svg") != NULL && strstr(out.data, "&#60;sessions&#62;") != NULL);
    ck_assert(strstr(out.data, "<script") == NULL && strstr(out.data, "http") == NULL);
    bt_buf_fini(&out);
    done();
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("sim");
    TCase *all = tcase_create("all");

    tcase_set_timeout(all, 120);
    tcase_add_test(all, an_azure_trace_is_read_from_its_first_request_on);
    tcase_add_test(all, a_vidur_trace_is_put_in_order_of_time);
    tcase_add_test(all, no_more_rows_are_kept_than_asked_for);
    tcase_add_test(all, what_is_no_trace_is_refused_with_its_line);
    tcase_add_test(all, prompts_begin_alike_as_far_as_their_hash_ids_do);
    tcase_add_test(all, a_cache_drops_the_longest_unused_first);
    tcase_add_test(all, reuse_of_the_conversation_trace_is_what_its_readme_counts);
    tcase_add_test(all, an_engines_bench_lines_give_its_costs);
    tcase_add_test(all, what_the_points_do_not_tell_is_no_cost);
    tcase_add_test(all, a_token_that_stands_for_several_costs_as_much_as_they);
    tcase_add_test(all, every_request_ends_with_all_its_tokens);
    tcase_add_test(all, decode_nodes_alone_read_every_prompt_themselves);
    tcase_add_test(all, with_two_weights_every_prompt_is_read_at_a_prefill_node);
    tcase_add_test(all, no_more_is_reused_than_a_cache_without_end_would);
    tcase_add_test(all, killed_nodes_cost_time_and_no_request);
    tcase_add_test(all, what_no_node_can_hold_is_refused);
    tcase_add_test(all, a_coarse_token_gives_about_the_same_times);
    tcase_add_test(all, our_placement_finds_more_again_and_answers_sooner_than_the_others);
    tcase_add_test(all, where_waiting_for_the_prefill_node_costs_more_than_a_neighbours_pause_the_decode_node_reads);
    tcase_add_test(all, at_saturation_the_decode_node_reads_what_the_prefill_node_has_no_time_for);
    tcase_add_test(all, a_prefill_node_that_packs_short_prompts_is_not_passed_over);
    tcase_add_test(all, slow_weights_read_only_under_load);
    tcase_add_test(all, a_setup_that_makes_no_sense_is_refused);
    tcase_add_test(all, the_same_seed_gives_the_same_bytes);
    tcase_add_test(all, a_report_is_json_and_a_page_of_its_own);
    suite_add_tcase(suite, all);
    return bt_test_run(suite);
}
