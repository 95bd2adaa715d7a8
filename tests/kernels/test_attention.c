// Attention: ref against a twin in double, and every instruction set, chunking, number of threads and block size against
// ref, bit for bit.
#include "tests/kernels/attention_case.h"
#include "tests/kernels/attention_cases.h"
#include "tests/support/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static attention_case
case_of(int i)
{
    attention_case c = cases[i % CASES];

    c.format = (bt_kv_format)(i / CASES);
    c.seed = 1000 + (uint64_t)i;
    return c;
}

static void
must_run(attention_world *w, const attention_case *c, const char *isa, uint32_t threads, uint32_t chunk,
         uint64_t shuffle)
{
    attention_way way = {.isa = isa, .threads = threads, .chunk = chunk, .shuffle = shuffle};

    ck_assert(attention_run(w, c, &way));
}

START_TEST(the_cache_holds_keys_and_values_to_half_a_step)
{
    attention_case c = case_of(_i);
    uint32_t dims = c.head_dim;
    double *q = malloc(c.heads * dims * 8), *k = malloc(c.kv_heads * dims * 8), *v = malloc(c.kv_heads * dims * 8);
    double *x = malloc(dims * 8), step;
    attention_world w;

    must_run(&w, &c, "ref", 1, 1000, 1);
    for (uint32_t s = 0; s < c.sequences; s++) {
        for (uint32_t t = 0; t < c.lengths[s]; t++) {
            attention_twin_row(&c, s, t, q, k, v);
            for (uint32_t h = 0; h < 2 * c.kv_heads; h++) {
                const double *want = (h % 2 ? v : k) + h / 2 * dims;

                attention_cached(&w, s, t, h / 2, h % 2, x, &step);
                for (uint32_t d = 0; d < dims; d++) {
                    // 127 codes of a scale rounded to 11 bits: its half step, and 1/16 of one at the clamped end.
                    ck_assert_double_le(fabs(x[d] - want[d]), step * 0.57);
                }
            }
        }
    }
    attention_free(&w);
    free(q);
    free(k);
    free(v);
    free(x);
}
END_TEST

// What the twin knows of one sequence: keys and values as the cache gives them back.
typedef struct {
    const attention_case *c;
    double *k, *v, *k_step, *v_step; // [length][kv_heads][dims], [length][kv_heads]
    double v_max, k_max;
} twin;

static twin
make_twin(const attention_case *c, const attention_world *w, uint32_t s)
{
    uint32_t heads = c->kv_heads, dims = c->head_dim, length = c->lengths[s];
    twin t = {.c = c, .k = malloc((size_t)length * heads * dims * 8), .v = malloc((size_t)length * heads * dims * 8)};

    t.k_step = malloc((size_t)length * heads * 8);
    t.v_step = malloc((size_t)length * heads * 8);
    for (uint32_t i = 0; i < length * heads; i++) {
        attention_cached(w, s, i / heads, i % heads, false, t.k + (size_t)i * dims, &t.k_step[i]);
        attention_cached(w, s, i / heads, i % heads, true, t.v + (size_t)i * dims, &t.v_step[i]);
    }
    for (size_t i = 0; i < (size_t)length * heads * dims; i++) {
        t.v_max = fmax(t.v_max, fabs(t.v[i]));
        t.k_max = fmax(t.k_max, fabs(t.k[i]));
    }
    return t;
}

static void
free_twin(twin *t)
{
    free(t->k);
    free(t->v);
    free(t->k_step);
    free(t->v_step);
}

// Q's own INT8, in double; *near_tie when f32 may have rounded a code the other way.
static double
quantise_q(double *q, uint32_t dims, bool *near_tie)
{
    double amax = 0, step;

    for (uint32_t d = 0; d < dims; d++) {
        amax = fmax(amax, fabs(q[d]));
    }
    step = amax / 127;
    for (uint32_t d = 0; d < dims; d++) {
        double code = q[d] / step;

        *near_tie |= fabs(fabs(code - floor(code)) - 0.5) < 1e-3;
        q[d] = nearbyint(code) * step;
    }
    return step;
}

