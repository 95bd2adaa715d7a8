#include "tests/support/fake_engine.h"
#include "common/base/rng.h"
#include "tests/support/must.h"

#include <stdlib.h>

static uint64_t
next_cell(uint64_t before, int32_t id, uint64_t weights)
{
    return bt_mix64(before ^ weights ^ bt_mix64((uint64_t)id + 1));
}

static bt_token_result
draw(uint64_t attended, uint64_t seed, uint32_t vocab)
{
    uint64_t hash = bt_mix64(attended ^ seed);

    return (bt_token_result){.id = (int32_t)(hash % vocab), .logprob = -(float)(hash >> 44)};
}

static bt_token_result
score(uint64_t attended, int32_t id)
{
    return (bt_token_result){.id = id, .logprob = -(float)(bt_mix64(attended ^ (uint64_t)id) >> 44)};
}

void
fake_engine_init(fake_engine *engine)
{
    size_t cells = (size_t)engine->blocks * engine->block_tokens;

    engine->cells = malloc(cells * sizeof *engine->cells);
    MUST(engine->cells != NULL);
    for (size_t i = 0; i < cells; i++)
        engine->cells[i] = bt_mix64(i);
}

void
fake_engine_fini(fake_engine *engine)
{
    free(engine->cells);
    engine->cells = NULL;
}

static uint64_t *
cell_at(fake_engine *engine, const bt_batch_item *item, uint32_t position)
{
    uint32_t block = item->blocks[position / engine->block_tokens];

    MUST(block < engine->blocks);
    return &engine->cells[(size_t)block * engine->block_tokens + position % engine->block_tokens];
}

// Writes the item's cells and leaves in `attended` the sum over all cells before the item.
static void
write_cells(fake_engine *engine, const bt_batch_item *item, uint64_t *attended)
{
    uint64_t before = 0;

    *attended = 0;
    for (uint32_t p = 0; p < item->position; p++)
        *attended += before = *cell_at(engine, item, p);
    for (uint32_t i = 0; i < item->count; i++)
        *cell_at(engine, item, item->position + i) = before = next_cell(before, item->ids[i], engine->weights);
}

static uint32_t
run_item(fake_engine *engine, const bt_batch_item *item, bt_token_result *drawn, bt_token_result *scored)
{
    uint64_t attended;

    MUST(item->count > 0);
    MUST(item->sampling != NULL);
    MUST(item->history + item->position == item->ids);
    write_cells(engine, item, &attended);
    for (uint32_t i = 0; i < item->count; i++) {
        attended += *cell_at(engine, item, item->position + i);
        if (item->want == BT_LOGITS_ALL)
            scored[i] = score(attended, i + 1 < item->count ? item->ids[i + 1] : item->next_id);
    }
    if (item->want != BT_LOGITS_NONE)
        *drawn = draw(attended, item->sampling->seed, engine->vocab);
    return item->want == BT_LOGITS_ALL ? item->count : 0;
}

void
fake_engine_step(fake_engine *engine, const bt_batch_item *items, uint32_t count, const bt_step_result *result)
{
    uint32_t tokens = 0, rows = 0, scored = 0;

    MUST(count > 0);
    MUST(count <= engine->sequences);
    for (uint32_t i = 0; i < count; i++) {
        scored +=
            run_item(engine, &items[i], &result->drawn[i], result->scored != NULL ? result->scored + scored : NULL);
        tokens += items[i].count;
        rows += items[i].want == BT_LOGITS_ALL ? items[i].count : items[i].want == BT_LOGITS_LAST;
    }
    MUST(tokens <= engine->chunk_tokens);
    MUST(rows <= engine->logit_rows);
}

static uint64_t
attend(const int32_t *ids, uint32_t count)
{
    uint64_t cell = 0, attended = 0;

    for (uint32_t i = 0; i < count; i++)
        attended += cell = next_cell(cell, ids[i], 0);
    return attended;
}

bt_token_result
fake_engine_draw(const int32_t *ids, uint32_t count, uint64_t seed, uint32_t vocab)
{
    return draw(attend(ids, count), seed, vocab);
}

bt_token_result
fake_engine_draw_of(const int32_t *ids, uint32_t prompt, uint32_t count, uint64_t prompt_weights, uint64_t weights,
                    uint64_t seed, uint32_t vocab)
{
    uint64_t cell = 0, attended = 0;

    for (uint32_t i = 0; i < count; i++)
        attended += cell = next_cell(cell, ids[i], i < prompt ? prompt_weights : weights);
    return draw(attended, seed, vocab);
}

bt_token_result
fake_engine_score(const int32_t *ids, uint32_t count, int32_t id)
{
    return score(attend(ids, count), id);
}
