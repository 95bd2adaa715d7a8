"""A cluster answers as one process does: the same requests to both, compared to the last digit of the log-probabilities."""
import concurrent.futures, json, os, random, signal, subprocess, threading, time
import httpx, pytest
from cluster import Cluster
from conftest import BATON, SMOL, Server, chunks

WORDS = ('the quick brown fox jumps over a lazy dog while seven old wizards mix strange potions and nobody in town '
         'knows why rain falls up on Sundays').split()
pytestmark = pytest.mark.skipif(subprocess.run([BATON, 'router', '--help'], capture_output=True).returncode != 0,
                                reason='baton router is not built')
TWO_WEIGHTS = dict(prefill_settings={'weights': 'w8'}, decode_settings={'weights': 'q4'})


def words(rng, count):
    return ' '.join(rng.choice(WORDS) for _ in range(count))


def make_requests(seed, count, longest=60):
    """Greedy and seeded, whole and streamed, chats and completions, with log-probabilities and without; some share a beginning."""
    rng = random.Random(seed)
    shared, out = words(rng, longest // 2), []
    for i in range(count):
        text = words(rng, rng.choice((1, 3, 10, longest // 2)))
        text = f'{shared} {text}' if i % 3 == 0 else text
        ask = dict(max_tokens=rng.choice((1, 2, 12, 30)), seed=rng.randrange(1000), ignore_eos=i % 4 != 0,
                   temperature=rng.choice((0, 0, 0.8, 1.2)), stream=i % 2 == 0)
        if i % 5 == 0:
            ask['top_p'], ask['frequency_penalty'] = 0.9, 0.4
        if i % 7 == 0:
            ask['n'] = 3
        if i % 3 == 1:
            out.append(('/v1/chat/completions', dict(ask, messages=[{'role': 'user', 'content': text}],
                                                     **({'logprobs': True, 'top_logprobs': 3} if i % 2 else {}))))
        else:
            out.append(('/v1/completions', dict(ask, prompt=text, **({'logprobs': 2} if i % 6 < 3 else {}))))
    return out


def answer_of(http, request):
    """What must not depend on how it came about: each choice's text, log-probabilities and end."""
    path, body = request
    r = http.post(path, json=body)
    assert r.status_code == 200, (r.status_code, r.text, body)
    assert 'x-baton-degraded' not in r.headers, body
    parts = chunks(r.text) if body['stream'] else [r.json()]
    out = {}
    for c in (c for p in parts for c in p['choices']):
        to = out.setdefault(c['index'], {'text': '', 'logprobs': [], 'finish': None})
        to['text'] += c['text'] if 'text' in c else (c.get('delta') or c.get('message', {})).get('content') or ''
        lp = c.get('logprobs') or {}
        to['logprobs'] += lp.get('content') or list(zip(lp.get('tokens', ()), lp.get('token_logprobs', ())))
        to['finish'] = c['finish_reason'] or to['finish']
    return json.loads(json.dumps(out))


def answers(http_url, requests, at_once=8):
    """All of them, some at a time."""
    with httpx.Client(base_url=http_url, timeout=120, limits=httpx.Limits(max_connections=at_once)) as http, \
            concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(lambda r: answer_of(http, r), requests))


def assert_same(requests, wanted, got):
    for request, a, b in zip(requests, wanted, got):
        assert a == b, request


@pytest.fixture(scope='session')
def reference(tiny):
    """Answers of `baton local` by its settings: asked once for each."""
    known = {}

    def ask(requests, **settings):
        key = json.dumps([requests, settings])
        if key not in known:
            s = Server(settings.pop('model', tiny), **settings)
            known[key] = answers(s.url, requests)
            s.wait_idle()
            s.stop()
        return known[key]
    return ask


REQUESTS = make_requests(1, 42)


@pytest.mark.parametrize('shape', [dict(prefill=1, decode=1), dict(prefill=2, decode=2), dict(prefill=0, decode=1),
                                   dict(prefill=1, decode=3), dict(prefill=1, decode=1, routers=2)],
                         ids=lambda s: '-'.join(f'{v}{k[0].upper()}' for k, v in s.items()))
def test_a_cluster_of_one_weights_answers_as_one_process(tiny, tmp_path, reference, shape):
    c = Cluster(tiny, tmp_path, settings={'placement': {'remote_tokens_min': 16}}, **shape)
    try:
        c.start().wait_ready()
        for router in c.of('router'):
            assert_same(REQUESTS, reference(REQUESTS), answers(router.url, REQUESTS))
        c.wait_idle()
        if shape['prefill']:
            assert c.total('decode', 'baton:fetched_sequences_total') > 0
        c.stop()
    finally:
        c.kill()


@pytest.mark.parametrize('shape', [dict(prefill=1, decode=1), dict(prefill=2, decode=2)],
                         ids=lambda s: '-'.join(f'{v}{k[0].upper()}' for k, v in s.items()))
def test_a_cluster_of_two_weights_answers_as_one_process_with_both(tiny, tmp_path, reference, shape):
    wanted = reference(REQUESTS, weights='q4', prompt_weights='w8')
    assert wanted != reference(REQUESTS, weights='q4') and wanted != reference(REQUESTS, weights='w8')
    c = Cluster(tiny, tmp_path, **TWO_WEIGHTS, **shape)
    try:
        c.start().wait_ready()
        assert_same(REQUESTS, wanted, answers(c.router.url, REQUESTS))
        c.wait_idle()
        assert c.total('decode', 'baton:fetched_sequences_total') >= len(REQUESTS) // 2
        assert c.total('prefill', 'baton:prefix_cache_misses_total') > 0
        assert c.total('decode', 'baton:prefix_cache_misses_total') == 0, 'a prompt was read by the weights of answers'
        c.stop()
    finally:
        c.kill()
