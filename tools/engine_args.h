// The options of every command that opens an engine (run, chat, eval, bench engine): --device, --threads, --kv, --weights, --exact,
// --context and --set, as one table for bt_args_parse.
// Besides settings that `baton local` knows (engine.hasty_weights=true among them: w8 and q4 made quickly and worse, speed is the same),
// --set takes what only measurements want: kv.equalise=off, weights.act_block=128 and weights.smooth=off (w8).
#pragma once

#include "common/engine/engine.h"
#include "tools/args.h"

typedef struct {
    bt_engine_options options;
    bool exact, quiet, unequal;
    const char *kv, *weights, *device;
    bt_arg table[16];
} bt_engine_args;

// Defaults and the table; `args` must stay where it is, the table points into it.
void bt_engine_args_init(bt_engine_args *args);
// After parsing: turns words into options (INT8 KV with the K equaliser unless --kv or --exact say otherwise).
bt_err bt_engine_args_finish(bt_engine_args *args, const char *model_path, bt_why *why);