// Checks one query and head. The bound: what f32 does to a score (its dims + 16 roundings) moves every weight by e^±error
// and so the result by twice that times the largest value; sums over n keys round n/16 + 10 times; and in INT8 each
// weight is off by half a code, whose size is the tile's largest weight / 255.
static void
check_query(const twin *t, uint32_t position, uint32_t head, double *q, const float *got)
{
    const attention_case *c = t->c;
    uint32_t dims = c->head_dim, kv = head / (c->heads / c->kv_heads), n = position + 1, first = 0;
    double *weight = calloc(n, 8), largest = -INFINITY, sum = 0, score_error = 0, scale = (double)attention_scale(c);
    bool near_tie = false;

    first = c->window > 0 && n > c->window ? n - c->window : 0;
    if (c->format == BT_KV_INT8) {
        double step = quantise_q(q, dims, &near_tie);

        score_error = near_tie ? 2 * scale * step * t->k_max : 0;
    }
    for (uint32_t j = first; j < n; j++) {
        double dot = 0, sizes = 0;

        for (uint32_t d = 0; d < dims; d++) {
            double product = q[d] * t->k[((size_t)j * c->kv_heads + kv) * dims + d];

            dot += product;
            sizes += fabs(product);
        }
        score_error = fmax(score_error, sizes * scale * 0x1p-24 * (dims / 16 + 16));
        weight[j] = c->softcap > 0 ? (double)c->softcap * tanh(dot * scale / (double)c->softcap) : dot * scale;
        largest = fmax(largest, weight[j]);
    }
    for (uint32_t j = first; j < n; j++) {
        weight[j] = exp(weight[j] - largest);
        sum += weight[j];
    }
    for (uint32_t d = 0; d < dims; d++) {
        double want = 0, bound = (2 * score_error + 0x1p-23 * (n / 16 + 20)) * t->v_max;

        for (uint32_t tile = first / 64 * 64; tile < n; tile += 64) {
            double code_max = 0, codes = 0;

            for (uint32_t j = tile > first ? tile : first; j < n && j < tile + 64; j++) {
                size_t at = (size_t)j * c->kv_heads + kv;

                want += weight[j] / sum * t->v[at * dims + d];
                code_max = fmax(code_max, weight[j] * t->v_step[at]);
                codes += fabs(t->v[at * dims + d]) / t->v_step[at];
            }
            bound += c->format == BT_KV_INT8 ? 0.5 * code_max / 255 * codes / sum : 0;
        }
        ck_assert_msg(fabs((double)got[d] - want) <= bound, "position %u head %u dim %u: %g, twin %g, bound %g",
                      position, head, d, (double)got[d], want, bound);
    }
    free(weight);
}

START_TEST(ref_attends_as_a_twin_in_double_does)
{
    attention_case c = case_of(_i);
    uint32_t dims = c.head_dim, row = 0;
    double *q = malloc(c.heads * dims * 8), *k = malloc(c.kv_heads * dims * 8), *v = malloc(c.kv_heads * dims * 8);
    attention_world w;

    must_run(&w, &c, "ref", 1, 1000, 1);
    for (uint32_t s = 0; s < c.sequences; row += c.lengths[s++]) {
        twin t = make_twin(&c, &w, s);
        uint32_t stride = c.lengths[s] > 400 ? 97 : c.lengths[s] > 100 ? 7 : 1;

        for (uint32_t position = 0; position < c.lengths[s]; position += stride) {
            attention_twin_row(&c, s, position, q, k, v);
            for (uint32_t head = 0; head < c.heads; head++) {
                check_query(&t, position, head, q + head * dims,
                            w.out + ((size_t)(row + position) * c.heads + head) * dims);
            }
        }
        free_twin(&t);
    }
    attention_free(&w);
    free(q);
    free(k);
    free(v);
}
END_TEST

