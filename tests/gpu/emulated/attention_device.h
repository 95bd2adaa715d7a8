// What the drivers of attention share: a device that is the CPU's but for attention, which is the driver's.
#pragma once

#include "driver.h"

#include "kernels/cuda/attention.cuh"

extern "C" {
#include "kernels/device_impl.h"
#include "tests/kernels/attention_case.h"
}

#include "attention_call_of.h" // cut from kernels/cuda/attention.cu by run.sh

static const bt_ops *of_cpu; // for steps that the driver does not take

static bt_err attend(bt_device *device, const bt_attention_args *a);

extern "C" bt_err
bt_cuda_open(bt_device **out, const bt_device_options *options, bt_why *why)
{
    static bt_ops ops;
    bt_device_options cpu = *options;
    bt_err err;

    cpu.kind = BT_DEVICE_CPU;
    if ((err = bt_device_open(out, &cpu, why)) == BT_OK) {
        bt_device_head *head = (bt_device_head *)(void *)*out;

        of_cpu = head->ops;
        ops = *of_cpu, ops.attention = attend;
        head->ops = &ops;
    }
    return err;
}
