#!/usr/bin/env bash
# run.sh [DEVICE]: all GPU tests and benches from a carried bundle (README.md says how it is made). Builds nothing. Results go to
# $OUT, or to the bundle's folder.
set -uo pipefail
cd "$(dirname "$0")"
out=${OUT:-.} device=${1:-0} failed=0
export LD_LIBRARY_PATH=$PWD/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} CUDA_VISIBLE_DEVICES=$device
for t in test_cuda_linear test_cuda_chain test_cuda_attention test_cuda_draw test_cuda_copy test_cuda_transfer; do
    code=0
    timeout 180 "bin/$t" >"$out/$t.log" 2>&1 || code=$?
    [ $code = 0 ] || failed=$((failed + 1))
    echo "$t: exit code $code; $(grep -E '^[0-9]+%' "$out/$t.log")"
    grep -E ':F:|:E:' "$out/$t.log" | head -20
done
for m in models/*; do # greedy answers of whatever models were packed, on the GPU and on the CPU
    [ -e "$m" ] || continue
    for d in cpu cuda:0; do
        timeout 120 bin/baton run "$m" --device $d --quiet --prompt 'Once upon a time' --max-tokens 64 --temperature 0 --json 2>"$out/$(basename "$m")-${d%:*}.err" |
            python3 -c 'import json, sys; print(json.load(sys.stdin)["ids"])' >"$out/$(basename "$m")-${d%:*}.ids"
    done
    if [ -s "$out/$(basename "$m")-cpu.ids" ] && cmp -s "$out/$(basename "$m")"-{cpu,cuda}.ids; then echo "$m: the same 64 ids on both"; else
        echo "$m: the ids differ or are missing"; failed=$((failed + 1)); fi
done
timeout 240 bin/bench_cuda >"$out/bench_cuda.jsonl" 2>&1 || failed=$((failed + 1))
cat "$out/bench_cuda.jsonl"
echo "$failed failed"
[ $failed = 0 ]
