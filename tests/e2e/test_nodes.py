"""`baton prefill` and `baton decode` as programs: settings, status, readiness, refusals, their end."""
import itertools, os, re, signal, socket, subprocess, time
import pytest
from cluster import Cluster
from conftest import BATON


def run(*args, **more):
    return subprocess.run([BATON, *args], capture_output=True, text=True, timeout=60, **more)


@pytest.fixture
def cluster(tiny, tmp_path):
    """Of nodes alone: one of each, no router started."""
    made = []

    def make(**more):
        made.append(Cluster(more.pop('model', tiny), tmp_path, **more))
        return made[-1]
    yield make
    for c in made:
        c.kill()


def other_model(tiny, folder):
    """The same model with one weight changed."""
    path = os.path.join(str(folder), 'other.gguf')
    data = bytearray(open(tiny, 'rb').read())
    data[-1000] ^= 0x11
    open(path, 'wb').write(data)
    return path


def test_pairs_come_about_in_any_order_of_starts(cluster):
    for order in itertools.permutations(('p1', 'd1', 'd2')):
        c = cluster(prefill=1, decode=2)
        for name in order:
            c[name].start()
            c.wait_for(f'readiness of {name}', c[name].is_ready)
        c.wait_ready()
        c.stop()


def test_a_node_says_what_it_is(cluster):
    c = cluster(prefill=1, decode=1, decode_settings={'kv': {'blocks': 100}}).start('p1', 'd1').wait_ready()
    p, d = c['p1'].node(), c['d1'].node()
    assert (p['name'], p['role'], p['state']) == ('p1', 'prefill', 'ready')
    assert (d['name'], d['role'], d['state']) == ('d1', 'decode', 'ready')
    assert d['model']['family'] == p['model']['family'] and d['model']['prompt_weights_digest'] == p['model']['weights_digest']
    assert d['kv'] == {'blocks': 100, 'free': 100, 'cached': 0, 'leak': 0}
    assert d['sources'][0]['name'] == 'p1' and d['sources'][0]['path'] == 'direct' and d['sources'][0]['gb_per_s'] > 0
    assert d['transfer_peers'][0]['epoch'] == p['epoch'] and p['transfer_peers'][0]['epoch'] == d['epoch']
    assert re.search(r'I PREFILL-READY p1: .* \d+ ms after the start', c['p1'].text())
    assert c['d1'].metric('baton:transfer_peer_gb_per_s') > 0 and c['d1'].metric('baton:sources') == 1
    assert c['d1'].get('/nowhere').status_code == 404 and c['d1'].http.post('/health').status_code == 405
    for name in 'p1', 'd1':
        text = c[name].get('/metrics').text
        heads = re.findall(r'^# TYPE (\S+)', text, re.M)
        assert len(heads) == len(set(heads)), 'a metric stands in two places'
        assert re.search(rf'^baton:ready{{node="{name}",role="\w+"}} 1$', text, re.M)
    c.stop()


def test_a_restarted_node_has_a_new_epoch_and_is_proved_again(cluster):
    c = cluster(prefill=1, decode=2).start('p1', 'd1', 'd2').wait_ready()
    for name, sig in (('p1', signal.SIGKILL), ('d1', signal.SIGKILL), ('p1', signal.SIGTERM), ('d2', signal.SIGTERM)):
        before = c[name].node()['epoch']
        c[name].kill() if sig == signal.SIGKILL else c[name].stop()
        c[name].start()
        c.wait_ready()
        assert c[name].node()['epoch'] != before
        assert all(d.node()['transfer_peers'][0]['epoch'] == c['p1'].node()['epoch'] for d in c.of('decode'))
    c.stop()


def test_a_wrong_secret_is_refused_and_disturbs_nobody(cluster):
    c = cluster(prefill=2, decode=1)
    wrong = c.write({**c.yaml, 'cluster': {'name': 'test', 'secret': 'open barley'}}, 'wrong.yaml')
    c.start('p1', 'd1').wait_ready()
    c['p2'].start(config=wrong)
    c.wait_for('refusal', lambda: 'LINK-REFUSED' in c['p2'].text())
    time.sleep(0.5)
    assert c['p2'].text().count('LINK-REFUSED') == 1, 'said once an address'
    assert 'open' not in c['p2'].text() + c['d1'].text(), 'the log tells a secret'
    assert {s['name']: s['state'] for s in c['d1'].node()['sources']} == {'p1': 'ready', 'p2': 'away'}
    c['p2'].stop()
    c['p2'].start()
    c.wait_ready()
    c.stop()


