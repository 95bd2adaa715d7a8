"""The gateway, asked from another language: what HTTP answers is what it answers, and no client can harm another."""
import json, os, random, re, signal, struct, subprocess, sys, time
import pynng, pytest
from conftest import BATON, ROOT, SMOL
from gateway_client import Client, Failed, Raw, Stream, g, serve


@pytest.fixture(scope='module')
def server(tiny):
    s = serve(tiny)
    yield s
    s.wait_idle()
    s.stop()


@pytest.fixture
def client(server):
    with Client(server.gateway) as c:
        yield c


CHAT = g.Chat(messages=[g.ChatMessage(role='user', content='Hello there')])


def fails(code, call):
    with pytest.raises(Failed) as e:
        call()
    assert e.value.code == code, e.value
    return e.value.status


# ---- the same as HTTP ----

@pytest.mark.parametrize('temperature', [0, 1])
def test_a_chat_equals_http_s(server, client, temperature):
    ask = dict(max_tokens=40, temperature=temperature, seed=3, ignore_eos=True)
    http = server.chat(**ask).json()
    got = client.answer(chat=CHAT, **ask)
    assert got.text == {0: http['choices'][0]['message']['content']} and len(got.ids[0]) == 40
    assert got.finish == {0: 'FINISH_LENGTH'}
    assert (got.usage.prompt_tokens, got.usage.completion_tokens) == (http['usage']['prompt_tokens'], 40)
    ids = client.tokenize(chat=CHAT).ids
    again = client.answer(ids=g.Ids(ids=ids), **ask)
    assert again.text == got.text and again.ids == got.ids


def test_answers_to_a_prompt_equal_http_s_with_all_that_draws_them(server, client):
    ask = dict(max_tokens=24, temperature=0.9, top_p=0.9, top_k=40, min_p=0.01, presence_penalty=0.5, frequency_penalty=0.3,
               repetition_penalty=1.1, seed=77, n=3, ignore_eos=True)
    http = server.complete('Once upon', logit_bias={'39': -50, '54': 3}, **ask).json()['choices']
    got = client.answer(prompt='Once upon', bias_ids=[39, 54], bias_values=[-50, 3], **ask)
    assert got.text == {c['index']: c['text'] for c in http} and len(set(got.text.values())) == 3


def test_log_probabilities_equal_http_s(server, client):
    http = server.complete('Hello', max_tokens=12, temperature=0, logprobs=4, echo=True, ignore_eos=True).json()['choices'][0]['logprobs']
    got = client.answer(prompt='Hello', max_tokens=12, temperature=0, logprobs=True, top_logprobs=4, prompt_logprobs=True, ignore_eos=True)
    mine = [p for _, p in got.prompt[0]] + got.logprobs[0]
    assert mine == pytest.approx(http['token_logprobs'][1:], rel=1e-6)
    assert [i for i, _ in got.prompt[0]] == list(client.tokenize(prompt='Hello').ids)[1:]
    assert len(got.tops[0]) == 12 and all(len(t) == 4 for t in got.tops[0])
    assert all(t[0][0] == i for t, i in zip(got.tops[0], got.ids[0])), 'greedy draws the likeliest'
    scored = client.answer(prompt='Hello', max_tokens=0, logprobs=True, prompt_logprobs=True)
    assert scored.prompt[0] == got.prompt[0] and scored.ids[0] == []


def test_a_stop_string_ends_the_text_before_it(server, client):
    ask = dict(prompt='Once', max_tokens=60, temperature=1, seed=5, ignore_eos=True)
    whole = client.answer(**ask).text[0]
    stop = whole[20:23]
    got = client.answer(**ask, stop=[stop])
    assert got.text[0] == whole[:whole.index(stop)] and got.finish[0] == 'FINISH_STOP'


def test_text_and_ids_both_ways(server, client):
    text = 'Grüße, 世界 \x00 end\u2028'
    ids = list(client.tokenize(prompt=text).ids)
    assert ids == server.http.post('/tokenize', json={'prompt': text}).json()['tokens']
    plain = list(client.tokenize(prompt=text, plain=True).ids)
    assert plain == server.http.post('/tokenize', json={'prompt': text, 'add_special_tokens': False}).json()['tokens']
    back = client.ask(g.METHOD_DETOKENIZE, g.DetokenizeRequest(ids=plain), g.DetokenizeReply).text
    assert back == server.http.post('/detokenize', json={'tokens': plain}).json()['prompt']


