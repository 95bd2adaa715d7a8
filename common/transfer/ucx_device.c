// Pools in a GPU's memory, where UCX knows CUDA: it reads them (cuda_ipc within a host, RDMA beyond), and the GPU sums what has come, since
// this process cannot. UCX's build says what it knows: Debian's knows the host's memory alone, PyPI's libucx-cu13 CUDA's too (README.md).
#include "common/transfer/ucx.h"

#include "common/base/mem.h"

#define AWAIT (50 * BT_MILLISECOND) // sums of a piece take microseconds

bt_err
bt_ucx_device_open(bt_ucx *u, size_t bytes, bt_why *why)
{
    ucp_context_attr_t knows = {.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES};
    bt_copier_options options = {.batches = u->o.window, .blocks = bt_piece_blocks(&u->o), .notify = true};
    ucs_status_t status = ucp_context_query(u->context, &knows);

    if (status != UCS_OK) {
        return bt_ucx_fail(why, BT_ERR_DEVICE, "memory types", status);
    }
    if ((knows.memory_types & UCS_BIT(UCS_MEMORY_TYPE_CUDA)) == 0) {
        return bt_fail(
            why, BT_ERR_UNSUPPORTED,
            "transfer: UCX %s knows no CUDA memory (types 0x%llx): PyPI's libucx-cu13 does, see -DUCX_ROOT=; "
            "and UCX_TLS must not leave cuda out",
            ucp_get_version_string(), (unsigned long long)knows.memory_types);
    }
    u->summing = bt_alloc_array(bt_piece_count(&u->o), sizeof *u->summing);
    u->memory = bt_device_alloc(u->o.device, bytes);
    if (u->summing == NULL || u->memory == NULL) {
        return bt_fail(why, BT_ERR_NO_MEMORY, "transfer: a pool of %.1f MiB on the GPU, %.1f MiB are free",
                       (double)bytes / 0x1p20, (double)bt_device_available(u->o.device) / 0x1p20);
    }
    return bt_copier_open(&u->copier, u->o.device, &options, why);
}

void
bt_ucx_device_close(bt_ucx *u)
{
    if (u->o.memory != BT_TRANSFER_CUDA) {
        return;
    }
    bt_copier_close(u->copier);
    bt_device_free(u->o.device, u->memory, 0);
    bt_free(u->summing);
}

void
bt_ucx_device_sum(bt_ucx *u, bt_piece *piece)
{
    u->summing[u->summing_count++] = piece;
}

static void
end_oldest(bt_ucx *u, bt_err err)
{
    bt_piece *piece = u->summing[0];

    u->summing_count--;
    for (uint32_t i = 0; i < u->summing_count; i++) {
        u->summing[i] = u->summing[i + 1];
    }
    bt_ucx_end_piece(piece, err);
}

// A batch's sums and trailers. Trailers were read after the bytes had come, so that with the sums they vouch for them.
static void
land_oldest(bt_ucx *u, uint64_t ticket)
{
    bt_piece *piece = u->summing[0];
    const bt_copier_landed *landed = bt_copier_landed_of(u->copier, ticket);

    for (uint32_t i = 0; i < piece->count; i++) {
        piece->sums[i] = landed[i].sum;
        piece->trailers[i] = landed[i].trailer;
    }
    piece->summed = true;
    u->summed--;
    end_oldest(u, BT_OK);
}

void
bt_ucx_device_turn(bt_ucx *u)
{
    uint64_t through = 0, ticket;
    bt_err err = bt_copier_through(u->copier, &through);

    while (err == BT_OK && u->ended < through) {
        land_oldest(u, ++u->ended);
    }
    while (err == BT_OK && u->summed < u->summing_count && u->summed < u->o.window) { // as many as there are batches
        bt_piece *piece = u->summing[u->summed];

        err = bt_copier_sum(u->copier, &u->o.layout, bt_ucx_landing(u, piece), piece->count, &ticket);
        u->summed += err == BT_OK;
    }
    while (err != BT_OK && err != BT_ERR_BUSY && u->summing_count != 0) { // the GPU has failed
        end_oldest(u, BT_ERR_DEVICE);
        u->summed = 0;
    }
}

bool
bt_ucx_device_await(bt_ucx *u, const bt_piece *piece)
{
    bt_time until = bt_time_now() + AWAIT;

    while (piece->state == BT_PIECE_MOVING && bt_time_now() < until) {
        bt_ucx_device_turn(u);
    }
    return piece->state != BT_PIECE_MOVING;
}
