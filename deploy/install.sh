#!/usr/bin/env bash
# install.sh KIND…: installs the Debian packages of deploy/packages.txt that are missing (kinds: build run test). Needs
# root or sudo only when something is missing.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
want=""
for kind in "$@"; do want+=" $(sed -n "s/^$kind: //p" "$here/packages.txt")"; done
missing=""
for package in $want; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=" $package"
done
[ -z "$missing" ] && exit 0
command -v apt-get >/dev/null || { echo "install.sh: not a Debian system; install the equivalents of:$missing" >&2; exit 1; }
sudo=""
[ "$(id -u)" = 0 ] || { sudo=sudo; command -v sudo >/dev/null || { echo "install.sh: as root: apt-get install$missing" >&2; exit 1; }; }
echo "installing:$missing" >&2
export DEBIAN_FRONTEND=noninteractive
$sudo apt-get update -qq >&2 || { echo "install.sh: no package registry can be reached; install by hand:$missing" >&2; exit 1; }
$sudo apt-get install -y -qq --no-install-recommends $missing >/dev/null 2>"${TMPDIR:-/tmp}/baton-apt.log" || {
    cat "${TMPDIR:-/tmp}/baton-apt.log" >&2
    echo "install.sh: apt-get could not install:$missing" >&2
    exit 1
}
