#!/usr/bin/env bash
# run.sh [pytest options]: drives the real program over HTTP with the openai client and plain sockets. Needs build/release.
set -euo pipefail
cd "$(dirname "$0")/../.."
[ -x build/release/baton ] || { echo "build/release/baton is not built"; exit 1; }
python=$(tests/venv.sh)
exec "$python" -m pytest -q -x --tb=short tests/e2e "$@"
