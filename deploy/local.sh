#!/usr/bin/env bash
# local.sh: from a bare Debian 12 to a served model. Installs what is missing, builds, brings a small real model, starts
# `baton local` on 127.0.0.1:8080, asks it one question, prints the answer and keeps serving.
#
#   --cluster       five processes instead of one: a router, two prefill and two decode nodes (deploy/local-cluster.yaml)
#   --once          stop after the answer
#   --model PATH    serve another model (a .gguf file or a Hugging Face directory)
#   --listen H:P    another address
#   everything behind -- goes to `baton local`, or to the nodes of the cluster
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
once=0 cluster=0 model="" listen=127.0.0.1:8080
usage() { sed -n '2,10s/^# \{0,1\}//p' "$0"; }
value() {
    [ -n "${2:-}" ] || { echo "local.sh: $1 needs a value" >&2; exit 2; }
    echo "$2"
}
while [ $# -gt 0 ]; do
    case $1 in
    --cluster) cluster=1 ;;
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

# The programs by name, and their processes. A cluster's lines in the log begin with the name.
names=(local) pids=()
[ $cluster = 0 ] || names=(r1 p1 p2 d1 d2)
file=$root/deploy/local-cluster.yaml
start() {
    local name=${names[$1]} command
    shift
    case $name in
    local) "$build/baton" local --model "$model" --listen "$listen" "$@" & return ;;
    r*) command=(router --listen "$listen") ;;
    p*) command=(prefill "$@") ;;
    d*) command=(decode "$@") ;;
    esac
    "$build/baton" "${command[0]}" --config "$file" --name "$name" --set "model.path=$model" "${command[@]:1}" \
        2> >(exec sed -u "s/^/$name /" >&2) &
}
stop() {
    for pid in "${pids[@]}"; do kill -TERM "$pid" 2>/dev/null || true; wait "$pid" 2>/dev/null || true; done
}
# Of the first program that has ended: index and exit code; false while all live.
ended() {
    for i in "${!pids[@]}"; do
        kill -0 "${pids[i]}" 2>/dev/null && continue
        code=0
        wait "${pids[i]}" || code=$?
        return 0
    done
    return 1
}
give_up() {
    echo "local.sh: ${names[i]/local/the server} ended (exit code $code)" >&2
    exit "$code"
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
for i in "${!names[@]}"; do
    start "$i" "$@"
    pids[i]=$!
done
# A cluster answers as soon as one decode node is there; to be seen whole it has to be whole.
is_whole() {
    ask -sf "http://$at/v1/cluster" | python3 -c '
import json, sys
nodes = json.load(sys.stdin)["nodes"]
prefill = {n["name"] for n in nodes if n["role"] == "prefill"}
sys.exit(not all(n["state"] == "ready" and prefill <= set(n.get("fetches_from", prefill)) for n in nodes))' 2>/dev/null
}
while :; do
    ! ended || give_up
    if ask -sf "http://$at/ready" >/dev/null 2>&1 && { [ $cluster = 0 ] || is_whole; }; then break; fi
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
if [ $cluster = 1 ]; then
    cat >&2 <<TEXT
  curl http://$at/v1/cluster     # its nodes
  kill -9 ${pids[3]}                   # d1, in the middle of the story: it goes on at d2, and d1 is started again here
TEXT
fi
while :; do
    if ended; then
        [ "${names[i]}" != local ] && [ "${names[i]}" != r1 ] || give_up
        echo "local.sh: ${names[i]} ended (exit code $code): starting it again" >&2
        start "$i" "$@"
        pids[i]=$!
    fi
    sleep 1
done
