// The `baton` command: finds the command by its name and hands over.
#include "tools/commands.h"

#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

typedef struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *about;
} command;

static const command commands[] = {
    {"local", bt_local_main, "serve a model on this machine: OpenAI HTTP API, one process"},
    {"router", bt_router_main, "a router of a cluster: OpenAI HTTP API in front of its nodes"},
    {"prefill", bt_prefill_main, "a prefill node of a cluster: reads prompts"},
    {"decode", bt_decode_main, "a decode node of a cluster: writes answers"},
    {"run", bt_run_main, "complete one prompt and print the answer"},
    {"chat", bt_chat_main, "talk to a model in the terminal"},
    {"inspect", bt_inspect_main, "say what a model file holds"},
    {"plan", bt_plan_main, "say what an engine would take in memory, and what would make it fit"},
    {"tokenize", bt_tokenize_main, "text on stdin to token ids"},
    {"render", bt_render_main, "a JSON array of messages on stdin to the prompt text"},
    {"eval", bt_eval_main, "perplexity, and the distance of a fast path from the exact one"},
    {"bench", bt_bench_main, "measure an engine, any OpenAI server, the transfer of KV blocks, or the router"},
    {"top", bt_top_main, "show a cluster live in the terminal"},
    {"sim", bt_sim_main, "replay a trace of requests on a cluster in virtual time"},
    {"synth", bt_synth_main, "write a random model of a named shape, to measure with"},
};
#define COMMANDS (sizeof commands / sizeof *commands)

static void
print_help(FILE *to)
{
    fprintf(to, "Baton serves large language models: prefill and decode, on one machine or many.\n\n"
                "usage: baton COMMAND [options]\n\ncommands:\n");
    for (size_t i = 0; i < COMMANDS; i++) {
        fprintf(to, "  %-10s %s\n", commands[i].name, commands[i].about);
    }
    fprintf(to, "\n'baton COMMAND --help' says more of each. A first try:\n\n"
                "  baton run model.gguf --prompt 'Once upon a time' --max-tokens 40\n"
                "  baton local --model model.gguf --listen 127.0.0.1:8080\n");
}

int
bt_bench_main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "engine") == 0) {
        return bt_bench_engine_main(argc - 1, argv + 1);
    }
    if (argc > 1 && strcmp(argv[1], "serve") == 0) {
        return bt_bench_serve_main(argc - 1, argv + 1);
    }
    if (argc > 1 && strcmp(argv[1], "transfer") == 0) {
        return bt_bench_transfer_main(argc - 1, argv + 1);
    }
    if (argc > 1 && strcmp(argv[1], "router") == 0) {
        return bt_bench_router_main(argc - 1, argv + 1);
    }
    if (argc > 1 && strcmp(argv[1], "--help") == 0) {
        printf("usage: baton bench engine MODEL [options]\n       baton bench serve [options]\n"
               "       baton bench transfer [options]\n       baton bench router MODEL [options]\n\n"
               "engine measures prefill and decode of a model in this process; serve loads a running server; transfer\n"
               "moves KV blocks between two processes; router tells what the router adds to a request.\n"
               "'baton bench engine --help' says more.\n");
        return 0;
    }
    fprintf(stderr, "baton bench: say what to measure, 'engine', 'serve', 'transfer' or 'router'\n");
    return 2;
}

int
main(int argc, char **argv)
{
    // Numbers in JSON have a point whatever the user's locale says, so the locale stays "C" but for characters.
    setlocale(LC_CTYPE, "");
    signal(SIGPIPE, SIG_IGN);
    if (argc < 2 || strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "help") == 0 || strcmp(argv[1], "-h") == 0) {
        print_help(argc < 2 ? stderr : stdout);
        return argc < 2 ? 2 : 0;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("baton " BT_VERSION "\n");
        return 0;
    }
    for (size_t i = 0; i < COMMANDS; i++) {
        if (strcmp(argv[1], commands[i].name) == 0) {
            return commands[i].run(argc - 1, argv + 1);
        }
    }
    fprintf(stderr, "baton: '%s' is no command; 'baton --help' lists them\n", argv[1]);
    return 2;
}
