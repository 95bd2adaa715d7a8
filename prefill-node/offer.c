#include "prefill-node/offer.h"

static bt_offer_block
name_of(const bt_prefill_core *core, bt_block block)
{
    return (bt_offer_block){block, bt_kv_pool_generation(core->pool, block)};
}

// Puts the prompt's next full block into the prefix index. True when an equal older block took its place: that one is stamped already.
static bool
index_next(bt_prefill_core *core, bt_prompt *prompt)
{
    bt_block *own = &prompt->table.blocks[prompt->indexed];
    const int32_t *ids = prompt->ids + (size_t)prompt->indexed * core->limits.block_tokens;
    bt_block kept = bt_kv_prefix_add(core->prefix, &prompt->at, ids, *own);

    if (kept == BT_BLOCK_NONE) {
        prompt->unindexed = true;
        return false;
    }
    prompt->indexed++;
    if (kept == *own)
        return false;
    bt_kv_pool_hold(core->pool, kept);
    bt_kv_pool_release(core->pool, *own);
    *own = kept;
    return true;
}

void
bt_offer_finish(bt_prefill_core *core, bt_prompt *prompt, bt_prefill_actions *out)
{
    uint32_t block_tokens = core->limits.block_tokens, full = prompt->computed / block_tokens;
    uint32_t all = prompt->computed == prompt->count ? prompt->table.count : full;

    while (prompt->finished < all) {
        bool stamped = prompt->finished < full && !prompt->unindexed && prompt->indexed == prompt->finished &&
                       index_next(core, prompt);

        if (!stamped)
            core->stamps[out->stamp_count++] = name_of(core, prompt->table.blocks[prompt->finished]);
        prompt->finished++;
    }
}

static void
offer(bt_prefill_core *core, bt_prompt *prompt, uint32_t count, bt_prefill_actions *out)
{
    bt_offer *offer = &bt_prefill_say(out, prompt->decode, BT_MESSAGE_OFFER)->offer;
    bt_offer_block *blocks = core->offers + core->offer_count;
    uint32_t first = prompt->offered * core->limits.block_tokens;
    uint32_t end = (prompt->offered + count) * core->limits.block_tokens;

    for (uint32_t i = 0; i < count; i++)
        blocks[i] = name_of(core, prompt->table.blocks[prompt->offered + i]);
    core->offer_count += count;
    prompt->offered += count;
    *offer = (bt_offer){.ticket = prompt->ticket,
                        .epoch = core->limits.epoch,
                        .first_position = first,
                        .token_count = (end < prompt->count ? end : prompt->count) - first,
                        .block_count = count,
                        .blocks = blocks,
                        .last = prompt->offered == prompt->table.count};
    if (offer->last) {
        offer->has_token = prompt->has_token;
        if (prompt->has_token)
            offer->token = prompt->token;
        offer->phases = prompt->phases;
        offer->cached_tokens = prompt->cached_tokens;
    }
    core->stats.offers++;
    core->stats.offered_blocks += count;
}

void
bt_offer_send(bt_prefill_core *core, bt_prefill_actions *out)
{
    for (uint32_t i = 0; i < core->prompts.capacity; i++) {
        bt_prompt *prompt = &core->prompts.slots[i];
        uint32_t room = BT_OFFER_BLOCKS_MAX - core->offer_count, count;

        if ((prompt->state != BT_PROMPT_READING && prompt->state != BT_PROMPT_HOLDING) ||
            prompt->decode == BT_PROMPT_NONE || prompt->offered >= prompt->finished)
            continue;
        if (room == 0 || bt_prefill_full(out)) {
            core->unfinished = true;
            return;
        }
        count = prompt->finished - prompt->offered;
        core->unfinished |= count > room;
        offer(core, prompt, count < room ? count : room, out);
    }
}

// All taken: over. Taken in part is progress and no more: the prompt itself attends to its blocks until it is read.
void
bt_offer_taken(bt_prefill_core *core, uint32_t peer, const bt_taken *taken)
{
    bt_prompt *prompt = bt_prompts_find_ticket(&core->prompts, peer, &taken->ticket);

    if (prompt == NULL || prompt->state == BT_PROMPT_ENDING) {
        core->stats.late_messages++;
        return;
    }
    if (taken->err != BT_OK) {
        core->stats.aborted++;
        bt_prefill_end(core, prompt, BT_FINISH_ERROR, BT_ERR_PEER);
    } else if (taken->block_count > prompt->offered - prompt->offered_before) {
        core->stats.bad_messages++;
    } else if (prompt->state == BT_PROMPT_HOLDING &&
               prompt->offered_before + taken->block_count == prompt->table.count) {
        core->stats.taken++;
        bt_prefill_note_end(core, prompt, BT_FINISH_LENGTH, BT_OK);
        bt_prefill_free(core, prompt);
    }
}
