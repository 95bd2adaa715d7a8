#include "tools/sim/report.h"
#include "common/base/mem.h"
#include "common/json/write.h"
#include "tools/percentile.h"

#include <math.h>

const char *
sim_policy_name(bt_place_policy policy)
{
    static const char *const names[] = {
        [BT_PLACE_OURS] = "ours", [BT_PLACE_LEAST_LOAD] = "least-load", [BT_PLACE_RANDOM] = "random"};

    return names[policy];
}

static sim_spread
spread_of(double *values, uint32_t count)
{
    sim_spread spread;
    double sum = 0;

    bt_sort_values(values, count);
    for (uint32_t i = 0; i < count; i++)
        sum += values[i];
    spread.p50 = bt_percentile(values, count, 0.5);
    spread.p90 = bt_percentile(values, count, 0.9);
    spread.p99 = bt_percentile(values, count, 0.99);
    spread.mean = count > 0 ? sum / count : 0;
    return spread;
}

static double
tpot_ms(const sim_outcome *outcome, uint32_t answer)
{
    return answer > 1 ? (double)(outcome->last - outcome->first) / 1e6 / (answer - 1) : 0;
}

static void
take_requests(const sim_report *report, const sim_setup *setup, const sim_result *result, double *ttft, double *tpot,
              sim_summary *out)
{
    uint32_t begun = 0, several = 0;
    double tokens = 0;

    for (uint32_t i = 0; i < result->count; i++) {
        const sim_outcome *outcome = &result->outcomes[i];
        uint32_t answer = setup->trace->rows[i].answer;
        double first_ms = (double)(outcome->first - outcome->arrived) / 1e6;

        out->done += outcome->end == SIM_DONE;
        out->refused += outcome->end == SIM_REFUSED;
        out->lost += outcome->end == SIM_LOST;
        if (outcome->first != 0)
            ttft[begun++] = first_ms;
        if (outcome->end != SIM_DONE)
            continue;
        tokens += answer;
        if (answer > 1)
            tpot[several++] = tpot_ms(outcome, answer);
        out->good += first_ms <= report->slo_ttft_ms && tpot_ms(outcome, answer) <= report->slo_tpot_ms;
    }
    out->ttft_ms = spread_of(ttft, begun);
    out->tpot_ms = spread_of(tpot, several);
    for (uint32_t i = 0; i < SIM_CURVE; i++)
        out->ttft_curve[i] = bt_percentile(ttft, begun, (i + 1.0) / SIM_CURVE);
    out->answer_tokens_s = tokens / out->seconds;
}

static void
take_nodes(const sim_result *result, sim_summary *out)
{
    double all[2] = {0};

    for (uint32_t i = 0; i < result->nodes; i++) {
        out->busy[i] = (double)result->busy[i] / 1e9 / out->seconds;
        all[i >= out->prefills] += out->busy[i];
    }
    out->prefill_busy = out->prefills > 0 ? all[0] / out->prefills : 0;
    out->decode_busy = all[1] / out->decodes;
}

bt_err
sim_summarize(const sim_report *report, const sim_setup *setup, const sim_result *result, sim_summary *out)
{
    double *ttft = bt_alloc_array(result->count, sizeof *ttft), *tpot = bt_alloc_array(result->count, sizeof *tpot);

    *out = (sim_summary){.policy = sim_policy_name(setup->place), .disaggregated = setup->prefills > 0};
    if (ttft == NULL || tpot == NULL) {
        bt_free(ttft);
        bt_free(tpot);
        return BT_ERR_NO_MEMORY;
    }
    out->prefills = setup->prefills;
    out->decodes = setup->decodes;
    out->seconds = (double)(result->ends - result->begins) / 1e9 + 1e-9;
    take_requests(report, setup, result, ttft, tpot, out);
    take_nodes(result, out);
    out->good_share = (double)out->good / result->count;
    out->good_s = out->good / out->seconds;
    out->hit_rate = result->prompt_tokens > 0 ? 1 - (double)result->computed_tokens / (double)result->prompt_tokens : 0;
    out->remote_share = out->done > 0 ? (double)result->remote / out->done : 0;
    out->transfer_gb = (double)result->fetched_bytes / 1e9;
    out->moved = result->moved;
    out->kills = result->kills;
    out->events = result->events;
    out->sample_count = result->sample_count;
    out->sample_s = (double)result->sample_gap / 1e9;
    for (uint32_t i = 0; i < result->sample_count; i++)
        out->waiting[i] = result->waiting[i];
    bt_free(ttft);
    bt_free(tpot);
    return BT_OK;
}

static void
put(bt_json_writer *w, const char *key, double value, double digits)
{
    bt_json_put_real(w, key, round(value * digits) / digits);
}

static void
put_spread(bt_json_writer *w, const char *key, const sim_spread *spread)
{
    bt_json_begin_object(w, key);
    put(w, "p50", spread->p50, 1000);
    put(w, "p90", spread->p90, 1000);
    put(w, "p99", spread->p99, 1000);
    put(w, "mean", spread->mean, 1000);
    bt_json_end(w);
}

