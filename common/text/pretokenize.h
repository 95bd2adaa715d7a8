// Splits text into the pieces that are encoded each by itself: a chain of splitters, each applied to what the one before
// it left. The `pre_tokenizer` of a tokenizer.json, or what a name in GGUF's tokenizer.ggml.pre stands for.
//
// Immutable once built: any thread may run it.
#pragma once

#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/base/str.h"
#include "common/text/regex.h"

#define BT_PRE_STEPS_MAX 16

// What becomes of a splitter's matches and of the text between them.
typedef enum {
    BT_SPLIT_ISOLATED,      // each is a piece
    BT_SPLIT_REMOVED,       // matches are dropped
    BT_SPLIT_WITH_PREVIOUS, // a match ends the piece before it
    BT_SPLIT_WITH_NEXT,     // a match begins the piece after it
    BT_SPLIT_CONTIGUOUS,    // neighbouring matches are one piece
} bt_split_behavior;

typedef enum {
    BT_PREFIX_NEVER,
    BT_PREFIX_FIRST,  // only where the text begins
    BT_PREFIX_ALWAYS, // every piece that reaches this step
} bt_prefix_scheme;

typedef struct {
    bt_regex *regex; // NULL: this step only rewrites
    bt_split_behavior behavior;
    bool invert;             // the text between matches takes the part of the matches
    bt_prefix_scheme prefix; // put in front of a piece that does not begin with it, before splitting
    bool metaspace;          // spaces become ▁, and the prefix is ▁; otherwise the prefix is a space
} bt_pre_step;

typedef struct {
    uint32_t count;
    bt_pre_step steps[BT_PRE_STEPS_MAX];
    bool byte_level; // pieces are encoded by their bytes
} bt_pre_tokenizer;

// What one run needs; from bt_pre_scratch_init to bt_pre_scratch_fini it is one thread's.
typedef struct {
    bt_regex_finder *finder; // borrowed
    bt_buf rewritten[BT_PRE_STEPS_MAX];
} bt_pre_scratch;

void bt_pre_scratch_init(bt_pre_scratch *scratch, bt_regex_finder *finder, size_t limit);
void bt_pre_scratch_fini(bt_pre_scratch *scratch);

// Appends a step; its regex is the pre-tokenizer's from here on, also when this fails.
bt_err bt_pre_tokenizer_add(bt_pre_tokenizer *pre, bt_pre_step step);
// The same for a step that splits at `pattern`.
bt_err bt_pre_tokenizer_add_regex(bt_pre_tokenizer *pre, bt_str pattern, bt_split_behavior behavior, bool invert,
                                  bt_why *why);
void bt_pre_tokenizer_fini(bt_pre_tokenizer *pre); // accepts a zeroed one

// Called with each piece, none empty, in order; an error ends the run.
typedef bt_err (*bt_piece_fn)(void *context, bt_str piece);

// `at_start`: the text is the beginning of what is encoded.
bt_err bt_pre_tokenizer_run(const bt_pre_tokenizer *pre, bt_pre_scratch *scratch, bt_str text, bool at_start,
                            bt_piece_fn piece, void *context);

// The names of tokenizer.ggml.pre (common/text/pre_names.c).
extern const char bt_pre_regex_gpt2[];
typedef struct {
    const char *const *patterns; // NULL-terminated; each an isolated split
    bool nfc, ignore_merges;
    bool spaces; // SentencePiece-like BPE: ▁ for spaces, byte fallback, no byte letters
} bt_pre_name;
const bt_pre_name *bt_pre_name_find(const char *name); // NULL = not known
