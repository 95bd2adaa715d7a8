#include "common/text/jinja/run.h"

#include <stdarg.h>
#include <stdio.h>

bt_jinja_value
bt_jinja_fail(bt_jinja_run *run, const char *format, ...)
{
    if (run->err == BT_OK) {
        char words[400];
        va_list args;

        va_start(args, format);
        vsnprintf(words, sizeof words, format, args);
        va_end(args);
        run->err = bt_fail(run->why, BT_ERR_INVALID, "template line %d: %s", run->line, words);
    }
    return bt_jinja_undefined((bt_str){"", 0});
}

bt_jinja_value
bt_jinja_limit(bt_jinja_run *run, const char *what)
{
    if (run->err == BT_OK) {
        run->err =
            bt_fail(run->why, BT_ERR_TOO_LONG, "template line %d: more %s than a template may use", run->line, what);
    }
    return bt_jinja_undefined((bt_str){"", 0});
}

bool
bt_jinja_charge(bt_jinja_run *run, size_t steps)
{
    if (run->err != BT_OK) {
        return false;
    }
    if (steps >= run->steps_left) {
        run->steps_left = 0;
        bt_jinja_limit(run, "steps");
        return false;
    }
    run->steps_left -= steps;
    return true;
}

bool
bt_jinja_enter(bt_jinja_run *run)
{
    if (run->err != BT_OK) {
        return false;
    }
    if (run->depth >= run->depth_max) {
        bt_jinja_limit(run, "depth");
        return false;
    }
    run->depth++;
    return true;
}

void
bt_jinja_leave(bt_jinja_run *run)
{
    run->depth--;
}

void *
bt_jinja_alloc(bt_jinja_run *run, size_t count, size_t bytes)
{
    size_t total;
    void *memory = __builtin_mul_overflow(count, bytes, &total) ? NULL : bt_arena_alloc(&run->arena, total);

    // Zeroing is work too.
    if (memory == NULL) {
        bt_jinja_limit(run, "memory");
    } else if (!bt_jinja_charge(run, total / 256)) {
        return NULL;
    }
    return memory;
}

bt_str
bt_jinja_copy(bt_jinja_run *run, bt_str text)
{
    char *copy = bt_jinja_alloc(run, text.len + 1, 1);

    if (copy == NULL) {
        return (bt_str){"", 0};
    }
    if (text.len != 0) {
        memcpy(copy, text.data, text.len);
    }
    return (bt_str){copy, text.len};
}

bt_jinja_value
bt_jinja_text_copy(bt_jinja_run *run, bt_str text)
{
    return bt_jinja_text(bt_jinja_copy(run, text));
}

bt_jinja_value
bt_jinja_text_format(bt_jinja_run *run, const char *format, ...)
{
    char words[400];
    va_list args;

    va_start(args, format);
    vsnprintf(words, sizeof words, format, args);
    va_end(args);
    return bt_jinja_text_copy(run, bt_str_of(words));
}

bt_str
bt_jinja_join(bt_jinja_run *run, bt_str left, bt_str right)
{
    char *data;
    size_t room;

    if (right.len == 0 || left.len == 0) {
        return right.len == 0 ? left : right;
    }
    if (!bt_jinja_charge(run, right.len / 256)) {
        return left;
    }
    if (left.data + left.len == run->tip && right.len <= run->tip_room) {
        // A text never changes, so the longer one may share the bytes of the shorter.
        memmove(run->tip, right.data, right.len);
        run->tip += right.len;
        run->tip_room -= right.len;
        return (bt_str){left.data, left.len + right.len};
    }
    room = left.len / 2 < ((size_t)1 << 20) ? left.len / 2 : (size_t)1 << 20;
    if ((data = bt_jinja_alloc(run, left.len + right.len + room, 1)) == NULL) {
        return left;
    }
    memcpy(data, left.data, left.len);
    memcpy(data + left.len, right.data, right.len);
    run->tip = data + left.len + right.len;
    run->tip_room = room;
    return (bt_str){data, left.len + right.len};
}

