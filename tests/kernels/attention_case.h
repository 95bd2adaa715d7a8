// A drawn attention problem: sequences with their Q|K|V rows, run through a device in any chunks, and the same in double.
#pragma once

#include "kernels/ops.h"

#define CASE_SEQUENCES_MAX 40

typedef struct {
    uint32_t heads, kv_heads, head_dim, rope_dims, window, block_tokens, k_scale_group; // k_scale_group 0: head_dim
    bt_kv_format format;
    float softcap;
    bool norm, norm_whole, shift;
    uint32_t sequences, lengths[CASE_SEQUENCES_MAX];
    uint64_t seed;
    float size; // of Q and K before norms; 0: 1
    // At positions below `hollow` every seventh dim of V is 0: it shows what little the keys behind them weigh.
    uint32_t hollow;
    uint32_t poison; // 0: none; else every so many-th token has a NaN in V (or K, by turns)
} attention_case;

// How it is run: what may not matter.
typedef struct {
    const char *isa;
    uint32_t threads;
    uint32_t chunk; // tokens of each sequence a call; 0: sequences take 1, 7, 1, 7 … tokens, so that calls are mixed
    uint32_t alone; // tokens at each sequence's end that come one at a time, whatever the chunk
    uint64_t shuffle; // of the block table
    // Called after each call of attention, within its step, if it is not NULL. It may call again, and linear layers that read `out`.
    void (*after)(void *arg, bt_device *device, const bt_attention_args *args, uint32_t tokens);
    void *arg;
} attention_way;

// Everything of one run. `out` [all positions of sequence 0, then 1 …][heads · head_dim].
typedef struct {
    bt_kv_layout layout;
    uint8_t *pool;
    uint32_t *blocks; // of sequence s at s · blocks_each
    uint32_t blocks_each;
    float *out;
} attention_world;

// False when this machine lacks the ISA.
bool attention_run(attention_world *world, const attention_case *c, const attention_way *way);
bool attention_run_on(attention_world *world, const attention_case *c, const attention_way *way, bt_device_kind kind);
void attention_free(attention_world *world);

uint32_t attention_positions(const attention_case *c); // of all sequences
// The same bits in `out`, where any NaN equals any NaN; `what` says in the message which two runs they are.
void attention_must_agree(const attention_case *c, const attention_world *a, const attention_world *b,
                          const char *what);

// The row of one token, as the device gets it: [(heads + 2 · kv_heads) · head_dim].
void attention_row(const attention_case *c, uint32_t sequence, uint32_t position, float *row);

// Q, K, V of one token after norm, RoPE and shift, in double, [heads or kv_heads][head_dim].
void attention_twin_row(const attention_case *c, uint32_t sequence, uint32_t position, double *q, double *k, double *v);

// The cached key or value of one token and KV head as the numbers that it stands for; *step = the largest distance of two
// neighbouring codes.
void attention_cached(const attention_world *world, uint32_t sequence, uint32_t position, uint32_t kv_head, bool is_v,
                      double *x, double *step);

float attention_scale(const attention_case *c);
