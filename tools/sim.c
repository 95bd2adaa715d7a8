// baton sim: a trace of requests replayed in virtual time by the real router, prefill and decode cores, with engines that are a cost.
#include "common/base/log.h"
#include "common/base/mem.h"
#include "tools/args.h"
#include "tools/commands.h"
#include "tools/sim/report.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

typedef struct {
    const char *profile_name, *html, *policies;
    float rate, slo_ttft, slo_tpot, faults, link_us;
    uint32_t requests;
    bool json, no_disaggregation, both;
    sim_setup setup;
    sim_profile profile;
    sim_trace trace;
    sim_report report;
    sim_summary runs[SIM_RUNS_MAX];
} sim;

static bt_err
run_one(sim *s, bt_place_policy policy, bool disaggregated, bt_why *why)
{
    sim_setup setup = s->setup;
    sim_result result;
    sim_summary *out = &s->runs[s->report.run_count];
    bt_err err;

    setup.place = policy;
    if (!disaggregated) {
        setup.decodes += setup.prefills;
        setup.prefills = 0;
        setup.two_weights = false;
    }
    err = sim_run(&setup, &result, why);
    if (err == BT_OK && (err = sim_summarize(&s->report, &setup, &result, out)) != BT_OK)
        bt_fail(why, err, "out of memory");
    s->report.run_count += err == BT_OK;
    sim_result_free(&result);
    return err;
}

// "ours,random" and the like, in the order they are named.
static bt_err
run_policies(sim *s, bool disaggregated, bt_why *why)
{
    bt_err err = BT_OK;

    for (const char *at = s->policies; *at != 0 && err == BT_OK;) {
        size_t length = strcspn(at, ",");
        int policy = BT_PLACE_RANDOM;

        while (policy >= 0 && (strlen(sim_policy_name((bt_place_policy)policy)) != length ||
                               strncmp(sim_policy_name((bt_place_policy)policy), at, length) != 0))
            policy--;
        if (policy < 0 || s->report.run_count == SIM_RUNS_MAX)
            return bt_fail(why, BT_ERR_INVALID, "--place: expected some of random, least-load and ours, not '%s'",
                           s->policies);
        err = run_one(s, (bt_place_policy)policy, disaggregated, why);
        at += length + (at[length] == ',');
    }
    return err;
}

static bt_err
run_all(sim *s, bt_why *why)
{
    uint32_t readers = s->setup.prefills > 0 ? s->setup.prefills : s->setup.decodes;
    uint64_t kv = s->setup.kv_tokens > 0  ? s->setup.kv_tokens
                  : s->setup.prefills > 0 ? s->profile.prefill_kv
                                          : s->profile.decode_kv;
    bt_err err;

    s->report.kv_node = (double)kv;
    if ((err = sim_trace_reuse(&s->trace, kv, &s->report.reuse_node)) != BT_OK ||
        (err = sim_trace_reuse(&s->trace, kv * readers, &s->report.reuse_pool)) != BT_OK ||
        (err = sim_trace_reuse(&s->trace, 0, &s->report.reuse_endless)) != BT_OK)
        return bt_fail(why, err, "out of memory");
    if (!s->no_disaggregation)
        err = run_policies(s, s->setup.prefills > 0, why);
    if (err == BT_OK && (s->no_disaggregation || s->both))
        err = run_policies(s, false, why);
    return err;
}

static bt_err
write_html(sim *s, bt_why *why)
{
    bt_err err = BT_OK;
    FILE *file;
    bt_buf page;

    bt_buf_init(&page, (size_t)16 << 20);
    sim_report_html(&s->report, &page);
    file = page.failed ? NULL : fopen(s->html, "w");
    if (file == NULL || fwrite(page.data, 1, page.len, file) != page.len)
        err = bt_fail(why, BT_ERR_IO, "%s: %s", s->html, page.failed ? "the page is too large" : strerror(errno));
    if (file != NULL && fclose(file) != 0 && err == BT_OK)
        err = bt_fail(why, BT_ERR_IO, "%s: %s", s->html, strerror(errno));
    bt_buf_fini(&page);
    return err;
}

static bt_err
print_report(const sim *s, bt_why *why)
{
    bt_buf text;
    bool failed;

    bt_buf_init(&text, (size_t)1 << 20);
    if (s->json)
        sim_report_json(&s->report, &text);
    else
        sim_report_text(&s->report, &text);
    failed = text.failed;
    if (!failed)
        printf(s->json ? "%s\n" : "%s", text.data);
    bt_buf_fini(&text);
    return failed ? bt_fail(why, BT_ERR_NO_MEMORY, "out of memory") : BT_OK;
}

