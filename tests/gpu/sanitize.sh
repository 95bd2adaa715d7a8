#!/usr/bin/env bash
# sanitize.sh [N [PROGRAM…]]: the GPU tests under compute-sanitizer's four tools, about one case in N (default 8) so that it ends in a minute.
# Runs in the bundle that pack.sh makes, on a machine that has compute-sanitizer; four at a time. Logs go to $OUT, or to the bundle's folder.
set -uo pipefail
cd "$(dirname "$0")"
out=${OUT:-.}
export BATON_GPU_QUICK=${1:-8} BATON_DATA=$PWD/data LD_LIBRARY_PATH=$PWD/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
shift $(($# > 0))
tool=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null | head -1)
[ -n "$tool" ] || { echo "no compute-sanitizer here"; exit 77; }
[ $# -gt 0 ] || set -- $(cd bin && ls -d test_cuda_*)
begin=$SECONDS

# check TOOL PROGRAM: a line of what came of it. initcheck also looks at what nobody wrote and a copy takes along.
check() {
    local log=$out/sanitize-$1-$2.log code=0 since=$SECONDS
    timeout "${LIMIT:-100}" "$tool" --tool "$1" --error-exitcode 99 --print-limit 20 "bin/$2" >"$log" 2>&1 || code=$?
    echo "$2 $1: exit code $code, $((SECONDS - since)) s; $(grep -E '^[0-9]+%' "$log") $(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY' "$log" | tail -1)"
    [ $code = 0 ]
}

failed=0
for program in "$@"; do
    pids=()
    for t in memcheck racecheck initcheck synccheck; do check $t "$program" & pids+=($!); done
    for pid in "${pids[@]}"; do wait "$pid" || failed=$((failed + 1)); done
done
echo "$failed failed, $((SECONDS - begin)) s"
[ $failed = 0 ]
