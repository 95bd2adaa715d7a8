#!/usr/bin/env bash
# run.sh: the real program on a real model (the default one, brought by deploy/model.sh). Exit code 77 without it.
set -uo pipefail
cd "$(dirname "$0")/../.."
[ -x build/release/baton ] || { echo "build/release/baton is not built"; exit 1; }
model=$(deploy/model.sh) || { echo "the default model could not be brought"; exit 77; }
exec python3 tests/real/test_real.py build/release/baton "$model"
