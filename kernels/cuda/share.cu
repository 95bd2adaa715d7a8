// Memory of a CUDA device beyond this process and beyond the device: host memory pinned for it, and its own memory lent to other
// processes by CUDA IPC. Any thread: nothing here but what was fixed at open.
#include "kernels/cuda/cuda.cuh"

#include <stdio.h>
#include <string.h>

static_assert(sizeof(cudaIpcMemHandle_t) == sizeof(((bt_device_shared *)0)->handle), "a handle is 64 bytes");
static_assert(sizeof(cudaUUID_t) == sizeof(((bt_device_shared *)0)->uuid), "a name is 16 bytes");

bt_err
bt_cuda_pin(bt_device *device, void *memory, size_t bytes, bt_why *why)
{
    bt_cuda *cuda = bt_cuda_of(device);
    cudaError_t error;

    cudaSetDevice(cuda->index);
    error = cudaHostRegister(memory, bytes, cudaHostRegisterPortable);
    if (error == cudaSuccess) {
        return BT_OK;
    }
    cudaGetLastError();
    return bt_fail(why, error == cudaErrorMemoryAllocation ? BT_ERR_NO_MEMORY : BT_ERR_DEVICE,
                   "%s: cannot pin %.1f MiB of host memory: %s", cuda->name, (double)bytes / 0x1p20,
                   cudaGetErrorString(error));
}

void
bt_cuda_unpin(bt_device *device, void *memory, size_t bytes)
{
    (void)bytes;
    if (bt_cuda_of(device)->hangs) {
        return; // it would wait
    }
    cudaSetDevice(bt_cuda_of(device)->index);
    if (cudaHostUnregister(memory) != cudaSuccess) {
        cudaGetLastError(); // it was not pinned
    }
}

static bool
uuid_of(int index, uint8_t uuid[16])
{
    struct cudaDeviceProp p;

    if (cudaGetDeviceProperties(&p, index) != cudaSuccess) {
        return false;
    }
    memcpy(uuid, &p.uuid, 16);
    return true;
}

bt_err
bt_cuda_share(bt_device *device, void *memory, bt_device_shared *out, bt_why *why)
{
    bt_cuda *cuda = bt_cuda_of(device);
    bt_device_shared shared;
    cudaIpcMemHandle_t handle;
    cudaError_t error;

    cudaSetDevice(cuda->index);
    if ((error = cudaIpcGetMemHandle(&handle, memory)) != cudaSuccess || !uuid_of(cuda->index, shared.uuid)) {
        error = error != cudaSuccess ? error : cudaGetLastError();
        cudaGetLastError();
        return bt_fail(why, BT_ERR_UNSUPPORTED, "%s: its memory cannot be lent to other processes (CUDA IPC): %s",
                       cuda->name, cudaGetErrorString(error));
    }
    memcpy(shared.handle, &handle, sizeof shared.handle);
    *out = shared;
    return BT_OK;
}

// Which of the GPUs that this process sees it is; −1: none.
static int
find_uuid(const uint8_t uuid[16])
{
    uint8_t seen[16];
    int count = 0;

    cudaGetDeviceCount(&count);
    for (int i = 0; i < count; i++) {
        if (uuid_of(i, seen) && memcmp(seen, uuid, 16) == 0) {
            return i;
        }
    }
    return -1;
}

// As nvidia-smi -L writes it.
static void
write_uuid(char out[48], const uint8_t u[16])
{
    snprintf(out, 48, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0], u[1], u[2],
             u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
}

// A GPU that CUDA_VISIBLE_DEVICES hides from this process may still be read: the driver knows whose memory a handle names.
bt_err
bt_cuda_open_shared(bt_device *device, const bt_device_shared *shared, const void **memory, bool *same, bt_why *why)
{
    bt_cuda *cuda = bt_cuda_of(device);
    cudaIpcMemHandle_t handle;
    cudaError_t error;
    void *opened;
    int from, can = 1;
    char name[48];

    cudaSetDevice(cuda->index);
    write_uuid(name, shared->uuid);
    from = find_uuid(shared->uuid);
    if (from >= 0 && from != cuda->index && (cudaDeviceCanAccessPeer(&can, cuda->index, from) != cudaSuccess || !can)) {
        cudaGetLastError();
        return bt_fail(why, BT_ERR_UNSUPPORTED,
                       "%s: cannot read the memory of %s (cuda:%d): no peer access between them", cuda->name, name,
                       from);
    }
    memcpy(&handle, shared->handle, sizeof handle);
    if ((error = cudaIpcOpenMemHandle(&opened, handle, cudaIpcMemLazyEnablePeerAccess)) != cudaSuccess) {
        cudaGetLastError();
        return from < 0
                   ? bt_fail(why, BT_ERR_UNSUPPORTED,
                             "%s: %s is not among the GPUs that this process sees, and its "
                             "memory cannot be opened: %s",
                             cuda->name, name, cudaGetErrorString(error))
                   : bt_fail(why, BT_ERR_PEER,
                             "%s: memory of %s (cuda:%d) cannot be opened, its owner is gone, or this very process: %s",
                             cuda->name, name, from, cudaGetErrorString(error));
    }
    *memory = opened;
    *same = from == cuda->index;
    return BT_OK;
}

void
bt_cuda_close_shared(bt_device *device, const void *memory)
{
    cudaSetDevice(bt_cuda_of(device)->index);
    if (cudaIpcCloseMemHandle((void *)(uintptr_t)memory) != cudaSuccess) {
        cudaGetLastError();
    }
}

bt_err
bt_cuda_reach(bt_device *device, bt_device *other, bt_why *why)
{
    bt_cuda *cuda = bt_cuda_of(device);
    int from = bt_cuda_of(other)->index, can = 0;
    cudaError_t error = cudaSuccess;

    if (from == cuda->index) {
        return BT_OK;
    }
    cudaSetDevice(cuda->index);
    if (cudaDeviceCanAccessPeer(&can, cuda->index, from) == cudaSuccess && can) {
        error = cudaDeviceEnablePeerAccess(from, 0);
    }
    cudaGetLastError();
    return can && (error == cudaSuccess || error == cudaErrorPeerAccessAlreadyEnabled)
               ? BT_OK
               : bt_fail(why, BT_ERR_UNSUPPORTED, "%s: no peer access to cuda:%d%s%s", cuda->name, from,
                         error != cudaSuccess ? ": " : "", error != cudaSuccess ? cudaGetErrorString(error) : "");
}
