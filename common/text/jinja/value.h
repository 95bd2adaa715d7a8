// The values that a template computes with: Python's, as far as Jinja shows them.
//
// A value is small and copied freely; what it points to lies in the arena of the run (or, for constants, of the
// compiled template) and never changes, but for a namespace, the cursor of a generator, and the state of loop, cycler
// and joiner. So no cycles arise but through a namespace, and nothing is freed one by one.
#pragma once

#include "common/base/str.h"

typedef enum {
    BT_JINJA_UNSET,     // not there at all: an argument that was not given
    BT_JINJA_UNDEFINED, // Jinja's Undefined; text says what was looked for
    BT_JINJA_NONE,
    BT_JINJA_BOOL,
    BT_JINJA_INT,
    BT_JINJA_REAL,
    BT_JINJA_TEXT,
    BT_JINJA_LIST, // every sequence, see bt_jinja_shape
    BT_JINJA_DICT,
    BT_JINJA_NAMESPACE,
    BT_JINJA_LOOP,
    BT_JINJA_MACRO,
    BT_JINJA_GLOBAL, // a function that is there from the start, as range
    BT_JINJA_METHOD, // a function bound to its object, as "x".strip
    BT_JINJA_CYCLER,
    BT_JINJA_JOINER
} bt_jinja_kind;

typedef struct bt_jinja_list bt_jinja_list;
typedef struct bt_jinja_dict bt_jinja_dict;
typedef struct bt_jinja_loop bt_jinja_loop;
typedef struct bt_jinja_macro bt_jinja_macro;
typedef struct bt_jinja_method bt_jinja_method;
typedef struct bt_jinja_cycler bt_jinja_cycler;
struct bt_jinja_global;

typedef struct {
    uint8_t kind;
    bool markup; // a text marked safe: adding to it escapes what is added
    union {
        bool flag;
        int64_t whole;
        double real;
        bt_str text;
        bt_jinja_list *list;
        bt_jinja_dict *dict; // of a dict and of a namespace
        bt_jinja_loop *loop;
        bt_jinja_macro *macro;
        bt_jinja_method *method;
        bt_jinja_cycler *cycler; // of a cycler and of a joiner
        const struct bt_jinja_global *global;
    };
} bt_jinja_value;

typedef enum {
    BT_JINJA_SHAPE_LIST,
    BT_JINJA_SHAPE_TUPLE,
    BT_JINJA_SHAPE_RANGE,
    BT_JINJA_SHAPE_VIEW,
    BT_JINJA_SHAPE_GENERATOR
} bt_jinja_shape;

struct bt_jinja_list {
    bt_jinja_shape shape;
    bt_jinja_value *items; // NULL in a range
    size_t count;
    size_t cursor;       // of a generator, which is read once
    int64_t start, step; // of a range
};

typedef struct {
    bt_jinja_value key, value;
} bt_jinja_entry;

// In the order of insertion. Looked up from end to end: objects of a conversation have few members, and a run's steps
// are charged for long ones.
struct bt_jinja_dict {
    bt_jinja_entry *entries;
    size_t count, cap;
};

struct bt_jinja_cycler {
    bt_jinja_value *items;
    size_t count, at;
    bt_str separator; // of a joiner
};

static inline bt_jinja_value
bt_jinja_undefined(bt_str words)
{
    return (bt_jinja_value){.kind = BT_JINJA_UNDEFINED, .text = words};
}

static inline bt_jinja_value
bt_jinja_none(void)
{
    return (bt_jinja_value){.kind = BT_JINJA_NONE};
}

static inline bt_jinja_value
bt_jinja_bool(bool flag)
{
    return (bt_jinja_value){.kind = BT_JINJA_BOOL, .flag = flag};
}

static inline bt_jinja_value
bt_jinja_int(int64_t whole)
{
    return (bt_jinja_value){.kind = BT_JINJA_INT, .whole = whole};
}

static inline bt_jinja_value
bt_jinja_real(double real)
{
    return (bt_jinja_value){.kind = BT_JINJA_REAL, .real = real};
}

static inline bt_jinja_value
bt_jinja_text(bt_str text)
{
    return (bt_jinja_value){.kind = BT_JINJA_TEXT, .text = text};
}

// Whether it is the text `word`.
static inline bool
bt_jinja_is_text(bt_jinja_value v, const char *word)
{
    return v.kind == BT_JINJA_TEXT && bt_str_is(v.text, word);
}

static inline bool
bt_jinja_is_number(bt_jinja_value v)
{
    return v.kind == BT_JINJA_BOOL || v.kind == BT_JINJA_INT || v.kind == BT_JINJA_REAL;
}

static inline bool
bt_jinja_is_shape(bt_jinja_value v, bt_jinja_shape shape)
{
    return v.kind == BT_JINJA_LIST && v.list->shape == shape;
}

// Python's name of its type, for messages: "str", "dict", "NoneType".
const char *bt_jinja_type_name(bt_jinja_value v);
// Python's bool(v).
bool bt_jinja_truth(bt_jinja_value v);
// True, and the value as int, of a bool or an int.
bool bt_jinja_as_int(bt_jinja_value v, int64_t *out);
// True, and the value as double, of any number.
bool bt_jinja_as_real(bt_jinja_value v, double *out);
// The i-th of a list that has it.
bt_jinja_value bt_jinja_item(const bt_jinja_list *list, size_t i);
