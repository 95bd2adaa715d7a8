#!/usr/bin/env bash
# tests/gpu/emulated_wide/run.sh BUILD [SLOTS SMS CLUSTERS FORMATS [eager]]: linear layers of many tokens by a CPU (emulated.h), in
# BUILD/emulated_wide, with the libraries of a build with -DBT_CUDA=ON. No GPU is needed; all formats take some minutes.
set -euo pipefail
cd "$(dirname "$0")/../../.."
build=$(realpath "$1") here=tests/gpu/emulated_wide
at=$build/emulated_wide
shift
mkdir -p "$at/kernels/cuda"
for f in kernels/cuda/*.cuh kernels/cuda/linear_wide*.cu; do
    sed -E -e 's/extern __shared__ __align__\([0-9]+\) uint8_t memory\[\];/uint8_t *memory = emu_memory();/' -e 's/__shared__/static/' \
        -e 's/__forceinline__/inline/' -e 's/(^|[^.])gridDim\./\1emu_grid_dim./g' -e 's/(^|[^.])blockDim\./\1emu_block_dim./g' "$f" >"$at/$f"
done
for f in ptx ptx_hopper ptx_wgmma ptx_multicast; do printf '#pragma once\n#include "emulated.h"\n' >"$at/kernels/cuda/$f.cuh"; done
cp $here/launch.cuh "$at/kernels/cuda/"
sed -n '/^static linear_call$/,/^#define WARPS_MAX/p' kernels/cuda/linear.cu | grep -v '^#define' >"$at/call_of.h"
flags="-D_GNU_SOURCE -DBT_CUDA_WARPGROUPS -O1 -g -mfma -ffp-contract=off -w -I$at -I$here -I$build/generated -I. -I${CUDA:-/usr/local/cuda}/include"
pids=
for f in "$at"/kernels/cuda/linear_wide*.cu $here/*.cpp; do
    g++ -std=c++17 -include $here/emulated.h $flags -x c++ -c "$f" -o "$at/$(basename "$f").o" & pids="$pids $!"
done
gcc -std=gnu17 $flags -c tests/kernels/linear_case.c -o "$at/linear_case.o"
gcc -std=gnu17 $flags -c kernels/cuda/layout.c -o "$at/layout.o"
for p in $pids; do wait "$p"; done
g++ -o "$at/wide" "$at"/*.o "$build"/kernels/libbt_kernels.a "$build"/common/quant/libbt_quant.a "$build"/common/kv/libbt_kv.a \
    "$build"/common/tensor/libbt_tensor.a "$build"/common/base/libbt_base.a -lcheck -lsubunit -lpthread -lm -lrt -ldl -lxxhash
if [ $# -gt 0 ]; then
    "$at/wide" "$@"
else
    "$at/wide" 6 132 99 1
    "$at/wide" 9 132 8 0
    "$at/wide" 6 2 99 0
fi
