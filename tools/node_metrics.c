#include "tools/node_metrics.h"

#include <stddef.h>
#include <stdio.h>

#define COUNTER(at, name, help)                                                                                        \
    {                                                                                                                  \
        BT_METRIC_COUNTER, at, name, help, NULL, NULL                                                                  \
    }
#define GAUGE(at, name, help)                                                                                          \
    {                                                                                                                  \
        BT_METRIC_GAUGE, at, name, help, NULL, NULL                                                                    \
    }
#define SECONDS(at, name, help)                                                                                        \
    {                                                                                                                  \
        BT_METRIC_SECONDS_TOTAL, at, name, help, NULL, NULL                                                            \
    }

// ---- a pool and its steps, of either kind of node ----

typedef struct {
    double blocks, blocks_free, blocks_cached, usage, leak, batch, hit_rate;
    uint64_t queries; // tokens that the prefix cache was asked for
} pool_gauges;

#define POOL_ROWS(at)                                                                                                  \
    GAUGE((at) + offsetof(pool_gauges, blocks), "baton:kv_blocks", "Blocks of the KV pool."),                          \
        GAUGE((at) + offsetof(pool_gauges, blocks_free), "baton:kv_blocks_free", "On no table and in no cache."),      \
        GAUGE((at) + offsetof(pool_gauges, blocks_cached), "baton:kv_blocks_cached",                                   \
              "In the prefix cache and unheld."),                                                                      \
        GAUGE((at) + offsetof(pool_gauges, usage), "baton:kv_cache_usage_perc",                                        \
              "Share of the blocks that sequences hold, 0 to 1."),                                                     \
        GAUGE((at) + offsetof(pool_gauges, leak), "baton:kv_leak_blocks",                                              \
              "Blocks that nobody accounts for; always 0."),                                                           \
        GAUGE((at) + offsetof(pool_gauges, batch), "baton:batch_fill", "Sequences a step, mean since start."),         \
        COUNTER((at) + offsetof(pool_gauges, queries), "baton:prefix_cache_queries_total",                             \
                "Prompt tokens that were looked for: hits and misses."),                                               \
        GAUGE((at) + offsetof(pool_gauges, hit_rate), "baton:prefix_cache_hit_rate",                                   \
              "Share of them that was found, 0 to 1, since start.")

static double
share(uint64_t part, uint64_t whole)
{
    return whole != 0 ? (double)part / (double)whole : 0;
}

static void
fill_blocks(pool_gauges *pool, uint32_t blocks, uint32_t blocks_free, uint32_t blocks_cached, int64_t leak)
{
    pool->blocks = blocks;
    pool->blocks_free = blocks_free;
    pool->blocks_cached = blocks_cached;
    pool->usage = blocks != 0 ? 1 - ((double)blocks_free + blocks_cached) / blocks : 0;
    pool->leak = (double)leak;
}

static void
fill_hits(pool_gauges *pool, uint64_t found, uint64_t computed)
{
    pool->queries = found + computed;
    pool->hit_rate = share(found, found + computed);
}

// ---- decode ----

typedef struct {
    pool_gauges pool;
    double waiting, fetching, decoding, prefilling, sources;
    bt_decode_stats stats;
} decode_metrics;

#define DECODE(field) offsetof(decode_metrics, field)
#define DECODE_STAT(field) (offsetof(decode_metrics, stats) + offsetof(bt_decode_stats, field))

