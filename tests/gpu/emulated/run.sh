#!/usr/bin/env bash
# tests/gpu/emulated/run.sh BUILD [all] [DRIVER…]: kernels run by a CPU (README.md), built in BUILD/emulated with the libraries of a build
# with -DBT_CUDA=ON; no GPU is needed. Each driver as late as can be and eagerly: few, wide, deep, older, gemm, attention, prompt (default: all seven).
set -euo pipefail
cd "$(dirname "$0")/../../.."
build=$(realpath "$1") here=tests/gpu/emulated how="" drivers="" failed=0
at=$build/emulated
shift
for word in "$@"; do
    if [ "$word" = all ]; then how=all; else drivers+=" $word"; fi
done
cuda=${CUDA:-$(dirname "$(dirname "$(readlink -f "$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)")")")}
libraries=""
for name in kernels/libbt_kernels common/quant/libbt_quant common/kv/libbt_kv common/tensor/libbt_tensor common/base/libbt_base; do
    libraries+=" $build/$name.a"
done

# Shared memory is reached through emu_shared, static variables are a block's, and ptx.h stands for ptx*.cuh.
translate() {
    local f
    mkdir -p "$at/kernels/cuda"
    for f in kernels/cuda/*.cuh kernels/cuda/*.cu; do
        case $f in
        */launch.cuh) cp $here/launch.cuh "$at/$f.new" ;;
        */ptx*.cuh) printf '#pragma once\n#include "ptx.h"\n' >"$at/$f.new" ;;
        *) sed -E -e 's/extern __shared__ (__align__\([0-9]+\) )?uint8_t ([a-z_]+)\[\];/uint8_t *\2 = emu_shared;/' -e 's/__shared__/static/' \
            -e 's/__cluster_dims__\([^)]*\)//' -e 's/__forceinline__/inline/' -e 's/__noinline__/__attribute__((noinline))/' \
            -e 's/(^|[^.])(grid|block)Dim\./\1emu_\2_dim./g' "$f" >"$at/$f.new" ;;
        esac
        cmp -s "$at/$f.new" "$at/$f" && rm "$at/$f.new" || mv "$at/$f.new" "$at/$f"
    done
    sed -n '/^static linear_call$/,/^#define WARPS_MAX/p' kernels/cuda/linear.cu | grep -v '^#define' >"$at/call_of.h"
    sed -n '/^static attention_call$/,/^}$/p' kernels/cuda/attention.cu >"$at/attention_call_of.h"
}

flags="-D_GNU_SOURCE -DBT_CUDA_WARPGROUPS -O1 -g -mfma -ffp-contract=off -w -Wno-psabi -I$at -I$here -I$build/generated -I. -I$cuda/include"

# compile SOURCE OBJECT
compile() {
    case $1 in
    *.c) ${LAUNCHER:-} ${CC:-gcc} -std=gnu17 $flags -c "$1" -o "$2" ;;
    *) ${LAUNCHER:-} ${CXX:-g++} -std=c++17 -include $here/emulated.h $flags -x c++ -c "$1" -o "$2" ;;
    esac
}

# driver NAME SOURCE…: from sources, what all share, and NAME.cpp.
driver() {
    local name=$1 source objects="" pids="" pid
    shift
    for source in "$@" $here/emulated.cpp $here/memory.cpp $here/products.cpp "$here/$name.cpp" kernels/cuda/layout.c; do
        objects+=" $at/$name-$(basename "$source").o"
        compile "$source" "$at/$name-$(basename "$source").o" &
        pids+=" $!"
        [ "$(jobs -rp | wc -l)" -lt "$(nproc)" ] || wait -n || failed=1
    done
    for pid in $pids; do wait "$pid" || failed=1; done
    [ $failed = 0 ] || { echo "$name: not compiled"; return 1; }
    ${CXX:-g++} -o "$at/$name" $objects -Wl,--start-group $libraries -Wl,--end-group -lcheck -lsubunit -lpthread -lm -lrt -ldl -lxxhash
    for eager in "" eager; do
        "$at/$name" $how $eager || failed=1
    done
}

translate
for name in ${drivers:-few wide deep older gemm attention prompt}; do
    case $name in
    few) driver few "$at"/kernels/cuda/linear_{few,few_staged,one,lean}.cu tests/kernels/linear_case.c ;;
    wide) driver wide "$at"/kernels/cuda/linear_wide*.cu tests/kernels/linear_case.c ;;
    deep) driver deep "$at"/kernels/cuda/linear_deep.cu tests/kernels/linear_case.c ;;
    older) driver older "$at"/kernels/cuda/linear.cu tests/kernels/linear_case.c ;;
    attention) driver attention "$at"/kernels/cuda/attention_{decode,single,stream,meet,merge}.cu tests/kernels/attention_case.c ;;
    gemm) driver gemm "$at"/kernels/cuda/linear_prompt.cu tests/kernels/linear_case.c ;;
    prompt) driver prompt "$at"/kernels/cuda/attention_{prompt,squad}.cu tests/kernels/attention_case.c ;;
    *) echo "no such driver: $name"; exit 2 ;;
    esac
done
[ $failed = 0 ]
