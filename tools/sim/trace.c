#include "tools/sim/trace.h"
#include "common/base/buf.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/json/json.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define FILE_BYTES_MAX ((size_t)256 << 20)
#define TOKENS_MAX 1000000
#define ID_MASK 0x3fffffffu

static bt_err
read_all(int file, bt_buf *text)
{
    static char piece[1 << 16];
    ssize_t got;

    while ((got = read(file, piece, sizeof piece)) > 0)
        bt_buf_append(text, piece, (size_t)got);
    return got == 0 ? BT_OK : BT_ERR_IO;
}

// gzip unpacks in a process of its own: the only place that would need zlib.
static bt_err
read_unpacked(const char *path, bt_buf *text)
{
    int ends[2], status = 0;
    bt_err err;
    pid_t child;

    if (pipe2(ends, O_CLOEXEC) != 0)
        return BT_ERR_IO;
    child = fork();
    if (child == 0) {
        dup2(ends[1], STDOUT_FILENO);
        execlp("gzip", "gzip", "-dc", "--", path, (char *)NULL);
        _exit(127);
    }
    close(ends[1]);
    err = child > 0 ? read_all(ends[0], text) : BT_ERR_IO;
    close(ends[0]);
    if (child > 0 && (waitpid(child, &status, 0) != child || status != 0))
        err = BT_ERR_IO;
    return err;
}

static bt_err
read_file(const char *path, bt_buf *text, bt_why *why)
{
    size_t length = strlen(path);
    bool packed = length > 3 && strcmp(path + length - 3, ".gz") == 0;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    bt_err err;

    if (file < 0)
        return bt_fail(why, BT_ERR_IO, "%s: %s", path, strerror(errno));
    err = packed ? read_unpacked(path, text) : read_all(file, text);
    close(file);
    if (err != BT_OK)
        return bt_fail(why, err, "%s: cannot be read%s", path, packed ? " (gzip -dc failed)" : "");
    if (text->failed)
        return bt_fail(why, BT_ERR_TOO_LONG, "%s: more than %zu bytes, or no memory for them", path, FILE_BYTES_MAX);
    return BT_OK;
}

static bt_err
add_row(sim_trace *trace, const sim_row *row)
{
    if (trace->count == trace->count_max) {
        uint32_t more = trace->count_max > 0 ? 2 * trace->count_max : 1024;
        sim_row *rows = bt_realloc(trace->rows, more * sizeof *rows);

        if (rows == NULL)
            return BT_ERR_NO_MEMORY;
        trace->rows = rows;
        trace->count_max = more;
    }
    trace->rows[trace->count++] = *row;
    return BT_OK;
}

static bt_err
add_hash(sim_trace *trace, uint64_t hash)
{
    if (trace->hash_count == trace->hash_max) {
        uint32_t more = trace->hash_max > 0 ? 2 * trace->hash_max : 4096;
        uint64_t *hashes = bt_realloc(trace->hashes, more * sizeof *hashes);

        if (hashes == NULL)
            return BT_ERR_NO_MEMORY;
        trace->hashes = hashes;
        trace->hash_max = more;
    }
    trace->hashes[trace->hash_count++] = hash;
    return BT_OK;
}