def test_models_health_and_stats(server, client):
    assert client.health() == 'STATE_READY'
    models = client.ask(g.METHOD_MODELS, g.ModelsRequest(), g.ModelsReply).models
    assert [(m.name, m.context) for m in models] == [
        (m['id'], m['max_model_len']) for m in server.http.get('/v1/models').json()['data']]
    before = client.ask(g.METHOD_STATS, None, g.StatsReply)
    client.answer(prompt='x', max_tokens=7, ignore_eos=True)
    after = client.ask(g.METHOD_STATS, None, g.StatsReply)
    assert after.done == before.done + 1 and after.completion_tokens == before.completion_tokens + 7
    assert after.nodes == 1 and after.connections >= 1


def test_a_request_keeps_its_name(server, client):
    assert client.answer(prompt='x', max_tokens=2, name='my-name-1').name == 'my-name-1'
    drawn = client.answer(prompt='x', max_tokens=2, name='not a name\n').name
    assert len(drawn) == 32 and f'req {drawn} ' in server.text() and 'req my-name-1 ' in server.text()


# ---- refusals ----

@pytest.mark.parametrize('fields,field', [
    (dict(temperature=3), 'temperature'), (dict(temperature=float('nan')), 'temperature'), (dict(top_p=1.5), 'top_p'),
    (dict(min_p=-1), 'min_p'), (dict(presence_penalty=5), 'presence_penalty'), (dict(repetition_penalty=-1), 'repetition_penalty'),
    (dict(n=1000), 'n'), (dict(max_tokens=0), 'max_tokens'), (dict(top_logprobs=3), 'top_logprobs'),
    (dict(prompt_logprobs=True), 'prompt_logprobs'), (dict(stop=['']), 'stop'), (dict(stop=['x'] * 17), 'body'),
    (dict(bias_ids=[1]), 'body'), (dict(bias_ids=[99999], bias_values=[1]), 'ids'), (dict(ids=g.Ids(ids=[99999])), 'ids'),
    (dict(ids=g.Ids()), 'ids'), (dict(ids=g.Ids(ids=[-1])), 'ids'), (dict(chat=g.Chat()), 'chat.messages'),
    (dict(chat=g.Chat(messages=[g.ChatMessage(role='nobody')])), 'chat.messages.role'),
    (dict(chat=g.Chat(messages=[g.ChatMessage(role='user')], template_json='[1]')), 'chat.template_json')])
def test_a_bad_argument_is_named(client, fields, field):
    if not {'ids', 'chat'} & fields.keys():
        fields = {**fields, 'prompt': 'x'}
    status = fails('INVALID_ARGUMENT', lambda: client.answer(**fields))
    assert status.field == field and status.message.startswith(field.split('.')[0])


def test_other_refusals(client):
    assert fails('INVALID_ARGUMENT', lambda: client.answer()).field == 'input'
    status = fails('INVALID_ARGUMENT', lambda: client.answer(prompt='word ' * 4000))
    assert status.reason == 'context_length_exceeded'
    status = fails('INVALID_ARGUMENT', lambda: client.answer(prompt='x', max_tokens=100000))
    assert status.reason == 'context_length_exceeded' and '512 tokens' in status.message
    assert fails('NOT_FOUND', lambda: client.answer(prompt='x', model='nope')).field == 'model'
    fails('UNIMPLEMENTED', lambda: client.ask(99, None, g.StatsReply))
    fails('UNIMPLEMENTED', lambda: client.ask(g.METHOD_NONE, None, g.StatsReply))
    client.send(g.METHOD_GENERATE, g.Request(id=5))  # the arguments of something else: unknown fields, no input
    assert client.receive().status.code == g.CODE_INVALID_ARGUMENT
    client.socket.send(g.Request(id=1000, method=g.METHOD_GENERATE, body=b'\xff\xff\xff').SerializeToString())
    assert client.receive().status.field == 'body'
    fails('NOT_FOUND', lambda: client.ask(g.METHOD_CANCEL, g.CancelRequest(id=12345), g.CancelReply))
    assert client.health() == 'STATE_READY'


