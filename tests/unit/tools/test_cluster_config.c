// The cluster's file: what its programs get from it, and what is said of files that are wrong. tests/data/config/bad holds one defect a
// file, with the words that are expected after the file's name in its first line.
#include "tests/support/test.h"

#include "tools/cluster_config.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define GOOD "tests/data/config/good.yaml"
#define BAD "tests/data/config/bad"

static bt_cluster_config c, again;
static bt_why why;

static bt_err
read_as(const char *path, bt_node_role role, const char *name, const char *set)
{
    why.text[0] = 0;
    return bt_cluster_config_read(
        &c, &(bt_cluster_ask){.path = path, .role = role, .name = name, .sets = &set, .set_count = set != NULL}, &why);
}

static void
must(bt_err err)
{
    ck_assert_msg(err == BT_OK, "%s", why.text);
}

START_TEST(the_nearest_setting_wins)
{
    must(read_as(GOOD, BT_NODE_PREFILL, "p2", "engine.context=99"));
    ck_assert_uint_eq(c.router_count, 2);
    ck_assert_uint_eq(c.prefill_count, 2);
    ck_assert_uint_eq(c.decode_count, 1);
    ck_assert_str_eq(bt_cluster_node(&c)->name, "p2");
    ck_assert_uint_eq(c.prefill[0].engine.threads, 8);         // node over pool and file
    ck_assert_uint_eq(c.prefill[1].engine.threads, 4);         // file
    ck_assert_uint_eq(c.decode[0].engine.threads, 2);          // pool over file
    ck_assert_uint_eq(c.prefill[1].engine.chunk_tokens, 1024); // pool, beside a node's own engine settings
    ck_assert_uint_eq(c.prefill[1].engine.max_sequences, 4);
    ck_assert_uint_eq(c.decode[0].engine.chunk_tokens, 512); // default
    ck_assert_uint_eq(c.decode[0].engine.kv_blocks, 4096);
    ck_assert_str_eq(c.decode[0].model, "/other/x.gguf");
    ck_assert_str_eq(c.prefill[0].model, "/models/x.gguf");
    ck_assert_str_eq(c.routers[1].cluster.secret, "opensesame");
    ck_assert_uint_eq(c.routers[0].placement.remote_tokens_min, 256);
    ck_assert_uint_eq(c.routers[1].http.calls, 64);
    ck_assert_int_eq(c.prefill[0].role, BT_NODE_PREFILL);
    ck_assert_int_eq(c.decode[0].role, BT_NODE_DECODE);
    // --set: of the program that runs, and of no other.
    ck_assert_uint_eq(c.prefill[1].engine.context, 99);
    ck_assert_uint_eq(c.prefill[0].engine.context, 0);
}
END_TEST

START_TEST(a_node_names_the_device_it_runs_on)
{
    bt_engine_options options;

    must(read_as(GOOD, BT_NODE_DECODE, NULL, "device=cuda:1"));
    options = bt_engine_settings_options(&c.decode[0].engine, "x");
    ck_assert_int_eq(options.device.kind, BT_DEVICE_CUDA);
    ck_assert_uint_eq(options.device.index, 1);
    ck_assert_int_eq(bt_engine_settings_options(&c.prefill[0].engine, "x").device.kind, BT_DEVICE_CPU);
    ck_assert(options.model.rounded && !bt_engine_settings_options(&c.prefill[0].engine, "x").model.rounded);
    must(read_as(GOOD, BT_NODE_DECODE, NULL, "cuda.activations=f32")); // a CPU's numbers anywhere
    memcpy(c.decode[0].engine.device, "cuda:1", 7);
    ck_assert(!bt_engine_settings_options(&c.decode[0].engine, "x").model.rounded);
    ck_assert_int_eq(read_as(GOOD, BT_NODE_DECODE, NULL, "device=gpu"), BT_ERR_INVALID);
    ck_assert_msg(strstr(why.text, "expected cpu or cuda:N, not 'gpu'") != NULL, "%s", why.text);
}
END_TEST

START_TEST(a_link_listens_where_others_dial_it_unless_told_otherwise)
{
    bt_cluster_addresses addresses;
    bt_nng_link_options options;

    must(read_as(GOOD, BT_NODE_PREFILL, "p1", NULL));
    options = bt_cluster_link(&c, &addresses);
    ck_assert_uint_eq(options.dial_count, 0);
    ck_assert_uint_eq(options.listen_count, 1);
    ck_assert_str_eq(options.listen[0], "tcp://10.0.0.11:7100");
    ck_assert_uint_ge(options.accepted_max, 3);
    must(read_as(GOOD, BT_NODE_PREFILL, "p2", NULL));
    ck_assert_str_eq(bt_cluster_link(&c, &addresses).listen[0], "tcp://0.0.0.0:7100");
}
END_TEST

