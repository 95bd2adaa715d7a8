#include "tests/support/test.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int skipped;

int
bt_test_run(Suite *suite)
{
    SRunner *runner = srunner_create(suite);
    int failed;

    srunner_set_fork_status(runner, getenv("CK_FORK") != NULL ? CK_FORK_GETENV : CK_NOFORK);
    srunner_run_all(runner, CK_NORMAL);
    failed = srunner_ntests_failed(runner);
    if (skipped != 0) {
        printf("%d skipped here\n", skipped);
    }
    if (failed == 0 && skipped != 0 && srunner_ntests_run(runner) == skipped) {
        failed = -1;
    }
    srunner_free(runner);
    return failed == 0 ? 0 : failed < 0 ? 77 : 1;
}

const char *
bt_test_data(void)
{
    static char found[512];
    static const char *const places[] = {"../shared/data", "../../shared/data"};
    const char *set = getenv("BATON_DATA");

    if (set != NULL) {
        return set;
    }
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        if (access(places[i], R_OK) == 0) {
            snprintf(found, sizeof found, "%s", places[i]);
            return found;
        }
    }
    return NULL;
}

void
bt_test_skip(const char *what)
{
    skipped++;
    printf("skipped: %s\n", what);
}

const char *
bt_test_path(const char *format, ...)
{
    static char paths[4][1024];
    static unsigned turn;
    char *path = paths[turn++ % 4];
    int used = snprintf(path, sizeof paths[0], "%s/", bt_test_data());
    va_list args;

    va_start(args, format);
    vsnprintf(path + used, sizeof paths[0] - (size_t)used, format, args);
    va_end(args);
    return path;
}

char *
bt_test_read(const char *path, size_t *bytes)
{
    char command[1200];
    size_t len = strlen(path), used = 0, cap = 1 << 16, got;
    bool packed = len > 3 && strcmp(path + len - 3, ".gz") == 0;
    char *data = malloc(cap);
    FILE *file;

    snprintf(command, sizeof command, "gzip -dc '%s'", path);
    file = packed ? popen(command, "r") : fopen(path, "rb");
    ck_assert_msg(file != NULL && data != NULL, "%s: cannot be read", path);
    while ((got = fread(data + used, 1, cap - used - 1, file)) != 0) {
        used += got;
        if (used + 1 == cap) {
            data = realloc(data, cap *= 2);
        }
    }
    data[used] = 0;
    ck_assert_msg((packed ? pclose(file) : fclose(file)) == 0, "%s: cannot be read", path);
    if (bytes != NULL) {
        *bytes = used;
    }
    return data;
}

const char *
bt_test_unpack(const char *archive)
{
    static char folder[64];
    char command[1300];

    snprintf(folder, sizeof folder, "/tmp/baton-test-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(command, sizeof command, "tar xzf '%s' -C %s", archive, folder);
    ck_assert_msg(system(command) == 0, "%s: cannot be unpacked", archive);
    return folder;
}

void
bt_test_remove(const char *folder)
{
    char command[128];

    ck_assert(strncmp(folder, "/tmp/baton-test-", 16) == 0);
    snprintf(command, sizeof command, "rm -r %s", folder);
    ck_assert_int_eq(system(command), 0);
}
