#!/usr/bin/env python3
"""kernel_trace.py TRACE [--raw]: where the time of a decode step goes, from what kernel_trace.c wrote down.

A step begins with its embedding. What a kernel costs in its place is the time from the end of what ended before it to its own end: these
add up to the step. `alone` is its own end minus its begin, of which what overlaps its predecessor is counted twice; `idle` is what the GPU
did nothing in front of it. Medians over the steps of one graph."""
import collections
import re
import statistics
import subprocess
import sys


def read(path):
    kernels, calls, graphs = [], [], []
    for line in open(path):
        kind, begin, end, graph, grid, block, shared, name = line.rstrip("\n").split(" ", 7)
        record = (int(begin), int(end), int(graph), grid, block, shared, name)
        (calls if kind == "A" else graphs if kind == "G" else kernels).append(record)
    return sorted(kernels), sorted(calls), sorted(graphs)


def plain(names):
    """Names as people write them, without their arguments."""
    try:
        text = subprocess.run(["c++filt", "-p"], input="\n".join(names), capture_output=True, text=True).stdout.split("\n")
    except FileNotFoundError:
        text = names
    return {n: re.sub(r"^(static )?void |\(anonymous namespace\)::", "", t) for n, t in zip(names, text)}


def steps_of(kernels):
    """[begin of this step's embedding … begin of the next's) of graphs."""
    steps = []
    for k in kernels:
        if "embed_kernel" in k[6]:
            steps.append([])
        if steps:
            steps[-1].append(k)
    return [(s, after[0][0]) for s, after in zip(steps, steps[1:])]


def shape_of(step):
    return tuple((k[6], k[3]) for k in step if not k[6].startswith("copy"))


def report(steps, names, calls, raw):
    spans = [next_begin - step[0][0] for step, next_begin in steps]
    count = len(steps[0][0])
    costs, alones, idles = ([[] for _ in range(count)] for _ in range(3))
    for step, _ in steps:
        done = step[0][0]
        for i, k in enumerate(step):
            idles[i].append(max(0, k[0] - done))
            costs[i].append(max(0, k[1] - done))
            alones[i].append(k[1] - k[0])
            done = max(done, k[1])
    tails = [nb - max(k[1] for k in step) for step, nb in steps]
    cost, alone, idle = ([statistics.median(v) / 1e3 for v in rows] for rows in (costs, alones, idles))
    print("== %d steps of %d kernels and copies: %.1f us a step (%.1f … %.1f), of it %.1f between the last end and the next begin" % (
        len(steps), count, statistics.median(spans) / 1e3, min(spans) / 1e3, max(spans) / 1e3, statistics.median(tails) / 1e3))
    groups = collections.OrderedDict()
    for i, k in enumerate(steps[0][0]):
        groups.setdefault((names[k[6]], k[3], k[4], k[5]), []).append(i)
    print("   n  in place      each     alone      idle  kernel, grid x block, dynamic shared memory")
    for key, at in groups.items():
        print("%4d %9.1f %9.2f %9.2f %9.2f  %s %s x %s, %s" % (
            len(at), sum(cost[i] for i in at), statistics.mean(cost[i] for i in at), statistics.mean(alone[i] for i in at),
            statistics.mean(idle[i] for i in at), *key))
    if raw:
        begin = steps[-1][0][0][0]
        for k in steps[-1][0]:
            print("%10.2f %10.2f  %s %s" % ((k[0] - begin) / 1e3, (k[1] - begin) / 1e3, names[k[6]], k[3]))
    inside = [c for c in calls if steps[0][0][0][0] <= c[0] <= steps[-1][1]]
    for name in sorted({c[6] for c in inside}):
        took = [(c[1] - c[0]) / 1e3 for c in inside if c[6] == name]
        print("call %s: %d, median %.1f us" % (name, len(took), statistics.median(took)))


def report_graphs(graphs, copies, calls):
    """Of each graph that ran several times: how long it takes, and what lies between two of them."""
    for graph, count in collections.Counter(g[2] for g in graphs).items():
        pairs = [(a, b) for a, b in zip(graphs, graphs[1:]) if a[2] == graph and b[2] == graph]
        if count < 6 or not pairs:
            continue
        inside = [c for c in calls + copies if pairs[0][0][0] <= c[0] <= pairs[-1][1][1]]
        print("graph %d: %d, %.1f us, %.1f from the end of one to the begin of the next" % (
            graph, count, statistics.median(a[1] - a[0] for a, _ in pairs) / 1e3, statistics.median(b[0] - a[1] for a, b in pairs) / 1e3))
        for name in sorted({c[6] for c in inside}):
            took = [(c[1] - c[0]) / 1e3 for c in inside if c[6] == name]
            print("    %s: %d, median %.1f us" % (name, len(took), statistics.median(took)))
        end, begin = pairs[len(pairs) // 2][0][1], pairs[len(pairs) // 2][1][0]
        for c in sorted(c for c in inside if end - 20000 <= c[0] <= begin + 20000):
            print("    %8.1f … %8.1f us after an end: %s" % ((c[0] - end) / 1e3, (c[1] - end) / 1e3, c[6]))


def main():
    kernels, calls, graphs = read(sys.argv[1])
    if graphs:
        report_graphs(graphs, [k for k in kernels if k[6].startswith("copy")], calls)
        return
    names = plain(sorted({k[6] for k in kernels}))
    if "--calls" in sys.argv:
        first = min(c[0] for c in calls)
        for c in calls:
            print("%9.3f ms  %8.3f ms  %s" % ((c[0] - first) / 1e6, (c[1] - c[0]) / 1e6, c[6]))
        return
    kinds = collections.OrderedDict()
    for step, next_begin in steps_of(kernels):
        if step[-1][2] or any(k[2] for k in step):
            kinds.setdefault(shape_of(step), []).append((step, next_begin))
    for shape, steps in kinds.items():
        most = collections.Counter(len(s) for s, _ in steps).most_common(1)[0][0]
        steps = [s for s in steps if len(s[0]) == most]
        if len(steps) > 4:
            report(steps[2:-1], names, calls, "--raw" in sys.argv)


main()
