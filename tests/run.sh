#!/usr/bin/env bash
# run.sh [STAGE…]: installs what is missing, builds and runs all that CI runs. Stages, cheap first:
#   tidy build unit asan tsan fuzz e2e fault real        (default: all)
# The last line counts: "N passed, N failed, N skipped". Outside data is looked for in $BATON_DATA or ../shared/data; what
# needs it is skipped without it.
set -uo pipefail
cd "$(dirname "$0")/.."
stages=${*:-tidy build unit asan tsan fuzz e2e fault real}
passed=0 failed=0 skipped=0
names_failed=""
export BT_COMMIT=${BT_COMMIT:-$(git rev-parse HEAD 2>/dev/null)} # seeds that no commit before this one met
log=build/test-logs
mkdir -p $log
started=$SECONDS

# step NAME COMMAND…: one countable step outside ctest. Exit code 77 is a skip.
step() {
    local name=$1 code=0 begin=$SECONDS
    shift
    "$@" >"$log/$name.log" 2>&1 || code=$?
    case $code in
    0) passed=$((passed + 1)); echo "ok      $name ($((SECONDS - begin)) s)" ;;
    77) skipped=$((skipped + 1)); echo "skipped $name: $(tail -n 1 "$log/$name.log")" ;;
    *) failed=$((failed + 1)); names_failed+=" $name"; echo "FAILED  $name (exit code $code)"; tail -n 40 "$log/$name.log" ;;
    esac
    return $code
}

# suite PRESET [ctest options]: every test of a build, each counted.
suite() {
    local preset=$1 out begin=$SECONDS
    shift
    out=$log/ctest-$preset.log
    ctest --test-dir "build/$preset" --output-on-failure -j 2 "$@" >"$out" 2>&1
    local p f s inner
    p=$(grep -cE '^ *[0-9]+/[0-9]+ Test .*   Passed' "$out")
    s=$(grep -cE '^ *[0-9]+/[0-9]+ Test .*\*\*\*Skipped' "$out")
    f=$(grep -cE '^ *[0-9]+/[0-9]+ Test .*\*\*\*(Failed|Timeout|Exception|Not Run)' "$out")
    inner=$(grep -hoE '^[0-9]+ skipped here' "build/$preset/Testing/Temporary/LastTest.log" 2>/dev/null | awk '{n += $1} END {print n + 0}')
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + inner))
    echo "ctest $preset: $p programs passed, $f failed, $s skipped whole, $inner tests skipped for want of data ($((SECONDS - begin)) s)"
    [ "$p" -gt 0 ] || { failed=$((failed + 1)); names_failed+=" ctest-$preset(no test ran)"; tail -n 20 "$out"; }
    [ "$f" -eq 0 ] || { names_failed+=" ctest-$preset"; grep -vE 'Passed' "$out" | tail -n 80; }
}

configure() { # PRESET [TARGET…]
    local preset=$1
    shift
    cmake --preset "$preset" --log-level=ERROR -DBT_WERROR=ON -DBT_TESTS=ON ${LAUNCHER:+-DCMAKE_C_COMPILER_LAUNCHER=$LAUNCHER} >/dev/null &&
        cmake --build --preset "$preset" ${1:+--target "$@"}
}

# The CUDA device is compiled, for one GPU, where nvcc is; it runs elsewhere (tests/gpu).
cuda() {
    command -v nvcc >/dev/null || { echo "no nvcc here"; return 77; }
    cmake -S . -B build/cuda -G Ninja -DCMAKE_BUILD_TYPE=Release --log-level=ERROR -DBT_CUDA=ON -DBT_CUDA_ARCHITECTURES=90a-real -DBT_WERROR=ON \
        ${LAUNCHER:+-DCMAKE_C_COMPILER_LAUNCHER=$LAUNCHER} >/dev/null &&
        cmake --build build/cuda --target baton bench_cuda tests_gpu
}

# A sample of what CUDA's kernels compute, by a CPU.
emulated() { LAUNCHER=${LAUNCHER:-} tests/gpu/emulated/run.sh build/cuda; }

# What no test on a GPU sees every time, the machine code shows. CUDA's Debian packages leave out what reads it; PyPI has it.
registers() {
    local tools=build/cuda-tools
    [ -e build/cuda/bench_cuda ] || { echo "not built: no nvcc here"; return 77; }
    { command -v cuobjdump && command -v nvdisasm; } >/dev/null || [ -d $tools ] ||
        "$(tests/venv.sh)" -m pip install -q --disable-pip-version-check --no-deps --target $tools \
            nvidia-cuda-cuobjdump==13.* nvidia-cuda-nvdisasm==13.* || return 1
    PATH=$PATH:$PWD/$tools/nvidia/cu13/bin
    python3 tests/gpu/wgmma_registers.py && python3 tests/gpu/wgmma_registers.py build/cuda/bench_cuda
}

echo "installing what is missing …"
deploy/install.sh build run test || { echo "0 passed, 1 failed"; exit 1; }
command -v ccache >/dev/null && LAUNCHER=ccache

for stage in $stages; do
    case $stage in
    tidy)
        step layers python3 tests/tidy/layers.py
        step format tests/tidy/format.sh
        ;;
    build)
        step build-release configure release || break
        step build-cuda cuda && { step wgmma-registers registers; step cuda-emulated emulated; }
        ;;
    unit) suite release ;;
    # By clang, whose sanitizers see more (an offset to no address at all, gcc's do not), with the fuzzers in the same build.
    # Real models are too slow under a sanitizer: the tiny ones stand for them.
    asan) step build-asan configure asan && ASAN_OPTIONS=allocator_may_return_null=1 BATON_MODELS=/none suite asan -LE slow ;;
    tsan) step build-tsan configure tsan tests_threads && TSAN_OPTIONS=halt_on_error=1 suite tsan -L threads ;;
    fuzz) step build-fuzz configure asan fuzzers && step fuzz tests/fuzz/run.sh "${FUZZ_SECONDS:-20}" ;;
    e2e) step e2e tests/e2e/run.sh ;;
    fault) for part in nodes network equality; do step fault-$part tests/fault/run.sh $part; done ;;
    real) step real tests/real/run.sh ;;
    *) echo "run.sh: no such stage: $stage"; failed=$((failed + 1)) ;;
    esac
done
echo "logs: $log; $((SECONDS - started)) s${names_failed:+; failed:$names_failed}"
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ]
