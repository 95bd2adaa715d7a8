"""`baton router` by itself: without nodes, with nodes that come and go, with nodes that do not belong to it; and its settings."""
import glob, json, os, re, socket, subprocess, threading, time
import pytest
from cluster import Cluster
from ports import free_ports
from conftest import BATON, ROOT


def run(role, *args):
    return subprocess.run([BATON, role, *args], capture_output=True, text=True, timeout=60)


def nodes(c, router='r1'):
    """By name, as the router has them; before it listens, all down."""
    r = c[router].get('/v1/cluster')
    return {n['name']: n for n in r.json()['nodes']} if r else {n: {'state': 'down'} for n in c.programs}


@pytest.fixture
def cluster(tiny, tmp_path):
    c = Cluster(tiny, tmp_path, prefill=1, decode=2, settings={'placement': {'heartbeat': '100ms'}})
    yield c
    c.kill()


def test_a_router_without_nodes_says_503_and_when_to_come_back(cluster):
    c = cluster.start('r1')
    http = c.http
    c.wait_for('the router', lambda: 'ROUTER-OPEN' in c['r1'].text())
    assert http.get('/health').status_code == 200
    r = http.get('/ready')
    assert r.status_code == 503 and r.json() == {'status': 'no decode node'}
    for ask in (lambda: c.complete('x'), lambda: c.chat('x'), lambda: c.complete('x', stream=True)):
        r = ask()
        assert r.status_code == 503 and int(r.headers['retry-after']) >= 1 and r.json()['error']['message'], r.text
    # What needs no node is answered.
    assert http.get('/v1/models').json()['data'][0]['id'] == 'm'
    assert http.post('/tokenize', json={'prompt': 'Hello'}).json()['count'] > 0
    assert c.complete('x' * 100000).status_code == 400
    page = http.get('/v1/cluster').json()
    assert page['cluster'] == 'test' and page['router'] == 'r1' and page['ready'] is False
    assert [(n['name'], n['role'], n['state']) for n in page['nodes']] == [
        ('p1', 'prefill', 'down'), ('d1', 'decode', 'down'), ('d2', 'decode', 'down')]
    assert all(n['link'].startswith('tcp://127.0.0.1:') for n in page['nodes'])
    begin = time.monotonic()
    c['r1'].stop()
    assert time.monotonic() - begin < 5


def test_a_prefill_node_alone_is_no_service(cluster):
    c = cluster.start('r1', 'p1')
    c.wait_for('p1', lambda: nodes(c)['p1']['state'] == 'ready')
    assert c.http.get('/ready').status_code == 503 and c.complete('x').status_code == 503


def test_nodes_come_and_go_in_any_order(cluster):
    c = cluster.start('d1', 'r1', 'p1')
    c.wait_ready()
    c.wait_for('p1', lambda: [nodes(c)[n]['state'] for n in ('p1', 'd1', 'd2')] == ['ready', 'ready', 'down'])
    assert c.complete('x', max_tokens=3).status_code == 200
    c.wait_for('the pair', lambda: nodes(c)['d1'].get('fetches_from') == ['p1'])
    epoch = nodes(c)['d1']['epoch']
    c['d1'].kill()
    c.wait_for('503', lambda: c.http.get('/ready').status_code == 503)
    assert nodes(c)['d1']['state'] == 'down' and c.complete('x').status_code == 503
    c.start('d1', 'd2').wait_ready()
    c.wait_for('both', lambda: [nodes(c)[n]['state'] for n in ('d1', 'd2')] == ['ready', 'ready'])
    assert c.complete('x', max_tokens=3).status_code == 200 and nodes(c)['d1']['epoch'] != epoch
    log = c['r1'].text()
    assert 'NODE-LOST d1: ' in log and log.count('NODE-READY d1: decode') == 2 and log.count('NODE-READY d2: decode') == 1
    c['d2'].stop()
    c.wait_for('d2 to be gone', lambda: nodes(c)['d2']['state'] == 'down')
    assert 'NODE-DRAINS d2: ' in c['r1'].text() and 'NODE-LOST d2' not in c['r1'].text()
    c.wait_idle()
    c.stop()


def test_two_routers_share_the_nodes(tiny, tmp_path):
    c = Cluster(tiny, tmp_path, routers=2, prefill=0, decode=1)
    try:
        c.start().wait_ready()
        answers = [p.http.post('/v1/completions', json={'prompt': 'x', 'max_tokens': 8, 'temperature': 0}).json() for p in
                   c.of('router')]
        assert answers[0]['choices'] == answers[1]['choices']
        c['r1'].kill()
        r = c['r2'].http.post('/v1/completions', json={'prompt': 'x', 'max_tokens': 8, 'temperature': 0})
        assert r.json()['choices'] == answers[0]['choices']
        c['r1'].start()
        c.wait_ready()
        c.wait_idle()
        c.stop()
    finally:
        c.kill()


