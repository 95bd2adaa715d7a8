// The second phase of attention by tiles, written once over the vocabulary of simd16_*.h, which its includer has chosen.
//
//     for each split of 512 keys                       rows = (token, head of the group) of the item
//         for each tile of 64 keys                     load: K turned to [dim / 4][64 keys][4], scales widened, V in place
//             for each four rows                       all below with four rows' sums in registers:
//                 scores   [4][64] = q · K             64 keys are 4 vectors; one q dword against each
//                 softmax  m, corr, p, l, codes
//                 values   acc [4][dims] += codes · V  one code dword against each 16 dims
//         merge into the total
//
// INT8, head_dim 64: 128 dot products (64 MACs each) a row and tile, and about as many other instructions; turning K costs
// 128 shuffles a tile, for all rows together. K and V of a tile are read once for all rows of the item.
#pragma once

#include "kernels/cpu/attention.h"

#define TILE BT_ATTENTION_TILE
#define QUARTERS 4u // a tile's vectors of 16 keys
#define INLINE static inline __attribute__((always_inline))

// An item under way: what does not change while its rows are worked through.
typedef struct {
    const bt_attention_item *item;
    const bt_attention_args *args;
    bt_attention_scratch s;
    uint32_t rows, dims, padded, groups, group_dims;
    size_t partial;            // floats
    uint32_t tile;             // position of its first key
    const int8_t *v[TILE / 4]; // V of each four keys
    uint64_t poison;           // a bit a key whose V scale is NaN
} state;

static void
gather_q8(state *st, uint32_t row, size_t from)
{
    const bt_attention_job *job = st->item->job;
    int8_t *to = st->s.q8 + (size_t)row * st->dims;

    memcpy(to, job->q8 + from * st->dims, st->dims);
    for (uint32_t g = 0; g < st->groups; g++) {
        int32_t sum = 0;

        for (uint32_t d = g * st->group_dims; d < (g + 1) * st->group_dims; d++) {
            sum += to[d];
        }
        st->s.q_sum[row * st->groups + g] = -SIMD_K_OFFSET * sum;
    }
}

// Rows are in the order of tokens, so that visible keys move right with them.
static void
gather_rows(state *st)
{
    const bt_attention_item *item = st->item;
    uint32_t group = item->job->group;

    for (uint32_t row = 0; row < st->rows; row++) {
        uint32_t token = item->first + row / group, head = item->kv_head * group + row % group;
        size_t from = (size_t)(item->span->row + token) * st->args->heads + head;
        float *q32 = st->s.q32 + (size_t)row * st->padded;

        st->s.key_end[row] = item->span->position + token + 1;
        st->s.key_first[row] = bt_attention_first_key(st->args, item->span->position + token);
        st->s.q_scale[row] = st->args->layout->format == BT_KV_INT8 ? item->job->q_scale[from] : st->args->scale;
        st->s.w[row] = (st->args->softcap > 0 ? 1.0f : st->s.q_scale[row]) * BT_LOG2_E;
        if (st->args->layout->format == BT_KV_INT8) {
            gather_q8(st, row, from);
        } else {
            memset(q32, 0, st->padded * sizeof *q32);
            memcpy(q32, item->job->q32 + from * st->dims, st->dims * sizeof *q32);
        }
    }
}

// Dims beyond a multiple of 16 (head_dim 8, 24 …), a dword at a time.
static void
turn_rest(const uint8_t *rows, uint32_t dims, uint32_t first, uint8_t *to)
{
    for (uint32_t d = first; d < dims; d += 4) {
        for (uint32_t key = 0; key < 16; key++) {
            uint32_t four;

            memcpy(&four, rows + (size_t)key * dims + d, 4);
            four ^= SIMD_K_OFFSET * 0x01010101u;
            memcpy(to + (d - first) * TILE + 4 * key, &four, 4);
        }
    }
}

INLINE void
prefetch(const void *from, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 64) {
        __builtin_prefetch((const char *)from + i);
    }
}

