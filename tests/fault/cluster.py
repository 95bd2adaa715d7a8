"""A cluster of real processes for the fault tests: started, killed, frozen, asked. The standard library only.

    with Cluster(model, prefill=2, decode=2) as c:
        c.wait_ready()
        a = c.ask({'prompt': 'Hello', 'max_tokens': 8})
        c.decode[0].kill(); c.decode[0].start()
        c.wait_idle()                 every node: nothing runs, nothing is held, nothing leaked
"""
import http.client, json, os, re, shutil, signal, socket, struct, subprocess, sys, tempfile, threading, time

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), '..', '..'))
sys.path.append(os.path.join(ROOT, 'tests', 'support'))
from ports import free_port  # noqa: E402

BATON = os.environ.get('BATON', os.path.join(ROOT, 'build', 'release', 'baton'))
DATA = os.environ.get('BATON_DATA') or next(
    (d for d in (os.path.join(ROOT, p, 'shared', 'data') for p in ('..', '../..')) if os.path.isdir(d)), None)
TINY = os.path.join(ROOT, 'tests', 'data', 'tiny-q8_0.gguf')
SMOL = next((p for p in (os.environ.get('BATON_SMOL', ''), os.path.expanduser('~/.cache/baton-verify/smol.gguf'),
                         os.path.expanduser('~/.cache/baton/SmolLM2-135M-Instruct.Q4_1.gguf')) if os.path.exists(p)), None)


class Failed(AssertionError):
    pass


def wait_for(what, condition, seconds=30, every=0.01, detail=lambda: ''):
    """Asks until it is so; a connection that is refused meanwhile means "not yet"."""
    until = time.monotonic() + seconds
    while True:
        try:
            got = condition()
            if got:
                return got
        except (OSError, http.client.HTTPException):
            pass
        if time.monotonic() > until:
            raise Failed(f'{what} did not come about within {seconds} s {detail()}')
        time.sleep(every)


class Answer:
    """What came of a request: `tokens` is [[token, logprob, alternatives]…] where logprobs were asked for."""

    def __init__(self):
        self.status, self.headers, self.text, self.tokens = 0, {}, '', []
        self.finish = self.usage = self.error = None
        self.done = False  # it came to its proper end
        self.first_at = self.ended_at = None

    def same_as(self, other):
        return (self.text, self.tokens, self.finish) == (other.text, other.tokens, other.finish)

    def cached_tokens(self):
        return ((self.usage or {}).get('prompt_tokens_details') or {}).get('cached_tokens', 0)

    def take_choice(self, choice, chat):
        part = choice.get('delta') or choice.get('message') or {}
        self.text += (part.get('content') or '') if chat else choice.get('text') or ''
        logs = choice.get('logprobs')
        if logs and chat:
            self.tokens += [[t['bytes'], t['logprob'], [[a['bytes'], a['logprob']] for a in t.get('top_logprobs') or []]]
                            for t in logs.get('content') or []]
        elif logs:
            tops = logs.get('top_logprobs') or [None] * len(logs['tokens'])
            self.tokens += [[t, p, sorted((a or {}).items())] for t, p, a in zip(logs['tokens'], logs['token_logprobs'], tops)]
        if choice.get('finish_reason'):
            self.finish = choice['finish_reason']

    def take_event(self, data, chat):
        if data == '[DONE]':
            self.done = True
            return
        value = json.loads(data)
        if 'error' in value:
            self.error = value['error']
        for choice in value.get('choices', []):
            self.take_choice(choice, chat)
        self.usage = value.get('usage') or self.usage


class Request:
    """A request under way. `finish` reads it to its end; `leave` hangs up."""

    def __init__(self, address, body, timeout=120, make_socket=None):
        self.chat = 'messages' in body
        self.stream = bool(body.get('stream'))
        self.answer = Answer()
        self.connection = http.client.HTTPConnection(*address, timeout=timeout)
        if make_socket:
            self.connection.sock = make_socket(address, timeout)
        else:
            self.connection.connect()
        self.socket = self.connection.sock
        self.connection.request('POST', '/v1/chat/completions' if self.chat else '/v1/completions', json.dumps(body),
                                {'Content-Type': 'application/json', 'Connection': 'close'})
        self.response = None

    def headers(self):
        if self.response is None:
            self.response = self.connection.getresponse()
            self.answer.status = self.response.status
            self.answer.headers = {k.lower(): v for k, v in self.response.getheaders()}
        return self.answer

    def next_event(self):
        """Reads one event of a stream; False at its end."""
        self.headers()
        while True:
            line = self.response.readline()
            if not line:
                return False
            if line.startswith(b': x-baton-degraded'):  # known too late for a header
                self.answer.headers['x-baton-degraded'] = '1'
            if line.startswith(b'data: '):
                self.answer.first_at = self.answer.first_at or time.monotonic()
                self.answer.take_event(line[6:].strip().decode(), self.chat)
                return True

    def first_token(self):
        while not self.answer.text and not self.answer.tokens and self.next_event():
            pass
        return self.answer

    def finish(self):
        a = self.headers()
        try:
            if self.stream and a.status == 200:
                while self.next_event():
                    pass
            else:
                value = json.loads(self.response.read())
                a.error = value.get('error')
                for choice in value.get('choices', []):
                    a.take_choice(choice, self.chat)
                a.usage = value.get('usage')
                a.done = a.status == 200
        finally:
            a.ended_at = time.monotonic()
            self.connection.close()
        return a

    def leave(self, reset=False):
        if reset:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
        try:
            self.socket.shutdown(socket.SHUT_RDWR) if not reset else None
        except OSError:
            pass
        if self.response is not None:
            self.response.close()
        self.connection.close()
        self.socket.close()


