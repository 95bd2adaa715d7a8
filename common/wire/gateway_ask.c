// What calls ask. Forms borrow the structs' arrays: protobuf-c only reads what it packs, its pointers merely are not const.
#include "common/wire/gateway_impl.h"

#include <string.h>

// ---- writing ----

static Baton__Gateway__ChatMessage *
encode_message(bt_wire_scratch *scratch, const bt_gateway_message *message)
{
    Baton__Gateway__ChatMessage form = BATON__GATEWAY__CHAT_MESSAGE__INIT;

    form.role = bt_gateway_bytes(message->role);
    form.content = bt_gateway_bytes(message->content);
    form.name = bt_gateway_bytes(message->name);
    return bt_wire_put(scratch, &form, sizeof form);
}

static Baton__Gateway__Chat *
encode_chat(bt_wire_scratch *scratch, const bt_gateway_input *input)
{
    Baton__Gateway__Chat form = BATON__GATEWAY__CHAT__INIT;

    form.n_messages = input->message_count;
    form.messages = bt_wire_take_array(scratch, input->message_count, sizeof(Baton__Gateway__ChatMessage *));
    for (uint32_t i = 0; form.messages != NULL && i < input->message_count; i++)
        form.messages[i] = encode_message(scratch, &input->messages[i]);
    form.template_json = bt_gateway_bytes(input->template_json);
    form.no_generation_prompt = input->no_generation_prompt;
    return bt_wire_put(scratch, &form, sizeof form);
}

static Baton__Gateway__Ids *
encode_ids(bt_wire_scratch *scratch, const bt_gateway_input *input)
{
    Baton__Gateway__Ids form = BATON__GATEWAY__IDS__INIT;

    form.n_ids = input->id_count;
    form.ids = (int32_t *)input->ids;
    return bt_wire_put(scratch, &form, sizeof form);
}

static void
encode_input(bt_wire_scratch *scratch, const bt_gateway_input *input, Baton__Gateway__GenerateRequest *form)
{
    if (input->kind == BT_INPUT_CHAT) {
        form->input_case = BATON__GATEWAY__GENERATE_REQUEST__INPUT_CHAT;
        form->chat = encode_chat(scratch, input);
    } else if (input->kind == BT_INPUT_PROMPT) {
        form->input_case = BATON__GATEWAY__GENERATE_REQUEST__INPUT_PROMPT;
        form->prompt = bt_gateway_bytes(input->prompt);
    } else if (input->kind == BT_INPUT_IDS) {
        form->input_case = BATON__GATEWAY__GENERATE_REQUEST__INPUT_IDS;
        form->ids = encode_ids(scratch, input);
    }
}

static void
encode_sampling(const bt_gateway_generate *generate, Baton__Gateway__GenerateRequest *form)
{
    const bt_sampling *sampling = &generate->sampling;

    if (sampling->temperature != 1) {
        form->temperature_given_case = BATON__GATEWAY__GENERATE_REQUEST__TEMPERATURE_GIVEN_TEMPERATURE;
        form->temperature = sampling->temperature;
    }
    if (sampling->top_p != 1) {
        form->top_p_given_case = BATON__GATEWAY__GENERATE_REQUEST__TOP_P_GIVEN_TOP_P;
        form->top_p = sampling->top_p;
    }
    if (generate->seed_given) {
        form->seed_given_case = BATON__GATEWAY__GENERATE_REQUEST__SEED_GIVEN_SEED;
        form->seed = sampling->seed;
    }
    if (generate->max_tokens != UINT32_MAX) {
        form->max_tokens_given_case = BATON__GATEWAY__GENERATE_REQUEST__MAX_TOKENS_GIVEN_MAX_TOKENS;
        form->max_tokens = generate->max_tokens;
    }
    form->top_k = sampling->top_k;
    form->min_p = sampling->min_p;
    form->presence_penalty = sampling->presence_penalty;
    form->frequency_penalty = sampling->frequency_penalty;
    form->repetition_penalty = sampling->repetition_penalty != 1 ? sampling->repetition_penalty : 0;
    form->logprobs = sampling->logprobs;
    form->top_logprobs = sampling->top_logprobs;
    form->ignore_eos = sampling->ignore_eos;
    form->n_bias_ids = form->n_bias_values = sampling->bias_count;
    form->bias_ids = (int32_t *)sampling->bias_ids;
    form->bias_values = (float *)sampling->bias_values;
}

