// Linear layers of many tokens whose weights have one scale a row: cuBLASLt multiplies INT8, and the s32 is finished here.
#include "kernels/cuda/linear_products.cuh"

// ---- products of cuBLASLt, finished ----

// The numbers of four neighbouring rows, as y will have them.
static __device__ __forceinline__ void
finish_four(const linear_call &c, uint32_t part, uint32_t row, uint32_t token, const int32_t *dots, float r[4])
{
    int4 dot = *(const int4 *)dots;
    const int32_t of[4] = {dot.x, dot.y, dot.z, dot.w};
    float sa = c.sa[token];

#pragma unroll
    for (int i = 0; i < 4; i++) {
        float sw = bt_cuda_scale(&c.part[part], c.part[part].scales, row + i, 0);

        r[i] = finish(c, part, row + i, token, fmaf(sw * sa, (float)of[i], 0.0f));
    }
}

// A thread takes four rows of one token (a part has a multiple of 16).
static __global__ void __launch_bounds__(256) s32_kernel(const __grid_constant__ linear_call c, const int32_t *s32,
                                                         size_t stride, uint32_t first_token, uint32_t up_at)
{
    uint32_t row = (blockIdx.x * blockDim.x + threadIdx.x) * 4, token = first_token + blockIdx.y, part, start;
    const int32_t *from = s32 + blockIdx.y * stride + row;
    float *y = c.y + token * c.y_stride + row;
    bool together = c.y_stride % 4 == 0 && (uintptr_t)c.y % 16 == 0;
    float r[4], up[4], old[4] = {};

    if (!find_part(c, row, &part, &start)) {
        return;
    }
    if (c.epilogue == BT_LINEAR_ADD) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            old[i] = y[i];
        }
    }
    finish_four(c, part, row - start, token, from, r);
    if (c.paired) {
        finish_four(c, 1, row, token, from + up_at, up);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        r[i] = c.paired                      ? pair_value(c, r[i], up[i])
               : c.epilogue == BT_LINEAR_ADD ? fmaf(c.scale, r[i], old[i])
                                             : c.scale * r[i];
    }
    if (together) {
        *(float4 *)y = make_float4(r[0], r[1], r[2], r[3]);
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        y[i] = r[i];
    }
}

// ---- launch ----

static bt_cublas_shape
shape_of(const linear_call *c, uint32_t part, size_t rows_all, uint32_t tokens)
{
    bt_cublas_shape s;

    s.rows = c->part[part].rows, s.cols = c->padded, s.tokens = (tokens + 63) / 64 * 64;
    s.codes_stride = c->part[part].padded, s.a8_stride = c->a8_stride, s.out_stride = rows_all;
    return s;
}

bool
bt_cuda_wants_products(const bt_cuda *cuda, const linear_call *c)
{
    size_t rows_all = rows_of_all(c);
    uint32_t whole = c->tokens < cuda->s32_tokens ? c->tokens : cuda->s32_tokens;
    uint32_t rest = cuda->s32_tokens != 0 ? c->tokens % cuda->s32_tokens : 0;

    if (cuda->cublas == NULL || c->tokens < 128 || rows_all > 4 * (size_t)cuda->limits.cols) {
        return false;
    }
    for (uint32_t i = 0; i < c->part_count; i++) {
        const bt_cuda_matrix *m = &c->part[i];
        bt_cublas_shape most = shape_of(c, i, rows_all, whole),
                        last = shape_of(c, i, rows_all, rest != 0 ? rest : whole);

        if (m->kind != BT_WEIGHT_INT || m->block != BT_BLOCK_ROW || m->act_block != BT_BLOCK_ROW || m->rows % 16 != 0 ||
            !bt_cublas_has(cuda->cublas, &most) || !bt_cublas_has(cuda->cublas, &last)) {
            return false;
        }
    }
    return true;
}

bt_err
bt_cuda_products(bt_cuda *cuda, const linear_call *c)
{
    size_t rows_all = rows_of_all(c);

    for (uint32_t first = 0; first < c->tokens; first += cuda->s32_tokens) {
        uint32_t tokens = c->tokens - first < cuda->s32_tokens ? c->tokens - first : cuda->s32_tokens;
        size_t at = 0;

        for (uint32_t i = 0; i < c->part_count; i++) {
            bt_cublas_shape shape = shape_of(c, i, rows_all, tokens);
            bt_err err = bt_cublas_s8(cuda->cublas, cuda, &shape, (const int8_t *)c->part[i].codes,
                                      c->a8 + first * c->a8_stride, cuda->s32 + at);

            if (err != BT_OK) {
                return err;
            }
            at += c->part[i].rows;
        }
        s32_kernel<<<dim3(((c->paired ? c->part[0].rows : (uint32_t)rows_all) + 1023) / 1024, tokens), 256, 0,
                     cuda->stream>>>(*c, cuda->s32, rows_all, first, c->part[0].rows);
    }
    return bt_cuda_launched(cuda, "linear, cuBLASLt");
}