static int
parse(sim *s, int argc, char **argv, const char **path)
{
    const bt_arg args[] = {
        {"profile", BT_ARG_STRING, &s->profile_name, "NAME", "h200-8b, h200-70b, cpu-smol, or a file of bench lines",
         NULL},
        {"prefill", BT_ARG_U32, &s->setup.prefills, "N", "prefill nodes", NULL},
        {"decode", BT_ARG_U32, &s->setup.decodes, "N", "decode nodes", NULL},
        {"place", BT_ARG_STRING, &s->policies, "LIST", "random, least-load, ours: how nodes are chosen", NULL},
        {"no-disaggregation", BT_ARG_FLAG, &s->no_disaggregation, NULL, "as many nodes, all of them decode nodes",
         NULL},
        {"both", BT_ARG_FLAG, &s->both, NULL, "with and without disaggregation", NULL},
        {"two-weights", BT_ARG_FLAG, &s->setup.two_weights, NULL, "prompts must be read at prefill nodes (w8 and q4)",
         NULL},
        {"inexact", BT_ARG_FLAG, &s->setup.inexact, NULL, "with two weights: by whichever is sooner after all", NULL},
        {"rate", BT_ARG_FLOAT, &s->rate, "X", "requests come X times as fast as in the trace", NULL},
        {"requests", BT_ARG_U32, &s->requests, "N", "only the first N, 0 = all", NULL},
        {"kv-tokens", BT_ARG_U32, &s->setup.kv_tokens, "N", "of a node's KV pool, 0 = the profile's", NULL},
        {"token-unit", BT_ARG_U32, &s->setup.unit, "N",
         "real tokens a simulated one stands for, 1 to 16; 0 = by the nodes", NULL},
        {"island", BT_ARG_U32, &s->setup.island, "N", "prefill nodes that a decode node knows, 0 = as many as it can",
         NULL},
        {"queue", BT_ARG_U32, &s->setup.requests_max, "N", "requests in the router at once; more are refused", NULL},
        {"link-us", BT_ARG_FLOAT, &s->link_us, "US", "one way of a message", NULL},
        {"faults", BT_ARG_FLOAT, &s->faults, "N", "nodes killed an hour; each is back after 10 to 30 s", NULL},
        {"slo-ttft", BT_ARG_FLOAT, &s->slo_ttft, "MS", "goodput: time to the first token at most", NULL},
        {"slo-tpot", BT_ARG_FLOAT, &s->slo_tpot, "MS", "goodput: mean time between tokens at most", NULL},
        {"seed", BT_ARG_U64, &s->setup.seed, "N", "of ties and faults; the same seed, the same bytes", NULL},
        {"html", BT_ARG_STRING, &s->html, "FILE", "a page with the drawings", NULL},
        {"json", BT_ARG_FLAG, &s->json, NULL, "one object on stdout", NULL},
        {NULL, BT_ARG_FLAG, NULL, NULL, NULL, NULL},
    };
    bt_args_spec spec = {
        .usage = "baton sim TRACE [options]",
        .about =
            "Replays a trace (Mooncake JSON lines, Azure or Vidur CSV, plain or .gz) in virtual time through the real "
            "router, prefill and decode cores, and says what TTFT, TPOT, goodput and hit rate come of it.",
        .example = "  baton sim conversation_trace.jsonl.gz --prefill 12 --decode 4 --rate 10 --html sim.html",
        .args = args,
        .positional_min = 1,
        .positional_max = 1,
    };
    uint32_t count;

    return bt_args_parse(&spec, argc, argv, path, &count);
}

static bt_err
prepare(sim *s, const char *path, bt_why *why)
{
    const char *slash = strrchr(path, '/');
    bt_err err;

    if ((err = sim_profile_find(&s->profile, s->profile_name, why)) != BT_OK ||
        (err = sim_trace_read(&s->trace, path, s->requests, why)) != BT_OK)
        return err;
    s->setup.trace = &s->trace;
    s->setup.profile = &s->profile;
    s->setup.rate = s->rate;
    s->setup.kills_per_hour = s->faults;
    s->setup.link = (bt_time)(s->link_us * 1e3f);
    if (s->setup.unit == 0)
        s->setup.unit = s->setup.prefills + s->setup.decodes > 64 ? 4 : 1;
    s->report = (sim_report){.setup = &s->setup,
                             .trace_name = slash != NULL ? slash + 1 : path,
                             .slo_ttft_ms = s->slo_ttft,
                             .slo_tpot_ms = s->slo_tpot,
                             .runs = s->runs};
    return BT_OK;
}

int
bt_sim_main(int argc, char **argv)
{
    static sim s = {.profile_name = "h200-8b",
                    .policies = "random,least-load,ours",
                    .rate = 1,
                    .slo_ttft = 5000,
                    .slo_tpot = 50,
                    .link_us = 50,
                    .setup = {.prefills = 4, .decodes = 12, .requests_max = 4096, .seed = 1}};
    const char *path = NULL;
    bt_why why = {{0}};
    bt_err err;
    int code = parse(&s, argc, argv, &path);

    if (code >= 0)
        return code;
    err = prepare(&s, path, &why);
    code = err != BT_OK ? 2 : 0;
    if (err == BT_OK && (err = run_all(&s, &why)) != BT_OK)
        code = err == BT_ERR_INVALID ? 2 : 1;
    if (err == BT_OK && (err = print_report(&s, &why)) != BT_OK)
        code = 1;
    if (err == BT_OK && s.html != NULL && (err = write_html(&s, &why)) != BT_OK)
        code = 1;
    if (err != BT_OK)
        fprintf(stderr, "baton sim: %s\n", why.text);
    sim_trace_free(&s.trace);
    return code;
}
