#include "tests/support/test.h"

#include "common/base/mem.h"
#include "tests/unit/text/small_vocab.h"

#include <stdio.h>
#include <stdlib.h>

// A tokenizer.json of a few words. Each test replaces parts; NULL keeps the usual one.
typedef struct {
    const char *model, *normalizer, *pre_tokenizer, *added, *post_processor, *config;
} parts;

#define VOCAB                                                                                                          \
    "{\"a\":0,\"b\":1,\"c\":2,\"ab\":3,\"abc\":4,\" \":5,\"<unk>\":6,\"\xe2\x96\x81\":7,\"\xe2\x96\x81"                \
    "a\":8}"
#define BPE(extra)                                                                                                     \
    "{\"type\":\"BPE\",\"unk_token\":\"<unk>\",\"vocab\":" VOCAB                                                       \
    ",\"merges\":[\"a b\",\"ab c\",\"\xe2\x96\x81 a\"]" extra "}"

static bt_err
open_parts(bt_tokenizer **out, const parts *with, bt_why *why)
{
    static char text[8192];
    bt_str config = {with->config, with->config != NULL ? strlen(with->config) : 0};
    int used = snprintf(
        text, sizeof text,
        "{\"added_tokens\":%s,\"normalizer\":%s,\"pre_tokenizer\":%s,\"post_processor\":%s,\"model\":%s}",
        with->added != NULL ? with->added : "[]", with->normalizer != NULL ? with->normalizer : "null",
        with->pre_tokenizer != NULL ? with->pre_tokenizer : "null",
        with->post_processor != NULL ? with->post_processor : "null", with->model != NULL ? with->model : BPE(""));

    ck_assert_int_lt(used, (int)sizeof text);
    return bt_tokenizer_open_json(out, (bt_str){text, (size_t)used}, config, why);
}

static bt_tokenizer *
opened(parts with)
{
    bt_tokenizer *tokenizer = NULL;
    bt_why why = {{0}};

    ck_assert_msg(open_parts(&tokenizer, &with, &why) == BT_OK, "%s", why.text);
    return tokenizer;
}

static void
check(parts with, const char *text, unsigned flags, const char *expected)
{
    bt_tokenizer *tokenizer = opened(with);

    ck_assert_str_eq(encoded(tokenizer, text, flags), expected);
    bt_tokenizer_close(tokenizer);
}

START_TEST(merges_are_read_as_strings_and_as_pairs)
{
    check((parts){0}, "abcab", 0, "4 3");
    check((parts){.model = "{\"type\":\"BPE\",\"vocab\":" VOCAB ",\"merges\":[[\"a\",\"b\"],[\"ab\",\"c\"]]}"}, "abcab",
          0, "4 3");
}
END_TEST

START_TEST(an_unknown_character_is_the_unknown_token_and_fused_when_so_said)
{
    check((parts){0}, "xya", 0, "6 6 0");
    check((parts){.model = BPE(",\"fuse_unk\":true")}, "xya", 0, "6 0");
}
END_TEST

START_TEST(a_word_that_is_a_token_is_not_merged_when_merges_are_ignored)
{
    const char *model =
        "{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"aba\":3},\"merges\":[\"a b\"],\"ignore_merges\":%s}";
    char with[256], without[256];

    snprintf(with, sizeof with, model, "true");
    snprintf(without, sizeof without, model, "false");
    check((parts){.model = with}, "aba", 0, "3");
    check((parts){.model = without}, "aba", 0, "2 0");
}
END_TEST

START_TEST(unigram_is_read_with_its_scores)
{
    check(
        (parts){
            .model =
                "{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[[\"<unk>\",0],[\"a\",-1],[\"b\",-1],[\"ab\",-1.5]]}"},
        "abxb", 0, "3 0 2");
}
END_TEST

