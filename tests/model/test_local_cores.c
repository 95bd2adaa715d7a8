// Router core and decode core against clients that know what they should hear (local_world.h). BT_SEED=n runs one seed, BT_SEEDS=n
// so many from each test's first.
#include "tests/model/local_world.h"
#include "tests/support/test.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static world w;

typedef struct {
    uint64_t accepted, refused, stopped, full, cancelled, failed, moves, tokens, cached, events;
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
    sum->moves += w.moves;
    sum->tokens += w.tokens;
    sum->cached += w.cached;
    sum->events += w.events;
}

static totals
run_seeds(uint64_t first, uint32_t count, bool faults)
{
    const char *one = getenv("BT_SEED"), *more = getenv("BT_SEEDS");
    totals sum = {0};

    count = more != NULL ? (uint32_t)strtoul(more, NULL, 0) : count;

    for (uint32_t i = 0; i < (one != NULL ? 1 : count); i++) {
        uint64_t seed = one != NULL ? strtoull(one, NULL, 0) : first + i;

        if (setvbuf(stdout, NULL, _IONBF, 0) == 0)
            printf("%s%" PRIu64, i == 0 ? "seeds " : " ", seed); // the last one printed is the one that failed
        world_open(&w, seed, faults);
        world_run(&w, 100);
        world_close(&w);
        add(&sum);
    }
    printf("\n%" PRIu64 " requests: %" PRIu64 " stopped, %" PRIu64 " full, %" PRIu64 " cancelled, %" PRIu64
           " failed, %" PRIu64 " refused; %" PRIu64 " moves, %" PRIu64 " tokens, %" PRIu64 " cached, %" PRIu64
           " turns\n",
           sum.accepted, sum.stopped, sum.full, sum.cancelled, sum.failed, sum.refused, sum.moves, sum.tokens,
           sum.cached, sum.events);
    return sum;
}

START_TEST(every_request_ends_once_with_the_tokens_it_should_have)
{
    totals sum = run_seeds(1, 150, false);

    ck_assert(getenv("BT_SEED") != NULL || (sum.stopped > 100 && sum.full > 100 && sum.cancelled > 100 &&
                                            sum.refused > 100 && sum.cached > 1000 && sum.moves == 0));
}
END_TEST

START_TEST(cut_links_lost_messages_and_failed_steps_change_no_token)
{
    totals sum = run_seeds(100001, 150, true);

    ck_assert(getenv("BT_SEED") != NULL || (sum.stopped > 100 && sum.full > 100 && sum.moves > 100));
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("local cores");
    TCase *all = tcase_create("all");

    tcase_set_timeout(all, 300);
    tcase_add_test(all, every_request_ends_once_with_the_tokens_it_should_have);
    tcase_add_test(all, cut_links_lost_messages_and_failed_steps_change_no_token);
    suite_add_tcase(suite, all);
    return bt_test_run(suite);
}