def test_keys_are_http_s(tiny):
    s = serve(tiny, auth__keys='secret-1,secret-2')
    try:
        for key in ('', 'wrong', 'secret-', 'secret-1\x00', 'x' * 5000):
            with Client(s.gateway, key) as c:
                for call in (lambda: c.answer(prompt='x'), lambda: c.tokenize(prompt='x'),
                             lambda: c.ask(g.METHOD_MODELS, None, g.ModelsReply)):
                    assert fails('UNAUTHENTICATED', call).reason == 'invalid_api_key'
                assert c.health() == 'STATE_READY'
        with Client(s.gateway, 'secret-2') as c:
            assert len(c.answer(prompt='x', max_tokens=3, ignore_eos=True).ids[0]) == 3
        assert s.metric('baton:requests_rejected_total') >= 15
    finally:
        s.stop()


def test_busy_is_an_answer(tiny):
    s = serve(tiny, cpu__isa='ref', http__requests=2)
    try:
        with Client(s.gateway) as c:
            running = [c.generate(prompt='x', max_tokens=400, ignore_eos=True) for _ in range(2)]
            refused = c.generate(prompt='x')
            with pytest.raises(Failed) as e:
                while True:
                    reply = c.receive()
                    next(r for r in [*running, refused] if r.id == reply.id).take(reply)
            assert e.value.code == 'RESOURCE_EXHAUSTED' and refused.over and e.value.status.retry_after_ms >= 1000
            for r in running:
                c.send(g.METHOD_CANCEL, g.CancelRequest(id=r.id))
        s.wait_idle()
    finally:
        s.stop()


# ---- ends before the end ----

def test_a_cancelled_stream_ends_so_and_makes_room(server, client):
    stream = client.generate(prompt='x', max_tokens=500, n=8, temperature=1, ignore_eos=True, credits=2)
    stream.take(client.receive())
    cancel = client.send(g.METHOD_CANCEL, g.CancelRequest(id=stream.id))
    with pytest.raises(Failed) as e:
        while True:
            stream.take(client.receive())
    assert e.value.code == 'CANCELLED'
    reply = client.receive()
    assert reply.id == cancel and reply.status.code == g.CODE_OK
    server.wait_idle()
    assert len(client.answer(prompt='x', max_tokens=3, ignore_eos=True).ids[0]) == 3


def test_a_deadline_is_kept(tiny):
    s = serve(tiny, cpu__isa='ref')
    try:
        with Client(s.gateway) as c:
            begin = time.monotonic()
            fails('DEADLINE_EXCEEDED', lambda: c.answer(prompt='x', n=16, max_tokens=500, ignore_eos=True, timeout_ms=100))
            assert time.monotonic() - begin < 5
            s.wait_idle()
            assert c.answer(prompt='x', max_tokens=3, ignore_eos=True, timeout_ms=20000).finish == {0: 'FINISH_LENGTH'}
    finally:
        s.stop()


def test_a_client_that_vanishes_takes_nothing_with_it(server):
    for i in range(5):
        with Client(server.gateway) as c:
            streams = [c.generate(prompt='x', max_tokens=500, n=4, temperature=1, ignore_eos=True) for _ in range(4)]
            if i % 2:
                c.receive()
    server.wait_idle()
    assert len(streams) == 4


@pytest.mark.parametrize('sig', [signal.SIGTERM])
def test_a_drain_finishes_streams_and_refuses_new_calls(tiny, sig):
    s = serve(tiny, cpu__isa='ref')
    with Client(s.gateway) as c:
        stream = c.generate(prompt='x', max_tokens=400, n=8, temperature=1, ignore_eos=True, credits=100000)
        stream.take(c.receive())
        s.process.send_signal(sig)
        s.wait_for('the drain', lambda: 'DRAIN' in s.text())
        other = Stream(c, c.send(g.METHOD_GENERATE, g.GenerateRequest(prompt='y')))
        refused = None
        while not stream.over:
            reply = c.receive()
            if reply.id == other.id:
                refused = reply.status
            else:
                stream.take(reply)
        assert sum(map(len, stream.ids.values())) == 8 * 400
        assert refused.code == g.CODE_UNAVAILABLE and refused.reason == 'draining'
        s.stop()


# ---- slow, many, mad ----

def test_without_credit_what_is_new_waits_in_one_piece(server, client):
    ask = dict(prompt='Once', max_tokens=200, temperature=1, seed=4, n=2, ignore_eos=True)
    whole = client.answer(**ask)
    stream = client.generate(credits=1, **ask)
    stream.take(client.receive())
    assert not stream.over
    last = client.receive()  # nothing but the end may come
    stream.take(last)
    assert stream.over and stream.replies == 2 and stream.text == whole.text and stream.ids == whole.ids


