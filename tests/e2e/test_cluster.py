"""A cluster answers as one process does: the same requests to both, compared to the last digit of the log-probabilities."""
import concurrent.futures, itertools, json, os, random, re, signal, socket, subprocess, threading, time
import httpx, pytest
from cluster import Cluster
from conftest import BATON, SMOL, Server, chunks
from test_nodes import other_model

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
            s = Server(settings.pop('model', tiny), wait=False, **settings)
            s.wait_ready(180)
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
        with concurrent.futures.ThreadPoolExecutor() as pool:
            for got in pool.map(lambda router: answers(router.url, REQUESTS), c.of('router')):
                assert_same(REQUESTS, reference(REQUESTS), got)
        c.wait_idle()
        if shape['prefill']:
            assert c.total('decode', 'baton:fetched_sequences_total') > 0
        c.stop()
    finally:
        c.kill()


HAS_UCX = 'libucp' in subprocess.run(['ldd', BATON], capture_output=True, text=True).stdout
UCX = pytest.mark.skipif(not HAS_UCX, reason='built without UCX')


@pytest.mark.parametrize('shape, transport, path', [
    (dict(prefill=1, decode=1), 'host', 'direct'), (dict(prefill=2, decode=2), 'host', 'direct'),
    (dict(prefill=2, decode=2), 'host', 'stream'), pytest.param(dict(prefill=2, decode=2), 'ucx', 'direct', marks=UCX),
    pytest.param(dict(prefill=1, decode=1), 'ucx', 'get', marks=UCX)],
    ids=('1P-1D', '2P-2D', '2P-2D-stream', '2P-2D-ucx', '1P-1D-ucx-get'))
def test_a_cluster_of_two_weights_answers_as_one_process_with_both(tiny, tmp_path, reference, shape, transport, path):
    wanted = reference(REQUESTS, weights='q4', prompt_weights='w8')
    assert wanted != reference(REQUESTS, weights='q4') and wanted != reference(REQUESTS, weights='w8')
    c = Cluster(tiny, tmp_path, settings={'transport': transport, 'transfer_path': path}, **TWO_WEIGHTS, **shape)
    try:
        c.start().wait_ready()
        assert {s['path'] for d in c.of('decode') for s in d.node()['sources']} == {path}
        assert_same(REQUESTS, wanted, answers(c.router.url, REQUESTS))
        c.wait_idle()
        assert c.total('decode', 'baton:fetched_sequences_total') >= len(REQUESTS) // 2
        assert c.total('prefill', 'baton:prefix_cache_misses_total') > 0
        assert c.total('decode', 'baton:prefix_cache_misses_total') == 0, 'a prompt was read by the weights of answers'
        c.stop()
    finally:
        c.kill()


ONE = ('/v1/completions', dict(prompt='the quick brown fox jumps', max_tokens=12, temperature=0, ignore_eos=True, stream=False))


def test_a_cluster_comes_about_in_any_order_of_starts(tiny, tmp_path, reference):
    wanted = reference([ONE], weights='q4', prompt_weights='w8')
    for order in itertools.permutations(('r1', 'p1', 'd1')):
        c = Cluster(tiny, tmp_path, **TWO_WEIGHTS)
        try:
            for name in order:
                c.start(name)
                time.sleep(0.15)
            c.wait_ready()
            assert answers(c.router.url, [ONE]) == wanted, order
            c.stop()
        finally:
            c.kill()


class Load:
    """Requests without end from some clients at once, each compared to what one process answered, until `stop`."""

    def __init__(self, url, requests, wanted, clients=4):
        self.url, self.pairs, self.over, self.done, self.wrong = url, list(zip(requests, wanted)), threading.Event(), 0, []
        self.lock = threading.Lock()
        self.threads = [threading.Thread(target=self.run, args=(i,)) for i in range(clients)]
        for t in self.threads:
            t.start()

    def run(self, number):
        with httpx.Client(base_url=self.url, timeout=120) as http:
            rng = random.Random(number)
            while not self.over.is_set():
                request, wanted = rng.choice(self.pairs)
                try:
                    got = answer_of(http, request)
                except (AssertionError, httpx.HTTPError) as error:
                    got = error
                with self.lock:
                    self.done += 1
                    if got != wanted:
                        self.wrong.append((request, wanted, got))

    def more(self, cluster, count):
        """Waits for so many more answers."""
        wanted = self.done + count
        cluster.wait_for('more answers', lambda: self.done >= wanted, 60)

    def stop(self):
        self.over.set()
        for t in self.threads:
            t.join(120)
        assert not self.wrong, f'{len(self.wrong)} of {self.done} answers: {self.wrong[0]}'
        return self.done


