// Passes over one row of logits: the loops of the sampler, compiled for what the machine has, the same bits everywhere.
//
// NaN and +inf are no logits: every pass skips them, so that a broken one never wins (−inf is a token that was banned).
// Sums: exp goes into 16 lanes by index mod 16 in double and one tree; masses are whole numbers, so their order is free.
// Pure; any thread.
#pragma once

#include <stdbool.h>
#include <stdint.h>

// The largest logit; −inf when there is none.
float bt_row_max(const float *row, uint32_t count);
// The lowest index that holds `value`; `count` when none does.
uint32_t bt_row_find(const float *row, uint32_t count, float value);
// Σ exp(row[i] − max)
double bt_row_sum_exp(const float *row, uint32_t count, float max);
double bt_row_log(double value); // natural logarithm, our own, for value > 0

// A weight as a whole number: round(exp((logit − max) · inverse_t) · 2^30), for logit ≤ max.
uint64_t bt_row_mass_of(float logit, float max, float inverse_t);
uint64_t bt_row_mass(const float *row, uint32_t count, float max, float inverse_t);

// A candidate as one number that orders as sampling wants it: logit falling, id rising, the best is the largest.
typedef uint64_t bt_candidate;
bt_candidate bt_candidate_of(float logit, int32_t id);
float bt_candidate_logit(bt_candidate candidate);
int32_t bt_candidate_id(bt_candidate candidate);

// Appends those ≥ floor, in id order; `first_id` is the id of row[0]. Returns their number. −FLT_MAX takes all logits.
uint32_t bt_row_collect(const float *row, uint32_t count, int32_t first_id, float floor, bt_candidate *out);

// Reorders so that the best come first (in no order among themselves) until their weights reach `need`; returns how many
// that takes: the shortest such beginning of the sorted list. A weight is 1 where inverse_t is 0, else its mass.
uint32_t bt_candidates_best(bt_candidate *candidates, uint32_t count, uint64_t need, float max, float inverse_t);

// The k best of a row, unordered; `out` has room for bt_row_top_room(count, k). Returns how many there are, ≤ k.
uint32_t bt_row_top(const float *row, uint32_t count, uint32_t k, bt_candidate *out);
uint32_t bt_row_top_room(uint32_t count, uint32_t k);

// Gumbel-max: the id with the largest (logit − max) · inverse_t + noise(key, id), ties to the lower id, over the whole
// row or over candidates. `key` names seed and position (bt_noise_key).
uint64_t bt_noise_key(uint64_t seed, uint32_t position);
float bt_noise(uint64_t key, int32_t id); // Gumbel(0, 1)
int32_t bt_row_draw(const float *row, uint32_t count, float max, float inverse_t, uint64_t key);
int32_t bt_candidates_draw(const bt_candidate *candidates, uint32_t count, float max, float inverse_t, uint64_t key);
