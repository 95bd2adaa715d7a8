#include "tests/kernels/attention_case.h"

#include "common/base/rng.h"
#include "common/tensor/dtype.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define EPS 1e-6f
#define BASE 10000.0

float
attention_scale(const attention_case *c)
{
    return 1.0f / sqrtf((float)c->head_dim);
}

static float
draw(uint64_t seed, uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t h = bt_mix64(seed ^ bt_mix64(a ^ bt_mix64(b ^ bt_mix64(c))));
    float sum = 0;

    for (int i = 0; i < 4; i++) {
        sum += (float)(h >> (16 * i) & 0xffff) / 65536.0f - 0.5f;
    }
    return sum * 1.732f; // variance 1
}

uint32_t
attention_positions(const attention_case *c)
{
    uint32_t sum = 0;

    for (uint32_t s = 0; s < c->sequences; s++) {
        sum += c->lengths[s];
    }
    return sum;
}

void
attention_row(const attention_case *c, uint32_t sequence, uint32_t position, float *row)
{
    uint32_t q_dims = c->heads * c->head_dim, k_dims = c->kv_heads * c->head_dim;
    float size = c->size > 0 ? c->size : 1;

    for (uint32_t i = 0; i < q_dims + 2 * k_dims; i++) {
        row[i] = draw(c->seed, sequence, position, i) * (i < q_dims + k_dims ? size : 1);
        row[i] *= i % 13 == 5 ? 3.0f : 1.0f; // a few larger dims
    }
    for (uint32_t i = 0; position < c->hollow && i < k_dims; i += 7) {
        row[q_dims + k_dims + i] = 0.0f;
    }
    if (c->poison > 0 && position % c->poison == c->poison - 1) {
        row[q_dims + (position / c->poison % 2 == 0 ? k_dims : 0) + 1] = position % 3 == 0 ? INFINITY : NAN;
    }
}

static float
norm_weight(const attention_case *c, bool is_k, uint32_t i)
{
    return 1.0f + 0.3f * draw(c->seed, 77, is_k, i);
}

static int8_t
shift_of(const attention_case *c, uint32_t i)
{
    return (int8_t)(bt_mix64(c->seed + 5 + i) % 5);
}

static float
inv_freq(const attention_case *c, uint32_t i)
{
    return (float)pow(BASE, -2.0 * i / c->rope_dims);
}

// One call's share of every sequence: rows side by side.
typedef struct {
    bt_attention_span spans[CASE_SEQUENCES_MAX];
    uint32_t sequence[CASE_SEQUENCES_MAX];
    uint32_t span_count, rows;
} call_share;

static call_share
next_step(const attention_case *c, const attention_way *way, const attention_world *w, uint32_t *done)
{
    call_share st = {0};

    for (uint32_t s = 0; s < c->sequences; s++) {
        uint32_t want = way->chunk > 0 ? way->chunk : (s % 2 == 0 ? 1u : 7u) + (c->lengths[s] > 400 ? 60u : 0u),
                 rest = c->lengths[s] - done[s];

        if (way->alone > 0) {
            want = rest <= way->alone ? 1 : want < rest - way->alone ? want : rest - way->alone;
        }
        want = want < rest ? want : rest;
        if (want > 0) {
            st.sequence[st.span_count] = s;
            st.spans[st.span_count++] = (bt_attention_span){st.rows, want, done[s], w->blocks + s * w->blocks_each};
            st.rows += want;
            done[s] += want;
        }
    }
    return st;
}

static uint32_t
offset_of(const attention_case *c, uint32_t sequence)
{
    uint32_t sum = 0;

    for (uint32_t s = 0; s < sequence; s++) {
        sum += c->lengths[s];
    }
    return sum;
}

// Device memory with what lies at `from` (NULL: zeros). A few bytes more, so that none is empty.
static void *
on_device(bt_device *device, const void *from, size_t bytes)
{
    void *memory = bt_device_alloc(device, bytes + 4);

    ck_assert_ptr_nonnull(memory);
    ck_assert(from == NULL || bt_device_write(device, memory, from, bytes) == BT_OK);
    return memory;
}

// All parameters of a model's layer, as arrays of the device.
typedef struct {
    float *q_norm, *k_norm, *inv_freq;
    int8_t *shift;
} parameters;

