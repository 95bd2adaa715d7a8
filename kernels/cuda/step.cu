// Steps: the arrays that they bring, and those that write answers recorded as graphs once their shape has been seen.
#include "kernels/cuda/cuda.cuh"

#include "kernels/cpu/ref/attention.h"

#include <algorithm>
#include <string.h>

// ---- what a step brings ----

// Where the host's image of a device array lies.
static uint8_t *
host_of(const bt_cuda *cuda, const void *on_device)
{
    return cuda->step.host + ((const uint8_t *)on_device - cuda->scratch);
}

// Sequences of more than one token in pieces of `most` tokens, the first `few` tokens in pieces of `fewer`: those with the most keys first, so that
// the last blocks of threads to start are the shortest.
static uint32_t
fill_tiles(const bt_step_args *a, uint32_t most, uint32_t few, uint32_t fewer, bt_cuda_tile *tiles)
{
    const uint32_t *positions = a->positions;
    uint32_t n = 0, done = 0;

    for (uint32_t i = 0; i < a->span_count; i++) {
        const bt_attention_span *span = &a->spans[i];
        uint32_t count;

        for (uint32_t t = 0; span->count > 1 && t < span->count; t += count) {
            count = done < few ? fewer : most;
            count = span->count - t < count ? span->count - t : count;
            done += count;
            tiles[n++] = (bt_cuda_tile){span->row + t, count};
        }
    }
    std::sort(tiles, tiles + n, [positions](const bt_cuda_tile &a, const bt_cuda_tile &b) {
        return positions[a.row] > positions[b.row];
    });
    return n;
}

static void
fill_singles(bt_cuda *cuda, const bt_step_args *a)
{
    bt_cuda_tile *singles = (bt_cuda_tile *)host_of(cuda, cuda->step.at.singles);

    cuda->step.single_count = 0;
    for (uint32_t i = 0; i < a->span_count; i++) {
        if (a->spans[i].count == 1) {
            singles[cuda->step.single_count++] = (bt_cuda_tile){a->spans[i].row, 1};
        }
    }
}

// Three tiles a squad, of which a multiprocessor has one at a time; two where that is enough for all. What is left behind whole rounds of three on
// all multiprocessors goes in squads of fewer, so that no multiprocessor has a whole round more than others. No squads where a third of their
// tiles would be missing, as where many sequences bring few tokens each.
static void
fill_squads(bt_cuda *cuda, const bt_step_args *a)
{
    bt_cuda_step *s = &cuda->step;
    uint32_t sms = (uint32_t)cuda->sms, kv_heads = cuda->limits.kv_heads, group, items, rest, last, few;
    bt_cuda_tile *squads = (bt_cuda_tile *)host_of(cuda, s->at.squads);

    s->squad_count = 0;
    if (!cuda->squad || s->tile_count == 0 || kv_heads == 0 || cuda->limits.heads / kv_heads > BT_CUDA_TILE_COLUMNS) {
        return;
    }
    group = cuda->limits.heads / kv_heads, items = s->tile_count * kv_heads;
    s->squad_tiles = items <= 2 * sms ? 2 : 3;
    rest = items % (s->squad_tiles * sms), last = (rest + sms - 1) / sms;
    few =
        items < s->squad_tiles * sms || last == s->squad_tiles ? 0 : (rest + kv_heads - 1) / kv_heads * s->tile_tokens;
    s->squad_count =
        fill_tiles(a, s->squad_tiles * BT_CUDA_TILE_COLUMNS / group, few, last * BT_CUDA_TILE_COLUMNS / group, squads);
    if (s->squad_count * s->squad_tiles * 2 > s->tile_count * 3) {
        s->squad_count = 0;
    }
}

// What a device draws with; false when it is more than there is room for.
static bool
fill_draws(bt_cuda *cuda, const bt_step_args *a)
{
    bt_cuda_ends *ends = (bt_cuda_ends *)host_of(cuda, cuda->step.at.ends);

    if (a->row_count > bt_cuda_rows_max(cuda) || a->end_count > BT_DRAW_ENDS_MAX) {
        return false;
    }
    memcpy(host_of(cuda, cuda->step.at.draws), a->draws, a->row_count * sizeof *a->draws);
    ends->count = a->end_count;
    if (a->end_count != 0) {
        memcpy(ends->ids, a->ends, a->end_count * sizeof *a->ends);
    }
    return true;
}