@pytest.mark.parametrize('weights', ['one', 'two'])
def test_nodes_that_restart_under_load_lose_nothing(tiny, tmp_path, reference, weights):
    settings, own = ({}, dict(settings={'placement': {'remote_tokens_min': 16}})) if weights == 'one' else \
        (dict(weights='q4', prompt_weights='w8'), TWO_WEIGHTS)
    c = Cluster(tiny, tmp_path, prefill=2, decode=2, **own)
    try:
        c.start().wait_ready()
        load = Load(c.router.url, REQUESTS, reference(REQUESTS, **settings))
        try:
            for name, gently in (('p1', False), ('d1', False), ('p2', True), ('d2', True)):
                load.more(c, 15)
                c[name].stop() if gently else c[name].kill()
                load.more(c, 15)
                c[name].start()
                c.wait_ready()
        finally:
            load.stop()
        c.wait_idle()
        c.stop()
    finally:
        c.kill()


LONG = ('/v1/completions', dict(prompt='Once upon a time', max_tokens=450, temperature=1, seed=5, ignore_eos=True, stream=True))


def run_long(c, count):
    """Long answers, from now on: the futures."""
    pool = concurrent.futures.ThreadPoolExecutor(count)
    futures = [pool.submit(answers, c.router.url, [LONG]) for _ in range(count)]
    c.wait_for('all to be written', lambda: c.total('decode', 'baton:sequences_decoding') == count)
    return futures


SLOW = {'cpu': {'isa': 'ref'}}


def test_a_decode_node_finishes_what_runs_and_takes_nothing_new(tiny, tmp_path, reference):
    wanted = reference([LONG])
    c = Cluster(tiny, tmp_path, prefill=1, decode=2, settings=SLOW)
    try:
        c.start().wait_ready()
        futures = run_long(c, 6)
        leaving = max(c.of('decode'), key=lambda d: d.metric('baton:sequences_decoding'))
        leaving.kill(signal.SIGTERM)
        c.wait_for('the router to know', lambda: c.view()[leaving.name]['state'] in ('draining', 'down'))
        assert leaving.get('/ready').status_code == 503 and leaving.node()['state'] == 'draining'
        assert answers(c.router.url, [ONE]) == reference([ONE])
        assert [f.result() for f in futures] == [wanted] * 6
        assert leaving.process.wait(20) == 0
        assert 'DECODE-LATE' not in leaving.text()
        c.wait_idle()
        assert c.router.metric('baton:request_failed_total') == 0
        c.stop()
    finally:
        c.kill()


def test_what_a_node_does_not_finish_in_time_goes_on_elsewhere(tiny, tmp_path, reference):
    wanted = reference([LONG])
    c = Cluster(tiny, tmp_path, prefill=1, decode=2, settings=SLOW)
    try:
        for d in c.of('decode'):
            d.sets = ['drain_time=200ms']
        c.start().wait_ready()
        futures = run_long(c, 6)
        leaving = max(c.of('decode'), key=lambda d: d.metric('baton:sequences_decoding'))
        begin = time.monotonic()
        leaving.stop(patience=10)
        assert time.monotonic() - begin < 5 and 'DECODE-LATE' in leaving.text()
        assert [f.result() for f in futures] == [wanted] * 6
        c.wait_idle()
        c.stop()
    finally:
        c.kill()


def test_a_second_signal_ends_a_node_at_once(tiny, tmp_path, reference):
    wanted = reference([LONG])
    c = Cluster(tiny, tmp_path, prefill=1, decode=1, settings=SLOW)
    try:
        c.start().wait_ready()
        futures = run_long(c, 2)
        c['d1'].kill(signal.SIGTERM)
        c.wait_for('the drain', lambda: 'DECODE-DRAIN' in c['d1'].text())
        c['d1'].kill(signal.SIGTERM)
        assert c['d1'].process.wait(5) == 0
        c['d1'].start() # and what it left is written on there
        assert [f.result() for f in futures] == [wanted] * 2
        c.wait_idle()
        c.stop()
    finally:
        c.kill()


