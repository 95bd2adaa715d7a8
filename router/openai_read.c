// Values of a request body: each is there with the right type and range, or the error says where and why not.
#include "router/openai_read.h"

bt_err
bt_openai_refuse(bt_openai_reader *r, const bt_json_at *at)
{
    char path[128];

    if (at->parent == NULL) {
        return bt_openai_fail(r->error, BT_ERR_INVALID, 400, NULL, NULL, "%s", r->why.text); // the body is no parameter
    }
    bt_json_path(at, path, sizeof path);
    return bt_openai_fail(r->error, BT_ERR_INVALID, 400, NULL, path, "%s", r->why.text);
}

bt_err
bt_openai_refuse_with(bt_openai_reader *r, const bt_json_at *at, const char *code, const char *words)
{
    char path[128];

    bt_json_path(at, path, sizeof path);
    return bt_openai_fail(r->error, BT_ERR_INVALID, 400, code, path, "%s: %s", path, words);
}

bt_err
bt_openai_out_of_room(bt_openai_reader *r, const bt_json_at *at)
{
    char path[128];

    bt_json_path(at, path, sizeof path);
    return bt_openai_fail(r->error, BT_ERR_TOO_LONG, 400, NULL, path, "%s: larger than this server takes", path);
}

bool
bt_openai_says_something(const bt_json_at *at)
{
    bt_json_type type = bt_json_type_of(at);

    return bt_json_given(at) && !((type == BT_JSON_ARRAY || type == BT_JSON_OBJECT) && bt_json_count(at) == 0);
}

bt_err
bt_openai_read_text(bt_openai_reader *r, const bt_json_at *at, bt_str *out)
{
    return bt_json_as_text(at, out, &r->why) == BT_OK ? BT_OK : bt_openai_refuse(r, at);
}

bt_err
bt_openai_keep_text(bt_openai_reader *r, const bt_json_at *at, bt_str *out)
{
    bt_str text;
    bt_err err = bt_openai_read_text(r, at, &text);
    char *copy = err == BT_OK ? bt_arena_copy(&r->out->arena, text.data, text.len) : NULL;

    if (err != BT_OK) {
        return err;
    }
    if (copy == NULL) {
        return bt_openai_out_of_room(r, at);
    }
    *out = (bt_str){copy, text.len};
    return BT_OK;
}

bt_err
bt_openai_read_bool(bt_openai_reader *r, const bt_json_at *at, bool *out)
{
    return bt_json_as_bool(at, out, &r->why) == BT_OK ? BT_OK : bt_openai_refuse(r, at);
}

bt_err
bt_openai_read_int(bt_openai_reader *r, const bt_json_at *at, int64_t min, int64_t max, int64_t *out)
{
    return bt_json_as_int(at, min, max, out, &r->why) == BT_OK ? BT_OK : bt_openai_refuse(r, at);
}

bt_err
bt_openai_read_float(bt_openai_reader *r, const bt_json_at *at, double min, double max, float *out)
{
    double value = 0;

    if (bt_json_as_real(at, min, max, &value, &r->why) != BT_OK) {
        return bt_openai_refuse(r, at);
    }
    *out = (float)value;
    return BT_OK;
}

bt_err
bt_openai_read_count(bt_openai_reader *r, const bt_json_at *at, int64_t min, int64_t max, uint32_t *out)
{
    int64_t value = 0;
    bt_err err = bt_openai_read_int(r, at, min, max, &value);

    if (err == BT_OK) {
        *out = (uint32_t)value;
    }
    return err;
}