START_TEST(int8_stays_close_to_f32)
{
    attention_case c = case_of(_i);
    attention_world a, b;
    double error = 0, size = 0;

    c.shift = false; // drawn shifts would make K and Q uneven instead of even
    c.format = BT_KV_F32;
    must_run(&a, &c, "ref", 1, 1000, 1);
    c.format = BT_KV_INT8;
    must_run(&b, &c, "ref", 1, 1000, 1);
    for (size_t i = 0; i < (size_t)attention_positions(&c) * c.heads * c.head_dim; i++) {
        error += (double)(a.out[i] - b.out[i]) * (double)(a.out[i] - b.out[i]);
        size += (double)a.out[i] * (double)a.out[i];
    }
    printf("case %d: relative error of INT8 %.2e\n", _i, sqrt(error / size));
    // Steps of amax / 127 in vectors whose amax is 3 to 9 deviations: rounding alone is 0.7 to 2 % of a number's size.
    ck_assert_double_le(sqrt(error / size), 0.03);
    attention_free(&a);
    attention_free(&b);
}
END_TEST

// Every way to run a case gives the bits of ref in one call.
static void
check_ways(const attention_case *c)
{
    uint32_t one = c->lengths[0] > 400 ? 61 : 1; // thousands of calls show no more than tens
    uint32_t two = one > 1 ? 2 : 1;              // a crowded machine takes its time at each barrier
    const struct {
        const char *isa;
        uint32_t threads, chunk;
    } ways[] = {{"ref", 2, 64},   {"avx2", 1, 1000},  {"avx2", 2, 64},     {"avx2", 1, 0},
                {"avx2", 1, 7},   {"avx2", two, one}, {"avx512", 1, 1000}, {"avx512", 3, 64},
                {"avx512", 1, 0}, {"avx512", 1, 7},   {"avx512", two, one}};
    attention_world ref, other;
    char what[64];

    must_run(&ref, c, "ref", 1, 2000, 1);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        attention_way way = {.isa = ways[i].isa, .threads = ways[i].threads, .chunk = ways[i].chunk, .shuffle = i + 2};

        snprintf(what, sizeof what, "%s, %u threads, chunk %u", way.isa, way.threads, way.chunk);
        if (!attention_run(&other, c, &way)) {
            bt_test_skip(what);
            continue;
        }
        attention_must_agree(c, &ref, &other, what);
        attention_free(&other);
    }
    attention_free(&ref);
}

START_TEST(every_path_chunking_and_number_of_threads_gives_the_bits_of_ref)
{
    attention_case c = case_of(_i);

    check_ways(&c);
}
END_TEST

static const char *const isas[] = {"ref", "avx2", "avx512"};

START_TEST(the_size_of_blocks_does_not_matter)
{
    attention_case c = case_of(1 + (_i / 3) * CASES);
    attention_world a, b;

    for (c.block_tokens = 16; c.block_tokens < 64; c.block_tokens *= 2) {
        attention_case twice = c;
        attention_way way = {.isa = isas[_i % 3], .threads = 1, .chunk = 1000, .shuffle = 1};

        twice.block_tokens *= 2;
        if (!attention_run(&a, &c, &way)) {
            bt_test_skip(isas[_i % 3]);
            return;
        }
        must_run(&b, &twice, isas[_i % 3], 1, 1000, 1);
        attention_must_agree(&c, &a, &b, "block sizes");
        attention_free(&a);
        attention_free(&b);
    }
}
END_TEST

// A NaN or an infinity in K or V shows in every query that sees it, in no other, and the same on every path.
START_TEST(poison_is_seen_by_all_that_look_at_it_and_no_one_else)
{
    attention_case c = {.heads = 4,
                        .kv_heads = 2,
                        .head_dim = 32,
                        .rope_dims = 32,
                        .block_tokens = 16,
                        .window = 20,
                        .poison = 50,
                        .sequences = 1,
                        .lengths = {180},
                        .seed = 9,
                        .format = BT_KV_INT8};
    size_t each = (size_t)c.heads * c.head_dim;
    attention_world w;

    must_run(&w, &c, "ref", 1, 1000, 1);
    for (uint32_t position = 0; position < 180; position++) {
        bool sees = position % 50 == 49 || (position >= 50 && position % 50 < 19);

        // Poison is in KV head 0, dim 1: heads 0 and 1 see it.
        ck_assert_int_eq(isnan(w.out[position * each]) != 0, sees);
        ck_assert_int_eq(isnan(w.out[position * each + 2 * c.head_dim]) != 0, false);
    }
    attention_free(&w);
    for (c.format = BT_KV_INT8; c.format <= BT_KV_F32; c.format++) {
        check_ways(&c);
    }
}
END_TEST

