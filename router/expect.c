#include "router/expect.h"
#include "common/kv/layout.h"

#include <stdio.h>
#include <string.h>

static bt_router_refusal
texts(const char *field, const char *expected, const char *found)
{
    bt_router_refusal refusal = {.field = field};

    snprintf(refusal.expected, sizeof refusal.expected, "%s", expected);
    snprintf(refusal.found, sizeof refusal.found, "%s", found);
    return refusal;
}

static bt_router_refusal
numbers(const char *field, uint32_t expected, uint32_t found)
{
    bt_router_refusal refusal = {.field = field};

    snprintf(refusal.expected, sizeof refusal.expected, "%u", expected);
    snprintf(refusal.found, sizeof refusal.found, "%u", found);
    return refusal;
}

static bt_router_refusal
digests(const char *field, uint64_t expected, uint64_t found)
{
    bt_router_refusal refusal = {.field = field};

    snprintf(refusal.expected, sizeof refusal.expected, "%016llx", (unsigned long long)expected);
    snprintf(refusal.found, sizeof refusal.found, "%016llx", (unsigned long long)found);
    return refusal;
}

bt_router_refusal
bt_router_compare(const bt_router_expected *expected, const bt_hello *hello)
{
    // What explains most comes first: another version may mean all the rest in another way.
    if (expected->version != 0 && expected->version != hello->version)
        return numbers("version", expected->version, hello->version);
    if (expected->role != hello->role)
        return texts("role", bt_node_role_name(expected->role), bt_node_role_name(hello->role));
    if (expected->name[0] != 0 && strcmp(expected->name, hello->name) != 0)
        return texts("name", expected->name, hello->name);
    // A format changes model and layout too: it is what a person has to hear.
    if (expected->kv_format != 0 && hello->kv_format != 0 && expected->kv_format != hello->kv_format)
        return texts("kv.format", bt_kv_format_name((bt_kv_format)(expected->kv_format - 1)),
                     bt_kv_format_name((bt_kv_format)(hello->kv_format - 1)));
    if (expected->block_tokens != 0 && expected->block_tokens != hello->block_tokens)
        return numbers("kv.block_tokens", expected->block_tokens, hello->block_tokens);
    if (expected->model != 0 && expected->model != hello->model)
        return digests("model", expected->model, hello->model);
    if (expected->weights != 0 && expected->weights != hello->weights)
        return digests("weights", expected->weights, hello->weights);
    if (expected->layout != 0 && expected->layout != hello->layout)
        return digests("layout", expected->layout, hello->layout);
    return (bt_router_refusal){0};
}
