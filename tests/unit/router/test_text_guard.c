#include "tests/support/test.h"

#include "router/text_guard.h"

#include <stdio.h>
#include <string.h>

static bt_tokenizer *tokenizer;
static bt_text_guard guard;
static bt_buf out;

// "<|" is a control token as "<|end|>" is: the longer one is the one that is marked.
static void
set_up(void)
{
    static const bt_str tokens[] = {{"a", 1}, {"b", 1}, {"<|end|>", 7}, {"<|", 2}, {"  ", 2}};
    static const uint8_t types[] = {1, 1, 3, 3, 4};
    bt_vocab vocab = {.kind = BT_VOCAB_SPM,
                      .count = 5,
                      .tokens = tokens,
                      .scores = (const float[5]){0},
                      .types = types,
                      .bos = -1,
                      .eos = 2,
                      .unknown = 0,
                      .pad = -1};
    bt_why why = {""};

    ck_assert_msg(bt_tokenizer_open(&tokenizer, &vocab, &why) == BT_OK, "%s", why.text);
    ck_assert_int_eq(bt_text_guard_init(&guard, tokenizer), BT_OK);
    bt_buf_init(&out, 1 << 16);
}

static void
tear_down(void)
{
    bt_buf_fini(&out);
    bt_text_guard_fini(&guard);
    bt_tokenizer_close(tokenizer);
}

// Marks, then writes the pieces with [ ] around the plain ones.
static const char *
pieces_of(const char *text)
{
    static char shown[256];
    bt_str rest, piece;
    size_t used = 0;
    bool plain;

    bt_buf_clear(&out);
    bt_text_guard_mark(&guard, bt_str_of(text), &out);
    rest = (bt_str){out.data, out.len};
    while (bt_text_guard_next(&rest, &piece, &plain)) {
        used +=
            (size_t)snprintf(shown + used, sizeof shown - used, plain ? "[%.*s]" : "%.*s", (int)piece.len, piece.data);
    }
    shown[used] = 0;
    return shown;
}

START_TEST(typed_special_tokens_stand_alone_as_plain_text)
{
    ck_assert_str_eq(pieces_of("ab  <a"), "ab  <a");
    ck_assert_str_eq(pieces_of("a<|end|>b"), "a[<|end|>]b");
    ck_assert_str_eq(pieces_of("<|end|><|x<|end|>"), "[<|end|>][<|]x[<|end|>]");
}
END_TEST

START_TEST(marks_that_a_user_types_mean_nothing)
{
    ck_assert_str_eq(pieces_of("\xef\xb7\x93<|end|>\xef\xb7\x92"), "\xef\xbf\xbd[<|end|>]\xef\xbf\xbd");
    ck_assert_str_eq(pieces_of("<|e\xef\xb7\x92nd|>"), "[<|]e\xef\xbf\xbdnd|>");
}
END_TEST

START_TEST(text_without_a_closing_mark_is_plain_to_its_end)
{
    bt_str rest = bt_str_of("a\xef\xb7\x92<|end|>"), piece;
    bool plain;

    ck_assert(bt_text_guard_next(&rest, &piece, &plain) && !plain && bt_str_is(piece, "a"));
    ck_assert(bt_text_guard_next(&rest, &piece, &plain) && plain && bt_str_is(piece, "<|end|>"));
    ck_assert(!bt_text_guard_next(&rest, &piece, &plain));
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("text_guard");
    TCase *tests = tcase_create("text_guard");

    tcase_add_checked_fixture(tests, set_up, tear_down);
    tcase_add_test(tests, typed_special_tokens_stand_alone_as_plain_text);
    tcase_add_test(tests, marks_that_a_user_types_mean_nothing);
    tcase_add_test(tests, text_without_a_closing_mark_is_plain_to_its_end);
    suite_add_tcase(suite, tests);
    return bt_test_run(suite);
}