void
bt_jinja_buf_init(bt_jinja_run *run, bt_buf *buf)
{
    bt_buf_init(buf, run->arena.limit - run->arena.used);
}

bt_jinja_value
bt_jinja_text_of_buf(bt_jinja_run *run, bt_buf *buf)
{
    bt_jinja_value text = bt_jinja_text((bt_str){"", 0});

    if (buf->failed) {
        bt_jinja_limit(run, "memory");
    } else if (buf->len != 0) {
        text = bt_jinja_text_copy(run, (bt_str){buf->data, buf->len});
    }
    bt_buf_fini(buf);
    return text;
}

bt_buf *
bt_jinja_capture_begin(bt_jinja_run *run, bt_buf *capture)
{
    bt_buf *before = run->out;

    bt_buf_init(capture, run->captured_max);
    run->out = capture;
    return before;
}

bt_jinja_value
bt_jinja_capture_end(bt_jinja_run *run, bt_buf *before)
{
    bt_buf *capture = run->out;

    run->captured -= capture->len;
    run->out = before;
    return bt_jinja_text_of_buf(run, capture);
}

void
bt_jinja_print(bt_jinja_run *run, bt_str text)
{
    if (!bt_jinja_charge(run, text.len / 256)) {
        return;
    }
    if (text.len > run->captured_max - run->captured) {
        bt_jinja_limit(run, "output");
        return;
    }
    bt_buf_append(run->out, text.data, text.len);
    if (run->out->failed) {
        bt_jinja_limit(run, "memory");
        return;
    }
    run->captured += text.len;
}

bt_jinja_scope *
bt_jinja_scope_open(bt_jinja_run *run, bt_jinja_scope *parent)
{
    bt_jinja_scope *scope = bt_jinja_alloc(run, 1, sizeof *scope);

    if (scope != NULL) {
        scope->parent = parent;
    }
    return scope;
}

bt_jinja_scope *
bt_jinja_scope_again(bt_jinja_run *run, bt_jinja_scope *last, bt_jinja_scope *parent)
{
    if (last == NULL || last->kept) {
        return bt_jinja_scope_open(run, parent);
    }
    last->count = 0;
    return last;
}

void
bt_jinja_scope_set(bt_jinja_run *run, bt_jinja_scope *scope, uint32_t name, bt_jinja_value value)
{
    if (scope == NULL || name == UINT32_MAX || run->err != BT_OK) {
        return;
    }
    bt_jinja_charge(run, scope->count / 8);
    for (uint32_t i = 0; i < scope->count; i++) {
        if (scope->bindings[i].name == name) {
            scope->bindings[i].value = value;
            return;
        }
    }
    if (scope->count == scope->cap) {
        uint32_t cap = scope->cap != 0 ? 2 * scope->cap : 4;
        bt_jinja_binding *bindings = bt_jinja_alloc(run, cap, sizeof *bindings);

        if (bindings == NULL) {
            return;
        }
        if (scope->count != 0) {
            memcpy(bindings, scope->bindings, scope->count * sizeof *bindings);
        }
        scope->bindings = bindings;
        scope->cap = cap;
    }
    scope->bindings[scope->count++] = (bt_jinja_binding){name, value};
}

bool
bt_jinja_scope_find(bt_jinja_run *run, uint32_t name, bt_jinja_value *out)
{
    size_t visited = 0;
    bool found = false;

    for (const bt_jinja_scope *scope = run->scope; scope != NULL && !found; scope = scope->parent) {
        for (uint32_t i = 0; i < scope->count && !found; i++) {
            if (scope->bindings[i].name == name) {
                *out = scope->bindings[i].value;
                found = true;
            }
        }
        visited += scope->count + 1;
    }
    return bt_jinja_charge(run, visited / 8) && found;
}
