#include "tests/model/prefill_world.h"

#include "common/base/rng.h"
#include "tests/support/tiny_gguf.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

prompt prompts[PROMPTS];
bt_kv_layout layout;

bt_plane_options
plane_options(uint32_t peers)
{
    return (bt_plane_options){.peers_max = peers, .fetches_max = 6 * PROMPTS, .fetch_blocks_max = PROMPT_BLOCKS};
}

static bt_err
give_pool(void *arg, bt_device *device, const bt_kv_layout *of, uint32_t blocks, uint8_t **memory, bt_why *why)
{
    bt_plane_options plane = plane_options(BT_PREFILL_PEERS_MAX);
    bt_transfer_options o = {
        .epoch = w.epoch, .layout = *of, .blocks = blocks, .path = w.path, .listen = "127.0.0.1:0"};
    bt_err err;

    (void)device, (void)arg;
    bt_plane_size_transfer(&plane, &o);
    err = bt_transfer_open(&w.transfer, &o, why);
    if (err == BT_OK)
        *memory = bt_transfer_pool(w.transfer);
    return err;
}

bt_engine *
open_engine(uint32_t blocks, bool transfers)
{
    const char *path = "/tmp/baton-test-prefill-engine.gguf";
    bt_engine_options options = {
        .model = {.path = path, .weights = BT_LOAD_KEEP},
        .device = {.kind = BT_DEVICE_CPU, .threads = 1},
        .kv_format = BT_KV_INT8,
        .kv_block_tokens = BLOCK_TOKENS,
        .kv_blocks = blocks,
        .max_sequences = 4,
        .chunk_tokens = 40,
        .context = CONTEXT,
        .kv_pool = transfers && w.pools != POOL_OF_DEVICE ? give_pool : NULL,
        .kv_device_pool = transfers && w.pools == POOL_OF_DEVICE ? give_pool : NULL,
        .kv_apart = w.pools == POOLS_APART,
        .kv_out = true,
    };
    bt_engine *engine;
    bt_why why;

    bt_test_write_tiny_gguf_as(path, BT_TINY_Q8_0);
    ck_assert_msg(bt_engine_open(&engine, &options, &why) == BT_OK, "%s", why.text);
    unlink(path);
    return engine;
}

static void
compute_alone(bt_engine *engine, prompt *p)
{
    uint32_t blocks[PROMPT_BLOCKS];

    for (uint32_t i = 0; i < PROMPT_BLOCKS; i++)
        blocks[i] = i;
    for (uint32_t at = 0; at < p->count; at += 32) {
        uint32_t count = p->count - at < 32 ? p->count - at : 32;
        bt_token_result drawn;
        bt_step_result result = {.drawn = &drawn};
        bt_batch_item item = {.ids = p->ids + at,
                              .count = count,
                              .position = at,
                              .blocks = blocks,
                              .want = at + count == p->count ? BT_LOGITS_LAST : BT_LOGITS_NONE,
                              .history = p->ids,
                              .prompt_count = p->count,
                              .next_id = -1};

        ck_assert_int_eq(bt_engine_step(engine, &item, 1, &result), BT_OK);
        p->token = drawn.id;
    }
    p->blocks = malloc(PROMPT_BLOCKS * layout.block_bytes);
    memcpy(p->blocks, bt_engine_kv_pool(engine), PROMPT_BLOCKS * layout.block_bytes);
}

void
draw_prompts(void)
{
    bt_engine *engine = open_engine(PROMPT_BLOCKS, false);
    bt_rng rng = {20261130};

    layout = *bt_engine_kv_layout(engine);
    memset(prompts, 0, sizeof prompts);
    for (uint32_t q = 0; q < PROMPTS; q++) {
        prompt *p = &prompts[q];

        p->count = q == 0 ? 1 : q == 1 ? CONTEXT : 1 + (uint32_t)bt_rng_below(&rng, CONTEXT);
        for (uint32_t i = 0; i < p->count; i++)
            p->ids[i] = 5 + (int32_t)(i < 64 ? bt_mix64(q % 3 * 4096 + i) % 290 : bt_rng_below(&rng, 290));
        p->offered_token = p->told_token = -1;
        compute_alone(engine, p);
    }
    bt_engine_close(engine);
}

void
free_prompts(void)
{
    for (uint32_t q = 0; q < PROMPTS; q++)
        free(prompts[q].blocks);
}

bool
same_tokens(const uint8_t *a, const uint8_t *b, uint32_t tokens)
{
    for (uint32_t layer = 0; layer < layout.layers; layer++) {
        for (uint32_t head = 0; head < layout.kv_heads; head++) {
            const uint8_t *va = bt_kv_v(&layout, (uint8_t *)a, layer, head),
                          *vb = bt_kv_v(&layout, (uint8_t *)b, layer, head);
            size_t dim = layout.head_dim;

            if (memcmp(bt_kv_k(&layout, (uint8_t *)a, layer, head), bt_kv_k(&layout, (uint8_t *)b, layer, head),
                       tokens * dim) != 0 ||
                memcmp(bt_kv_k_scales(&layout, (uint8_t *)a, layer, head),
                       bt_kv_k_scales(&layout, (uint8_t *)b, layer, head),
                       tokens * (dim / layout.k_scale_group) * 2) != 0 ||
                memcmp(bt_kv_v_scales(&layout, (uint8_t *)a, layer, head),
                       bt_kv_v_scales(&layout, (uint8_t *)b, layer, head), tokens * 2) != 0)
                return false;
            for (size_t i = 0; i < tokens * dim; i++) {
                size_t at = i / dim / 4 * dim * 4 + i % dim * 4 + i / dim % 4; // [token / 4][dim][4]

                if (va[at] != vb[at])
                    return false;
            }
        }
    }
    return true;
}
