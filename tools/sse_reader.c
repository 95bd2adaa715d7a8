#include "tools/sse_reader.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum { STATUS, HEADERS, BODY, CHUNK_SIZE, CHUNK, CHUNK_END, TRAILER };

typedef struct {
    void (*on_data)(void *self, bt_str data);
    void *self;
} listener;

void
bt_sse_reader_init(bt_sse_reader *reader)
{
    memset(reader, 0, offsetof(bt_sse_reader, frame));
}

static void
fail(bt_sse_reader *r)
{
    r->failed = r->done = true;
}

static bool
header_is(const char *line, const char *name, const char **value)
{
    size_t len = strlen(name);

    if (strncasecmp(line, name, len) != 0 || line[len] != ':') {
        return false;
    }
    *value = line + len + 1 + strspn(line + len + 1, " \t");
    return true;
}

static void
read_status(bt_sse_reader *r)
{
    if (strncmp(r->frame, "HTTP/1.", 7) != 0 || strlen(r->frame) < 12) {
        fail(r);
        return;
    }
    r->status = atoi(r->frame + 9);
    r->closes = r->frame[7] == '0';
    r->phase = HEADERS;
}

static void
end_headers(bt_sse_reader *r)
{
    if (r->status >= 100 && r->status < 200) {
        r->phase = STATUS; // 100 Continue: the answer is still to come
        return;
    }
    r->phase = r->chunked ? CHUNK_SIZE : BODY;
    r->done = !r->chunked && ((r->sized && r->left == 0) || r->status == 204 || r->status == 304);
    r->closes |= !r->chunked && !r->sized;
}

static void
read_header(bt_sse_reader *r)
{
    const char *value;

    if (r->frame_len == 0) {
        end_headers(r);
    } else if (header_is(r->frame, "Content-Length", &value)) {
        r->left = strtoull(value, NULL, 10);
        r->sized = true;
    } else if (header_is(r->frame, "Transfer-Encoding", &value)) {
        r->chunked = strcasestr(value, "chunked") != NULL;
    } else if (header_is(r->frame, "Content-Type", &value)) {
        r->streams = strncasecmp(value, "text/event-stream", 17) == 0;
    } else if (header_is(r->frame, "Connection", &value)) {
        r->closes |= strcasestr(value, "close") != NULL;
    }
}

static void
read_chunk_size(bt_sse_reader *r)
{
    char *end;

    r->left = strtoull(r->frame, &end, 16);
    if (end == r->frame) {
        fail(r);
    } else {
        r->phase = r->left != 0 ? CHUNK : TRAILER;
    }
}

// A line of what frames the body.
static void
end_frame_line(bt_sse_reader *r)
{
    switch (r->phase) {
    case STATUS:
        read_status(r);
        break;
    case HEADERS:
        read_header(r);
        break;
    case CHUNK_SIZE:
        read_chunk_size(r);
        break;
    case CHUNK_END:
        r->phase = CHUNK_SIZE;
        break;
    default:
        r->done |= r->frame_len == 0;
    }
}

static void
end_body_line(bt_sse_reader *r, const listener *to)
{
    bt_str line = {r->line, r->line_len};

    if (line.len == 0 || (r->streams && line.len < 5) || (r->streams && memcmp(line.data, "data:", 5) != 0)) {
        return; // between events, or a comment
    }
    if (r->streams) {
        size_t skip = 5 + (line.len > 5 && line.data[5] == ' ');

        line = (bt_str){line.data + skip, line.len - skip};
    }
    to->on_data(to->self, line);
}

// Appends up to and with a line's end; true when the line is whole.
static bool
take_line(bt_sse_reader *r, char *line, size_t cap, size_t *line_len, bt_str bytes, size_t *taken)
{
    const char *end = memchr(bytes.data, '\n', bytes.len);
    size_t count = end != NULL ? (size_t)(end - bytes.data) : bytes.len;

    *taken = count + (end != NULL);
    if (count >= cap - *line_len) {
        fail(r);
        return false;
    }
    memcpy(line + *line_len, bytes.data, count);
    *line_len += count;
    if (end == NULL) {
        return false;
    }
    *line_len -= *line_len != 0 && line[*line_len - 1] == '\r';
    line[*line_len] = 0;
    return true;
}

// A line that a chunk leaves unfinished goes on in the next one.
static size_t
read_body(bt_sse_reader *r, const char *bytes, size_t len, const listener *to)
{
    size_t taken, room = r->chunked || r->sized ? (size_t)(r->left < len ? r->left : len) : len;

    if (take_line(r, r->line, sizeof r->line, &r->line_len, (bt_str){bytes, room}, &taken)) {
        end_body_line(r, to);
        r->line_len = 0;
    }
    r->left -= r->chunked || r->sized ? taken : 0;
    if (r->chunked && r->left == 0) {
        r->phase = CHUNK_END;
    } else if (r->sized && !r->chunked && r->left == 0) {
        r->line[r->line_len] = 0;
        end_body_line(r, to); // a body without a last line end
        r->done = true;
    }
    return taken;
}

static size_t
read_frame(bt_sse_reader *r, const char *bytes, size_t len)
{
    size_t taken;

    if (take_line(r, r->frame, sizeof r->frame, &r->frame_len, (bt_str){bytes, len}, &taken)) {
        end_frame_line(r);
        r->frame_len = 0;
    }
    return taken;
}

size_t
bt_sse_read(bt_sse_reader *r, const char *bytes, size_t len, void (*on_data)(void *self, bt_str data), void *self)
{
    listener to = {on_data, self};
    size_t used = 0;

    while (used < len && !r->done) {
        used += r->phase == BODY || r->phase == CHUNK ? read_body(r, bytes + used, len - used, &to)
                                                      : read_frame(r, bytes + used, len - used);
    }
    return used;
}

void
bt_sse_read_end(bt_sse_reader *r)
{
    if (!r->done) {
        r->failed = !(r->phase == BODY && !r->sized && !r->chunked);
        r->done = true;
    }
}
