"""What programs say of themselves: phases that sum, one name of a request in all logs, usage that is true."""
import os, random, re, signal
import pytest
from cluster import Cluster
from conftest import ROOT, Server
from test_cluster import pytestmark, words  # noqa: F401  (skips where the cluster's programs are not built)

TTFT, PHASE = 'baton:time_to_first_token_seconds', 'baton:time_to_first_token_phase_seconds'


def phases(program):
    """Sum of each phase, in seconds."""
    text = program.http.get('/metrics').text
    return {p: float(v) for p, v in re.findall(rf'^{PHASE}_sum{{[^}}]*phase="(\w+)"}} (\S+)$', text, re.M)}


def assert_sums(program, count):
    """F3: every first token was taken apart, and no time of it is lost or counted twice."""
    total, parts = program.metric(TTFT + '_sum'), phases(program)
    assert len(parts) == 7 and min(parts.values()) >= 0
    assert program.metric(TTFT + '_count') == count and program.metric(PHASE + '_count') == 7 * count
    assert total > 0 and abs(total - sum(parts.values())) < 1e-6 * max(1, count), parts
    return parts


@pytest.fixture(scope='module')
def pair(tiny, tmp_path_factory):
    """One prefill and two decode nodes; long prompts go to the former."""
    c = Cluster(tiny, tmp_path_factory.mktemp('pair'), prefill=1, decode=2,
                settings={'placement': {'remote_tokens_min': 16}, 'trace': {'requests': 8}},
                prefill_settings={'weights': 'w8'}, decode_settings={'weights': 'q4'})
    try:
        yield c.start().wait_ready()
    finally:
        c.kill()


def test_phases_sum_for_prompts_read_elsewhere_found_again_and_read_here(pair):
    rng, r = random.Random(3), pair.router
    before = r.metric(TTFT + '_count')
    long = words(rng, 50)
    for text in (long, long + ' again', words(rng, 30), 'x'):
        for stream in (False, True):
            assert pair.complete(text, max_tokens=3, ignore_eos=True, stream=stream).status_code == 200
    parts = assert_sums(r, before + 8)
    assert parts['prefill'] > 0 and parts['route'] > 0 and r.metric('baton:remote_prefills_total') >= 8
    pair.wait_idle()


def test_cached_tokens_are_what_the_reader_found(pair):
    text = words(random.Random(4), 60)
    first, again = (pair.complete(text, max_tokens=2, ignore_eos=True).json()['usage'] for _ in range(2))
    known = [p.metric('baton:prefix_cache_hits_total') for p in pair.of('prefill')]
    third = pair.complete(text, max_tokens=2, ignore_eos=True).json()['usage']
    hits = [p.metric('baton:prefix_cache_hits_total') - k for p, k in zip(pair.of('prefill'), known)]
    for usage in (first, again, third):
        cached = usage['prompt_tokens_details']['cached_tokens']
        assert 0 <= cached <= usage['prompt_tokens'] - 1  # F2, and the last token is always computed
    assert first['prompt_tokens_details']['cached_tokens'] == 0
    assert third['prompt_tokens_details']['cached_tokens'] == sum(hits) or sum(hits) == 0  # F1; 0: a decode node had it
    pair.wait_idle()


def test_one_name_of_a_request_is_in_all_logs(pair):
    text = words(random.Random(5), 60)
    r = pair.http.post('/v1/completions', json={'prompt': text, 'max_tokens': 4, 'ignore_eos': True},
                       headers={'X-Request-Id': 'find-me/42'})
    assert r.status_code == 200
    pair.wait_idle()
    lines = {p.name: [line for line in p.text().splitlines() if 'req find-me/42 ' in line] for p in pair.programs.values()}
    assert len(lines['r1']) == 1 and 'REQ-DONE' in lines['r1'][0]
    assert len(lines['p1']) == 1 and 'PROMPT-DONE' in lines['p1'][0] and ' taken: ' in lines['p1'][0]
    answered = lines['d1'] + lines['d2']
    assert len(answered) == 1 and 'SEQUENCE-DONE' in answered[0] and 'answer 4 length' in answered[0]


def test_phases_sum_for_requests_that_moved(tiny, tmp_path):
    c = Cluster(tiny, tmp_path, prefill=0, decode=2)
    try:
        c.start().wait_ready()
        name = {'X-Request-Id': 'the-mover'}
        with c.http.stream('POST', '/v1/completions', headers=name, json={
                'prompt': 'a', 'max_tokens': 400, 'ignore_eos': True, 'stream': True}) as stream:
            lines = stream.iter_lines()
            next(lines)
            busy = next(p for p in c.of('decode') if p.metric('baton:sequences_decoding'))
            busy.kill(signal.SIGKILL)
            for line in lines:
                pass
        assert line == '' or line == 'data: [DONE]'
        moved = [x for x in c.router.text().splitlines() if 'REQ-MOVED' in x]
        assert len(moved) == 1 and f'req the-mover leaves {busy.name}: node_lost' in moved[0]
        assert c.router.metric('baton:request_moves_total') == 1
        assert_sums(c.router, 1)
        other = next(p for p in c.of('decode') if p is not busy)
        assert 'req the-mover ' in other.text()
        c.wait_idle()
    finally:
        c.kill()


