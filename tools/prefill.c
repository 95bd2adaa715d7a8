// baton prefill: a prefill node of a cluster.
#include "tools/commands.h"
#include "tools/node.h"
#include "tools/node_metrics.h"

#include <string.h>

static bt_err
prepare(bt_node_program *p, bt_machine_options *options, bt_why *why)
{
    (void)p;
    (void)why;
    options->shared = options->engine.kv_out = true;
    options->plane.peers_max = BT_PREFILL_PEERS_MAX;
    options->plane.fetches_max = options->plane.fetch_blocks_max = 1; // it fetches nothing
    return BT_OK;
}

static bt_err
open_node(bt_node_program *p, bt_why *why)
{
    const bt_node_config *c = p->config;
    bt_prefill_node_options options = {
        .epoch = p->epoch,
        .max_sequences = c->engine.max_sequences,
        .chunk_tokens = c->engine.chunk_tokens,
        .prompts = c->queue,
        .lease = c->lease,
        .wake = bt_program_wake,
        .wake_arg = &p->program,
    };

    memcpy(options.name, c->name, sizeof options.name);
    return bt_prefill_node_open(&p->prefill, &options, p->machine.engine, p->link, p->machine.plane, why);
}

static void
close_node(bt_node_program *p)
{
    bt_prefill_node_close(p->prefill);
}

static bt_time
turn(bt_node_program *p, bt_time now)
{
    return bt_prefill_node_turn(p->prefill, now);
}

static void
drain(bt_node_program *p, bt_time now)
{
    bt_prefill_node_drain(p->prefill, now);
}

static bool
idle(const bt_node_program *p)
{
    return bt_prefill_node_idle(p->prefill);
}

static bool
broken(const bt_node_program *p)
{
    return bt_prefill_node_is_broken(p->prefill);
}

static void
write_metrics(const bt_node_program *p, bt_buf *out, const char *labels)
{
    bt_prefill_metrics_write(out, p->prefill, labels);
}

static void
tell(const bt_node_program *p, bt_json_writer *w)
{
    bt_prefill_node_stats stats;
    const bt_prefill_stats *s = &stats.core;

    bt_prefill_node_get_stats(p->prefill, &stats);
    bt_json_begin_object(w, "prompts");
    bt_json_put_int(w, "waiting", s->waiting);
    bt_json_put_int(w, "reading", s->reading);
    bt_json_put_int(w, "holding", s->holding);
    bt_json_put_int(w, "ending", s->ending);
    bt_json_end(w);
    bt_json_begin_object(w, "kv");
    bt_json_put_int(w, "blocks", s->blocks);
    bt_json_put_int(w, "free", s->blocks_free);
    bt_json_put_int(w, "cached", s->blocks_cached);
    bt_json_put_int(w, "leak", s->leak);
    bt_json_end(w);
}

int
bt_prefill_main(int argc, char **argv)
{
    static const bt_node_kind kind = {
        .command = "baton prefill",
        .event = "PREFILL",
        .usage = "baton prefill --config FILE [--name NAME] [options]",
        .about = "A prefill node of the cluster that the file describes: reads prompts and lends their blocks to "
                 "decode nodes\n"
                 "until those have fetched them. SIGTERM finishes what runs and ends.",
        .example = "  baton prefill --config cluster.yaml --name p1",
        .role = BT_NODE_PREFILL,
        .prepare = prepare,
        .open = open_node,
        .close = close_node,
        .turn = turn,
        .drain = drain,
        .idle = idle,
        .broken = broken,
        .metrics = write_metrics,
        .tell = tell,
    };

    return bt_node_main(&kind, argc, argv);
}