def test_a_signal_finishes_what_runs(cluster):
    c, got = cluster.start('r1', 'd1').wait_ready(), []
    t = threading.Thread(target=lambda: got.append(c.complete('x', max_tokens=400, ignore_eos=True, n=8, temperature=1)))
    t.start()
    c.wait_for('running', lambda: c['r1'].metric('baton:num_requests_running') > 0)
    c['r1'].process.terminate()
    t.join()
    assert got[0].status_code == 200 and got[0].json()['usage']['completion_tokens'] == 8 * 400
    c['r1'].stop()
    assert 'ROUTER-DRAIN' in c['r1'].text()
    with pytest.raises(OSError):
        socket.create_connection(('127.0.0.1', c['r1'].port))


@pytest.mark.parametrize('sets,field', [(['kv.block_tokens=16'], 'kv.block_tokens'), (['weights=q4'], 'model'),
                                        (['kv.format=f16'], 'kv.format'), (['name=d9'], 'name')])
def test_a_node_with_other_settings_is_refused_by_name_and_comes_back_with_the_right_ones(cluster, tmp_path, sets, field):
    c = cluster
    # Its own copy of the file says something else: as when one machine was forgotten.
    yaml = json.loads(open(c.config).read())
    wrong = yaml['decode']['nodes'][0]
    key, value = sets[0].split('=')
    at, name = (wrong.setdefault(key.split('.')[0], {}), key.split('.')[1]) if '.' in key else (wrong, key)
    at[name] = int(value) if value.isdigit() else value
    yaml['decode']['nodes'], yaml['prefill']['nodes'] = [wrong], []
    path = c.write(yaml, 'wrong.yaml')
    c.start('r1')
    d1 = c['d1']
    d1.log = open(os.path.join(c.folder, 'wrong.log'), 'w')
    d1.process = subprocess.Popen([BATON, 'decode', '--config', path], stderr=d1.log)
    c.wait_for('the refusal', lambda: nodes(c)['d1']['state'] == 'refused')
    refused = nodes(c)['d1']['refused']
    assert refused['expected'] != refused['found'] and refused['field'] == field, refused
    assert c.http.get('/ready').status_code == 503 and c.complete('x').status_code == 503
    time.sleep(0.5)  # it is asked again with every heartbeat
    line = f"{wrong['name']}: {refused['field']}: expected {refused['expected']}, found {refused['found']}"
    assert c['r1'].text().count('NODE-REFUSED') == 1 and line in c['r1'].text()
    d1.kill()
    c.start('d1')
    c.wait_for('the right one', lambda: c['r1'].is_ready())
    assert c.complete('x', max_tokens=2).status_code == 200


def test_a_node_with_another_secret_is_no_node(cluster):
    c = cluster
    c['d1'].sets = ['cluster.secret=guessed']
    c.start('r1', 'd1')
    c.wait_for('the model', lambda: 'DECODE-READY' in c['d1'].text())
    time.sleep(1.5)
    assert nodes(c)['d1']['state'] == 'down' and c.http.get('/ready').status_code == 503
    assert 'guessed' not in c['r1'].text() and 'open sesame' not in c['r1'].text() + c['d1'].text()


def make_certificates(folder, *names):
    """An authority, and a certificate for each name, in PEM files with their keys."""
    sh = lambda words: subprocess.run(['openssl', *words.split()], cwd=folder, check=True, capture_output=True)
    key = '-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes'
    sh(f'req -x509 {key} -days 2 -subj /CN=authority -keyout ca.key -out ca.pem')
    for name in names:
        (folder / f'{name}.ext').write_text(f'subjectAltName=DNS:{name}\n')
        sh(f'req {key} -subj /CN={name} -keyout {name}.key -out {name}.csr')
        sh(f'x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile {name}.ext -out {name}.crt')
        (folder / f'{name}.pem').write_text((folder / f'{name}.crt').read_text() + (folder / f'{name}.key').read_text())


def test_links_over_tls_want_the_names_of_the_file(tiny, tmp_path):
    make_certificates(tmp_path, 'node.test', 'router.test', 'other.test')
    c = Cluster(tiny, tmp_path, prefill=1, decode=1, settings={'placement': {'remote_tokens_min': 16}})
    yaml = c.yaml
    yaml['cluster']['tls'] = {'ca': f'{tmp_path}/ca.pem', 'cert_key': f'{tmp_path}/node.test.pem'}
    yaml['routers']['cluster'] = {'tls': {'cert_key': f'{tmp_path}/router.test.pem'}}
    yaml['tls_name'] = 'node.test'
    for n in yaml['prefill']['nodes'] + yaml['decode']['nodes']:
        n['link'] = 'tls+' + n['link']
    c.write(yaml)
    try:
        c.start().wait_ready()
        assert nodes(c)['d1']['link'].startswith('tls+tcp://')
        c.wait_for('the pair', lambda: nodes(c)['d1'].get('fetches_from') == ['p1'])
        assert c.complete('x', max_tokens=3).status_code == 200
        c['d1'].stop()
        c['d1'].sets = [f'cluster.tls.cert_key={tmp_path}/other.test.pem']
        c.start('d1')
        c.wait_for('the model', lambda: 'DECODE-READY' in c['d1'].text())
        time.sleep(1)
        assert nodes(c)['d1']['state'] == 'down' and c.complete('x').status_code == 503
    finally:
        c.kill()


