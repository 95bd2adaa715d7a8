#!/usr/bin/env bash
# venv.sh: prints the python of a virtual environment (build/venv) with the real peers that e2e tests drive us with.
set -euo pipefail
cd "$(dirname "$0")/.."
packages="openai==2.* pytest==8.* httpx==0.* pynng==0.9.* protobuf==7.* grpcio-tools==1.*"
stamp=build/venv/packages.txt
if [ "$(cat $stamp 2>/dev/null)" != "$packages" ]; then
    python3 -m venv build/venv >&2
    build/venv/bin/pip install -q --disable-pip-version-check $packages >&2
    echo "$packages" >$stamp
fi
echo "$PWD/build/venv/bin/python"
