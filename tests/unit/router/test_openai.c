#include "tests/support/test.h"

#include "router/openai.h"

#include <math.h>
#include <stdio.h>

static const bt_openai_limits limits = {.choices_max = 16, .vocab = 1000, .arena_bytes = 1 << 20};

static bt_openai_request request;
static bt_openai_error error;

static bt_err
parse(bt_openai_kind kind, const char *body)
{
    memset(&error, 0, sizeof error);
    return bt_openai_parse(&request, kind, bt_str_of(body), &limits, &error);
}

// A chat body with these members besides model and messages.
static bt_err
chat(const char *members)
{
    char body[4096];

    snprintf(body, sizeof body, "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]%s%s}",
             *members != 0 ? "," : "", members);
    return parse(BT_OPENAI_CHAT, body);
}

static bt_err
text(const char *members)
{
    char body[4096];

    snprintf(body, sizeof body, "{\"model\":\"m\"%s%s}", *members != 0 ? "," : "", members);
    return parse(BT_OPENAI_TEXT, body);
}

START_TEST(chat_with_nothing_else_has_the_defaults)
{
    ck_assert_int_eq(chat(""), BT_OK);
    ck_assert(bt_str_is(request.model, "m"));
    ck_assert(bt_str_is(request.messages_json, "[{\"role\":\"user\",\"content\":\"hi\"}]"));
    ck_assert(!request.stream && !request.logprobs && !request.seed_given && request.add_generation_prompt);
    ck_assert_uint_eq(request.n, 1);
    ck_assert_uint_eq(request.max_tokens, UINT32_MAX);
    ck_assert_float_eq(request.sampling.temperature, 1);
    ck_assert_float_eq(request.sampling.top_p, 1);
    ck_assert_float_eq(request.sampling.repetition_penalty, 1);
    bt_openai_request_fini(&request);
}
END_TEST

START_TEST(every_parameter_arrives)
{
    ck_assert_int_eq(
        chat("\"stream\":true,\"stream_options\":{\"include_usage\":true},\"max_completion_tokens\":7,\"n\":3,"
             "\"seed\":-5,\"temperature\":0.5,\"top_p\":0.25,\"top_k\":40,\"min_p\":0.125,"
             "\"presence_penalty\":-1,\"frequency_penalty\":2,\"repetition_penalty\":1.5,"
             "\"logit_bias\":{\"7\":-100,\"999\":2.5},\"stop\":[\"a\",\"bc\"],\"user\":\"u\",\"ignore_eos\":true,"
             "\"logprobs\":true,\"top_logprobs\":20,\"chat_template_kwargs\":{\"enable_thinking\":false},"
             "\"add_generation_prompt\":false"),
        BT_OK);
    ck_assert(request.stream && request.include_usage && request.logprobs && request.sampling.logprobs);
    ck_assert_uint_eq(request.max_tokens, 7);
    ck_assert_uint_eq(request.n, 3);
    ck_assert(request.seed_given && request.sampling.seed == (uint64_t)-5);
    ck_assert_float_eq(request.sampling.temperature, 0.5f);
    ck_assert_float_eq(request.sampling.top_p, 0.25f);
    ck_assert_uint_eq(request.sampling.top_k, 40);
    ck_assert_float_eq(request.sampling.min_p, 0.125f);
    ck_assert_float_eq(request.sampling.presence_penalty, -1);
    ck_assert_float_eq(request.sampling.frequency_penalty, 2);
    ck_assert_float_eq(request.sampling.repetition_penalty, 1.5f);
    ck_assert_uint_eq(request.sampling.bias_count, 2);
    ck_assert_int_eq(request.sampling.bias_ids[1], 999);
    ck_assert_float_eq(request.sampling.bias_values[1], 2.5f);
    ck_assert_uint_eq(request.stops.count, 2);
    ck_assert_uint_eq(request.stops.bytes[1], 2);
    ck_assert(bt_str_is(request.user, "u"));
    ck_assert(request.sampling.ignore_eos);
    ck_assert_uint_eq(request.sampling.top_logprobs, 20);
    ck_assert(bt_str_is(request.extra_json, "{\"enable_thinking\":false}"));
    ck_assert(!request.add_generation_prompt);
    bt_openai_request_fini(&request);
}
END_TEST

