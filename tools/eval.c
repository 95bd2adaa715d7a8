// baton eval: perplexity of a text (data/golden/README.md's rules), and how far a fast path is from the exact one.
#include "common/base/buf.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/engine/row.h"
#include "common/json/write.h"
#include "tools/commands.h"
#include "tools/engine_args.h"
#include "tools/percentile.h"
#include "tools/prompt.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define PIECE 128u // tokens that are scored in one step: bounds the logits kept

typedef struct {
    bt_engine_args args;
    const char *text_path;
    uint32_t ctx, chunks;
    bool all_positions, json, kl;
    // the run
    bt_engine *engine, *exact; // exact: kl only
    uint32_t *blocks;
    int32_t *ids; // the whole text
    uint32_t id_count;
    bt_token_result scored[PIECE];
    double *chunk_nll;
    double nll; // sum over predicted tokens
    uint64_t predicted;
    double *divergences; // [predicted], kl only
    uint64_t agreements;
} evaluation;

static bt_err
read_ids(evaluation *e, bt_why *why)
{
    const bt_tokenizer *tokenizer = bt_engine_model(e->engine)->tokenizer;
    bt_buf text;
    bt_err err;

    if (tokenizer == NULL) {
        return bt_fail(why, BT_ERR_UNSUPPORTED, "the model has no tokenizer");
    }
    bt_buf_init(&text, 1u << 30);
    err = bt_read_file(e->text_path, &text, why);
    if (err == BT_OK) {
        err = bt_prompt_encode(tokenizer, (bt_str){text.data, text.len}, false, true, &e->ids, &e->id_count, why);
    }
    bt_buf_fini(&text);
    if (err != BT_OK) {
        return err;
    }
    if (e->id_count / e->ctx == 0) {
        return bt_fail(why, BT_ERR_INVALID, "%s has %u tokens, fewer than one chunk of %u", e->text_path, e->id_count,
                       e->ctx);
    }
    if (e->chunks == 0 || e->chunks > e->id_count / e->ctx) {
        e->chunks = e->id_count / e->ctx;
    }
    return BT_OK;
}

static bt_err
open_all(evaluation *e, const char *path, bt_why *why)
{
    bt_engine_options *o = &e->args.options;
    bt_engine_options exact;
    bt_err err;

    if ((err = bt_engine_args_finish(&e->args, path, why)) != BT_OK) {
        return err;
    }
    o->max_sequences = 1;
    o->context = e->ctx;
    o->logit_rows_max = PIECE;
    o->chunk_tokens = o->chunk_tokens > PIECE ? o->chunk_tokens : PIECE;
    exact = *o;
    exact.kv_format = BT_KV_F32;
    exact.model.weights = BT_LOAD_EXACT;
    exact.model.equalise = false;
    if ((err = bt_engine_open(&e->engine, o, why)) != BT_OK ||
        (e->kl && (err = bt_engine_open(&e->exact, &exact, why)) != BT_OK) || (err = read_ids(e, why)) != BT_OK) {
        return err;
    }
    e->blocks = bt_alloc_array(e->ctx, sizeof *e->blocks);
    e->chunk_nll = bt_alloc_array(e->chunks, sizeof *e->chunk_nll);
    e->divergences = bt_alloc_array(e->kl ? (size_t)e->chunks * e->ctx : 1, sizeof *e->divergences);
    if (e->blocks == NULL || e->chunk_nll == NULL || e->divergences == NULL) {
        return bt_fail(why, BT_ERR_NO_MEMORY, "out of memory");
    }
    for (uint32_t i = 0; i < e->ctx; i++) {
        e->blocks[i] = i;
    }
    return BT_OK;
}

static bt_err
run_piece(evaluation *e, bt_engine *engine, const int32_t *ids, uint32_t from, uint32_t to, bool scores)
{
    bt_token_result drawn;
    bt_batch_item item = {
        .ids = ids + from,
        .count = to - from,
        .position = from,
        .blocks = e->blocks,
        .want = scores ? BT_LOGITS_ALL : BT_LOGITS_NONE,
        .next_id = scores ? ids[to] : -1,
    };

    return bt_engine_step(engine, &item, 1, &(bt_step_result){&drawn, scores ? e->scored : NULL});
}

