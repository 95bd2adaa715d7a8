#include "kernels/cpu/tiled.h"

#include "kernels/cpu/ref/quantise.h"

#include <assert.h>
#include <string.h>

// Up to so many activations every thread quantises for itself: cheaper than meeting the others (kernels/README.md).
#define PRIVATE_ACTIVATIONS 8192u
// Tokens of float formats that go through the rows together: their x stays in the second-level cache.
#define FLOAT_GROUP 48u

typedef struct {
    bt_panel_layout layout;
    uint32_t block_units, segment_units;
    uint32_t panels_before; // panels of the parts before it
} part_plan;

typedef struct {
    bt_device *device;
    const bt_linear_path *path;
    const bt_linear_args *args;
    uint32_t cols_padded, panels, tile_count, act_blocks;
    bool paired, is_private;
    part_plan parts[3];
    bt_tile *tiles;                     // [tile_count] in shared scratch, or the private tile's shape
    uint32_t group_first, group_tokens; // float formats
    bt_work *rows, *tokens;
} plan;

static bool
is_paired(const bt_linear_args *args)
{
    return args->epilogue == BT_LINEAR_SILU_MUL || args->epilogue == BT_LINEAR_GELU_MUL;
}

static void
plan_part(plan *p, uint32_t i)
{
    const bt_weight *w = p->args->weights[i];
    bt_format f = w->format;
    uint32_t block = f.block != BT_BLOCK_ROW ? f.block : f.act_block;
    part_plan *part = &p->parts[i];

    part->panels_before = p->panels;
    p->panels += (w->rows + BT_PANEL_ROWS - 1) / BT_PANEL_ROWS;
    if (f.kind != BT_WEIGHT_INT) {
        return;
    }
    part->layout = bt_panel_layout_of(f, w->rows, w->cols);
    part->block_units = block == BT_BLOCK_ROW ? part->layout.units : block / BT_UNIT_COLS;
    part->segment_units = block == BT_BLOCK_ROW ? part->layout.units : BT_SEGMENT_COLS / BT_UNIT_COLS;
}

static uint32_t
tile_tokens_max(const bt_linear_path *path, const bt_linear_args *args)
{
    for (uint32_t i = 0; i < args->weight_count; i++) {
        if (args->weights[i]->format.asymmetric) {
            return path->tile_asymmetric;
        }
    }
    return path->tile_symmetric;
}

static uint32_t
panel_blocks(const plan *p, uint32_t part)
{
    return (p->parts[part].layout.units + p->parts[part].block_units - 1) / p->parts[part].block_units;
}

// The part before `i` whose records serve it too, or `i`.
static uint32_t
records_owner(const plan *p, uint32_t i)
{
    for (uint32_t j = 0; j < i; j++) {
        if (p->parts[j].block_units == p->parts[i].block_units &&
            p->args->weights[j]->format.asymmetric == p->args->weights[i]->format.asymmetric) {
            return j;
        }
    }
    return i;
}

static void
carve_tile(const plan *p, bt_carve *carve, bt_tile *tile)
{
    uint32_t tokens = tile->tokens;

    tile->group = p->path->code_group;
    tile->a8 = bt_carve_take(carve, (size_t)p->cols_padded * tokens);
    tile->scales = bt_carve_take(carve, (size_t)p->act_blocks * tokens * 4);
    for (uint32_t i = 0; i < p->args->weight_count; i++) {
        uint32_t owner = records_owner(p, i);

        tile->records[i] =
            owner < i ? tile->records[owner] : bt_carve_take(carve, (size_t)panel_blocks(p, i) * tokens * 8);
    }
}

// Cuts the tokens into tiles of two neighbouring sizes and gives each its place.
static void
plan_tiles(const plan *p, bt_carve *carve)
{
    uint32_t base = p->args->tokens / p->tile_count, more = p->args->tokens % p->tile_count, token = 0;

    for (uint32_t i = 0; i < p->tile_count; i++) {
        bt_tile *tile = &p->tiles[i];

        *tile = (bt_tile){.tokens = base + (i < more), .first_token = token};
        token += tile->tokens;
        carve_tile(p, carve, tile);
    }
}

