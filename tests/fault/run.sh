#!/usr/bin/env bash
# run.sh nodes|network|equality|phases: the first three are CI's share, each under a minute. Exit code 77: not possible here.
set -uo pipefail
cd "$(dirname "$0")/../.."
[ -x build/release/baton ] || { echo "build/release/baton is not built"; exit 1; }
cd tests/fault
case ${1:-} in
nodes) exec python3 test_nodes.py -v Membership Broken Leaving Full ;;
phases) exec python3 test_nodes.py -v Phases Cancel ;; # by hand: SmolLM2 in five processes
network) exec python3 test_network.py -v ;;
# The tiny model, so that it is the same everywhere; the long form of cluster_equality.py is run by hand. Then the same with two pools a node,
# as GPU nodes have them.
equality)
    set -- --model ../data/tiny-q8_0.gguf --characters 400 --set cpu.isa=ref --remote-tokens-min 48 --every 0.6
    python3 cluster_equality.py "$@" --prompts 160 --topology 2p2d,two --kill none,node &&
        exec python3 cluster_equality.py "$@" --prompts 80 --topology two --kill none,node --set kv.apart=true
    ;;
*) echo "run.sh: nodes, network, equality or phases?"; exit 2 ;;
esac
