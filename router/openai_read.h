// How request bodies are read, between the files that do it: openai.c walks the members, openai_parameters.c knows them,
// openai_input.c takes messages and prompts, openai_read.c the values.
#pragma once

#include "router/openai.h"

// What a reader needs at hand.
typedef struct {
    bt_openai_request *out;
    const bt_openai_limits *limits;
    bt_openai_error *error;
    bt_why why;
} bt_openai_reader;

// Each of these has filled the error when it fails.
// A getter of common/json has failed and said so in r->why: a 400 with the value's path.
bt_err bt_openai_refuse(bt_openai_reader *r, const bt_json_at *at);
bt_err bt_openai_refuse_with(bt_openai_reader *r, const bt_json_at *at, const char *code, const char *words);
bt_err bt_openai_out_of_room(bt_openai_reader *r, const bt_json_at *at);

// null, [] and {} say nothing; clients that send every field they know send these.
bool bt_openai_says_something(const bt_json_at *at);

bt_err bt_openai_read_text(bt_openai_reader *r, const bt_json_at *at, bt_str *out); // lives as long as the document
bt_err bt_openai_keep_text(bt_openai_reader *r, const bt_json_at *at, bt_str *out); // as long as the request
bt_err bt_openai_read_bool(bt_openai_reader *r, const bt_json_at *at, bool *out);
bt_err bt_openai_read_int(bt_openai_reader *r, const bt_json_at *at, int64_t min, int64_t max, int64_t *out);
bt_err bt_openai_read_float(bt_openai_reader *r, const bt_json_at *at, double min, double max, float *out);
bt_err bt_openai_read_count(bt_openai_reader *r, const bt_json_at *at, int64_t min, int64_t max, uint32_t *out);

bt_err bt_openai_take_messages(bt_openai_reader *r, const bt_json_at *at);
bt_err bt_openai_take_template_kwargs(bt_openai_reader *r, const bt_json_at *at);
// A string, an array of strings, of ids, or of arrays of ids.
bt_err bt_openai_take_prompt(bt_openai_reader *r, const bt_json_at *at);
bt_err bt_openai_take_tokens(bt_openai_reader *r, const bt_json_at *at); // /detokenize's

typedef struct {
    const char *name;
    bt_err (*take)(bt_openai_reader *r, const bt_json_at *at);
    const char *const *values; // with take == NULL: the values that mean what we do anyway
} bt_openai_parameter;

// What each endpoint knows; the last has no name.
extern const bt_openai_parameter bt_openai_chat_parameters[], bt_openai_text_parameters[],
    bt_openai_tokenize_parameters[], bt_openai_detokenize_parameters[];
// For one with values and no function.
bt_err bt_openai_take_only(bt_openai_reader *r, const bt_json_at *at, const char *const *values);
