// How much of the GPU tests runs: all, or about one case in N with BATON_GPU_QUICK=N in the environment. compute-sanitizer makes kernels
// a hundred times slower (sanitize.sh).
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

// Is case `i` of a loop run? Any loop's first case of all is.
static inline bool
bt_gpu_takes(uint32_t i)
{
    const char *quick = getenv("BATON_GPU_QUICK");
    uint32_t n = quick != NULL ? (uint32_t)strtoul(quick, NULL, 10) : 1;

    return n <= 1 || i % n == 0;
}