class Program:
    """One program of the cluster, with a log that all its lives share."""

    def __init__(self, cluster, role, name, http_address, run_in=()):
        self.cluster, self.role, self.name, self.address, self.run_in = cluster, role, name, http_address, list(run_in)
        self.log_path = os.path.join(cluster.folder, name + '.log')
        self.process, self.frozen, self.lives = None, False, 0

    def start(self):
        assert not self.alive(), self.name
        with open(self.log_path, 'a') as log:
            self.process = subprocess.Popen([*self.run_in, BATON, *self.command()], stdout=log, stderr=log)
        self.frozen = False
        self.lives += 1

    def command(self):
        return [self.role, '--config', self.cluster.config, '--name', self.name]

    def alive(self):
        return self.process is not None and self.process.poll() is None

    def kill(self):
        if self.alive():
            self.process.send_signal(signal.SIGKILL)
        if self.process is not None:
            self.process.wait()

    def freeze(self):
        self.process.send_signal(signal.SIGSTOP)
        self.frozen = True

    def thaw(self):
        if self.frozen:
            self.process.send_signal(signal.SIGCONT)
        self.frozen = False

    def end(self, code=0, seconds=60):
        """SIGTERM, and the exit code that should follow."""
        self.thaw()
        if self.alive():
            self.process.send_signal(signal.SIGTERM)
        try:
            got = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise Failed(f'{self.name} does not end:\n{self.log()[-3000:]}')
        if got != code:
            raise Failed(f'{self.name} ended with {got}:\n{self.log()[-3000:]}')

    def log(self):
        return open(self.log_path).read() if os.path.exists(self.log_path) else ''

    def get(self, path, timeout=10):
        c = http.client.HTTPConnection(*self.address, timeout=timeout)
        try:
            c.request('GET', path, headers={'Connection': 'close'})
            r = c.getresponse()
            return r.status, r.read().decode()
        finally:
            c.close()

    def ready(self):
        return self.get('/ready', 2)[0] == 200

    def metrics(self):
        """{name: sum over labels}, and {name{labels}: value} beside."""
        out = {}
        for name, labels, value in re.findall(r'^([\w:]+)(\{[^}]*\})? (\S+)$', self.get('/metrics')[1], re.M):
            out[name] = out.get(name, 0) + float(value)
            if labels:
                out[name + labels] = float(value)
        return out


# What is not zero while something runs, waits, is held or has leaked; of them each program shows those that it has.
BUSY = ('baton:num_requests_running', 'baton:num_requests_waiting', 'baton:http_calls_open', 'baton:answers_open',
        'baton:router_leak', 'baton:kv_leak_blocks', 'baton:sequences_decoding', 'baton:sequences_prefilling',
        'baton:sequences_fetching', 'baton:sequences_waiting', 'baton:prompts_waiting', 'baton:prompts_reading',
        'baton:prompts_holding', 'baton:kv_cache_usage_perc', 'baton:transfer_fetches')