START_TEST(routers_dial_all_nodes_and_decode_nodes_the_prefill_nodes)
{
    bt_cluster_addresses addresses;
    bt_nng_link_options options;

    must(read_as(GOOD, BT_NODE_ROUTER, "r2", NULL));
    options = bt_cluster_link(&c, &addresses);
    ck_assert_uint_eq(options.dial_count, 3);
    ck_assert_str_eq(options.dial[0].url, "tcp://10.0.0.11:7100");
    ck_assert_str_eq(options.dial[1].url, "tcp://10.0.0.12:7100");
    ck_assert_str_eq(options.dial[2].url, "tcp://10.0.0.21:7100");
    ck_assert_uint_eq(options.listen_count, 0);
    ck_assert_str_eq(options.secret, "opensesame");
    must(read_as(GOOD, BT_NODE_DECODE, NULL, NULL));
    options = bt_cluster_link(&c, &addresses);
    ck_assert_uint_eq(options.dial_count, 2);
    ck_assert_str_eq(options.dial[1].url, "tcp://10.0.0.12:7100");
    ck_assert_str_eq(options.listen[0], "tcp://10.0.0.21:7100");
}
END_TEST

START_TEST(a_program_is_found_by_its_name)
{
    ck_assert_int_eq(read_as(GOOD, BT_NODE_ROUTER, NULL, NULL), BT_ERR_NOT_FOUND);
    ck_assert_str_eq(why.text, GOOD ": routers: which of its nodes? --name one of r1, r2");
    ck_assert_int_eq(read_as(GOOD, BT_NODE_PREFILL, "d1", NULL), BT_ERR_NOT_FOUND);
    ck_assert_str_eq(why.text, GOOD ": prefill: has no node \"d1\", but p1, p2");
    ck_assert_int_eq(read_as("tests/data/config/none.yaml", BT_NODE_ROUTER, NULL, NULL), BT_ERR_IO);
}
END_TEST

START_TEST(a_set_that_is_wrong_names_itself)
{
    ck_assert_int_eq(read_as(GOOD, BT_NODE_DECODE, NULL, "kv.blokcs=3"), BT_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(why.text, "did you mean \"kv.blocks\"?"));
    ck_assert_int_eq(read_as(GOOD, BT_NODE_DECODE, NULL, "link=nowhere"), BT_ERR_INVALID);
    ck_assert_msg(strncmp(why.text, "--set link: link: \"nowhere\" is not", 34) == 0, "%s", why.text);
    ck_assert_int_eq(read_as(GOOD, BT_NODE_DECODE, NULL, "placement.exact=false"), BT_ERR_INVALID);
}
END_TEST

START_TEST(a_wrong_file_is_told_its_line_and_what_was_expected)
{
    DIR *folder = opendir(BAD);
    struct dirent *item;
    unsigned files = 0, wrong = 0;

    ck_assert_ptr_nonnull(folder);
    while ((item = readdir(folder)) != NULL) {
        char path[300], expected[640], *words;
        size_t bytes;

        if (item->d_name[0] == '.') {
            continue;
        }
        snprintf(path, sizeof path, BAD "/%s", item->d_name);
        words = bt_test_read(path, &bytes);
        words[strcspn(words, "\n")] = 0;
        snprintf(expected, sizeof expected, "%s:%.300s", path, words + 2);
        free(words);
        if (bt_cluster_config_read(&c,
                                   &(bt_cluster_ask){.path = path, .role = BT_NODE_ROUTER, .name = "r1", .here = true},
                                   &why) != BT_ERR_INVALID ||
            strncmp(why.text, expected, strlen(expected)) != 0) {
            printf("expected %s\n     got %s\n", expected, why.text);
            wrong++;
        }
        files++;
    }
    closedir(folder);
    ck_assert_uint_eq(wrong, 0);
    ck_assert_uint_ge(files, 33);
}
END_TEST

static void
print(bt_buf *out)
{
    bt_buf_init(out, 1 << 20);
    bt_cluster_config_print(&c, out);
    ck_assert(!out->failed);
    bt_buf_append_char(out, 0);
}

