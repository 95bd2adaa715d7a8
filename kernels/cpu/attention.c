// The launcher of attention: checks shapes, shares the work out in phases, picks the path.
//
//     (whole norm factors) | prepare: (span, 16 positions, KV head) | attend: (span, KV head, some queries) | (merge)
//
// A `|` is a barrier. When there are too few items for the threads, as in decoding one sequence, an item is cut into its
// splits of 512 keys, which are merged in order afterwards: the same bits, since every path computes by splits.
#include "kernels/cpu/attention.h"

#include <assert.h>

#define PREPARE_TOKENS 16u // positions of one unit of preparing: whole 4-token groups of V have one writer
#define ITEMS_A_THREAD 4u  // fewer than this, and items are cut into splits
#define PARTIAL_ROWS 32u   // a thread, of the scratch for that

typedef struct {
    bt_device *device;
    const bt_attention_path *path;
    bt_attention_job job;
    uint32_t rows;                          // of the whole call
    uint32_t *prepare_start, *attend_start; // [spans + 1]: the first unit of each span
    uint32_t item_tokens, splits;           // splits: of the longest span, or 1 when items are not cut
    float *partials;
    bt_work *whole, *prepare, *attend, *merge;
} call;

bt_attention_scratch
bt_attention_carve(uint8_t *base, uint32_t rows, uint32_t head_dim, bool floats)
{
    bt_carve c = {.base = base};
    uint32_t padded = (head_dim + 15) / 16 * 16, groups = (head_dim + 31) / 32;
    size_t partial = bt_attention_partial_floats(head_dim) * sizeof(float);
    bt_attention_scratch s = {0};

    rows = (rows + 3) / 4 * 4;
    if (floats) {
        s.k32 = bt_carve_take(&c, (size_t)BT_ATTENTION_TILE * padded * sizeof(float));
        s.v32 = bt_carve_take(&c, (size_t)BT_ATTENTION_TILE * padded * sizeof(float));
        s.q32 = bt_carve_take(&c, (size_t)rows * padded * sizeof(float));
    } else {
        s.k = bt_carve_take(&c, (size_t)BT_ATTENTION_TILE * head_dim);
        s.k_scales = bt_carve_take(&c, (size_t)groups * BT_ATTENTION_TILE * sizeof(float));
        s.v_scales = bt_carve_take(&c, BT_ATTENTION_TILE * sizeof(float));
        s.q8 = bt_carve_take(&c, (size_t)rows * head_dim);
        s.q_sum = bt_carve_take(&c, (size_t)rows * groups * sizeof(int32_t));
        s.codes = bt_carve_take(&c, 4 * BT_ATTENTION_TILE);
    }
    s.q_scale = bt_carve_take(&c, rows * sizeof(float));
    s.w = bt_carve_take(&c, rows * sizeof(float));
    s.m = bt_carve_take(&c, rows * sizeof(float));
    s.key_first = bt_carve_take(&c, rows * sizeof(uint32_t));
    s.key_end = bt_carve_take(&c, rows * sizeof(uint32_t));
    s.lanes = bt_carve_take(&c, rows * 16 * sizeof(float));
    s.split = bt_carve_take(&c, rows * partial);
    s.total = bt_carve_take(&c, rows * partial);
    s.bytes = c.used;
    return s;
}

static size_t
private_bytes(uint32_t group, uint32_t head_dim)
{
    uint32_t rows = bt_attention_item_tokens(group, head_dim) * group;
    size_t codes = bt_attention_carve(NULL, rows, head_dim, false).bytes;
    size_t floats = bt_attention_carve(NULL, rows, head_dim, true).bytes;

    return codes > floats ? codes : floats;
}

// The shared scratch: q in the larger of its forms, what a plan needs, and room for partials.
typedef struct {
    float *q;
    float *q_scale, *whole;
    uint32_t *prepare_start, *attend_start;
    float *partials;
    size_t used, partial_bytes;
} shared;