START_TEST(what_says_nothing_counts_as_not_given)
{
    ck_assert_int_eq(chat("\"temperature\":null,\"tools\":[],\"tool_choice\":\"none\",\"functions\":null,\"stop\":null,"
                          "\"response_format\":{\"type\":\"text\"},\"store\":false,\"service_tier\":\"auto\","
                          "\"modalities\":[\"text\"],\"logit_bias\":{},\"metadata\":{}"),
                     BT_OK);
    ck_assert_float_eq(request.sampling.temperature, 1);
    bt_openai_request_fini(&request);
}
END_TEST

START_TEST(a_body_that_is_no_object_is_no_parameter)
{
    ck_assert_int_ne(parse(BT_OPENAI_TEXT, "[]"), BT_OK);
    ck_assert_str_eq(error.param, "");
    ck_assert(error.status == 400 && strstr(error.message, "an object") != NULL);
}
END_TEST

START_TEST(refusals_name_the_parameter)
{
    static const struct {
        const char *members, *param, *words;
    } cases[] = {
        {"\"temperature\":-1", "temperature", "-1"},
        {"\"temperature\":2.1", "temperature", "2"},
        {"\"temperature\":\"hot\"", "temperature", "a string"},
        {"\"top_p\":1.5", "top_p", "1"},
        {"\"top_k\":-2", "top_k", "-2"},
        {"\"min_p\":-0.1", "min_p", "0"},
        {"\"n\":0", "n", "0"},
        {"\"n\":17", "n", "16"},
        {"\"max_tokens\":0", "max_tokens", "0"},
        {"\"max_tokens\":5,\"max_completion_tokens\":6", "max_completion_tokens", "differ"},
        {"\"presence_penalty\":3", "presence_penalty", "2"},
        {"\"repetition_penalty\":0", "repetition_penalty", "0"},
        {"\"seed\":1.5", "seed", ""},
        {"\"stop\":\"\"", "stop", "empty"},
        {"\"stop\":[\"a\",7]", "stop[1]", "a number"},
        {"\"stop\":7", "stop", "array of strings"},
        {"\"logit_bias\":{\"1000\":1}", "logit_bias.1000", "token id"},
        {"\"logit_bias\":{\"x\":1}", "logit_bias.x", "token id"},
        {"\"logit_bias\":{\"1\":101}", "logit_bias.1", "100"},
        {"\"logprobs\":5", "logprobs", "true or false"},
        {"\"top_logprobs\":3", "top_logprobs", "logprobs"},
        {"\"logprobs\":true,\"top_logprobs\":21", "top_logprobs", "20"},
        {"\"stream_options\":{\"include_usage\":true}", "stream_options", "stream"},
        {"\"stream\":true,\"stream_options\":{\"x\":1}", "stream_options.x", "not supported"},
        {"\"tools\":[{\"type\":\"function\"}]", "tools", "not supported"},
        {"\"tool_choice\":\"auto\"", "tool_choice", "not supported"},
        {"\"response_format\":{\"type\":\"json_object\"}", "response_format", "not supported"},
        {"\"temprature\":1", "temprature", "not supported"},
        {"\"echo\":true", "echo", "not supported"},
        {"\"user\":5", "user", "a number"},
        {"\"model\":\"twice\"", "", "model"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ck_assert_msg(chat(cases[i].members) != BT_OK, "%s is accepted", cases[i].members);
        ck_assert_uint_eq(error.status, 400);
        ck_assert_str_eq(error.type, "invalid_request_error");
        ck_assert_msg(strcmp(error.param, cases[i].param) == 0, "%s names %s", cases[i].members, error.param);
        ck_assert_msg(strstr(error.message, cases[i].words) != NULL, "%s says %s", cases[i].members, error.message);
    }
}
END_TEST

START_TEST(messages_are_checked_one_by_one)
{
    static const struct {
        const char *messages, *param;
    } cases[] = {
        {"[]", "messages"},
        {"\"hi\"", "messages"},
        {"[7]", "messages[0]"},
        {"[{\"content\":\"x\"}]", "messages[0].role"},
        {"[{\"role\":\"x\",\"content\":\"x\"}]", "messages[0].role"},
        {"[{\"role\":\"tool\",\"content\":\"x\"}]", "messages[0].role"},
        {"[{\"role\":\"user\"}]", "messages[0].content"},
        {"[{\"role\":\"user\",\"content\":null}]", "messages[0].content"},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]", "messages[0].content[0].type"},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]", "messages[0].content[0].text"},
        {"[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\",\"content\":\"x\",\"tool_calls\":[1]}]",
         "messages[1].tool_calls"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char body[512];

        snprintf(body, sizeof body, "{\"model\":\"m\",\"messages\":%s}", cases[i].messages);
        ck_assert_msg(parse(BT_OPENAI_CHAT, body) != BT_OK, "%s is accepted", cases[i].messages);
        ck_assert_msg(strcmp(error.param, cases[i].param) == 0, "%s names %s", cases[i].messages, error.param);
    }
}
END_TEST