// KL(exact || fast) of one row of logits.
static double
divergence(const float *exact, const float *fast, uint32_t vocab)
{
    double exact_max = (double)bt_row_max(exact, vocab), fast_max = (double)bt_row_max(fast, vocab), sum = 0;
    double exact_log = bt_row_log(bt_row_sum_exp(exact, vocab, (float)exact_max));
    double fast_log = bt_row_log(bt_row_sum_exp(fast, vocab, (float)fast_max));

    for (uint32_t i = 0; i < vocab; i++) {
        double le = (double)exact[i] - exact_max - exact_log, lf = (double)fast[i] - fast_max - fast_log;

        sum += exp(le) * (le - lf);
    }
    return sum;
}

static void
compare_rows(evaluation *e, uint32_t count)
{
    uint32_t vocab = bt_engine_model(e->engine)->config.vocab, rows;
    const float *fast = bt_engine_logits(e->engine, &rows), *exact = bt_engine_logits(e->exact, &rows);

    for (uint32_t i = 0; i < count; i++, fast += vocab, exact += vocab) {
        e->divergences[e->predicted + i] = divergence(exact, fast, vocab);
        e->agreements +=
            bt_row_find(exact, vocab, bt_row_max(exact, vocab)) == bt_row_find(fast, vocab, bt_row_max(fast, vocab));
    }
}

// Positions from `first` on predict their next id; those before are context only.
static bt_err
run_chunk(evaluation *e, uint32_t chunk, uint32_t first)
{
    const bt_tokenizer *tokenizer = bt_engine_model(e->engine)->tokenizer;
    int32_t *ids = e->ids + (size_t)chunk * e->ctx, kept = ids[0];
    uint32_t last = e->ctx - 1;
    double nll = 0;
    bt_err err = BT_OK;

    if (bt_tokenizer_adds_bos(tokenizer)) {
        ids[0] = bt_tokenizer_bos(tokenizer);
    }
    for (uint32_t at = 0, end; at < last && err == BT_OK; at = end) {
        bool scores = at >= first;
        uint32_t most = scores ? PIECE : e->args.options.chunk_tokens;

        end = (scores ? last : first) - at < most ? (scores ? last : first) : at + most;
        err = run_piece(e, e->engine, ids, at, end, scores);
        if (err == BT_OK && e->kl) {
            bt_token_result *mine = e->scored, kept_scores[PIECE];

            memcpy(kept_scores, mine, sizeof kept_scores);
            err = run_piece(e, e->exact, ids, at, end, scores);
            memcpy(mine, kept_scores, sizeof kept_scores);
        }
        if (err != BT_OK || !scores) {
            continue;
        }
        if (e->kl) {
            compare_rows(e, end - at);
        }
        for (uint32_t i = 0; i < end - at; i++) {
            nll -= (double)e->scored[i].logprob;
        }
        e->predicted += end - at;
    }
    ids[0] = kept;
    e->nll += nll;
    e->chunk_nll[chunk] = nll / (last - first);
    return err;
}

static double
mean_nll(const evaluation *e, uint32_t chunks)
{
    double sum = 0;

    for (uint32_t c = 0; c < chunks; c++) {
        sum += e->chunk_nll[c];
    }
    return sum / chunks;
}

static bt_err
run_all(evaluation *e, bt_why *why)
{
    // llama-perplexity's rule scores the second half only: every prediction then has half a window of context or more.
    uint32_t first = e->all_positions ? 0 : e->ctx / 2;

    for (uint32_t c = 0; c < e->chunks; c++) {
        bt_err err = run_chunk(e, c, first);

        if (err != BT_OK) {
            return bt_fail(why, err, "chunk %u: the engine failed (%s)", c, bt_err_name(err));
        }
        bt_log_info("EVAL-CHUNK", "%u of %u: ppl so far %.4f", c + 1, e->chunks, exp(mean_nll(e, c + 1)));
    }
    return BT_OK;
}

