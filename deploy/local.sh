#!/usr/bin/env bash
# local.sh: from a bare Debian 12 to a served model. Installs what is missing, builds, brings a small real model, starts
# `baton local` on 127.0.0.1:8080, asks it one question, prints the answer and keeps serving.
#
#   --once          stop after the answer
#   --model PATH    serve another model (a .gguf file or a Hugging Face directory)
#   --listen H:P    another address
#   everything behind -- goes to `baton local`
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
once=0 model="" listen=127.0.0.1:8080
usage() { sed -n '2,9s/^# \{0,1\}//p' "$0"; }
value() {
    [ -n "${2:-}" ] || { echo "local.sh: $1 needs a value" >&2; exit 2; }
    echo "$2"
}
while [ $# -gt 0 ]; do
    case $1 in
    --once) once=1 ;;
    --model) model=$(value "$@"); shift ;;
    --listen) listen=$(value "$@"); shift ;;
    --help | -h) usage; exit 0 ;;
    --) shift; break ;;
    *) echo "local.sh: no such option: $1" >&2; usage >&2; exit 2 ;;
    esac
    shift
done

"$root/deploy/install.sh" build run
build=$root/build/release
if [ ! -f "$build/build.ninja" ]; then
    echo "configuring …" >&2
    cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DBT_TESTS=OFF >"$root/build.log" 2>&1 ||
        { mkdir -p "$build"; cat "$root/build.log" >&2; echo "local.sh: cmake failed" >&2; exit 1; }
    rm -f "$root/build.log"
fi
if ! ninja -C "$build" -n baton 2>/dev/null | grep -q 'no work to do'; then
    echo "building …" >&2
    if [ -t 2 ]; then ninja -C "$build" baton >&2; else ninja -C "$build" --quiet baton >&2; fi
fi
if [ -z "$model" ]; then
    model=$("$root/deploy/model.sh")
elif [ ! -e "$model" ]; then
    echo "local.sh: $model: no such file or directory" >&2
    exit 2
fi

# Where to ask: an address that means all of them is reached by this machine's own. Whoever answers there already would
# answer our question too, with another model.
case $listen in
'*:'* | 0.0.0.0:*) at=127.0.0.1:${listen##*:} ;;
'[::]:'*) at="[::1]:${listen##*:}" ;;
*) at=$listen ;;
esac
ask() { curl --noproxy '*' "$@"; }
if [ "$(ask -s -o /dev/null -m 2 -w '%{num_connects}' "http://$at/health" || true)" = 1 ]; then
    echo "local.sh: something else listens on $at already: end it, or pass --listen HOST:PORT" >&2
    exit 2
fi

"$build/baton" local --model "$model" --listen "$listen" "$@" &
server=$!
stop() { kill -TERM $server 2>/dev/null || true; wait $server 2>/dev/null || true; }
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
while :; do
    kill -0 $server 2>/dev/null || { code=0; wait $server || code=$?; echo "local.sh: the server ended (exit code $code)" >&2; exit "$code"; }
    if ask -sf "http://$at/ready" >/dev/null 2>&1; then break; fi
    sleep 0.1
done
question='What is the capital of France? Answer in one sentence.'
echo "$question" >&2
ask -sS --fail-with-body -H 'Content-Type: application/json' "http://$at/v1/chat/completions" \
    -d "{\"messages\":[{\"role\":\"user\",\"content\":\"$question\"}],\"max_tokens\":64,\"temperature\":0}" |
    python3 -c 'import json, sys; print(json.load(sys.stdin)["choices"][0]["message"]["content"])'
[ $once = 1 ] && exit 0
cat >&2 <<TEXT

serving on http://$at/v1 (Ctrl-C ends it). From another terminal:
  curl http://$at/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{"messages":[{"role":"user","content":"Tell me a short story."}],"max_tokens":200,"stream":true}'
TEXT
wait $server