static void
load_quarter_int8(state *st, uint8_t *block, uint32_t slot, uint32_t quarter)
{
    const bt_kv_layout *l = st->args->layout;
    uint32_t layer = st->args->layer, head = st->item->kv_head, dims = st->dims, d = 0;
    const uint8_t *k = bt_kv_k(l, block, layer, head) + (size_t)slot * dims;
    const uint16_t *k_scales = bt_kv_k_scales(l, block, layer, head) + (size_t)slot * st->groups;
    const uint8_t *v = bt_kv_v(l, block, layer, head) + (size_t)slot * dims;
    vf v_scales = vf_load_half(bt_kv_v_scales(l, block, layer, head) + slot);

    for (; d + 16 <= dims; d += 16) {
        transpose_k16(k + d, dims, st->s.k + (size_t)d * TILE + quarter * 64, 4 * TILE);
    }
    turn_rest(k, dims, d, st->s.k + (size_t)d * TILE + quarter * 64);
    if (st->groups == 1) {
        vf_store(st->s.k_scales + quarter * 16, vf_load_half(k_scales));
    } else {
        for (uint32_t i = 0; i < 16 * st->groups; i++) {
            st->s.k_scales[i % st->groups * TILE + quarter * 16 + i / st->groups] = bt_f16_to_f32(k_scales[i]);
        }
    }
    vf_store(st->s.v_scales + quarter * 16, v_scales);
    st->poison |= (uint64_t)vf_nans(v_scales) << (16 * quarter);
    for (uint32_t i = 0; i < 4; i++) {
        st->v[4 * quarter + i] = (const int8_t *)v + (size_t)i * 4 * dims;
    }
}

static void
load_rows_float(const state *st, const uint8_t *from, float *to, uint32_t count)
{
    for (uint32_t key = 0; key < count; key++) {
        for (uint32_t d = 0; d < st->dims; d += 16) {
            uint32_t n = st->dims - d < 16 ? st->dims - d : 16;
            size_t at = (size_t)key * st->dims + d;
            vf x = st->args->layout->format == BT_KV_F16 ? vf_load_half_n((const uint16_t *)(const void *)from + at, n)
                                                         : vf_load_n((const float *)(const void *)from + at, n);

            vf_store(to + (size_t)key * st->padded + d, x); // zeros behind
        }
    }
}

// Loads what exists of the tile: whole quarters, since a block has no less than 16 keys. Keys beyond the last query's
// position are garbage and masked.
static void
load_tile(state *st, uint32_t end)
{
    const bt_kv_layout *l = st->args->layout;

    st->poison = 0;
    for (uint32_t quarter = 0; quarter < QUARTERS && st->tile + 16 * quarter < end; quarter++) {
        uint32_t key = st->tile + 16 * quarter, slot = key % l->block_tokens, layer = st->args->layer,
                 head = st->item->kv_head;
        uint8_t *block = bt_attention_block(st->args, st->item->span, key);

        if (l->format == BT_KV_INT8) {
            load_quarter_int8(st, block, slot, quarter);
        } else {
            uint32_t count = end - key < 16 ? end - key : 16;
            size_t at = (size_t)16 * quarter * st->padded, from = (size_t)slot * l->k_head_bytes / l->block_tokens;

            load_rows_float(st, bt_kv_k(l, block, layer, head) + from, st->s.k32 + at, count);
            load_rows_float(st, bt_kv_v(l, block, layer, head) + from, st->s.v32 + at, count);
        }
    }
}

// Asks for the next tile while this one is worked on.
static void
prefetch_tile(const state *st, uint32_t tile, uint32_t end)
{
    const bt_kv_layout *l = st->args->layout;
    uint32_t layer = st->args->layer, head = st->item->kv_head, keys = l->block_tokens;

    for (uint32_t key = tile; key < tile + TILE && key < end; key += keys) {
        uint8_t *block = bt_attention_block(st->args, st->item->span, key);

        prefetch(bt_kv_k(l, block, layer, head), l->k_head_bytes);
        prefetch(bt_kv_v(l, block, layer, head), l->v_head_bytes);
        prefetch(bt_kv_k_scales(l, block, layer, head), l->k_scale_head_bytes);
        prefetch(bt_kv_v_scales(l, block, layer, head), l->v_scale_head_bytes);
    }
}

