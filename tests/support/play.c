#include "tests/support/play.h"

#include "common/kv/prefix.h"
#include "common/kv/table.h"
#include "tests/support/test.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    bt_play_request *request; // NULL = this slot is empty
    bt_kv_table table;
    bt_kv_prefix_at at;
    int32_t *ids;                  // prompt and answer so far
    uint32_t count, done, indexed; // ids known, computed, in indexed blocks
} slot;

typedef struct {
    bt_engine *engine;
    const bt_play_options *options;
    bt_kv_pool *pool;
    bt_kv_prefix *prefix;
    uint32_t block_tokens;
    slot *slots;
} player;

static void
begin(player *p, slot *s, bt_play_request *r)
{
    uint32_t found = 0;

    s->request = r;
    s->count = r->prompt_count;
    s->ids = malloc((r->prompt_count + r->answer_count) * sizeof *s->ids);
    memcpy(s->ids, r->prompt, r->prompt_count * sizeof *s->ids);
    if (bt_kv_table_init(&s->table, bt_kv_blocks_for(bt_engine_context(p->engine), p->block_tokens)) != BT_OK) {
        ck_abort_msg("out of memory");
    }
    s->at = bt_kv_prefix_root(bt_engine_model(p->engine)->digest);
    if (p->options->prefix) {
        found = bt_kv_prefix_find(p->prefix, &s->at, s->ids, s->count, s->table.blocks, s->table.limit);
        s->table.count = found;
    }
    s->done = s->indexed = r->cached = found * p->block_tokens;
}

static void
finish(player *p, slot *s)
{
    bt_play_request *r = s->request;

    memcpy(r->answer, s->ids + r->prompt_count, r->answer_count * sizeof *r->answer);
    bt_kv_table_shrink(&s->table, p->pool, 0);
    bt_kv_table_fini(&s->table);
    free(s->ids);
    *s = (slot){0};
}

static void
add_item(player *p, slot *s, uint32_t tokens, bt_batch_item *item)
{
    if (bt_kv_table_grow(&s->table, p->pool, bt_kv_blocks_for(s->done + tokens, p->block_tokens)) != BT_OK) {
        ck_abort_msg("the pool is too small for this test"); // a bare ck_assert writes to a file each time it holds
    }
    *item = (bt_batch_item){
        .ids = s->ids + s->done,
        .count = tokens,
        .position = s->done,
        .blocks = s->table.blocks,
        .want = s->done + tokens == s->count ? BT_LOGITS_LAST : BT_LOGITS_NONE,
        .sampling = s->request->sampling,
        .history = s->ids,
        .prompt_count = s->request->prompt_count,
        .next_id = -1,
    };
}

static void
take_result(player *p, slot *s, const bt_batch_item *item, const bt_token_result *drawn)
{
    s->done += item->count;
    while (p->options->prefix && s->indexed + p->block_tokens <= s->done) {
        bt_kv_prefix_add(p->prefix, &s->at, s->ids + s->indexed, s->table.blocks[s->indexed / p->block_tokens]);
        s->indexed += p->block_tokens;
    }
    if (item->want == BT_LOGITS_LAST) {
        uint32_t answered = s->count - s->request->prompt_count;

        if (s->request->logprobs != NULL) {
            s->request->logprobs[answered] = drawn->logprob;
        }
        s->ids[s->count++] = drawn->id;
        if (answered + 1 == s->request->answer_count) {
            finish(p, s);
        }
    }
}

// Every sequence gets a token first; what is left of the chunk goes to prompts, in order.
static uint32_t
fill(player *p, bt_batch_item *items, slot **of)
{
    uint32_t count = 0, left = p->options->chunk, waiting = 0;

    for (uint32_t i = 0; i < p->options->batch; i++) {
        waiting += p->slots[i].request != NULL;
    }
    for (uint32_t i = 0; i < p->options->batch && left != 0; i++) {
        slot *s = &p->slots[i];
        uint32_t wants = s->request == NULL ? 0 : s->count - s->done, most;

        if (wants == 0) {
            continue;
        }
        waiting--;
        most = left > waiting ? left - waiting : 1;
        wants = wants < most ? wants : most;
        of[count] = s;
        add_item(p, s, wants, &items[count++]);
        left -= wants;
    }
    return count;
}

void
bt_play(bt_engine *engine, bt_play_request *requests, uint32_t count, const bt_play_options *options)
{
    player p = {.engine = engine, .options = options, .block_tokens = bt_engine_kv_layout(engine)->block_tokens};
    bt_batch_item *items = calloc(options->batch, sizeof *items);
    slot **of = calloc(options->batch, sizeof *of);
    bt_token_result *drawn = calloc(options->batch, sizeof *drawn);
    uint32_t next = 0, filled;

    p.slots = calloc(options->batch, sizeof *p.slots);
    ck_assert(bt_kv_pool_open(&p.pool, bt_engine_kv_blocks(engine)) == BT_OK);
    ck_assert(bt_kv_prefix_open(&p.prefix, p.pool, p.block_tokens) == BT_OK);
    do {
        for (uint32_t i = 0; i < options->batch && next < count; i++) {
            if (p.slots[i].request == NULL) {
                begin(&p, &p.slots[i], &requests[next++]);
            }
        }
        filled = fill(&p, items, of);
        if (filled != 0) {
            bt_err err = bt_engine_step(engine, items, filled, &(bt_step_result){.drawn = drawn});

            if (err != BT_OK) {
                ck_abort_msg("step: %s", bt_err_name(err));
            }
        }
        for (uint32_t i = 0; i < filled; i++) {
            take_result(&p, of[i], &items[i], &drawn[i]);
        }
    } while (filled != 0);
    ck_assert_int_eq(bt_kv_pool_leaked(p.pool, 0), 0);
    bt_kv_prefix_close(p.prefix);
    ck_assert_uint_eq(bt_kv_pool_free(p.pool), bt_kv_pool_blocks(p.pool));
    bt_kv_pool_close(p.pool);
    free(p.slots);
    free(items);
    free(of);
    free(drawn);
}

bt_engine *
bt_play_open(const bt_engine_options *options)
{
    bt_engine *engine = NULL;
    bt_why why = {{0}};
    bt_err err = bt_engine_open(&engine, options, &why);

    ck_assert_msg(err == BT_OK, "%s", why.text);
    return engine;
}
