#include "common/engine/row.h"

#include "common/base/rng.h"
#include "kernels/cpu/ref/draw.h"

#include <float.h>

// The loops below vectorise by themselves where fmaf is an instruction: they are compiled three times and chosen at load.
// Sanitizers and clang do without: what the copies compute is the same.
#if defined(__x86_64__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define CLONES
#endif

#define LANES 16
#define BLOCK 64
#define NOTHING (-200.0f) // exp of it is 0

CLONES float
bt_row_max(const float *row, uint32_t count)
{
    float lanes[BLOCK], max = -INFINITY;
    uint32_t whole = count / BLOCK * BLOCK;

    for (int j = 0; j < BLOCK; j++) {
        lanes[j] = -INFINITY;
    }
    for (uint32_t i = 0; i < whole; i += BLOCK) {
        for (int j = 0; j < BLOCK; j++) {
            float x = row[i + j] <= FLT_MAX ? row[i + j] : -INFINITY;

            lanes[j] = x > lanes[j] ? x : lanes[j];
        }
    }
    for (uint32_t i = whole; i < count; i++) {
        max = row[i] <= FLT_MAX && row[i] > max ? row[i] : max;
    }
    for (int j = 0; j < BLOCK; j++) {
        max = lanes[j] > max ? lanes[j] : max;
    }
    return max;
}

CLONES uint32_t
bt_row_find(const float *row, uint32_t count, float value)
{
    uint32_t i = 0;

    for (; i + BLOCK <= count; i += BLOCK) {
        int any = 0;

        for (int j = 0; j < BLOCK; j++) {
            any |= row[i + j] == value;
        }
        if (any) {
            break;
        }
    }
    while (i < count && row[i] != value) {
        i++;
    }
    return i;
}

// exp((x − max) · inverse_t), 0 for what is no logit.
static inline float
weight(float x, float max, float inverse_t)
{
    float d = (x - max) * inverse_t;

    return bt_ref_exp(d > NOTHING && d <= 0.0f ? d : NOTHING);
}

CLONES double
bt_row_sum_exp(const float *row, uint32_t count, float max)
{
    double lanes[LANES] = {0};
    uint32_t whole = count / LANES * LANES;

    for (uint32_t i = 0; i < whole; i += LANES) {
        for (int j = 0; j < LANES; j++) {
            lanes[j] += (double)weight(row[i + j], max, 1.0f);
        }
    }
    for (uint32_t i = whole; i < count; i++) {
        lanes[i % LANES] += (double)weight(row[i], max, 1.0f);
    }
    for (int width = LANES / 2; width != 0; width /= 2) {
        for (int j = 0; j < width; j++) {
            lanes[j] += lanes[j + width];
        }
    }
    return lanes[0];
}

// log(m · 2^e) = e · ln 2 + 2 atanh(s), s = (m − 1) / (m + 1), |s| < 0.172: eleven terms leave 1e-18.
double
bt_row_log(double value)
{
    uint64_t bits;
    int64_t e;
    double m, s, z, sum = 0;

    memcpy(&bits, &value, 8);
    e = (int64_t)(bits - 0x3fe6a09e667f3bcdu) >> 52; // m in [√½, √2)
    bits -= (uint64_t)e << 52;
    memcpy(&m, &bits, 8);
    s = (m - 1) / (m + 1);
    z = s * s;
    for (int k = 21; k >= 1; k -= 2) {
        sum = sum * z + 1.0 / k;
    }
    return (double)e * 0x1.62e42fefa39efp-1 + 2 * s * sum;
}

static inline uint32_t
mass_of(float x, float max, float inverse_t)
{
    return (uint32_t)(int32_t)(weight(x, max, inverse_t) * 0x1p30f + 0.5f);
}

uint64_t
bt_row_mass_of(float logit, float max, float inverse_t)
{
    return mass_of(logit, max, inverse_t);
}

CLONES uint64_t
bt_row_mass(const float *row, uint32_t count, float max, float inverse_t)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < count; i++) {
        sum += mass_of(row[i], max, inverse_t);
    }
    return sum;
}

bt_candidate
bt_candidate_of(float logit, int32_t id)
{
    uint32_t bits = bt_bits_of_float(logit + 0.0f); // one zero

    bits = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return (uint64_t)bits << 32 | ~(uint32_t)id;
}

float
bt_candidate_logit(bt_candidate candidate)
{
    uint32_t bits = (uint32_t)(candidate >> 32);

    return bt_float_of_bits(bits & 0x80000000u ? bits & 0x7fffffffu : ~bits);
}

int32_t
bt_candidate_id(bt_candidate candidate)
{
    return (int32_t) ~(uint32_t)candidate;
}

CLONES static int
any_at_least(const float *row, uint32_t count, float floor)
{
    int any = 0;

    for (uint32_t i = 0; i < count; i++) {
        any |= row[i] >= floor;
    }
    return any;
}