START_TEST(normalizers_do_what_their_names_say)
{
    check((parts){.normalizer = "{\"type\":\"Lowercase\"}"}, "ABC", 0, "4");
    check((parts){.normalizer = "{\"type\":\"Replace\",\"pattern\":{\"String\":\"xx\"},\"content\":\"b\"}"}, "axx", 0,
          "3");
    check((parts){.normalizer = "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"[xy]+\"},\"content\":\"b\"}"}, "axyx",
          0, "3");
    check((parts){.normalizer = "{\"type\":\"Prepend\",\"prepend\":\"a\"}"}, "b", 0, "3");
    check((parts){.normalizer = "{\"type\":\"Prepend\",\"prepend\":\"a\"}"}, "", 0, "");
    check((parts){.normalizer = "{\"type\":\"Strip\",\"strip_left\":true,\"strip_right\":false}"}, " \t a ", 0, "0 5");
    check((parts){.normalizer = "{\"type\":\"NFKC\"}"}, "\xef\xbd\x81\xef\xbd\x82", 0, "3"); // full-width ab
    check((parts){.normalizer =
                      "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Lowercase\"},{\"type\":\"Replace\","
                      "\"pattern\":{\"String\":\"d\"},\"content\":\"c\"}]}"},
          "ABD", 0, "4");
    // A pattern that matches nothing at every place must not stand still.
    check((parts){.normalizer = "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"x*\"},\"content\":\"\"}"}, "axb", 0,
          "3");
}
END_TEST

#define SPLIT(behavior, invert)                                                                                        \
    "{\"type\":\"Split\",\"pattern\":{\"String\":\"b\"},\"behavior\":\"" behavior "\",\"invert\":" invert "}"

START_TEST(splits_behave_as_they_are_told)
{
    check((parts){.pre_tokenizer = SPLIT("Isolated", "false")}, "abab", 0, "0 1 0 1");
    check((parts){.pre_tokenizer = SPLIT("Removed", "false")}, "abab", 0, "0 0");
    check((parts){.pre_tokenizer = SPLIT("Removed", "true")}, "abab", 0, "1 1");
    check((parts){.pre_tokenizer = SPLIT("MergedWithPrevious", "false")}, "abab", 0, "3 3");
    check((parts){.pre_tokenizer = SPLIT("MergedWithNext", "false")}, "abab", 0, "0 1 0 1");
    check((parts){.pre_tokenizer = SPLIT("Contiguous", "false")}, "aabb", 0, "0 0 1 1");
}
END_TEST

START_TEST(pre_tokenizers_do_what_their_names_say)
{
    check((parts){.pre_tokenizer = "{\"type\":\"WhitespaceSplit\"}"}, "ab  c", 0, "3 2");
    check((parts){.pre_tokenizer = "{\"type\":\"CharDelimiterSplit\",\"delimiter\":\".\"}"}, "ab.c", 0, "3 2");
    check((parts){.pre_tokenizer = "{\"type\":\"Punctuation\"}"}, "a.b", 0, "0 6 1");
    check((parts){.pre_tokenizer = "{\"type\":\"Whitespace\"}"}, "ab c", 0, "3 2");
    check((parts){.pre_tokenizer = "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"WhitespaceSplit\"}," SPLIT(
                      "Isolated", "false") "]}"},
          "ab c", 0, "0 1 2");
}
END_TEST

START_TEST(metaspace_marks_words_and_their_beginning)
{
    check((parts){.pre_tokenizer = "{\"type\":\"Metaspace\",\"prepend_scheme\":\"always\"}"}, "a a", 0, "8 8");
    check((parts){.pre_tokenizer = "{\"type\":\"Metaspace\",\"prepend_scheme\":\"never\"}"}, "a a", 0, "0 8");
    check((parts){.pre_tokenizer = "{\"type\":\"Metaspace\",\"add_prefix_space\":true}"}, " a", 0, "8");
    // "first": at the beginning of the text, not behind a token found in it.
    check((parts){.pre_tokenizer = "{\"type\":\"Metaspace\",\"prepend_scheme\":\"first\",\"split\":false}",
                  .added = "[{\"id\":9,\"content\":\"<x>\",\"special\":true}]"},
          "a<x>a", BT_ENCODE_SPECIAL, "8 9 0");
}
END_TEST

START_TEST(added_tokens_take_whitespace_and_keep_out_of_words_when_so_said)
{
#define ADDED(flags) "[{\"id\":9,\"content\":\"<x>\",\"special\":false," flags "}]"
    check((parts){.added = ADDED("\"lstrip\":true")}, "a  <x> a", 0, "0 9 5 0");
    check((parts){.added = ADDED("\"rstrip\":true")}, "a <x>  a", 0, "0 5 9 0");
    check((parts){.added = "[{\"id\":9,\"content\":\"bb\",\"special\":false,\"single_word\":true}]"}, "bb abb", 0,
          "9 5 3 1");
    // A normalised one is looked for after normalising, and is itself normalised.
    check((parts){.added = "[{\"id\":9,\"content\":\"QQ\",\"special\":false,\"normalized\":true}]",
                  .normalizer = "{\"type\":\"Lowercase\"}"},
          "aqQa", 0, "0 9 0");
}
END_TEST

