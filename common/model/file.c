#include "common/model/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static bt_err
map(bt_file *out, int fd, const char *path, bt_why *why)
{
    struct stat info;
    void *data = NULL;

    if (fstat(fd, &info) != 0) {
        return bt_fail(why, BT_ERR_IO, "%s: %s", path, strerror(errno));
    }
    if (!S_ISREG(info.st_mode)) {
        return bt_fail(why, BT_ERR_INVALID, "%s: not a regular file", path);
    }
    if (info.st_size != 0) {
        data = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (data == MAP_FAILED) {
            return bt_fail(why, BT_ERR_IO, "%s: mmap: %s", path, strerror(errno));
        }
    }
    *out = (bt_file){data, (size_t)info.st_size};
    return BT_OK;
}

bt_err
bt_file_open(bt_file *out, const char *path, bt_why *why)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    bt_err err;

    if (fd < 0) {
        return bt_fail(why, errno == ENOENT ? BT_ERR_NOT_FOUND : BT_ERR_IO, "%s: %s", path, strerror(errno));
    }
    err = map(out, fd, path, why);
    close(fd);
    return err;
}

void
bt_file_close(bt_file *file)
{
    if (file->data != NULL) {
        munmap((void *)file->data, file->bytes);
    }
    *file = (bt_file){0};
}

void
bt_file_will_read(const bt_file *file, bt_file_reading what)
{
    if (file->data != NULL) {
        madvise((void *)file->data, file->bytes, what == BT_READ_ALL ? MADV_SEQUENTIAL : MADV_RANDOM);
    }
    if (file->data != NULL && what == BT_READ_ALL) {
        madvise((void *)file->data, file->bytes, MADV_WILLNEED);
    }
}

const char *
bt_printable(bt_str name, char out[72])
{
    size_t len = name.len < 64 ? name.len : 64;

    for (size_t i = 0; i < len; i++) {
        out[i] = name.data[i] >= 0x20 && name.data[i] < 0x7f ? name.data[i] : '?';
    }
    snprintf(out + len, 72 - len, "%s", name.len > 64 ? "…" : "");
    return out;
}
