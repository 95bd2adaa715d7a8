// A template and the conversation that it renders, both from outside: the input is split at its first NUL byte, the
// messages before, the template behind. Without one, all is template over a small conversation.
#include "common/text/template.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

// Small enough that a time-out of the fuzzer means that work was not charged.
static const bt_template_limits limits = {
    .steps = 100000, .depth = 100, .memory_bytes = 8u << 20, .output_bytes = 1u << 20};

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const uint8_t *nul = bytes != 0 ? memchr(data, 0, bytes) : NULL;
    bt_str messages =
        bt_str_of("[{\"role\":\"user\",\"content\":\"Hi\\n\"},{\"role\":\"assistant\",\"content\":null,"
                  "\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":{\"a\":[1,2.5,true]}}}]}]");
    size_t from = nul != NULL ? (size_t)(nul - data) + 1 : 0;
    char *source = malloc(bytes - from + 1);
    bt_template_input input = {.messages_json = messages,
                               .tools_json = {"[{\"name\":\"f\"}]", 14},
                               .add_generation_prompt = true,
                               .bos_token = {"<s>", 3},
                               .now = "2026-01-15 12:00:00",
                               .limits = &limits};
    bt_template *compiled = NULL;
    bt_why why;
    bt_buf out;

    if (source == NULL) {
        return 0;
    }
    memcpy(source, data + from, bytes - from);
    source[bytes - from] = 0;
    if (nul != NULL) {
        input.messages_json = (bt_str){(const char *)data, from - 1};
    }
    bt_buf_init(&out, 1u << 20);
    if (bt_template_open(&compiled, source, &why) == BT_OK) {
        bt_template_render(compiled, &input, &out, &why);
    }
    bt_template_close(compiled);
    bt_buf_fini(&out);
    free(source);
    return 0;
}