def is_free(port):
    with socket.socket() as s:
        return s.connect_ex(('127.0.0.1', port)) != 0


@pytest.mark.skipif(not all(map(is_free, (7101, 7102, 7111, 7112))), reason='a local cluster runs')
def test_local_sh_starts_a_cluster_and_ends_it(tiny):
    r = subprocess.run([os.path.join(ROOT, 'deploy', 'local.sh'), '--cluster', '--once', '--model', tiny, '--listen',
                        f'127.0.0.1:{free_ports(1)[0]}'], capture_output=True, text=True, timeout=120)
    assert r.returncode == 0 and r.stdout, r.stderr
    for name in ('r1', 'p1', 'p2', 'd1', 'd2'):
        assert re.search(rf'^{name} .*-DRAIN', r.stderr, re.M), (name, r.stderr)
    assert all(map(is_free, (7101, 7102, 7111, 7112)))


def test_keys_close_the_cluster_page_too(tiny, tmp_path):
    c = Cluster(tiny, tmp_path, prefill=0, decode=1, router_settings={'auth': {'keys': ['k']}})
    try:
        c.start('r1')
        c.wait_for('the router', lambda: 'ROUTER-OPEN' in c['r1'].text())
        assert c.http.get('/v1/cluster').status_code == 401
        assert c.http.get('/v1/cluster', headers={'Authorization': 'Bearer k'}).status_code == 200
    finally:
        c.kill()


# ---- settings ----

def test_every_wrong_file_is_one_line_that_says_where():
    files = sorted(glob.glob(os.path.join(ROOT, 'tests', 'data', 'config', 'bad', '*.yaml')))
    assert len(files) > 30
    for file in files:
        expected = open(file).readline()[2:].strip()
        r = run('router', '--config', file, '--name', 'r1', '--check-config')
        assert r.returncode == 2 and r.stdout == '' and r.stderr.startswith(f'baton router: {file}:{expected}'), r.stderr
        assert len(r.stderr.splitlines()) == 1


def test_files_of_this_machine_are_looked_at(tiny, tmp_path):
    secret, file = tmp_path / 'secret', tmp_path / 'c.yaml'
    file.write_text(f'cluster: {{secret_file: {secret}}}\nmodel: {{path: {tiny}}}\nrouters:\n  nodes: [{{name: r1}}]\n'
                    f'decode:\n  nodes: [{{name: d1, link: "tcp://127.0.0.1:7100"}}]\n')
    check = lambda: run('router', '--config', str(file), '--check-config')
    assert check().returncode == 2 and f'{file}:1:24: cluster.secret_file: {secret}: No such file' in check().stderr
    secret.write_text('open sesame\n')
    secret.chmod(0o644)
    assert check().returncode == 2 and 'only its owner can read (chmod 600), found mode 644' in check().stderr
    secret.chmod(0o600)
    assert check().returncode == 0 and check().stderr == ''
    r = run('router', '--config', str(file), '--print-config')
    assert r.returncode == 0 and 'open sesame' not in r.stdout
    for args, words in (([], '--config FILE'), (['--config', '/nowhere.yaml'], '/nowhere.yaml: No such file'),
                        (['--config', str(file), '--name', 'r9'], 'routers: has no node "r9", but r1'),
                        (['--config', str(file), '--set', 'http.request=3'], 'did you mean "http.requests"'),
                        (['--config', str(file), '--set', f'model.path={tmp_path}/no.gguf'], '--set model.path: '),
                        (['--config', str(file), '--listen', 'x'], '--set listen: listen: "x" is not HOST:PORT')):
        r = run('router', *args)
        assert r.returncode == 2 and words in r.stderr and len(r.stderr.splitlines()) == 1, r.stderr


def test_a_printed_cluster_is_the_same_cluster(tmp_path):
    good = os.path.join(ROOT, 'tests', 'data', 'config', 'good.yaml')
    once = run('decode', '--config', good, '--name', 'd1', '--print-config')
    assert once.returncode == 0, once.stderr
    (tmp_path / 'again.yaml').write_text(once.stdout)
    assert run('decode', '--config', str(tmp_path / 'again.yaml'), '--print-config').stdout == once.stdout