static shared
carve_shared(uint8_t *base, const bt_device_limits *limits, uint32_t threads)
{
    bt_carve c = {.base = base};
    size_t heads = (size_t)limits->tokens * limits->heads, splits = limits->context / BT_ATTENTION_SPLIT + 1;
    shared s = {0};

    s.q = bt_carve_take(&c, heads * limits->head_dim * sizeof(float));
    s.q_scale = bt_carve_take(&c, heads * sizeof(float));
    s.whole = bt_carve_take(&c, (size_t)limits->tokens * 2 * sizeof(float));
    s.prepare_start = bt_carve_take(&c, ((size_t)limits->tokens + 1) * sizeof(uint32_t));
    s.attend_start = bt_carve_take(&c, ((size_t)limits->tokens + 1) * sizeof(uint32_t));
    s.partial_bytes =
        (size_t)threads * PARTIAL_ROWS * splits * bt_attention_partial_floats(limits->head_dim) * sizeof(float);
    s.partials = bt_carve_take(&c, s.partial_bytes);
    s.used = c.used;
    return s;
}

bt_cpu_scratch
bt_cpu_attention_scratch(const bt_device_limits *limits, uint32_t threads)
{
    uint32_t group = limits->kv_heads > 0 ? limits->heads / limits->kv_heads : 0;

    if (group == 0 || limits->head_dim == 0) { // a device that only multiplies matrices
        return (bt_cpu_scratch){0};
    }
    return (bt_cpu_scratch){carve_shared(NULL, limits, threads).used, private_bytes(group, limits->head_dim)};
}

static uint32_t
check(const bt_device *device, const bt_attention_args *a)
{
    const bt_kv_layout *l = a->layout;
    uint32_t rows = 0;

    assert(a->heads > 0 && a->kv_heads > 0 && a->heads % a->kv_heads == 0 && a->heads <= device->limits.heads);
    assert(l->kv_heads == a->kv_heads && l->head_dim == a->head_dim && a->head_dim <= device->limits.head_dim);
    assert(a->layer < l->layers && a->rope_dims <= a->head_dim && a->rope_dims % 2 == 0);
    assert((a->q_norm == NULL) == (a->k_norm == NULL));
    assert(a->span_count <= device->limits.tokens);
    for (uint32_t i = 0; i < a->span_count; i++) {
        assert(a->spans[i].position + a->spans[i].count <= device->limits.context);
        rows = a->spans[i].row + a->spans[i].count > rows ? a->spans[i].row + a->spans[i].count : rows;
    }
    assert(rows <= device->limits.tokens);
    assert(private_bytes(a->heads / a->kv_heads, a->head_dim) <= device->private_bytes);
    return rows;
}

static void
plan_units(call *c)
{
    const bt_attention_args *a = c->job.args;
    uint32_t prepare = 0, attend = 0;

    for (uint32_t i = 0; i < a->span_count; i++) {
        const bt_attention_span *span = &a->spans[i];
        uint32_t pieces = (span->position % PREPARE_TOKENS + span->count + PREPARE_TOKENS - 1) / PREPARE_TOKENS;

        c->prepare_start[i] = prepare;
        c->attend_start[i] = attend;
        prepare += span->count == 0 ? 0 : pieces * a->kv_heads;
        attend += (span->count + c->item_tokens - 1) / c->item_tokens * a->kv_heads;
    }
    c->prepare_start[a->span_count] = prepare;
    c->attend_start[a->span_count] = attend;
}

// Few items: cut each into the splits of the longest sequence (a shorter one's surplus units do nothing).
static void
plan_splits(call *c, const shared *s, uint32_t threads)
{
    const bt_attention_args *a = c->job.args;
    uint32_t longest = 0;
    size_t bytes;

    for (uint32_t i = 0; i < a->span_count; i++) {
        uint32_t end = a->spans[i].position + a->spans[i].count;

        longest = end > longest ? end : longest;
    }
    c->splits = (longest + BT_ATTENTION_SPLIT - 1) / BT_ATTENTION_SPLIT;
    bytes = (size_t)c->rows * a->heads * c->splits * bt_attention_partial_floats(a->head_dim) * sizeof(float);
    if (threads > 1 && c->splits > 1 && c->attend_start[a->span_count] < ITEMS_A_THREAD * threads &&
        bytes <= s->partial_bytes) {
        c->partials = s->partials;
    } else {
        c->splits = 1;
    }
}

// The span that unit `unit` belongs to; *within is the unit's number in it.
static const bt_attention_span *
span_of(const call *c, const uint32_t *start, uint32_t unit, uint32_t *within)
{
    uint32_t low = 0, high = c->job.args->span_count;

    while (high - low > 1) {
        uint32_t middle = (low + high) / 2;

        if (start[middle] <= unit) {
            low = middle;
        } else {
            high = middle;
        }
    }
    *within = unit - start[low];
    return &c->job.args->spans[low];
}

