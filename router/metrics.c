#include "router/metrics.h"

#include <stddef.h>

#define AT(field) offsetof(bt_router_metrics, field)
#define PHASE(index, name)                                                                                             \
    {                                                                                                                  \
        BT_METRIC_HISTOGRAM, AT(phases) + (index) * sizeof(bt_histogram), "baton:time_to_first_token_phase_seconds",   \
            "Where the time to the first token went; the phases sum to it.", "phase=\"" name "\"", &bt_latency_buckets \
    }
#define DONE(field, name)                                                                                              \
    {                                                                                                                  \
        BT_METRIC_COUNTER, AT(field), "baton:request_success_total",                                                   \
            "Requests that were answered, by how they ended.", "finished_reason=\"" name "\"", NULL                    \
    }
#define REJECTED(field, name)                                                                                          \
    {                                                                                                                  \
        BT_METRIC_COUNTER, AT(field), "baton:requests_rejected_total", "Requests that were refused before any work.",  \
            "reason=\"" name "\"", NULL                                                                                \
    }
#define HTTP(field, name)                                                                                              \
    {                                                                                                                  \
        BT_METRIC_COUNTER, AT(field), "baton:http_requests_total", "Answers by status.", "status=\"" name "\"", NULL   \
    }

#define MOVED(cause, name)                                                                                             \
    {                                                                                                                  \
        BT_METRIC_COUNTER, AT(core.moves_by) + (cause) * sizeof(uint64_t), "baton:request_moves_total",                \
            "Requests that went on at another node, by why; an error is a retry.", "cause=\"" name "\"", NULL          \
    }
#define RETRIED_FOR(err, name)                                                                                         \
    {                                                                                                                  \
        BT_METRIC_COUNTER, AT(core.retries_by) + (err) * sizeof(uint64_t), "baton:request_retries_by_cause_total",     \
            "The same, by what the node said.", "cause=\"" name "\"", NULL                                             \
    }
#define RETRIED(role, name)                                                                                            \
    {                                                                                                                  \
        BT_METRIC_COUNTER, AT(core.retries) + (role) * sizeof(uint64_t), "baton:request_retries_total",                \
            "Errors that were tried again, by the kind of node that failed.", "role=\"" name "\"", NULL                \
    }

