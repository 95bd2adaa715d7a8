#!/usr/bin/env bash
# run.sh [PART…]: all GPU tests and benches from a carried bundle (README.md says how it is made), in under eight minutes. Builds nothing.
# Parts: tests errors models cluster kernels engine (default: all), and two_gpus, which cluster does itself where there are two ($PROMPTS
# of its answers under trouble), and ratio, after engine: bf16 weights for both against its w8 and q4, a minute more, and older: a third of the
# tests' cases with the kernels and the shared memory of an older GPU ($AS, 8.9 unless said). Logs and figures go to $OUT, or to the bundle's
# folder; a short table comes last.
set -uo pipefail
cd "$(dirname "$0")"
out=${OUT:-.} failed=0 table=""
export BATON_DATA=$PWD/data LD_LIBRARY_PATH=$PWD/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}

# line NAME CODE SECONDS WHAT: one line of the table. 77 is a test that cannot run here.
line() {
    local word=ok
    [ "$2" = 77 ] && word=skipped
    [ "$2" = 0 ] || [ "$2" = 77 ] || { word=FAILED failed=$((failed + 1)); }
    table+=$(printf '%-8s %-34s %4s s  %s' $word "$1" "$3" "$4")$'\n'
}

# one PROGRAM [CASE]: runs it; its log, exit code and seconds lie in $out, and in NAME.tests what came of each test. The limit is for what hangs: where others share the GPU and the
# processors, a program takes several times as long as alone. SIGUSR1: the program says in which test it was (gpu.h).
one() {
    local code=0 begin=$SECONDS name=$1${2:+-$2}
    [ $# = 1 ] || export CK_RUN_CASE=$2
    CK_LOG_FILE_NAME=$out/$name.tests timeout -s USR1 -k 5 "${LIMIT:-300}" "bin/$1" >"$out/$name.log" 2>&1 || code=$?
    echo "$code $((SECONDS - begin))" >"$out/$name.code"
}

# What wgmma reads from registers stays there until it has (wgmma_registers.py): in the machine code that the tests run.
registers() {
    local code=0 begin=$SECONDS
    { python3 wgmma_registers.py >/dev/null && timeout "${LIMIT:-300}" python3 wgmma_registers.py bin/test_cuda_linear; } >"$out/wgmma_registers.log" 2>&1 || code=$?
    echo "$code $((SECONDS - begin))" >"$out/wgmma_registers.code"
}

# All at once: most of their time is the CPU's. What counts memory comes last and alone.
tests() {
    local t code spent
    registers &
    for t in $(cd bin && ls -d test_cuda_*); do
        case $t in
        test_cuda_real) ;; # real.sh's
        test_cuda_engine) one $t engine & ;;
        *) one "$t" & ;;
        esac
    done
    wait
    one test_cuda_engine memory
    unset CK_RUN_CASE
    read -r code spent <"$out/wgmma_registers.code"
    rm "$out/wgmma_registers.code"
    line "registers of wgmma" "$code" "$spent" "$(grep -c ' 0 findings' "$out/wgmma_registers.log") kernels without a finding"
    told "$out" ""
}

# As on an older GPU, all at once: by its kernels, in its shared memory, and in a build for that one alone (README.md) by its code.
older() {
    local t
    mkdir -p "$out/older"
    export BATON_CUDA_AS=${AS:-8.9} BATON_GPU_QUICK=${BATON_GPU_QUICK:-3}
    for t in linear few chain half attention decode draw; do out=$out/older one test_cuda_$t & done
    out=$out/older one test_cuda_engine engine &
    wait
    told "$out/older" "as $BATON_CUDA_AS: "
    unset BATON_CUDA_AS BATON_GPU_QUICK
}

# told FOLDER BEFORE: a line for each program whose exit code lies there.
told() {
    local t code spent
    for t in "$1"/test_cuda_*.code; do
        read -r code spent <"$t"
        rm "$t"
        t=$(basename "$t" .code)
        cat "$1/$t.log" "$1/$t.tests" 2>/dev/null | grep -aE ':F:|:E:' | sort -u | head -20
        line "$2$t" "$code" "$spent" "$(ended "$1/$t.log" "$code")"
    done
}

