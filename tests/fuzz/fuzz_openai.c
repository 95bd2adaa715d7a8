// Bodies of the HTTP API. The first byte chooses the endpoint; what is accepted must keep its own promises, and what is
// refused must be an error that can be written.
#include "router/openai.h"

#include <assert.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void
check_error(const bt_openai_error *error)
{
    bt_json *document;
    bt_why why;
    bt_buf out;

    assert(error->status >= 400 && error->message[0] != 0);
    bt_buf_init(&out, 1 << 16);
    bt_openai_write_error(&out, error);
    assert(!out.failed && bt_json_parse(&document, (bt_str){out.data, out.len}, NULL, &why) == BT_OK);
    bt_json_close(document);
    bt_buf_fini(&out);
}

static void
check_request(const bt_openai_request *request, const bt_openai_limits *limits)
{
    const bt_sampling *s = &request->sampling;
    bt_json *document;
    bt_why why;

    assert(s->temperature >= 0 && s->temperature <= 2 && s->top_p > 0 && s->top_p <= 1 && s->min_p >= 0 &&
           s->min_p <= 1);
    assert(s->bias_count <= BT_LOGIT_BIAS_MAX && s->top_logprobs <= BT_TOP_LOGPROBS_MAX);
    assert(request->n >= 1 && request->n <= limits->choices_max && request->stops.count <= BT_STOP_MAX);
    for (uint32_t i = 0; i < s->bias_count; i++) {
        assert(s->bias_ids[i] >= 0 && (uint32_t)s->bias_ids[i] < limits->vocab);
    }
    for (uint32_t i = 0; i < request->prompt_count; i++) {
        for (uint32_t j = 0; j < request->prompts[i].id_count; j++) {
            assert(request->prompts[i].ids[j] >= 0 && (uint32_t)request->prompts[i].ids[j] < limits->vocab);
        }
    }
    if (request->messages_json.len != 0) {
        assert(bt_json_parse(&document, request->messages_json, NULL, &why) == BT_OK);
        bt_json_close(document);
    }
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const bt_openai_limits limits = {.choices_max = 8, .vocab = 500, .arena_bytes = 1 << 16};
    bt_openai_request request;
    bt_openai_error error = {0};
    bool special = false;
    bt_str body;
    bt_err err;

    if (bytes == 0) {
        return 0;
    }
    body = (bt_str){(const char *)data + 1, bytes - 1};
    switch (data[0] % 4) {
    case 0:
        err = bt_openai_parse(&request, BT_OPENAI_CHAT, body, &limits, &error);
        break;
    case 1:
        err = bt_openai_parse(&request, BT_OPENAI_TEXT, body, &limits, &error);
        break;
    case 2:
        err = bt_openai_parse_tokenize(&request, &special, body, &limits, &error);
        break;
    default:
        err = bt_openai_parse_detokenize(&request, body, &limits, &error);
    }
    if (err == BT_OK) {
        check_request(&request, &limits);
        bt_openai_request_fini(&request);
    } else {
        check_error(&error);
    }
    return 0;
}
