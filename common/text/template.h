// Chat templates: renders a conversation to the prompt text that a model was trained on.
//
// A template is outside input (it comes with the model file): the interpreter in common/text/jinja has limits of steps,
// depth and output, no file or network access, and every error names line and what was wrong. A compiled template is
// immutable; any thread may render with it.
#pragma once

#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/base/str.h"

typedef struct bt_template bt_template;

bt_err bt_template_open(bt_template **out, const char *source, bt_why *why);
void bt_template_close(bt_template *compiled);

typedef struct {
    bt_str messages_json; // array of {"role","content",…} as the API gave it
    bt_str tools_json;    // array or empty (none)
    bt_str extra_json;    // object of further variables (enable_thinking, documents …) or empty
    bool add_generation_prompt;
    bt_str bos_token, eos_token, unk_token, pad_token;
    const char *now; // for strftime_now: "YYYY-MM-DD HH:MM:SS"; NULL = the wall clock
} bt_template_input;

// Appends the prompt to `out`. BT_ERR_INVALID with the template's own words when it raises (raise_exception), e.g. for a
// role it does not know: the request is refused with them. BT_ERR_TOO_LONG when a limit was hit.
bt_err bt_template_render(const bt_template *compiled, const bt_template_input *input, bt_buf *out, bt_why *why);

// The template used when a model has none: ChatML.
extern const char bt_template_chatml[];
