// Reading single values: whatever width a writer chose, the number that a reader wants.
#include "common/model/gguf.h"

#define LOAD(type, at)                                                                                                 \
    __extension__({                                                                                                    \
        type loaded;                                                                                                   \
        memcpy(&loaded, (at), sizeof loaded);                                                                          \
        loaded;                                                                                                        \
    })

// An integer item as i64; false for what is none, or a u64 above INT64_MAX.
static bool
integer_at(bt_gguf_type type, const uint8_t *data, uint64_t index, int64_t *out)
{
    switch (type) {
    case BT_GGUF_U8:
    case BT_GGUF_BOOL:
        *out = data[index];
        return true;
    case BT_GGUF_I8:
        *out = (int8_t)data[index];
        return true;
    case BT_GGUF_U16:
        *out = LOAD(uint16_t, data + 2 * index);
        return true;
    case BT_GGUF_I16:
        *out = LOAD(int16_t, data + 2 * index);
        return true;
    case BT_GGUF_U32:
        *out = LOAD(uint32_t, data + 4 * index);
        return true;
    case BT_GGUF_I32:
        *out = LOAD(int32_t, data + 4 * index);
        return true;
    case BT_GGUF_U64:
    case BT_GGUF_I64:
        *out = LOAD(int64_t, data + 8 * index);
        return type == BT_GGUF_I64 || *out >= 0;
    default:
        return false;
    }
}

double
bt_gguf_item_number(const bt_gguf_value *value, uint64_t index)
{
    int64_t integer;

    if (index >= value->count) {
        return 0;
    }
    if (value->item_type == BT_GGUF_F32) {
        return (double)LOAD(float, value->data + 4 * index);
    }
    if (value->item_type == BT_GGUF_F64) {
        return LOAD(double, value->data + 8 * index);
    }
    return integer_at(value->item_type, value->data, index, &integer) ? (double)integer : 0;
}

bool
bt_gguf_get_u32(const bt_gguf *gguf, const char *key, uint32_t *out)
{
    const bt_gguf_value *value = bt_gguf_find(gguf, key);
    int64_t integer;

    if (value == NULL || value->type == BT_GGUF_BOOL || !integer_at(value->type, value->data, 0, &integer) ||
        integer < 0 || integer > UINT32_MAX) {
        return false;
    }
    *out = (uint32_t)integer;
    return true;
}

bool
bt_gguf_get_f32(const bt_gguf *gguf, const char *key, float *out)
{
    const bt_gguf_value *value = bt_gguf_find(gguf, key);

    if (value == NULL || (value->type != BT_GGUF_F32 && value->type != BT_GGUF_F64)) {
        return false;
    }
    *out = (float)bt_gguf_item_number(value, 0);
    return true;
}

bool
bt_gguf_get_bool(const bt_gguf *gguf, const char *key, bool *out)
{
    const bt_gguf_value *value = bt_gguf_find(gguf, key);

    if (value == NULL || value->type != BT_GGUF_BOOL) {
        return false;
    }
    *out = value->data[0] != 0;
    return true;
}

// The string at `at`, which the reader has checked against the file.
static bt_str
string_at(const uint8_t *at)
{
    return (bt_str){(const char *)at + 8, (size_t)LOAD(uint64_t, at)};
}

bool
bt_gguf_get_str(const bt_gguf *gguf, const char *key, bt_str *out)
{
    const bt_gguf_value *value = bt_gguf_find(gguf, key);

    if (value == NULL || value->type != BT_GGUF_STRING) {
        return false;
    }
    *out = string_at(value->data);
    return true;
}

bool
bt_gguf_next_string(const bt_gguf_value *value, size_t *cursor, bt_str *out)
{
    if (value->type != BT_GGUF_ARRAY || value->item_type != BT_GGUF_STRING || *cursor >= value->bytes) {
        return false;
    }
    *out = string_at(value->data + *cursor);
    *cursor += 8 + out->len;
    return true;
}