// s [rows][64] of `rows` rows from `row`; columns at or beyond `end` of the tile may be anything.
INLINE void
scores_int8(const state *st, uint32_t row, const int rows, uint32_t end, const bool one_group, float *s)
{
    const uint32_t groups = one_group ? 1 : st->groups, dims = st->dims;

    for (uint32_t col = 0; col < QUARTERS && 16 * col < end; col += SIMD_COLS) {
        vf sum[4][SIMD_COLS];

        for (int i = 0; i < 4 * SIMD_COLS; i++) {
            sum[i / SIMD_COLS][i % SIMD_COLS] = vf_set(0.0f);
        }
        for (uint32_t g = 0; g < groups; g++) {
            const uint8_t *k = st->s.k + (size_t)g * st->group_dims * TILE + col * 64;
            const int8_t *q = st->s.q8 + (size_t)row * dims + g * st->group_dims;
            vi acc[4][SIMD_COLS];

            for (int r = 0; r < rows; r++) {
                for (int c = 0; c < SIMD_COLS; c++) {
                    acc[r][c] = vi_set(st->s.q_sum[(row + r) * groups + g]);
                }
            }
            for (uint32_t d = 0; d < st->group_dims; d += 4) {
                vb keys[SIMD_COLS];

                for (int c = 0; c < SIMD_COLS; c++) {
                    keys[c] = vb_load(k + (size_t)d * TILE + c * 64);
                }
                for (int r = 0; r < rows; r++) {
                    vb four = vb_set(q + (size_t)r * dims + d);

                    for (int c = 0; c < SIMD_COLS; c++) {
                        acc[r][c] = vi_dot_k(acc[r][c], keys[c], four);
                    }
                }
            }
            for (int c = 0; c < SIMD_COLS; c++) {
                vf scale = vf_load(st->s.k_scales + g * TILE + (col + c) * 16);

                for (int r = 0; r < rows; r++) {
                    vf dot = vf_of(acc[r][c]);

                    sum[r][c] = one_group ? vf_mul(dot, scale) : vf_fma(dot, scale, sum[r][c]);
                }
            }
        }
        for (int i = 0; i < rows * SIMD_COLS; i++) {
            vf_store(s + i / SIMD_COLS * TILE + (col + i % SIMD_COLS) * 16, sum[i / SIMD_COLS][i % SIMD_COLS]);
        }
    }
}

static void
scores_float(const state *st, uint32_t row, int rows, uint32_t end, float *s)
{
    for (int r = 0; r < rows; r++) {
        const float *q = st->s.q32 + (size_t)(row + r) * st->padded;

        for (uint32_t col = 0; col < end; col += 16) {
            vf dots[16];

            for (int key = 0; key < 16; key++) {
                const float *k = st->s.k32 + (size_t)(col + key) * st->padded;
                vf dot = vf_set(0.0f);

                for (uint32_t d = 0; d < st->padded; d += 16) {
                    dot = vf_fma(vf_load(q + d), vf_load(k + d), dot);
                }
                dots[key] = dot;
            }
            vf_store(s + r * TILE + col, vf_trees(dots));
        }
    }
}

// Of four rows: which keys of the tile they see, and their numbers of the softmax.
typedef struct {
    int32_t first[4], end[4]; // within the tile, 0 … 64; first ≥ end: none
    float corr[4], scale[4], inverse[4];
} four_rows;

INLINE vf
masked(const four_rows *f, int r, uint32_t quarter, const bool full, vf a, vf otherwise)
{
    int32_t at = (int32_t)(16 * quarter);

    return full ? a : vf_pick(vm_range(f->first[r] - at, f->end[r] - at), a, otherwise);
}

// The largest lanes of four vectors, in order, by one tree of maxima.
INLINE __m128
largest_of_four(const vf a[4])
{
    __m256 y[4], ab, cd, e;

    for (int r = 0; r < 4; r++) {
        y[r] = vf_largest8(a[r]);
    }
    ab = _mm256_max_ps(_mm256_permute2f128_ps(y[0], y[1], 0x20), _mm256_permute2f128_ps(y[0], y[1], 0x31));
    cd = _mm256_max_ps(_mm256_permute2f128_ps(y[2], y[3], 0x20), _mm256_permute2f128_ps(y[2], y[3], 0x31));
    e = _mm256_max_ps(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xee)); // a a c c | b b d d
    e = _mm256_max_ps(e, _mm256_movehdup_ps(e));
    return _mm_shuffle_ps(_mm_unpacklo_ps(_mm256_castps256_ps128(e), _mm256_extractf128_ps(e, 1)),
                          _mm_unpackhi_ps(_mm256_castps256_ps128(e), _mm256_extractf128_ps(e, 1)), 0x44);
}

