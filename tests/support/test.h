// What the check programs share: a main of one line, and where the outside data lies.
#pragma once

#include <check.h>
#include <stdbool.h>
#include <stddef.h>

// Runs the suite and returns main's exit code: 0, 1, or 77 when every test was skipped.
int bt_test_run(Suite *suite);

// The folder of outside test data: $BATON_DATA, or ../shared/data beside the source root (one or two levels up); NULL
// where neither is there. A test that needs it begins with `if (bt_test_data() == NULL) { bt_test_skip("…"); return; }`.
const char *bt_test_data(void);

// Notes a test that could not run here: printed, and counted in the closing line of tests/run.sh.
void bt_test_skip(const char *what);

// A path below bt_test_data(), in one of a few static buffers.
const char *bt_test_path(const char *format, ...) __attribute__((format(printf, 1, 2)));

// The whole file, decompressed when it ends in .gz, NUL-terminated; fails the test when it cannot be read. Free with
// free().
char *bt_test_read(const char *path, size_t *bytes);

// Unpacks a .tar.gz into a new folder below /tmp, in a static buffer of one call; bt_test_remove deletes such a folder.
const char *bt_test_unpack(const char *archive);
void bt_test_remove(const char *folder);
