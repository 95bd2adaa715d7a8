// baton decode: a decode node of a cluster.
#include "common/model/card.h"
#include "tools/commands.h"
#include "tools/node.h"
#include "tools/node_metrics.h"

#include <string.h>

// What reads the prompts that come from prefill nodes, by the settings of those, which are alike (tools/cluster_check.c); and that their
// caches are ours.
static bt_err
foresee(bt_node_program *p, bt_why *why)
{
    const bt_node_config *ours = p->config, *first = &p->cluster.prefill[0];
    bt_model_options options[] = {bt_engine_settings_options(&ours->engine, ours->model).model,
                                  bt_engine_settings_options(&first->engine, ours->model).model};
    bt_model_names names[2]; // ours, theirs
    bt_err err = bt_model_foresee(ours->model, options, names, 2, why);

    if (err != BT_OK) {
        return err;
    }
    p->prompt_weights = names[1].digest;
    if (names[1].family != names[0].family) {
        return bt_fail(why, BT_ERR_INVALID,
                       "weights: %s (of %s) and %s (of prefill node %s) do not read each other's caches: both are made "
                       "at load (w8, q4), or both are as in the file",
                       bt_settings_weights[ours->engine.weights], ours->name,
                       bt_settings_weights[first->engine.weights], first->name);
    }
    return BT_OK;
}

static bt_err
prepare(bt_node_program *p, bt_machine_options *options, bt_why *why)
{
    options->shared = p->cluster.prefill_count > 0;
    options->plane.peers_max = p->cluster.prefill_count;
    options->plane.fetches_max = p->config->engine.max_sequences;
    options->plane.fetch_blocks_max = BT_DECODE_FETCH_BLOCKS;
    return options->shared ? foresee(p, why) : BT_OK;
}

static bt_err
open_node(bt_node_program *p, bt_why *why)
{
    const bt_node_config *c = p->config;
    bt_decode_node_options options = {
        .epoch = p->epoch,
        .queue_max = c->queue,
        .max_sequences = c->engine.max_sequences,
        .chunk_tokens = c->engine.chunk_tokens,
        .prefill_share = (float)c->engine.prefill_share,
        .lease = c->lease,
        .sources = p->cluster.prefill_count,
        .prompt_weights = p->prompt_weights,
        .wake = bt_program_wake,
        .wake_arg = &p->program,
    };

    memcpy(options.name, c->name, sizeof options.name);
    return bt_decode_node_open(&p->decode, &options, p->machine.engine, p->link, p->machine.plane, why);
}

static void
close_node(bt_node_program *p)
{
    bt_decode_node_close(p->decode);
}

static bt_time
turn(bt_node_program *p, bt_time now)
{
    return bt_decode_node_turn(p->decode, now);
}

static void
drain(bt_node_program *p, bt_time now)
{
    bt_decode_node_drain(p->decode, now);
}

static bool
idle(const bt_node_program *p)
{
    return bt_decode_node_idle(p->decode);
}

static bool
broken(const bt_node_program *p)
{
    return bt_decode_node_is_broken(p->decode);
}

static void
write_metrics(const bt_node_program *p, bt_buf *out, const char *labels)
{
    bt_decode_metrics_write(out, p->decode, labels);
}

static void
tell_source(const bt_node_program *p, uint32_t index, bt_json_writer *w)
{
    bt_decode_source source;

    bt_decode_node_source(p->decode, index, &source);
    bt_json_begin_object(w, NULL);
    bt_json_put_text(w, "name", bt_str_of(p->cluster.prefill[index].name));
    bt_json_put_text(w, "link", bt_str_of(p->cluster.prefill[index].link));
    bt_json_put_text(w, "state",
                     bt_str_of(source.refused      ? "refused"
                               : source.ready      ? "ready"
                               : source.epoch != 0 ? "proving"
                                                   : "away"));
    if (source.path[0] != 0) {
        bt_json_put_text(w, "path", bt_str_of(source.path));
        bt_json_put_text(w, "transport", bt_str_of(source.transport));
        bt_json_put_real(w, "gb_per_s", source.gb_per_s);
    }
    bt_json_end(w);
}

static void
tell(const bt_node_program *p, bt_json_writer *w)
{
    bt_decode_stats s;

    bt_decode_node_stats(p->decode, &s);
    bt_json_begin_object(w, "sequences");
    bt_json_put_int(w, "max", p->config->engine.max_sequences);
    bt_json_put_int(w, "waiting", s.waiting);
    bt_json_put_int(w, "granted", s.granted);
    bt_json_put_int(w, "fetching", s.fetching);
    bt_json_put_int(w, "prefilling", s.prefilling);
    bt_json_put_int(w, "decoding", s.decoding);
    bt_json_put_int(w, "ending", s.ending);
    bt_json_end(w);
    bt_json_begin_object(w, "kv");
    bt_json_put_int(w, "blocks", s.blocks);
    bt_json_put_int(w, "free", s.blocks_free);
    bt_json_put_int(w, "cached", s.blocks_cached);
    bt_json_put_int(w, "leak", s.leak);
    bt_json_end(w);
    bt_json_begin_array(w, "sources");
    for (uint32_t i = 0; p->machine.plane != NULL && i < p->cluster.prefill_count; i++) {
        tell_source(p, i, w);
    }
    bt_json_end(w);
}

int
bt_decode_main(int argc, char **argv)
{
    static const bt_node_kind kind = {
        .command = "baton decode",
        .event = "DECODE",
        .usage = "baton decode --config FILE [--name NAME] [options]",
        .about =
            "A decode node of the cluster that the file describes: writes answers, fetches prompts that prefill nodes\n"
            "have read, and reads prompts itself where there is none. SIGTERM finishes what runs and ends.",
        .example = "  baton decode --config cluster.yaml --name d1",
        .role = BT_NODE_DECODE,
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