bt_err
bt_gateway_pack_generate(bt_str *out, const bt_gateway_generate *generate, bt_wire_scratch *scratch)
{
    Baton__Gateway__GenerateRequest form = BATON__GATEWAY__GENERATE_REQUEST__INIT;
    ProtobufCBinaryData stops[BT_GATEWAY_STOPS_MAX];

    if (generate->stop_count > BT_GATEWAY_STOPS_MAX || generate->input.message_count > BT_GATEWAY_MESSAGES_MAX ||
        generate->input.id_count > BT_MESSAGE_IDS_MAX || generate->sampling.bias_count > BT_LOGIT_BIAS_MAX)
        return BT_ERR_INVALID;
    for (uint32_t i = 0; i < generate->stop_count; i++)
        stops[i] = bt_gateway_bytes(generate->stops[i]);
    form.model = bt_gateway_bytes(generate->model);
    form.user = bt_gateway_bytes(generate->user);
    form.n = generate->n;
    form.prompt_logprobs = generate->prompt_logprobs;
    form.n_stop = generate->stop_count;
    form.stop = stops;
    encode_input(scratch, &generate->input, &form);
    encode_sampling(generate, &form);
    return bt_gateway_pack(out, &form.base, scratch);
}

bt_err
bt_gateway_pack_cancel(bt_str *out, uint64_t id, bt_wire_scratch *scratch)
{
    Baton__Gateway__CancelRequest form = BATON__GATEWAY__CANCEL_REQUEST__INIT;

    form.id = id;
    return bt_gateway_pack(out, &form.base, scratch);
}

bt_err
bt_gateway_pack_tokenize(bt_str *out, const bt_gateway_tokenize *tokenize, bt_wire_scratch *scratch)
{
    Baton__Gateway__TokenizeRequest form = BATON__GATEWAY__TOKENIZE_REQUEST__INIT;

    if (tokenize->input.message_count > BT_GATEWAY_MESSAGES_MAX)
        return BT_ERR_INVALID;
    form.model = bt_gateway_bytes(tokenize->model);
    form.plain = tokenize->plain;
    if (tokenize->input.kind == BT_INPUT_CHAT) {
        form.input_case = BATON__GATEWAY__TOKENIZE_REQUEST__INPUT_CHAT;
        form.chat = encode_chat(scratch, &tokenize->input);
    } else if (tokenize->input.kind == BT_INPUT_PROMPT) {
        form.input_case = BATON__GATEWAY__TOKENIZE_REQUEST__INPUT_PROMPT;
        form.prompt = bt_gateway_bytes(tokenize->input.prompt);
    }
    return bt_gateway_pack(out, &form.base, scratch);
}

bt_err
bt_gateway_pack_detokenize(bt_str *out, const bt_gateway_detokenize *detokenize, bt_wire_scratch *scratch)
{
    Baton__Gateway__DetokenizeRequest form = BATON__GATEWAY__DETOKENIZE_REQUEST__INIT;

    if (detokenize->id_count > BT_MESSAGE_IDS_MAX)
        return BT_ERR_INVALID;
    form.model = bt_gateway_bytes(detokenize->model);
    form.n_ids = detokenize->id_count;
    form.ids = (int32_t *)detokenize->ids;
    return bt_gateway_pack(out, &form.base, scratch);
}

// ---- reading ----

void
bt_gateway_generate_defaults(bt_gateway_generate *generate)
{
    *generate = (bt_gateway_generate){
        .n = 1,
        .max_tokens = UINT32_MAX,
        .sampling = {.temperature = 1, .top_p = 1, .repetition_penalty = 1},
    };
}

static bool
decode_chat(bt_wire_scratch *scratch, const Baton__Gateway__Chat *form, bt_gateway_input *out)
{
    bt_gateway_message *messages;

    if (form->n_messages > BT_GATEWAY_MESSAGES_MAX)
        return false;
    messages = bt_wire_take_array(scratch, form->n_messages, sizeof *messages);
    if (messages == NULL && form->n_messages > 0)
        return false;
    for (size_t i = 0; i < form->n_messages; i++)
        messages[i] =
            (bt_gateway_message){bt_gateway_text(form->messages[i]->role), bt_gateway_text(form->messages[i]->content),
                                 bt_gateway_text(form->messages[i]->name)};
    out->kind = BT_INPUT_CHAT;
    out->messages = messages;
    out->message_count = (uint32_t)form->n_messages;
    out->template_json = bt_gateway_text(form->template_json);
    out->no_generation_prompt = form->no_generation_prompt;
    return true;
}

static bool
decode_input(bt_wire_scratch *scratch, const Baton__Gateway__GenerateRequest *form, bt_gateway_input *out)
{
    switch (form->input_case) {
    case BATON__GATEWAY__GENERATE_REQUEST__INPUT_CHAT:
        return decode_chat(scratch, form->chat, out);
    case BATON__GATEWAY__GENERATE_REQUEST__INPUT_PROMPT:
        out->kind = BT_INPUT_PROMPT;
        out->prompt = bt_gateway_text(form->prompt);
        return true;
    case BATON__GATEWAY__GENERATE_REQUEST__INPUT_IDS:
        out->kind = BT_INPUT_IDS;
        out->ids = form->ids->ids;
        out->id_count = (uint32_t)form->ids->n_ids;
        return form->ids->n_ids <= BT_MESSAGE_IDS_MAX;
    default:
        return true;
    }
}