static bool
fill_step(bt_cuda *cuda, const bt_step_args *a, size_t *bytes)
{
    bt_cuda_step *s = &cuda->step;
    uint32_t block_tokens = cuda->limits.block_tokens != 0 ? cuda->limits.block_tokens : 32, at = 0;
    uint32_t *tables, *blocks;

    s->at = a->tokens <= s->few.room ? s->few : s->many;
    tables = (uint32_t *)host_of(cuda, s->at.tables);
    blocks = (uint32_t *)host_of(cuda, s->at.blocks);
    memcpy(host_of(cuda, s->at.ids), a->ids, a->tokens * 4);
    memcpy(host_of(cuda, s->at.positions), a->positions, a->tokens * 4);
    memcpy(host_of(cuda, s->at.rows), a->rows, a->row_count * 4);
    if (a->draws != NULL && !fill_draws(cuda, a)) {
        return false;
    }
    for (uint32_t i = 0; i < a->span_count; i++) {
        const bt_attention_span *span = &a->spans[i];
        uint32_t count = (span->position + span->count + block_tokens - 1) / block_tokens;

        if (at + count > s->blocks_max) {
            return false;
        }
        for (uint32_t t = 0; t < span->count; t++) {
            tables[span->row + t] = at;
        }
        memcpy(blocks + at, span->blocks, (size_t)count * 4);
        at += count;
    }
    fill_singles(cuda, a);
    s->tile_count = fill_tiles(a, s->tile_tokens, 0, 0, (bt_cuda_tile *)host_of(cuda, s->at.tiles));
    fill_squads(cuda, a);
    *bytes = (size_t)((uint8_t *)(s->at.blocks + at) - (uint8_t *)s->at.ids);
    return true;
}

// ---- recorded steps ----

void
bt_cuda_drop_recording(bt_cuda *cuda)
{
    cudaGraph_t graph = NULL;

    if (!cuda->recording || cuda->hangs) {
        return;
    }
    cuda->recording = false;
    cudaStreamEndCapture(cuda->stream, &graph);
    cudaGetLastError(); // what failed has said so
    if (graph != NULL) {
        cudaGraphDestroy(graph);
    }
}

void
bt_cuda_drop_graphs(bt_cuda *cuda)
{
    for (uint32_t i = 0; i < cuda->graph_count; i++) {
        cudaGraphExecDestroy(cuda->graphs[i].exec);
    }
    cuda->graph_count = 0;
}

// A step that writes answers: one token a sequence, each with logits.
static bool
writes_answers(const bt_step_args *a)
{
    return a->tokens == a->span_count && a->row_count == a->tokens;
}

static bool
find_graph(bt_cuda *cuda)
{
    for (uint32_t i = 0; i < cuda->graph_count; i++) {
        if (cuda->graphs[i].tokens == cuda->tokens && cuda->graphs[i].splits == cuda->splits &&
            cuda->graphs[i].draws == cuda->draws) {
            cuda->graph_now = i;
            cuda->graphs[i].used = ++cuda->clock;
            return true;
        }
    }
    return false;
}

static bt_cuda_draws
draws_of(const bt_step_args *a)
{
    for (uint32_t i = 0; a->draws != NULL && i < a->row_count; i++) {
        if (a->draws[i].inverse_t != 0.0f) {
            return BT_CUDA_DRAWS_SCORES;
        }
    }
    return a->draws != NULL ? BT_CUDA_DRAWS_LARGEST : BT_CUDA_DRAWS_NONE;
}

static uint32_t
splits_of(const bt_step_args *a)
{
    uint32_t longest = 1, splits = 1;

    for (uint32_t i = 0; i < a->span_count; i++) {
        uint32_t end = a->spans[i].position + a->spans[i].count;

        longest = end > longest ? end : longest;
    }
    while (splits * BT_ATTENTION_SPLIT < longest) {
        splits *= 2;
    }
    return splits;
}

