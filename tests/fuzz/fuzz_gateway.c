// What strangers send to the gateway: the envelope, and the arguments of each method up to the request that the router runs. Nothing
// that is let through is outside of what the router relies on.
#include "router/gateway_impl.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

#define SCRATCH_BYTES (1u << 20)

static _Alignas(16) uint8_t memory[SCRATCH_BYTES];
static const bt_openai_limits limits = {.choices_max = 8, .vocab = 1000, .arena_bytes = 4u << 20};

static void
check(const bt_openai_request *q)
{
    const bt_sampling *s = &q->sampling;

    assert(q->n >= 1 && q->n <= limits.choices_max && (q->max_tokens <= INT32_MAX || q->max_tokens == UINT32_MAX));
    assert(s->temperature >= 0 && s->temperature <= 2 && s->top_p > 0 && s->top_p <= 1 && s->min_p >= 0);
    assert(isfinite(s->presence_penalty) && isfinite(s->frequency_penalty) && s->repetition_penalty > 0);
    assert(s->bias_count <= BT_LOGIT_BIAS_MAX && s->top_logprobs <= BT_TOP_LOGPROBS_MAX);
    for (uint32_t i = 0; i < s->bias_count; i++)
        assert(s->bias_ids[i] >= 0 && (uint32_t)s->bias_ids[i] < limits.vocab && isfinite(s->bias_values[i]));
    assert((q->kind == BT_OPENAI_CHAT) == (q->messages_json.len != 0) && q->stops.count <= BT_STOP_MAX);
    assert(q->kind == BT_OPENAI_CHAT || q->prompt_count == 1);
    for (uint32_t i = 0; q->kind == BT_OPENAI_TEXT && i < q->prompts[0].id_count; i++)
        assert(q->prompts[0].ids[i] >= 0 && (uint32_t)q->prompts[0].ids[i] < limits.vocab);
    assert(bt_utf8_valid_prefix(q->messages_json.data, q->messages_json.len) == q->messages_json.len);
}

static void
parse(bt_str body, bt_text_task task)
{
    bt_text_job *job = calloc(1, sizeof *job);
    bool special = true;

    job->task = task;
    bt_buf_init(&job->body, body.len);
    bt_buf_append(&job->body, body.data, body.len);
    if (bt_gateway_parse(job, &limits, &special) == BT_OK)
        check(&job->request);
    else
        assert(job->error.status == 400 && job->error.message[0] != 0);
    bt_text_job_fini(job);
    free(job);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    bt_gateway_generated generated;
    bt_gateway_request request;
    bt_gateway_reply reply;
    bt_wire_scratch scratch;

    bt_wire_scratch_init(&scratch, memory, SCRATCH_BYTES);
    if (bt_gateway_read_request(&request, data, bytes, &scratch) == BT_OK) {
        assert(request.id != 0 && request.method <= BT_GATEWAY_METHODS);
        parse(request.body, request.method == BT_GATEWAY_TOKENIZE     ? BT_TEXT_TOKENIZE
                            : request.method == BT_GATEWAY_DETOKENIZE ? BT_TEXT_DETOKENIZE
                                                                      : BT_TEXT_COMPLETE);
    }
    parse((bt_str){(const char *)data, bytes}, BT_TEXT_COMPLETE);
    bt_wire_scratch_reset(&scratch);
    if (bt_gateway_read_reply(&reply, data, bytes, &scratch) == BT_OK)
        (void)bt_gateway_read_generated(&generated, reply.body, &scratch);
    return 0;
}
