// The commands of `baton`: each is a main that gets argv from its own name on and returns the exit code
// (0 done, 1 failed, 2 wrong use or bad file).
#pragma once

#include <stdbool.h>

int bt_run_main(int argc, char **argv);
bool bt_run_asks_server(int argc, char **argv); // run --server …
int bt_run_server_main(int argc, char **argv);
int bt_chat_main(int argc, char **argv);
int bt_tokenize_main(int argc, char **argv);
int bt_render_main(int argc, char **argv);
int bt_inspect_main(int argc, char **argv);
int bt_plan_main(int argc, char **argv);
int bt_eval_main(int argc, char **argv);
int bt_bench_main(int argc, char **argv); // engine | serve | transfer | router
int bt_bench_engine_main(int argc, char **argv);
int bt_bench_serve_main(int argc, char **argv);
int bt_bench_transfer_main(int argc, char **argv);
int bt_bench_router_main(int argc, char **argv);
int bt_sim_main(int argc, char **argv);
int bt_top_main(int argc, char **argv);
int bt_synth_main(int argc, char **argv);
int bt_local_main(int argc, char **argv);
int bt_router_main(int argc, char **argv);
int bt_prefill_main(int argc, char **argv);
int bt_decode_main(int argc, char **argv);