static void
decode_sampling(const Baton__Gateway__GenerateRequest *form, bt_gateway_generate *out)
{
    bt_sampling *sampling = &out->sampling;

    if (form->temperature_given_case == BATON__GATEWAY__GENERATE_REQUEST__TEMPERATURE_GIVEN_TEMPERATURE)
        sampling->temperature = form->temperature;
    if (form->top_p_given_case == BATON__GATEWAY__GENERATE_REQUEST__TOP_P_GIVEN_TOP_P)
        sampling->top_p = form->top_p;
    out->seed_given = form->seed_given_case == BATON__GATEWAY__GENERATE_REQUEST__SEED_GIVEN_SEED;
    if (out->seed_given)
        sampling->seed = form->seed;
    if (form->max_tokens_given_case == BATON__GATEWAY__GENERATE_REQUEST__MAX_TOKENS_GIVEN_MAX_TOKENS)
        out->max_tokens = form->max_tokens;
    sampling->top_k = form->top_k;
    sampling->min_p = form->min_p;
    sampling->presence_penalty = form->presence_penalty;
    sampling->frequency_penalty = form->frequency_penalty;
    sampling->repetition_penalty = form->repetition_penalty != 0 ? form->repetition_penalty : 1;
    sampling->logprobs = form->logprobs;
    sampling->top_logprobs = form->top_logprobs;
    sampling->ignore_eos = form->ignore_eos;
    sampling->bias_count = (uint32_t)form->n_bias_ids;
    if (form->n_bias_ids > 0) {
        memcpy(sampling->bias_ids, form->bias_ids, form->n_bias_ids * sizeof *sampling->bias_ids);
        memcpy(sampling->bias_values, form->bias_values, form->n_bias_ids * sizeof *sampling->bias_values);
    }
}

bt_err
bt_gateway_read_generate(bt_gateway_generate *out, bt_str body, bt_wire_scratch *scratch)
{
    const Baton__Gateway__GenerateRequest *form =
        bt_gateway_unpack(&baton__gateway__generate_request__descriptor, body.data, body.len, scratch);

    if (form == NULL)
        return bt_gateway_bad(scratch);
    bt_gateway_generate_defaults(out);
    if (form->n_stop > BT_GATEWAY_STOPS_MAX || form->n_bias_ids > BT_LOGIT_BIAS_MAX ||
        form->n_bias_ids != form->n_bias_values || !decode_input(scratch, form, &out->input))
        return bt_gateway_bad(scratch);
    out->model = bt_gateway_text(form->model);
    out->user = bt_gateway_text(form->user);
    out->n = form->n != 0 ? form->n : 1;
    out->prompt_logprobs = form->prompt_logprobs;
    out->stop_count = (uint32_t)form->n_stop;
    for (size_t i = 0; i < form->n_stop; i++)
        out->stops[i] = bt_gateway_text(form->stop[i]);
    decode_sampling(form, out);
    return BT_OK;
}

bt_err
bt_gateway_read_cancel(uint64_t *id, bt_str body, bt_wire_scratch *scratch)
{
    const Baton__Gateway__CancelRequest *form =
        bt_gateway_unpack(&baton__gateway__cancel_request__descriptor, body.data, body.len, scratch);

    if (form == NULL)
        return bt_gateway_bad(scratch);
    *id = form->id;
    return BT_OK;
}

bt_err
bt_gateway_read_tokenize(bt_gateway_tokenize *out, bt_str body, bt_wire_scratch *scratch)
{
    const Baton__Gateway__TokenizeRequest *form =
        bt_gateway_unpack(&baton__gateway__tokenize_request__descriptor, body.data, body.len, scratch);

    if (form == NULL)
        return bt_gateway_bad(scratch);
    *out = (bt_gateway_tokenize){.model = bt_gateway_text(form->model), .plain = form->plain};
    if (form->input_case == BATON__GATEWAY__TOKENIZE_REQUEST__INPUT_CHAT)
        return decode_chat(scratch, form->chat, &out->input) ? BT_OK : bt_gateway_bad(scratch);
    if (form->input_case == BATON__GATEWAY__TOKENIZE_REQUEST__INPUT_PROMPT) {
        out->input.kind = BT_INPUT_PROMPT;
        out->input.prompt = bt_gateway_text(form->prompt);
    }
    return BT_OK;
}

bt_err
bt_gateway_read_detokenize(bt_gateway_detokenize *out, bt_str body, bt_wire_scratch *scratch)
{
    const Baton__Gateway__DetokenizeRequest *form =
        bt_gateway_unpack(&baton__gateway__detokenize_request__descriptor, body.data, body.len, scratch);

    if (form == NULL || form->n_ids > BT_MESSAGE_IDS_MAX)
        return bt_gateway_bad(scratch);
    *out = (bt_gateway_detokenize){bt_gateway_text(form->model), form->ids, (uint32_t)form->n_ids};
    return BT_OK;
}