// Rows are worked on four at a time: token 103 sees keys from 64 on, its neighbours also some of the tile before.
START_TEST(a_row_that_sees_none_of_its_neighbours_tile_has_the_bits_of_ref)
{
    attention_case c = {.heads = 4,
                        .kv_heads = 2,
                        .head_dim = 80,
                        .rope_dims = 80,
                        .block_tokens = 32,
                        .window = 40,
                        .sequences = 1,
                        .lengths = {180},
                        .seed = 4};

    for (c.format = BT_KV_INT8; c.format <= BT_KV_F32; c.format++) {
        check_ways(&c);
    }
}
END_TEST

// Scores far apart, so that maxima move late and weights vanish.
START_TEST(large_scores_are_the_same_everywhere)
{
    attention_case c = {.heads = 6,
                        .kv_heads = 2,
                        .head_dim = 64,
                        .rope_dims = 64,
                        .block_tokens = 32,
                        .sequences = 2,
                        .lengths = {300, 64},
                        .seed = 11,
                        .size = 30,
                        .format = BT_KV_INT8};

    for (c.format = BT_KV_INT8; c.format <= BT_KV_F32; c.format++) {
        check_ways(&c);
    }
}
END_TEST

START_TEST(no_token_or_span_is_no_work)
{
    bt_device_options options = {.kind = BT_DEVICE_CPU, .threads = 2, .isa = "auto"};
    bt_device_limits limits = {.tokens = 4,
                               .cols = 64,
                               .rows = 64,
                               .heads = 4,
                               .kv_heads = 2,
                               .head_dim = 32,
                               .context = 64,
                               .block_tokens = 16};
    bt_device *device;
    bt_kv_layout layout;
    bt_attention_args args = {.heads = 4, .kv_heads = 2, .head_dim = 32, .scale = 1, .layout = &layout};

    ck_assert_int_eq(bt_kv_layout_init(&layout, BT_KV_INT8, 1, 2, 32, 16, 32, NULL), BT_OK);
    ck_assert_int_eq(bt_device_open(&device, &options, NULL), BT_OK);
    ck_assert_int_eq(bt_device_reserve(device, &limits, NULL), BT_OK);
    ck_assert_int_eq(bt_device_ops(device)->attention(device, &args), BT_OK);
    bt_device_close(device);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("attention");
    TCase *tcase = tcase_create("attention");

    tcase_set_timeout(tcase, 240);
    tcase_add_loop_test(tcase, the_cache_holds_keys_and_values_to_half_a_step, 0, 3 * CASES);
    tcase_add_loop_test(tcase, ref_attends_as_a_twin_in_double_does, 0, 3 * CASES);
    tcase_add_loop_test(tcase, int8_stays_close_to_f32, 0, CASES);
    tcase_add_loop_test(tcase, every_path_chunking_and_number_of_threads_gives_the_bits_of_ref, 0, 3 * CASES);
    tcase_add_loop_test(tcase, the_size_of_blocks_does_not_matter, 0, 9);
    tcase_add_test(tcase, poison_is_seen_by_all_that_look_at_it_and_no_one_else);
    tcase_add_test(tcase, a_row_that_sees_none_of_its_neighbours_tile_has_the_bits_of_ref);
    tcase_add_test(tcase, large_scores_are_the_same_everywhere);
    tcase_add_test(tcase, no_token_or_span_is_no_work);
    suite_add_tcase(suite, tcase);
    return bt_test_run(suite);
}