uint32_t
bt_row_collect(const float *row, uint32_t count, int32_t first_id, float floor, bt_candidate *out)
{
    uint32_t found = 0;

    for (uint32_t i = 0; i < count; i += BLOCK) {
        uint32_t end = count - i < BLOCK ? count : i + BLOCK;

        if (!any_at_least(row + i, end - i, floor)) {
            continue;
        }
        for (uint32_t j = i; j < end; j++) {
            if (row[j] >= floor && row[j] <= FLT_MAX) {
                out[found++] = bt_candidate_of(row[j], first_id + (int32_t)j);
            }
        }
    }
    return found;
}

static uint64_t
weigh(bt_candidate candidate, float max, float inverse_t)
{
    return inverse_t == 0.0f ? 1 : mass_of(bt_candidate_logit(candidate), max, inverse_t);
}

// Moves what is better than the pivot to the front and the pivot behind it; returns where it went. *weight_before is what
// lies in front of it.
static uint32_t
partition(bt_candidate *c, uint32_t first, uint32_t end, float max, float inverse_t, uint64_t *weight_before)
{
    uint32_t pivot_at = first + (uint32_t)(bt_mix64((uint64_t)first << 32 | end) % (end - first)), mid = first;
    bt_candidate pivot = c[pivot_at];

    c[pivot_at] = c[end - 1];
    c[end - 1] = pivot;
    *weight_before = 0;
    for (uint32_t i = first; i < end - 1; i++) {
        if (c[i] > pivot) {
            bt_candidate better = c[i];

            c[i] = c[mid];
            c[mid++] = better;
            *weight_before += weigh(better, max, inverse_t);
        }
    }
    c[end - 1] = c[mid];
    c[mid] = pivot;
    return mid;
}

uint32_t
bt_candidates_best(bt_candidate *candidates, uint32_t count, uint64_t need, float max, float inverse_t)
{
    uint32_t first = 0, end = count;

    while (first < end) {
        uint64_t before;
        uint32_t mid = partition(candidates, first, end, max, inverse_t, &before);
        uint64_t pivot = weigh(candidates[mid], max, inverse_t);

        if (before >= need) {
            end = mid;
        } else if (before + pivot >= need) {
            return mid + 1;
        } else {
            need -= before + pivot;
            first = mid + 1;
        }
    }
    return end;
}

#define TOP_PIECE 1024u

static uint32_t
top_limit(uint32_t k)
{
    return 2 * k > 2 * TOP_PIECE ? 2 * k : 2 * TOP_PIECE;
}

uint32_t
bt_row_top_room(uint32_t count, uint32_t k)
{
    uint32_t piece = count < TOP_PIECE ? count : TOP_PIECE;

    return k >= count || top_limit(k) > count ? count + piece : top_limit(k) + piece;
}

// Keeps up to twice k, cuts back to k when full, and lets only what beats the worst of those in.
uint32_t
bt_row_top(const float *row, uint32_t count, uint32_t k, bt_candidate *out)
{
    uint32_t found = 0;
    float floor = -FLT_MAX;

    k = k < count ? k : count;
    for (uint32_t i = 0; i < count; i += TOP_PIECE) {
        uint32_t piece = count - i < TOP_PIECE ? count - i : TOP_PIECE;

        found += bt_row_collect(row + i, piece, (int32_t)i, floor, out + found);
        if (found >= top_limit(k)) {
            found = bt_candidates_best(out, found, k, 0, 0);
            for (uint32_t j = 0; j < k; j++) {
                floor = j == 0 || bt_candidate_logit(out[j]) < floor ? bt_candidate_logit(out[j]) : floor;
            }
        }
    }
    return found > k ? bt_candidates_best(out, found, k, 0, 0) : found;
}

uint64_t
bt_noise_key(uint64_t seed, uint32_t position)
{
    return bt_mix64(seed ^ bt_mix64(position));
}

float
bt_noise(uint64_t key, int32_t id)
{
    return bt_ref_noise(key, (uint32_t)id);
}

CLONES static void
score_row(const float *row, uint32_t count, uint32_t first_id, float max, float inverse_t, uint64_t key, float *scores)
{
    for (uint32_t j = 0; j < count; j++) {
        scores[j] = bt_ref_draw_score(row[j], max, inverse_t, key, first_id + j);
    }
}

int32_t
bt_row_draw(const float *row, uint32_t count, float max, float inverse_t, uint64_t key)
{
    float scores[1024], best = -INFINITY;
    uint32_t winner = 0;

    for (uint32_t i = 0; i < count; i += 1024) {
        uint32_t piece = count - i < 1024 ? count - i : 1024;
        float most;

        score_row(row + i, piece, i, max, inverse_t, key, scores);
        most = bt_row_max(scores, piece);
        if (most > best) {
            best = most;
            winner = i + bt_row_find(scores, piece, most);
        }
    }
    return (int32_t)winner;
}

int32_t
bt_candidates_draw(const bt_candidate *candidates, uint32_t count, float max, float inverse_t, uint64_t key)
{
    float best = -INFINITY;
    int32_t winner = INT32_MAX;

    for (uint32_t i = 0; i < count; i++) {
        int32_t id = bt_candidate_id(candidates[i]);
        float score = bt_ref_draw_score(bt_candidate_logit(candidates[i]), max, inverse_t, key, (uint32_t)id);

        if (score > best || (score == best && id < winner)) {
            best = score;
            winner = id;
        }
    }
    return winner;
}
