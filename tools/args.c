#include "tools/args.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void
print_table(const bt_arg *args)
{
    for (; args != NULL && args->name != NULL; args++) {
        char left[48];

        snprintf(left, sizeof left, "--%s%s%s", args->name, args->value != NULL ? " " : "",
                 args->value != NULL ? args->value : "");
        printf("  %-26s %s", left, args->help);
        if (args->kind == BT_ARG_U32) {
            printf(" [%u]", *(const uint32_t *)args->target);
        } else if (args->kind == BT_ARG_FLOAT) {
            printf(" [%g]", (double)*(const float *)args->target);
        } else if (args->kind == BT_ARG_STRING && *(const char *const *)args->target != NULL) {
            printf(" [%s]", *(const char *const *)args->target);
        }
        printf("\n");
    }
}

static void
print_help(const bt_args_spec *spec)
{
    printf("usage: %s\n\n%s\n\noptions:\n", spec->usage, spec->about);
    print_table(spec->args);
    print_table(spec->more);
    printf("  %-26s %s\n", "--help", "this text");
    if (spec->example != NULL) {
        printf("\nexamples:\n%s\n", spec->example);
    }
}

static const bt_arg *
find(const bt_arg *args, const char *name, size_t len)
{
    for (; args != NULL && args->name != NULL; args++) {
        if (strlen(args->name) == len && memcmp(args->name, name, len) == 0) {
            return args;
        }
    }
    return NULL;
}

static bt_err
whole_number(const char *text, uint64_t max, uint64_t *out)
{
    char *end;

    errno = 0;
    if (*text < '0' || *text > '9') {
        return BT_ERR_INVALID;
    }
    *out = strtoull(text, &end, 10);
    return errno != 0 || *end != 0 || *out > max ? BT_ERR_INVALID : BT_OK;
}

static bt_err
set_value(const bt_arg *arg, const char *value, bt_why *why)
{
    uint64_t number = 0;
    char *end;
    float real;

    switch (arg->kind) {
    case BT_ARG_FLAG:
        *(bool *)arg->target = true;
        return BT_OK;
    case BT_ARG_STRING:
        *(const char **)arg->target = value;
        return BT_OK;
    case BT_ARG_CALL:
        return arg->call(arg->target, value, why);
    case BT_ARG_FLOAT:
        real = strtof(value, &end);
        if (*value == 0 || *end != 0 || !(real > -1e30f && real < 1e30f)) {
            return bt_fail(why, BT_ERR_INVALID, "expected a number, not '%s'", value);
        }
        *(float *)arg->target = real;
        return BT_OK;
    case BT_ARG_U32:
    case BT_ARG_U64:
        if (whole_number(value, arg->kind == BT_ARG_U32 ? UINT32_MAX : UINT64_MAX, &number) != BT_OK) {
            return bt_fail(why, BT_ERR_INVALID, "expected a whole number, not '%s'", value);
        }
        if (arg->kind == BT_ARG_U32) {
            *(uint32_t *)arg->target = (uint32_t)number;
        } else {
            *(uint64_t *)arg->target = number;
        }
        return BT_OK;
    }
    return BT_ERR_BUG;
}

// The words of the usage line that the user typed: up to the first that stands for something.
static int
command_length(const char *usage)
{
    size_t len = strcspn(usage, "ABCDEFGHIJKLMNOPQRSTUVWXYZ[-<");

    while (len > 0 && usage[len - 1] == ' ') {
        len--;
    }
    return (int)len;
}

static int
wrong_use(const bt_args_spec *spec, const char *what, const char *why)
{
    fprintf(stderr, "%.*s: %s: %s\nusage: %s (--help says more)\n", command_length(spec->usage), spec->usage, what, why,
            spec->usage);
    return 2;
}

// The first word in capitals that is no option's value: what a usage line begins with after the command.
static int
missing_word(const bt_args_spec *spec)
{
    const char *word = spec->usage + command_length(spec->usage);
    char what[64];

    word += strspn(word, " ");
    snprintf(what, sizeof what, "%.*s", (int)strcspn(word, " "), word);
    return wrong_use(spec, what, "missing");
}

// One option at argv[*at]; leaves *at at its last word.
static int
take_option(const bt_args_spec *spec, int argc, char **argv, int *at)
{
    const char *word = argv[*at] + 2, *equals = strchr(word, '='), *value = NULL;
    size_t len = equals != NULL ? (size_t)(equals - word) : strlen(word);
    const bt_arg *arg = find(spec->args, word, len);
    bt_why why = {""};

    if (arg == NULL) {
        arg = find(spec->more, word, len);
    }
    if (arg == NULL) {
        return wrong_use(spec, argv[*at], "no such option");
    }
    if (arg->kind != BT_ARG_FLAG) {
        value = equals != NULL ? equals + 1 : *at + 1 < argc ? argv[++*at] : NULL;
        if (value == NULL) {
            return wrong_use(spec, argv[*at], "needs a value");
        }
    } else if (equals != NULL) {
        return wrong_use(spec, argv[*at], "takes no value");
    }
    if (set_value(arg, value, &why) != BT_OK) {
        char what[64];

        snprintf(what, sizeof what, "--%s", arg->name);
        return wrong_use(spec, what, why.text);
    }
    return -1;
}

int
bt_args_parse(const bt_args_spec *spec, int argc, char **argv, const char **positional, uint32_t *positional_count)
{
    uint32_t count = 0;
    bool only_words = false;

    for (int i = 1; i < argc; i++) {
        if (!only_words && strcmp(argv[i], "--") == 0) {
            only_words = true;
        } else if (!only_words && (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)) {
            print_help(spec);
            return 0;
        } else if (!only_words && strncmp(argv[i], "--", 2) == 0) {
            int code = take_option(spec, argc, argv, &i);

            if (code >= 0) {
                return code;
            }
        } else if (count == spec->positional_max) {
            return wrong_use(spec, argv[i], "one word too many");
        } else {
            positional[count++] = argv[i];
        }
    }
    if (count < spec->positional_min) {
        return missing_word(spec);
    }
    if (positional_count != NULL) {
        *positional_count = count;
    }
    return -1;
}
