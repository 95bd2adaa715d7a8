"""Start, stop, settings, bad files."""
import os, re, signal, socket, subprocess, threading, time
import httpx, pytest
from conftest import BATON, ROOT, SMOL, Server


def run(*args):
    return subprocess.run([BATON, 'local', *args], capture_output=True, text=True, timeout=60)


@pytest.mark.skipif(SMOL is None, reason='no SmolLM2: the tiny model is there at once')
def test_it_lives_before_it_is_ready():
    s = Server(SMOL, wait=False)
    try:
        def lives():
            try:
                return s.http.get('/health').status_code == 200
            except httpx.TransportError:
                return False
        s.wait_for('life', lives, 5)
        r = s.http.get('/ready')
        if r.status_code != 200:
            assert r.status_code == 503 and r.json() == {'status': 'loading'}
            r = s.complete('x')
            assert r.status_code == 503 and int(r.headers['retry-after']) >= 1
        s.wait_ready()
        assert s.complete('x', max_tokens=2).status_code == 200
    finally:
        s.stop()


@pytest.mark.parametrize('sig', [signal.SIGTERM, signal.SIGINT])
def test_a_signal_finishes_what_runs(tiny, sig):
    s = Server(tiny)
    got = []
    t = threading.Thread(target=lambda: got.append(s.complete('x', max_tokens=500, ignore_eos=True, n=16, temperature=1)))
    t.start()
    s.wait_for('running', lambda: s.gauges()['num_requests_running'] > 0)
    s.process.send_signal(sig)
    t.join()
    assert got[0].status_code == 200 and got[0].json()['usage']['completion_tokens'] == 16 * 500
    s.stop()
    with pytest.raises(OSError):
        socket.create_connection(('127.0.0.1', s.port))


def test_a_drain_is_bounded(tiny):
    s = Server(tiny, cpu__isa='ref', http__drain_time='300ms', engine__max_sequences=1)
    sock = s.post_raw('/v1/completions', {'prompt': 'x', 'max_tokens': 500, 'ignore_eos': True, 'n': 16})
    s.wait_for('running', lambda: s.gauges()['num_requests_running'] > 0)
    s.process.terminate()
    begin = time.monotonic()
    s.stop()
    assert time.monotonic() - begin < 10
    sock.close()


def test_stopping_with_idle_and_half_done_clients_is_quick(tiny):
    s = Server(tiny)
    socks = [s.socket() for _ in range(10)]
    for i, sock in enumerate(socks):
        sock.sendall(b'POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{'[:i * 9])
    time.sleep(0.1)
    begin = time.monotonic()
    s.stop()
    assert time.monotonic() - begin < 5


def test_bad_use_and_bad_files_are_one_line_and_code_2(tiny, tmp_path):
    cut = tmp_path / 'cut.gguf'
    cut.write_bytes(open(tiny, 'rb').read()[:5000])
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        s.listen()
        taken = f'127.0.0.1:{s.getsockname()[1]}'
        for args, words in ((['--model', '/nowhere.gguf', '--listen', '127.0.0.1:0'], '/nowhere.gguf'),
                            (['--model', str(cut), '--listen', '127.0.0.1:0'], str(cut)),
                            (['--model', tiny, '--listen', taken], 'in use'),
                            (['--model', tiny, '--listen', 'x'], 'HOST:PORT'),
                            ([], '--model'),
                            (['--set', 'engine.contxt=3'], 'did you mean "engine.context"'),
                            (['--set', 'kv.format=int9'], 'int8'),
                            (['--set', 'kv.block_tokens=17', '--check-config'], 'none of 16, 32, 64'),
                            (['--set', 'http.queue=2', '--check-config'], 'http.choices'),
                            (['--wrong'], 'baton local: --wrong')):
            r = run(*args)
            assert r.returncode == 2 and words in r.stderr and len(r.stderr.splitlines()) <= 2, (args, r.stderr)


def test_port_0_is_a_free_one_and_the_log_says_which(tiny):
    p = subprocess.Popen([BATON, 'local', '--model', tiny, '--listen', '127.0.0.1:0'], stderr=subprocess.PIPE, text=True)
    try:
        ready = next(line for line in p.stderr if 'LOCAL-READY' in line)
        url = re.search(r' on (127.0.0.1:[1-9]\d*),', ready).group(1)
        assert httpx.get(f'http://{url}/ready').status_code == 200
    finally:
        p.terminate()
        p.wait(timeout=10)


def test_local_sh_asks_no_other_server(tiny):
    script = os.path.join(ROOT, 'deploy', 'local.sh')
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        s.listen()
        taken = f'127.0.0.1:{s.getsockname()[1]}'
        r = subprocess.run([script, '--once', '--model', tiny, '--listen', taken], capture_output=True, text=True, timeout=60)
    assert r.returncode == 2 and taken in r.stderr and r.stdout == '', (r.stdout, r.stderr)


def test_config_file_then_options(tiny, tmp_path):
    file = tmp_path / 'baton.yaml'
    file.write_text('engine:\n  context: 256\n  chunk_tokens: 64\nmodel:\n  name: named\n')
    r = run('--config', str(file), '--set', 'engine.chunk_tokens=32', '--print-config')
    assert r.returncode == 0 and 'context: 256' in r.stdout and 'chunk_tokens: 32' in r.stdout
    again = tmp_path / 'again.yaml'
    again.write_text(r.stdout)
    assert run('--config', str(again), '--print-config').stdout == r.stdout
    assert run('--config', str(again), '--check-config').returncode == 0
    file.write_text('engine:\n  contxt: 256\n')
    r = run('--config', str(file), '--check-config')
    assert r.returncode == 2 and f'{file}:2:3: unknown setting' in r.stderr
    s = Server(tiny, '--config', str(again))
    try:
        assert s.http.get('/v1/models').json()['data'][0] == {
            'id': 'named', 'object': 'model', 'created': 0, 'owned_by': 'baton', 'max_model_len': 256}
    finally:
        s.stop()


def test_the_file_in_deploy_is_what_print_config_writes():
    file = os.path.join(ROOT, 'deploy', 'local.yaml')
    text = open(file).read()
    assert text.split('\n', 1)[1] == run('--print-config').stdout == run('--config', file, '--print-config').stdout


def test_help_is_for_persons():
    r = run('--help')
    assert r.returncode == 0 and '--model' in r.stdout and '--listen' in r.stdout
