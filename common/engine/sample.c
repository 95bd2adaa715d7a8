#include "common/engine/sample.h"

#include "common/engine/row.h"
#include "kernels/cpu/ref/math.h"

#include <string.h>

#define GREEDY_BELOW 1e-5f

// One thread's scratch: candidates [room], changed logits [vocab], how often each token was seen [vocab].
typedef struct {
    bt_candidate *candidates;
    float *changed;
    uint32_t *seen; // all zero between two calls
} scratch_parts;

static size_t
rounded(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

static size_t
candidate_bytes(uint32_t vocab)
{
    return rounded((size_t)bt_row_top_room(vocab, vocab) * sizeof(bt_candidate));
}

size_t
bt_sample_scratch_bytes(uint32_t vocab)
{
    return candidate_bytes(vocab) + 2 * rounded(vocab * sizeof(float));
}

static scratch_parts
parts_of(void *scratch, uint32_t vocab)
{
    uint8_t *at = scratch, *changed = at + candidate_bytes(vocab);

    return (scratch_parts){(void *)at, (void *)changed, (void *)(changed + rounded(vocab * sizeof(float)))};
}

static bool
penalises(const bt_sampling *s)
{
    return (s->repetition_penalty > 0 && s->repetition_penalty != 1.0f) || s->presence_penalty != 0 ||
           s->frequency_penalty != 0;
}

#define IN_PROMPT 0x80000000u // the rest of `seen` counts the answer

static void
penalise_one(const bt_sampling *s, float *logit, uint32_t seen)
{
    uint32_t answered = seen & ~IN_PROMPT;
    float x = *logit;

    if (s->repetition_penalty > 0) {
        x = x > 0 ? x / s->repetition_penalty : x * s->repetition_penalty;
    }
    if (answered != 0) {
        x -= s->frequency_penalty * (float)answered;
        x -= s->presence_penalty;
    }
    *logit = x;
}

static void
penalise(const bt_sample_args *args, const scratch_parts *parts)
{
    for (uint32_t i = 0; i < args->history_count; i++) {
        uint32_t id = (uint32_t)args->history[i];

        if (id < args->vocab) {
            parts->seen[id] = i < args->prompt_count ? parts->seen[id] | IN_PROMPT : parts->seen[id] + 1;
        }
    }
    for (uint32_t i = 0; i < args->history_count; i++) {
        uint32_t id = (uint32_t)args->history[i];

        if (id < args->vocab && parts->seen[id] != 0) {
            penalise_one(args->sampling, &parts->changed[id], parts->seen[id]);
            parts->seen[id] = 0;
        }
    }
}

// The row to draw from: the raw one, or a changed copy.
static const float *
changed_row(const bt_sample_args *args, const scratch_parts *parts)
{
    const bt_sampling *s = args->sampling;
    bool penalties = s != NULL && args->history != NULL && penalises(s);

    if (s == NULL || (!penalties && s->bias_count == 0 && !s->ignore_eos)) {
        return args->logits;
    }
    memcpy(parts->changed, args->logits, args->vocab * sizeof(float));
    for (uint32_t i = 0; i < s->bias_count && i < BT_LOGIT_BIAS_MAX; i++) {
        if ((uint32_t)s->bias_ids[i] < args->vocab) {
            parts->changed[s->bias_ids[i]] += s->bias_values[i];
        }
    }
    for (uint32_t i = 0; s->ignore_eos && i < args->end_count; i++) {
        parts->changed[args->ends[i]] = -INFINITY;
    }
    if (penalties) {
        penalise(args, parts);
    }
    return parts->changed;
}

// exp((logit − max) / T) ≥ min_p, of a list; the best always stays.
static uint32_t
keep_min_p(bt_candidate *c, uint32_t count, float max, float inverse_t, float min_p)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < count; i++) {
        if (bt_ref_exp((bt_candidate_logit(c[i]) - max) * inverse_t) >= min_p) {
            c[kept++] = c[i];
        }
    }
    return kept;
}

static uint64_t
mass_of(const bt_candidate *c, uint32_t count, float max, float inverse_t)
{
    uint64_t mass = 0;

    for (uint32_t i = 0; i < count; i++) {
        mass += bt_row_mass_of(bt_candidate_logit(c[i]), max, inverse_t);
    }
    return mass;
}

// The mass that top-p asks for: at least the best token's first unit, at most everything.
static uint64_t
share_of(uint64_t total, float top_p)
{
    double share = (double)total * (double)top_p;
    uint64_t need = share > 1 ? (uint64_t)share : 1;

    need += (double)need < share;
    return need < total ? need : total;
}

// Top-p over the whole row: most of the mass is near the top, so the tail is looked at only when it must be. What weighs
// nothing (22 below the top) is never needed.
static uint32_t
top_p_of_row(const float *row, uint32_t vocab, float max, float inverse_t, float top_p, bt_candidate *c)
{
    uint64_t need = share_of(bt_row_mass(row, vocab, max, inverse_t), top_p);
    uint32_t count = bt_row_collect(row, vocab, 0, max - 8.0f / inverse_t, c);

    if (mass_of(c, count, max, inverse_t) < need) {
        count = bt_row_collect(row, vocab, 0, max - 22.0f / inverse_t, c);
    }
    return bt_candidates_best(c, count, need, max, inverse_t);
}

