// Until attention, rope and add_norm land (helper "katt", who deletes this file): a program links, and says what it lacks.
#include "kernels/cpu/cpu.h"

__attribute__((weak)) bt_cpu_scratch
bt_cpu_attention_scratch(const bt_device_limits *limits, uint32_t threads)
{
    (void)limits, (void)threads;
    return (bt_cpu_scratch){0};
}

__attribute__((weak)) bt_err
bt_cpu_rope(bt_device *device, const bt_rope_args *args)
{
    (void)device, (void)args;
    return BT_ERR_UNSUPPORTED;
}

__attribute__((weak)) bt_err
bt_cpu_attention(bt_device *device, const bt_attention_args *args)
{
    (void)device, (void)args;
    return BT_ERR_UNSUPPORTED;
}

__attribute__((weak)) bt_err
bt_cpu_add_norm(bt_device *device, const bt_add_norm_args *args)
{
    (void)device, (void)args;
    return BT_ERR_UNSUPPORTED;
}