static const bt_metric decode_table[] = {
    POOL_ROWS(DECODE(pool)),
    GAUGE(DECODE(waiting), "baton:sequences_waiting", "Sequences that wait for room."),
    GAUGE(DECODE(fetching), "baton:sequences_fetching", "Sequences whose blocks are coming from a prefill node."),
    GAUGE(DECODE(decoding), "baton:sequences_decoding", "Sequences that are being written."),
    GAUGE(DECODE(prefilling), "baton:sequences_prefilling", "Sequences whose prompt is being read."),
    GAUGE(DECODE(sources), "baton:sources", "Prefill nodes whose blocks can be fetched."),
    COUNTER(DECODE_STAT(prompt_tokens), "baton:prefix_cache_misses_total", "Prompt tokens that were computed."),
    COUNTER(DECODE_STAT(cached_tokens), "baton:prefix_cache_hits_total", "Prompt tokens that were found."),
    COUNTER(DECODE_STAT(answer_tokens), "baton:answer_tokens_total", "Tokens of answers that were drawn here."),
    COUNTER(DECODE_STAT(steps), "baton:engine_steps_total", "Steps."),
    COUNTER(DECODE_STAT(step_tokens), "baton:engine_tokens_total", "Tokens of all steps."),
    SECONDS(DECODE_STAT(step_time), "baton:engine_seconds_total", "Time in steps."),
    COUNTER(DECODE_STAT(dropped_tokens), "baton:engine_dropped_tokens_total",
            "Drawn for sequences that had ended meanwhile."),
    COUNTER(DECODE_STAT(failed_steps), "baton:engine_failed_steps_total", "Steps that failed."),
    COUNTER(DECODE_STAT(finished), "baton:node_finished_total", "Sequences that came to their end."),
    COUNTER(DECODE_STAT(aborted), "baton:node_aborted_total", "Sequences that were cancelled."),
    COUNTER(DECODE_STAT(expired), "baton:node_expired_total", "Sequences whose lease or time ran out."),
    COUNTER(DECODE_STAT(refused_busy), "baton:node_refused_busy_total", "Reservations that found the queue full."),
    COUNTER(DECODE_STAT(fetches), "baton:fetches_total", "Fetches that were begun."),
    COUNTER(DECODE_STAT(refetches), "baton:refetches_total", "Fetches of blocks that had come bad or not at all."),
    COUNTER(DECODE_STAT(lost_fetches), "baton:lost_fetches_total", "Sequences that ended since blocks did not come."),
    COUNTER(DECODE_STAT(fetched_sequences), "baton:fetched_sequences_total",
            "Sequences whose prompt came from a prefill node."),
    SECONDS(DECODE_STAT(handover_time), "baton:handover_seconds_total",
            "Of those: from the last offer of blocks until all were here."),
    COUNTER(DECODE_STAT(late_messages), "baton:late_messages_total", "About sequences that were gone."),
    COUNTER(DECODE_STAT(bad_messages), "baton:bad_messages_total", "Messages that made no sense."),
    COUNTER(DECODE_STAT(refused_sources), "baton:refused_peers_total",
            "HELLOs of nodes of another model, weights or layout."),
    {0},
};

void
bt_decode_metrics_write(bt_buf *out, const bt_decode_node *node, const char *labels)
{
    decode_metrics m = {0};
    const bt_decode_stats *s = &m.stats;

    bt_decode_node_stats(node, &m.stats);
    fill_blocks(&m.pool, s->blocks, s->blocks_free, s->blocks_cached, s->leak);
    fill_hits(&m.pool, s->cached_tokens, s->prompt_tokens);
    m.pool.batch = share(s->step_items, s->steps);
    m.waiting = s->waiting;
    m.fetching = s->fetching;
    m.decoding = s->decoding;
    m.prefilling = s->prefilling;
    m.sources = s->sources;
    bt_metrics_write(out, decode_table, &m, labels);
}

// ---- prefill ----

typedef struct {
    pool_gauges pool;
    double waiting, reading, holding;
    bt_prefill_node_stats stats;
} prefill_metrics;

#define PREFILL(field) offsetof(prefill_metrics, field)
#define PREFILL_EDGE(field) (offsetof(prefill_metrics, stats) + offsetof(bt_prefill_node_stats, field))
#define PREFILL_STAT(field) (PREFILL_EDGE(core) + offsetof(bt_prefill_stats, field))

