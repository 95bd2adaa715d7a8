#include "common/wire/message.h"
#include "tests/support/test.h"

#include <stdlib.h>
#include <string.h>

static const bt_sampling sampling = {.seed = 42, .repetition_penalty = 1};

static bt_message
a_reserve(const int32_t *ids)
{
    bt_message message = {.kind = BT_MESSAGE_RESERVE};

    message.reserve = (bt_job){.request = {1, 2, 3},
                               .ids = ids,
                               .prompt_count = 2,
                               .answer_count = 1,
                               .max_tokens = 4,
                               .sampling = &sampling,
                               .time_left = BT_TIME_NEVER};
    return message;
}

START_TEST(a_copied_job_owns_its_ids_and_sampling)
{
    int32_t ids[3] = {7, 8, 9};
    bt_message message = a_reserve(ids);
    size_t size = bt_message_size(&message);
    void *memory = aligned_alloc(16, size);
    bt_message *copy = bt_message_copy(memory, &message);

    memset(ids, 0, sizeof ids);
    ck_assert_uint_eq(size % 16, 0);
    ck_assert(copy == memory);
    ck_assert_int_eq(copy->reserve.ids[2], 9);
    ck_assert_uint_eq(copy->reserve.sampling->seed, 42);
    ck_assert_uint_eq(copy->reserve.request.attempt, 3);
    ck_assert((const char *)(copy->reserve.ids + 3) <= (const char *)memory + size);
    ck_assert((const char *)(copy->reserve.sampling + 1) <= (const char *)memory + size);
    free(memory);
}
END_TEST

START_TEST(copied_tokens_own_entries_results_and_scores)
{
    bt_token_result results[2] = {{.id = 1}, {.id = 2}}, scored[1] = {{.id = 3}};
    bt_tokens_entry entries[2] = {{.count = 2, .results = results}, {.scored_count = 1, .scored = scored}};
    bt_message message = {.kind = BT_MESSAGE_TOKENS, .tokens = {1, 2, entries}};
    void *memory = aligned_alloc(16, bt_message_size(&message));
    bt_message *copy = bt_message_copy(memory, &message);

    memset(results, 0, sizeof results);
    memset(scored, 0, sizeof scored);
    memset(entries, 0, sizeof entries);
    ck_assert_uint_eq(copy->tokens.entry_count, 2);
    ck_assert_int_eq(copy->tokens.entries[0].results[1].id, 2);
    ck_assert_int_eq(copy->tokens.entries[1].scored[0].id, 3);
    ck_assert_ptr_null(copy->tokens.entries[1].results);
    free(memory);
}
END_TEST

START_TEST(jobs_outside_their_limits_are_refused)
{
    static const int32_t ids[3] = {7, 8, 9};
    bt_sampling wild = sampling;
    bt_message good = a_reserve(ids), bad;

    ck_assert_int_eq(bt_message_check(&good), BT_OK);
    bad = good;
    bad.reserve.prompt_count = 0;
    ck_assert_int_eq(bt_message_check(&bad), BT_ERR_INVALID);
    bad = good;
    bad.reserve.prompt_count = UINT32_MAX;
    ck_assert_int_eq(bt_message_check(&bad), BT_ERR_INVALID);
    bad = good;
    bad.reserve.answer_count = 5; // more than it may have
    ck_assert_int_eq(bt_message_check(&bad), BT_ERR_INVALID);
    bad = good;
    bad.reserve.end_count = BT_END_IDS_MAX + 1;
    ck_assert_int_eq(bt_message_check(&bad), BT_ERR_INVALID);
    bad = good;
    wild.bias_count = BT_LOGIT_BIAS_MAX + 1;
    bad.reserve.sampling = &wild;
    ck_assert_int_eq(bt_message_check(&bad), BT_ERR_INVALID);
}
END_TEST

START_TEST(other_messages_outside_their_limits_are_refused)
{
    bt_token_result result = {.top_count = BT_TOP_LOGPROBS_MAX + 1};
    bt_tokens_entry entry = {.count = 1, .results = &result};
    bt_message tokens = {.kind = BT_MESSAGE_TOKENS, .tokens = {1, 1, &entry}};
    bt_message hello = {.kind = BT_MESSAGE_HELLO}, strange = {.kind = BT_MESSAGE_KINDS};

    ck_assert_int_eq(bt_message_check(&tokens), BT_ERR_INVALID);
    result.top_count = 0;
    ck_assert_int_eq(bt_message_check(&tokens), BT_OK);
    entry.results = NULL;
    ck_assert_int_eq(bt_message_check(&tokens), BT_ERR_INVALID);
    tokens.tokens.entry_count = BT_MESSAGE_ENTRIES_MAX + 1;
    ck_assert_int_eq(bt_message_check(&tokens), BT_ERR_INVALID);
    ck_assert_int_eq(bt_message_check(&hello), BT_ERR_INVALID); // no epoch
    ck_assert_int_eq(bt_message_check(&strange), BT_ERR_INVALID);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("message");
    TCase *all = tcase_create("all");

    tcase_add_test(all, a_copied_job_owns_its_ids_and_sampling);
    tcase_add_test(all, copied_tokens_own_entries_results_and_scores);
    tcase_add_test(all, jobs_outside_their_limits_are_refused);
    tcase_add_test(all, other_messages_outside_their_limits_are_refused);
    suite_add_tcase(suite, all);
    return bt_test_run(suite);
}