static int32_t
draw(const bt_sample_args *args, const float *row, float max, bt_candidate *c)
{
    const bt_sampling *s = args->sampling;
    float inverse_t = 1.0f / s->temperature;
    uint64_t key = bt_noise_key(s->seed, args->position);
    float min_p = s->min_p < 1.0f ? s->min_p : 1.0f;
    bool top_k = s->top_k > 0 && s->top_k < args->vocab, top_p = s->top_p < 1.0f;
    uint32_t count;

    if (top_k) {
        count = bt_row_top(row, args->vocab, s->top_k, c);
    } else if (min_p > 0) {
        // Exactly below; the floor only spares work, so it lies a little lower.
        count = bt_row_collect(row, args->vocab, 0, max + (float)(bt_row_log((double)min_p) - 0.01) / inverse_t, c);
    } else if (top_p) {
        count = top_p_of_row(row, args->vocab, max, inverse_t, s->top_p, c);
        return bt_candidates_draw(c, count, max, inverse_t, key);
    } else {
        return bt_row_draw(row, args->vocab, max, inverse_t, key);
    }
    if (min_p > 0) {
        count = keep_min_p(c, count, max, inverse_t, min_p);
    }
    if (top_p) {
        count = bt_candidates_best(c, count, share_of(mass_of(c, count, max, inverse_t), s->top_p), max, inverse_t);
    }
    return bt_candidates_draw(c, count, max, inverse_t, key);
}

static void
sort_falling(bt_candidate *c, uint32_t count)
{
    for (uint32_t i = 1; i < count; i++) {
        bt_candidate moving = c[i];
        uint32_t j = i;

        for (; j > 0 && c[j - 1] < moving; j--) {
            c[j] = c[j - 1];
        }
        c[j] = moving;
    }
}

static float
logprob_of(float logit, float max, double log_sum)
{
    return (float)((double)logit - (double)max - log_sum);
}

bt_err
bt_sample_score(const float *logits, uint32_t vocab, int32_t id, uint32_t top, void *scratch, bt_token_result *out)
{
    scratch_parts parts = parts_of(scratch, vocab);
    float max = bt_row_max(logits, vocab);
    double log_sum;

    if (max == -INFINITY) {
        return BT_ERR_DEVICE;
    }
    log_sum = bt_row_log(bt_row_sum_exp(logits, vocab, max));
    out->id = id;
    out->logprob = (uint32_t)id < vocab ? logprob_of(logits[id], max, log_sum) : 0;
    out->top_count = 0;
    if (top != 0) {
        top = top < BT_TOP_LOGPROBS_MAX ? top : BT_TOP_LOGPROBS_MAX;
        out->top_count = bt_row_top(logits, vocab, top, parts.candidates);
        sort_falling(parts.candidates, out->top_count);
    }
    for (uint32_t i = 0; i < out->top_count; i++) {
        out->top_ids[i] = bt_candidate_id(parts.candidates[i]);
        out->top_logprobs[i] = logprob_of(bt_candidate_logit(parts.candidates[i]), max, log_sum);
    }
    return BT_OK;
}

bool
bt_sample_as_draw(const bt_sampling *s, uint32_t vocab, uint32_t position, bool has_history, bt_draw *out)
{
    bool greedy = s == NULL || !(s->temperature >= GREEDY_BELOW);

    *out = (bt_draw){.inverse_t = greedy ? 0 : 1.0f / s->temperature};
    if (s == NULL) {
        return true;
    }
    if (s->bias_count != 0 || s->logprobs || s->top_logprobs != 0 || (has_history && penalises(s))) {
        return false;
    }
    out->no_end = s->ignore_eos;
    out->key = greedy ? 0 : bt_noise_key(s->seed, position);
    // Where 1 / T vanishes nothing tells greedy from random.
    return greedy ||
           (out->inverse_t > 0 && s->top_p >= 1.0f && !(s->min_p > 0) && (s->top_k == 0 || s->top_k >= vocab));
}

bt_err
bt_sample(const bt_sample_args *args, void *scratch, bt_token_result *out)
{
    const bt_sampling *s = args->sampling;
    scratch_parts parts = parts_of(scratch, args->vocab);
    const float *row = changed_row(args, &parts);
    float max = bt_row_max(row, args->vocab);
    int32_t id;

    if (max == -INFINITY) {
        return BT_ERR_DEVICE;
    }
    if (s == NULL || !(s->temperature >= GREEDY_BELOW)) {
        id = (int32_t)bt_row_find(row, args->vocab, max);
    } else {
        id = draw(args, row, max, parts.candidates);
    }
    if (s != NULL && (s->logprobs || s->top_logprobs != 0)) {
        return bt_sample_score(args->logits, args->vocab, id, s->top_logprobs, scratch, out);
    }
    out->id = id;
    out->logprob = 0;
    out->top_count = 0;
    return BT_OK;
}