static void
report(evaluation *e)
{
    double nll = mean_nll(e, e->chunks), kl = 0, p99 = 0;
    bt_json_writer w;
    bt_buf out;

    if (e->kl) {
        bt_sort_values(e->divergences, e->predicted);
        p99 = bt_percentile(e->divergences, e->predicted, 0.99);
        for (uint64_t i = 0; i < e->predicted; i++) {
            kl += e->divergences[i] / (double)e->predicted;
        }
    }
    if (!e->json) {
        printf("perplexity %.6f (mean NLL %.6f, %llu predictions in %u chunks)\n", exp(nll), nll,
               (unsigned long long)e->predicted, e->chunks);
        if (e->kl) {
            printf("against exact: mean KL %.6f, 99th percentile %.6f, same best token %.2f %%\n", kl, p99,
                   100.0 * (double)e->agreements / (double)e->predicted);
        }
        return;
    }
    bt_buf_init(&out, 64u << 20);
    bt_json_write(&w, &out);
    bt_json_begin_object(&w, NULL);
    bt_json_put_real(&w, "ppl", exp(nll));
    bt_json_put_real(&w, "nll", nll);
    bt_json_put_int(&w, "scored", (int64_t)e->predicted);
    if (e->kl) {
        bt_json_put_real(&w, "kl", kl);
        bt_json_put_real(&w, "kl_p99", p99);
        bt_json_put_real(&w, "top1", (double)e->agreements / (double)e->predicted);
    }
    bt_json_begin_array(&w, "chunks");
    for (uint32_t c = 0; c < e->chunks; c++) {
        bt_json_put_real(&w, NULL, e->chunk_nll[c]);
    }
    bt_json_end(&w);
    bt_json_end(&w);
    puts(out.failed ? "{\"error\":\"out of memory\"}" : out.data);
    bt_buf_fini(&out);
}

static void
close_all(evaluation *e)
{
    bt_engine_close(e->engine);
    bt_engine_close(e->exact);
    bt_free(e->blocks);
    bt_free(e->ids);
    bt_free(e->chunk_nll);
    bt_free(e->divergences);
}

static int
parse(evaluation *e, int argc, char **argv, const char **path)
{
    const bt_arg args[] = {
        {"text", BT_ARG_STRING, &e->text_path, "FILE", "the text (- = stdin)", NULL},
        {"ctx", BT_ARG_U32, &e->ctx, "N", "tokens of a chunk", NULL},
        {"chunks", BT_ARG_U32, &e->chunks, "N", "chunks from the beginning, 0 = all", NULL},
        {"all-positions", BT_ARG_FLAG, &e->all_positions, NULL, "score every token, not the second half only", NULL},
        {"json", BT_ARG_FLAG, &e->json, NULL, "one JSON object on stdout", NULL},
        {NULL, BT_ARG_FLAG, NULL, NULL, NULL, NULL},
    };
    bt_args_spec spec = {
        .usage = e->kl ? "baton eval kl MODEL --text FILE [options]" : "baton eval ppl MODEL --text FILE [options]",
        .about = e->kl
                     ? "Runs a model as the options say and again exactly (f32 weights and f32 KV), and prints how far "
                       "apart their predictions are: mean and 99th percentile of KL(exact || this), and how often the "
                       "best token is the same."
                     : "Perplexity of a text under a model, in chunks that begin anew, by llama-perplexity's rule: the "
                       "second half of each chunk is scored.",
        .example = "  baton eval ppl smollm2.gguf --text wiki.test.raw --ctx 512 --chunks 40 --json",
        .args = args,
        .more = e->args.table,
        .positional_min = 1,
        .positional_max = 1,
    };
    uint32_t count;
    int code = bt_args_parse(&spec, argc, argv, path, &count);

    if (code < 0 && (e->text_path == NULL || e->ctx < 2 || e->ctx > 1u << 20)) {
        fprintf(stderr, "baton eval: %s\n",
                e->text_path == NULL ? "--text FILE is missing" : "--ctx: expected 2 or more");
        return 2;
    }
    return code;
}

int
bt_eval_main(int argc, char **argv)
{
    static evaluation e = {.ctx = 512};
    const char *path = NULL;
    bt_why why = {{0}};
    bt_err err;
    int code;

    if (argc < 2 || (strcmp(argv[1], "ppl") != 0 && strcmp(argv[1], "kl") != 0)) {
        bool help = argc > 1 && strcmp(argv[1], "--help") == 0;

        fprintf(help ? stdout : stderr, "usage: baton eval ppl MODEL --text FILE [options]\n"
                                        "       baton eval kl MODEL --text FILE [options]\n");
        return help ? 0 : 2;
    }
    e.kl = strcmp(argv[1], "kl") == 0;
    bt_engine_args_init(&e.args);
    code = parse(&e, argc - 1, argv + 1, &path);
    if (code >= 0) {
        return code;
    }
    if ((err = open_all(&e, path, &why)) != BT_OK) {
        code = 2;
    } else {
        err = run_all(&e, &why);
        code = err == BT_OK ? 0 : 1;
    }
    if (code == 0) {
        report(&e);
    } else {
        fprintf(stderr, "baton eval: %s\n", why.text);
    }
    close_all(&e);
    return code;
}