static const bt_metric prefill_table[] = {
    POOL_ROWS(PREFILL(pool)),
    GAUGE(PREFILL(waiting), "baton:prompts_waiting", "Prompts that wait for blocks."),
    GAUGE(PREFILL(reading), "baton:prompts_reading", "Prompts that are being read."),
    GAUGE(PREFILL(holding), "baton:prompts_holding", "Prompts that are read and held for a decode node."),
    COUNTER(PREFILL_STAT(prompt_tokens), "baton:prefix_cache_misses_total", "Prompt tokens that were computed."),
    COUNTER(PREFILL_STAT(cached_tokens), "baton:prefix_cache_hits_total", "Prompt tokens that were found."),
    COUNTER(PREFILL_STAT(steps), "baton:engine_steps_total", "Steps."),
    COUNTER(PREFILL_STAT(step_tokens), "baton:engine_tokens_total", "Tokens of all steps."),
    SECONDS(PREFILL_STAT(step_time), "baton:engine_seconds_total", "Time in steps."),
    COUNTER(PREFILL_STAT(failed_steps), "baton:engine_failed_steps_total", "Steps that failed."),
    COUNTER(PREFILL_STAT(read), "baton:node_finished_total", "Prompts that were read to their end."),
    COUNTER(PREFILL_STAT(taken), "baton:prompts_taken_total", "Prompts whose blocks were all fetched."),
    COUNTER(PREFILL_STAT(aborted), "baton:node_aborted_total", "Prompts that were cancelled."),
    COUNTER(PREFILL_STAT(expired), "baton:node_expired_total", "Prompts whose lease or time ran out."),
    COUNTER(PREFILL_STAT(refused_busy), "baton:node_refused_busy_total", "Prompts that found no place."),
    COUNTER(PREFILL_STAT(offers), "baton:offers_total", "Offers of finished blocks."),
    COUNTER(PREFILL_STAT(offered_blocks), "baton:offered_blocks_total", "Blocks in them."),
    COUNTER(PREFILL_EDGE(stamped_blocks), "baton:stamped_blocks_total", "Finished blocks that got their checksum."),
    SECONDS(PREFILL_EDGE(stamp_time), "baton:stamp_seconds_total", "Time for the checksums of finished blocks."),
    COUNTER(PREFILL_STAT(late_messages), "baton:late_messages_total", "About prompts that were gone."),
    COUNTER(PREFILL_STAT(bad_messages), "baton:bad_messages_total", "Messages that made no sense."),
    COUNTER(PREFILL_STAT(refused_peers), "baton:refused_peers_total", "HELLOs of nodes of another model or layout."),
    {0},
};

void
bt_prefill_metrics_write(bt_buf *out, const bt_prefill_node *node, const char *labels)
{
    prefill_metrics m = {0};
    const bt_prefill_stats *s = &m.stats.core;

    bt_prefill_node_get_stats(node, &m.stats);
    fill_blocks(&m.pool, s->blocks, s->blocks_free, s->blocks_cached, s->leak);
    fill_hits(&m.pool, s->cached_tokens, s->prompt_tokens);
    m.pool.batch = share(s->step_items, s->steps);
    m.waiting = s->waiting;
    m.reading = s->reading;
    m.holding = s->holding;
    bt_metrics_write(out, prefill_table, &m, labels);
}

// ---- the plane ----

typedef struct {
    double fetches, connected, rate;
    bt_plane_stats stats;
} plane_metrics;

#define PLANE(field) offsetof(plane_metrics, field)
#define PLANE_STAT(field) (offsetof(plane_metrics, stats) + offsetof(bt_plane_stats, field))
#define TRANSFER(field) (PLANE_STAT(transfer) + offsetof(bt_transfer_stats, field))
#define FAILURE(cause, name)                                                                                           \
    {                                                                                                                  \
        BT_METRIC_COUNTER, TRANSFER(failures) + (cause) * sizeof(uint64_t), "baton:transfer_failures_total",           \
            "Fetches that failed, by cause.", "cause=\"" name "\"", NULL                                               \
    }

static const bt_metric plane_table[] = {
    GAUGE(PLANE(fetches), "baton:transfer_fetches", "Fetches that are out."),
    GAUGE(PLANE(connected), "baton:transfer_peers", "Connected peers."),
    COUNTER(TRANSFER(fetched_blocks), "baton:transfer_blocks_total", "Blocks that were fetched."),
    COUNTER(TRANSFER(fetched_bytes), "baton:transfer_bytes_total", "Bytes of them."),
    SECONDS(TRANSFER(moving), "baton:transfer_seconds_total", "Durations of all operations added up."),
    GAUGE(PLANE(rate), "baton:transfer_bytes_per_second", "Bytes by that time: what one operation moves."),
    COUNTER(TRANSFER(served_bytes), "baton:transfer_served_bytes_total",
            "Bytes that others fetched here, where this side takes part."),
    FAILURE(BT_TRANSFER_CAUSE_EPOCH, "epoch"),
    FAILURE(BT_TRANSFER_CAUSE_GENERATION, "generation"),
    FAILURE(BT_TRANSFER_CAUSE_CHECKSUM, "checksum"),
    FAILURE(BT_TRANSFER_CAUSE_TIMEOUT, "timeout"),
    FAILURE(BT_TRANSFER_CAUSE_PEER, "peer"),
    FAILURE(BT_TRANSFER_CAUSE_REFUSED, "refused"),
    FAILURE(BT_TRANSFER_CAUSE_ENDED, "ended"),
    COUNTER(PLANE_STAT(lost), "baton:transfer_lost_total", "Peers that were lost."),
    COUNTER(PLANE_STAT(proofs_failed), "baton:transfer_proofs_failed_total", "Self-tests that failed."),
    SECONDS(PLANE_STAT(cpu_time), "baton:transfer_cpu_seconds_total", "CPU time of the transfer's thread."),
    {0},
};

