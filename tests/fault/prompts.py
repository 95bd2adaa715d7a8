"""Prompts of many lengths and kinds from ../shared/data, each with its own sampling; the same for the same seed."""
import gzip, json, os, random

WORDS = 'time people way water day man world life hand part child eye woman place work week case point home room'.split()


def lines_of(data, path, field):
    with gzip.open(os.path.join(data, path), 'rt') as f:
        return [json.loads(line)[field] for line in f]


def texts_of(data):
    """Short questions, code, and long prose to cut from."""
    short = lines_of(data, 'eval/gsm8k/test.jsonl.gz', 'question')
    code = lines_of(data, 'eval/humaneval/HumanEval.jsonl.gz', 'prompt')
    prose = []
    for path in ('corpora/wikitext-2-raw/wiki.test.raw.gz', 'corpora/long_prompts/long_context_story_prompt.txt.gz'):
        with gzip.open(os.path.join(data, path), 'rt', errors='replace') as f:
            prose.append(f.read())
    books = os.path.join(data, 'corpora', 'books')
    for name in sorted(os.listdir(books)):
        with gzip.open(os.path.join(books, name), 'rt', errors='replace') as f:
            prose.append(f.read(400000))
    return short, code, prose


def draw_text(rng, texts, characters_max):
    short, code, prose = texts
    kind = rng.random()
    if kind < 0.4:
        return rng.choice(short)[:characters_max]
    if kind < 0.55:
        return rng.choice(code)[:characters_max]
    text = rng.choice(prose)
    length = min(characters_max, int(200 * 2 ** (rng.random() * 4.6)))  # 200 … 4800 characters
    begin = rng.randrange(max(1, len(text) - length))
    return text[begin:begin + length]


def draw_words(rng, characters_max):
    text = ' '.join(rng.choice(WORDS) for _ in range(rng.choice((3, 10, 30, 60, 90))))
    return text[:characters_max]


def draw(count, seed, data=None, characters_max=6000, max_tokens=32, shared=0.2):
    """Bodies of requests: half greedy, half sampled with a seed; half chats; most of them streamed; log-probabilities on, so that
    ids and not only text are compared. A share begins like one before it, so that prefix caches take part."""
    rng, texts, out, seen = random.Random(seed), texts_of(data) if data else None, [], []
    for i in range(count):
        text = draw_text(rng, texts, characters_max) if texts else draw_words(rng, characters_max)
        if seen and rng.random() < shared:
            other = rng.choice(seen)
            text = (other[:len(other) * 3 // 4] + ' ' + text)[:characters_max]
        seen.append(text)
        body = {'max_tokens': rng.choice((1, 2, max_tokens // 2, max_tokens, max_tokens)), 'stream': rng.random() < 0.8}
        if i % 2:
            body.update(temperature=rng.choice((0.5, 0.8, 1.0)), seed=rng.randrange(2 ** 31), top_p=rng.choice((1, 0.9)))
        else:
            body['temperature'] = 0
        if i // 2 % 2:
            body.update(messages=[{'role': 'user', 'content': text}], logprobs=True, top_logprobs=2)
        else:
            body.update(prompt=text, logprobs=2)
        if body['stream']:
            body['stream_options'] = {'include_usage': True}
        out.append(body)
    return out