START_TEST(what_is_printed_reads_back_the_same)
{
    char path[] = "/tmp/baton-config-XXXXXX";
    int fd = mkstemp(path);
    bt_buf first, second;

    ck_assert_int_ge(fd, 0);
    must(read_as(GOOD, BT_NODE_PREFILL, "p2", "engine.context=99"));
    again = c;
    print(&first);
    ck_assert_int_eq(write(fd, first.data, first.len - 1), (ssize_t)first.len - 1);
    close(fd);
    must(read_as(path, BT_NODE_PREFILL, "p2", NULL));
    unlink(path);
    print(&second);
    ck_assert_str_eq(first.data, second.data);
    ck_assert_mem_eq(&c, &again, sizeof c);
    // What all share is said once, for all.
    ck_assert_msg(strstr(first.data, "\ncluster:\n") != NULL && strstr(first.data, "opensesame") != NULL &&
                      strstr(strstr(first.data, "opensesame") + 1, "opensesame") == NULL,
                  "%s", first.data);
    bt_buf_fini(&first);
    bt_buf_fini(&second);
}
END_TEST

// ---- the program's own files ----

static char folder[32];

static void
set_up(void)
{
    strcpy(folder, "/tmp/baton-secret-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
}

static void
tear_down(void)
{
    char command[64];

    snprintf(command, sizeof command, "rm -r %s", folder);
    ck_assert_int_eq(system(command), 0);
}

static void
put(const char *name, const char *text, mode_t mode)
{
    char path[128];
    FILE *file;

    snprintf(path, sizeof path, "%s/%s", folder, name);
    file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    fputs(text, file);
    fclose(file);
    ck_assert_int_eq(chmod(path, mode), 0);
}

static bt_err
read_here(const char *secret, const char *model)
{
    char yaml[1024], path[128];

    snprintf(yaml, sizeof yaml,
             "cluster:\n  secret_file: %s/%s\nmodel:\n  path: %s/%s\nrouters:\n  nodes: [{name: r1}]\n"
             "decode:\n  nodes: [{name: d1, link: 'tcp://127.0.0.1:7100'}]\n",
             folder, secret, folder, model);
    put("c.yaml", yaml, 0644);
    snprintf(path, sizeof path, "%s/c.yaml", folder);
    why.text[0] = 0;
    return bt_cluster_config_read(&c, &(bt_cluster_ask){.path = path, .role = BT_NODE_ROUTER, .here = true}, &why);
}

START_TEST(the_secret_is_read_from_a_file_that_only_its_owner_can_read)
{
    put("model", "x", 0644);
    put("secret", "open sesame\n", 0600);
    must(read_here("secret", "model"));
    ck_assert_str_eq(c.routers[0].cluster.secret, "open sesame");
    ck_assert_str_eq(c.decode[0].cluster.secret, ""); // only the program that runs reads it
}
END_TEST

START_TEST(a_secret_file_that_cannot_be_used_is_named_with_the_reason)
{
    static const struct {
        const char *name, *text;
        mode_t mode;
        const char *words;
    } cases[] = {
        {"others", "s\n", 0604, "only its owner can read (chmod 600), found mode 604"},
        {"group", "s\n", 0640, "only its owner can read (chmod 600), found mode 640"},
        {"empty", "", 0600, "expected a secret in its first line, found none"},
        {"blank", "\n\nx", 0600, "expected a secret in its first line, found none"},
        {"long",
         "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789012345678"
         "9"
         "012345678901234567890",
         0600, "one line of at most 128 bytes"},
    };
    char place[128];

    put("model", "x", 0644);
    snprintf(place, sizeof place, "%s/c.yaml:2:16: cluster.secret_file: ", folder);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        put(cases[i].name, cases[i].text, cases[i].mode);
        ck_assert_int_eq(read_here(cases[i].name, "model"), BT_ERR_INVALID);
        ck_assert_msg(strncmp(why.text, place, strlen(place)) == 0 && strstr(why.text, cases[i].words) != NULL, "%s",
                      why.text);
    }
    ck_assert_int_eq(read_here("nothing", "model"), BT_ERR_INVALID);
    ck_assert_msg(strstr(why.text, "No such file") != NULL, "%s", why.text);
    ck_assert_int_eq(read_here(".", "model"), BT_ERR_INVALID);
    ck_assert_msg(strstr(why.text, "expected a plain file") != NULL, "%s", why.text);
}
END_TEST

static bt_err
read_open(const char *link, const char *set)
{
    char yaml[512], path[128];

    snprintf(yaml, sizeof yaml,
             "cluster: {secret: s}\nmodel: {path: %s/model}\nrouters: {nodes: [{name: r1}]}\n"
             "decode: {nodes: [{name: d1, link: '%s'}]}\n",
             folder, link);
    put("model", "x", 0644);
    put("c.yaml", yaml, 0644);
    snprintf(path, sizeof path, "%s/c.yaml", folder);
    why.text[0] = 0;
    return bt_cluster_config_read(
        &c,
        &(bt_cluster_ask){.path = path, .role = BT_NODE_ROUTER, .sets = &set, .set_count = set != NULL, .here = true},
        &why);
}