// m moves to the largest score so far; corr is what earlier weights shrink by. A row that sees nothing here keeps its m.
INLINE void
move_maxima(state *st, uint32_t row, const int rows, const bool full, four_rows *f, const float *s)
{
    vf all[4];
    __m128 before = _mm_loadu_ps(st->s.m + row), after;

    for (int r = 0; r < 4; r++) {
        all[r] = vf_set(-INFINITY);
        for (uint32_t i = 0; r < rows && i < QUARTERS; i++) {
            all[r] = vf_max(masked(f, r, i, full, vf_load(s + r * TILE + 16 * i), vf_set(-INFINITY)), all[r]);
        }
    }
    after = _mm_max_ps(_mm_mul_ps(_mm_loadu_ps(st->s.w + row), largest_of_four(all)), before);
    _mm_storeu_ps(st->s.m + row, after);
    _mm_storeu_ps(f->corr, _mm256_castps256_ps128(bt_avx2_exp2(_mm256_castps128_ps256(_mm_sub_ps(before, after)))));
}

// u becomes p (float formats) or p · scale_v (INT8); l takes p.
INLINE void
weigh(state *st, uint32_t row, const int rows, const bool full, const bool int8, four_rows *f, float *s)
{
    vf most[4];

    for (int r = 0; r < rows; r++) {
        vf w = vf_set(st->s.w[row + r]), minus_m = vf_set(-st->s.m[row + r]), p[QUARTERS], zero = vf_set(0.0f);
        float *lanes = st->s.lanes + (size_t)(row + r) * 16;

        most[r] = zero;
        if (!full && f->first[r] >= f->end[r]) {
            continue;
        }
        for (uint32_t i = 0; i < QUARTERS; i++) {
            p[i] = vf_exp2(vf_min(zero, vf_fma(vf_load(s + r * TILE + 16 * i), w, minus_m)));
            p[i] = masked(f, r, i, full, p[i], zero);
        }
        vf_store(lanes, vf_fma(vf_load(lanes), vf_set(f->corr[r]), vf_add(vf_add(vf_add(p[0], p[1]), p[2]), p[3])));
        for (uint32_t i = 0; i < QUARTERS; i++) {
            if (int8) {
                p[i] = vf_mul(p[i], vf_load(st->s.v_scales + 16 * i));
                p[i] = masked(f, r, i, full, p[i], zero); // a garbage scale may be NaN
                most[r] = vf_max(p[i], most[r]);
            }
            vf_store(s + r * TILE + 16 * i, p[i]);
        }
    }
    if (int8) {
        __m128 scale, ok;

        for (int r = rows; r < 4; r++) {
            most[r] = vf_set(0.0f);
        }
        scale = _mm_div_ps(largest_of_four(most), _mm_set1_ps(255.0f));
        ok = _mm_cmpge_ps(scale, _mm_set1_ps(0x1p-126f));
        _mm_storeu_ps(f->scale, scale);
        _mm_storeu_ps(f->inverse, _mm_and_ps(ok, _mm_div_ps(_mm_set1_ps(1.0f), scale)));
    }
}

// A visible key whose V scale is NaN poisons the row.
static void
poison_rows(const state *st, four_rows *f)
{
    for (int r = 0; r < 4; r++) {
        uint64_t visible = f->first[r] < f->end[r] ? UINT64_MAX >> (64 - f->end[r]) >> f->first[r] << f->first[r] : 0;

        if ((st->poison & visible) != 0) {
            f->scale[r] = NAN;
            f->inverse[r] = 0.0f;
        }
    }
}

INLINE void
encode(const state *st, const int rows, const four_rows *f, const float *s)
{
    for (int r = 0; r < rows; r++) {
        vf codes[QUARTERS];

        for (uint32_t i = 0; i < QUARTERS; i++) {
            codes[i] = vf_mul(vf_load(s + r * TILE + 16 * i), vf_set(f->inverse[r]));
        }
        vf_store_codes(st->s.codes + r * TILE, codes);
    }
}

