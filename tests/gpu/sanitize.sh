#!/usr/bin/env bash
# sanitize.sh [N [PROGRAM…]]: the GPU tests under compute-sanitizer's four tools, about one case in N (default 8; of attention and whole engines,
# whose cases are long, one in 5 N), many at a time, so that it ends in a minute. Runs in the bundle that pack.sh makes, on a machine that
# has compute-sanitizer; TOOLS names fewer tools. Logs go to $OUT, or to the bundle's folder; what was found is printed at the end.
set -uo pipefail
cd "$(dirname "$0")"
out=${OUT:-.} n=${1:-8}
export BATON_DATA=$PWD/data LD_LIBRARY_PATH=$PWD/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
shift $(($# > 0))
tool=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null | head -1)
[ -n "$tool" ] || { echo "no compute-sanitizer here"; exit 77; }
# The copier's and the transfer's programs kill processes and share memory between them, which the tools do not follow.
[ $# -gt 0 ] || set -- $(cd bin && ls -d test_cuda_* | grep -vE 'copy|transfer|real')
begin=$SECONDS
rm -f "$out"/sanitize-*

# check TOOL PROGRAM: a line of what came of it, and its log when that is bad.
check() {
    local log=$out/sanitize-$1-$2.log code=0 since=$SECONDS
    export BATON_GPU_QUICK=$n
    case $2 in *attention | *engine) BATON_GPU_QUICK=$((5 * n)) ;; esac
    timeout "${LIMIT:-55}" "$tool" --tool "$1" --error-exitcode 99 --print-limit 10 "bin/$2" >"$log" 2>&1 || code=$?
    echo "$2 $1: exit code $code, $((SECONDS - since)) s; $(grep -E '^[0-9]+%' "$log") $(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY' "$log" | tail -1)"
    [ $code = 0 ] || mv "$log" "$out/sanitize-bad-$1-$2.log"
}

for program in "$@"; do
    for t in ${TOOLS:-memcheck racecheck initcheck synccheck}; do
        while [ "$(jobs -rp | wc -l)" -ge "${JOBS:-12}" ]; do wait -n; done
        check $t "$program" &
    done
done
wait
bad=$(ls "$out"/sanitize-bad-*.log 2>/dev/null | wc -l)
for log in "$out"/sanitize-bad-*.log; do [ ! -e "$log" ] || { echo "== $log"; grep -vE '^Running' "$log" | head -40; }; done
echo "$bad failed, $((SECONDS - begin)) s"
[ "$bad" = 0 ]