START_TEST(text_parts_are_joined_and_developers_are_the_system)
{
    ck_assert_int_eq(
        parse(BT_OPENAI_CHAT,
              "{\"model\":\"m\",\"messages\":[{\"role\":\"developer\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
              "{\"type\":\"text\",\"text\":\"b\\u0000\\\"\"}],\"name\":\"n\",\"refusal\":null,\"annotations\":[]}]}"),
        BT_OK);
    ck_assert(bt_str_is(request.messages_json, "[{\"role\":\"system\",\"content\":\"ab\\u0000\\\"\",\"name\":\"n\"}]"));
    bt_openai_request_fini(&request);
}
END_TEST

START_TEST(prompt_takes_four_forms)
{
    ck_assert_int_eq(text("\"prompt\":\"one\""), BT_OK);
    ck_assert(request.prompt_count == 1 && bt_str_is(request.prompts[0].text, "one"));
    ck_assert_uint_eq(request.max_tokens, 16);
    bt_openai_request_fini(&request);
    ck_assert_int_eq(text("\"prompt\":[\"one\",\"\"]"), BT_OK);
    ck_assert(request.prompt_count == 2 && !request.prompts[1].is_ids && request.prompts[1].text.len == 0);
    bt_openai_request_fini(&request);
    ck_assert_int_eq(text("\"prompt\":[5,6,7]"), BT_OK);
    ck_assert(request.prompt_count == 1 && request.prompts[0].is_ids && request.prompts[0].id_count == 3);
    ck_assert_int_eq(request.prompts[0].ids[2], 7);
    bt_openai_request_fini(&request);
    ck_assert_int_eq(text("\"prompt\":[[5,6],[999]],\"echo\":true,\"max_tokens\":0,\"logprobs\":2"), BT_OK);
    ck_assert(request.prompt_count == 2 && request.prompts[1].ids[0] == 999 && request.max_tokens == 0);
    ck_assert(request.logprobs && request.sampling.top_logprobs == 2);
    bt_openai_request_fini(&request);
}
END_TEST