// `cols` vectors of 16 dims from `dim`, over the keys from `first` to `end` in fours.
INLINE void
values_int8(state *st, uint32_t row, const int rows, const int cols, const bool full, uint32_t dim, uint32_t first,
            uint32_t end, const four_rows *f)
{
    vi acc[4][4];

    for (int r = 0; r < rows; r++) {
        for (int c = 0; c < cols; c++) {
            acc[r][c] = vi_set(0);
        }
    }
    for (uint32_t four = first / 4; 4 * four < end; four++) {
        const int8_t *from = st->v[four] + (size_t)dim * 4;
        vb v[4];

        for (int c = 0; c < cols; c++) {
            v[c] = vb_load(from + c * 64);
        }
        for (int r = 0; r < rows; r++) {
            vp p = vp_set(st->s.codes + r * TILE + 4 * four);

            for (int c = 0; c < cols; c++) {
                acc[r][c] = vi_dot_v(acc[r][c], p, v[c]);
            }
        }
    }
    for (int r = 0; r < rows; r++) {
        float *to = st->s.split + (row + r) * st->partial + BT_PARTIAL_HEAD + dim;

        for (int c = 0; (full || f->first[r] < f->end[r]) && c < cols; c++) {
            vf sum = vf_mul(vf_load(to + 16 * c), vf_set(f->corr[r]));

            vf_store(to + 16 * c, vf_fma(vf_set(f->scale[r]), vf_of(acc[r][c]), sum));
        }
    }
}

INLINE void
add_values_int8(state *st, uint32_t row, const int rows, const bool full, uint32_t first, uint32_t end,
                const four_rows *f)
{
    uint32_t dim = 0;

    for (; dim + 16 * SIMD_COLS <= st->padded; dim += 16 * SIMD_COLS) {
        values_int8(st, row, rows, SIMD_COLS, full, dim, first, end, f);
    }
    for (; dim + 32 <= st->padded; dim += 32) {
        values_int8(st, row, rows, 2, full, dim, first, end, f);
    }
    for (; dim < st->padded; dim += 16) {
        values_int8(st, row, rows, 1, full, dim, first, end, f);
    }
}

INLINE void
values_float(state *st, uint32_t row, const int cols, uint32_t dim, int32_t first, int32_t end, float corr,
             const float *p)
{
    float *to = st->s.split + row * st->partial + BT_PARTIAL_HEAD + dim;
    vf acc[4];

    for (int c = 0; c < cols; c++) {
        acc[c] = vf_mul(vf_load(to + 16 * c), vf_set(corr));
    }
    for (int32_t key = first; key < end; key++) {
        const float *v = st->s.v32 + (size_t)key * st->padded + dim;

        for (int c = 0; c < cols; c++) {
            acc[c] = vf_fma(vf_set(p[key]), vf_load(v + 16 * c), acc[c]);
        }
    }
    for (int c = 0; c < cols; c++) {
        vf_store(to + 16 * c, acc[c]);
    }
}

static void
add_values_float(state *st, uint32_t row, int rows, const four_rows *f, const float *s)
{
    for (int r = 0; r < rows; r++) {
        uint32_t dim = 0;

        if (f->first[r] >= f->end[r]) {
            continue; // its sums stay, and where it has none yet corr is no number
        }
        for (; dim + 64 <= st->padded; dim += 64) {
            values_float(st, row + r, 4, dim, f->first[r], f->end[r], f->corr[r], s + r * TILE);
        }
        for (; dim < st->padded; dim += 16) {
            values_float(st, row + r, 1, dim, f->first[r], f->end[r], f->corr[r], s + r * TILE);
        }
    }
}

