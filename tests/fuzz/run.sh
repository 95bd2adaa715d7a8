#!/usr/bin/env bash
# run.sh [SECONDS]: each fuzz target of build/asan for SECONDS (default 20), beginning from its corpus in
# tests/fuzz/corpus/TARGET and from real files of the outside data where they are.
set -euo pipefail
cd "$(dirname "$0")/../.."
seconds=${1:-20}
found=0
for target in build/asan/tests/fuzz/fuzz_*; do
    [ -x "$target" ] && [ -f "$target" ] || continue
    name=$(basename "$target")
    found=$((found + 1))
    work=build/asan/corpus/$name
    mkdir -p "$work" "tests/fuzz/corpus/$name"
    echo "== $name"
    "$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -malloc_limit_mb=1024 -max_len=65536 -print_final_stats=1 \
        -verbosity=0 -artifact_prefix=build/asan/crash- "$work" "tests/fuzz/corpus/$name" || { echo "$name: found a fault, see build/asan/crash-*"; exit 1; }
done
[ $found -gt 0 ] || { echo "no fuzz target was built"; exit 1; }
echo "$found targets, $seconds s each"
