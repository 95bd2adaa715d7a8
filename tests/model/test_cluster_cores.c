// Router, prefill and decode cores as clusters against clients that know what they should hear (cluster_world.h). BT_SEED=n runs one
// seed, BT_SEEDS=n so many from each test's first.
#include "tests/model/cluster_world.h"
#include "tests/support/test.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static cluster w;

typedef struct {
    uint64_t accepted, refused, stopped, full, cancelled, failed, degraded, moves, tokens, remote, remote_failed,
        fetched, refetched, kills, stale, events;
} totals;

static void
add(totals *sum)
{
    sum->accepted += w.accepted;
    sum->refused += w.refused;
    sum->stopped += w.stopped;
    sum->full += w.full;
    sum->cancelled += w.cancelled;
    sum->failed += w.failed;
    sum->degraded += w.degraded;
    sum->moves += w.moves;
    sum->tokens += w.tokens;
    sum->remote += w.remote;
    sum->remote_failed += w.remote_failed;
    sum->fetched += w.fetched;
    sum->refetched += w.refetched;
    sum->kills += w.kills;
    sum->stale += w.stale;
    sum->events += w.events;
}

static totals
run_seeds(uint64_t first, uint32_t count, uint32_t prefills, uint32_t decodes, bool differs, bool faults)
{
    const char *one = getenv("BT_SEED"), *more = getenv("BT_SEEDS");
    totals sum = {0};

    count = more != NULL ? (uint32_t)strtoul(more, NULL, 0) : count;
    for (uint32_t i = 0; i < (one != NULL ? 1 : count); i++) {
        uint64_t seed = one != NULL ? strtoull(one, NULL, 0) : first + i;

        if (setvbuf(stdout, NULL, _IONBF, 0) == 0)
            printf("%s%" PRIu64, i == 0 ? "seeds " : " ", seed); // the last one printed is the one that failed
        cluster_open(&w, seed, prefills, decodes, differs, faults);
        cluster_run(&w, 60);
        cluster_close(&w);
        add(&sum);
    }
    printf("\n%uP%uD%s: %" PRIu64 " requests: %" PRIu64 " stopped, %" PRIu64 " full, %" PRIu64 " cancelled, %" PRIu64
           " failed, %" PRIu64 " refused, %" PRIu64 " degraded; %" PRIu64 " moves, %" PRIu64 " tokens, %" PRIu64
           " remote, %" PRIu64 " of them failed, %" PRIu64 " fetched, %" PRIu64 " refetches, %" PRIu64
           " stale, %" PRIu64 " kills, %" PRIu64 " turns\n",
           prefills, decodes, differs ? " (two weights)" : "", sum.accepted, sum.stopped, sum.full, sum.cancelled,
           sum.failed, sum.refused, sum.degraded, sum.moves, sum.tokens, sum.remote, sum.remote_failed, sum.fetched,
           sum.refetched, sum.stale, sum.kills, sum.events);
    return sum;
}

static bool
counts(void)
{
    return getenv("BT_SEED") == NULL;
}

START_TEST(one_prefill_and_one_decode_node_answer_as_one_engine_would)
{
    totals sum = run_seeds(1, 40, 1, 1, false, false);

    ck_assert(!counts() || (sum.full > 100 && sum.remote > 100 && sum.fetched > 100 && sum.moves == 0));
}
END_TEST

START_TEST(several_nodes_of_each_kind_answer_as_one_engine_would)
{
    totals sum = run_seeds(1001, 40, 2, 2, false, false);

    ck_assert(!counts() || (sum.full > 100 && sum.fetched > 100 && sum.moves == 0));
}
END_TEST

START_TEST(decode_nodes_alone_are_a_cluster)
{
    totals sum = run_seeds(2001, 30, 0, 2, false, true);

    ck_assert(!counts() || (sum.full > 100 && sum.remote == 0 && sum.moves > 10));
}
END_TEST

START_TEST(faults_change_no_token_with_one_of_each)
{
    totals sum = run_seeds(10001, 200, 1, 1, false, true);

    ck_assert(!counts() || (sum.full > 100 && sum.moves > 50 && sum.fetched > 100 && sum.refetched > 10 &&
                            sum.remote_failed > 50 && sum.kills > 20 && sum.stale > 10));
}
END_TEST

START_TEST(faults_change_no_token_with_several_of_each)
{
    totals sum = run_seeds(20001, 80, 2, 2, false, true);

    ck_assert(!counts() || (sum.full > 100 && sum.moves > 50 && sum.fetched > 100));
}
END_TEST

START_TEST(with_two_weights_only_marked_answers_differ)
{
    totals sum = run_seeds(30001, 100, 2, 2, true, true);

    ck_assert(!counts() || (sum.full > 100 && sum.fetched > 100 && sum.degraded > 10 && sum.moves > 50));
}
END_TEST

START_TEST(a_seed_replays_to_the_same_decisions)
{
    uint64_t log;

    cluster_open(&w, 77, 2, 2, false, true);
    cluster_run(&w, 60);
    log = w.log;
    cluster_close(&w);
    cluster_open(&w, 77, 2, 2, false, true);
    cluster_run(&w, 60);
    ck_assert_uint_eq(w.log, log);
    cluster_close(&w);
}
END_TEST

START_TEST(a_planted_bug_is_found)
{
    for (uint64_t seed = 40001; seed < 40101; seed++) {
        bool found;

        cluster_open(&w, seed, 1, 1, false, true);
        w.planted = true;
        w.faults.fetch_flip = 8;
        cluster_run(&w, 60);
        found = w.found;
        cluster_close(&w);
        if (found) {
            printf("found by seed %" PRIu64 "\n", seed);
            return;
        }
    }
    ck_abort_msg("fetches that believe what they read went unnoticed");
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("cluster cores");
    TCase *all = tcase_create("all");

    tcase_set_timeout(all, 3000);
    tcase_add_test(all, one_prefill_and_one_decode_node_answer_as_one_engine_would);
    tcase_add_test(all, several_nodes_of_each_kind_answer_as_one_engine_would);
    tcase_add_test(all, decode_nodes_alone_are_a_cluster);
    tcase_add_test(all, faults_change_no_token_with_one_of_each);
    tcase_add_test(all, faults_change_no_token_with_several_of_each);
    tcase_add_test(all, with_two_weights_only_marked_answers_differ);
    tcase_add_test(all, a_seed_replays_to_the_same_decisions);
    tcase_add_test(all, a_planted_bug_is_found);
    suite_add_tcase(suite, all);
    return bt_test_run(suite);
}
