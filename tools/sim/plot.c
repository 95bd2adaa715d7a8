// The page of a report: its table and three drawings, inline SVG, no script, nothing from elsewhere.
#include "tools/sim/report.h"

#include <math.h>
#include <stdio.h>

#define WIDTH 940.0
#define LEFT 64.0
#define RIGHT 30.0
#define TOP 12.0
#define HEIGHT 300.0
#define BOTTOM 40.0
#define INNER_W (WIDTH - LEFT - RIGHT)
#define INNER_H (HEIGHT - TOP - BOTTOM)

// Okabe and Ito's colours, which people who see red and green alike tell apart.
static const char *const colours[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"};
#define COLOURS (sizeof colours / sizeof *colours)

static const char style[] =
    "<style>:root{--ink:#1c2126;--soft:#69737d;--line:#dfe3e7;--paper:#fff}"
    "@media(prefers-color-scheme:dark){:root{--ink:#e6e9ec;--soft:#98a2ac;--line:#343b42;--paper:#15191d}}"
    "body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:960px;margin:32px "
    "auto;padding:0 16px}"
    "h1{font-size:24px;margin:0}h2{font-size:17px;margin:32px 0 8px}p{color:var(--soft);margin:4px 0}"
    "table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;margin-top:16px}"
    "th,td{text-align:right;padding:5px 8px;border-bottom:1px solid var(--line);white-space:nowrap}"
    "th{font-weight:600;color:var(--soft);font-size:13px}th:first-child,td:first-child{text-align:left}"
    "svg{width:100%;height:auto;display:block}svg text{font:12px system-ui,sans-serif;fill:var(--soft)}"
    ".grid{stroke:var(--line);stroke-width:1}.curve{fill:none;stroke-width:2;stroke-linejoin:round}"
    ".dot{display:inline-block;width:10px;height:10px;border-radius:5px;margin-right:7px}</style>";

static const char *
colour_of(uint32_t run)
{
    return colours[run % COLOURS];
}

static void
put_text(bt_buf *out, const char *text)
{
    for (; *text != 0; text++) {
        if (*text == '<' || *text == '>' || *text == '&' || *text == '"')
            bt_buf_printf(out, "&#%d;", *text);
        else
            bt_buf_append_char(out, *text);
    }
}

static void
put_name(bt_buf *out, const sim_summary *run)
{
    put_text(out, run->policy);
    if (run->prefills > 0)
        bt_buf_printf(out, " %uP+%uD", run->prefills, run->decodes);
    else
        bt_buf_printf(out, " %uD", run->decodes);
}

static void
put_head(bt_buf *out, const sim_report *report)
{
    const sim_setup *setup = report->setup;

    bt_buf_append_text(out, "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport "
                            "content=\"width=device-width\"><title>baton sim</title>");
    bt_buf_append_text(out, style);
    bt_buf_append_text(out, "<h1>");
    put_text(out, report->trace_name);
    bt_buf_printf(out, "</h1><p>%u requests, %g times as fast as they came; ", setup->trace->count, setup->rate);
    put_text(out, setup->profile->name);
    bt_buf_append_text(out, ": ");
    put_text(out, setup->profile->about);
    bt_buf_printf(out, "; seed %llu", (unsigned long long)setup->seed);
    if (setup->unit > 1)
        bt_buf_printf(out, "; a simulated token stands for %u", setup->unit);
    bt_buf_printf(
        out,
        ".</p><p>Goodput: first token within %g ms, then a token each %g ms in the mean. Reuse of prompt tokens: "
        "%.1f %% with one node's cache, %.1f %% with all as one, %.1f %% without end.</p>",
        report->slo_ttft_ms, report->slo_tpot_ms, 100 * report->reuse_node, 100 * report->reuse_pool,
        100 * report->reuse_endless);
}

static void
put_table(bt_buf *out, const sim_report *report)
{
    bt_buf_append_text(out, "<table><tr><th>placement<th>TTFT p50<th>p90<th>p99 ms<th>TPOT p50<th>p90<th>p99 ms"
                            "<th>goodput<th>tok/s<th>hits<th>remote<th>moved<th>lost");
    for (uint32_t i = 0; i < report->run_count; i++) {
        const sim_summary *run = &report->runs[i];

        bt_buf_printf(out, "<tr><td><span class=dot style=\"background:%s\"></span>", colour_of(i));
        put_name(out, run);
        bt_buf_printf(out,
                      "<td>%.0f<td>%.0f<td>%.0f<td>%.1f<td>%.1f<td>%.1f<td>%.1f %%<td>%.0f<td>%.1f %%<td>%.1f "
                      "%%<td>%llu<td>%u",
                      run->ttft_ms.p50, run->ttft_ms.p90, run->ttft_ms.p99, run->tpot_ms.p50, run->tpot_ms.p90,
                      run->tpot_ms.p99, 100 * run->good_share, run->answer_tokens_s, 100 * run->hit_rate,
                      100 * run->remote_share, (unsigned long long)run->moved, run->lost);
    }
    bt_buf_append_text(out, "</table>");
}

static void
begin_drawing(bt_buf *out, const char *title, double height)
{
    bt_buf_printf(out, "<h2>%s</h2><svg viewBox=\"0 0 %g %g\" role=img aria-label=\"%s\">", title, WIDTH, height,
                  title);
}

static void
put_across(bt_buf *out, double share, const char *format, double value)
{
    double y = TOP + INNER_H * (1 - share);

    bt_buf_printf(out, "<path class=grid d=\"M%g %.1fH%g\"/><text x=%g y=%.1f text-anchor=end>", LEFT, y, WIDTH - RIGHT,
                  LEFT - 8, y + 4);
    bt_buf_printf(out, format, value); // NOLINT: the callers' own formats
    bt_buf_append_text(out, "</text>");
}

static void
put_along(bt_buf *out, double share, const char *text)
{
    double x = LEFT + INNER_W * share;

    bt_buf_printf(out, "<path class=grid d=\"M%.1f %gV%g\"/><text x=%.1f y=%g text-anchor=middle>%s</text>", x, TOP,
                  TOP + INNER_H, x, HEIGHT - BOTTOM + 18, text);
}

static void
time_text(double ms, char out[32])
{
    if (ms < 1000)
        snprintf(out, 32, "%g ms", ms);
    else
        snprintf(out, 32, "%g s", ms / 1000);
}

static void
put_distribution(bt_buf *out, const sim_report *report)
{
    double low = 1e9, high = 1, decades;

    for (uint32_t i = 0; i < report->run_count; i++) {
        low = fmin(low, report->runs[i].ttft_curve[0]);
        high = fmax(high, report->runs[i].ttft_curve[SIM_CURVE - 1]);
    }
    low = floor(log10(fmax(low, 0.1)));
    high = ceil(log10(fmax(high, 0.2)));
    decades = fmax(high - low, 1);
    begin_drawing(out, "Time to the first token: share of requests that have it", HEIGHT);
    for (int i = 0; i <= 4; i++)
        put_across(out, i / 4.0, "%g %%", 25.0 * i);
    for (double at = low; at <= low + decades; at++) {
        char text[32];

        time_text(pow(10, at), text);
        put_along(out, (at - low) / decades, text);
    }
    for (uint32_t i = 0; i < report->run_count; i++) {
        bt_buf_printf(out, "<path class=curve stroke=\"%s\" d=\"", colour_of(i));
        for (uint32_t p = 0; p < SIM_CURVE; p++) {
            double x = (log10(fmax(report->runs[i].ttft_curve[p], 0.1)) - low) / decades;

            bt_buf_printf(out, "%c%.1f %.1f", p == 0 ? 'M' : 'L', LEFT + INNER_W * x,
                          TOP + INNER_H * (1 - (p + 1.0) / SIM_CURVE));
        }
        bt_buf_append_text(out, "\"/>");
    }
    bt_buf_append_text(out, "</svg>");
}

// The next step at or above that reads well.
static double
round_up(double value)
{
    static const double steps[] = {1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10};
    double ten = pow(10, floor(log10(fmax(value, 1))));
    int i = 0;

    while (i < 9 && steps[i] * ten < value)
        i++;
    return steps[i] * ten;
}

static void
put_queues(bt_buf *out, const sim_report *report)
{
    double most = 4, seconds = 1;

    for (uint32_t i = 0; i < report->run_count; i++) {
        const sim_summary *run = &report->runs[i];

        seconds = fmax(seconds, run->sample_count * run->sample_s);
        for (uint32_t p = 0; p < run->sample_count; p++)
            most = fmax(most, run->waiting[p]);
    }
    most = 4 * round_up(most / 4);
    begin_drawing(out, "Requests that wait for their first token, over time", HEIGHT);
    for (int i = 0; i <= 4; i++)
        put_across(out, i / 4.0, "%g", most * i / 4);
    for (double at = 0; at <= seconds; at += round_up(seconds / 6)) {
        char text[32];

        snprintf(text, sizeof text, "%g s", at);
        put_along(out, at / seconds, text);
    }
    for (uint32_t i = 0; i < report->run_count; i++) {
        const sim_summary *run = &report->runs[i];

        bt_buf_printf(out, "<path class=curve stroke=\"%s\" d=\"", colour_of(i));
        for (uint32_t p = 0; p < run->sample_count; p++)
            bt_buf_printf(out, "%c%.1f %.1f", p == 0 ? 'M' : 'L', LEFT + INNER_W * p * run->sample_s / seconds,
                          TOP + INNER_H * (1 - run->waiting[p] / most));
        bt_buf_append_text(out, "\"/>");
    }
    bt_buf_append_text(out, "</svg>");
}

static void
put_nodes(bt_buf *out, const sim_report *report)
{
    double strip = 44, height = strip * report->run_count + 8;

    begin_drawing(out, "How busy each node is: the fuller, the more of its time in steps", height);
    for (uint32_t i = 0; i < report->run_count; i++) {
        const sim_summary *run = &report->runs[i];
        uint32_t nodes = run->prefills + run->decodes;
        double wide = WIDTH / nodes, gap = nodes > 200 ? 0 : 2, top = strip * i + 18;

        bt_buf_printf(out, "<text x=0 y=%g>", top - 5);
        put_name(out, run);
        bt_buf_append_text(out, "</text>");
        for (uint32_t n = 0; n < nodes; n++) {
            double full = 22 * fmin(run->busy[n], 1);

            bt_buf_printf(out,
                          "<g><title>%s %u: %.1f %%</title><rect x=%.2f y=%g width=%.2f height=22 fill=\"%s\" "
                          "fill-opacity=.14 /><rect x=%.2f y=%.2f width=%.2f height=%.2f fill=\"%s\"/></g>",
                          n < run->prefills ? "prefill" : "decode", n < run->prefills ? n + 1 : n - run->prefills + 1,
                          100 * run->busy[n], wide * n, top, wide - gap, colour_of(n < run->prefills), wide * n,
                          top + 22 - full, wide - gap, full, colour_of(n < run->prefills));
        }
    }
    bt_buf_append_text(out, "</svg><p>Prefill nodes are orange, decode nodes blue.</p>");
}

void
sim_report_html(const sim_report *report, bt_buf *out)
{
    put_head(out, report);
    put_table(out, report);
    put_distribution(out, report);
    put_queues(out, report);
    put_nodes(out, report);
    bt_buf_append_text(out, "</html>\n");
}