// One tile for `rows` rows: `f` says what each sees, `first` and `end` what any of them does.
INLINE void
attend_rows(state *st, uint32_t row, const int rows, const bool full, const bool int8, four_rows *f, uint32_t first,
            uint32_t end)
{
    _Alignas(64) float s[4 * TILE];

    if (!int8) {
        scores_float(st, row, rows, end, s);
    } else if (st->groups == 1) {
        scores_int8(st, row, rows, end, true, s);
    } else {
        scores_int8(st, row, rows, end, false, s);
    }
    for (int i = 0; st->args->softcap > 0 && i < rows * (int)TILE; i += 16) {
        vf u = vf_mul(vf_load(s + i), vf_set(st->s.q_scale[row + i / (int)TILE]));

        vf_store(s + i, vf_softcap(u, st->args->softcap));
    }
    move_maxima(st, row, rows, full, f, s);
    weigh(st, row, rows, full, int8, f, s);
    if (int8 && st->poison != 0) {
        poison_rows(st, f);
    }
    if (int8) {
        encode(st, rows, f, s);
        add_values_int8(st, row, rows, full, first, end, f);
    } else {
        add_values_float(st, row, rows, f, s);
    }
}

INLINE void
attend_full_or_not(state *st, uint32_t row, const int rows, const bool int8)
{
    int32_t first = TILE, end = 0;
    bool full = true;
    four_rows f = {0};

    for (int r = 0; r < rows; r++) {
        int64_t low = (int64_t)st->s.key_first[row + r] - st->tile, high = (int64_t)st->s.key_end[row + r] - st->tile;

        f.first[r] = low < 0 ? 0 : low > TILE ? (int32_t)TILE : (int32_t)low;
        f.end[r] = high < 0 ? 0 : high > TILE ? (int32_t)TILE : (int32_t)high;
        full = full && f.first[r] == 0 && f.end[r] == TILE;
        if (f.first[r] < f.end[r]) {
            first = f.first[r] < first ? f.first[r] : first;
            end = f.end[r] > end ? f.end[r] : end;
            st->s.split[(row + r) * st->partial + BT_PARTIAL_SEEN] = 1.0f;
        }
    }
    if (first >= end) {
        return;
    }
    if (full) {
        attend_rows(st, row, rows, true, int8, &f, 0, TILE);
    } else {
        attend_rows(st, row, rows, false, int8, &f, (uint32_t)first, (uint32_t)end);
    }
}

INLINE void
attend_tile(state *st, const bool int8)
{
    for (uint32_t row = 0; row < st->rows; row += 4) {
        switch (st->rows - row) {
        case 1:
            attend_full_or_not(st, row, 1, int8);
            break;
        case 2:
            attend_full_or_not(st, row, 2, int8);
            break;
        case 3:
            attend_full_or_not(st, row, 3, int8);
            break;
        default:
            attend_full_or_not(st, row, 4, int8);
            break;
        }
    }
}

static void
attend_tile_int8(state *st)
{
    attend_tile(st, true);
}

static void
attend_tile_float(state *st)
{
    attend_tile(st, false);
}

static void
attend_split(state *st, uint32_t split)
{
    uint32_t first = st->s.key_first[0], end = st->s.key_end[st->rows - 1], tile = split * BT_ATTENTION_SPLIT;
    uint32_t last = tile + BT_ATTENTION_SPLIT < end ? tile + BT_ATTENTION_SPLIT : end;

    for (uint32_t row = 0; row < st->rows; row++) {
        memset(st->s.split + row * st->partial, 0, st->partial * sizeof(float));
        st->s.m[row] = -INFINITY;
    }
    memset(st->s.lanes, 0, (size_t)st->rows * 16 * sizeof(float));
    for (tile = tile > first / TILE * TILE ? tile : first / TILE * TILE; tile < last; tile += TILE) {
        st->tile = tile;
        load_tile(st, end);
        prefetch_tile(st, tile + TILE, end);
        if (st->args->layout->format == BT_KV_INT8) {
            attend_tile_int8(st);
        } else {
            attend_tile_float(st);
        }
    }
    for (uint32_t row = 0; row < st->rows; row++) {
        st->s.split[row * st->partial + BT_PARTIAL_MAX] = st->s.m[row];
        st->s.split[row * st->partial + BT_PARTIAL_SUM] = vf_tree(vf_load(st->s.lanes + (size_t)row * 16));
    }
}

