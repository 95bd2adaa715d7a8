// The engine: one model on one device with its KV pool; runs steps over mixed batches of prompts and answers.
//
// It decides nothing about requests: whoever owns it (a node's core) lends blocks, orders tables and fills batches. One
// thread calls step. Everything is allocated at open; a step allocates nothing (asserted in debug builds).
#pragma once

#include "common/engine/sampling.h"
#include "common/kv/layout.h"
#include "common/model/model.h"

typedef struct bt_engine bt_engine;

typedef struct {
    bt_model_options model;
    bt_device_options device;
    bt_kv_format kv_format;
    uint32_t kv_block_tokens; // 0 = 32
    uint32_t kv_blocks;       // 0 = enough for max_sequences × context within the memory limit
    uint32_t max_sequences;   // items of a batch
    uint32_t chunk_tokens;    // tokens of a step, all items together
    uint32_t context;         // longest sequence; 0 = the model's
    uint32_t logit_rows_max;  // rows of logits one step may ask for; 0 = max_sequences (eval asks for chunk_tokens)
    size_t memory_max; // bytes in all; 0 = what the machine has free. A plan over it is an error with the figures
    // Who supplies memory for pools that others fetch from or into, once it is known how much: `blocks` · layout->block_bytes at a 64-byte
    // boundary, zeroed, the caller's, good until kv_done. Each is called at most once in an open; its error ends the open.
    //     kv_pool         the program's own memory. Where operations work in another (a GPU's; or with kv_apart, as tests have it), the
    //                     engine's pool there has the same blocks, and the two are kept alike as far as others need it
    //     kv_device_pool  the device's memory, which operations work in; NULL = the engine's own
    //     kv_done         these pools are not used any more: at the end of the engine, while its device is still there
    bt_err (*kv_pool)(void *arg, bt_device *device, const bt_kv_layout *layout, uint32_t blocks, uint8_t **memory,
                      bt_why *why);
    bt_err (*kv_device_pool)(void *arg, bt_device *device, const bt_kv_layout *layout, uint32_t blocks,
                             uint8_t **memory, bt_why *why);
    void (*kv_done)(void *arg);
    void *kv_pool_arg;
    bool kv_apart;
    bool
        kv_out; // a step copies the blocks that it finishes into kv_pool (a prefill node); false: bt_engine_kv_in is used
} bt_engine_options;

// Loads the model, plans memory (logged as ENGINE-PLAN, four lines), allocates.
bt_err bt_engine_open(bt_engine **out, const bt_engine_options *options, bt_why *why);
void bt_engine_close(bt_engine *engine);

const bt_model *bt_engine_model(const bt_engine *engine);
// How an engine of this model lays out its blocks, without one: for those who check what nodes say of theirs.
bt_err bt_engine_layout_of(bt_kv_layout *out, const bt_model_config *config, bt_kv_format format, uint32_t block_tokens,
                           bt_why *why);
const bt_kv_layout *bt_engine_kv_layout(const bt_engine *engine);
uint32_t bt_engine_kv_blocks(const bt_engine *engine);
// Of kv_pool; without one what operations work in, maybe a GPU's memory.
uint8_t *bt_engine_kv_pool(const bt_engine *engine);
uint8_t *bt_engine_kv_device_pool(const bt_engine *engine); // of kv_device_pool; NULL = none
// Are there two pools, kv_pool's and another which operations work in?
bool bt_engine_kv_is_apart(const bt_engine *engine);
// With kv_out: the checksum of a block (bt_kv_checksum_end) as it was when a step finished it. 0: nobody has computed it. Between steps.
uint64_t bt_engine_kv_sum(const bt_engine *engine, uint32_t block);
// Of two pools and without kv_out, for one thread, which may be another than step's: copies blocks that were fetched on into the engine's
// own pool, beside steps that do not use them. `in` begins, max_sequences at a time at most (BT_ERR_BUSY); `through` says up to which
// ticket (1, 2, …) all are there; `fd` can be read when more are than `through` has said. BT_ERR_DEVICE: for good.
bt_err bt_engine_kv_in(bt_engine *engine, const uint32_t *blocks, uint32_t count, uint64_t *ticket);
bt_err bt_engine_kv_through(bt_engine *engine, uint64_t *ticket);
int bt_engine_kv_fd(const bt_engine *engine);
uint32_t bt_engine_context(const bt_engine *engine);
bt_device *bt_engine_device(const bt_engine *engine);

typedef enum {
    BT_LOGITS_NONE, // a chunk inside a prompt
    BT_LOGITS_LAST, // draw the next token after the last id
    BT_LOGITS_ALL, // also score: the log-probability of ids[i + 1] after ids[i], for every i of this item (echo, perplexity)
} bt_logits_want;

typedef struct {
    const int32_t *ids; // [count] new tokens
    uint32_t count;
    uint32_t position;      // absolute position of ids[0]; everything before is in the cache
    const uint32_t *blocks; // block indices covering position + count tokens
    bt_logits_want want;
    const bt_sampling *sampling; // NULL = greedy
    const int32_t *history;      // [position + count] all ids so far, for penalties; may be NULL when none are on
    uint32_t prompt_count;       // how many of them are the prompt
    int32_t next_id;             // with ALL: the id that follows ids[count - 1] for scoring, -1 = none
} bt_batch_item;

typedef struct {
    bt_token_result *drawn; // [item_count], filled for items that want LAST or ALL
    bt_token_result *
        scored; // [sum of counts of items that want ALL], in batch order: id = the given next id; may be NULL when no item wants ALL
} bt_step_result;

// Runs one step. Sums of counts ≤ chunk_tokens, item_count ≤ max_sequences. The caller owns all arrays. BT_ERR_DEVICE leaves
// the KV blocks of the batch undefined and everything else usable.
bt_err bt_engine_step(bt_engine *engine, const bt_batch_item *items, uint32_t item_count, bt_step_result *result);

// A step as one thing: what a core wants done, in the core's memory, unchanged until the step is over.
typedef struct {
    const bt_batch_item *items;
    uint32_t count;
    bt_step_result result; // to be filled
} bt_batch;

// bt_engine_step for a thread that is handed two pointers (common/node/worker.h): a bt_engine and a bt_batch.
bt_err bt_engine_run(void *engine, const void *batch);

// The f32 logits of the last step, [rows, vocab]: one row an item that wanted LAST, count rows an item that wanted ALL, in
// batch order. Valid until the next step. Copied from a GPU when it is asked for; NULL when that fails.
const float *bt_engine_logits(bt_engine *engine, uint32_t *rows);

// Where the time of steps goes, by operation, in nanoseconds.
typedef enum {
    BT_ENGINE_EMBED,
    BT_ENGINE_ROPE,
    BT_ENGINE_QKV,
    BT_ENGINE_ATTENTION,
    BT_ENGINE_O,
    BT_ENGINE_GATE_UP,
    BT_ENGINE_DOWN,
    BT_ENGINE_NORM,
    BT_ENGINE_HEAD,
    BT_ENGINE_SAMPLE,
    BT_ENGINE_OP_COUNT
} bt_engine_op;

typedef struct {
    int64_t op[BT_ENGINE_OP_COUNT];
    int64_t steps, total; // total: whole steps, what lies between operations too
} bt_engine_times;

const char *bt_engine_op_name(bt_engine_op op);

// From now on steps add to `times` (the caller's, zeroed by the caller); NULL stops it. Costs two clock readings an operation.
void bt_engine_measure(bt_engine *engine, bt_engine_times *times);