// The records of one token from the sums of its units.
static void
write_records(const plan *p, const bt_tile *tile, uint32_t slot, const int32_t *unit_sums)
{
    uint32_t act_block = p->args->weights[0]->format.act_block;

    for (uint32_t i = 0; i < p->args->weight_count; i++) {
        uint32_t units = p->parts[i].block_units, step = 2 * tile->tokens;
        bool asymmetric = p->args->weights[i]->format.asymmetric;
        uint32_t *out = tile->records[i] + slot;

        if (records_owner(p, i) < i) {
            continue;
        }
        for (uint32_t first = 0; first < p->parts[i].layout.units; first += units, out += step) {
            uint32_t act = act_block == BT_BLOCK_ROW ? 0 : first * BT_UNIT_COLS / act_block;
            float scale = tile->scales[act * tile->tokens + slot], scaled;
            int32_t sum = 0;

            for (uint32_t u = first; u < first + units && u < p->parts[i].layout.units; u++) {
                sum += unit_sums[u];
            }
            memcpy(out, &scale, 4);
            scaled = scale * (float)sum;
            sum = (int32_t)(-128u * (uint32_t)sum);
            memcpy(out + tile->tokens, asymmetric ? (void *)&scaled : (void *)&sum, 4);
        }
    }
}

// What a thread works with.
typedef struct {
    float *row;           // [cols padded]
    int32_t *unit_sums;   // [units]
    uint8_t *unpacked[2]; // [16][cols padded]
    float *r, *up;        // [48][16]
    uint8_t *activations; // of few tokens
} thread_scratch;

static thread_scratch
carve_thread(uint8_t *base, uint32_t cols_padded, size_t *bytes)
{
    bt_carve carve = {.base = base};
    thread_scratch s;

    s.row = bt_carve_take(&carve, (size_t)cols_padded * 4);
    s.unit_sums = bt_carve_take(&carve, cols_padded / BT_UNIT_COLS * 4);
    s.unpacked[0] = bt_carve_take(&carve, (size_t)cols_padded * BT_PANEL_ROWS);
    s.unpacked[1] = bt_carve_take(&carve, (size_t)cols_padded * BT_PANEL_ROWS);
    s.r = bt_carve_take(&carve, FLOAT_GROUP * BT_PANEL_ROWS * 4);
    s.up = bt_carve_take(&carve, FLOAT_GROUP * BT_PANEL_ROWS * 4);
    s.activations = bt_carve_take(&carve, 0);
    *bytes = carve.used;
    return s;
}

// Bytes of the activations of `tokens` tokens at most: codes, act scales, and records of three widths down to 16.
static size_t
activation_bytes(size_t tokens, size_t cols_padded)
{
    size_t tiles = tokens / 4 + 2; // no path's tiles are smaller when there are several

    return tokens * (cols_padded + cols_padded / 32 * 4 + 3 * (cols_padded / 16 * 8)) +
           tiles * (64 * 5 + sizeof(bt_tile));
}

bt_cpu_scratch
bt_tiled_scratch(const bt_device_limits *limits)
{
    uint32_t padded = bt_cols_padded(limits->cols);
    size_t few = PRIVATE_ACTIVATIONS / padded + 1, floats;
    bt_cpu_scratch need = {.shared = activation_bytes(limits->tokens, padded)};

    floats = (size_t)(limits->tokens < FLOAT_GROUP ? limits->tokens : FLOAT_GROUP) * padded * 4;
    need.shared = need.shared > floats ? need.shared : floats;
    carve_thread(NULL, padded, &need.private_bytes);
    need.private_bytes += activation_bytes(few, padded);
    return need;
}

static void
quantise_tile(const plan *p, const bt_tile *tile, const thread_scratch *s)
{
    for (uint32_t slot = 0; slot < tile->tokens; slot++) {
        p->path->quantise(p->args, tile->first_token + slot, tile, slot, s->row, s->unit_sums);
        write_records(p, tile, slot, s->unit_sums);
    }
}

// A panel of one part, ready for its kernel.
typedef struct {
    bt_dot_args args;
    unsigned bits;
    bool asymmetric;
    uint32_t part;
} panel_dot;