static bt_err
take_json(sim_trace *trace, const bt_json_at *root, bt_why *why)
{
    bt_json_at at = bt_json_get(root, "timestamp"), in = bt_json_get(root, "input_length");
    bt_json_at out = bt_json_get(root, "output_length"), ids = bt_json_get(root, "hash_ids");
    sim_row row = {.hash = SIM_HASH_NONE};
    int64_t prompt, answer;
    size_t count;
    double ms;
    bt_err err;

    if ((err = bt_json_as_real(&at, 0, 1e12, &ms, why)) != BT_OK ||
        (err = bt_json_as_int(&in, 1, TOKENS_MAX, &prompt, why)) != BT_OK ||
        (err = bt_json_as_int(&out, 0, TOKENS_MAX, &answer, why)) != BT_OK)
        return err;
    row.at = (bt_time)(ms * 1e6);
    row.prompt = (uint32_t)prompt;
    row.answer = answer > 0 ? (uint32_t)answer : 1;
    if (bt_json_given(&ids)) {
        if ((err = bt_json_as_array(&ids, &count, why)) != BT_OK)
            return err;
        if (count != (row.prompt + SIM_HASH_TOKENS - 1) / SIM_HASH_TOKENS)
            return bt_json_wrong(&ids, why, "%zu ids for %u tokens, expected one for each 512", count, row.prompt);
        row.hash = trace->hash_count;
        for (size_t i = 0; i < count && err == BT_OK; i++) {
            bt_json_at item = bt_json_item(&ids, i);
            int64_t id = 0;

            if ((err = bt_json_as_int(&item, 0, INT64_MAX, &id, why)) == BT_OK)
                err = add_hash(trace, (uint64_t)id);
        }
    }
    return err == BT_OK ? add_row(trace, &row) : err;
}

static bt_err
take_json_line(sim_trace *trace, bt_str line, bt_why *why)
{
    bt_json *document;
    bt_json_at root;
    bt_err err = bt_json_parse(&document, line, NULL, why);

    if (err != BT_OK)
        return err;
    root = bt_json_root(document);
    err = take_json(trace, &root, why);
    bt_json_close(document);
    return err;
}

