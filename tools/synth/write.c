// Draws the weights and writes them, each thread its pieces at their places.
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/tensor/dtype.h"
#include "tools/synth/model.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PIECE_BYTES ((size_t)1 << 20)
#define VALUES 4096u // that a float weight may take

typedef struct {
    const bt_synth_model *model;
    int fd;
    uint64_t data_at;
    uint32_t *pieces_end; // [tensors] pieces of this and all tensors before it
    _Atomic uint32_t next;
    atomic_int error; // errno of the first that failed
} writing;

// A thread's: a piece as it is written, and the values of float weights for one K.
typedef struct {
    uint8_t bytes[PIECE_BYTES];
    union {
        uint16_t half[VALUES];
        float single[VALUES];
    } values;
    uint32_t values_type, values_cols; // what they are for
} buffer;

static uint32_t
rows_of_piece(const bt_synth_tensor *t)
{
    size_t rows = PIECE_BYTES / bt_ggml_row_bytes(t->type, t->cols);

    return rows < t->rows ? (uint32_t)rows : t->rows != 0 ? t->rows : 1;
}

// Scales differ by block, as real ones do; codes are uniform.
static uint16_t
scale_of(uint64_t draw, float middle)
{
    return bt_f32_to_f16(middle * (0.75f + 0.5f * (float)(draw >> 40) * 0x1p-24f));
}

static void
draw_q8_0(bt_rng *rng, uint32_t cols, uint8_t *out)
{
    float middle = sqrtf(3.0f / (float)cols) / 127;

    for (uint32_t i = 0; i < cols; i += 32, out += 34) {
        uint16_t scale = scale_of(bt_rng_next(rng), middle);

        memcpy(out, &scale, 2);
        for (int j = 0; j < 4; j++) {
            uint64_t codes = bt_rng_next(rng);

            memcpy(out + 2 + 8 * j, &codes, 8);
        }
    }
}

// Codes have a mean of −½: half of the scales are negative, so that rows have none.
static void
draw_q4_0(bt_rng *rng, uint32_t cols, uint8_t *out)
{
    float middle = sqrtf(12.0f / 256 / (float)cols);

    for (uint32_t i = 0; i < cols; i += 32, out += 18) {
        uint64_t draw = bt_rng_next(rng), codes[2] = {bt_rng_next(rng), bt_rng_next(rng)};
        uint16_t scale = (uint16_t)(scale_of(draw, middle) | (draw & 1) << 15);

        memcpy(out, &scale, 2);
        memcpy(out + 2, codes, 16);
    }
}

static void
fill_values(buffer *b, uint32_t type, uint32_t cols)
{
    if (b->values_type == type && b->values_cols == cols) {
        return;
    }
    b->values_type = type;
    b->values_cols = cols;
    for (uint32_t i = 0; i < VALUES; i++) {
        float value = sqrtf(3.0f / (float)cols) * (((float)i + 0.5f) * (2.0f / VALUES) - 1);

        if (type == BT_GGML_F32) {
            b->values.single[i] = value;
        } else {
            b->values.half[i] = type == BT_GGML_F16 ? bt_f32_to_f16(value) : bt_f32_to_bf16(value);
        }
    }
}

static void
draw_floats(bt_rng *rng, buffer *b, uint32_t type, uint32_t cols, uint8_t *out)
{
    uint64_t draw = 0;

    fill_values(b, type, cols);
    for (uint32_t i = 0; i < cols; i++, draw >>= 12) {
        draw = i % 5 == 0 ? bt_rng_next(rng) : draw;
        if (type == BT_GGML_F32) {
            memcpy(out + (size_t)i * 4, &b->values.single[draw % VALUES], 4);
        } else {
            memcpy(out + (size_t)i * 2, &b->values.half[draw % VALUES], 2);
        }
    }
}

static void
draw_row(const writing *w, uint32_t tensor, uint32_t row, buffer *b, uint8_t *out)
{
    const bt_synth_tensor *t = &w->model->tensors[tensor];
    bt_rng rng = {bt_mix64(w->model->options.seed ^ bt_mix64((uint64_t)tensor << 32 | row))};

    if (t->rows == 0) {
        for (uint32_t i = 0; i < t->cols; i++) {
            memcpy(out + (size_t)i * 4, &(float){1}, 4);
        }
    } else if (t->type == BT_GGML_Q8_0) {
        draw_q8_0(&rng, t->cols, out);
    } else if (t->type == BT_GGML_Q4_0) {
        draw_q4_0(&rng, t->cols, out);
    } else {
        draw_floats(&rng, b, t->type, t->cols, out);
    }
}

// 0, or the system's errno.
static int
write_at(int fd, const void *bytes, size_t count, uint64_t at)
{
    const uint8_t *from = bytes;

    while (count != 0) {
        ssize_t wrote = pwrite(fd, from, count, (off_t)at);

        if (wrote < 0 && errno == EINTR) {
            continue;
        }
        if (wrote <= 0) {
            return wrote < 0 ? errno : ENOSPC;
        }
        from += wrote;
        at += (uint64_t)wrote;
        count -= (size_t)wrote;
    }
    return 0;
}