@pytest.mark.parametrize('phase', ['prefill', 'decode'])
def test_who_goes_away_leaves_nothing_behind(tiny, tmp_path, phase):
    c = Cluster(tiny, tmp_path, settings={**SLOW, 'engine': {'chunk_tokens': 16}}, **TWO_WEIGHTS)
    prompt, gauge = (words(random.Random(1), 90)[:440], 'baton:prompts_reading') if phase == 'prefill' else \
        ('x', 'baton:sequences_decoding')
    try:
        c.start().wait_ready()
        for i in range(5):
            gone = []
            for n in range(3):
                s = socket.create_connection(('127.0.0.1', c.router.port))
                body = json.dumps({'prompt': f'{i}{n}{prompt}', 'max_tokens': 40 if phase == 'prefill' else 500,
                                   'ignore_eos': True, 'stream': True}).encode()
                s.sendall(b'POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s' % (len(body), body))
                gone.append(s)
            c.wait_for('work', lambda: c.total('prefill' if phase == 'prefill' else 'decode', gauge) > 0)
            for s in gone:
                s.close()
            begin = time.monotonic()
            c.wait_idle(5)
            assert time.monotonic() - begin < 2, 'blocks of those who left came home late' # 1 s, and a busy machine
        assert c.router.metric('baton:request_cancelled_total') == 15
        c.stop()
    finally:
        c.kill()


@pytest.mark.parametrize('change, field', [({'kv': {'format': 'f16'}}, ('kv.format', 'int8', 'f16')),
                                           ({'kv': {'block_tokens': 16}}, ('kv.block_tokens', '32', '16')),
                                           ({'model': 'other'}, ('model', None, None)),
                                           ({'cluster': {'name': 'test', 'secret': 'open barley'}}, None)],
                         ids=('kv.format', 'kv.block_tokens', 'model', 'secret'))
def test_a_node_that_does_not_fit_is_refused_by_name_and_disturbs_nobody(tiny, tmp_path, reference, change, field):
    wanted = reference(REQUESTS[:8])
    c = Cluster(tiny, tmp_path, prefill=2, decode=2)
    if change.get('model') == 'other':
        change = {'model': {**c.yaml['model'], 'path': other_model(tiny, tmp_path)}}
    other = c.write({**c.yaml, **change}, 'other.yaml')
    try:
        c.start('r1', 'p1', 'd1').wait_ready()
        c['p2'].start(config=other)
        c['d2'].start(config=other)
        if field is None:
            c.wait_for('refusals', lambda: all('LINK-REFUSED' in c[n].text() for n in ('p2', 'd2')))
            assert c.view()['p2']['state'] == c.view()['d2']['state'] == 'down'
        else:
            c.wait_for('refusals', lambda: all(c.view()[n]['state'] == 'refused' for n in ('p2', 'd2')))
            for name in 'p2', 'd2':
                said = c.view()[name]['refused']
                assert said['field'] == field[0] and said['expected'] != said['found']
                assert field[1] is None or (said['expected'], said['found']) == field[1:]
                assert len(re.findall(rf' W \S*REFUSED .*\b{name}\b', c.router.text())) == 1
        assert_same(REQUESTS[:8], wanted, answers(c.router.url, REQUESTS[:8]))
        for name in 'p2', 'd2':
            c[name].stop()
            c[name].start()
        c.wait_ready()
        assert_same(REQUESTS[:8], wanted, answers(c.router.url, REQUESTS[:8]))
        c.wait_idle()
        c.stop()
    finally:
        c.kill()


@pytest.mark.skipif(SMOL is None or 'BATON_E2E_REAL' not in os.environ,
                    reason='makes weights of a real model four times, a minute or two: BATON_E2E_REAL=1')
def test_a_real_model_in_two_weights_answers_as_one_process_with_both(tmp_path, reference):
    rng = random.Random(3)
    requests = [('/v1/chat/completions', dict(messages=[{'role': 'user', 'content': f'Say something about {words(rng, n)}.'}],
                                              max_tokens=16, temperature=t, seed=n, stream=bool(n % 2), logprobs=True))
                for n, t in ((2, 0), (5, 0.8), (180, 0), (401, 1))]
    sizes = {'engine': {'context': 1024, 'max_sequences': 4}}
    wanted = reference(requests, model=SMOL, weights='q4', prompt_weights='w8', engine__context=1024, engine__max_sequences=4)
    c = Cluster(SMOL, tmp_path, settings=sizes, **TWO_WEIGHTS)
    try:
        c.start().wait_ready(180)
        assert_same(requests, wanted, answers(c.router.url, requests, 4))
        c.wait_idle()
        c.stop()
    finally:
        c.kill()
