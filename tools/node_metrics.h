// What nodes have to tell, as Prometheus text: in `baton local` beside the router's, in node programs on their status port.
#pragma once

#include "common/metrics/metrics.h"
#include "common/net/nng_link.h"
#include "common/node/plane.h"
#include "decode-node/main.h"
#include "prefill-node/main.h"

// `labels` stand in each line; NULL = none.
void bt_decode_metrics_write(bt_buf *out, const bt_decode_node *node, const char *labels);
void bt_prefill_metrics_write(bt_buf *out, const bt_prefill_node *node, const char *labels);
void bt_plane_metrics_write(bt_buf *out, const bt_plane *plane, const char *labels);
// A line a connected peer below `peers`: how its blocks come, and how fast. `names` [peers] of them; NULL = by their numbers.
void bt_plane_peers_write(bt_buf *out, const bt_plane *plane, uint32_t peers, const char *const *names,
                          const char *labels);
void bt_link_metrics_write(bt_buf *out, const bt_link *link, const char *labels); // an nng link