START_TEST(bad_prompts_are_named)
{
    static const struct {
        const char *members, *param;
    } cases[] = {
        {"", "prompt"},
        {"\"prompt\":null", "prompt"},
        {"\"prompt\":[]", "prompt"},
        {"\"prompt\":7", "prompt"},
        {"\"prompt\":[1,\"a\"]", "prompt[1]"},
        {"\"prompt\":[\"a\",1]", "prompt[1]"},
        {"\"prompt\":[[1],[]]", "prompt[1]"},
        {"\"prompt\":[1,1000]", "prompt[1]"},
        {"\"prompt\":[-1]", "prompt[0]"},
        {"\"prompt\":\"a\",\"max_tokens\":0", "max_tokens"},
        {"\"prompt\":[\"a\",\"b\"],\"n\":9", "n"},
        {"\"prompt\":[\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\"]", "prompt"},
        {"\"prompt\":\"a\",\"suffix\":\"b\"", "suffix"},
        {"\"prompt\":\"a\",\"best_of\":2", "best_of"},
        {"\"prompt\":\"a\",\"logprobs\":true", "logprobs"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ck_assert_msg(text(cases[i].members) != BT_OK, "%s is accepted", cases[i].members);
        ck_assert_msg(strcmp(error.param, cases[i].param) == 0, "%s names %s", cases[i].members, error.param);
    }
}
END_TEST

START_TEST(bad_json_is_refused_with_its_position)
{
    static const struct {
        const char *body, *words;
    } cases[] = {
        {"", "line 1"},   {"{\"model\":\"m\",}", "byte"},  {"{\"model\":\"\xff\"}", "byte"},
        {"[]", "object"}, {"{\"model\":\"m\"} x", "byte"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ck_assert_int_ne(parse(BT_OPENAI_CHAT, cases[i].body), BT_OK);
        ck_assert_uint_eq(error.status, 400);
        ck_assert_msg(strstr(error.message, cases[i].words) != NULL, "%s says %s", cases[i].body, error.message);
    }
}
END_TEST

START_TEST(request_larger_than_its_arena_is_refused)
{
    static const bt_openai_limits small = {.choices_max = 16, .arena_bytes = 200};
    char body[600];

    snprintf(body, sizeof body, "{\"model\":\"m\",\"prompt\":\"%0400d\"}", 1);
    ck_assert_int_eq(bt_openai_parse(&request, BT_OPENAI_TEXT, bt_str_of(body), &small, &error), BT_ERR_TOO_LONG);
    ck_assert_str_eq(error.param, "prompt");
    snprintf(body, sizeof body, "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"%0400d\"}]}", 1);
    ck_assert_int_eq(bt_openai_parse(&request, BT_OPENAI_CHAT, bt_str_of(body), &small, &error), BT_ERR_TOO_LONG);
    ck_assert_str_eq(error.param, "messages");
}
END_TEST

START_TEST(tokenize_takes_a_prompt_or_messages)
{
    bool special = false;

    ck_assert_int_eq(bt_openai_parse_tokenize(&request, &special, bt_str_of("{\"prompt\":\"a\"}"), &limits, &error),
                     BT_OK);
    ck_assert(request.kind == BT_OPENAI_TEXT && special && bt_str_is(request.prompts[0].text, "a"));
    bt_openai_request_fini(&request);
    ck_assert_int_eq(bt_openai_parse_tokenize(&request, &special,
                                              bt_str_of("{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],"
                                                        "\"add_special_tokens\":false}"),
                                              &limits, &error),
                     BT_OK);
    ck_assert(request.kind == BT_OPENAI_CHAT && !special);
    bt_openai_request_fini(&request);
    ck_assert_int_ne(bt_openai_parse_tokenize(&request, &special, bt_str_of("{}"), &limits, &error), BT_OK);
    ck_assert_int_ne(bt_openai_parse_tokenize(&request, &special, bt_str_of("{\"prompt\":[1]}"), &limits, &error),
                     BT_OK);
    ck_assert_int_eq(bt_openai_parse_detokenize(&request, bt_str_of("{\"tokens\":[1,2]}"), &limits, &error), BT_OK);
    ck_assert_uint_eq(request.prompts[0].id_count, 2);
    bt_openai_request_fini(&request);
    ck_assert_int_ne(bt_openai_parse_detokenize(&request, bt_str_of("{\"tokens\":[1000]}"), &limits, &error), BT_OK);
    ck_assert_int_ne(bt_openai_parse_detokenize(&request, bt_str_of("{}"), &limits, &error), BT_OK);
}
END_TEST

// ---- writing ----

static bt_str
bytes_of(const void *self, int32_t id)
{
    static const char *const texts[] = {"a", "\xe2\x82", "\xac", "a", "\""};

    (void)self;
    return bt_str_of(texts[id]);
}

static const bt_openai_vocab vocab = {bytes_of, NULL};
static bt_buf out;

static bt_openai_head
head_of(bt_openai_kind kind)
{
    bt_openai_head head = {.kind = kind, .id = "id-1", .model = {"m", 1}, .created = 5};

    bt_buf_fini(&out);
    bt_buf_init(&out, 1 << 20);
    return head;
}

#define HEAD(object) "{\"id\":\"id-1\",\"object\":\"" object "\",\"created\":5,\"model\":\"m\",\"choices\":["

START_TEST(chat_stream_is_written_as_openai_writes_it)
{
    bt_openai_head head = head_of(BT_OPENAI_CHAT);
    bt_openai_usage usage = {10, 2, 8};

    head.include_usage = true;
    bt_openai_write_role(&out, &head, 0);
    bt_openai_write_delta(&out, &head, 0, bt_str_of("hi\n"), NULL);
    bt_openai_write_finish(&out, &head, 0, "stop");
    bt_openai_write_usage(&out, &head, &usage);
    bt_openai_write_done(&out);
    ck_assert_str_eq(
        out.data,
        "data: " HEAD(
            "chat.completion.chunk") "{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},"
                                     "\"logprobs\":null,\"finish_reason\":null}],\"usage\":null}\n\n"
                                     "data: " HEAD(
                                         "chat.completion.chunk") "{\"index\":0,\"delta\":{\"content\":\"hi\\n\"},"
                                                                  "\"logprobs\":null,\"finish_reason\":null}],"
                                                                  "\"usage\":null}\n\n"
                                                                  "data: " HEAD(
                                                                      "chat.completion.chunk") "{\"index\":0,\"delta\":"
                                                                                               "{},"
                                                                                               "\"logprobs\":null,"
                                                                                               "\"finish_reason\":"
                                                                                               "\"stop\"}],\"usage\":"
                                                                                               "null}\n\n"
                                                                                               "data: " HEAD(
                                                                                                   "chat.completion."
                                                                                                   "chunk") "],"
                                                                                                            "\"usage\":"
                                                                                                            "{\"prompt_"
                                                                                                            "tokens\":"
                                                                                                            "10,"
                                                                                                            "\"completi"
                                                                                                            "on_"
                                                                                                            "tokens\":"
                                                                                                            "2,"
                                                                                                            "\"total_"
                                                                                                            "tokens\":"
                                                                                                            "12,"
                                                                                                            "\"prompt_"
                                                                                                            "tokens_"
                                                                                                            "details\":"
                                                                                                            "{\"cached_"
                                                                                                            "tokens\":"
                                                                                                            "8}}}\n\n"
                                                                                                            "data: "
                                                                                                            "[DONE]"
                                                                                                            "\n\n");
}
END_TEST

START_TEST(text_stream_is_written_as_openai_writes_it)
{
    bt_openai_head head = head_of(BT_OPENAI_TEXT);

    bt_openai_write_delta(&out, &head, 2, bt_str_of("hi"), NULL);
    bt_openai_write_finish(&out, &head, 2, "length");
    ck_assert_str_eq(
        out.data,
        "data: " HEAD("text_completion") "{\"index\":2,\"text\":\"hi\",\"logprobs\":null,"
                                         "\"finish_reason\":null}]}\n\n"
                                         "data: " HEAD(
                                             "text_completion") "{\"index\":2,\"text\":\"\",\"logprobs\":null,"
                                                                "\"finish_reason\":\"length\"}]}\n\n");
}
END_TEST

START_TEST(whole_answer_has_choices_and_usage)
{
    bt_openai_head head = head_of(BT_OPENAI_CHAT);
    bt_openai_usage usage = {3, 4, 0};
    bt_json_writer w;

    bt_openai_begin_answer(&w, &out, &head);
    bt_openai_put_choice(&w, &head, 0, bt_str_of("x"), NULL, "stop");
    bt_openai_put_choice(&w, &head, 1, bt_str_of("y"), NULL, "length");
    bt_openai_end_answer(&w, &usage);
    ck_assert_str_eq(
        out.data,
        HEAD("chat.completion") "{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"x\","
                                "\"refusal\":null},\"logprobs\":null,\"finish_reason\":\"stop\"},"
                                "{\"index\":1,\"message\":{\"role\":\"assistant\",\"content\":\"y\",\"refusal\":null},"
                                "\"logprobs\":null,\"finish_reason\":\"length\"}],\"usage\":{\"prompt_tokens\":3,"
                                "\"completion_tokens\":4,\"total_tokens\":7,\"prompt_tokens_details\":{\"cached_"
                                "tokens\":0}}}");
}
END_TEST

static const bt_token_result half = {
    .id = 1, .logprob = -0.5f, .top_count = 3, .top_ids = {1, 0, 3}, .top_logprobs = {-0.5f, -2, -INFINITY}};

START_TEST(half_a_character_in_logprobs_is_valid_json_with_its_bytes)
{
    bt_openai_head head = head_of(BT_OPENAI_CHAT);
    bt_openai_logprobs logprobs = {0};
    bt_json *document = NULL;
    bt_why why = {""};

    bt_openai_logprobs_init(&logprobs, 1 << 16);
    bt_openai_logprobs_add(&logprobs, BT_OPENAI_CHAT, &vocab, &half, true);
    bt_openai_write_delta(&out, &head, 0, bt_str_of(""), &logprobs);
    ck_assert_msg(bt_json_parse(&document, (bt_str){out.data + 6, out.len - 8}, NULL, &why) == BT_OK, "%s", why.text);
    bt_json_close(document);
    ck_assert_ptr_nonnull(strstr(out.data,
                                 "\"logprobs\":{\"content\":[{\"token\":\"\xef\xbf\xbd\xef\xbf\xbd\",\"logprob\":-0.5,"
                                 "\"bytes\":[226,130],\"top_logprobs\":[{\"token\":\"\xef\xbf\xbd\xef\xbf\xbd\""));
    ck_assert_ptr_nonnull(strstr(out.data, "\"logprob\":-9999.0,\"bytes\":[97]"));
    bt_openai_logprobs_fini(&logprobs);
}
END_TEST

START_TEST(text_logprobs_count_offsets_in_characters_and_begin_with_null)
{
    bt_openai_head head = head_of(BT_OPENAI_TEXT);
    bt_openai_logprobs logprobs = {0};
    bt_token_result first = {.id = 0}, rest = {.id = 2, .logprob = -1}, last = {.id = 4, .logprob = -1};

    bt_openai_logprobs_init(&logprobs, 1 << 16);
    bt_openai_logprobs_add(&logprobs, BT_OPENAI_TEXT, &vocab, &first, false);
    bt_openai_logprobs_add(&logprobs, BT_OPENAI_TEXT, &vocab, &half, true);
    bt_openai_logprobs_add(&logprobs, BT_OPENAI_TEXT, &vocab, &rest, true);
    bt_openai_logprobs_add(&logprobs, BT_OPENAI_TEXT, &vocab, &last, true);
    bt_openai_write_delta(&out, &head, 0, bt_str_of("x"), &logprobs);
    ck_assert_ptr_nonnull(strstr(out.data, "\"tokens\":[\"a\",\"\xef\xbf\xbd\xef\xbf\xbd\",\"\xef\xbf\xbd\",\"\\\"\"],"
                                           "\"token_logprobs\":[null,-0.5,-1.0,-1.0],"
                                           "\"top_logprobs\":[null,{\"\xef\xbf\xbd\xef\xbf\xbd\":-0.5,\"a\":-2.0},"
                                           "{\"\xef\xbf\xbd\":-1.0},{\"\\\"\":-1.0}],"
                                           "\"text_offset\":[0,1,2,2]"));
    bt_openai_logprobs_fini(&logprobs);
}
END_TEST

START_TEST(errors_are_objects_with_param_and_code)
{
    head_of(BT_OPENAI_CHAT);
    bt_openai_fail(&error, BT_ERR_TOO_LONG, 400, "context_length_exceeded", "messages", "%d of %d", 9, 8);
    bt_openai_write_error(&out, &error);
    ck_assert_str_eq(out.data, "{\"error\":{\"message\":\"9 of 8\",\"type\":\"invalid_request_error\","
                               "\"param\":\"messages\",\"code\":\"context_length_exceeded\"}}");
    bt_buf_clear(&out);
    bt_openai_fail(&error, BT_ERR_BUSY, 503, NULL, NULL, "down");
    bt_openai_write_error_event(&out, &error);
    ck_assert_str_eq(out.data, "data: {\"error\":{\"message\":\"down\",\"type\":\"server_error\",\"param\":null,"
                               "\"code\":null}}\n\n");
    bt_buf_fini(&out);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("openai");
    TCase *tests = tcase_create("openai");

    tcase_add_test(tests, chat_with_nothing_else_has_the_defaults);
    tcase_add_test(tests, every_parameter_arrives);
    tcase_add_test(tests, what_says_nothing_counts_as_not_given);
    tcase_add_test(tests, a_body_that_is_no_object_is_no_parameter);
    tcase_add_test(tests, refusals_name_the_parameter);
    tcase_add_test(tests, messages_are_checked_one_by_one);
    tcase_add_test(tests, text_parts_are_joined_and_developers_are_the_system);
    tcase_add_test(tests, prompt_takes_four_forms);
    tcase_add_test(tests, bad_prompts_are_named);
    tcase_add_test(tests, bad_json_is_refused_with_its_position);
    tcase_add_test(tests, request_larger_than_its_arena_is_refused);
    tcase_add_test(tests, tokenize_takes_a_prompt_or_messages);
    tcase_add_test(tests, chat_stream_is_written_as_openai_writes_it);
    tcase_add_test(tests, text_stream_is_written_as_openai_writes_it);
    tcase_add_test(tests, whole_answer_has_choices_and_usage);
    tcase_add_test(tests, half_a_character_in_logprobs_is_valid_json_with_its_bytes);
    tcase_add_test(tests, text_logprobs_count_offsets_in_characters_and_begin_with_null);
    tcase_add_test(tests, errors_are_objects_with_param_and_code);
    suite_add_tcase(suite, tests);
    return bt_test_run(suite);
}
