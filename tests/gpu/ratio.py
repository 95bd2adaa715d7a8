"""ratio.py FOLDER: what w8 for prompts and q4 for answers gain over bf16 for both, from the figures that `run.sh engine ratio` left there."""
import json
import sys

PROMPT, ANSWER = 2048, 256


def rates(name):
    with open(f"{sys.argv[1]}/{name}.jsonl") as lines:
        return {(p["test"], p["batch"]): p["tokens_per_s"] for p in map(json.loads, lines)}


def seconds(read, write):
    """Of one GPU for a request, when 4 prompts are read together and 128 answers written together."""
    return PROMPT / read["pp", 4] + ANSWER / write["tg", 128]


ours = rates("engine-w8"), rates("engine-q4")
for kv in "int8", "f16":
    theirs = rates(f"engine-bf16-{kv}-read"), rates(f"engine-bf16-{kv}-write")
    print(f"against bf16 with a cache of {kv}:")
    for (test, batch), rate in sorted({**ours[0], **ours[1]}.items()):
        other = {**theirs[0], **theirs[1]}[test, batch]
        print(f"  {'prompts' if test == 'pp' else 'answers':8} {batch:3} at a time: {rate:9.0f} tok/s, {other:9.0f}: {rate / other:.2f} x")
    first = PROMPT / ours[0]["pp", 1], PROMPT / theirs[0]["pp", 1]
    print(f"  time to the first token of {PROMPT}, alone: {first[0] * 1e3:.1f} ms, {first[1] * 1e3:.1f} ms: {100 * first[0] / first[1] - 100:+.0f} %")
    through = seconds(*theirs) / seconds(*ours)
    print(f"  {PROMPT} in, {ANSWER} out on one GPU: {1 / seconds(*ours):.1f} requests/s, {1 / seconds(*theirs):.1f}: {through:.2f} x")
    if kv == "int8":
        summary = f"{through:.2f} x the requests, first token {100 * first[0] / first[1] - 100:+.0f} % (source article: 2.1 x, -35 %)"
print(summary)
