#include "common/text/template.h"

#include "common/base/mem.h"
#include "common/text/jinja/run.h"

#define SOURCE_BYTES_MAX ((size_t)1 << 20)

const char bt_template_chatml[] =
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

struct bt_template {
    bt_jinja_tree tree;
};

bt_err
bt_template_open(bt_template **out, const char *source, bt_why *why)
{
    bt_str text = bt_str_of(source);
    bt_template *compiled;
    bt_err err;

    if (text.len > SOURCE_BYTES_MAX) {
        return bt_fail(why, BT_ERR_TOO_LONG, "a template of %zu bytes, at most %zu are read", text.len,
                       SOURCE_BYTES_MAX);
    }
    if ((compiled = bt_alloc(sizeof *compiled)) == NULL) {
        return bt_fail(why, BT_ERR_NO_MEMORY, "out of memory");
    }
    if ((err = bt_jinja_parse(&compiled->tree, text, why)) != BT_OK) {
        bt_free(compiled);
        return err;
    }
    *out = compiled;
    return BT_OK;
}

void
bt_template_close(bt_template *compiled)
{
    if (compiled != NULL) {
        bt_jinja_tree_close(&compiled->tree);
        bt_free(compiled);
    }
}

static void
define(bt_jinja_run *run, const char *name, bt_jinja_value value)
{
    bt_jinja_scope_set(run, run->scope, bt_jinja_tree_name(run->tree, bt_str_of(name)), value);
}

static void
define_token(bt_jinja_run *run, const char *name, bt_str token)
{
    if (token.data != NULL) {
        define(run, name, bt_jinja_text(token));
    }
}

// Later definitions replace earlier ones, so that what a request brings cannot pose as the conversation.
static void
define_all(bt_jinja_run *run, const bt_template_input *input)
{
    bt_jinja_define_globals(run, run->scope);
    define(run, "documents", bt_jinja_none());
    define_token(run, "bos_token", input->bos_token);
    define_token(run, "eos_token", input->eos_token);
    define_token(run, "unk_token", input->unk_token);
    define_token(run, "pad_token", input->pad_token);
    if (input->extra_json.len != 0) {
        bt_jinja_define_json(run, run->scope, input->extra_json, "template variables");
    }
    define(run, "messages", bt_jinja_from_json(run, input->messages_json, "messages", BT_JINJA_LIST));
    define(run, "tools",
           input->tools_json.len != 0 ? bt_jinja_from_json(run, input->tools_json, "tools", BT_JINJA_LIST)
                                      : bt_jinja_none());
    define(run, "add_generation_prompt", bt_jinja_bool(input->add_generation_prompt));
}

static void
begin(bt_jinja_run *run, const bt_template *compiled, const bt_template_input *input, bt_why *why)
{
    static const bt_template_limits none;
    const bt_template_limits *limits = input->limits != NULL ? input->limits : &none;

    *run = (bt_jinja_run){.tree = &compiled->tree, .why = why, .now = input->now, .line = 1};
    run->steps_left = limits->steps != 0 ? limits->steps : 20000000;
    run->depth_max = limits->depth != 0 ? limits->depth : 800;
    run->captured_max = limits->output_bytes != 0 ? limits->output_bytes : (size_t)32 << 20;
    bt_arena_init(&run->arena, limits->memory_bytes != 0 ? limits->memory_bytes : (size_t)128 << 20);
}

bt_err
bt_template_render(const bt_template *compiled, const bt_template_input *input, bt_buf *out, bt_why *why)
{
    bt_jinja_run run;
    bt_buf prompt;

    begin(&run, compiled, input, why);
    bt_buf_init(&prompt, run.captured_max);
    run.out = &prompt;
    if ((run.scope = bt_jinja_scope_open(&run, NULL)) != NULL) {
        define_all(&run, input);
        bt_jinja_exec(&run, compiled->tree.body);
    }
    if (run.err == BT_OK && (run.err = bt_buf_reserve(out, prompt.len)) != BT_OK) {
        out->failed = false;
        bt_fail(why, run.err, "a prompt of %zu bytes is longer than what may be written", prompt.len);
    }
    if (run.err == BT_OK) {
        bt_buf_append(out, prompt.data, prompt.len);
    }
    bt_buf_fini(&prompt);
    bt_arena_fini(&run.arena);
    return run.err;
}
