// Chat templates: renders a conversation to the prompt text that a model was trained on.
//
// A template is outside input (it comes with the model file), and so is the conversation. The interpreter in
// common/text/jinja speaks Jinja as Hugging Face's transformers set it up: an immutable sandbox, trim_blocks,
// lstrip_blocks, break and continue, {% generation %}, tojson, raise_exception, strftime_now. It reaches no file and no
// network, is bounded in steps, depth, memory and output, and its errors name the line. A compiled template never
// changes; any thread may render with it.
//
// Known to differ from Python: integers are 64 bits wide (overflow is an error), case mapping is one character for one
// but for ß, and include, import, extends and do are refused.
#pragma once

#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/base/str.h"

typedef struct bt_template bt_template;

// BT_ERR_INVALID for a syntax error ("template line 3: …"), BT_ERR_TOO_LONG when it is longer than 1 MiB or nested too
// deep. The source need not outlive the call.
bt_err bt_template_open(bt_template **out, const char *source, bt_why *why);
void bt_template_close(bt_template *compiled); // NULL is fine

// What one rendering may use. A zero takes the default.
typedef struct {
    uint64_t steps;      // 20 million; about one a node visited, one a few dozen bytes walked over
    unsigned depth;      // 800 nested calls, expressions, values
    size_t memory_bytes; // 128 MiB, of values and texts on the way
    size_t output_bytes; // 32 MiB, of the prompt and of what is being captured for it
} bt_template_limits;

typedef struct {
    bt_str messages_json; // array of {"role","content",…} as the API gave it
    bt_str tools_json;    // array, or empty: `tools` is none
    bt_str extra_json; // object of further variables (enable_thinking, documents, …), or empty. May set every variable
                       // but messages, tools and add_generation_prompt. `documents` is none unless set.
    bool add_generation_prompt;
    bt_str bos_token, eos_token, unk_token, pad_token; // data NULL: the variable is undefined
    const char *now;                                   // for strftime_now: "YYYY-MM-DD HH:MM:SS"; NULL = the wall clock
    const bt_template_limits *limits;                  // NULL = the defaults
} bt_template_input;

// Appends the prompt to `out`; on an error `out` is as it was. BT_ERR_INVALID with the template's own words when it
// raises (raise_exception), e.g. for a role it does not know: the request is refused with them. BT_ERR_INVALID too for
// JSON that is none ("messages: line 1, …") and faults of the template. BT_ERR_TOO_LONG when a limit was hit.
// Memory is taken while rendering and given back before it returns: not for a thread that promised to allocate nothing.
bt_err bt_template_render(const bt_template *compiled, const bt_template_input *input, bt_buf *out, bt_why *why);

// The template used when a model has none: ChatML.
extern const char bt_template_chatml[];