static void
put_run(bt_json_writer *w, const sim_summary *run)
{
    bt_json_begin_object(w, NULL);
    bt_json_put_text(w, "policy", bt_str_of(run->policy));
    bt_json_put_bool(w, "disaggregated", run->disaggregated);
    bt_json_put_int(w, "prefill", run->prefills);
    bt_json_put_int(w, "decode", run->decodes);
    put_spread(w, "ttft_ms", &run->ttft_ms);
    put_spread(w, "tpot_ms", &run->tpot_ms);
    put(w, "goodput_share", run->good_share, 1e5);
    put(w, "goodput_per_s", run->good_s, 1000);
    put(w, "answer_tokens_per_s", run->answer_tokens_s, 10);
    put(w, "hit_rate", run->hit_rate, 1e5);
    put(w, "remote_share", run->remote_share, 1e5);
    put(w, "prefill_busy", run->prefill_busy, 1e4);
    put(w, "decode_busy", run->decode_busy, 1e4);
    put(w, "transfer_gb", run->transfer_gb, 10);
    put(w, "seconds", run->seconds, 1000);
    bt_json_put_int(w, "done", run->done);
    bt_json_put_int(w, "refused", run->refused);
    bt_json_put_int(w, "lost", run->lost);
    bt_json_put_int(w, "moved", (int64_t)run->moved);
    bt_json_put_int(w, "kills", (int64_t)run->kills);
    bt_json_put_int(w, "events", (int64_t)run->events);
    bt_json_end(w);
}

void
sim_report_json(const sim_report *report, bt_buf *out)
{
    const sim_setup *setup = report->setup;
    bt_json_writer w;

    bt_json_write(&w, out);
    bt_json_begin_object(&w, NULL);
    bt_json_put_text(&w, "trace", bt_str_of(report->trace_name));
    bt_json_put_int(&w, "requests", setup->trace->count);
    bt_json_put_text(&w, "profile", bt_str_of(setup->profile->name));
    bt_json_put_text(&w, "profile_about", bt_str_of(setup->profile->about));
    put(&w, "rate", setup->rate, 1e6);
    bt_json_put_int(&w, "seed", (int64_t)setup->seed);
    bt_json_put_int(&w, "token_unit", setup->unit);
    bt_json_put_bool(&w, "two_weights", setup->two_weights);
    put(&w, "slo_ttft_ms", report->slo_ttft_ms, 1000);
    put(&w, "slo_tpot_ms", report->slo_tpot_ms, 1000);
    bt_json_begin_object(&w, "reuse");
    put(&w, "node_tokens", report->kv_node, 1);
    put(&w, "one_node", report->reuse_node, 1e5);
    put(&w, "one_pool", report->reuse_pool, 1e5);
    put(&w, "endless", report->reuse_endless, 1e5);
    bt_json_end(&w);
    bt_json_begin_array(&w, "runs");
    for (uint32_t i = 0; i < report->run_count; i++)
        put_run(&w, &report->runs[i]);
    bt_json_end(&w);
    bt_json_end(&w);
}

void
sim_report_text(const sim_report *report, bt_buf *out)
{
    const sim_setup *setup = report->setup;

    bt_buf_printf(out, "%s: %u requests, %g times as fast; %s%s", report->trace_name, setup->trace->count, setup->rate,
                  setup->profile->name, setup->two_weights ? ", two weights" : "");
    if (setup->unit > 1)
        bt_buf_printf(out, "; a simulated token stands for %u", setup->unit);
    bt_buf_printf(out, "\nreuse: one node's cache %.1f %%, all as one %.1f %%, without end %.1f %%\n\n",
                  100 * report->reuse_node, 100 * report->reuse_pool, 100 * report->reuse_endless);
    bt_buf_printf(out, "%-12s %-8s %23s  %20s  %15s %8s %6s %6s %5s %5s\n", "placement", "nodes", "TTFT ms p50/p90/p99",
                  "TPOT p50/p90/p99", "goodput", "tok/s", "hits", "remote", "moved", "lost");
    for (uint32_t i = 0; i < report->run_count; i++) {
        const sim_summary *run = &report->runs[i];

        bt_buf_printf(
            out, "%-12s %3uP%3uD %8.0f%8.0f%8.0f  %6.1f%7.1f%7.1f  %5.1f/s %5.1f %% %8.0f %5.1f%% %5.1f%% %5llu %5u",
            run->policy, run->prefills, run->decodes, run->ttft_ms.p50, run->ttft_ms.p90, run->ttft_ms.p99,
            run->tpot_ms.p50, run->tpot_ms.p90, run->tpot_ms.p99, run->good_s, 100 * run->good_share,
            run->answer_tokens_s, 100 * run->hit_rate, 100 * run->remote_share, (unsigned long long)run->moved,
            run->lost);
        bt_buf_printf(out, run->refused > 0 ? " (%u refused)\n" : "\n", run->refused);
    }
}
