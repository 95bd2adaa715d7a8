// An HTTP/1.1 answer as it arrives, in whatever pieces: status, then the events of its stream (or its body whole).
// Reads bytes and keeps none but the line it is in; knows no socket. For load generators and tests of servers.
#pragma once

#include "common/base/str.h"

#include <stdint.h>

#define BT_SSE_LINE_MAX 65536

typedef struct {
    int phase; // of the reader itself
    int status;
    bool chunked, closes, streams; // closes: the connection ends with this answer
    bool done, failed;             // failed: not HTTP, or larger than a line may be
    uint64_t left;                 // bytes of the body, or of its chunk
    bool sized;                    // Content-Length was there
    size_t frame_len, line_len;
    char frame[8192]; // status, headers, chunk sizes
    char line[BT_SSE_LINE_MAX];
} bt_sse_reader;

void bt_sse_reader_init(bt_sse_reader *reader);

// Reads up to the end of one answer; returns how many bytes that took. `on_data` gets the data of each event, without
// "data: "; of an answer that is no stream it gets the body line by line.
size_t bt_sse_read(bt_sse_reader *reader, const char *bytes, size_t len, void (*on_data)(void *self, bt_str data),
                   void *self);
// The other side has closed: done if the answer could end so, else failed.
void bt_sse_read_end(bt_sse_reader *reader);
