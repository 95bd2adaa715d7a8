#include "tools/machine.h"

#include "common/base/mem.h"

static bt_err
open_transfer(bt_machine *machine, bt_transfer **out, bt_transfer_options *options, const bt_kv_layout *layout,
              uint32_t blocks, uint8_t **memory, bt_why *why)
{
    bt_err err;

    options->layout = *layout;
    options->blocks = blocks;
    bt_plane_size_transfer(&machine->options.plane, options);
    if ((err = bt_transfer_open(out, options, why)) == BT_OK) {
        *memory = bt_transfer_pool(*out);
    }
    return err;
}

static bt_err
lend_pool(void *self, bt_device *device, const bt_kv_layout *layout, uint32_t blocks, uint8_t **memory, bt_why *why)
{
    bt_machine *machine = self;
    bt_transfer_options options = machine->options.transfer;

    (void)device;
    return open_transfer(machine, &machine->transfer, &options, layout, blocks, memory, why);
}

static bt_err
lend_device_pool(void *self, bt_device *device, const bt_kv_layout *layout, uint32_t blocks, uint8_t **memory,
                 bt_why *why)
{
    bt_machine *machine = self;
    bt_transfer_options options = {
        .epoch = machine->options.transfer.epoch, .memory = BT_TRANSFER_CUDA, .device = device};

    return open_transfer(machine, &machine->direct, &options, layout, blocks, memory, why);
}

static void
close_transfers(void *self)
{
    bt_machine *machine = self;

    bt_plane_close(machine->plane);
    bt_transfer_close(machine->direct);
    bt_transfer_close(machine->transfer);
    machine->plane = NULL;
    machine->direct = machine->transfer = NULL;
}

bt_err
bt_machine_load(bt_machine *machine, const bt_machine_options *options, bt_why *why)
{
    *machine = (bt_machine){.options = *options};
    if (options->shared) {
        machine->options.engine.kv_pool = options->direct == BT_MACHINE_DIRECT_ONLY ? NULL : lend_pool;
        machine->options.engine.kv_device_pool = options->direct != BT_MACHINE_STAGED ? lend_device_pool : NULL;
        machine->options.engine.kv_done = close_transfers;
        machine->options.engine.kv_pool_arg = machine;
    }
    return bt_engine_open(&machine->engine, &machine->options.engine, why);
}

static bt_err
stage_begin(void *self, const bt_transfer_block *blocks, uint32_t count, uint64_t *ticket)
{
    bt_machine *machine = self;

    for (uint32_t i = 0; i < count; i++) {
        machine->landed[i] = blocks[i].to;
    }
    return bt_engine_kv_in(machine->engine, machine->landed, count, ticket);
}

static bt_err
stage_through(void *self, uint64_t *ticket)
{
    return bt_engine_kv_through(((bt_machine *)self)->engine, ticket);
}

static bt_err
prepare_stage(bt_machine *machine, bt_plane_stage *stage)
{
    const bt_engine *engine = machine->engine;

    if (!bt_engine_kv_is_apart(engine) || machine->options.engine.kv_out) {
        return BT_OK;
    }
    *stage =
        (bt_plane_stage){.begin = stage_begin, .through = stage_through, .arg = machine, .fd = bt_engine_kv_fd(engine)};
    machine->landed = bt_alloc_array(machine->options.plane.fetch_blocks_max, sizeof *machine->landed);
    return machine->landed != NULL ? BT_OK : BT_ERR_NO_MEMORY;
}

bt_err
bt_machine_start(bt_machine *machine, bt_why *why)
{
    bt_plane_options *plane = &machine->options.plane;
    bt_transfer *first = machine->direct != NULL ? machine->direct : machine->transfer;
    bt_err err;

    if (first == NULL) {
        return BT_OK;
    }
    plane->second = machine->direct != NULL ? machine->transfer : NULL;
    if (prepare_stage(machine, machine->direct != NULL ? &plane->second_stage : &plane->stage) != BT_OK) {
        return bt_fail(why, BT_ERR_NO_MEMORY, "data plane: no memory");
    }
    if ((err = bt_plane_open(&machine->plane, first, plane, why)) == BT_OK) {
        machine->direct = machine->transfer = NULL;
    }
    return err;
}

void
bt_machine_close(bt_machine *machine)
{
    bt_plane_stop(machine->plane);    // it copies into the engine's pool
    bt_engine_close(machine->engine); // which closes the transfers too
    close_transfers(machine);         // where there is none
    bt_free(machine->landed);
    *machine = (bt_machine){0};
}
