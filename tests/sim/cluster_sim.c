// cluster_sim [--seed N | --first N --seeds COUNT] [--clients N] [--log FILE] [--bug NAME] [--json]: drawn clusters under drawn faults
// (world.h). --seed replays one, to the byte of its log. Exit code 0: all that must hold held; the first breach ends the program.
#include "tests/sim/world.h"

#include <getopt.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static world w;

typedef struct {
    uint64_t first, seeds;
    uint32_t clients;
    const char *log;
    world_bug bug;
    bool json;
} wanted;

static void
usage(void)
{
    fprintf(stderr,
            "cluster_sim [--seed N | --first N --seeds COUNT] [--clients N] [--log FILE] [--bug NAME] [--json]\n");
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
        {"seed", required_argument, NULL, 's'},  {"first", required_argument, NULL, 'f'},
        {"seeds", required_argument, NULL, 'n'}, {"clients", required_argument, NULL, 'c'},
        {"log", required_argument, NULL, 'l'},   {"bug", required_argument, NULL, 'b'},
        {"json", no_argument, NULL, 'j'},        {0},
    };
    wanted wish = {.first = 1, .seeds = 200, .clients = 100};
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
    if (optind < argc || wish.clients > WORLD_CLIENTS_MAX)
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
    for (uint64_t i = 0; i < wish.seeds; i++) {
        options.seed = wish.first + i;
        world_open(&w, &options);
        world_run(&w, wish.clients);
        world_close(&w);
        world_add(&sum, &w.totals);
    }
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
