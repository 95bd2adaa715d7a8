"""What the e2e tests share: a running `baton local` on the tiny model, and plain sockets to it."""
import json, os, re, shutil, socket, subprocess, sys, time
import httpx, pytest

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), '..', '..'))
sys.path.append(os.path.join(ROOT, 'tests', 'support'))
from ports import free_port  # noqa: E402

BUILD = os.environ.get('BATON_BUILD', os.path.join(ROOT, 'build', 'release'))
BATON = os.environ.get('BATON', os.path.join(BUILD, 'baton'))
DATA = os.environ.get('BATON_DATA') or next(
    (d for d in (os.path.join(ROOT, p, 'shared', 'data') for p in ('..', '../..')) if os.path.isdir(d)), None)
SMOL = next((p for p in (os.environ.get('BATON_SMOL', ''), os.path.expanduser('~/.cache/baton-verify/smol.gguf'),
                         os.path.expanduser('~/.cache/baton/SmolLM2-135M-Instruct.Q4_1.gguf')) if os.path.exists(p)), None)
EXTRA = os.environ.get('BATON_E2E_ARGS', '').split()


class Server:
    """`baton local` with these options, on a port of its own."""

    def __init__(self, model, *options, wait=True, **settings):
        self.log = open(os.path.join(os.path.dirname(model) if os.access(os.path.dirname(model), os.W_OK) else '/tmp',
                                     f'server-{time.monotonic_ns()}.log'), 'w+')
        self.port = free_port()
        sets = [f'{k.replace("__", ".")}={v}' for k, v in settings.items()]
        self.process = subprocess.Popen(
            [BATON, 'local', '--model', model, '--listen', f'127.0.0.1:{self.port}', *EXTRA, *options,
             *(x for s in sets for x in ('--set', s))], stderr=self.log)
        self.url = f'http://127.0.0.1:{self.port}'
        self.http = httpx.Client(base_url=self.url, timeout=60)
        if wait:
            self.wait_ready()

    def text(self):
        self.log.flush()
        return open(self.log.name).read()

    def wait_for(self, what, condition, seconds=30):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if condition():
                return
            if self.process.poll() is not None:
                pytest.fail(f'the server ended with {self.process.returncode}:\n{self.text()[-4000:]}')
            time.sleep(0.01)
        pytest.fail(f'{what} did not come about within {seconds} s\n{self.http.get("/metrics").text}\n{self.text()[-2000:]}')

    def wait_ready(self, seconds=30):
        def ready():
            try:
                return self.http.get('/ready').status_code == 200
            except httpx.TransportError:
                return False
        self.wait_for('readiness', ready, seconds)

    def metric(self, name):
        found = re.findall(rf'^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$', self.http.get('/metrics').text, re.M)
        assert found, name
        return sum(map(float, found))

    def gauges(self):
        names = ('num_requests_running', 'num_requests_waiting', 'http_calls_open', 'answers_open', 'kv_leak_blocks',
                 'router_leak', 'sequences_decoding', 'sequences_prefilling')
        return {n: self.metric('baton:' + n) for n in names}

    def wait_idle(self):
        """Everything has come home, and nothing leaked."""
        self.wait_for('idleness', lambda: not any(self.gauges().values()))

    def chat(self, content='Hello there', **more):
        return self.http.post('/v1/chat/completions', json={'messages': [{'role': 'user', 'content': content}], **more})

    def complete(self, prompt='Hello', **more):
        return self.http.post('/v1/completions', json={'prompt': prompt, **more})

    def socket(self):
        s = socket.create_connection(('127.0.0.1', self.port))
        s.settimeout(20)
        return s

    def post_raw(self, path, body):
        s = self.socket()
        body = json.dumps(body).encode()
        s.sendall(b'POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s' % (path.encode(), len(body), body))
        return s

    def stop(self, code=0):
        if self.process.poll() is None:
            self.process.terminate()
        got = self.process.wait(timeout=60)
        self.http.close()
        assert got == code, self.text()[-4000:]


@pytest.fixture(scope='session')
def tiny(tmp_path_factory):
    path = str(tmp_path_factory.mktemp('model') / 'tiny.gguf')
    shutil.copy(os.path.join(ROOT, 'tests', 'data', 'tiny-q8_0.gguf'), path)
    return path


@pytest.fixture(scope='session')
def server(tiny):
    s = Server(tiny)
    yield s
    s.wait_idle()
    s.stop()


def events(text):
    """The data of each server-sent event, checking the form of the stream."""
    assert text.endswith('\n\n')
    out = []
    for part in text[:-2].split('\n\n'):
        assert part.startswith('data: ') and '\n' not in part, part
        out.append(part[6:])
    return out


def chunks(text):
    found = events(text)
    assert found[-1] == '[DONE]'
    return [json.loads(c) for c in found[:-1]]
