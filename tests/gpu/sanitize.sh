#!/usr/bin/env bash
# sanitize.sh [N [PROGRAM…]]: the GPU tests under compute-sanitizer's four tools: a sample of the cases, of each loop the first among them, or an
# N-th of it; as many processes at a time as there are processors (JOBS), racecheck first, which is the slowest. It ends after UNTIL seconds
# (default 300): what had no time by then has failed. Runs in the bundle that pack.sh makes, by the compute-sanitizer that was packed
# (SANITIZER) or the machine's own; programs of a build with -DBT_CUDA_LINES=ON have lines. TOOLS names fewer tools, LIMIT is a process's
# seconds, FLAGS are the tool's (`--racecheck-filter-cluster-id 0` looks at the first block of threads of each launch alone, so that many more
# cases find time). cuBLASLt's kernels are not looked at. Logs go to $OUT, or to the bundle's folder; what was found is printed at the end.
set -uo pipefail
cd "$(dirname "$0")"
out=${OUT:-.} factor=${1:-1} until=${UNTIL:-300}
export BATON_DATA=$PWD/data LD_LIBRARY_PATH=$PWD/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export BATON_CUDA_PATIENCE=${BATON_CUDA_PATIENCE:-900}
shift $(($# > 0))
tool=$(ls sanitizer/compute-sanitizer 2>/dev/null || command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null | head -1)
[ -n "$tool" ] || { echo "no compute-sanitizer here"; exit 77; }
"$tool" --version | tail -1
# The copier's and the transfer's programs kill processes and share memory between them, which the tools do not follow.
[ $# -gt 0 ] || set -- $(cd bin && ls -d test_cuda_* | grep -vE 'copy|transfer|real')
begin=$SECONDS
rm -f "$out"/sanitize-*

# sample TOOL PROGRAM: one in how many cases (BATON_GPU_QUICK), and how many processes share them. What ended when it was last tried on an
# H200, 16 to 24 processes at once: shares of linear, half and decode under racecheck took 30 to 95 s, of attention 11 to 33, of chain 47 to 180.
sample() {
    case $1-$2 in
    racecheck-*_linear | racecheck-*_few) echo 24 4 ;;
    *_linear | *_few) echo 24 2 ;;
    racecheck-*_chain) echo 16 8 ;;
    *_chain) echo 16 4 ;;
    racecheck-*_attention) echo 60 3 ;;
    *_attention) echo 60 2 ;;
    racecheck-*_decode) echo 9 12 ;;
    *_decode) echo 9 5 ;;
    *_engine) echo 24 3 ;;
    racecheck-*_half) echo 24 4 ;;
    *) echo 8 1 ;;
    esac
}

# check TOOL PROGRAM N K M: a line of what came of the K-th share of M, and its log when that is bad. Of engines without their other case:
# under these tools memory taken is not what was planned.
check() {
    local log=$out/sanitize-$1-$2-$4.log bad=$out/sanitize-bad-$1-$2-$4.log code=0 since=$SECONDS left=$((until - (SECONDS - begin)))
    [ "$left" -le "${LIMIT:-170}" ] || left=${LIMIT:-170}
    [ "$left" -gt 5 ] || { echo "no time for $2 $4/$5 $1" | tee "$bad"; return; }
    case $2 in *_engine) export CK_RUN_CASE=engine ;; esac
    BATON_GPU_QUICK=$3:$4/$5 timeout "$left" "$tool" --tool "$1" ${FLAGS:-} --kernel-name-exclude 'regex=cutlass|xmma|nvjet|cublas' --error-exitcode 99 --print-limit 200 "bin/$2" >"$log" 2>&1 || code=$?
    echo "$2 $4/$5 $1: exit code $code, $((SECONDS - since)) s; $(grep -E '^[0-9]+%' "$log") $(grep -oE '(ERROR|RACECHECK) SUMMARY.*' "$log" | tail -1)"
    [ $code = 0 ] || mv "$log" "$bad"
}

# What a bad log says: of races the pairs of places, each once; else its first lines; and what the last case was.
said() {
    awk '/Race reported between/ { first = $0 } / and (Read|Write) access/ { print first, $0 }' "$1" |
        sed -E 's/=+ //g; s/\+0x[0-9a-f]+//g; s/\(const [^)]*\)//g; s/ \[[0-9]+ hazards\]//' | sort | uniq -c | sort -rn | head -20
    grep -E '^=========|:[FE]:|no time|^[0-9:.]+ E ' "$1" | grep -vE 'Race reported|(and|Host Frame)|^=+ *$' | head -30
    grep '^after [0-9]* s: ' "$1" | tail -1
}

# One share of each program after the other, so that none has to wait for all of another's. The slowest tool first.
for t in ${TOOLS:-racecheck memcheck initcheck synccheck}; do
    for ((k = 0; k < 20; k++)); do
        for program in "$@"; do
            read -r n shares <<<"$(sample $t "$program")"
            [ $k -lt "$shares" ] || continue
            while [ "$(jobs -rp | wc -l)" -ge "${JOBS:-$(nproc)}" ]; do wait -n; done
            check $t "$program" $((n * factor)) $k "$shares" &
        done
    done
done
wait
bad=$(ls "$out"/sanitize-bad-*.log 2>/dev/null | wc -l)
for log in "$out"/sanitize-bad-*.log; do
    [ ! -e "$log" ] || { echo "== $log"; said "$log"; }
done
echo "$bad failed, $((SECONDS - begin)) s"
[ "$bad" = 0 ]
