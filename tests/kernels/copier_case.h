// What a copier of any device must do: run by test_copier on the CPU and by tests/gpu/test_cuda_copy on a GPU.
#pragma once

#include "kernels/copier.h"

#define COPIER_SOON (bt_time_now() + 100 * BT_SECOND) // others may use the GPU
#define COPIER_SHAPES 7u                              // layouts; the last has blocks of 2.1 MB

// A device with a copier and two pools of random blocks.
typedef struct {
    bt_device *device;
    bt_copier *copier;
    bt_kv_layout layout;
    uint8_t *host, *back; // [blocks]
    uint8_t *from, *to;   // the same on the device
    size_t bytes;
    uint32_t blocks;
    uint64_t ticket;
} copier_world;

void copier_world_open_device(copier_world *w, bt_device_kind kind, bool notify);
void copier_world_open(copier_world *w, bt_device_kind kind, size_t shape, uint32_t blocks);
void copier_world_close(copier_world *w);
void copier_await(copier_world *w); // batch w->ticket

void copier_case_sums(bt_device_kind kind, size_t shape);
void copier_case_fetches(bt_device_kind kind, size_t shape);
void copier_case_stamps(bt_device_kind kind, size_t shape);
void copier_case_copies(bt_device_kind kind);