@pytest.mark.parametrize('field, change', [('model', None), ('kv.format', {'kv': {'format': 'f16'}}),
                                           ('kv.block_tokens', {'kv': {'block_tokens': 16}})])
def test_a_node_that_does_not_fit_is_named_and_disturbs_nobody(cluster, tiny, tmp_path, field, change):
    c = cluster(prefill=2, decode=1)
    change = change or {'model': {'path': other_model(tiny, tmp_path)}}
    other = c.write({**c.yaml, **change}, 'other.yaml')
    c.start('p1', 'd1').wait_ready()
    c['p2'].start(config=other)
    c.wait_for('refusal', lambda: 'SOURCE-REFUSED' in c['d1'].text())
    said = re.search(r'W SOURCE-REFUSED (.*)', c['d1'].text()).group(1)
    assert re.fullmatch(rf'prefill node p2: its {field}.* is (\w+), expected (?!\1)\w+', said), said
    time.sleep(0.5)
    assert c['d1'].text().count('SOURCE-REFUSED') == 1
    assert {s['name']: s['state'] for s in c['d1'].node()['sources']} == {'p1': 'ready', 'p2': 'refused'}
    c['p2'].stop()
    c['p2'].start()
    c.wait_ready()
    c.stop()


def test_weights_whose_caches_differ_are_refused_at_the_start(cluster):
    c = cluster(prefill=1, decode=1, decode_settings={'weights': 'q4'})
    r = run('decode', '--config', c.config)
    assert r.returncode == 2 and 'weights' in r.stderr and 'q4' in r.stderr and 'keep' in r.stderr


def test_bad_use_and_bad_files_are_one_line_and_code_2(cluster, tiny, tmp_path):
    c = cluster(prefill=1, decode=1)
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        s.listen()
        taken = f'127.0.0.1:{s.getsockname()[1]}'
        for args, words in (([], '--config'),
                            (['--config', '/nowhere.yaml'], '/nowhere.yaml'),
                            (['--config', c.config, '--name', 'x9'], 'x9'),
                            (['--config', c.config, '--set', 'engine.contxt=3'], 'engine.context'),
                            (['--config', c.config, '--set', f'link=tcp://{taken}'], 'in use'),
                            (['--config', c.config, '--set', f'status={taken}'], 'in use'),
                            (['--config', c.config, '--set', f'transfer={taken}'], 'in use'),
                            (['--config', c.config, '--set', 'model.path=/nowhere.gguf'], '/nowhere.gguf'),
                            (['--wrong'], '--wrong')):
            for role in 'prefill', 'decode':
                r = run(role, *args)
                errors = [line for line in r.stderr.splitlines() if not re.match(r'\d\d:\d\d:\d\d', line)]
                assert r.returncode == 2 and words in r.stderr and 1 <= len(errors) <= 2, (role, args, r.stderr)


def test_check_and_print_config(cluster):
    c = cluster(prefill=2, decode=1)
    assert run('decode', '--config', c.config, '--check-config').returncode == 0
    assert run('prefill', '--config', c.config, '--check-config').returncode == 2, 'which of the two?'
    r = run('prefill', '--config', c.config, '--name', 'p2', '--print-config')
    assert r.returncode == 0 and 'p2' in r.stdout
    again = os.path.join(c.folder, 'again.yaml')
    open(again, 'w').write(r.stdout)
    os.chmod(again, 0o600)
    assert run('prefill', '--config', again, '--name', 'p2', '--print-config').stdout == r.stdout
    assert run('decode', '--help').returncode == 0


def test_signals_end_an_idle_node_at_once_in_every_phase(cluster):
    c = cluster(prefill=1, decode=1)
    for sig, delay in itertools.product((signal.SIGTERM, signal.SIGINT), (0.02, 0.1, 0.5)):
        for name in 'p1', 'd1':
            c[name].start()
        time.sleep(delay)
        begin = time.monotonic()
        for name in 'p1', 'd1':
            c[name].kill(sig)
        assert [c[n].process.wait(10) for n in ('p1', 'd1')] in ([0, 0], [-sig, 0], [0, -sig], [-sig, -sig])
        assert time.monotonic() - begin < 3
        if delay == 0.5:
            assert c['p1'].process.returncode == c['d1'].process.returncode == 0
