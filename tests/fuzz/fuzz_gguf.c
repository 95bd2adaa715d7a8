// GGUF files, through everything that reads them before weights are packed: values, the tokenizer's vocabulary, settings
// and plan, and some rows of each weight in every form.
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/model/gguf_vocab.h"
#include "common/model/outline.h"

#include <assert.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static volatile double sink;

static void
read_values(const bt_gguf *gguf)
{
    for (size_t i = 0; i < bt_gguf_value_count(gguf); i++) {
        const bt_gguf_value *value = bt_gguf_value_at(gguf, i);
        size_t cursor = 0, strings = 0;
        bt_str text;

        while (bt_gguf_next_string(value, &cursor, &text)) {
            sink = sink + (text.len != 0 ? text.data[text.len - 1] : 0);
            strings++;
        }
        assert(value->type != BT_GGUF_ARRAY || value->item_type != BT_GGUF_STRING || strings == value->count);
        sink = sink + bt_gguf_item_number(value, 0) + bt_gguf_item_number(value, value->count - 1);
    }
}

static void
read_rows(const bt_plan *plan)
{
    for (uint32_t i = 0; i < plan->weight_count; i++) {
        const bt_weight_job *job = &plan->weights[i];
        uint32_t cols = job->weight->cols, last = job->weight->rows - 1;
        float *values = bt_alloc_array(cols, sizeof *values);
        uint8_t *codes = bt_alloc(bt_cols_padded(cols));
        uint16_t *scales = bt_alloc_array(bt_cols_padded(cols), 4);

        bt_weight_job_floats(job, last, 1, values, cols);
        if (bt_ggml_block_cols(job->tensor.type) > 1) {
            const uint8_t *row =
                job->tensor.data + bt_weight_job_row(job, last) * bt_ggml_row_bytes(job->tensor.type, cols);

            bt_ggml_codes(job->tensor.type, row, cols, codes, scales, scales + bt_cols_padded(cols));
        }
        sink = sink + (double)values[cols - 1];
        bt_free(values);
        bt_free(codes);
        bt_free(scales);
    }
}

static void
plan_model(const bt_source *source)
{
    bt_model model = {0};
    bt_plan plan;
    bt_arena arena;
    char text[400];

    bt_arena_init(&arena, 64 << 20);
    if (bt_model_outline(&plan, &model, source, BT_LOAD_KEEP, 0, &arena, NULL) == BT_OK) {
        bt_plan_describe(&plan, text, sizeof text);
        read_rows(&plan);
    }
    bt_plan_close(&plan);
    bt_arena_fini(&arena);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    bt_gguf_vocab *vocab;
    bt_gguf *gguf;
    bt_why why;

    if (bt_gguf_parse(&gguf, data, bytes, "fuzz", true, &why) == BT_OK) {
        read_values(gguf);
        if (bt_gguf_vocab_open(&vocab, gguf, NULL) == BT_OK) {
            bt_gguf_vocab_close(vocab);
        }
        bt_gguf_close(gguf);
    }
    if (bt_gguf_parse(&gguf, data, bytes, "fuzz", false, &why) == BT_OK) {
        plan_model(&(bt_source){.path = "fuzz", .gguf = gguf});
        bt_gguf_close(gguf);
    }
    assert(bt_mem_live() == 0);
    return 0;
}