static panel_dot
panel_of(const plan *p, uint32_t part, uint32_t panel, bool unpack, uint8_t *unpacked)
{
    const bt_weight *w = p->args->weights[part];
    const part_plan *plan_of = &p->parts[part];
    panel_dot dot = {.bits = w->format.bits, .asymmetric = w->format.asymmetric, .part = part};

    dot.args.codes = bt_panel_codes(&plan_of->layout, w->data, panel);
    dot.args.scales = bt_panel_scales(&plan_of->layout, w->data, panel);
    dot.args.scale_step = w->format.block == BT_BLOCK_ROW ? 0 : plan_of->layout.scale_block;
    dot.args.units = plan_of->layout.units;
    dot.args.block_units = plan_of->block_units;
    dot.args.segment_units = plan_of->segment_units;
    if (unpack && (dot.bits < 8 || p->path->unpack_bytes)) {
        p->path->unpack(dot.args.codes, w->format, dot.args.units, unpacked);
        dot.args.codes = unpacked;
        dot.bits = 8;
    }
    return dot;
}

static void
run_dot(const plan *p, panel_dot *dot, const bt_tile *tile, float *r)
{
    dot->args.a8 = tile->a8;
    dot->args.tokens = tile->tokens;
    dot->args.records = tile->records[dot->part];
    p->path->dot(dot->bits, dot->asymmetric, tile->tokens)(&dot->args, r);
}

// One panel (and its twin when paired) against all tiles.
static void
run_panel(const plan *p, uint32_t index, const bt_tile *tiles, const thread_scratch *s)
{
    uint32_t part = 0, largest = (p->args->tokens + p->tile_count - 1) / p->tile_count;
    bool unpack =
        p->path->unpack != NULL && (largest > p->path->direct_tokens || p->tile_count > p->path->direct_tiles);
    bt_finish_args finish = {.args = p->args, .r = s->r};
    panel_dot dot, up;

    while (part + 1 < p->args->weight_count && !p->paired && index >= p->parts[part + 1].panels_before) {
        finish.y_col += p->args->weights[part++]->rows;
    }
    finish.part = part;
    finish.panel = index - p->parts[part].panels_before;
    finish.y_col += finish.panel * BT_PANEL_ROWS;
    dot = panel_of(p, part, finish.panel, unpack, s->unpacked[0]);
    if (p->paired) {
        up = panel_of(p, 1, finish.panel, unpack, s->unpacked[1]);
        finish.up = s->up;
    }
    for (uint32_t i = 0; i < p->tile_count; i++) {
        finish.tile = &tiles[i];
        run_dot(p, &dot, &tiles[i], s->r);
        if (p->paired) {
            run_dot(p, &up, &tiles[i], s->up);
        }
        p->path->finish(&finish);
    }
}

static void
int_thread(void *arg, uint32_t thread, uint32_t threads)
{
    plan *p = arg;
    size_t bytes;
    thread_scratch s = carve_thread(bt_cpu_private(p->device, thread), p->cols_padded, &bytes);
    bt_tile own = {.tokens = p->args->tokens}, *tiles = p->is_private ? &own : p->tiles;
    uint32_t first = 0, end = 0;

    (void)threads;
    if (p->is_private) {
        bt_carve carve = {.base = s.activations};

        carve_tile(p, &carve, &own);
        quantise_tile(p, &own, &s);
    } else {
        while (bt_work_take(p->tokens, thread, &first, &end)) {
            for (uint32_t i = first; i < end; i++) {
                quantise_tile(p, &tiles[i], &s);
            }
        }
        bt_work_wait(p->tokens);
    }
    while (bt_work_take(p->rows, thread, &first, &end)) {
        for (uint32_t i = first; i < end; i++) {
            run_panel(p, i, tiles, &s);
        }
    }
}

