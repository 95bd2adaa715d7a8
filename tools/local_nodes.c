#include "tools/local_nodes.h"
#include "tools/node_metrics.h"
#include "tools/program.h"

#include "common/engine/outlook.h"
#include "common/model/card.h"
#include "common/node/bundle.h"
#include "common/node/loopback.h"

#include <stddef.h>

#define LINK_BYTES (32u << 20)

static bool
is_pair(const bt_local_nodes *nodes)
{
    return nodes->options.prompt_weights != BT_LOCAL_ONE_WEIGHTS;
}

// ---- engines ----

// Each of two engines plans with what is free before either is there: half is its share.
static bt_err
share_memory(bt_local_nodes *nodes, bt_why *why)
{
    bt_engine_options options = bt_engine_settings_options(&nodes->options.engine, "");
    size_t *memory = &nodes->options.engine.memory;
    bt_err err = BT_OK;

    if (*memory == 0 && (err = bt_engine_available(&options.device, memory, why)) == BT_OK &&
        options.device.kind != BT_DEVICE_CPU)
        *memory -= *memory / 10; // a tenth of a GPU stays free
    *memory /= 2;
    return err;
}

static bt_machine_options
machine_options(const bt_local_nodes *nodes, bool prefill)
{
    const bt_local_nodes_options *o = &nodes->options;
    bt_engine_settings settings = o->engine;
    bt_machine_options options = {
        .shared = is_pair(nodes),
        .transfer = {.epoch = nodes->epochs[prefill], .path = BT_TRANSFER_PATH_DIRECT, .listen = "127.0.0.1:0"},
        .plane = {.wake = o->wake, .wake_arg = o->wake_arg, .peers_max = 1, .fetches_max = 1, .fetch_blocks_max = 1},
    };

    if (prefill) {
        settings.weights = o->prompt_weights;
        options.plane.peers_max = BT_PREFILL_PEERS_MAX;
    } else {
        options.plane.fetches_max = settings.max_sequences;
        options.plane.fetch_blocks_max = BT_DECODE_FETCH_BLOCKS;
    }
    options.engine = bt_engine_settings_options(&settings, o->model);
    options.engine.kv_out = prefill;
    return options;
}

static bt_err
load_prefill(bt_local_nodes *nodes, const bt_machine_options *decoding, bt_why *why)
{
    bt_machine_options options = machine_options(nodes, true);
    bt_model_options models[] = {decoding->engine.model, options.engine.model};
    bt_model_names names[2]; // of those who decode, of those who read prompts
    bt_err err = bt_model_foresee(options.engine.model.path, models, names, 2, why);

    if (err != BT_OK)
        return err;
    nodes->prompt_weights = names[1].digest;
    if (names[0].family != names[1].family)
        return bt_fail(why, BT_ERR_INVALID,
                       "prompt_weights: %s and weights: %s do not read each other's caches: both are made at load (w8, "
                       "q4), or both are as in the file",
                       bt_settings_weights[nodes->options.prompt_weights],
                       bt_settings_weights[nodes->options.engine.weights]);
    return bt_machine_load(&nodes->prefilling, &options, why);
}

bt_err
bt_local_nodes_load(bt_local_nodes *nodes, const bt_local_nodes_options *options, bt_why *why)
{
    bt_machine_options decoding;
    bt_err err;

    *nodes = (bt_local_nodes){.options = *options};
    nodes->epochs[0] = bt_program_draw_epoch();
    nodes->epochs[1] = bt_program_draw_epoch();
    if (is_pair(nodes) && (err = share_memory(nodes, why)) != BT_OK)
        return err;
    decoding = machine_options(nodes, false);
    if (is_pair(nodes) && (err = load_prefill(nodes, &decoding, why)) != BT_OK)
        return err;
    return bt_machine_load(&nodes->decoding, &decoding, why);
}

// ---- links ----

//     router 0 ── decode (last)      router 1 ── prefill 0      decode 0 ── prefill 1
static bt_err
open_links(bt_local_nodes *nodes)
{
    bt_link *router[2] = {NULL}, *decode[2] = {NULL}, *prefill[2] = {NULL};
    bt_err err;

    if (!is_pair(nodes))
        return bt_loopback_open(&nodes->router_link, &nodes->decode_link, LINK_BYTES);
    if ((err = bt_loopback_open(&router[0], &decode[1], LINK_BYTES)) == BT_OK &&
        (err = bt_loopback_open(&router[1], &prefill[0], LINK_BYTES)) == BT_OK &&
        (err = bt_loopback_open(&decode[0], &prefill[1], LINK_BYTES)) == BT_OK &&
        (err = bt_bundle_open(&nodes->router_link, router, 2)) == BT_OK) {
        router[0] = router[1] = NULL;
        if ((err = bt_bundle_open(&nodes->decode_link, decode, 2)) == BT_OK) {
            decode[0] = decode[1] = NULL;
            if ((err = bt_bundle_open(&nodes->prefill_link, prefill, 2)) == BT_OK)
                prefill[0] = prefill[1] = NULL;
        }
    }
    for (int i = 0; i < 2; i++) {
        bt_link_close(router[i]);
        bt_link_close(decode[i]);
        bt_link_close(prefill[i]);
    }
    return err;
}

// ---- nodes ----

