#!/usr/bin/env bash
# models.sh split OUT MODEL…    here: cuts files into parts that a call can carry ($PART, 50 MB), OUT/NAME.00 …, with OUT/SHA256
# models.sh take PARTS OUT      there, after each call: keeps the parts that came, away from the next
# models.sh join OUT            there, at last: OUT/NAME from its parts, checked
set -euo pipefail
case ${1:-} in
split)
    out=$2
    shift 2
    mkdir -p "$out"
    for m in "$@"; do split -b "${PART:-50000000}" -d "$m" "$out/$(basename "$m")."; done
    for m in "$@"; do (cd "$(dirname "$m")" && sha256sum "$(basename "$m")"); done >"$out/SHA256"
    ls -l "$out"
    ;;
take)
    mkdir -p "$3"
    mv -f "$2"/* "$3/"
    ;;
join)
    cd "$2"
    for first in *.00; do cat "${first%.00}".[0-9][0-9] >"${first%.00}"; done
    sha256sum -c SHA256
    ;;
*)
    sed -n '2,4p' "$0"
    exit 2
    ;;
esac
