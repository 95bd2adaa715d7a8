#!/usr/bin/env bash
# Are all C and CUDA files as clang-format 14 (.clang-format) writes them? With --fix, makes them so.
set -u
cd "$(dirname "$0")/../.." || exit 2
formatter=$(command -v clang-format-14 || command -v clang-format) || { echo "clang-format is not installed"; exit 1; }
mapfile -t files < <(git ls-files '*.c' '*.h' '*.cu' '*.cuh')
if [ "${1:-}" = --fix ]; then
    "$formatter" -i "${files[@]}"
    exit
fi
bad=$("$formatter" --dry-run "${files[@]}" 2>&1 | grep 'warning: code' | cut -d: -f1 | sort | uniq -c)
[ -z "$bad" ] && { echo "format: ${#files[@]} files"; exit 0; }
echo "$bad"
echo "run tests/tidy/format.sh --fix"
exit 1