START_TEST(the_template_processor_tells_what_comes_first_and_the_config_overrides_it)
{
    parts with = {
        .added = "[{\"id\":9,\"content\":\"<s>\",\"special\":true},{\"id\":10,\"content\":\"</s>\",\"special\":true}]",
        .post_processor = "{\"type\":\"Sequence\",\"processors\":[{\"type\":\"ByteLevel\"},{\"type\":"
                          "\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\",\"type_id\":0}}]}]}"};
    bt_tokenizer *tokenizer = opened(with);

    ck_assert_int_eq(bt_tokenizer_bos(tokenizer), 9);
    ck_assert_int_eq(bt_tokenizer_eos(tokenizer), 10);
    ck_assert_str_eq(encoded(tokenizer, "a", BT_ENCODE_BOS), "9 0");
    bt_tokenizer_close(tokenizer);
    with.config = "{\"add_bos_token\":false,\"eos_token\":{\"content\":\"<s>\"},\"model_max_length\":"
                  "1000000000000000019884624838656,\"chat_template\":[{\"name\":\"tool_use\",\"template\":\"no\"},"
                  "{\"name\":\"default\",\"template\":\"yes\"}]}";
    tokenizer = opened(with);
    ck_assert(!bt_tokenizer_adds_bos(tokenizer));
    ck_assert_int_eq(bt_tokenizer_eos(tokenizer), 9);
    ck_assert_str_eq(bt_tokenizer_chat_template(tokenizer), "yes");
    bt_tokenizer_close(tokenizer);
}
END_TEST

static void
check_refused(parts with, bt_err expected, const char *words)
{
    bt_tokenizer *tokenizer = NULL;
    long live = bt_mem_live();
    bt_why why = {{0}};

    ck_assert_int_eq(open_parts(&tokenizer, &with, &why), expected);
    ck_assert_msg(strstr(why.text, words) != NULL, "'%s' lacks '%s'", why.text, words);
    ck_assert_int_eq(bt_mem_live(), live);
}

START_TEST(what_is_not_supported_is_refused_by_name)
{
    check_refused((parts){.model = "{\"type\":\"WordPiece\",\"vocab\":{\"a\":0}}"}, BT_ERR_UNSUPPORTED, "'WordPiece'");
    check_refused((parts){.model = "{\"vocab\":{\"a\":0}}"}, BT_ERR_UNSUPPORTED, "'WordPiece'");
    check_refused((parts){.model = BPE(",\"end_of_word_suffix\":\"</w>\"")}, BT_ERR_UNSUPPORTED, "end_of_word_suffix");
    check_refused((parts){.normalizer = "{\"type\":\"Precompiled\"}"}, BT_ERR_UNSUPPORTED, "normalizer: 'Precompiled'");
    check_refused((parts){.pre_tokenizer = "{\"type\":\"BertPreTokenizer\"}"}, BT_ERR_UNSUPPORTED,
                  "'BertPreTokenizer'");
    check_refused((parts){.pre_tokenizer = SPLIT("Sideways", "false")}, BT_ERR_UNSUPPORTED, "'Sideways'");
    check_refused((parts){.pre_tokenizer = "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[a&&b]\"}}"},
                  BT_ERR_UNSUPPORTED, "intersection");
}
END_TEST

START_TEST(what_is_malformed_is_refused_with_its_place)
{
    check_refused((parts){.model = "[]"}, BT_ERR_INVALID, "model");
    check_refused((parts){.model = "{\"type\":\"BPE\",\"vocab\":{},\"merges\":[]}"}, BT_ERR_INVALID, "vocab");
    check_refused((parts){.model = "{\"type\":\"BPE\",\"vocab\":{\"a\":-1},\"merges\":[]}"}, BT_ERR_INVALID, "vocab.a");
    check_refused((parts){.model = "{\"type\":\"BPE\",\"vocab\":{\"a\":4294967295},\"merges\":[]}"}, BT_ERR_INVALID,
                  "vocab.a");
    check_refused((parts){.model = "{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a\"]}"}, BT_ERR_INVALID,
                  "merges[0]");
    check_refused((parts){.added = "[{\"id\":9}]"}, BT_ERR_INVALID, "content");
    check_refused((parts){.pre_tokenizer = "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(\"}}"}, BT_ERR_INVALID,
                  "regex");
    check_refused((parts){.pre_tokenizer = "{\"type\":\"Split\",\"pattern\":{\"String\":\"\"}}"}, BT_ERR_INVALID,
                  "empty");
    check_refused((parts){.config = "{"}, BT_ERR_INVALID, "");
}
END_TEST