def test_credit_lets_a_stream_go_on(tiny):
    s = serve(tiny, cpu__isa='ref')
    try:
        with Client(s.gateway) as c:
            stream = c.generate(prompt='Once', max_tokens=200, n=16, temperature=1, seed=4, ignore_eos=True, credits=1)
            for _ in range(5):
                stream.take(c.receive())
                assert not stream.over
                c.send(g.METHOD_CREDIT, id=stream.id, credits=1)
            while not stream.over:
                stream.take(c.receive())
            assert [len(stream.ids[i]) for i in range(16)] == [200] * 16
            assert stream.replies <= 7
    finally:
        s.stop()


def test_one_that_reads_nothing_holds_up_nobody(tiny):
    s = serve(tiny, http__stall_time='2s', http__answer_bytes='4M')
    try:
        slow = Raw(s.gateway_port)
        for i in range(1, 25):  # some 170 B a token and alternative: more than sockets hold
            slow.send(g.Request(id=i, method=g.METHOD_GENERATE, credits=100000, body=g.GenerateRequest(
                prompt='x', max_tokens=450, n=8, temperature=1, logprobs=True, top_logprobs=20,
                ignore_eos=True).SerializeToString()).SerializeToString())
        with Client(s.gateway) as c:
            for _ in range(20):
                assert len(c.answer(prompt='y', max_tokens=5, ignore_eos=True).ids[0]) == 5
        s.wait_idle()
        s.wait_for('the end of its patience', lambda: s.metric('baton:gateway_connections') == 0)
        assert slow.is_closed() and s.metric('baton:gateway_connections_refused_total') == 1
        assert re.search('SP-CLOSED .* reads (nothing|too slowly)', s.text()), s.text()[-2000:]
    finally:
        s.stop()


def test_one_that_reads_slowly_gets_all_of_it(server):
    raw = Raw(server.gateway_port)
    raw.s.setsockopt(6, 10, 4096)
    ask = g.GenerateRequest(prompt='x', max_tokens=450, n=8, temperature=1, seed=2, logprobs=True, top_logprobs=20, ignore_eos=True)
    raw.send(g.Request(id=1, method=g.METHOD_GENERATE, credits=100000, body=ask.SerializeToString()).SerializeToString())
    server.wait_for('the answer', lambda: server.gauges()['num_requests_running'] == 0)
    assert raw.exactly(8) == bytes.fromhex('0053500000100000')
    stream = Stream(None, 1)
    while not stream.over:
        stream.take(raw.receive())
        time.sleep(0.002)
    with Client(server.gateway) as c:
        same = c.generate(credits=100000, prompt='x', max_tokens=450, n=8, temperature=1, seed=2, logprobs=True, top_logprobs=20, ignore_eos=True)
        same.read()
    assert stream.text == same.text and stream.logprobs == same.logprobs and stream.tops == same.tops


def test_a_hundred_clients_at_once(server):
    ask = dict(max_tokens=12, temperature=1, ignore_eos=True)
    with Client(server.gateway) as c:
        expected = [c.answer(prompt='Once', seed=i, **ask).text[0] for i in range(10)]
    clients = [Client(server.gateway) for _ in range(100)]
    streams = [[c.generate(prompt='Once', seed=(i + k) % 10, **ask) for k in range(2)] for i, c in enumerate(clients)]
    for i, (c, two) in enumerate(zip(clients, streams)):
        while not all(s.over for s in two):
            reply = c.receive()
            next(s for s in two if s.id == reply.id).take(reply)
        assert [s.text[0] for s in two] == [expected[i % 10], expected[(i + 1) % 10]]
    for c in clients:
        c.socket.close()
    server.wait_idle()


