// Router, prefill and decode cores as clusters in virtual time (world.h), against clients that know what they should hear. BT_SEED=n
// runs one seed, BT_SEEDS=n so many from each test's first; build/release/tests/sim/cluster_sim runs as many as one likes.
#include "tests/sim/world.h"
#include "tests/support/test.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CLIENTS 60

static world w;

static void
run_seed(const world_options *options, uint32_t clients)
{
    world_open(&w, options);
    world_run(&w, clients);
    world_close(&w);
}

static world_totals
run_seeds(const world_options *like, uint64_t first, uint32_t count)
{
    const char *one = getenv("BT_SEED"), *more = getenv("BT_SEEDS");
    world_options options = *like;
    world_totals sum = {0};

    count = one != NULL ? 1 : more != NULL ? (uint32_t)strtoul(more, NULL, 0) : count;
    first = one != NULL ? strtoull(one, NULL, 0) : first;
    for (uint32_t i = 0; i < count; i++) {
        options.seed = first + i;
        run_seed(&options, CLIENTS);
        world_add(&sum, &w.totals);
    }
    printf("seeds %" PRIu64 " to %" PRIu64 ": ", first, first + count - 1);
    world_print(stdout, &sum);
    return sum;
}

static bool
counts(void)
{
    return getenv("BT_SEED") == NULL;
}

START_TEST(one_prefill_and_one_decode_node_answer_as_one_engine_would)
{
    world_totals sum = run_seeds(&(world_options){.prefills = 1, .decodes = 1}, 1, 40);

    ck_assert(!counts() || (sum.full > 100 && sum.remote > 100 && sum.fetched > 100 && sum.moves == 0));
}
END_TEST

START_TEST(several_nodes_of_each_kind_answer_as_one_engine_would)
{
    world_totals sum = run_seeds(&(world_options){.prefills = 2, .decodes = 2}, 1001, 40);

    ck_assert(!counts() || (sum.full > 100 && sum.fetched > 100 && sum.moves == 0));
}
END_TEST

START_TEST(several_routers_share_the_nodes)
{
    world_totals sum = run_seeds(&(world_options){.routers = 3, .prefills = 2, .decodes = 2}, 1501, 40);

    ck_assert(!counts() || (sum.full > 100 && sum.fetched > 100 && sum.moves == 0));
}
END_TEST

START_TEST(decode_nodes_alone_are_a_cluster)
{
    world_totals sum = run_seeds(&(world_options){.decodes = 2, .draws_faults = true}, 2001, 40);

    ck_assert(!counts() || (sum.full > 100 && sum.remote == 0 && sum.moves > 10));
}
END_TEST

START_TEST(faults_change_no_token_with_one_of_each)
{
    world_totals sum = run_seeds(&(world_options){.prefills = 1, .decodes = 1, .draws_faults = true}, 10001, 200);

    ck_assert(!counts() || (sum.full > 100 && sum.moves > 50 && sum.fetched > 100 && sum.refetched > 10 &&
                            sum.remote_failed > 20 && sum.stale > 0));
}
END_TEST

START_TEST(with_two_weights_only_marked_answers_differ)
{
    world_totals sum =
        run_seeds(&(world_options){.prefills = 2, .decodes = 2, .differs = true, .draws_faults = true}, 30001, 100);

    ck_assert(!counts() || (sum.full > 100 && sum.fetched > 100 && sum.degraded > 10 && sum.moves > 50));
}
END_TEST

static const world_options any = {.routers = 3, .prefills = 3, .decodes = 3, .draws_sizes = true, .draws_faults = true};

START_TEST(drawn_clusters_under_drawn_faults_lose_repeat_change_and_leak_nothing)
{
    world_totals sum = run_seeds(&any, 100001, 800);

    for (uint32_t fault = 0; counts() && fault < WORLD_FAULTS; fault++)
        ck_assert_msg(sum.injected[fault] > 0, "no seed had the fault %s", world_fault_names[fault]);
}
END_TEST

// Every commit meets seeds that none before it did: tests/run.sh sets BT_COMMIT to its hash.
START_TEST(the_seeds_of_this_commit_pass_too)
{
    char first[13] = {0};

    if (getenv("BT_COMMIT") == NULL)
        return;
    strncpy(first, getenv("BT_COMMIT"), sizeof first - 1);
    run_seeds(&any, strtoull(first, NULL, 16), 50);
}
END_TEST

// --- replay ------------------------------------------------------------------------------------------------------------------

static char *
read_whole(const char *path, size_t *bytes)
{
    FILE *file = fopen(path, "r");
    char *text;

    ck_assert_ptr_nonnull(file);
    fseek(file, 0, SEEK_END);
    *bytes = (size_t)ftell(file);
    rewind(file);
    text = malloc(*bytes + 1);
    ck_assert(fread(text, 1, *bytes, file) == *bytes);
    fclose(file);
    return text;
}