const bt_metric bt_router_metrics_table[] = {
    {BT_METRIC_GAUGE, AT(ready), "baton:ready", "1 when requests are taken.", NULL, NULL},
    {BT_METRIC_GAUGE, AT(running), "baton:num_requests_running", "Sequences that nodes work on.", NULL, NULL},
    {BT_METRIC_GAUGE, AT(waiting), "baton:num_requests_waiting", "Sequences that wait for a node.", NULL, NULL},
    {BT_METRIC_GAUGE, AT(nodes), "baton:nodes_ready", "Nodes that are connected and fit.", NULL, NULL},
    {BT_METRIC_GAUGE, AT(calls), "baton:http_calls_open", "HTTP calls that are not answered yet.", NULL, NULL},
    {BT_METRIC_GAUGE, AT(choices), "baton:answers_open", "Answers (choices) that are being written.", NULL, NULL},
    {BT_METRIC_GAUGE, AT(connections), "baton:http_connections", "Open connections.", NULL, NULL},
    {BT_METRIC_GAUGE, AT(leak), "baton:router_leak", "Load that no request accounts for; always 0.", NULL, NULL},
    {BT_METRIC_GAUGE, AT(resident_bytes), "process_resident_memory_bytes", "Resident memory.", NULL, NULL},
    {BT_METRIC_GAUGE, AT(uptime), "baton:uptime_seconds", "Since start.", NULL, NULL},
    {BT_METRIC_COUNTER, AT(prompt_tokens), "baton:prompt_tokens_total", "Tokens of prompts.", NULL, NULL},
    {BT_METRIC_COUNTER, AT(cached_tokens), "baton:prompt_tokens_cached_total",
     "Tokens of prompts that were found in a prefix cache.", NULL, NULL},
    {BT_METRIC_COUNTER, AT(generation_tokens), "baton:generation_tokens_total",
     "Tokens of answers, of those that were left too.", NULL, NULL},
    DONE(done_stop, "stop"),
    DONE(done_length, "length"),
    DONE(done_mixed, "mixed"),
    {BT_METRIC_COUNTER, AT(cancelled), "baton:request_cancelled_total", "Requests whose client went away.", NULL, NULL},
    {BT_METRIC_COUNTER, AT(failed), "baton:request_failed_total", "Requests that ended with an error of ours.", NULL,
     NULL},
    {BT_METRIC_COUNTER, AT(degraded), "baton:request_degraded_total",
     "Requests whose prompt was read by other weights than it should have been.", NULL, NULL},
    {BT_METRIC_COUNTER, AT(core.remote), "baton:remote_prefills_total", "Prompts that were given to prefill nodes.",
     NULL, NULL},
    {BT_METRIC_COUNTER, AT(core.remote_failed), "baton:remote_prefills_failed_total",
     "Prompts that were not read there, or whose blocks did not come.", NULL, NULL},
    MOVED(BT_MOVE_LOST, "node_lost"),
    MOVED(BT_MOVE_SOURCE, "source_lost"),
    MOVED(BT_MOVE_ENDED, "ended"),
    MOVED(BT_MOVE_ERROR, "error"),
    RETRIED(BT_NODE_DECODE, "decode"),
    RETRIED(BT_NODE_PREFILL, "prefill"),
    RETRIED_FOR(BT_ERR_PEER, "peer"),
    RETRIED_FOR(BT_ERR_DEVICE, "device"),
    RETRIED_FOR(BT_ERR_NO_MEMORY, "no_memory"),
    RETRIED_FOR(BT_ERR_IO, "io"),
    RETRIED_FOR(BT_ERR_BUG, "bug"),
    RETRIED_FOR(BT_ERR_UNSUPPORTED, "unsupported"),
    RETRIED_FOR(BT_ERR_NOT_FOUND, "not_found"),
    {BT_METRIC_COUNTER, AT(core.retries_refused), "baton:request_retries_refused_total",
     "Errors that went to the client: two retries were in vain, or errors are too many.", NULL, NULL},
    {BT_METRIC_COUNTER, AT(core.breakers_opened), "baton:breakers_opened_total",
     "Times that a node was passed over for a while because it failed requests.", NULL, NULL},
    {BT_METRIC_COUNTER, AT(core.deadlines_missed), "baton:request_timeouts_total",
     "Requests that were not done within their time.", NULL, NULL},
    {BT_METRIC_COUNTER, AT(core.late_messages), "baton:router_late_messages_total",
     "Of nodes, about requests that were over.", NULL, NULL},
    {BT_METRIC_COUNTER, AT(core.bad_messages), "baton:router_bad_messages_total", "Of nodes, that made no sense.", NULL,
     NULL},
    REJECTED(rejected_invalid, "invalid"),
    REJECTED(rejected_too_long, "too_long"),
    REJECTED(rejected_busy, "busy"),
    REJECTED(rejected_auth, "auth"),
    REJECTED(rejected_not_ready, "not_ready"),
    HTTP(http_2xx, "2xx"),
    HTTP(http_4xx, "4xx"),
    HTTP(http_5xx, "5xx"),
    {BT_METRIC_HISTOGRAM, AT(ttft), "baton:time_to_first_token_seconds",
     "From the request's last byte to its first token.", NULL, &bt_latency_buckets},
    PHASE(0, "route"),
    PHASE(1, "queue_prefill"),
    PHASE(2, "prefill"),
    PHASE(3, "transfer_wait"),
    PHASE(4, "transfer"),
    PHASE(5, "queue_decode"),
    PHASE(6, "first_token"),
    {BT_METRIC_HISTOGRAM, AT(inter_token), "baton:inter_token_latency_seconds", "Between two tokens of an answer.",
     NULL, &bt_latency_buckets},
    {BT_METRIC_HISTOGRAM, AT(per_output_token), "baton:request_time_per_output_token_seconds",
     "Mean time between an answer's tokens.", NULL, &bt_latency_buckets},
    {BT_METRIC_HISTOGRAM, AT(total), "baton:e2e_request_latency_seconds", "From the request's last byte to its end.",
     NULL, &bt_latency_buckets},
    {BT_METRIC_HISTOGRAM, AT(queue), "baton:request_queue_time_seconds", "Waiting for a node and in its queue.", NULL,
     &bt_latency_buckets},
    {BT_METRIC_HISTOGRAM, AT(prefill), "baton:request_prefill_time_seconds", "Steps of the node that read the prompt.",
     NULL, &bt_latency_buckets},
    {BT_METRIC_HISTOGRAM, AT(decode), "baton:request_decode_time_seconds", "From the first token to the end.", NULL,
     &bt_latency_buckets},
    {BT_METRIC_HISTOGRAM, AT(transfer), "baton:request_transfer_time_seconds",
     "Of prompts that were read elsewhere: from the last offer of blocks until all were at the decode node.", NULL,
     &bt_latency_buckets},
    {BT_METRIC_HISTOGRAM, AT(text), "baton:request_text_time_seconds", "Parsing, rendering and tokenizing.", NULL,
     &bt_latency_buckets},
    {BT_METRIC_HISTOGRAM, AT(prompt_length), "baton:request_prompt_tokens", "Tokens of a prompt.", NULL,
     &bt_token_buckets},
    {BT_METRIC_HISTOGRAM, AT(generation_length), "baton:request_generation_tokens", "Tokens of an answer.", NULL,
     &bt_token_buckets},
    {0},
};

void
bt_router_metrics_note_phases(bt_router_metrics *metrics, const bt_phases *phases)
{
    const bt_time times[7] = {phases->route,    phases->queue_prefill, phases->prefill,    phases->transfer_wait,
                              phases->transfer, phases->queue_decode,  phases->first_token};

    for (int i = 0; i < 7; i++) {
        bt_histogram_add_time(&metrics->phases[i], &bt_latency_buckets, times[i]);
    }
    bt_histogram_add_time(&metrics->prefill, &bt_latency_buckets, phases->prefill);
    bt_histogram_add_time(&metrics->queue, &bt_latency_buckets,
                          phases->route + phases->queue_prefill + phases->queue_decode);
}
