// A step: check, lay the items end to end, run the model, finish the rows.
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/engine/sample.h"
#include "common/engine/state.h"

#include <stdatomic.h>

static bt_err
fetch_logits(bt_engine *engine, uint32_t rows)
{
    const bt_scratch *s = &engine->scratch;
    bt_err err = BT_OK;

    if (s->host_logits != s->logits && !engine->logits_here) {
        err = bt_device_read(engine->device, s->host_logits, s->logits, rows * s->logit_stride * sizeof(float));
    }
    engine->logits_here = err == BT_OK;
    return err;
}

const float *
bt_engine_logits(bt_engine *engine, uint32_t *rows)
{
    *rows = engine->logit_rows;
    return fetch_logits(engine, engine->logit_rows) == BT_OK ? engine->scratch.host_logits : NULL;
}

static bt_err
check_item(const bt_engine *engine, const bt_batch_item *item)
{
    uint64_t end = (uint64_t)item->position + item->count;
    uint64_t blocks = (end + engine->layout.block_tokens - 1) / engine->layout.block_tokens;

    if (item->count == 0 || item->count > engine->options.chunk_tokens) {
        return item->count == 0 ? BT_ERR_INVALID : BT_ERR_TOO_LONG;
    }
    if (end > engine->options.context) {
        return BT_ERR_TOO_LONG;
    }
    for (uint32_t i = 0; i < item->count; i++) {
        if ((uint32_t)item->ids[i] >= engine->model->config.vocab) {
            return BT_ERR_INVALID;
        }
    }
    for (uint64_t i = 0; i < blocks; i++) {
        if (item->blocks[i] >= engine->plan.blocks) {
            return BT_ERR_INVALID;
        }
    }
    return BT_OK;
}

static uint32_t
rows_wanted(const bt_batch_item *item)
{
    return item->want == BT_LOGITS_NONE ? 0 : item->want == BT_LOGITS_LAST ? 1 : item->count;
}

// Lays the items' tokens end to end. Everything is checked before anything is computed.
static bt_err
flatten(bt_engine *engine, const bt_batch_item *items, uint32_t item_count, bt_flat_batch *b)
{
    bt_scratch *s = &engine->scratch;

    if (item_count == 0 || item_count > engine->options.max_sequences) {
        return item_count == 0 ? BT_ERR_INVALID : BT_ERR_TOO_LONG;
    }
    *b = (bt_flat_batch){.spans = item_count};
    for (uint32_t i = 0; i < item_count; i++) {
        const bt_batch_item *item = &items[i];
        uint32_t rows = rows_wanted(item);
        bt_err err = check_item(engine, item);

        if (err != BT_OK) {
            return err;
        }
        if (item->count > s->tokens - b->tokens || rows > s->rows - b->rows) {
            return BT_ERR_TOO_LONG;
        }
        s->spans[i] = (bt_attention_span){b->tokens, item->count, item->position, item->blocks};
        for (uint32_t t = 0; t < item->count; t++) {
            s->ids[b->tokens + t] = item->ids[t];
            s->positions[b->tokens + t] = item->position + t;
        }
        for (uint32_t r = 0; r < rows; r++) {
            s->logit_rows[b->rows + r] = b->tokens + item->count - rows + r;
            s->row_items[b->rows + r] = i;
        }
        b->tokens += item->count;
        b->rows += rows;
    }
    return BT_OK;
}

// Rows of logits are shared out over the threads; each row's result depends on that row alone.
typedef struct {
    const bt_engine *engine;
    const bt_batch_item *items;
    const bt_flat_batch *batch;
    bt_step_result *result;
    atomic_uint bad_row; // the lowest row that has no numbers, UINT32_MAX = none
} sample_job;

// Where the results of ALL items lie: `scored` holds their rows only, in order.
static uint32_t
scored_index(const sample_job *job, uint32_t row)
{
    const bt_scratch *s = &job->engine->scratch;
    uint32_t index = row;

    for (uint32_t i = 0; i < s->row_items[row]; i++) {
        index -= job->items[i].want == BT_LOGITS_LAST;
    }
    return index;
}

static bt_err
finish_row(const sample_job *job, uint32_t row, void *scratch)
{
    const bt_engine *engine = job->engine;
    const bt_scratch *s = &engine->scratch;
    const bt_batch_item *item = &job->items[s->row_items[row]];
    const float *logits = s->host_logits + row * s->logit_stride;
    uint32_t vocab = engine->model->config.vocab;
    uint32_t at = s->logit_rows[row] - s->spans[s->row_items[row]].row; // which of the item's tokens
    bool last = at + 1 == item->count;
    bt_err err = BT_OK;

    if (item->want == BT_LOGITS_ALL && job->result->scored != NULL) {
        err = bt_sample_score(logits, vocab, last ? item->next_id : item->ids[at + 1],
                              item->sampling != NULL ? item->sampling->top_logprobs : 0, scratch,
                              &job->result->scored[scored_index(job, row)]);
    }
    if (last && err == BT_OK) {
        bt_sample_args args = {
            .logits = logits,
            .vocab = vocab,
            .sampling = item->sampling,
            .position = item->position + item->count,
            .history = item->history,
            .history_count = item->history != NULL ? item->position + item->count : 0,
            .prompt_count = item->prompt_count,
            .ends = engine->ends,
            .end_count = engine->end_count,
        };

        err = bt_sample(&args, scratch, &job->result->drawn[s->row_items[row]]);
    }
    return err;
}