class Cluster:
    """`settings` go to the top of the file, `prefill_settings` and `decode_settings` to the pools, those of `node_settings` (by name) to the
    nodes and routers: nested dicts."""

    def __init__(self, model, prefill=1, decode=1, routers=1, settings=None, prefill_settings=None, decode_settings=None,
                 router_settings=None, node_settings=None, hosts=None, log='info'):
        self.folder = tempfile.mkdtemp(prefix='baton-fault-')
        self.config = os.path.join(self.folder, 'cluster.yaml')
        self.node_settings = node_settings or {}
        self.hosts = hosts or {}  # name → (address, command prefix): where it runs
        self.routers, self.prefill, self.decode = [], [], []
        top = {'cluster': {'name': 'fault', 'secret': 'a secret of the fault tests'}, 'model': {'path': model, 'name': 'm'},
               'log': {'level': log}, 'threads': 1}
        merge(top, settings or {})
        top['routers'] = {**(router_settings or {}), 'nodes': [self.router_entry(f'r{i + 1}') for i in range(routers)]}
        if prefill:
            top['prefill'] = {**(prefill_settings or {}), 'nodes': [self.node_entry('prefill', f'p{i + 1}') for i in range(prefill)]}
        top['decode'] = {**(decode_settings or {}), 'nodes': [self.node_entry('decode', f'd{i + 1}') for i in range(decode)]}
        with open(self.config, 'w', opener=lambda path, flags: os.open(path, flags, 0o600)) as f:  # a secret is in it
            json.dump(top, f, indent=1)  # JSON is YAML
        self.local = None

    def host(self, name):
        return self.hosts.get(name, ('127.0.0.1', ()))

    def router_entry(self, name):
        host, run_in = self.host(name)
        port = free_port()
        self.routers.append(Program(self, 'router', name, (host, port), run_in))
        return {'name': name, 'listen': f'{host}:{port}', **self.node_settings.get(name, {})}

    def node_entry(self, role, name):
        host, run_in = self.host(name)
        link, transfer, status = free_port(), free_port(), free_port()
        getattr(self, role).append(Program(self, role, name, (host, status), run_in))
        return {'name': name, 'link': f'tcp://{host}:{link}', 'transfer': f'{host}:{transfer}', 'status': f'{host}:{status}',
                **self.node_settings.get(name, {})}

    @property
    def nodes(self):
        return self.prefill + self.decode

    @property
    def programs(self):
        return self.nodes + self.routers

    @property
    def router(self):
        return self.routers[0]

    def start(self, *programs):
        for p in programs or self.programs:
            p.start()
        return self

    def __enter__(self):
        return self.start()

    def __exit__(self, kind, value, trace):
        for p in self.programs:
            p.thaw()
            p.kill()
        if kind is None:
            shutil.rmtree(self.folder, ignore_errors=True)
        else:
            print(f'\n---- {kind.__name__}: {value}\nlogs: {self.folder}')
            for p in self.programs:
                print(f'---- {p.name}\n{p.log()[-2500:]}')

    def wait_ready(self, *programs, seconds=180):
        for p in programs or self.programs:
            def ready(p=p):
                if not p.alive():
                    raise Failed(f'{p.name} ended with {p.process.returncode}:\n{p.log()[-3000:]}')
                return p.ready()
            wait_for(f'readiness of {p.name}', ready, seconds)
        return self

    def wait_met(self, seconds=60):
        """Until every router knows every node as ready. A router is ready with one decode node, so that the first prompts may be read there."""
        for r in self.routers:
            wait_for(f'all nodes at {r.name}', lambda: all(n['state'] == 'ready' for n in json.loads(r.get('/v1/cluster')[1])['nodes']), seconds)
        return self

    def request(self, body, **more):
        return Request(self.router.address, body, **more)

    def ask(self, body, **more):
        return self.request(body, **more).finish()

    def busy(self):
        out = {}
        for p in self.programs:
            if p.alive():
                m = p.metrics()
                out.update({f'{p.name} {k}': m[k] for k in BUSY if m.get(k)})
        return out

    def wait_idle(self, seconds=30):
        last = {}

        def idle():
            last.clear()
            last.update(self.busy())
            return not last
        wait_for('idleness', idle, seconds, 0.05, lambda: str(last))

    def end(self):
        """All of them by SIGTERM, in the order in which nobody loses anything."""
        for p in self.routers + self.nodes:
            p.end()


def merge(into, more):
    for k, v in more.items():
        if isinstance(v, dict) and isinstance(into.get(k), dict):
            merge(into[k], v)
        else:
            into[k] = v


class Local(Program):
    """`baton local` with one model: the yardstick."""

    def __init__(self, model, *options):
        self.folder = tempfile.mkdtemp(prefix='baton-fault-')
        self.options = [str(o) for o in options]
        self.model = model
        super().__init__(self, 'local', 'local', ('127.0.0.1', free_port()))

    def command(self):
        sets = [x for o in self.options for x in ('--set', o)]
        return ['local', '--model', self.model, '--listen', '%s:%d' % self.address, *sets]

    def __enter__(self):
        self.start()
        wait_for('readiness of baton local', self.ready, 300, detail=self.log)
        return self

    def __exit__(self, *_):
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def ask(self, body, **more):
        return Request(self.address, body, **more).finish()


def in_parallel(work, items, workers):
    """work(item) for all, so many at a time; [result…] in the order of the items. The first exception is raised at the end."""
    out, errors, lock, left = [None] * len(items), [], threading.Lock(), list(enumerate(items))[::-1]

    def run():
        while True:
            with lock:
                if not left or errors:
                    return
                i, item = left.pop()
            try:
                out[i] = work(item)
            except BaseException as e:
                errors.append(e)
    threads = [threading.Thread(target=run, daemon=True) for _ in range(workers)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    if errors:
        raise errors[0]
    return out