static int
write_piece(const writing *w, uint32_t tensor, uint32_t piece, buffer *b)
{
    const bt_synth_tensor *t = &w->model->tensors[tensor];
    uint32_t each = rows_of_piece(t), first = piece * each, rows = t->rows != 0 ? t->rows - first : 1;
    size_t row_bytes = bt_ggml_row_bytes(t->type, t->cols);

    rows = rows < each ? rows : each;
    for (uint32_t i = 0; i < rows; i++) {
        draw_row(w, tensor, first + i, b, b->bytes + i * row_bytes);
    }
    return write_at(w->fd, b->bytes, rows * row_bytes, w->data_at + t->offset + first * (uint64_t)row_bytes);
}

static void
write_thread(void *arg, uint32_t thread, uint32_t threads)
{
    writing *w = arg;
    buffer *b = bt_alloc(sizeof *b);
    uint32_t tensor = 0, piece;
    int error = b != NULL ? 0 : ENOMEM;

    (void)thread;
    (void)threads;
    while (error == 0 && atomic_load(&w->error) == 0 &&
           (piece = atomic_fetch_add(&w->next, 1)) < w->pieces_end[w->model->count - 1]) {
        while (piece >= w->pieces_end[tensor]) {
            tensor++;
        }
        error = write_piece(w, tensor, tensor == 0 ? piece : piece - w->pieces_end[tensor - 1], b);
    }
    if (error != 0) {
        atomic_store(&w->error, error);
    }
    bt_free(b);
}

// 0 or errno.
static int
write_data(const bt_synth_model *m, int fd, uint64_t data_at, bt_device *device)
{
    writing w = {.model = m, .fd = fd, .data_at = data_at};
    uint32_t pieces = 0;

    if ((w.pieces_end = bt_alloc_array(m->count, sizeof *w.pieces_end)) == NULL) {
        return ENOMEM;
    }
    for (uint32_t i = 0; i < m->count; i++) {
        uint32_t each = rows_of_piece(&m->tensors[i]), rows = m->tensors[i].rows != 0 ? m->tensors[i].rows : 1;

        pieces += (rows + each - 1) / each;
        w.pieces_end[i] = pieces;
    }
    bt_device_parallel(device, write_thread, &w);
    bt_free(w.pieces_end);
    return atomic_load(&w.error);
}

static bt_err
failed(const char *path, int error, bt_why *why)
{
    return bt_fail(why, BT_ERR_IO, "%s: %s", path, strerror(error));
}

// Head and data (if `model` is given) into path.part, then path.
static bt_err
write_file(const char *path, const bt_buf *head, const bt_synth_model *model, bt_device *device, bt_why *why)
{
    char part[1100];
    int fd, error;

    snprintf(part, sizeof part, "%s.part", path);
    if ((fd = open(part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)) < 0) {
        return failed(part, errno, why);
    }
    error = write_at(fd, head->data, head->len, 0);
    if (error == 0 && model != NULL) {
        error = write_data(model, fd, head->len, device);
    }
    // The last tensor's padding belongs to the file.
    if (error == 0 && model != NULL && ftruncate(fd, (off_t)(head->len + model->data_bytes)) != 0) {
        error = errno;
    }
    if (close(fd) != 0 && error == 0) {
        error = errno;
    }
    if (error == 0 && rename(part, path) != 0) {
        error = errno;
    }
    if (error != 0) {
        unlink(part);
        return failed(path, error, why);
    }
    return BT_OK;
}

static bt_err
write_folder(const bt_synth_model *m, const char *path, const bt_buf *head, bt_device *device, bt_why *why)
{
    char inside[1060];
    bt_buf config;
    bt_err err = BT_OK;

    if (mkdir(path, 0777) != 0 && errno != EEXIST) {
        return failed(path, errno, why);
    }
    bt_buf_init(&config, 1u << 20);
    bt_synth_config(m, &config);
    snprintf(inside, sizeof inside, "%s/model.safetensors", path);
    if ((err = write_file(inside, head, m, device, why)) == BT_OK) {
        snprintf(inside, sizeof inside, "%s/config.json", path);
        err = write_file(inside, &config, NULL, device, why);
    }
    bt_buf_fini(&config);
    return err;
}

bt_err
bt_synth_write(const bt_synth_options *options, const char *path, bt_device *device, uint64_t *bytes, bt_why *why)
{
    bt_synth_model model;
    bt_buf head;
    bt_err err;

    if (strlen(path) > 1000) {
        return bt_fail(why, BT_ERR_TOO_LONG, "the path is longer than 1000 bytes");
    }
    if ((err = bt_synth_model_open(&model, options, why)) != BT_OK) {
        return err;
    }
    bt_buf_init(&head, 256u << 20);
    (options->safetensors ? bt_synth_safetensors_head : bt_synth_gguf_head)(&model, &head);
    if (head.failed) {
        err = bt_fail(why, BT_ERR_NO_MEMORY, "%s: out of memory", path);
    } else if (options->safetensors) {
        err = write_folder(&model, path, &head, device, why);
    } else {
        err = write_file(path, &head, &model, device, why);
    }
    *bytes = head.len + model.data_bytes;
    bt_buf_fini(&head);
    bt_synth_model_close(&model);
    return err;
}
