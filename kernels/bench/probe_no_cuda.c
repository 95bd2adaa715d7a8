// A build without CUDA: no GPU is measured, as none is opened.
#include "kernels/bench/probe.h"

bt_err
bt_probe_gpu(bt_probe_gpu_limits *out, const bt_device_options *options, bt_why *why)
{
    bt_device *device;
    bt_err err = bt_device_open(&device, options, why); // says why not

    (void)out;
    if (err == BT_OK) {
        bt_device_close(device);
        return bt_fail(why, BT_ERR_UNSUPPORTED, "device: no GPU");
    }
    return err;
}