def test_four_hundred_calls_half_of_them_left_at_random(tiny):
    s = serve(tiny, http__requests=512, http__queue=512)
    rng = random.Random(7)
    with Client(s.gateway) as c:
        expected = [c.answer(prompt='Once', seed=i, max_tokens=60, temperature=1, ignore_eos=True) for i in range(8)]
    clients = []
    for i in range(40):
        c = Client(s.gateway)
        clients.append((c, {c.generate(prompt='Once', seed=k % 8, max_tokens=60, temperature=1, ignore_eos=True, credits=rng.choice((1, 4, 100))): k % 8
                            for k in range(10)}))
    for c, streams in clients:
        for stream in [x for x in streams if rng.random() < 0.25]:
            c.send(g.METHOD_CANCEL, g.CancelRequest(id=stream.id))
    for c, streams in clients:
        if rng.random() < 0.3:
            c.socket.close()
            continue
        open_ = dict((x.id, x) for x in streams)
        while open_:
            reply = c.receive()
            stream = open_.get(reply.id)
            if stream is None:
                continue  # the answer to a cancel
            try:
                stream.take(reply)
                if not stream.over:
                    c.send(g.METHOD_CREDIT, id=stream.id, credits=1)
            except Failed as e:
                assert e.code == 'CANCELLED', e
            if stream.over:
                del open_[reply.id]
                if stream.finish:
                    assert stream.text == expected[streams[stream]].text and stream.ids == expected[streams[stream]].ids
        c.socket.close()
    s.wait_idle()
    s.stop()


@pytest.mark.parametrize('what', [
    b'GET / HTTP/1.1\r\nHost: x\r\n\r\n', b'\x00SP\x00\x00\x30\x00\x00', b'\x16\x03\x01\x02\x00', b'\xff' * 100,
    bytes.fromhex('0053500000100000') + b'\xff' * 8, bytes.fromhex('0053500000100000') + struct.pack('>Q', 1 << 30),
    bytes.fromhex('0053500000100000') + struct.pack('>Q', 5) + b'\xff\xff\xff\xff\xff',
    bytes.fromhex('0053500000100000') + struct.pack('>Q', 0)])
def test_garbage_is_closed_and_nothing_else_is_disturbed(server, client, what):
    stream = client.generate(prompt='x', max_tokens=100, ignore_eos=True)
    bad = server.metric('baton:gateway_connections_refused_total')
    raw = Raw(server.gateway_port, what)
    assert raw.is_closed()
    assert server.metric('baton:gateway_connections_refused_total') == bad + 1
    assert len(stream.read().ids[0]) == 100


def test_strangers_are_logged_once(server):
    for _ in range(30):
        assert Raw(server.gateway_port, b'hello, is it me?').is_closed()
    assert server.text().count('SP-CLOSED') == 1


def test_an_id_under_way_twice_closes_the_connection(server):
    raw = Raw(server.gateway_port)
    ask = g.Request(id=7, method=g.METHOD_GENERATE, body=g.GenerateRequest(prompt='x', max_tokens=500, n=8, ignore_eos=True).SerializeToString())
    raw.send(ask.SerializeToString())
    raw.send(ask.SerializeToString())
    assert raw.is_closed()
    server.wait_idle()


def test_half_open_and_half_done_clients_are_closed_in_time(tiny):
    s = serve(tiny, http__header_time='300ms', http__body_time='300ms', http__idle_time='500ms', http__connections=4)
    try:
        socks = [Raw(s.gateway_port, b''), Raw(s.gateway_port, b'\x00SP'), Raw(s.gateway_port)]
        socks[2].s.sendall(struct.pack('>Q', 100) + b'x')
        idle = Raw(s.gateway_port)
        idle.send(g.Request(id=1, method=g.METHOD_HEALTH).SerializeToString())
        assert Raw(s.gateway_port).is_closed(), 'a fifth of four'
        assert all(x.is_closed() for x in [*socks, idle])
        with Client(s.gateway) as c:
            assert c.health() == 'STATE_READY'
    finally:
        s.stop()


def test_stopping_with_clients_is_quick(tiny):
    s = serve(tiny)
    clients = [Client(s.gateway) for _ in range(20)]
    for c in clients:
        c.health()
    raw = Raw(s.gateway_port, b'\x00SP')
    begin = time.monotonic()
    s.stop()
    assert time.monotonic() - begin < 5 and raw
    for c in clients:
        c.socket.close()


def test_bad_addresses_are_named(tiny):
    for url, words in (('udp://127.0.0.1:1', 'expected tcp://'), ('tcp://nowhere.invalid:1', 'nowhere.invalid'),
                       ('tls+tcp://127.0.0.1:0', 'certificate')):
        r = subprocess.run([BATON, 'local', '--model', tiny, '--listen', '127.0.0.1:0', '--set', f'gateway={url}'],
                           capture_output=True, text=True, timeout=60)
        assert r.returncode == 2 and words in r.stderr, (url, r.stderr)


# ---- TLS ----