void
bt_plane_metrics_write(bt_buf *out, const bt_plane *plane, const char *labels)
{
    plane_metrics m = {0};

    bt_plane_get_stats(plane, &m.stats);
    m.fetches = m.stats.fetches;
    m.connected = m.stats.connected;
    if (m.stats.transfer.moving > 0)
        m.rate = (double)m.stats.transfer.fetched_bytes * BT_SECOND / (double)m.stats.transfer.moving;
    bt_metrics_write(out, plane_table, &m, labels);
}

static void
write_peer(bt_buf *out, const char *metric, const char *peer_label, const bt_plane_peer *peer, const char *labels,
           double value)
{
    bt_buf_printf(out, "%s{%s%s%s,path=\"%s\",transport=\"%s\"} %.9g\n", metric, labels != NULL ? labels : "",
                  labels != NULL ? "," : "", peer_label, bt_transfer_path_name(peer->transfer.path),
                  peer->transfer.transport, value);
}

static void
write_peer_row(bt_buf *out, const bt_plane *plane, uint32_t peers, const char *const *names, const char *labels,
               bool rate)
{
    bt_plane_peer peer;
    char number[16];
    bt_buf label;

    bt_buf_init(&label, 4096);
    for (uint32_t i = 0; i < peers; i++) {
        if (!bt_plane_get_peer(plane, i, &peer))
            continue;
        snprintf(number, sizeof number, "%u", i);
        bt_buf_clear(&label);
        bt_metrics_label(&label, "peer", names != NULL ? names[i] : number);
        write_peer(out, rate ? "baton:transfer_peer_gb_per_s" : "baton:transfer_peer_bytes_total", label.data, &peer,
                   labels, rate ? peer.transfer.gb_per_s : (double)peer.transfer.bytes);
    }
    bt_buf_fini(&label);
}

void
bt_plane_peers_write(bt_buf *out, const bt_plane *plane, uint32_t peers, const char *const *names, const char *labels)
{
    bt_buf_append_text(out, "# HELP baton:transfer_peer_gb_per_s Of the peer's self-test.\n"
                            "# TYPE baton:transfer_peer_gb_per_s gauge\n");
    write_peer_row(out, plane, peers, names, labels, true);
    bt_buf_append_text(out, "# HELP baton:transfer_peer_bytes_total Fetched from the peer.\n"
                            "# TYPE baton:transfer_peer_bytes_total counter\n");
    write_peer_row(out, plane, peers, names, labels, false);
}

// ---- the link ----

#define LINK(field) offsetof(bt_nng_link_stats, field)

static const bt_metric link_table[] = {
    COUNTER(LINK(ups), "baton:link_ups_total", "Connections that came up."),
    COUNTER(LINK(downs), "baton:link_downs_total", "And that went down."),
    COUNTER(LINK(refused), "baton:link_refused_total", "Strangers, and those with a wrong secret."),
    COUNTER(LINK(foreign), "baton:link_foreign_total", "Frames that were not ours, or malformed."),
    COUNTER(LINK(gaps), "baton:link_gaps_total", "Connections closed since something was lost on the way."),
    COUNTER(LINK(frames_sent), "baton:link_frames_sent_total", "Frames sent."),
    COUNTER(LINK(frames_received), "baton:link_frames_received_total", "Frames received."),
    {0},
};

void
bt_link_metrics_write(bt_buf *out, const bt_link *link, const char *labels)
{
    bt_nng_link_stats stats;

    bt_nng_link_read_stats(link, &stats);
    bt_metrics_write(out, link_table, &stats, labels);
}
