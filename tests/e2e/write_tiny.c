// write_tiny PATH: the tiny model as a file. A test program, since what writes it asserts like one.
#include "tests/support/test.h"
#include "tests/support/tiny_gguf.h"

#include <stdio.h>

static const char *path;

START_TEST(model_is_written)
{
    bt_test_write_tiny_gguf(path);
}
END_TEST

int
main(int argc, char **argv)
{
    Suite *suite = suite_create("write_tiny");
    TCase *tests = tcase_create("write_tiny");

    if (argc != 2) {
        fprintf(stderr, "usage: write_tiny PATH\n");
        return 2;
    }
    path = argv[1];
    tcase_add_test(tests, model_is_written);
    suite_add_tcase(suite, tests);
    return bt_test_run(suite);
}