static void
log_in_another_process(const char *path, const char *seed)
{
    int status = 0;
    pid_t child = fork();

    if (child == 0) {
        execl(BT_CLUSTER_SIM, "cluster_sim", "--seed", seed, "--clients", "60", "--log", path, "--json", NULL);
        _exit(127);
    }
    ck_assert(child > 0 && waitpid(child, &status, 0) == child);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "cluster_sim --seed %s failed", seed);
}

// Two programs and this one: other addresses, other memory before it.
START_TEST(a_seed_replays_to_the_same_log_byte_for_byte)
{
    char paths[3][64], seed[24];
    size_t bytes[3];
    char *texts[3];

    for (uint64_t number = 77; number < 85; number++) {
        world_options options = any;

        snprintf(seed, sizeof seed, "%" PRIu64, number);
        for (int i = 0; i < 3; i++)
            snprintf(paths[i], sizeof paths[i], "/tmp/baton-sim-%d-%d.log", (int)getpid(), i);
        log_in_another_process(paths[0], seed);
        log_in_another_process(paths[1], seed);
        options.seed = number;
        options.log = fopen(paths[2], "w");
        ck_assert_ptr_nonnull(options.log);
        run_seed(&options, 60);
        ck_assert_int_eq(fclose(options.log), 0);
        for (int i = 0; i < 3; i++) {
            texts[i] = read_whole(paths[i], &bytes[i]);
            ck_assert_int_eq(unlink(paths[i]), 0);
        }
        ck_assert_uint_gt(bytes[0], 10000);
        ck_assert(bytes[0] == bytes[1] && bytes[0] == bytes[2]);
        ck_assert(memcmp(texts[0], texts[1], bytes[0]) == 0 && memcmp(texts[0], texts[2], bytes[0]) == 0);
        for (int i = 0; i < 3; i++)
            free(texts[i]);
    }
}
END_TEST

START_TEST(another_seed_decides_otherwise)
{
    world_options options = any;
    uint64_t hash;

    options.seed = 77;
    run_seed(&options, 60);
    hash = w.hash;
    options.seed = 78;
    run_seed(&options, 60);
    ck_assert(w.hash != hash);
}
END_TEST

// --- planted bugs ------------------------------------------------------------------------------------------------------------

// Does the seed end in a breach? In a process of its own, which that ends.
static bool
is_found_by(world_bug bug, uint64_t seed)
{
    int status = 0;
    pid_t child = fork();

    if (child == 0) {
        world_options options = any;
        int nowhere = open("/dev/null", O_WRONLY);

        dup2(nowhere, STDERR_FILENO);
        dup2(nowhere, STDOUT_FILENO);
        options.seed = seed;
        options.bug = bug;
        run_seed(&options, 100);
        _exit(0);
    }
    ck_assert(child > 0 && waitpid(child, &status, 0) == child);
    return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

START_TEST(a_planted_bug_is_found)
{
    world_bug bug = (world_bug)_i;
    uint64_t first = 50001, seed = first;

    while (seed < first + 300 && !is_found_by(bug, seed))
        seed++;
    printf("%s: found by seed %" PRIu64 ", the %" PRIu64 ". tried\n", world_bug_names[bug], seed, seed - first + 1);
    ck_assert_msg(seed < first + 300, "300 seeds did not find the planted bug %s", world_bug_names[bug]);
    ck_assert_msg(!is_found_by(WORLD_NO_BUG, seed), "seed %" PRIu64 " fails without it too", seed);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("cluster in virtual time");
    TCase *all = tcase_create("all");

    tcase_set_timeout(all, 3000);
    tcase_add_test(all, one_prefill_and_one_decode_node_answer_as_one_engine_would);
    tcase_add_test(all, several_nodes_of_each_kind_answer_as_one_engine_would);
    tcase_add_test(all, several_routers_share_the_nodes);
    tcase_add_test(all, decode_nodes_alone_are_a_cluster);
    tcase_add_test(all, faults_change_no_token_with_one_of_each);
    tcase_add_test(all, with_two_weights_only_marked_answers_differ);
    tcase_add_test(all, drawn_clusters_under_drawn_faults_lose_repeat_change_and_leak_nothing);
    tcase_add_test(all, the_seeds_of_this_commit_pass_too);
    tcase_add_test(all, a_seed_replays_to_the_same_log_byte_for_byte);
    tcase_add_test(all, another_seed_decides_otherwise);
    tcase_add_loop_test(all, a_planted_bug_is_found, WORLD_NO_BUG + 1, WORLD_BUGS);
    suite_add_tcase(suite, all);
    return bt_test_run(suite);
}
