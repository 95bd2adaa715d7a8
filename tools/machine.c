#include "tools/machine.h"

static bt_err
lend_pool(void *self, const bt_kv_layout *layout, uint32_t blocks, uint8_t **memory, bt_why *why)
{
    bt_machine *machine = self;
    bt_transfer_options options = machine->options.transfer;
    bt_err err;

    options.layout = *layout;
    options.blocks = blocks;
    bt_plane_size_transfer(&machine->options.plane, &options);
    if ((err = bt_transfer_open(&machine->transfer, &options, why)) == BT_OK) {
        *memory = bt_transfer_pool(machine->transfer);
    }
    return err;
}

bt_err
bt_machine_load(bt_machine *machine, const bt_machine_options *options, bt_why *why)
{
    *machine = (bt_machine){.options = *options};
    if (options->shared) {
        machine->options.engine.kv_pool = lend_pool;
        machine->options.engine.kv_pool_arg = machine;
    }
    return bt_engine_open(&machine->engine, &machine->options.engine, why);
}

bt_err
bt_machine_start(bt_machine *machine, bt_why *why)
{
    bt_err err;

    if (machine->transfer == NULL) {
        return BT_OK;
    }
    if ((err = bt_plane_open(&machine->plane, machine->transfer, &machine->options.plane, why)) == BT_OK) {
        machine->transfer = NULL;
    }
    return err;
}

void
bt_machine_close(bt_machine *machine)
{
    bt_engine_close(machine->engine); // before the memory of its pool
    bt_plane_close(machine->plane);
    bt_transfer_close(machine->transfer);
    *machine = (bt_machine){0};
}