def test_over_tls(tiny, tmp_path):
    key, cert, both = tmp_path / 'key.pem', tmp_path / 'cert.pem', tmp_path / 'both.pem'
    subprocess.check_call(['openssl', 'req', '-x509', '-newkey', 'rsa:2048', '-nodes', '-keyout', key, '-out', cert, '-days', '2',
                           '-subj', '/CN=gateway.test'], stderr=subprocess.DEVNULL)
    both.write_text(cert.read_text() + key.read_text())
    s = serve(tiny, scheme='tls+tcp', tls__cert_key=str(both))
    try:
        tls = pynng.TLSConfig(pynng.TLSConfig.MODE_CLIENT, server_name='gateway.test', ca_files=[str(cert)])
        with Client(s.gateway, tls_config=tls) as c:
            got = c.answer(prompt='Once', max_tokens=30, temperature=0, ignore_eos=True)
        assert got.text[0] == s.complete('Once', max_tokens=30, temperature=0, ignore_eos=True).json()['choices'][0]['text']
        assert Raw(s.gateway_port).is_closed(), 'one without TLS'
    finally:
        s.stop()


@pytest.mark.skipif(SMOL is None, reason='no SmolLM2')
def test_a_real_model_says_the_same_over_both():
    s = serve(SMOL, engine__context=1024)
    try:
        chat = g.Chat(messages=[g.ChatMessage(role='user', content='Name three colours.')])
        with Client(s.gateway) as c:
            for seed in (1, 2):
                got = c.answer(chat=chat, max_tokens=40, temperature=0.8, seed=seed)
                http = s.chat('Name three colours.', max_tokens=40, temperature=0.8, seed=seed).json()
                assert got.text[0] == http['choices'][0]['message']['content']
                assert got.usage.completion_tokens == http['usage']['completion_tokens'] == len(got.ids[0])
    finally:
        s.stop()


# ---- baton run --server: the client in C ----

def run_server(s, *args, code=0, **more):
    r = subprocess.run([BATON, 'run', '--server', s.gateway, *args], capture_output=True, text=True, timeout=60, **more)
    assert r.returncode == code, r.stderr
    return r


@pytest.mark.parametrize('args', [('--prompt', 'Once upon'), ('--ids', '1,61,70'),
                                  ('--prompt', 'x', '--temperature', '0.9', '--seed', '5', '--top-k', '20', '--ignore-eos')])
def test_run_says_the_same_with_a_model_and_with_a_server(server, tiny, args):
    mine = json.loads(subprocess.check_output([BATON, 'run', tiny, *args, '--max-tokens', '30', '--json']))
    theirs = json.loads(run_server(server, *args, '--max-tokens', '30', '--json').stdout)
    for key in ('prompt_ids', 'ids', 'text', 'finish_reason'):
        assert theirs[key] == mine[key], key
    assert theirs['usage']['completion_tokens'] == mine['usage']['completion_tokens']


def test_run_with_messages_and_its_errors(server):
    messages = json.dumps([{'role': 'user', 'content': 'Hello there'}])
    r = run_server(server, '--messages', '-', '--max-tokens', '20', '--json', input=messages)
    assert json.loads(r.stdout)['text'] == server.chat(max_tokens=20, temperature=0).json()['choices'][0]['message']['content']
    assert run_server(server, '--messages', '-', '--max-tokens', '20', input=messages).stdout.strip('\n') == json.loads(r.stdout)['text'].strip('\n')
    assert 'context' in run_server(server, '--prompt', 'x', '--max-tokens', '100000', code=2).stderr
    assert 'temperature' in run_server(server, '--prompt', 'x', '--temperature', '7', code=2).stderr
    assert 'one of --prompt' in run_server(server, code=2).stderr
    assert 'content' in run_server(server, '--messages', '-', code=2, input='[{"role":"user"}]').stderr
    r = subprocess.run([BATON, 'run', '--server', 'tcp://127.0.0.1:1', '--prompt', 'x', '--timeout', '1'], capture_output=True, text=True)
    assert r.returncode == 1 and 'tcp://127.0.0.1:1' in r.stderr and r.stdout == ''


def test_the_example_of_the_readme_works(server):
    text = open(os.path.join(ROOT, 'README.md')).read()
    code = re.search(r'```python\n(import pynng.*?)```', text, re.S).group(1).replace('8090', str(server.gateway_port))
    generated = os.path.dirname(os.path.dirname(g.__file__))
    r = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, timeout=60, env={**os.environ, 'PYTHONPATH': generated})
    assert r.returncode == 0 and r.stdout, r.stderr