static void
float_panel(const plan *p, uint32_t part, uint32_t panel, float *r)
{
    const bt_weight *w = p->args->weights[part];
    size_t row_bytes = (size_t)p->cols_padded * (w->format.kind == BT_WEIGHT_F32 ? 4 : 2);
    bt_float_dot_args dot = {.kind = w->format.kind,
                             .w = w->data + (size_t)panel * BT_PANEL_ROWS * row_bytes,
                             .x = (const float *)(const void *)p->device->shared,
                             .cols = p->cols_padded,
                             .tokens = p->group_tokens,
                             .r = r};

    p->path->float_dot(&dot);
}

static void
run_float_panel(const plan *p, uint32_t index, const thread_scratch *s)
{
    bt_tile tile = {.tokens = p->group_tokens, .first_token = p->group_first};
    bt_finish_args finish = {.args = p->args, .tile = &tile, .r = s->r};
    uint32_t part = 0;

    while (part + 1 < p->args->weight_count && !p->paired && index >= p->parts[part + 1].panels_before) {
        finish.y_col += p->args->weights[part++]->rows;
    }
    finish.part = part;
    finish.panel = index - p->parts[part].panels_before;
    finish.y_col += finish.panel * BT_PANEL_ROWS;
    float_panel(p, part, finish.panel, s->r);
    if (p->paired) {
        float_panel(p, 1, finish.panel, s->up);
        finish.up = s->up;
    }
    p->path->finish(&finish);
}

static void
float_thread(void *arg, uint32_t thread, uint32_t threads)
{
    plan *p = arg;
    size_t bytes;
    thread_scratch s = carve_thread(bt_cpu_private(p->device, thread), p->cols_padded, &bytes);
    float *x = (float *)(void *)p->device->shared;
    uint32_t first = 0, end = 0;

    (void)threads;
    while (bt_work_take(p->tokens, thread, &first, &end)) {
        for (uint32_t t = first; t < end; t++) {
            p->path->norm(p->args, p->group_first + t, x + (size_t)t * p->cols_padded);
        }
    }
    bt_work_wait(p->tokens);
    while (bt_work_take(p->rows, thread, &first, &end)) {
        for (uint32_t i = first; i < end; i++) {
            run_float_panel(p, i, &s);
        }
    }
}

static void
run_float(plan *p)
{
    uint32_t units = p->paired ? p->parts[1].panels_before : p->panels;

    for (uint32_t first = 0; first < p->args->tokens; first += FLOAT_GROUP) {
        p->group_first = first;
        p->group_tokens = p->args->tokens - first < FLOAT_GROUP ? p->args->tokens - first : FLOAT_GROUP;
        bt_work_init(p->tokens, p->device->threads, p->group_tokens, 1);
        bt_work_init(p->rows, p->device->threads, units, 1);
        bt_pool_help(p->device->pool, float_thread, p);
    }
}

void
bt_tiled_linear(bt_device *device, const bt_linear_path *path, const bt_linear_args *args)
{
    plan p = {.device = device, .path = path, .args = args, .cols_padded = bt_cols_padded(args->weights[0]->cols)};
    uint32_t tile_max = tile_tokens_max(path, args), panels;

    p.tokens = &device->work[0];
    p.rows = &device->work[1];
    p.paired = is_paired(args);
    for (uint32_t i = 0; i < args->weight_count; i++) {
        plan_part(&p, i);
    }
    if (args->weights[0]->format.kind != BT_WEIGHT_INT) {
        run_float(&p);
        return;
    }
    panels = p.paired ? p.parts[1].panels_before : p.panels;
    p.tile_count = (args->tokens + tile_max - 1) / tile_max;
    p.act_blocks = bt_ref_act_blocks(args->weights[0]->format.act_block, args->weights[0]->cols);
    p.is_private = p.tile_count == 1 && (size_t)args->tokens * p.cols_padded <= PRIVATE_ACTIVATIONS;
    if (!p.is_private) {
        bt_carve carve = {.base = device->shared};

        p.tiles = bt_carve_take(&carve, p.tile_count * sizeof(bt_tile));
        plan_tiles(&p, &carve);
        assert(carve.used <= device->shared_bytes);
    }
    bt_work_init(p.tokens, device->threads, p.tile_count, 1);
    bt_work_init(p.rows, device->threads, panels, 1);
    bt_pool_help(device->pool, int_thread, &p);
}