static bt_err
open_prefill(bt_local_nodes *nodes, bt_why *why)
{
    const bt_local_nodes_options *o = &nodes->options;
    bt_prefill_node_options options = {
        .name = "local-prefill",
        .epoch = nodes->epochs[1],
        .max_sequences = o->engine.max_sequences,
        .chunk_tokens = o->engine.chunk_tokens,
        .prompts = o->queue,
        .lone = true,
        .wake = o->wake,
        .wake_arg = o->wake_arg,
    };
    bt_err err = bt_machine_start(&nodes->prefilling, why);

    return err == BT_OK ? bt_prefill_node_open(&nodes->prefill, &options, nodes->prefilling.engine, nodes->prefill_link,
                                               nodes->prefilling.plane, why)
                        : err;
}

static bt_err
open_decode(bt_local_nodes *nodes, bt_why *why)
{
    const bt_local_nodes_options *o = &nodes->options;
    bt_decode_node_options options = {
        .name = "local",
        .epoch = nodes->epochs[0],
        .queue_max = o->queue,
        .max_sequences = o->engine.max_sequences,
        .chunk_tokens = o->engine.chunk_tokens,
        .prefill_share = (float)o->engine.prefill_share,
        .sources = is_pair(nodes),
        .prompt_weights = nodes->prompt_weights,
        .lone = true,
        .wake = o->wake,
        .wake_arg = o->wake_arg,
    };
    bt_err err = bt_machine_start(&nodes->decoding, why);

    return err == BT_OK ? bt_decode_node_open(&nodes->decode, &options, nodes->decoding.engine, nodes->decode_link,
                                              nodes->decoding.plane, why)
                        : err;
}

bt_err
bt_local_nodes_open(bt_local_nodes *nodes, bt_why *why)
{
    bt_err err;

    if (open_links(nodes) != BT_OK)
        return bt_fail(why, BT_ERR_NO_MEMORY, "no memory for the links between router and nodes");
    if (is_pair(nodes) && (err = open_prefill(nodes, why)) != BT_OK)
        return err;
    return open_decode(nodes, why);
}

void
bt_local_nodes_close(bt_local_nodes *nodes)
{
    bt_decode_node_close(nodes->decode);
    bt_prefill_node_close(nodes->prefill);
    bt_link_close(nodes->router_link);
    bt_link_close(nodes->decode_link);
    bt_link_close(nodes->prefill_link);
    bt_machine_close(&nodes->decoding);
    bt_machine_close(&nodes->prefilling);
    *nodes = (bt_local_nodes){0};
}

// Each may have written to the others: some rounds carry a question, its answer and what follows; more waits for the next turn.
bt_time
bt_local_nodes_turn(bt_local_nodes *nodes, bt_time now)
{
    bt_time next = BT_TIME_NEVER;

    for (int round = 0; round < (is_pair(nodes) ? 2 : 1); round++) {
        bt_time prefill = nodes->prefill != NULL ? bt_prefill_node_turn(nodes->prefill, now) : BT_TIME_NEVER;
        bt_time decode = bt_decode_node_turn(nodes->decode, now);

        next = prefill < decode ? prefill : decode;
    }
    return nodes->prefill_link != NULL && bt_link_pending(nodes->prefill_link) ? now : next;
}

bool
bt_local_nodes_ready(const bt_local_nodes *nodes)
{
    bt_decode_source source = {.ready = true};

    if (nodes->prefill != NULL)
        bt_decode_node_source(nodes->decode, 0, &source);
    return source.ready;
}

bool
bt_local_nodes_broken(const bt_local_nodes *nodes)
{
    return bt_decode_node_is_broken(nodes->decode) ||
           (nodes->prefill != NULL && bt_prefill_node_is_broken(nodes->prefill));
}

typedef struct {
    double leak, prompts;
    bt_prefill_stats stats;
} prefill_metrics;

// Under names of its own: one text may not hold two metrics of one name.
static void
write_prefill(const bt_local_nodes *nodes, bt_buf *out, const char *labels)
{
    static const bt_metric table[] = {
        {BT_METRIC_GAUGE, offsetof(prefill_metrics, leak), "baton:prefill_kv_leak_blocks",
         "Blocks of the prefill node that nobody accounts for; always 0.", NULL, NULL},
        {BT_METRIC_GAUGE, offsetof(prefill_metrics, prompts), "baton:prefill_prompts", "Prompts that are at it.", NULL,
         NULL},
        {BT_METRIC_COUNTER, offsetof(prefill_metrics, stats) + offsetof(bt_prefill_stats, prompt_tokens),
         "baton:prefill_prompt_tokens_total", "Prompt tokens that it has computed.", NULL, NULL},
        {0},
    };
    bt_prefill_node_stats stats;
    prefill_metrics m;

    bt_prefill_node_get_stats(nodes->prefill, &stats);
    m.stats = stats.core;
    m.leak = (double)m.stats.leak;
    m.prompts = m.stats.waiting + m.stats.reading + m.stats.holding + m.stats.ending;
    bt_metrics_write(out, table, &m, labels);
}

void
bt_local_nodes_metrics(const bt_local_nodes *nodes, bt_buf *out, const char *labels)
{
    bt_decode_metrics_write(out, nodes->decode, labels);
    if (nodes->prefill != NULL) {
        write_prefill(nodes, out, labels);
        bt_plane_metrics_write(out, nodes->decoding.plane, labels);
        bt_plane_peers_write(out, nodes->decoding.plane, 1, &(const char *){"local-prefill"}, labels);
    }
}
