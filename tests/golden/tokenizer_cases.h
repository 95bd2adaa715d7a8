// Opens the tokenizers of the outside data and compares encodings with those that other software made.
#pragma once

#include "common/text/tokenizer.h"

// A name of the table in tokenizer_cases.c ("smollm2", "llama-spm", "gemma" …); NULL when its file is not here. Cached:
// closed by close_tokenizers.
bt_tokenizer *open_tokenizer(const char *name);
void close_tokenizers(void);

typedef struct {
    unsigned cases, wrong, decoded; // decoded: those whose text came back exactly
    size_t ids;
} tally;

// Encodes and compares; prints the first few that differ. With `round_trip`, decoding must give the text back.
void check_encoding(tally *score, const char *what, const bt_tokenizer *tokenizer, bt_str text, unsigned flags,
                    const int32_t *expected, size_t count, bool round_trip);
// Reads up to `cap` integers from text between `begin` and `end`, whatever separates them.
size_t read_ids(const char *begin, const char *end, int32_t *out, size_t cap);
// Each line of `input` (or with `whole`, all of it) against the same line of ids.
void check_lines(tally *score, const char *what, const char *name, const char *input, size_t input_bytes,
                 const char *expected, bool whole, bool escapes, unsigned flags);
// llama.cpp's pairs of .inp and .out.
void check_ggml(tally *score, const char *name, const char *pair);
// Ends a test: prints the tally and fails it when anything was wrong or nothing was tested.
void settle(const tally *score, const char *what);