bt_err
bt_cuda_begin(bt_device *device, const bt_step_args *args, bool *known)
{
    bt_cuda *cuda = bt_cuda_of(device);
    size_t bytes;
    bt_err err;

    *known = false;
    if (cuda->broken != cudaSuccess) {
        return BT_ERR_DEVICE;
    }
    cudaSetDevice(cuda->index);
    bt_cuda_drop_recording(cuda);
    if (args->tokens > cuda->limits.tokens || !fill_step(cuda, args, &bytes)) {
        return BT_ERR_TOO_LONG;
    }
    if ((err = bt_cuda_check(cuda,
                             cudaMemcpyAsync(cuda->step.at.ids, host_of(cuda, cuda->step.at.ids), bytes,
                                             cudaMemcpyHostToDevice, cuda->stream),
                             "step")) != BT_OK) {
        return err;
    }
    bt_cuda_forget(cuda, NULL);
    cuda->tokens = args->tokens;
    cuda->mark_count = 0;
    cuda->splits = splits_of(args);
    cuda->draws = draws_of(args);
    cuda->known = *known = !args->plain && writes_answers(args) && find_graph(cuda);
    cuda->recording = !args->plain && writes_answers(args) && !*known && !cuda->unrecorded;
    return cuda->recording ? bt_cuda_check(cuda, cudaStreamBeginCapture(cuda->stream, cudaStreamCaptureModeThreadLocal),
                                           "begin to record")
                           : BT_OK;
}

// A place for one more graph: the least recently used gives way.
static uint32_t
graph_place(bt_cuda *cuda)
{
    uint32_t oldest = 0;

    if (cuda->graph_count < BT_CUDA_GRAPHS_MAX) {
        return cuda->graph_count++;
    }
    for (uint32_t i = 1; i < cuda->graph_count; i++) {
        oldest = cuda->graphs[i].used < cuda->graphs[oldest].used ? i : oldest;
    }
    cudaGraphExecDestroy(cuda->graphs[oldest].exec);
    return oldest;
}

// Others fill the device: the graphs that there are make room, and if that is not enough steps go without.
static cudaError_t
instantiate(bt_cuda *cuda, cudaGraph_t graph, cudaGraphExec_t *exec)
{
    cudaError_t error = cudaGraphInstantiate(exec, graph, 0);

    if (error == cudaErrorMemoryAllocation && cuda->graph_count != 0) {
        cudaGetLastError();
        bt_cuda_drop_graphs(cuda);
        error = cudaGraphInstantiate(exec, graph, 0);
    }
    return error;
}

static bt_err
keep_recorded(bt_cuda *cuda)
{
    cudaGraphExec_t exec;
    cudaGraph_t graph;
    cudaError_t error = cudaStreamEndCapture(cuda->stream, &graph);

    if (error == cudaSuccess) {
        error = instantiate(cuda, graph, &exec);
        cudaGraphDestroy(graph);
    }
    if (error == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        bt_log_warn("CUDA-FULL", "%s: no memory for graphs of steps: they run without, and slower", cuda->name);
        cuda->unrecorded = true;
        return BT_ERR_BUSY;
    }
    if (error != cudaSuccess) {
        return bt_cuda_check(cuda, error, "record a step");
    }
    cuda->graph_now = graph_place(cuda);
    cuda->graphs[cuda->graph_now] = (bt_cuda_graph){cuda->tokens, cuda->splits, cuda->draws, exec, ++cuda->clock};
    return BT_OK;
}

bt_err
bt_cuda_end(bt_device *device)
{
    bt_cuda *cuda = bt_cuda_of(device);
    bt_err err = BT_OK;

    if (cuda->hangs) {
        return BT_ERR_DEVICE; // found out on the way (cublas.cu); making a graph would wait for it
    }
    if (cuda->recording) {
        cuda->recording = false;
        err = keep_recorded(cuda);
        cuda->known = err == BT_OK;
    }
    if (err == BT_OK && cuda->known) {
        err = bt_cuda_check(cuda, cudaGraphLaunch(cuda->graphs[cuda->graph_now].exec, cuda->stream), "run a step");
    }
    cuda->known = false;
    if (err == BT_OK && cuda->copies) {
        cudaError_t error = cudaEventRecord(cuda->copied, cuda->beside);

        cuda->copies = false;
        err = bt_cuda_check(cuda, error == cudaSuccess ? cudaStreamWaitEvent(cuda->stream, cuda->copied, 0) : error,
                            "copies beside a step");
    }
    return err != BT_OK ? err : bt_cuda_settle(cuda, "step");
}

const int32_t *
bt_cuda_drawn(const bt_device *device)
{
    return ((const bt_cuda *)(const void *)device)->step.drawn;
}
