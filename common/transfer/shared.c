#include "common/transfer/shared.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAGE 4096
#define POPULATE_MAX ((size_t)8 << 30) // of a larger pool the pages are mapped as they are read
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

typedef struct {
    uint64_t magic, identity;
} last_page;

static const uint64_t magic = 0x6c6f6f702d766b62u; // "bkv-pool"

static size_t
mapped_bytes(size_t bytes)
{
    return (bytes + PAGE - 1) / PAGE * PAGE + PAGE;
}

bt_err
bt_shared_open(bt_shared *out, size_t bytes, uint64_t identity, bt_why *why)
{
    size_t all = mapped_bytes(bytes);
    int fd = memfd_create("baton-kv", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    uint8_t *memory = MAP_FAILED;
    last_page last = {magic, identity};

    // fallocate: that the memory is there is known now, and not by a SIGBUS later.
    if (fd < 0 || fallocate(fd, 0, 0, (off_t)all) != 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0 ||
        (memory = mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0)) == MAP_FAILED) {
        bt_err err = errno == ENOMEM || errno == ENOSPC ? BT_ERR_NO_MEMORY : BT_ERR_IO;

        bt_fail(why, err, "transfer: shared memory of %zu bytes: %s", all, strerror(errno));
        if (fd >= 0) {
            close(fd);
        }
        return err;
    }
    memcpy(memory + all - PAGE, &last, sizeof last);
    *out = (bt_shared){memory, {bytes, (uint32_t)getpid(), (uint32_t)fd}};
    return BT_OK;
}

void
bt_shared_close(bt_shared *shared)
{
    if (shared->memory != NULL) {
        munmap(shared->memory, mapped_bytes(shared->key.bytes));
        close((int)shared->key.fd);
        shared->memory = NULL;
    }
}

// Opened without waiting, in case it is something else by now; looked at before it is mapped.
static uint8_t *
map_fd(int fd, size_t all, uint64_t identity)
{
    struct stat info;
    last_page last;
    uint8_t *memory;

    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size != (off_t)all ||
        (fcntl(fd, F_GET_SEALS) & F_SEAL_SHRINK) == 0 ||
        pread(fd, &last, sizeof last, (off_t)(all - PAGE)) != sizeof last || last.magic != magic ||
        last.identity != identity) {
        return NULL;
    }
    memory = mmap(NULL, all, PROT_READ, MAP_SHARED, fd, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

bt_err
bt_shared_map(const uint8_t **out, const bt_shared_key *key, uint64_t identity)
{
    uint8_t *memory;
    char path[64];
    int fd;

    if (key->bytes > SIZE_MAX / 4) {
        return BT_ERR_PEER;
    }
    snprintf(path, sizeof path, "/proc/%u/fd/%u", key->pid, key->fd);
    if ((fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)) < 0) {
        return BT_ERR_PEER;
    }
    memory = map_fd(fd, mapped_bytes(key->bytes), identity);
    close(fd);
    if (memory == NULL) {
        return BT_ERR_PEER;
    }
    *out = memory;
    return BT_OK;
}

void
bt_shared_prepare(const uint8_t *memory, const bt_shared_key *key)
{
    size_t all = mapped_bytes(key->bytes);

    // Where the kernel does not know this, pages are mapped as they are read.
    if (all <= POPULATE_MAX)
        (void)madvise((void *)(uintptr_t)memory, all, MADV_POPULATE_READ);
}

void
bt_shared_unmap(const uint8_t *memory, const bt_shared_key *key)
{
    if (memory != NULL) {
        munmap((void *)(uintptr_t)memory, mapped_bytes(key->bytes));
    }
}
