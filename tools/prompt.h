// Prompts for the commands: text, ids or messages to token ids, and files read whole.
#pragma once

#include "common/base/buf.h"
#include "common/model/model.h"

// The whole of a file, or of stdin for "-". BT_ERR_TOO_LONG above buf's limit.
bt_err bt_read_file(const char *path, bt_buf *out, bt_why *why);

// "1,2,3" to ids, each checked against the vocabulary. *ids is freed with bt_free.
bt_err bt_prompt_ids(const char *list, uint32_t vocab, int32_t **ids, uint32_t *count, bt_why *why);

// Text to ids; BOS as the model's file asks for. `special` parses control tokens (rendered templates).
bt_err bt_prompt_encode(const bt_tokenizer *tokenizer, bt_str text, bool special, bool bos, int32_t **ids,
                        uint32_t *count, bt_why *why);

// A JSON array of messages through the model's chat template (ChatML when it has none).
bt_err bt_prompt_render(const bt_tokenizer *tokenizer, bt_str messages_json, bool add_generation_prompt, bt_buf *out,
                        bt_why *why);