static parameters
make_parameters(bt_device *device, const attention_case *c)
{
    uint32_t q = c->norm_whole ? c->heads * c->head_dim : c->head_dim,
             k = c->norm_whole ? c->kv_heads * c->head_dim : c->head_dim, shifts = c->kv_heads * c->head_dim / 2;
    float *values = malloc((size_t)(q + k + c->head_dim) * 4);
    int8_t *shift = malloc(shifts);
    parameters p;

    for (uint32_t i = 0; i < q; i++) {
        values[i] = norm_weight(c, false, i);
    }
    for (uint32_t i = 0; i < k; i++) {
        values[q + i] = norm_weight(c, true, i);
    }
    for (uint32_t i = 0; i < c->rope_dims / 2; i++) {
        values[q + k + i] = inv_freq(c, i);
    }
    for (uint32_t i = 0; i < shifts; i++) {
        shift[i] = shift_of(c, i);
    }
    p = (parameters){on_device(device, values, q * 4), on_device(device, values + q, k * 4),
                     on_device(device, values + q + k, c->rope_dims / 2 * 4), on_device(device, shift, shifts)};
    free(values);
    free(shift);
    return p;
}

static void
free_parameters(bt_device *device, const attention_case *c, parameters *p)
{
    uint32_t q = c->norm_whole ? c->heads * c->head_dim : c->head_dim,
             k = c->norm_whole ? c->kv_heads * c->head_dim : c->head_dim;

    bt_device_free(device, p->q_norm, q * 4 + 4);
    bt_device_free(device, p->k_norm, k * 4 + 4);
    bt_device_free(device, p->inv_freq, c->rope_dims / 2 * 4 + 4);
    bt_device_free(device, p->shift, c->kv_heads * c->head_dim / 2 + 4);
}

static void
run_step(bt_device *device, const attention_case *c, const attention_way *way, attention_world *w, uint8_t *pool,
         const parameters *p, const call_share *st)
{
    uint32_t dims = c->head_dim, cols = (c->heads + 2 * c->kv_heads) * dims, pairs = c->rope_dims / 2,
             out_cols = c->heads * dims;
    size_t qkv_stride = cols + 5, out_stride = out_cols + (st->rows % 2 != 0 ? 3 : 0); // 0: as steps have it
    size_t qkv_bytes = st->rows * qkv_stride * 4, out_bytes = st->rows * out_stride * 4,
           angle_bytes = (size_t)st->rows * pairs * 4;
    float *qkv = malloc(qkv_bytes), *out = malloc(out_bytes), *qkv_there, *out_there, *cosines, *sines;
    uint32_t *positions = malloc(st->rows * 4);
    int32_t *ids = calloc(st->rows, 4);
    const bt_ops *ops = bt_device_ops(device);
    bool known;

    for (uint32_t i = 0; i < st->span_count; i++) {
        for (uint32_t t = 0; t < st->spans[i].count; t++) {
            positions[st->spans[i].row + t] = st->spans[i].position + t;
            attention_row(c, st->sequence[i], st->spans[i].position + t, qkv + (st->spans[i].row + t) * qkv_stride);
        }
    }
    qkv_there = on_device(device, qkv, qkv_bytes);
    out_there = on_device(device, NULL, out_bytes);
    cosines = on_device(device, NULL, angle_bytes);
    sines = on_device(device, NULL, angle_bytes);
    bt_step_args step = {.ids = ids,
                         .positions = positions,
                         .tokens = st->rows,
                         .spans = st->spans,
                         .span_count = st->span_count,
                         .rows = positions};
    bt_rope_args rope = {positions, st->rows, p->inv_freq, pairs, 1.0f, cosines, sines};
    bt_attention_args a = {
        .qkv = qkv_there,
        .qkv_stride = qkv_stride,
        .out = out_there,
        .out_stride = out_stride,
        .heads = c->heads,
        .kv_heads = c->kv_heads,
        .head_dim = dims,
        .scale = attention_scale(c),
        .softcap = c->softcap,
        .window = c->window,
        .q_norm = c->norm ? p->q_norm : NULL,
        .k_norm = c->norm ? p->k_norm : NULL,
        .norm_whole = c->norm_whole,
        .norm_eps = EPS,
        .rope_cos = c->rope_dims > 0 ? cosines : NULL,
        .rope_sin = c->rope_dims > 0 ? sines : NULL,
        .rope_dims = c->rope_dims,
        .k_shift = c->shift ? p->shift : NULL,
        .layout = &w->layout,
        .pool = pool,
        .layer = 1,
        .spans = st->spans,
        .span_count = st->span_count,
    };
    ck_assert_int_eq(ops->begin(device, &step, &known), BT_OK);
    ck_assert(!known);
    ck_assert(c->rope_dims == 0 || ops->rope(device, &rope) == BT_OK);
    ck_assert_int_eq(ops->attention(device, &a), BT_OK);
    if (way->after != NULL) {
        way->after(way->arg, device, &a, st->rows);
    }
    ck_assert_int_eq(ops->end(device), BT_OK);
    ck_assert_int_eq(bt_device_read(device, out, out_there, out_bytes), BT_OK);
    for (uint32_t i = 0; i < st->span_count; i++) {
        for (uint32_t t = 0; t < st->spans[i].count; t++) {
            memcpy(w->out + (size_t)(offset_of(c, st->sequence[i]) + st->spans[i].position + t) * out_cols,
                   out + (st->spans[i].row + t) * out_stride, out_cols * 4);
        }
    }
    bt_device_free(device, qkv_there, qkv_bytes + 4);
    bt_device_free(device, out_there, out_bytes + 4);
    bt_device_free(device, cosines, angle_bytes + 4);
    bt_device_free(device, sines, angle_bytes + 4);
    free(qkv);
    free(out);
    free(positions);
    free(ids);
}