START_TEST(a_regex_that_explodes_is_an_error_and_ends)
{
    bt_tokenizer *tokenizer = opened((parts){
        .pre_tokenizer = "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(a|aa|a.)+$\"},\"behavior\":\"Isolated\"}"});
    char text[202];
    int32_t ids[256];
    size_t count = 0;
    bt_why why;

    memset(text, 'a', 200);
    memcpy(text + 200, "b", 2);
    // The last b is taken by nothing, so every way to split the a's is tried.
    text[199] = '\n';
    memcpy(text + 199, "!b", 3);
    ck_assert_int_eq(bt_tokenizer_encode(tokenizer, bt_str_of(text), 0, ids, 256, &count, &why), BT_ERR_TOO_LONG);
    ck_assert_msg(strstr(why.text, "limit") != NULL, "%s", why.text);
    bt_tokenizer_close(tokenizer);
}
END_TEST

// How many allocations it takes to open this tokenizer: what is left of many that were counted down.
static unsigned
allocations_of(const parts *with)
{
    enum { MANY = 1 << 16 };
    bt_tokenizer *tokenizer = NULL;
    unsigned left = 0;
    void *memory;

    bt_mem_fail_nth(MANY);
    ck_assert_int_eq(open_parts(&tokenizer, with, NULL), BT_OK);
    bt_tokenizer_close(tokenizer);
    while ((memory = bt_alloc(1)) != NULL) {
        bt_free(memory);
        left++;
    }
    return MANY - 1 - left;
}

START_TEST(building_survives_any_allocation_that_fails)
{
    // Those of the parser come first and are left out: jansson 2.14 writes through NULL when one of its own fails.
    parts with = {
        .added = "[{\"id\":9,\"content\":\"<x>\",\"special\":true},{\"id\":10,\"content\":\"QQ\",\"normalized\":true}]",
        .normalizer = "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Lowercase\"},{\"type\":\"Replace\","
                      "\"pattern\":{\"Regex\":\"d\"},\"content\":\"c\"}]}",
        .pre_tokenizer = SPLIT("Isolated", "false")};
    unsigned all = allocations_of(&with), refused = 0;

    for (unsigned back = 0; back < 30; back++) {
        bt_tokenizer *tokenizer = NULL;
        long live = bt_mem_live();
        bt_err err;

        bt_mem_fail_nth(all - back);
        err = open_parts(&tokenizer, &with, NULL);
        bt_mem_fail_nth(0);
        ck_assert(err == BT_OK || err == BT_ERR_NO_MEMORY);
        refused += err != BT_OK;
        bt_tokenizer_close(tokenizer);
        ck_assert_int_eq(bt_mem_live(), live);
    }
    ck_assert_uint_ge(refused, 12);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("tokenizer_json");
    TCase *all = tcase_create("all");

    tcase_add_test(all, merges_are_read_as_strings_and_as_pairs);
    tcase_add_test(all, an_unknown_character_is_the_unknown_token_and_fused_when_so_said);
    tcase_add_test(all, a_word_that_is_a_token_is_not_merged_when_merges_are_ignored);
    tcase_add_test(all, unigram_is_read_with_its_scores);
    tcase_add_test(all, normalizers_do_what_their_names_say);
    tcase_add_test(all, splits_behave_as_they_are_told);
    tcase_add_test(all, pre_tokenizers_do_what_their_names_say);
    tcase_add_test(all, metaspace_marks_words_and_their_beginning);
    tcase_add_test(all, added_tokens_take_whitespace_and_keep_out_of_words_when_so_said);
    tcase_add_test(all, the_template_processor_tells_what_comes_first_and_the_config_overrides_it);
    tcase_add_test(all, what_is_not_supported_is_refused_by_name);
    tcase_add_test(all, what_is_malformed_is_refused_with_its_place);
    tcase_add_test(all, a_regex_that_explodes_is_an_error_and_ends);
    tcase_add_test(all, building_survives_any_allocation_that_fails);
    suite_add_tcase(suite, all);
    return bt_test_run(suite);
}
