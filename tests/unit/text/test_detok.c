#include "tests/support/test.h"

#include "common/base/rng.h"
#include "common/text/detok.h"
#include "tests/unit/text/small_vocab.h"

#include <stdio.h>

// Streams ids (below 256: bytes) and returns all text, with | where a push ended if `marks` is set.
static size_t
stream(const bt_tokenizer *tokenizer, const bt_stop_strings *stops, const int32_t *ids, size_t count, bool marks,
       char *out)
{
    char piece[BT_DETOK_OUT_MAX];
    bt_detok detok;
    size_t used = 0;

    bt_detok_init(&detok, tokenizer, stops, false, false);
    for (size_t i = 0; i <= count; i++) {
        size_t got = i < count ? bt_detok_push(&detok, ids[i], piece, sizeof piece)
                               : bt_detok_finish(&detok, piece, sizeof piece);

        ck_assert_uint_eq(bt_utf8_valid_prefix(piece, got), got);
        memcpy(out + used, piece, got);
        used += got;
        if (marks && i < count) {
            out[used++] = '|';
        }
    }
    out[used] = 0;
    return used;
}

static const char *
streamed(const bt_tokenizer *tokenizer, const bt_stop_strings *stops, const char *bytes, bool marks)
{
    static char out[4096];
    int32_t ids[256];
    size_t count = strlen(bytes);

    for (size_t i = 0; i < count; i++) {
        ids[i] = (uint8_t)bytes[i];
    }
    stream(tokenizer, stops, ids, count, marks, out);
    return out;
}

START_TEST(half_a_character_waits_for_the_rest)
{
    bt_tokenizer *tokenizer = small_bpe("gpt-2");

    ck_assert_str_eq(streamed(tokenizer, NULL, "a\xc3\xa9", true), "a||\xc3\xa9|");
    ck_assert_str_eq(streamed(tokenizer, NULL, "\xf0\x9f\xa6\x99", true), "|||\xf0\x9f\xa6\x99|");
    bt_tokenizer_close(tokenizer);
}
END_TEST

START_TEST(a_run_of_byte_tokens_waits_for_its_characters)
{
    bt_tokenizer *tokenizer = small_spm(true, false);
    int32_t ids[] = {3 + 0xe4, 3 + 0xb8, 3 + 0xad};
    char out[64];

    stream(tokenizer, NULL, ids, 3, true, out);
    ck_assert_str_eq(out, "||中|");
    bt_tokenizer_close(tokenizer);
}
END_TEST

