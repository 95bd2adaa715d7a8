#!/usr/bin/env bash
# pack.sh BUILD OUT [MODEL…]: packs what tests/gpu/run.sh runs, with its libraries, for a GPU machine that can install nothing. BUILD is a
# build with -DBT_CUDA=ON; BUNDLE names ../shared/gpu/bundle.sh where that lies elsewhere.
set -euo pipefail
[ $# -ge 2 ] || { sed -n '2,3p' "$0"; exit 2; }
here=$(cd "$(dirname "$0")" && pwd) build=$1 out=$2
shift 2
rm -rf "$out"
bash "${BUNDLE:-$here/../../../shared/gpu/bundle.sh}" "$out" "$build/baton" "$build/bench_cuda" "$build"/tests/gpu/test_cuda_*[a-z]
strip "$out"/bin/*
mkdir -p "$out/models"
for m in "$@"; do cp -rL "$m" "$out/models/"; done
cp "$here/run.sh" "$out/"
du -sh "$out"