# ended LOG CODE: its last words. Where there is no sum, where it ended: out of time or by a crash.
ended() {
    grep -aE '^[0-9]+%' "$1" | tail -1 | grep . && return
    [ "$2" = 77 ] && { tail -1 "$1"; return; }
    grep -aE ' in [a-z0-9_ ]+, case -?[0-9]+$' "$1" | tail -1 | grep . && return
    [ "$2" = 124 ] && echo "out of time; last: $(tail -1 "$1")" || echo "exit code $2; last: $(tail -1 "$1")"
}

# refused NAME WORDS COMMAND…: exit code 2, and a last line with these words.
refused() {
    local name=$1 words=$2 code=0 begin=$SECONDS said
    shift 2
    said=$("$@" 2>&1 </dev/null) || code=$?
    case $code:${said##*$'\n'} in
    2:*"$words"*) line "$name" 0 $((SECONDS - begin)) "${said##*$'\n'}" ;;
    *) line "$name" 1 $((SECONDS - begin)) "exit code $code: ${said##*$'\n'}" ;;
    esac
}

errors() {
    local tiny=models/tiny-q8_0.gguf run
    run=(bin/baton run $tiny --prompt x --max-tokens 1 --quiet)
    planned $tiny
    refused "an index too high" "this machine has cuda:0" "${run[@]}" --device cuda:63
    CUDA_VISIBLE_DEVICES="" refused "no device" "no CUDA device here" "${run[@]}" --device cuda:0
    refused "more blocks than memory" "the KV cache does not fit in memory of cuda:0: weights" "${run[@]}" --device cuda:0 --set kv.blocks=400000000
    beside 100 "device cuda:0: cannot be opened" "${run[@]}" --device cuda:0
    beside 1500 "the KV cache does not fit in memory of cuda:0: weights" "${run[@]}" --device cuda:0 --kv f32 --set kv.blocks=90000
}

# What `baton plan` says of this GPU is what the engine plans when it opens.
planned() {
    local told logged begin=$SECONDS
    told=$(bin/baton plan "$1" --device cuda:0 --json | python3 -c 'import json, sys; print("total %.1f MiB" % (json.load(sys.stdin)["total"] / 2**20))' 2>/dev/null)
    logged=$(bin/baton run "$1" --device cuda:0 --prompt x --max-tokens 1 2>&1 >/dev/null | grep -o 'ENGINE-PLAN total [0-9.]* MiB' | cut -d' ' -f2-)
    [ -n "$told" ] && [ "$told" = "$logged" ]
    line "the plan is the engine's" $? $((SECONDS - begin)) "$told"
}

# beside MIB WORDS COMMAND…: the command is refused while another process leaves so little of the GPU.
beside() {
    local left=$1 pid from
    shift
    coproc hold { exec bin/gpu_hold "-$left"; }
    pid=${hold_PID:-} from=${hold[0]:-}
    if [ -n "$from" ] && read -r -t 60 _ <&"$from"; then
        refused "others leave $left MiB" "$@"
    else
        line "others leave $left MiB" 1 0 "gpu_hold took nothing"
    fi
    [ -z "$pid" ] || { kill "$pid"; wait "$pid"; } 2>/dev/null
    return 0
}

