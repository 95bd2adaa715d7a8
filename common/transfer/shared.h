// Memory that processes of one host read from each other: ours to write, theirs to map read-only.
//
// The pool is a memfd, so that nothing is left behind when its owner dies, sealed against shrinking, so that a reader's mapping stays
// whole; readers find it as /proc/PID/fd/N and make sure of it by a number that only this memory holds. Not by UCX's own shared
// memory: to unpack the key of an owner that has died since crashes UCX 1.13 (in its own clean-up), and its mapping may be written.
// Any thread.
#pragma once

#include "common/base/err.h"

#include <stddef.h>
#include <stdint.h>

typedef struct {
    uint64_t bytes; // without the page that holds the identity
    uint32_t pid, fd;
} bt_shared_key;

typedef struct {
    uint8_t *memory; // page-aligned, zeroed
    bt_shared_key key;
} bt_shared;

bt_err bt_shared_open(bt_shared *out, size_t bytes, uint64_t identity, bt_why *why);
void bt_shared_close(bt_shared *shared); // accepts a zeroed one

// BT_ERR_PEER: not reachable from here (another host or namespace, no permission, gone). Unmap with bt_shared_unmap.
bt_err bt_shared_map(const uint8_t **out, const bt_shared_key *key, uint64_t identity);
// Before much is read: maps its pages at once, which takes about 0.1 s a GiB. Who is only read from by others never does.
void bt_shared_prepare(const uint8_t *memory, const bt_shared_key *key);
void bt_shared_unmap(const uint8_t *memory, const bt_shared_key *key);