START_TEST(bytes_that_are_no_character_are_replaced_once_a_beginning)
{
    bt_tokenizer *tokenizer = small_bpe("gpt-2");
    static const struct {
        const char *bytes, *text;
    } cases[] = {
        {"\xff", "\xef\xbf\xbd"},
        {"\x80"
         "a",
         "\xef\xbf\xbd"
         "a"},
        {"\xe2\x82"
         "a",
         "\xef\xbf\xbd"
         "a"},
        {"\xf0\x9f\xa6", "\xef\xbf\xbd"}, // at the end of the stream
        {"\xc0\x80", "\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xe2\xe2\x82\xac", "\xef\xbf\xbd\xe2\x82\xac"},
        {"\xf4\x90\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ck_assert_str_eq(streamed(tokenizer, NULL, cases[i].bytes, false), cases[i].text);
    }
    bt_tokenizer_close(tokenizer);
}
END_TEST

static bt_stop_strings
stops_of(const char *first, const char *second)
{
    bt_stop_strings stops = {0};

    ck_assert_int_eq(bt_stop_strings_add(&stops, bt_str_of(first), NULL), BT_OK);
    if (second != NULL) {
        ck_assert_int_eq(bt_stop_strings_add(&stops, bt_str_of(second), NULL), BT_OK);
    }
    return stops;
}

START_TEST(a_stop_string_across_tokens_ends_the_text_before_it)
{
    bt_tokenizer *tokenizer = small_bpe("gpt-2");
    bt_stop_strings stops = stops_of("stop", NULL);

    ck_assert_str_eq(streamed(tokenizer, &stops, "one stop two", true), "o|n|e| |||||||||");
    bt_tokenizer_close(tokenizer);
}
END_TEST

START_TEST(what_turns_out_to_be_no_stop_string_is_let_go)
{
    bt_tokenizer *tokenizer = small_bpe("gpt-2");
    bt_stop_strings stops = stops_of("stop", NULL);

    ck_assert_str_eq(streamed(tokenizer, &stops, "stoat", true), "|||stoa|t|");
    ck_assert_str_eq(streamed(tokenizer, &stops, "sto", true), "|||sto"); // at the end
    bt_tokenizer_close(tokenizer);
}
END_TEST

START_TEST(a_stop_string_that_begins_inside_a_failed_one_is_found)
{
    bt_tokenizer *tokenizer = small_bpe("gpt-2");
    bt_stop_strings stops = stops_of("aab", NULL);

    ck_assert_str_eq(streamed(tokenizer, &stops, "xaaaab!", false), "xaa");
    bt_tokenizer_close(tokenizer);
}
END_TEST

START_TEST(the_stop_string_that_ends_first_counts_and_of_those_the_longest)
{
    bt_tokenizer *tokenizer = small_bpe("gpt-2");
    bt_stop_strings inner = stops_of("abcd", "bc"), tail = stops_of("c", "abc");

    ck_assert_str_eq(streamed(tokenizer, &inner, "xabcd", false), "xa");
    ck_assert_str_eq(streamed(tokenizer, &tail, "xabcd", false), "x");
    bt_tokenizer_close(tokenizer);
}
END_TEST

START_TEST(a_stop_string_inside_a_token_cuts_it)
{
    bt_tokenizer *tokenizer = small_bpe("gpt-2");
    bt_stop_strings stops = stops_of("h", NULL);
    int32_t ids[] = {SMALL_SPACE_THE, 'x'};
    char out[64];

    stream(tokenizer, &stops, ids, 2, true, out);
    ck_assert_str_eq(out, " t||");
    bt_tokenizer_close(tokenizer);
}
END_TEST

START_TEST(a_replacement_character_can_be_stopped_at)
{
    bt_tokenizer *tokenizer = small_bpe("gpt-2");
    bt_stop_strings stops = stops_of("\xef\xbf\xbd", NULL);

    ck_assert_str_eq(streamed(tokenizer, &stops, "a\xc3(b", false), "a");
    bt_tokenizer_close(tokenizer);
}
END_TEST

// Where and how the text is cut, told by looking at all of it.
static size_t
cut_plainly(const char *text, const bt_stop_strings *stops)
{
    size_t len = strlen(text);

    for (size_t end = 1; end <= len; end++) {
        size_t longest = 0;

        for (uint32_t s = 0; s < stops->count; s++) {
            size_t bytes = stops->bytes[s];

            if (bytes <= end && memcmp(text + end - bytes, stops->text[s], bytes) == 0) {
                longest = bytes > longest ? bytes : longest;
            }
        }
        if (longest != 0) {
            return end - longest;
        }
    }
    return len;
}

START_TEST(any_text_is_cut_as_by_looking_at_all_of_it)
{
    static const char *const units[] = {"a", "b", "\xc3\xa9"};
    bt_tokenizer *tokenizer = small_bpe("gpt-2");
    bt_rng rng = {11};

    for (unsigned round = 0; round < 5000; round++) {
        bt_stop_strings stops = {0};
        char text[128] = "";

        for (uint64_t s = 0, count = 1 + bt_rng_below(&rng, 3); s < count; s++) {
            char stop[32] = "";

            for (uint64_t i = 0, len = 1 + bt_rng_below(&rng, 6); i < len; i++) {
                strcat(stop, units[bt_rng_below(&rng, 3)]);
            }
            ck_assert_int_eq(bt_stop_strings_add(&stops, bt_str_of(stop), NULL), BT_OK);
        }
        for (uint64_t i = 0, len = bt_rng_below(&rng, 30); i < len; i++) {
            strcat(text, units[bt_rng_below(&rng, 3)]);
        }
        {
            size_t cut = cut_plainly(text, &stops);
            const char *got = streamed(tokenizer, &stops, text, false);

            ck_assert_msg(strlen(got) == cut && memcmp(got, text, cut) == 0, "'%s' became '%s'", text, got);
        }
    }
    bt_tokenizer_close(tokenizer);
}
END_TEST

START_TEST(stop_strings_have_limits)
{
    bt_stop_strings stops = {0};
    char longest[BT_STOP_BYTES_MAX + 1];
    bt_why why;

    memset(longest, 'a', sizeof longest);
    ck_assert_int_eq(bt_stop_strings_add(&stops, (bt_str){longest, 0}, &why), BT_ERR_INVALID);
    ck_assert_int_eq(bt_stop_strings_add(&stops, bt_str_of("\xff"), &why), BT_ERR_INVALID);
    ck_assert_int_eq(bt_stop_strings_add(&stops, (bt_str){longest, sizeof longest}, &why), BT_ERR_TOO_LONG);
    for (unsigned i = 0; i < BT_STOP_MAX; i++) {
        ck_assert_int_eq(bt_stop_strings_add(&stops, (bt_str){longest, BT_STOP_BYTES_MAX}, &why), BT_OK);
    }
    ck_assert_int_eq(bt_stop_strings_add(&stops, bt_str_of("one more"), &why), BT_ERR_TOO_LONG);
    ck_assert_uint_eq(stops.count, BT_STOP_MAX);
}
END_TEST

START_TEST(the_longest_stop_string_is_held_back_whole)
{
    bt_tokenizer *tokenizer = small_bpe("gpt-2");
    bt_stop_strings stops = {0};
    char text[BT_STOP_BYTES_MAX + 1], out[1024];
    int32_t ids[BT_STOP_BYTES_MAX];

    memset(text, 'q', sizeof text);
    text[BT_STOP_BYTES_MAX - 1] = 'r';
    ck_assert_int_eq(bt_stop_strings_add(&stops, (bt_str){text, BT_STOP_BYTES_MAX}, NULL), BT_OK);
    for (size_t i = 0; i < BT_STOP_BYTES_MAX; i++) {
        ids[i] = text[i];
    }
    ck_assert_uint_eq(stream(tokenizer, &stops, ids, BT_STOP_BYTES_MAX, false, out), 0);
    ids[BT_STOP_BYTES_MAX - 1] = 's';
    ck_assert_uint_eq(stream(tokenizer, &stops, ids, BT_STOP_BYTES_MAX, false, out), BT_STOP_BYTES_MAX);
    bt_tokenizer_close(tokenizer);
}
END_TEST

static const char *
first_push(const bt_tokenizer *tokenizer, int32_t id, bool special, bool at_start)
{
    static char out[BT_DETOK_OUT_MAX + 1];
    bt_detok detok;

    bt_detok_init(&detok, tokenizer, NULL, special, at_start);
    out[bt_detok_push(&detok, id, out, BT_DETOK_OUT_MAX)] = 0;
    return out;
}

START_TEST(the_space_that_encoding_put_there_is_dropped_at_the_start_only)
{
    bt_tokenizer *prefixed = small_spm(true, true), *bare = small_spm(true, false);
    int32_t id = bt_tokenizer_find(prefixed, bt_str_of("\xe2\x96\x81"
                                                       "a"));

    ck_assert_str_eq(first_push(prefixed, id, false, true), "a");
    ck_assert_str_eq(first_push(prefixed, id, false, false), " a");
    ck_assert_str_eq(first_push(bare, id, false, true), " a");
    bt_tokenizer_close(prefixed);
    bt_tokenizer_close(bare);
}
END_TEST

START_TEST(control_tokens_are_shown_only_when_asked_for)
{
    bt_tokenizer *tokenizer = small_bpe("gpt-2");

    ck_assert_str_eq(first_push(tokenizer, SMALL_CONTROL, false, false), "");
    ck_assert_str_eq(first_push(tokenizer, SMALL_CONTROL, true, false), "<|im_end|>");
    ck_assert_str_eq(first_push(tokenizer, SMALL_USER, false, false), "<b>");
    ck_assert_str_eq(first_push(tokenizer, -5, true, false), "");
    bt_tokenizer_close(tokenizer);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("detok");
    TCase *all = tcase_create("all");

    tcase_add_test(all, half_a_character_waits_for_the_rest);
    tcase_add_test(all, a_run_of_byte_tokens_waits_for_its_characters);
    tcase_add_test(all, bytes_that_are_no_character_are_replaced_once_a_beginning);
    tcase_add_test(all, a_stop_string_across_tokens_ends_the_text_before_it);
    tcase_add_test(all, what_turns_out_to_be_no_stop_string_is_let_go);
    tcase_add_test(all, a_stop_string_that_begins_inside_a_failed_one_is_found);
    tcase_add_test(all, the_stop_string_that_ends_first_counts_and_of_those_the_longest);
    tcase_add_test(all, a_stop_string_inside_a_token_cuts_it);
    tcase_add_test(all, a_replacement_character_can_be_stopped_at);
    tcase_add_test(all, any_text_is_cut_as_by_looking_at_all_of_it);
    tcase_add_test(all, stop_strings_have_limits);
    tcase_add_test(all, the_longest_stop_string_is_held_back_whole);
    tcase_add_test(all, the_space_that_encoding_put_there_is_dropped_at_the_start_only);
    tcase_add_test(all, control_tokens_are_shown_only_when_asked_for);
    suite_add_tcase(suite, all);
    return bt_test_run(suite);
}