def test_phases_sum_in_one_process(tiny):
    for settings in ({}, {'weights': 'q4', 'prompt_weights': 'w8'}):
        s = Server(tiny, **settings)
        try:
            for i in range(6):
                s.complete(f'prompt number {i} {words(random.Random(i // 2), 40)}', max_tokens=2, ignore_eos=True, n=2)
            assert_sums(s, 12)
        finally:
            s.stop()


def spans(trace):
    """Spans by (process, thread): [(from, to, name)], after a look at the form of it all. In microseconds."""
    assert trace['displayTimeUnit'] == 'ms'
    events, processes, out = trace['traceEvents'], {}, {}
    for e in events:
        assert e['ph'] in 'XMi' and isinstance(e['name'], str) and isinstance(e['pid'], int) and isinstance(e['tid'], int)
        if e['ph'] == 'M' and e['name'] == 'process_name':
            processes[e['pid']] = e['args']['name']
    for e in events:
        if e['ph'] == 'X':
            assert e['dur'] >= 0 and e['ts'] >= 0
            out.setdefault((processes[e['pid']], e['tid']), []).append((e['ts'], e['ts'] + e['dur'], e['name']))
    for track in out.values():  # on one track a span lies within another or beside it
        for a, b, _ in track:
            for c, d, _ in track:
                assert b <= c + 1e-3 or d <= a + 1e-3 or (a >= c - 1e-3 and b <= d + 1e-3) or (c >= a - 1e-3 and d <= b + 1e-3)
    return out


def trace_of(program, name):
    r = program.http.get(f'/v1/trace/{name}')
    assert r.status_code == 200, r.text
    return r.json()


def test_a_requests_spans_show_all_nodes_on_one_time_line(pair):
    r = pair.http.post('/v1/completions', headers={'X-Request-Id': 'spans/1'}, json={
        'prompt': words(random.Random(6), 60), 'max_tokens': 5, 'ignore_eos': True, 'n': 2})
    assert r.status_code == 200
    trace = trace_of(pair.router, 'spans/1')
    found = spans(trace)
    processes = {p for p, _ in found}
    assert {'r1', 'p1'} < processes and processes & {'d1', 'd2'}
    (start, end, name), = [s for s in found['r1', 1] if s[2] != 'text']
    assert name == 'spans/1' and start == 0 and {t for p, t in found} == {1, 2, 3}
    for track in found.values():
        assert all(0 <= a and b <= end + 1 for a, b, _ in track)
    decode = next(t for (p, _), t in found.items() if p[0] == 'd')
    assert {'decode node', 'queue_decode', 'transfer_wait', 'transfer', 'decode'} == {n for _, _, n in decode}
    parts = [s for s in decode if s[2] != 'decode node']  # one after the other, without a gap
    whole = next(s for s in decode if s[2] == 'decode node')
    assert abs(sum(b - a for a, b, _ in parts) - (whole[1] - whole[0])) < 1
    assert {'prefill node', 'queue_prefill', 'prefill'} == {n for _, _, n in found['p1', 2]}
    firsts = [e for e in trace['traceEvents'] if e['ph'] == 'i']
    assert len(firsts) == 2
    for e in firsts:  # F3, once more
        assert len(e['args']['phases_us']) == 7 and abs(sum(e['args']['phases_us'].values()) - e['ts']) < 1


def test_only_the_last_requests_are_kept_and_strangers_see_none(pair, server):
    for i in range(9):
        pair.http.post('/v1/completions', json={'prompt': 'x', 'max_tokens': 1}, headers={'X-Request-Id': f'many-{i}'})
    assert pair.http.get('/v1/trace/many-0').status_code == 404
    assert trace_of(pair.router, 'many-1')['otherData']['request'] == 'many-1'
    assert pair.http.get('/v1/trace/').status_code == pair.http.get('/v1/trace/..%2f..').status_code == 404
    r = server.http.get('/v1/trace/x')  # off by default
    assert r.status_code == 404 and 'trace.requests' in r.json()['error']['message']


