#include "common/kv/table.h"

#include "common/base/mem.h"

#include <assert.h>

bt_err
bt_kv_table_init(bt_kv_table *table, uint32_t limit)
{
    bt_block *blocks = bt_alloc_array(limit, sizeof *blocks);

    if (blocks == NULL) {
        return BT_ERR_NO_MEMORY;
    }
    *table = (bt_kv_table){.blocks = blocks, .limit = limit};
    return BT_OK;
}

void
bt_kv_table_fini(bt_kv_table *table)
{
    assert(table->count == 0);
    bt_free(table->blocks);
    *table = (bt_kv_table){0};
}

bt_err
bt_kv_table_grow(bt_kv_table *table, bt_kv_pool *pool, uint32_t count)
{
    bt_block last = table->count != 0 ? table->blocks[table->count - 1] : BT_BLOCK_NONE;
    bt_err err;

    if (count <= table->count) {
        return BT_OK;
    }
    if (count > table->limit) {
        return BT_ERR_TOO_LONG;
    }
    err = bt_kv_pool_take(pool, last, count - table->count, table->blocks + table->count);
    if (err == BT_OK) {
        table->count = count;
    }
    return err;
}

void
bt_kv_table_shrink(bt_kv_table *table, bt_kv_pool *pool, uint32_t count)
{
    while (table->count > count) {
        bt_kv_pool_release(pool, table->blocks[--table->count]);
    }
}
