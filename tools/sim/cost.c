#include "tools/sim/cost.h"
#include "common/base/buf.h"
#include "common/json/json.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

// What is measured on an H200, by how long the decode node's weights take to be read and how long a prompt's token takes there.
#define H200_8B_NOW(weights_us, prompt_us)                                                                             \
    .prefill = {300, 2000, 12.5, 2.09, 32, 17.4}, .decode = {300, weights_us, prompt_us, 2.09, 32, 17.4},              \
    .prefill_chunk = 8192, .decode_chunk = 4096, .decode_prompt = 2048, .sequences = 96, .prefill_kv = 262144,         \
    .decode_kv = 798720, .kv_bytes = 66560, .gb_s = 350

static const sim_profile profiles[] = {
    {.name = "h200-8b",
     .about = "Llama 3.1 8B, w8 | q4, INT8 KV, one H200 a node: DESIGN 10's targets (80k tok/s; 680, 10.5k and 15k "
              "tok/s at 1, 32 and 128)",
     .prefill = {300, 2000, 12.5, 0.9, 20, 17},
     .decode = {300, 1050, 20, 0.9, 20, 17},
     .prefill_chunk = 8192,
     .decode_chunk = 4096,
     .decode_prompt = 1024,
     .sequences = 128,
     .prefill_kv = 1600000,
     .decode_kv = 1700000,
     .kv_bytes = 66560,
     .gb_s = 50},
    {.name = "h200-8b-now",
     .about =
         "Llama 3.1 8B, w8 | q4, INT8 KV, one H200 a node, as measured on 2026-11-30, 22:59 (kernels/README.md): "
         "68.1k tok/s of 2k prompts, 47.4k of 8k; 638, 8.4k and 12.7k tok/s at 1, 32 and 128; q4 reads 46 us a token",
     H200_8B_NOW(1200, 46)},
    {.name = "h200-8b-w8",
     .about = "the same with w8 on both sides: writing reckoned from 218 MB a layer at 3.1 TB/s",
     H200_8B_NOW(2450, 12.5)},
    {.name = "h200-70b",
     .about = "Llama 3.1 70B, w8 | q4, INT8 KV, one H200 a node: reckoned from h200-8b's share of the machine's peaks",
     .prefill = {600, 17000, 108, 4.5, 160, 42},
     .decode = {600, 9000, 170, 4.5, 160, 42},
     .prefill_chunk = 4096,
     .decode_chunk = 2048,
     .decode_prompt = 512,
     .sequences = 128,
     .prefill_kv = 340000,
     .decode_kv = 550000,
     .kv_bytes = 166400,
     .gb_s = 50},
    {.name = "cpu-smol",
     .about = "SmolLM2 135M Q4_1, INT8 KV, 2 cores of an EPYC (Zen 4): baton bench engine --pp 512 --tg 32 --batch 1,8 "
              "--depth 0,1024",
     .prefill = {500, 1500, 470, 126, 760, 600},
     .decode = {500, 1500, 470, 126, 760, 600},
     .prefill_chunk = 512,
     .decode_chunk = 512,
     .decode_prompt = 128,
     .sequences = 16,
     .prefill_kv = 400000,
     .decode_kv = 400000,
     .kv_bytes = 11880,
     .gb_s = 1},
};
#define PROFILES (sizeof profiles / sizeof *profiles)

bt_time
sim_cost_step(const sim_cost *cost, const bt_batch_item *items, uint32_t count, uint32_t unit)
{
    double prompt = 0, pairs = 0, answers = 0, context = 0, steps, us, linear;

    for (uint32_t i = 0; i < count; i++) {
        if (items[i].count == 1 && items[i].position >= items[i].prompt_count) {
            answers++;
            context += items[i].position + 1;
        } else {
            prompt += items[i].count;
            pairs += (double)items[i].count * (items[i].position + items[i].count / 2.0);
        }
    }
    steps = answers > 0 ? unit : 1;
    linear = fmax(steps * cost->weights_us, prompt * unit * cost->prompt_us);
    us = steps * cost->base_us + linear + pairs * unit * unit * cost->pair_ns / 1e3 + answers * unit * cost->answer_us +
         context * unit * unit * cost->read_ns / 1e3;
    return (bt_time)(us * 1e3) + 1;
}

// --- measured engines --------------------------------------------------------------------------------------------------------

#define UNKNOWNS 3

// Least squares over rows of up to three unknowns, by the normal equations.
typedef struct {
    double a[UNKNOWNS][UNKNOWNS + 1];
    uint32_t rows;
} system_of;

static void
add_equation(system_of *s, const double row[UNKNOWNS], double value)
{
    for (int i = 0; i < UNKNOWNS; i++) {
        for (int j = 0; j < UNKNOWNS; j++)
            s->a[i][j] += row[i] * row[j];
        s->a[i][UNKNOWNS] += row[i] * value;
    }
    s->rows++;
}

