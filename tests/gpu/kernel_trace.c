// Writes down when each kernel, copy and launch of a program began and ended, on the GPU's own clock: CUDA loads this library by itself.
//
//     CUDA_INJECTION64_PATH=./libkernel_trace.so BATON_TRACE=trace.txt baton bench engine …
//     python3 kernel_trace.py trace.txt
//
// A line each: what, begin and end in ns, graph, grid, block, dynamic shared memory, name. Kernels are recorded where they run, also those of graphs and
// those that overlap by programmatic dependence; CUPTI (of the CUDA toolkit) does the work. BATON_TRACE_CALLS=20: also each call of the driver that took
// 20 us and more, to see what a start is made of. Recording each kernel of a graph makes its launch several times slower: BATON_TRACE_GRAPHS=1
// records graphs as wholes, to see what is between two of them.
#include <cupti.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define BUFFER_BYTES ((size_t)8 << 20)

static FILE *out;
static uint64_t least_ns; // of a call

static void CUPTIAPI
lend_buffer(uint8_t **buffer, size_t *bytes, size_t *records)
{
    *bytes = BUFFER_BYTES;
    *records = 0;
    *buffer = aligned_alloc(8, BUFFER_BYTES);
}

static void
write_record(CUpti_Activity *record)
{
    if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
        const CUpti_ActivityKernel10 *k = (const void *)record;

        fprintf(out, "K %llu %llu %u %dx%dx%d %d %d %s\n", (unsigned long long)k->start, (unsigned long long)k->end,
                k->graphId, k->gridX, k->gridY, k->gridZ, k->blockX, k->dynamicSharedMemory, k->name);
    } else if (record->kind == CUPTI_ACTIVITY_KIND_GRAPH_TRACE) {
        const CUpti_ActivityGraphTrace2 *g = (const void *)record;

        fprintf(out, "G %llu %llu %u 0 0 0 graph\n", (unsigned long long)g->start, (unsigned long long)g->end,
                g->graphId);
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
        const CUpti_ActivityMemcpy6 *m = (const void *)record;

        fprintf(out, "M %llu %llu %u %llu 0 0 copy%u\n", (unsigned long long)m->start, (unsigned long long)m->end,
                m->graphId, (unsigned long long)m->bytes, m->copyKind);
    } else if (record->kind == CUPTI_ACTIVITY_KIND_DRIVER || record->kind == CUPTI_ACTIVITY_KIND_RUNTIME) {
        const CUpti_ActivityAPI *a = (const void *)record;
        const char *name = NULL;

        if (a->end - a->start < least_ns) {
            return;
        }
        cuptiGetCallbackName(a->kind == CUPTI_ACTIVITY_KIND_DRIVER ? CUPTI_CB_DOMAIN_DRIVER_API
                                                                   : CUPTI_CB_DOMAIN_RUNTIME_API,
                             a->cbid, &name);
        fprintf(out, "A %llu %llu 0 0 0 0 %s\n", (unsigned long long)a->start, (unsigned long long)a->end,
                name != NULL ? name : "?");
    }
}

static void CUPTIAPI
take_buffer(CUcontext context, uint32_t stream, uint8_t *buffer, size_t bytes, size_t valid)
{
    CUpti_Activity *record = NULL;

    (void)context, (void)stream, (void)bytes;
    while (valid != 0 && cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) {
        write_record(record);
    }
    free(buffer);
}

static void
finish(void)
{
    cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
    fclose(out);
}

// Of a million calls that ask whether the stream is done nothing is kept.
static CUptiResult
watch_launches(void)
{
    static const CUpti_driver_api_trace_cbid calls[] = {
        CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch,
        CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch_ptsz,
        CUPTI_DRIVER_TRACE_CBID_cuMemcpyHtoDAsync_v2,
        CUPTI_DRIVER_TRACE_CBID_cuMemcpyDtoHAsync_v2,
        CUPTI_DRIVER_TRACE_CBID_cuGraphInstantiateWithFlags,
        CUPTI_DRIVER_TRACE_CBID_cuMemcpyAsync,
        CUPTI_DRIVER_TRACE_CBID_cuGraphUpload,
    };
    const char *all = getenv("BATON_TRACE_CALLS");
    CUptiResult result = CUPTI_SUCCESS;

    if (all != NULL) {
        least_ns = strtoul(all, NULL, 10) * 1000;
        result = cuptiActivityEnable(CUPTI_ACTIVITY_KIND_DRIVER);
        return result == CUPTI_SUCCESS ? cuptiActivityEnable(CUPTI_ACTIVITY_KIND_RUNTIME) : result;
    }
    for (size_t i = 0; i < sizeof calls / sizeof *calls && result == CUPTI_SUCCESS; i++) {
        result = cuptiActivityEnableDriverApi(calls[i], 1);
    }
    return result;
}

int InitializeInjection(void); // what CUDA calls

int
InitializeInjection(void)
{
    const char *path = getenv("BATON_TRACE");
    CUptiResult result;

    out = fopen(path != NULL ? path : "trace.txt", "w");
    if (out == NULL) {
        perror("kernel_trace");
        return 0;
    }
    atexit(finish);
    if ((result = cuptiActivityRegisterCallbacks(lend_buffer, take_buffer)) != CUPTI_SUCCESS ||
        (result = cuptiActivityEnable(getenv("BATON_TRACE_GRAPHS") != NULL ? CUPTI_ACTIVITY_KIND_GRAPH_TRACE
                                                                           : CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL)) !=
            CUPTI_SUCCESS ||
        (result = cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMCPY)) != CUPTI_SUCCESS ||
        (result = cuptiActivityFlushPeriod(1000)) != CUPTI_SUCCESS || // for those that are killed
        (result = watch_launches()) != CUPTI_SUCCESS) {
        const char *why = "";

        cuptiGetResultString(result, &why);
        fprintf(stderr, "kernel_trace: %s\n", why);
    }
    return 1;
}
