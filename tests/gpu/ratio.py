"""ratio.py FOLDER: what w8 for prompts and q4 for answers gain over bf16 for both, from the figures that `run.sh engine ratio` left there."""
import json
import sys

PROMPT, ANSWER = 2048, 256


def rates(*names):
    found = {}
    for name in names:
        with open(f'{sys.argv[1]}/{name}.jsonl') as lines:
            found |= {(p['test'], p['batch']): p['tokens_per_s'] for p in map(json.loads, lines) if p['test'] != 'pp' or p['depth'] == 0}
    return found


def first_token(of, together):
    """Seconds until prompts that come together have been read."""
    return together * PROMPT / of['pp', together]


def requests(of, batch):
    """A second on one GPU that reads 4 prompts together (or one, for one answer) and writes so many answers together."""
    return 1 / (PROMPT / of['pp', min(batch, 4)] + ANSWER / of['tg', batch])


ours, theirs = rates('engine-w8', 'engine-q4'), rates('engine-bf16-read', 'engine-bf16-write')
for (test, batch), rate in sorted(ours.items()):
    other = theirs[test, batch]
    print(f'{"prompts" if test == "pp" else "answers":8} {batch:3} at a time: {rate:9.0f} tok/s, {other:9.0f}: {rate / other:.2f} x')
for together in 1, 4:
    a, b = first_token(ours, together), first_token(theirs, together)
    print(f'first token, {together} of {PROMPT} together: {a * 1e3:8.1f} ms, {b * 1e3:8.1f} ms: {100 * a / b - 100:+.0f} %')
for batch in 1, 32, 128:
    a, b = requests(ours, batch), requests(theirs, batch)
    print(f'{PROMPT} in, {ANSWER} out, {batch:3} at a time: {a:8.2f} requests/s, {b:8.2f}: {a / b:.2f} x')
through = ' / '.join(f'{requests(ours, n) / requests(theirs, n):.2f}' for n in (1, 32, 128))
first = ' / '.join(f'{100 * first_token(ours, n) / first_token(theirs, n) - 100:+.0f} %' for n in (1, 4))
print(f'{through} x the requests at 1 / 32 / 128, first token {first} at 1 / 4 (source article: 2.1 x, -35 %)')
