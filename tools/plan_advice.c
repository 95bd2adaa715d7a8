#include "tools/plan_advice.h"

#include <stdio.h>

#define CHUNK_LEAST 64u

typedef struct {
    bt_plan_advice *out;
    const bt_engine_outlook *asked;
} advisor;

static bool
fits(const advisor *a, const bt_engine_options *options)
{
    bt_engine_outlook outlook;

    return bt_engine_foresee(&outlook, options, a->asked->plan.available, NULL) == BT_OK;
}

static void
say(advisor *a, const char *line)
{
    if (a->out->count < BT_PLAN_ADVICE_MAX) {
        snprintf(a->out->lines[a->out->count++], sizeof a->out->lines[0], "%s", line);
    }
}

// The most of one number that fits, from `least` to just under what it is; 0 = none. What fits with a number fits with a smaller one.
static uint32_t
most_that_fits(const advisor *a, bt_engine_options *o, uint32_t *number, uint32_t least)
{
    uint32_t was = *number, low = least, high = was;

    *number = least;
    if (least >= was || !fits(a, o)) {
        *number = was;
        return 0;
    }
    while (high - low > 1) {
        *number = low + (high - low) / 2;
        if (fits(a, o)) {
            low = *number;
        } else {
            high = *number;
        }
    }
    *number = was;
    return low;
}

// `number` is one of *o.
static void
try_number(advisor *a, bt_engine_options *o, uint32_t *number, uint32_t least, uint32_t step, const char *format,
           const char *before)
{
    char line[256], text[80];
    uint32_t most = most_that_fits(a, o, number, least);

    if (most != 0) {
        most = most / step * step >= least ? most / step * step : most;
        snprintf(text, sizeof text, format, most);
        snprintf(line, sizeof line, "%s%s", before, text);
        say(a, line);
    }
}

// Fewer blocks, a shorter context, smaller steps, fewer sequences: each alone, after the settings that `before` names.
static void
try_numbers(advisor *a, const bt_engine_options *base, const char *before)
{
    bt_engine_options o = *base;

    if (o.kv_blocks != 0) {
        try_number(a, &o, &o.kv_blocks, 1, 1, "--set kv.blocks=%u", before);
    }
    try_number(a, &o, &o.context, o.kv_block_tokens, o.kv_block_tokens, "--context %u", before);
    try_number(a, &o, &o.chunk_tokens, o.max_sequences > CHUNK_LEAST ? o.max_sequences : CHUNK_LEAST, CHUNK_LEAST,
               "--set engine.chunk_tokens=%u", before);
    if (o.logit_rows_max == o.max_sequences) {
        o.logit_rows_max = 0; // follows
    }
    try_number(a, &o, &o.max_sequences, 1, 1, "--set engine.max_sequences=%u", before);
}

// Everything small at once: one sequence, small steps, and then as long as it goes.
static void
try_smallest(advisor *a, bt_engine_options o, const char *before)
{
    char settings[176];

    o.max_sequences = 1;
    o.logit_rows_max = o.kv_blocks = 0;
    o.chunk_tokens = o.chunk_tokens < CHUNK_LEAST ? o.chunk_tokens : CHUNK_LEAST;
    snprintf(settings, sizeof settings, "%s--set engine.max_sequences=1 --set engine.chunk_tokens=%u%s ", before,
             o.chunk_tokens, a->asked->options.kv_blocks != 0 ? " --set kv.blocks=0" : "");
    if (fits(a, &o)) {
        say(a, settings);
    } else {
        try_number(a, &o, &o.context, o.kv_block_tokens, o.kv_block_tokens, "--context %u", settings);
    }
}

static const char *const weights[] = {[BT_LOAD_W8] = "--weights w8", [BT_LOAD_Q4] = "--weights q4"};

// Smaller numbers in the cache and in the weights, from the mildest on. True when one fits alone.
static bool
try_formats(advisor *a, bt_engine_options *smallest, char name[81])
{
    bt_engine_options o = a->asked->options;
    bool found = false, int8 = o.kv_format != BT_KV_INT8;

    if (int8) {
        o.kv_format = BT_KV_INT8;
        if (fits(a, &o)) {
            say(a, "--kv int8");
            found = true;
        }
    }
    for (int i = BT_LOAD_W8; i <= BT_LOAD_Q4; i++) {
        char line[80];

        if (a->asked->options.model.weights == (bt_load_weights)i || a->asked->options.model.weights == BT_LOAD_Q4) {
            continue;
        }
        o = a->asked->options;
        o.model.weights = (bt_load_weights)i;
        snprintf(line, sizeof line, "%s", weights[i]);
        if (int8 && !found && !fits(a, &o)) {
            o.kv_format = BT_KV_INT8;
            snprintf(line, sizeof line, "%s --kv int8", weights[i]);
        }
        if (fits(a, &o)) {
            say(a, line);
            found = true;
        }
        *smallest = o;
        snprintf(name, 81, "%s ", line);
    }
    return found;
}

void
bt_plan_advise(bt_plan_advice *out, const bt_engine_outlook *outlook)
{
    advisor a = {out, outlook};
    bt_engine_options smallest = outlook->options;
    char name[81] = "", line[160];
    const bt_engine_plan *p = &outlook->plan;

    *out = (bt_plan_advice){.count = 0};
    try_numbers(&a, &outlook->options, "");
    if (!try_formats(&a, &smallest, name) && out->count == 0) {
        try_numbers(&a, &smallest, name);
    }
    if (out->count == 0) {
        try_smallest(&a, outlook->options, "");
    }
    if (out->count == 0) {
        try_smallest(&a, smallest, name);
    }
    if (out->count == BT_PLAN_ADVICE_MAX) {
        out->count--;
    }
    snprintf(line, sizeof line, "%.1f MiB free", (double)(p->total + p->available - p->limit) / 0x1p20);
    say(&a, line);
}
