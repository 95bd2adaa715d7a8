#include "common/text/pretokenize.h"

#include "common/base/mem.h"

void
bt_pre_scratch_init(bt_pre_scratch *scratch, bt_regex_finder *finder, size_t limit)
{
    scratch->finder = finder;
    for (uint32_t i = 0; i < BT_PRE_STEPS_MAX; i++) {
        bt_buf_init(&scratch->rewritten[i], limit);
    }
}

void
bt_pre_scratch_fini(bt_pre_scratch *scratch)
{
    for (uint32_t i = 0; i < BT_PRE_STEPS_MAX; i++) {
        bt_buf_fini(&scratch->rewritten[i]);
    }
}

bt_err
bt_pre_tokenizer_add(bt_pre_tokenizer *pre, bt_pre_step step)
{
    if (pre->count == BT_PRE_STEPS_MAX) {
        bt_regex_close(step.regex);
        return BT_ERR_TOO_LONG;
    }
    pre->steps[pre->count++] = step;
    return BT_OK;
}

bt_err
bt_pre_tokenizer_add_regex(bt_pre_tokenizer *pre, bt_str pattern, bt_split_behavior behavior, bool invert, bt_why *why)
{
    bt_pre_step step = {.behavior = behavior, .invert = invert};
    bt_err err = bt_regex_open(&step.regex, pattern, why);

    return err != BT_OK ? err : bt_pre_tokenizer_add(pre, step);
}

void
bt_pre_tokenizer_fini(bt_pre_tokenizer *pre)
{
    for (uint32_t i = 0; i < pre->count; i++) {
        bt_regex_close(pre->steps[i].regex);
    }
    *pre = (bt_pre_tokenizer){0};
}

// A run through the chain: steps call each other, so that no list of pieces is ever built.
typedef struct {
    const bt_pre_tokenizer *pre;
    bt_pre_scratch *scratch;
    bt_piece_fn piece;
    void *context;
} chain;

// Joins spans (matches and gaps alternate, in order) to pieces as the step's behaviour asks.
typedef struct {
    chain *run;
    uint32_t step;
    bt_str text;
    bool at_start;
    size_t begin, end; // the pending piece; empty when there is none
    bool match;        // its last span was a match
} joiner;

static bt_err run_step(chain *run, uint32_t step, bt_str text, bool at_start);

static bt_err
flush(joiner *join)
{
    const bt_pre_step *step = &join->run->pre->steps[join->step];
    bt_str piece = {join->text.data + join->begin, join->end - join->begin};

    if (piece.len == 0 || (step->behavior == BT_SPLIT_REMOVED && join->match)) {
        return BT_OK;
    }
    return run_step(join->run, join->step + 1, piece, join->at_start && join->begin == 0);
}

static bool
joins(bt_split_behavior behavior, bool before, bool now)
{
    switch (behavior) {
    case BT_SPLIT_WITH_PREVIOUS:
        return now && !before;
    case BT_SPLIT_WITH_NEXT:
        return before && !now;
    case BT_SPLIT_CONTIGUOUS:
        return before == now;
    default:
        return false;
    }
}

static bt_err
span(joiner *join, size_t begin, size_t end, bool match)
{
    const bt_pre_step *step = &join->run->pre->steps[join->step];
    bt_err err = BT_OK;

    if (begin == end) {
        return BT_OK;
    }
    match ^= step->invert;
    if (join->begin == join->end || !joins(step->behavior, join->match, match)) {
        err = flush(join);
        join->begin = begin;
    }
    join->end = end;
    join->match = match;
    return err;
}

static size_t
next_character(bt_str text, size_t at)
{
    do {
        at++;
    } while (at < text.len && ((uint8_t)text.data[at] & 0xc0) == 0x80);
    return at;
}

static bt_err
split(chain *run, uint32_t index, bt_str text, bool at_start)
{
    const bt_regex *regex = run->pre->steps[index].regex;
    joiner join = {.run = run, .step = index, .text = text, .at_start = at_start};
    size_t done = 0, from = 0, begin, end;
    bt_err err = BT_OK;

    while (from < text.len && (err = bt_regex_find(regex, run->scratch->finder, text, from, &begin, &end)) == BT_OK) {
        if (begin == end) {
            from = next_character(text, begin); // an empty match splits nothing
            continue;
        }
        if ((err = span(&join, done, begin, false)) != BT_OK || (err = span(&join, begin, end, true)) != BT_OK) {
            return err;
        }
        done = from = end;
    }
    if (err != BT_OK && err != BT_ERR_NOT_FOUND) {
        return err;
    }
    if ((err = span(&join, done, text.len, false)) != BT_OK) {
        return err;
    }
    return flush(&join);
}

// Metaspace, and ByteLevel's add_prefix_space.
static bt_err
rewrite(const bt_pre_step *step, bt_buf *out, bool at_start, bt_str *text)
{
    const char *prefix = step->metaspace ? "\xe2\x96\x81" : " ";
    bool wanted = step->prefix == BT_PREFIX_ALWAYS || (step->prefix == BT_PREFIX_FIRST && at_start);
    bool there = text->data[0] == ' ' || (step->metaspace && text->len >= 3 && memcmp(text->data, prefix, 3) == 0);
    size_t from = 0;

    bt_buf_clear(out);
    if (wanted && !there) {
        bt_buf_append_text(out, prefix);
    }
    while (step->metaspace) {
        const char *space = memchr(text->data + from, ' ', text->len - from);

        if (space == NULL) {
            break;
        }
        bt_buf_append(out, text->data + from, (size_t)(space - text->data) - from);
        bt_buf_append_text(out, prefix);
        from = (size_t)(space - text->data) + 1;
    }
    bt_buf_append(out, text->data + from, text->len - from);
    *text = (bt_str){out->data, out->len};
    return out->failed ? BT_ERR_NO_MEMORY : BT_OK;
}

static bt_err
run_step(chain *run, uint32_t index, bt_str text, bool at_start)
{
    const bt_pre_step *step = &run->pre->steps[index];
    bt_err err;

    if (index == run->pre->count) {
        return run->piece(run->context, text);
    }
    if (step->metaspace || step->prefix != BT_PREFIX_NEVER) {
        if ((err = rewrite(step, &run->scratch->rewritten[index], at_start, &text)) != BT_OK) {
            return err;
        }
    }
    if (step->regex == NULL) {
        return run_step(run, index + 1, text, at_start);
    }
    return split(run, index, text, at_start);
}

bt_err
bt_pre_tokenizer_run(const bt_pre_tokenizer *pre, bt_pre_scratch *scratch, bt_str text, bool at_start,
                     bt_piece_fn piece, void *context)
{
    chain run = {pre, scratch, piece, context};

    return text.len == 0 ? BT_OK : run_step(&run, 0, text, at_start);
}
