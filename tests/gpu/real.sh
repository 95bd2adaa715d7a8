#!/usr/bin/env bash
# real.sh FOLDER [CHUNKS]: SmolLM2 and Gemma 3 (FOLDER/smol.gguf, FOLDER/gemma.gguf) on the GPU against the CPU: greedy answers to the golden
# prompts, token for token, and the perplexity of the first CHUNKS (default 20) chunks of wiki.test, within 0.2 %. Runs in the bundle. Weights
# made at load are made without their search: what is compared is the same, and it takes a tenth of the time.
set -uo pipefail
cd "$(dirname "$0")"
export BATON_MODELS=$1 BATON_DATA=$PWD/data LD_LIBRARY_PATH=$PWD/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
out=${OUT:-.} chunks=${2:-20} failed=0 table=""
gzip -dc data/corpora/wikitext-2-raw/wiki.test.raw.gz >"$out/wiki.test.raw"

timeout 500 bin/test_cuda_real >"$out/test_cuda_real.log" 2>&1 &
answers=$!

perplexity() { # MODEL DEVICE OPTIONS…
    timeout 300 bin/baton eval ppl "$BATON_MODELS/$1.gguf" --device "$2" --text "$out/wiki.test.raw" --ctx 512 --chunks "$chunks" --quiet --json \
        --set engine.hasty_weights=true "${@:3}" 2>/dev/null | python3 -c 'import json, sys; print(json.load(sys.stdin)["ppl"])' 2>/dev/null || echo nan
}

for model in smol gemma; do
    for options in "" "--weights w8" "--weights q4"; do
        begin=$SECONDS
        perplexity $model cuda:0 $options >"$out/ppl-gpu" &
        cpu=$(perplexity $model cpu $options)
        wait $!
        gpu=$(cat "$out/ppl-gpu")
        line=$(python3 -c 'import sys; a, b = map(float, sys.argv[1:]); d = abs(b / a - 1) * 100; print(f"CPU {a:.5f}  GPU {b:.5f}  {d:.4f} %"); sys.exit(not d <= 0.2)' \
            "$cpu" "$gpu" 2>&1) || failed=$((failed + 1))
        table+="perplexity of $model ${options:-as the file is}: $line ($((SECONDS - begin)) s)"$'\n'
    done
done
wait $answers || failed=$((failed + 1))
rm -f "$out/wiki.test.raw" "$out/ppl-gpu"
cat "$out/test_cuda_real.log"
printf '%s' "$table"
echo "$failed failed, $SECONDS s"
[ $failed = 0 ]
