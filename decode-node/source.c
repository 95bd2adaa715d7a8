#include "decode-node/source.h"

#include <string.h>

void
bt_source_proved(bt_decode_core *core, uint32_t peer, uint64_t epoch, bool up)
{
    bt_decode_peer *self = &core->peers[peer];

    if (up && self->up) // else it is news of before the link went
        self->proved = epoch;
    else if (self->proved == epoch)
        self->proved = 0;
}

bool
bt_source_list(bt_decode_core *core)
{
    uint64_t sources[BT_SOURCES_MAX];
    uint32_t count = 0;
    bool changed;

    for (uint32_t peer = BT_DECODE_ROUTERS_MAX; peer < BT_DECODE_PEERS_MAX; peer++) {
        const bt_decode_peer *self = &core->peers[peer];

        if (self->known && self->proved == self->epoch)
            sources[count++] = self->epoch;
    }
    changed = count != core->source_count || memcmp(sources, core->sources, count * sizeof *sources) != 0;
    memcpy(core->sources, sources, count * sizeof *sources);
    core->source_count = count;
    return changed;
}