// "2023-11-16 18:17:03.9799600" since 1970, by the civil calendar.
static bool
read_date(const char *text, bt_time *at)
{
    int year, month, day, hour, minute, used = 0;
    double second;
    int64_t days;

    if (sscanf(text, "%d-%d-%d %d:%d:%lf%n", &year, &month, &day, &hour, &minute, &second, &used) != 6 ||
        text[used] != ',' || year < 1970 || year > 2200 || month < 1 || month > 12 || day < 1 || day > 31 || hour < 0 ||
        hour > 23 || minute < 0 || minute > 59 || !(second >= 0 && second < 61))
        return false;
    year -= month <= 2;
    days =
        365 * year + year / 4 - year / 100 + year / 400 + (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 719469;
    *at = (days * 86400 + hour * 3600 + minute * 60) * BT_SECOND + (bt_time)(second * 1e9 + 0.5);
    return true;
}

static bt_err
take_csv_line(sim_trace *trace, const char *line, bool dates, bt_why *why)
{
    const char *rest = strchr(line, ',');
    unsigned long prompt, answer;
    bt_time at = 0;
    char *end = NULL;

    if (rest == NULL || (dates && !read_date(line, &at)))
        return bt_fail(why, BT_ERR_INVALID, "expected a time, prompt tokens and answer tokens");
    if (!dates) {
        double seconds = strtod(line, &end);

        if (end != rest || !(seconds >= 0 && seconds < 1e9))
            return bt_fail(why, BT_ERR_INVALID, "expected the time of arrival in seconds first");
        at = (bt_time)(seconds * 1e9);
    }
    prompt = strtoul(rest + 1, &end, 10);
    if (*end != ',' || prompt == 0 || prompt > TOKENS_MAX)
        return bt_fail(why, BT_ERR_INVALID, "expected prompt tokens from 1 to %d second", TOKENS_MAX);
    answer = strtoul(end + 1, &end, 10);
    if ((*end != 0 && *end != ',') || answer > TOKENS_MAX)
        return bt_fail(why, BT_ERR_INVALID, "expected answer tokens up to %d third", TOKENS_MAX);
    return add_row(trace, &(sim_row){.at = at,
                                     .prompt = (uint32_t)prompt,
                                     .answer = answer > 0 ? (uint32_t)answer : 1,
                                     .hash = SIM_HASH_NONE});
}

static bt_err
take_line(sim_trace *trace, const char *header, const char *line, size_t length, bt_why *why)
{
    char text[256];

    if (header[0] == '{')
        return take_json_line(trace, (bt_str){line, length}, why);
    if (length >= sizeof text)
        return bt_fail(why, BT_ERR_TOO_LONG, "a line of %zu bytes", length);
    memcpy(text, line, length);
    text[length] = 0;
    return take_csv_line(trace, text, header[0] == 'T', why);
}

static bool
begins(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

static int
by_time(const void *a, const void *b)
{
    const sim_row *x = a, *y = b;

    return x->at != y->at ? (x->at < y->at ? -1 : 1) : x->hash != y->hash ? (x->hash < y->hash ? -1 : 1) : 0;
}

// In order of time, from 0.
static void
settle(sim_trace *trace)
{
    bool sorted = true;

    for (uint32_t i = 1; i < trace->count; i++)
        sorted &= trace->rows[i].at >= trace->rows[i - 1].at;
    if (!sorted)
        qsort(trace->rows, trace->count, sizeof *trace->rows, by_time);
    for (uint32_t i = trace->count; i-- > 0;)
        trace->rows[i].at -= trace->rows[0].at;
}

bt_err
sim_trace_parse(sim_trace *trace, const char *text, const char *name, uint32_t requests, bt_why *why)
{
    bool json = text[0] == '{';
    uint32_t number = 0;

    *trace = (sim_trace){0};
    if (!json && !begins(text, "TIMESTAMP,ContextTokens,GeneratedTokens") &&
        !begins(text, "arrived_at,num_prefill_tokens,num_decode_tokens"))
        return bt_fail(why, BT_ERR_INVALID,
                       "%s: no trace: expected JSON lines as Mooncake's, or CSV that begins with "
                       "TIMESTAMP,ContextTokens,GeneratedTokens or arrived_at,num_prefill_tokens,num_decode_tokens",
                       name);
    for (const char *line = text; *line != 0 && (requests == 0 || trace->count < requests);) {
        const char *end = strchrnul(line, '\n');
        size_t length = (size_t)(end - line);
        bt_why inner = {"out of memory"};
        bt_err err = BT_OK;

        length -= length > 0 && line[length - 1] == '\r';
        number++;
        if (length > 0 && (json || number > 1))
            err = take_line(trace, text, line, length, &inner);
        if (err != BT_OK) {
            sim_trace_free(trace);
            return bt_fail(why, err, "%s:%u: %s", name, number, inner.text);
        }
        line = end + (*end != 0);
    }
    if (trace->count == 0)
        return bt_fail(why, BT_ERR_INVALID, "%s: no request in it", name);
    settle(trace);
    return BT_OK;
}

bt_err
sim_trace_read(sim_trace *trace, const char *path, uint32_t requests, bt_why *why)
{
    bt_buf text;
    bt_err err;

    *trace = (sim_trace){0};
    bt_buf_init(&text, FILE_BYTES_MAX);
    err = read_file(path, &text, why);
    if (err == BT_OK)
        err = sim_trace_parse(trace, text.data != NULL ? text.data : "", path, requests, why);
    bt_buf_fini(&text);
    return err;
}

void
sim_trace_free(sim_trace *trace)
{
    bt_free(trace->rows);
    bt_free(trace->hashes);
    *trace = (sim_trace){0};
}

uint32_t
sim_trace_longest(const sim_trace *trace)
{
    uint32_t longest = 0;

    for (uint32_t i = 0; i < trace->count; i++) {
        uint32_t tokens = trace->rows[i].prompt + trace->rows[i].answer;

        longest = tokens > longest ? tokens : longest;
    }
    return longest;
}

int32_t
sim_trace_id(const sim_trace *trace, uint32_t row, uint32_t position)
{
    const sim_row *self = &trace->rows[row];
    uint64_t block = position / SIM_HASH_TOKENS, offset = position % SIM_HASH_TOKENS;

    if (self->hash == SIM_HASH_NONE)
        return (int32_t)(bt_mix64((uint64_t)row << 32 | position) & ID_MASK);
    return (int32_t)(bt_mix64(~(trace->hashes[self->hash + block] * SIM_HASH_TOKENS + offset)) & ID_MASK);
}
