#!/bin/bash
# tests/gpu/emulated/run.sh BUILD: linear layers of few tokens by a CPU (emulated.h), in BUILD/emulated, with the libraries of a build with
# -DBT_CUDA=ON. No GPU is needed.
set -e
cd "$(dirname "$0")/../../.."
build=$(realpath "$1")
at=$build/emulated
mkdir -p "$at/kernels/cuda"
for f in kernels/cuda/*.cuh kernels/cuda/linear_few*.cu; do
    sed -E -e 's/extern __shared__ __align__\(([0-9]+)\)/extern/' -e 's/extern __shared__/extern/' -e 's/__shared__/static/' \
        -e 's/__forceinline__/inline/' "$f" > "$at/$f.new"
    cmp -s "$at/$f.new" "$at/$f" && rm "$at/$f.new" || mv "$at/$f.new" "$at/$f"
done
for f in ptx ptx_hopper; do
    printf '#pragma once\n#include "emulated.h"\n' > "$at/kernels/cuda/$f.cuh"
done
cp tests/gpu/emulated/launch.cuh "$at/kernels/cuda/launch.cuh"
sed -n '/^static linear_call$/,/^#define WARPS_MAX/p' kernels/cuda/linear.cu | grep -v '^#define' > "$at/call_of.h"
flags="${FLAGS:-} -D_GNU_SOURCE -O1 -g -mfma -ffp-contract=off -Wno-attributes -I$at -I$build/generated -I. -Itests/gpu/emulated -I${CUDA:-/usr/local/cuda}/include"
for f in "$at"/kernels/cuda/linear_few*.cu tests/gpu/emulated/emulated.cpp tests/gpu/emulated/few.cpp; do
    g++ -std=c++17 -include tests/gpu/emulated/emulated.h $flags -x c++ -c "$f" -o "$at/$(basename "$f").o" &
done
gcc -std=gnu17 $flags -c tests/kernels/linear_case.c -o "$at/linear_case.o"
gcc -std=gnu17 $flags -c kernels/cuda/layout.c -o "$at/layout.o"
wait
g++ ${FLAGS:-} -o "$at/few" "$at"/*.o "$build"/kernels/libbt_kernels.a "$build"/common/quant/libbt_quant.a \
    "$build"/common/kv/libbt_kv.a "$build"/common/tensor/libbt_tensor.a "$build"/common/base/libbt_base.a -lcheck -lsubunit -lpthread -lm -lrt -ldl -lxxhash