// An unknown that the points say nothing about, or that came out below zero, is zero.
static void
solve(const system_of *from, double out[UNKNOWNS])
{
    bool off[UNKNOWNS] = {false};

    for (int pass = 0; pass <= UNKNOWNS; pass++) {
        system_of s = *from;
        bool again = false;

        for (int i = 0; i < UNKNOWNS; i++) {
            for (int j = 0; j < UNKNOWNS; j++)
                s.a[i][j] = off[i] || off[j] ? i == j : s.a[i][j];
            s.a[i][UNKNOWNS] = off[i] ? 0 : s.a[i][UNKNOWNS];
        }
        for (int i = 0; i < UNKNOWNS; i++) {
            if (!off[i] && s.a[i][i] < 1e-9 * from->a[i][i] + 1e-12) {
                off[i] = again = true;
                break;
            }
            for (int k = 0; k < UNKNOWNS; k++) {
                double factor = k != i ? s.a[k][i] / s.a[i][i] : 0;

                for (int j = 0; j <= UNKNOWNS; j++)
                    s.a[k][j] -= factor * s.a[i][j];
            }
        }
        for (int i = 0; i < UNKNOWNS && !again; i++) {
            out[i] = s.a[i][UNKNOWNS] / s.a[i][i];
            off[i] = off[i] || out[i] < 0;
            again |= out[i] < 0;
        }
        if (!again)
            return;
    }
}

typedef struct {
    bool decoding;
    double batch, depth, tokens, us; // us: of a step for tg, of the whole prompt for pp
} point;

static bt_err
read_point(const bt_json_at *root, point *out, bt_why *why)
{
    bt_json_at test = bt_json_get(root, "test"), batch = bt_json_get(root, "batch"), depth = bt_json_get(root, "depth");
    bt_json_at rate = bt_json_get(root, "tokens_per_s");
    int64_t b, d, tokens;
    double per_s;
    bt_str name;
    bt_err err;

    if ((err = bt_json_as_text(&test, &name, why)) != BT_OK ||
        (err = bt_json_as_int(&batch, 1, 65536, &b, why)) != BT_OK ||
        (err = bt_json_as_int(&depth, 0, 1 << 20, &d, why)) != BT_OK ||
        (err = bt_json_as_real(&rate, 1e-3, 1e9, &per_s, why)) != BT_OK)
        return err;
    tokens = bt_str_is(name, "tg") ? 128 : 512; // the defaults of the bench, where the line does not say
    if ((err = bt_json_maybe_int(root, "tokens", 1, 1 << 20, &tokens, why)) != BT_OK)
        return err;
    if (!bt_str_is(name, "tg") && !bt_str_is(name, "pp"))
        return bt_json_wrong(&test, why, "expected \"pp\" or \"tg\"");
    *out = (point){bt_str_is(name, "tg"), (double)b, (double)d, (double)tokens, 0};
    out->us = (double)b * (out->decoding ? 1 : (double)tokens) * 1e6 / per_s;
    return BT_OK;
}

static bt_err
take_line(bt_str line, system_of *tg, system_of *pp, bt_why *why)
{
    bt_json *document;
    bt_json_at root;
    point p = {0};
    bt_err err = bt_json_parse(&document, line, NULL, why);

    if (err != BT_OK)
        return err;
    root = bt_json_root(document);
    err = read_point(&root, &p, why);
    bt_json_close(document);
    if (err == BT_OK && p.decoding)
        add_equation(tg, (double[]){1, p.batch, p.batch * (p.depth + p.tokens / 2)}, p.us);
    else if (err == BT_OK)
        add_equation(pp, (double[]){p.batch * p.tokens, p.batch * p.tokens * (p.depth + p.tokens / 2), 0}, p.us);
    return err;
}

bt_err
sim_profile_fit(sim_cost *cost, const char *lines, bt_why *why)
{
    system_of tg = {0}, pp = {0};
    double t[UNKNOWNS] = {0}, p[UNKNOWNS] = {0};

    for (const char *line = lines; *line != 0;) {
        const char *end = strchrnul(line, '\n');
        bt_err err = line[0] == '{' ? take_line((bt_str){line, (size_t)(end - line)}, &tg, &pp, why) : BT_OK;

        if (err != BT_OK)
            return err;
        line = end + (*end != 0);
    }
    if (tg.rows < 2 || pp.rows < 1)
        return bt_fail(why, BT_ERR_INVALID,
                       "expected lines of `baton bench engine --batch 1,8 --depth 0,4096 --json`: two points of tg and "
                       "one of pp at least");
    solve(&tg, t);
    solve(&pp, p);
    *cost = (sim_cost){
        .weights_us = t[0], .prompt_us = p[0], .pair_ns = p[1] * 1e3, .answer_us = t[1], .read_ns = t[2] * 1e3};
    return BT_OK;
}

static bt_err
read_profile(sim_profile *profile, const char *path, bt_why *why)
{
    static char text[1 << 16];
    FILE *file = fopen(path, "r");
    size_t got;
    bt_why inner;
    bt_err err;

    if (file == NULL)
        return bt_fail(why, BT_ERR_NOT_FOUND, "profile '%s': no file (%s), and none of %s, %s and %s", path,
                       strerror(errno), profiles[0].name, profiles[1].name, profiles[2].name);
    got = fread(text, 1, sizeof text - 1, file);
    text[got] = 0;
    fclose(file);
    *profile = profiles[PROFILES - 1];
    snprintf(profile->name, sizeof profile->name, "%.63s", path);
    profile->about = "measured; chunks, pools and links as cpu-smol's";
    err = sim_profile_fit(&profile->prefill, text, &inner);
    profile->decode = profile->prefill;
    return err == BT_OK ? BT_OK : bt_fail(why, err, "profile %s: %s", path, inner.text);
}

bt_err
sim_profile_find(sim_profile *profile, const char *name, bt_why *why)
{
    for (size_t i = 0; i < PROFILES; i++) {
        if (strcmp(profiles[i].name, name) == 0) {
            *profile = profiles[i];
            return BT_OK;
        }
    }
    return read_profile(profile, name, why);
}
