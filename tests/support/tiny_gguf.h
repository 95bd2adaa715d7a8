// A small Llama of random weights with a tokenizer and a chat template, always the same bytes: what tests load where no
// outside data is at hand.
//
// 2 layers, hidden 64, 4 heads over 2 KV heads of 16, ffn 128, tied embedding, context 512. Vocabulary of 300:
// SentencePiece with scores and byte fallback; 0 <unk>, 1 <s> (put in front), 2 </s> (ends), 3 <|im_start|>,
// 4 <|im_end|> (ends a turn), 5–260 the bytes, then pieces. Control tokens and unprintable bytes have small logits, so
// that generated text is readable and rarely ends by itself.
//
// tests/data/tiny-q8_0.gguf is the Q8_0 one, for those who write no C.
#pragma once

#include <stddef.h>
#include <stdint.h>

// ggml's type numbers; norms are F32 in each
enum { BT_TINY_F32 = 0, BT_TINY_F16 = 1, BT_TINY_Q4_0 = 2, BT_TINY_Q8_0 = 8, BT_TINY_BF16 = 30 };

#define BT_TINY_VOCAB 300
#define BT_TINY_CHAT_TEMPLATE                                                                                          \
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}" \
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"

// The file's bytes, for free(). Fails the test when memory is out.
char *bt_test_tiny_gguf(uint32_t type, size_t *bytes);
// Writes the F32 one; `_as` another type. Fails the test when the file cannot be written.
void bt_test_write_tiny_gguf(const char *path);
void bt_test_write_tiny_gguf_as(const char *path, uint32_t type);
