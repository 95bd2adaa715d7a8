// The specification as a path of the launcher: one query, head and split after the other.
#include "kernels/cpu/attention.h"

static void
finish(float *partials, uint32_t splits, uint32_t head_dim, float *out)
{
    size_t floats = bt_attention_partial_floats(head_dim);

    for (uint32_t split = 1; split < splits; split++) {
        bt_ref_attention_merge(partials, partials + split * floats, head_dim);
    }
    bt_ref_attention_out(partials, head_dim, out);
}

// The scratch of a thread holds a total and a partial.
static void
attend_all(const bt_attention_item *item, uint32_t token, uint32_t head)
{
    const bt_attention_args *a = item->job->args;
    uint32_t row = item->span->row + token, splits = (item->span->position + token) / BT_ATTENTION_SPLIT + 1;
    float *total = (float *)(void *)item->scratch, *partial = total + bt_attention_partial_floats(a->head_dim);

    total[BT_PARTIAL_SEEN] = 0.0f;
    for (uint32_t split = 0; split < splits; split++) {
        bt_ref_attention_split(item->job, item->span, token, head, split, partial);
        bt_ref_attention_merge(total, partial, a->head_dim);
    }
    bt_ref_attention_out(total, a->head_dim, a->out + row * a->out_stride + (size_t)head * a->head_dim);
}

static void
attend(const bt_attention_item *item)
{
    uint32_t group = item->job->group;
    size_t floats = bt_attention_partial_floats(item->job->args->head_dim);

    for (uint32_t token = item->first; token < item->first + item->count; token++) {
        for (uint32_t head = item->kv_head * group; head < (item->kv_head + 1) * group; head++) {
            if (item->partials == NULL) {
                attend_all(item, token, head);
            } else {
                float *partials =
                    bt_attention_partial(item->partials, item->splits, item->job, item->span->row + token, head);

                bt_ref_attention_split(item->job, item->span, token, head, item->split,
                                       partials + item->split * floats);
            }
        }
    }
}

const bt_attention_path bt_attention_path_ref = {bt_ref_attention_prepare, attend, finish};