static void
prepare_unit(const call *c, uint32_t unit)
{
    uint32_t within, kv_heads = c->job.args->kv_heads, skip, first = 0, end = 0;
    const bt_attention_span *span = span_of(c, c->prepare_start, unit, &within);

    skip = span->position % PREPARE_TOKENS;
    first = within / kv_heads * PREPARE_TOKENS;
    end = first + PREPARE_TOKENS - skip;
    first = first < skip ? 0 : first - skip;
    end = end < span->count ? end : span->count;
    c->path->prepare(&c->job, span, first, end - first, within % kv_heads);
}

static void
attend_unit(const call *c, uint32_t unit, uint8_t *scratch)
{
    uint32_t within, tiles;
    bt_attention_item item = {.job = &c->job, .scratch = scratch, .partials = c->partials, .splits = c->splits};

    item.span = span_of(c, c->attend_start, unit / c->splits, &within);
    item.split = unit % c->splits;
    tiles = (item.span->count + c->item_tokens - 1) / c->item_tokens;
    item.kv_head = within / tiles; // outside, so that neighbouring items share keys
    item.first = within % tiles * c->item_tokens;
    item.count = item.span->count - item.first < c->item_tokens ? item.span->count - item.first : c->item_tokens;
    c->path->attend(&item);
}

static void
merge_unit(const call *c, uint32_t unit)
{
    const bt_attention_args *a = c->job.args;
    uint32_t row = unit / a->heads, head = unit % a->heads;

    c->path->finish(bt_attention_partial(c->partials, c->splits, &c->job, row, head), c->splits, a->head_dim,
                    a->out + row * a->out_stride + (size_t)head * a->head_dim);
}

static void
attention_thread(void *arg, uint32_t thread, uint32_t threads)
{
    call *c = arg;
    uint32_t first = 0, end = 0;

    (void)threads;
    if (c->job.args->norm_whole && c->job.args->q_norm != NULL) {
        while (bt_work_take(c->whole, thread, &first, &end)) {
            bt_ref_attention_whole(&c->job, first);
        }
        bt_work_wait(c->whole);
    }
    while (bt_work_take(c->prepare, thread, &first, &end)) {
        prepare_unit(c, first);
    }
    bt_work_wait(c->prepare);
    while (bt_work_take(c->attend, thread, &first, &end)) {
        attend_unit(c, first, bt_cpu_private(c->device, thread));
    }
    if (c->partials != NULL) {
        bt_work_wait(c->attend);
        while (bt_work_take(c->merge, thread, &first, &end)) {
            merge_unit(c, first);
        }
    }
}

static const bt_attention_path *
path_of(bt_cpu_isa isa)
{
#if defined(__x86_64__)
    return isa >= BT_CPU_AVX512 ? &bt_attention_path_avx512
           : isa == BT_CPU_AVX2 ? &bt_attention_path_avx2
                                : &bt_attention_path_ref;
#else
    (void)isa;
    return &bt_attention_path_ref;
#endif
}

bt_err
bt_cpu_attention(bt_device *device, const bt_attention_args *args)
{
    uint32_t threads = device->threads;
    shared s = carve_shared(device->shared, &device->limits, threads);
    call c = {.device = device, .path = path_of(device->isa), .rows = check(device, args)};

    if (c.rows == 0) {
        return BT_OK;
    }
    c.job = (bt_attention_job){.args = args, .q8 = (int8_t *)s.q, .q32 = s.q, .q_scale = s.q_scale, .whole = s.whole};
    c.job.group = args->heads / args->kv_heads;
    c.job.scale_groups = args->head_dim / args->layout->k_scale_group;
    c.prepare_start = s.prepare_start;
    c.attend_start = s.attend_start;
    c.item_tokens = bt_attention_item_tokens(c.job.group, args->head_dim);
    plan_units(&c);
    plan_splits(&c, &s, threads);
    c.whole = &device->work[0], c.prepare = &device->work[1], c.attend = &device->work[2], c.merge = &device->work[3];
    bt_work_init(c.whole, threads, c.rows, 1);
    bt_work_init(c.prepare, threads, c.prepare_start[args->span_count], 1);
    bt_work_init(c.attend, threads, c.attend_start[args->span_count] * c.splits, 1);
    bt_work_init(c.merge, threads, c.rows * args->heads, 1);
    bt_pool_help(device->pool, attention_thread, &c);
    return BT_OK;
}