static void
sample_rows(void *arg, uint32_t thread, uint32_t threads)
{
    sample_job *job = arg;
    const bt_scratch *s = &job->engine->scratch;

    for (uint32_t row = thread; row < job->batch->rows; row += threads) {
        if (finish_row(job, row, s->sampling + thread * s->sampling_bytes) != BT_OK) {
            unsigned seen = atomic_load(&job->bad_row);

            while (row < seen && !atomic_compare_exchange_weak(&job->bad_row, &seen, row)) {
            }
        }
    }
}

// Sharing waits for every thread of the pool, which on a busy machine takes longer than a few greedy rows (a logit is 0.1 ns
// to compare and about 1 ns to weigh): from some 60 microseconds of work on it pays.
static bool
worth_sharing(const bt_engine *engine, const bt_batch_item *items, const bt_flat_batch *batch)
{
    const uint32_t *row_items = engine->scratch.row_items;
    uint64_t work = 0;

    for (uint32_t row = 0; row < batch->rows; row++) {
        const bt_batch_item *item = &items[row_items[row]];
        bool weighs = item->want == BT_LOGITS_ALL ||
                      (item->sampling != NULL && (item->sampling->temperature > 0 || item->sampling->logprobs));

        work += (uint64_t)engine->model->config.vocab * (weighs ? 10 : 1);
    }
    return batch->rows > 1 && work > 600000;
}

static bt_err
sample(bt_engine *engine, const bt_batch_item *items, const bt_flat_batch *batch, bt_step_result *result)
{
    sample_job job = {.engine = engine, .items = items, .batch = batch, .result = result, .bad_row = UINT32_MAX};
    const bt_scratch *s = &engine->scratch;
    unsigned bad;

    if (worth_sharing(engine, items, batch)) {
        bt_device_parallel(engine->host, sample_rows, &job);
    } else {
        sample_rows(&job, 0, 1);
    }
    bad = atomic_load(&job.bad_row);
    if (bad != UINT32_MAX) {
        uint32_t item = s->row_items[bad];

        bt_log_error("ENGINE-NAN", "no logit is a number: item %u of %u, position %u", item, batch->spans,
                     s->positions[s->logit_rows[bad]]);
        return BT_ERR_DEVICE;
    }
    return BT_OK;
}

// Whether the device draws all of the batch's tokens. How it draws is written down in any case, so that steps of one shape are alike.
static bool
leave_to_device(bt_engine *engine, const bt_batch_item *items, bt_flat_batch *batch)
{
    const bt_scratch *s = &engine->scratch;
    bool all = true;

    batch->draws = engine->forward.ops->draw != NULL;
    batch->ends = engine->ends;
    batch->end_count = engine->end_count;
    for (uint32_t row = 0; batch->draws && row < batch->rows; row++) {
        const bt_batch_item *item = &items[s->row_items[row]];

        all = bt_sample_as_draw(item->sampling, engine->model->config.vocab, item->position + item->count,
                                item->history != NULL, &s->draws[row]) &&
              item->want == BT_LOGITS_LAST && all;
    }
    return batch->draws && all;
}

// What the device drew. A row without a number is drawn again by the host, which says so.
static bool
take_drawn(const bt_engine *engine, const bt_flat_batch *batch, bt_step_result *result)
{
    const int32_t *ids = batch->rows != 0 ? engine->forward.ops->drawn(engine->device) : NULL;

    for (uint32_t row = 0; row < batch->rows; row++) {
        bt_token_result *out = &result->drawn[engine->scratch.row_items[row]];

        if (ids[row] < 0) {
            return false;
        }
        out->id = ids[row];
        out->logprob = 0;
        out->top_count = 0;
    }
    return true;
}

static bt_err
finish(bt_engine *engine, const bt_batch_item *items, const bt_flat_batch *batch, bool drawn, bt_step_result *result)
{
    bt_err err;

    if (drawn && take_drawn(engine, batch, result)) {
        return BT_OK;
    }
    err = fetch_logits(engine, batch->rows);
    return err == BT_OK ? sample(engine, items, batch, result) : err;
}

bt_err
bt_engine_step(bt_engine *engine, const bt_batch_item *items, uint32_t item_count, bt_step_result *result)
{
    bt_time began = engine->times != NULL ? bt_time_now() : 0, sampling;
    bt_flat_batch batch;
    bool drawn;
    bt_err err;

    engine->logit_rows = 0;
    engine->logits_here = false;
    if ((err = flatten(engine, items, item_count, &batch)) != BT_OK) {
        return err;
    }
    drawn = leave_to_device(engine, items, &batch);
    bt_lend_begin(&engine->lend, items, item_count);
    bt_mem_serving_begin();
    err = bt_forward_run(&engine->forward, &batch);
    sampling = engine->times != NULL ? bt_time_now() : 0;
    if (err == BT_OK && (err = bt_lend_end(&engine->lend)) == BT_OK) {
        engine->logit_rows = batch.rows;
        err = finish(engine, items, &batch, drawn, result);
    }
    bt_mem_serving_end();
    if (engine->times != NULL) {
        bt_time now = bt_time_now();

        engine->times->op[BT_ENGINE_SAMPLE] += now - sampling;
        engine->times->total += now - began;
        engine->times->steps++;
    }
    return err;
}

bt_err
bt_engine_run(void *engine, const void *step)
{
    const bt_batch *batch = step;
    bt_step_result result = batch->result;

    return bt_engine_step(engine, batch->items, batch->count, &result);
}
