// gpu_hold MIB [DEVICE]: takes so much of a GPU's memory, or all but as much when it begins with "-", says "held", and keeps it until its
// stdin ends: the other process of which run.sh needs one.
#include "kernels/device.h"

#include <stdio.h>
#include <stdlib.h>

int
main(int argc, char **argv)
{
    bt_device_options options = {.kind = BT_DEVICE_CUDA, .index = argc > 2 ? (uint32_t)atoi(argv[2]) : 0};
    long mib = argc > 1 ? atol(argv[1]) : 0;
    bt_device *device;
    size_t bytes;
    bt_why why;

    if (bt_device_open(&device, &options, &why) != BT_OK) {
        fprintf(stderr, "%s\n", why.text);
        return 2;
    }
    bytes = mib >= 0 ? (size_t)mib << 20 : bt_device_available(device) - ((size_t)-mib << 20);
    if (bt_device_alloc(device, bytes) == NULL) {
        fprintf(stderr, "no room for %zu bytes\n", bytes);
        return 1;
    }
    printf("held\n");
    fflush(stdout);
    while (getchar() != EOF) {
    }
    return 0;
}