// Blocks in a drawn order, so that no sequence's blocks are neighbours by design.
static void
make_world(attention_world *w, const attention_case *c, uint64_t shuffle)
{
    uint32_t longest = 0, count;
    bt_rng rng = {shuffle};

    for (uint32_t s = 0; s < c->sequences; s++) {
        longest = c->lengths[s] > longest ? c->lengths[s] : longest;
    }
    ck_assert_int_eq(bt_kv_layout_init(&w->layout, c->format, 2, c->kv_heads, c->head_dim, c->block_tokens,
                                       c->k_scale_group > 0 ? c->k_scale_group : c->head_dim, NULL),
                     BT_OK);
    w->blocks_each = (longest + c->block_tokens - 1) / c->block_tokens;
    count = w->blocks_each * c->sequences;
    w->blocks = malloc(count * 4);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t j = (uint32_t)bt_rng_below(&rng, i + 1);

        w->blocks[i] = w->blocks[j];
        w->blocks[j] = i;
    }
    w->pool = aligned_alloc(64, count * w->layout.block_bytes);
    memset(w->pool, 0xff, count * w->layout.block_bytes); // NaNs and −1s: what is not written must not matter
    w->out = malloc((size_t)attention_positions(c) * c->heads * c->head_dim * 4);
}

bool
attention_run(attention_world *world, const attention_case *c, const attention_way *way)
{
    return attention_run_on(world, c, way, BT_DEVICE_CPU);
}

bool
attention_run_on(attention_world *world, const attention_case *c, const attention_way *way, bt_device_kind kind)
{
    bt_device_options options = {.kind = kind, .threads = way->threads, .isa = way->isa};
    bt_device_limits limits = {.cols = 64,
                               .rows = 64,
                               .heads = c->heads,
                               .kv_heads = c->kv_heads,
                               .head_dim = c->head_dim,
                               .block_tokens = c->block_tokens};
    uint32_t done[CASE_SEQUENCES_MAX] = {0};
    size_t pool_bytes;
    parameters p;
    bt_device *device;
    uint8_t *pool;
    bt_err err = bt_device_open(&device, &options, NULL);

    if (err == BT_ERR_UNSUPPORTED) {
        return false;
    }
    ck_assert_int_eq(err, BT_OK);
    make_world(world, c, way->shuffle);
    limits.context = world->blocks_each * c->block_tokens;
    limits.tokens = attention_positions(c);
    limits.cols = way->after != NULL ? c->heads * c->head_dim : limits.cols;
    ck_assert_int_eq(bt_device_reserve(device, &limits, NULL), BT_OK);
    p = make_parameters(device, c);
    pool_bytes = (size_t)world->blocks_each * c->sequences * world->layout.block_bytes;
    pool = on_device(device, world->pool, pool_bytes);
    for (call_share st = next_step(c, way, world, done); st.rows > 0; st = next_step(c, way, world, done)) {
        run_step(device, c, way, world, pool, &p, &st);
    }
    ck_assert_int_eq(bt_device_read(device, world->pool, pool, pool_bytes), BT_OK);
    bt_device_free(device, pool, pool_bytes + 4);
    free_parameters(device, c, &p);
    bt_device_close(device);
    return true;
}

void
attention_free(attention_world *world)
{
    free(world->pool);
    free(world->blocks);
    free(world->out);
}

static void
twin_norm(const attention_case *c, double *x, uint32_t heads, bool is_k)
{
    uint32_t group = c->norm_whole ? heads * c->head_dim : c->head_dim;

    for (uint32_t first = 0; c->norm && first < heads * c->head_dim; first += group) {
        double sum = 0;

        for (uint32_t i = 0; i < group; i++) {
            sum += x[first + i] * x[first + i];
        }
        for (uint32_t i = 0; i < group; i++) {
            x[first + i] *= (double)norm_weight(c, is_k, i) / sqrt(sum / group + (double)EPS);
        }
    }
}

