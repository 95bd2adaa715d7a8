// Which activations are ready when a linear call begins.
#include "kernels/cuda/ready.cuh"

#include "kernels/cuda/linear_call.cuh"

bt_row_target
bt_cuda_next_target(const bt_cuda *cuda, const bt_linear_next *next, uint32_t tokens, bt_cuda_a8_order order)
{
    const bt_weight *w = next->weights[0];
    bt_row_target t;

    memset(&t, 0, sizeof t);
    t.norm = next->norm, t.norm_eps = next->norm_eps;
    t.cols = w->cols, t.act_block = w->format.act_block, t.order = order;
    t.a8 = cuda->a8_next, t.sa = cuda->sa_next;
    t.a8_stride = bt_cuda_a8_columns(t.cols), t.sa_stride = bt_cuda_sa_stride(cuda, tokens);
    return t;
}

void
bt_cuda_remember(bt_cuda *cuda, const bt_linear_next *next, const float *y, size_t y_stride, uint32_t tokens,
                 bt_cuda_a8_order order, bool alone)
{
    const bt_weight *w = next->weights[0];
    bt_cuda_ready r = {y,     BT_WEIGHT_INT,       y_stride, tokens, w->cols, next->norm, next->norm_eps,
                       alone, w->format.act_block, order};

    cuda->ready = r;
}

// Is what this call reads there already? Then it is what cuda->a8 and sa are from now on.
static bool
take(bt_cuda *cuda, const bt_linear_args *a, bt_cuda_a8_order order)
{
    const bt_cuda_ready r = cuda->ready;
    const bt_weight *w = a->weights[0];
    int8_t *a8 = cuda->a8;
    float *sa = cuda->sa;

    if (r.x == NULL || r.kind != BT_WEIGHT_INT || w->format.kind != BT_WEIGHT_INT || r.x != a->x ||
        r.x_stride != a->x_stride || r.tokens != a->tokens || r.cols != w->cols || r.act_block != w->format.act_block ||
        r.order != order || r.norm != a->norm || (r.norm != NULL && r.norm_eps != a->norm_eps)) {
        bt_cuda_forget(cuda, a->x);
        return false;
    }
    cuda->ready.x = NULL;
    cuda->a8 = cuda->a8_next, cuda->a8_next = a8;
    cuda->sa = cuda->sa_next, cuda->sa_next = sa;
    return true;
}

bt_err
bt_cuda_activations(bt_cuda *cuda, const bt_linear_args *args, linear_call *c)
{
    bt_err err = take(cuda, args, c->order) ? BT_OK : bt_cuda_prologue(cuda, args, c->order);

    c->a8 = cuda->a8, c->sa = cuda->sa;
    return err;
}
