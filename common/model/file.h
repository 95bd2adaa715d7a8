// A file mapped for reading. The map does not follow the file: one that is cut short under us ends the process with
// SIGBUS, so weights are copied out of it at load and the map is closed before anything is served.
#pragma once

#include "common/base/err.h"
#include "common/base/str.h"

typedef struct {
    const uint8_t *data; // NULL for an empty file
    size_t bytes;
} bt_file;

// BT_ERR_NOT_FOUND, BT_ERR_IO with the system's own words; BT_ERR_INVALID for what is no regular file.
bt_err bt_file_open(bt_file *out, const char *path, bt_why *why);
void bt_file_close(bt_file *file); // accepts a zeroed one
// What is about to be read: all of it, in order, so that the system reads ahead; or bits here and there, so that it does not.
typedef enum { BT_READ_ALL, BT_READ_BITS } bt_file_reading;
void bt_file_will_read(const bt_file *file, bt_file_reading what);

// A name from a file for a message: at most 64 characters, and nothing that a terminal would obey. `out` holds 72 bytes.
const char *bt_printable(bt_str name, char out[72]);