START_TEST(a_secret_in_a_file_that_others_can_read_is_for_one_machine)
{
    char path[128];

    ck_assert_int_eq(read_open("tcp://10.0.0.1:7100", NULL), BT_ERR_INVALID);
    ck_assert_msg(strstr(why.text, "c.yaml:1:19: cluster.secret: others can read this file (mode 644)") != NULL, "%s",
                  why.text);
    must(read_open("tcp://10.0.0.1:7100", "cluster.secret=t"));
    must(read_open("tcp://127.0.0.1:7100", NULL));
    must(read_open("ipc:///run/d1", NULL));
    ck_assert_int_eq(read_open("tcp://127.example.org:7100", NULL), BT_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(why.text, "others can read"));
    // Its owner's alone:
    ck_assert_int_eq(read_open("tcp://10.0.0.1:7100", NULL), BT_ERR_INVALID);
    snprintf(path, sizeof path, "%s/c.yaml", folder);
    ck_assert_int_eq(chmod(path, 0600), 0);
    must(bt_cluster_config_read(&c, &(bt_cluster_ask){.path = path, .role = BT_NODE_ROUTER, .here = true}, &why));
}
END_TEST

START_TEST(a_model_that_is_not_there_is_named)
{
    put("secret", "s", 0600);
    ck_assert_int_eq(read_here("secret", "nothing.gguf"), BT_ERR_INVALID);
    ck_assert_msg(strstr(why.text, "c.yaml:4:9: model.path: ") != NULL && strstr(why.text, "No such file") != NULL,
                  "%s", why.text);
}
END_TEST

START_TEST(nodes_on_gpus_of_one_host_meet_there_and_all_others_in_host_memory)
{
    must(read_as("tests/data/config/gpus.yaml", BT_NODE_PREFILL, "p1", NULL));
    ck_assert_int_eq(bt_cluster_direct(&c, &c.prefill[0]), BT_MACHINE_DIRECT); // d1 and d2; d3 is elsewhere
    ck_assert_int_eq(bt_cluster_direct(&c, &c.prefill[1]), BT_MACHINE_STAGED); // as it is told
    ck_assert_int_eq(bt_cluster_direct(&c, &c.prefill[2]), BT_MACHINE_STAGED); // a CPU
    ck_assert_int_eq(bt_cluster_direct(&c, &c.decode[0]), BT_MACHINE_DIRECT);  // p1, and the others by host memory
    ck_assert_int_eq(bt_cluster_direct(&c, &c.decode[1]), BT_MACHINE_DIRECT_ONLY);
    ck_assert_int_eq(bt_cluster_direct(&c, &c.decode[2]), BT_MACHINE_STAGED); // nobody is near
    c.decode_count = 2;
    ck_assert_int_eq(bt_cluster_direct(&c, &c.prefill[0]), BT_MACHINE_DIRECT_ONLY);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("cluster_config");
    TCase *tests = tcase_create("file"), *here = tcase_create("here");

    tcase_add_test(tests, nodes_on_gpus_of_one_host_meet_there_and_all_others_in_host_memory);
    tcase_add_test(tests, the_nearest_setting_wins);
    tcase_add_test(tests, a_node_names_the_device_it_runs_on);
    tcase_add_test(tests, a_link_listens_where_others_dial_it_unless_told_otherwise);
    tcase_add_test(tests, routers_dial_all_nodes_and_decode_nodes_the_prefill_nodes);
    tcase_add_test(tests, a_program_is_found_by_its_name);
    tcase_add_test(tests, a_set_that_is_wrong_names_itself);
    tcase_add_test(tests, a_wrong_file_is_told_its_line_and_what_was_expected);
    tcase_add_test(tests, what_is_printed_reads_back_the_same);
    tcase_add_checked_fixture(here, set_up, tear_down);
    tcase_add_test(here, the_secret_is_read_from_a_file_that_only_its_owner_can_read);
    tcase_add_test(here, a_secret_file_that_cannot_be_used_is_named_with_the_reason);
    tcase_add_test(here, a_secret_in_a_file_that_others_can_read_is_for_one_machine);
    tcase_add_test(here, a_model_that_is_not_there_is_named);
    suite_add_tcase(suite, tests);
    suite_add_tcase(suite, here);
    return bt_test_run(suite);
}