models() { # greedy answers of whatever models were packed, on the GPU and on the CPU
    local m d name code begin
    for m in models/*; do
        name=$(basename "$m") code=0 begin=$SECONDS
        for d in cpu cuda:0; do
            timeout 120 bin/baton run "$m" --device $d --quiet --prompt 'Once upon a time' --max-tokens 64 --temperature 0 --ignore-eos --json 2>"$out/$name-${d%:*}.err" |
                python3 -c 'import json, sys; print(json.load(sys.stdin)["ids"])' >"$out/$name-${d%:*}.ids"
        done
        [ -s "$out/$name-cpu.ids" ] && cmp -s "$out/$name"-{cpu,cuda}.ids || code=1
        line "$name: 64 ids of GPU and CPU" $code $((SECONDS - begin)) ""
    done
}

# equal NAME OPTION…: the answers of a cluster of real processes are those of `baton local`, token for token.
equal() {
    local name=$1 code=0 begin=$SECONDS log=$out/cluster-${1//[^a-z0-9]/-}.log
    shift
    BATON=$PWD/bin/baton timeout 90 python3 -W ignore tests/fault/cluster_equality.py --model tests/data/tiny-q8_0.gguf --characters 400 \
        --topology two "$@" >"$log" 2>&1 || code=$?
    line "cluster: $name" $code $((SECONDS - begin)) "$(grep -o '"prompts.*"different": [0-9]*' "$log" | tr -d '"')"
}

# w8 reads and q4 writes: every prompt is handed over.
cluster() {
    equal "prefill and decode on the gpu" --prompts 80 --set device=cuda:0
    equal "by host memory" --prompts 80 --set device=cuda:0 --prefill-set transport=host --decode-set transport=host
    equal "prefill on the gpu, decode on the cpu" --prompts 80 --prefill-set device=cuda:0
    equal "prefill on the cpu, decode on the gpu" --prompts 80 --decode-set device=cuda:0
    equal "nodes killed and frozen" --prompts 1000 --set device=cuda:0 --kill node --every 1 --troubles 8
    equal "the same by host memory" --prompts 1000 --set device=cuda:0 --prefill-set transport=host --decode-set transport=host --kill node --every 1 --troubles 8
    [ "$(gpus)" -lt 2 ] || two_gpus
}

gpus() { nvidia-smi -L 2>/dev/null | grep -c '^GPU'; }

# Prompts are read on one GPU and answered on the other. All at once: each has its own processes, and most of their time is the CPU's.
two_gpus() {
    local host=(--prefill-set transport=host --decode-set transport=host) apart=(--prefill-set device=cuda:0 --decode-set device=cuda:1)
    local back=(--prefill-set device=cuda:1 --decode-set device=cuda:0) trouble=(--prompts "${PROMPTS:-1000}" --kill node --every 1 --troubles 8) n=0 code
    aside equal "two gpus" --prompts 80 "${apart[@]}"
    aside equal "two gpus, the other way round" --prompts 80 "${back[@]}"
    aside equal "two gpus, by host memory" --prompts 80 "${apart[@]}" "${host[@]}"
    aside equal "two gpus, killed and frozen" "${trouble[@]}" "${apart[@]}"
    aside equal "two gpus, the same by host memory" "${trouble[@]}" "${apart[@]}" "${host[@]}"
    aside killed_between 0 1
    aside killed_between 1 0
    wait
    for n in $(seq "$asides"); do
        table+=$(cat "$out/aside-$n.table")$'\n'
        read -r code <"$out/aside-$n.code"
        failed=$((failed + code))
        rm "$out/aside-$n".*
    done
    asides=0
}

# aside COMMAND…: what says its lines, in the background.
asides=0
aside() {
    asides=$((asides + 1))
    (table="" failed=0 at=$out/aside-$asides; echo 1 >"$at.code"; "$@"; printf '%s' "$table" >"$at.table"; echo $failed >"$at.code") &
}

# killed_between OWNER RECEIVER: either dies or stops while the one fetches out of the other's GPU.
killed_between() {
    local code=0 begin=$SECONDS log=$out/transfer-$1-to-$2.log
    BATON_GPU_OWNER=$1 BATON_GPU_RECEIVER=$2 timeout 90 bin/test_cuda_transfer >"$log" 2>&1 || code=$?
    line "killed, cuda:$1 to cuda:$2" $code $((SECONDS - begin)) "$(grep -E '^[0-9]+%' "$log" | tail -1)"
}

kernels() {
    local code=0 begin=$SECONDS
    timeout 150 bin/bench_cuda >"$out/bench_cuda.jsonl" 2>&1 || code=$?
    cat "$out/bench_cuda.jsonl"
    line bench_cuda $code $((SECONDS - begin)) "$(wc -l <"$out/bench_cuda.jsonl") points"
}

# The 8B shape: prefill of w8, decode of q4, weights made without their search (speed is the same, loading is quicker).
engine() {
    local model=/tmp/baton-llama-8b.gguf begin=$SECONDS common code=0
    common=(--device cuda:0 --set engine.hasty_weights=true --repeat 1 --json)
    bin/baton synth llama-8b $model --type q8_0 >"$out/synth.log" 2>&1 || { line "synth llama-8b" 1 $((SECONDS - begin)) ""; return; }
    timeout 100 bin/baton bench engine $model --weights w8 "${common[@]}" --set engine.chunk_tokens=8192 --pp 2048 --tg 0 --batch 1,4 --depth 0,6144 \
        >"$out/engine-w8.jsonl" 2>"$out/engine-w8.log" || code=$?
    line "8B w8, prefill" $code $((SECONDS - begin)) "$(figures "$out/engine-w8.jsonl")"
    code=0 begin=$SECONDS
    timeout 120 bin/baton bench engine $model --weights q4 "${common[@]}" --set engine.chunk_tokens=2048 --pp 0 --tg 64 --batch 1,32,128 --depth 2048 \
        >"$out/engine-q4.jsonl" 2>"$out/engine-q4.log" || code=$?
    line "8B q4, decode at 2k" $code $((SECONDS - begin)) "$(figures "$out/engine-q4.jsonl")"
    rm -f $model
}

# The same shape with bf16 weights and the same cache, whose equaliser changes no speed and is left out. What was measured before is compared
# with in the last line: w8 reads and q4 writes. A cache of F16 would go by the plain attention kernels, which says nothing of formats.
ratio() {
    local model=/tmp/baton-llama-8b-bf16.gguf begin=$SECONDS code=0
    bin/baton synth llama-8b $model --type bf16 >"$out/synth-bf16.log" 2>&1 || { line "synth llama-8b, bf16" 1 $((SECONDS - begin)) ""; return; }
    line "synth llama-8b, bf16" 0 $((SECONDS - begin)) ""
    begin=$SECONDS
    half read --set engine.chunk_tokens=8192 --pp 2048 --tg 0 --batch 1,4 || code=$?
    line "8B bf16, prefill" $code $((SECONDS - begin)) "$(figures "$out/engine-bf16-read.jsonl")"
    code=0 begin=$SECONDS
    half write --set engine.chunk_tokens=2048 --pp 0 --tg 64 --batch 1,32,128 --depth 2048 || code=$?
    line "8B bf16, decode at 2k" $code $((SECONDS - begin)) "$(figures "$out/engine-bf16-write.jsonl")"
    rm -f $model
    code=0
    python3 ratio.py "$out" >"$out/ratio.txt" 2>&1 || code=$?
    cat "$out/ratio.txt"
    line "w8 + q4 against bf16" $code 0 "$(tail -1 "$out/ratio.txt")"
}

# half NAME OPTION…: a bench of the bf16 model.
half() {
    timeout 100 bin/baton bench engine $model --kv int8 --device cuda:0 --set kv.equalise=off --repeat 1 --json "${@:2}" \
        >"$out/engine-bf16-$1.jsonl" 2>"$out/engine-bf16-$1.log"
}

figures() { # batch, what lies before, and tok/s of each line, share of the limit
    python3 -c 'import json, sys
print("; ".join("%d at a time%s: %.0f tok/s (%.0f %%)" % (p["batch"], " behind %d" % p["depth"] if p["depth"] else "", p["tokens_per_s"], 100 * p["of_limit"])
                for p in map(json.loads, open(sys.argv[1]))))' "$1"
}

[ $# -gt 0 ] || set -- tests errors models cluster kernels engine
for part in "$@"; do
    case $part in
    tests | older | errors | models | cluster | kernels | engine | two_gpus | ratio) $part ;;
    *) echo "run.sh: no such part: $part"; exit 2 ;;
    esac
done
printf '%s' "$table"
echo "$failed failed, $SECONDS s"
[ $failed = 0 ]
