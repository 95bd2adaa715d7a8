// cluster_sim [--seed N | --first N --seeds COUNT] [--clients N] [--jobs N] [--log FILE] [--bug NAME] [--json]: drawn clusters under drawn faults
// (world.h). --seed replays one, to the byte of its log. Exit code 0: all that must hold held; the first breach ends the program.
#include "tests/sim/world.h"

#include <getopt.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define JOBS_MAX 64

static world w;

typedef struct {
    uint64_t first, seeds;
    uint32_t clients, jobs;
    const char *log;
    world_bug bug;
    bool json;
} wanted;

static void
usage(void)
{
    fprintf(stderr,
            "cluster_sim [--seed N | --first N --seeds COUNT] [--clients N] [--jobs N] [--log FILE] [--bug NAME] "
            "[--json]\n");
    exit(2);
}

static world_bug
bug_named(const char *name)
{
    for (world_bug bug = 0; bug < WORLD_BUGS; bug++) {
        if (strcmp(name, world_bug_names[bug]) == 0)
            return bug;
    }
    usage();
    return WORLD_NO_BUG;
}

static wanted
read_options(int argc, char **argv)
{
    static const struct option options[] = {
        {"seed", required_argument, NULL, 's'},
        {"first", required_argument, NULL, 'f'},
        {"seeds", required_argument, NULL, 'n'},
        {"clients", required_argument, NULL, 'c'},
        {"jobs", required_argument, NULL, 'p'},
        {"log", required_argument, NULL, 'l'},
        {"bug", required_argument, NULL, 'b'},
        {"json", no_argument, NULL, 'j'},
        {0},
    };
    wanted wish = {.first = 1, .seeds = 200, .clients = 100, .jobs = 1};
    int option;

    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (option == 's') {
            wish.first = strtoull(optarg, NULL, 0);
            wish.seeds = 1;
        } else if (option == 'f') {
            wish.first = strtoull(optarg, NULL, 0);
        } else if (option == 'n') {
            wish.seeds = strtoull(optarg, NULL, 0);
        } else if (option == 'c') {
            wish.clients = (uint32_t)strtoul(optarg, NULL, 0);
        } else if (option == 'p') {
            wish.jobs = (uint32_t)strtoul(optarg, NULL, 0);
        } else if (option == 'l') {
            wish.log = optarg;
        } else if (option == 'b') {
            wish.bug = bug_named(optarg);
        } else if (option == 'j') {
            wish.json = true;
        } else {
            usage();
        }
    }
    if (optind < argc || wish.clients > WORLD_CLIENTS_MAX || wish.jobs < 1 || wish.jobs > JOBS_MAX ||
        (wish.jobs > 1 && wish.log != NULL))
        usage();
    return wish;
}

static double
seconds(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

// Seeds number `job`, `job` + jobs, …
static world_totals
run_seeds(const wanted *wish, world_options options, uint32_t job)
{
    world_totals sum = {0};

    for (uint64_t i = job; i < wish->seeds; i += wish->jobs) {
        options.seed = wish->first + i;
        world_open(&w, &options);
        world_run(&w, wish->clients);
        world_close(&w);
        world_add(&sum, &w.totals);
    }
    return sum;
}

// In a process a job; what each found comes by a pipe. False when one of them met a breach, which it has described on stderr.
static bool
run_jobs(const wanted *wish, const world_options *options, world_totals *sum)
{
    pid_t children[JOBS_MAX];
    int ends[JOBS_MAX][2];
    bool good = true;

    for (uint32_t job = 0; job < wish->jobs; job++) {
        if (pipe(ends[job]) != 0 || (children[job] = fork()) < 0) {
            perror("cluster_sim");
            exit(1);
        }
        if (children[job] == 0) {
            world_totals totals = run_seeds(wish, *options, job);

            _exit(write(ends[job][1], &totals, sizeof totals) == (ssize_t)sizeof totals ? 0 : 1);
        }
        close(ends[job][1]);
    }
    for (uint32_t job = 0; job < wish->jobs; job++) {
        world_totals totals;
        int status = 0;

        if (read(ends[job][0], &totals, sizeof totals) == (ssize_t)sizeof totals)
            world_add(sum, &totals);
        close(ends[job][0]);
        good &= waitpid(children[job], &status, 0) == children[job] && WIFEXITED(status) && WEXITSTATUS(status) == 0;
    }
    return good;
}

int
main(int argc, char **argv)
{
    wanted wish = read_options(argc, argv);
    world_options options = {.routers = WORLD_ROUTERS_MAX,
                             .prefills = 3,
                             .decodes = 3,
                             .draws_sizes = true,
                             .draws_faults = true,
                             .bug = wish.bug};
    world_totals sum = {0};
    double begin = seconds();

    if (wish.log != NULL && (options.log = fopen(wish.log, "w")) == NULL) {
        perror(wish.log);
        return 2;
    }
    if (wish.jobs > 1 && !run_jobs(&wish, &options, &sum))
        return 1;
    if (wish.jobs == 1)
        sum = run_seeds(&wish, options, 0);
    if (options.log != NULL && fclose(options.log) != 0) {
        perror(wish.log);
        return 1;
    }
    if (!wish.json) {
        world_print(stdout, &sum);
        return 0;
    }
    printf("{\"test\":\"cluster_sim\",\"first_seed\":%" PRIu64 ",\"seeds\":%" PRIu64 ",\"requests\":%" PRIu64
           ",\"breaches\":0,\"seconds\":%.1f,",
           wish.first, wish.seeds, wish.seeds * wish.clients, seconds() - begin);
    world_print_json(stdout, &sum);
    printf("}\n");
    return 0;
}
