// A GPU made of shared memory, so that what is built on devices' pools is tested where there is none: memory that other processes open by a
// handle, and a copier whose batches end only when they are asked for.
#pragma once

#include "kernels/copier.h"

typedef struct {
    uint8_t uuid; // which GPU of the host it is
    // What its copiers do wrong:
    uint32_t asks_a_batch; // `through` must be asked so often before a batch ends; 0 = it is done at once
    bool hangs;            // no batch ends any more
    bool failed;           // as a GPU after a fault
    uint8_t blind_to;      // a GPU whose memory cannot be opened here; 0 = none
} fake_gpu_ways;

// Closed by bt_device_close. Its memory is read and written by the host like any other, by those who know.
bt_device *fake_gpu_open(uint8_t uuid);
fake_gpu_ways *fake_gpu_ways_of(bt_device *device);
