#!/usr/bin/env bash
# pack.sh BUILD OUT [MODEL…]: packs what tests/gpu/run.sh runs into the folder OUT and into OUT.txz, for a GPU machine that can install
# nothing: programs, their libraries, tiny models, golden prompts, and MODELs (small ones: models.sh carries large ones). BUILD is a build
# with -DBT_CUDA=ON; BUNDLE names ../shared/gpu/bundle.sh where that lies elsewhere, BATON_DATA the outside data, SANITIZER an unpacked wheel
# of PyPI's nvidia-cuda-sanitizer-api, where sanitize.sh is to run by another compute-sanitizer than the machine's.
set -euo pipefail
[ $# -ge 2 ] || { sed -n '2,5p' "$0"; exit 2; }
here=$(cd "$(dirname "$0")" && pwd) build=$1 out=$2
shared=/nowhere
for s in shared ../shared ../../shared; do [ ! -d "$here/../../$s" ] || shared=$here/../../$s; done
data=${BATON_DATA:-$shared/data}
shift 2
rm -rf "$out" "$out.txz"
bash "${BUNDLE:-$shared/gpu/bundle.sh}" "$out" "$build/baton" "$build/bench_cuda" "$build/tests/gpu/gpu_hold" "$build"/tests/gpu/test_cuda_*[a-z]
strip "$out"/bin/*
mkdir -p "$out/models" "$out/data" "$out/tests/fault" "$out/tests/support" "$out/tests/data"
cp "$here"/../fault/{cluster,cluster_equality,prompts}.py "$out/tests/fault/"
cp "$here"/../support/ports.py "$out/tests/support/"
cp "$here/../data/tiny-q8_0.gguf" "$out/tests/data/"
for m in "$here/../data/tiny-q8_0.gguf" "$@"; do cp -rL "$m" "$out/models/"; done
(cd "$data" && tar -cf - --exclude='hidden.*' --exclude='logits.*' --exclude='*.py' --exclude='*.tsv' --exclude='tokens*' --exclude='*moe*' \
    --exclude='mixtral*' golden models/stories260K/gguf corpora/wikitext-2-raw/wiki.test.raw.gz) | tar -C "$out/data" -xf -
cp "$here"/{run,real,sanitize,models}.sh "$here"/{wgmma_registers,pair,pair_nodes,pair_steps,ratio}.py "$out/"
if [ -n "${SANITIZER:-}" ]; then # of older versions the parts lie in bin and lib
    mkdir "$out/sanitizer"
    find "$SANITIZER" -type f \( -name compute-sanitizer -size +100k -o -name 'TreeLauncher*' -o -name 'lib*.so' \) -not -path '*/x86/*' \
        -exec cp -t "$out/sanitizer" {} +
    chmod +x "$out"/sanitizer/*
fi
# The programs hold the same kernels: a window of 64 MB finds them again, which makes a fifth of what gzip does.
tar -C "$(dirname "$out")" -cf - "$(basename "$out")" | xz --lzma2=preset=1,dict=64MiB -T1 >"$out.txz"
du -shc "$out" "$out.txz" | head -2