static void
merge(float *total, const float *partial, uint32_t floats)
{
    float m = total[BT_PARTIAL_MAX], other = partial[BT_PARTIAL_MAX], n = other > m ? other : m, a, b;

    if (partial[BT_PARTIAL_SEEN] == 0.0f) {
        return;
    }
    if (total[BT_PARTIAL_SEEN] == 0.0f) {
        memcpy(total, partial, floats * sizeof *total);
        return;
    }
    a = bt_ref_exp2(m - n);
    b = bt_ref_exp2(other - n);
    total[BT_PARTIAL_MAX] = n;
    total[BT_PARTIAL_SUM] = fmaf(total[BT_PARTIAL_SUM], a, partial[BT_PARTIAL_SUM] * b);
    for (uint32_t d = BT_PARTIAL_HEAD; d < floats; d += 16) {
        vf_store(total + d, vf_fma(vf_load(total + d), vf_set(a), vf_mul(vf_load(partial + d), vf_set(b))));
    }
}

static void
quotient(const float *total, uint32_t dims, float *out)
{
    vf inverse = vf_set(1.0f / total[BT_PARTIAL_SUM]);

    for (uint32_t d = 0; d < dims; d += 16) {
        vf_store_n(out + d, vf_mul(vf_load(total + BT_PARTIAL_HEAD + d), inverse), dims - d < 16 ? dims - d : 16);
    }
}

static void
finish(float *partials, uint32_t splits, uint32_t head_dim, float *out)
{
    uint32_t floats = bt_attention_partial_floats(head_dim);

    for (uint32_t split = 1; split < splits; split++) {
        merge(partials, partials + (size_t)split * floats, floats);
    }
    quotient(partials, head_dim, out);
}

// All splits that any row sees, one after the other.
static void
attend_all(state *st)
{
    const bt_attention_item *item = st->item;
    uint32_t group = item->job->group, end = st->s.key_end[st->rows - 1];

    for (uint32_t row = 0; row < st->rows; row++) {
        st->s.total[row * st->partial + BT_PARTIAL_SEEN] = 0.0f;
    }
    for (uint32_t split = st->s.key_first[0] / BT_ATTENTION_SPLIT; split * BT_ATTENTION_SPLIT < end; split++) {
        attend_split(st, split);
        for (uint32_t row = 0; row < st->rows; row++) {
            merge(st->s.total + row * st->partial, st->s.split + row * st->partial, (uint32_t)st->partial);
        }
    }
    for (uint32_t row = 0; row < st->rows; row++) {
        size_t at = (item->span->row + item->first + row / group) * st->args->out_stride;

        quotient(st->s.total + row * st->partial, st->dims,
                 st->args->out + at + (size_t)(item->kv_head * group + row % group) * st->dims);
    }
}

static void
attend(const bt_attention_item *item)
{
    const bt_attention_args *a = item->job->args;
    uint32_t group = item->job->group, rows = item->count * group;
    state st = {.item = item, .args = a, .rows = rows, .dims = a->head_dim, .padded = (a->head_dim + 15) / 16 * 16};

    st.groups = item->job->scale_groups;
    st.group_dims = a->head_dim / st.groups;
    st.partial = bt_attention_partial_floats(a->head_dim);
    st.s = bt_attention_carve(item->scratch, rows, a->head_dim, a->layout->format != BT_KV_INT8);
    gather_rows(&st);
    if (item->partials == NULL) {
        attend_all(&st);
        return;
    }
    attend_split(&st, item->split); // does nothing where the split is not there
    for (uint32_t row = 0; row < rows; row++) {
        uint32_t out_row = item->span->row + item->first + row / group, head = item->kv_head * group + row % group;
        float *to = bt_attention_partial(item->partials, item->splits, item->job, out_row, head);

        memcpy(to + item->split * st.partial, st.s.split + row * st.partial, st.partial * sizeof(float));
    }
}

// add_norm (add_norm.h) has the same needs: one sum, and elements of their own.
static void
add_norm_row(const bt_add_norm_args *args, uint32_t token)
{
    float *x = args->x + token * args->x_stride;
    const float *y = args->y + token * args->y_stride, *norm = args->norm;
    float scale = args->scale, factor = 0;

    if (norm == NULL) {
        for (uint32_t i = 0; i < args->cols; i++) {
            x[i] = fmaf(scale, y[i], x[i]);
        }
        return;
    }
    factor = bt_ref_rms_factor(SIMD_DOT16(y, y, args->cols), args->cols, args->norm_eps);
    for (uint32_t i = 0; i < args->cols; i++) {
        x[i] = fmaf(scale, y[i] * factor * norm[i], x[i]);
    }
}