def test_spans_of_what_failed_was_left_or_runs(tiny):
    s = Server(tiny, trace__requests=4, auth__keys='k')
    try:
        assert s.http.get('/v1/trace/a').status_code == 401
        s.http.headers['Authorization'] = 'Bearer k'
        s.http.post('/v1/completions', json={'prompt': 'x', 'max_tokens': 9000}, headers={'X-Request-Id': 'long'})
        with s.http.stream('POST', '/v1/completions', headers={'X-Request-Id': 'left'}, json={
                'prompt': 'x', 'max_tokens': 450, 'ignore_eos': True, 'stream': True}) as stream:
            lines = stream.iter_lines()  # kept: without it the client is gone
            next(lines)
            outcome = trace_of(s, 'left')['traceEvents'][0]['args']['outcome']
            assert outcome == 'running'
        s.wait_for('the cancel', lambda: s.metric('baton:request_cancelled_total') == 1)
        s.wait_for('idleness', lambda: s.metric('baton:answers_open') == 0)
        for name, outcome in (('long', 'context_length_exceeded'), ('left', 'the client is gone')):
            trace = trace_of(s, name)
            spans(trace)
            assert trace['traceEvents'][0]['args']['outcome'] == outcome
        assert {n for _, _, n in spans(trace_of(s, 'left'))['local', 2]} >= {'queue_prefill', 'prefill', 'decode'}
    finally:
        s.stop()


def families(text):
    """Of a scrape: {name: (type, help)} and {(name, labels): value}, after a look at whether Prometheus would take it."""
    kinds, samples, now = {}, {}, None
    for line in text.splitlines():
        if line.startswith('# HELP '):
            _, _, name, about = line.split(' ', 3)
            assert name not in kinds and about.endswith('.'), line
            kinds[name] = [None, about]
        elif line.startswith('# TYPE '):
            _, _, now, kind = line.split(' ')
            assert kinds[now][0] is None and kind in ('counter', 'gauge', 'histogram'), line
            assert (kind == 'counter') == now.endswith('_total'), line
            kinds[now][0] = kind
        else:
            name, labels, value = re.fullmatch(r'([a-zA-Z_:][\w:]*)(?:{(.*)})? (\S+)', line).groups()
            assert name == now or (kinds[now][0] == 'histogram' and name in (now + s for s in ('_bucket', '_sum', '_count'))), line
            assert re.fullmatch(r'(\w+="(?:[^"\\\n]|\\.)*",?)*', labels or ''), line
            assert (name, labels) not in samples, line
            samples[name, labels] = float(value)
    for (name, labels), value in samples.items():
        if name.endswith('_bucket') and 'le="+Inf"' in labels:
            rest = re.sub(r',?le="[^"]*"', '', labels) or None
            assert samples[name[:-7] + '_count', rest] == value
            steps = [v for (n, l), v in samples.items() if n == name and (re.sub(r',?le="[^"]*"', '', l) or None) == rest]
            assert steps == sorted(steps)
    return {k: tuple(v) for k, v in kinds.items()}, samples


def check_golden(role, program):
    """F4: names, types and help are a contract with dashboards. BATON_WRITE_METRICS=1 writes the file anew."""
    kinds, samples = families(program.http.get('/metrics').text)
    path = os.path.join(ROOT, 'tests', 'data', 'metrics', f'{role}.txt')
    text = ''.join(f'{name} {kind} {about}\n' for name, (kind, about) in sorted(kinds.items()))
    if os.environ.get('BATON_WRITE_METRICS'):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        open(path, 'w').write(text)
    assert open(path).read() == text, f'{path} is not what {role} says; BATON_WRITE_METRICS=1 if that is meant'
    again = families(program.http.get('/metrics').text)[1]
    for (name, labels), value in samples.items():
        if name.endswith(('_total', '_count', '_bucket')):
            assert again[name, labels] >= value, (name, labels)
    return samples


def test_the_scrape_of_each_program_is_what_dashboards_expect(pair, tiny):
    pair.complete(words(random.Random(9), 60), max_tokens=2)
    for role in ('router', 'prefill', 'decode'):
        samples = check_golden(role, pair.of(role)[0])
    peers = {labels: v for (name, labels), v in samples.items() if name == 'baton:transfer_peer_gb_per_s'}
    assert len(peers) == 1 and 'peer="p1"' in next(iter(peers)) and 'transport=' in next(iter(peers))
    assert next(iter(peers.values())) > 0
    s = Server(tiny, weights='q4', prompt_weights='w8')
    try:
        s.complete('x', max_tokens=2)
        check_golden('local', s)
    finally:
        s.stop()


def test_the_prefix_cache_tells_its_hit_rate(server):
    text = words(random.Random(10), 60)
    for _ in range(2):
        server.complete(text, max_tokens=1)
    hits, queries = server.metric('baton:prefix_cache_hits_total'), server.metric('baton:prefix_cache_queries_total')
    assert 0 < hits < queries and queries == hits + server.metric('baton:prefix_cache_misses_total')
    assert abs(server.metric('baton:prefix_cache_hit_rate') - hits / queries) < 1e-6