// The angle is rounded to f32 (kernels/cpu/rope.c); everything after it is in double.
static void
twin_rope(const attention_case *c, double *x, uint32_t position)
{
    uint32_t half = c->rope_dims / 2;

    for (uint32_t i = 0; i < half; i++) {
        double angle = (double)((float)position * inv_freq(c, i)), low = x[i], high = x[i + half];

        x[i] = low * cos(angle) - high * sin(angle);
        x[i + half] = high * cos(angle) + low * sin(angle);
    }
}

void
attention_twin_row(const attention_case *c, uint32_t sequence, uint32_t position, double *q, double *k, double *v)
{
    uint32_t dims = c->head_dim, q_dims = c->heads * dims, k_dims = c->kv_heads * dims, group = c->heads / c->kv_heads;
    float *row = malloc((q_dims + 2 * k_dims) * 4);

    attention_row(c, sequence, position, row);
    for (uint32_t i = 0; i < q_dims + 2 * k_dims; i++) {
        *(i < q_dims ? &q[i] : i < q_dims + k_dims ? &k[i - q_dims] : &v[i - q_dims - k_dims]) = (double)row[i];
    }
    free(row);
    twin_norm(c, q, c->heads, false);
    twin_norm(c, k, c->kv_heads, true);
    for (uint32_t h = 0; h < c->heads + c->kv_heads; h++) {
        double *x = h < c->heads ? q + h * dims : k + (h - c->heads) * dims;
        uint32_t kv_head = h < c->heads ? h / group : h - c->heads;

        twin_rope(c, x, position);
        for (uint32_t i = 0; c->shift && i < dims; i++) {
            int shift = shift_of(c, kv_head * (dims / 2) + i % (dims / 2));

            x[i] = ldexp(x[i], h < c->heads ? shift : -shift);
        }
    }
}

void
attention_cached(const attention_world *world, uint32_t sequence, uint32_t position, uint32_t kv_head, bool is_v,
                 double *x, double *step)
{
    const bt_kv_layout *l = &world->layout;
    uint32_t slot = position % l->block_tokens, groups = l->head_dim / l->k_scale_group;
    uint8_t *block =
        world->pool + world->blocks[sequence * world->blocks_each + position / l->block_tokens] * l->block_bytes;
    uint8_t *from = is_v ? bt_kv_v(l, block, 1, kv_head) : bt_kv_k(l, block, 1, kv_head);

    *step = 0;
    for (uint32_t i = 0; i < l->head_dim; i++) {
        if (l->format == BT_KV_INT8) {
            uint16_t half = is_v ? bt_kv_v_scales(l, block, 1, kv_head)[slot]
                                 : bt_kv_k_scales(l, block, 1, kv_head)[slot * groups + i / l->k_scale_group];
            double scale = (double)bt_f16_to_f32(half);

            x[i] = scale *
                   (int8_t)(is_v ? from[(slot / 4 * l->head_dim + i) * 4 + slot % 4] : from[slot * l->head_dim + i]);
            *step = scale > *step ? scale : *step;
        } else if (l->format == BT_KV_F16) {
            uint16_t half;

            memcpy(&half, from + (slot * l->head_dim + i) * 2, 2);
            x[i] = (double)bt_f16_to_f32(half);
            *step = fmax(*step, fabs(x[i]) * 0x1p-10);
        } else {
            float value;

            memcpy(&value, from + (slot * l->head_dim + i) * 4, 4);
            x[i] = (double)value;
            *step = fmax(*step, fabs(x[i]) * 0x1p-21); // three roundings before it is stored
        }
    }
}

// (One assertion for all: each costs a system call.)
void
attention_must_agree(const attention_case *c, const attention_world *a, const attention_world *b, const char *what)
{
    size_t each = (size_t)c->heads * c->head_dim, count = attention_positions(c) * each, i = 0;

    while (i < count && (memcmp(&a->out[i], &b->out[i], 4) == 0 || (isnan(a->out[i]) && isnan(b->out[i])))) {
        i++;
    }
    ck_assert_msg(i == count, "%s: token %zu of all, head %zu, dim %zu: %a and %a", what, i / each,
                  i % each / c->head_dim, i % c->head_dim, (double)a->out[i < count ? i : 0],
                  (double)b->out[i < count ? i : 0]);
}
