"""A whole cluster on loopback for the tests: router and nodes as processes, from one generated YAML.

    c = Cluster(model, folder, prefill=2, decode=2, settings={'engine': {…}}, prefill_settings={'weights': 'w8'})
    c.start()                       # or c['d1'].start(), in any order
    c.wait_ready(); c.complete('Hello', max_tokens=4)
    c['p1'].kill(); c['p1'].start()
    c.wait_idle(); c.stop()

Programs are r1 …, p1 …, d1 …. A JSON text is YAML too, so the file is written as one."""
import json, os, re, signal, subprocess, time
import httpx, pytest
from conftest import BATON
from ports import free_ports


class Program:
    """One program of the cluster. `http` speaks to its HTTP port: a router's API, a node's status."""

    def __init__(self, cluster, role, name, port):
        self.cluster, self.role, self.name, self.port = cluster, role, name, port
        self.process, self.starts, self.sets = None, 0, []
        self.url = f'http://127.0.0.1:{port}'
        self.http = httpx.Client(base_url=self.url, timeout=60)

    def start(self, config=None, prefix=()):
        assert self.process is None or self.process.poll() is not None, f'{self.name} runs'
        self.starts += 1
        self.log = open(os.path.join(self.cluster.folder, f'{self.name}-{self.starts}.log'), 'w')
        self.process = subprocess.Popen(
            [*prefix, BATON, self.role, '--config', config or self.cluster.config, '--name', self.name,
             *(x for s in self.sets for x in ('--set', s))], stderr=self.log)
        return self

    def text(self):
        """All that this start of the program has logged."""
        self.log.flush()
        return open(self.log.name).read()

    def runs(self):
        return self.process is not None and self.process.poll() is None

    def kill(self, sig=signal.SIGKILL):
        self.process.send_signal(sig)
        if sig == signal.SIGKILL:
            self.process.wait(10)

    def stop(self, code=0, patience=60):
        if self.runs():
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
        got = self.process.wait(patience)
        assert got == code, f'{self.name} ended with {got}:\n{self.text()[-4000:]}'

    def get(self, path):
        try:
            return self.http.get(path)
        except httpx.TransportError:
            return None

    def is_ready(self):
        r = self.get('/ready')
        return r is not None and r.status_code == 200

    def node(self):
        """A node's /v1/node; {} while it does not answer."""
        r = self.get('/v1/node')
        return r.json() if r is not None else {}

    def metric(self, name):
        found = re.findall(rf'^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$', self.http.get('/metrics').text, re.M)
        assert found, f'{self.name} has no {name}'
        return sum(map(float, found))


class Cluster:
    def __init__(self, model, folder, routers=1, prefill=1, decode=1, settings=None, router_settings=None,
                 prefill_settings=None, decode_settings=None):
        self.folder, self.config = str(folder), os.path.join(str(folder), 'cluster.yaml')
        self.model = model
        ports = iter(free_ports(routers + 3 * (prefill + decode)))
        self.programs = {}
        pools = {}
        for pool, role, letter, count, own in (('routers', 'router', 'r', routers, router_settings),
                                               ('prefill', 'prefill', 'p', prefill, prefill_settings),
                                               ('decode', 'decode', 'd', decode, decode_settings)):
            nodes = []
            for i in range(count):
                name, port = f'{letter}{i + 1}', next(ports)
                self.programs[name] = Program(self, role, name, port)
                if role == 'router':
                    nodes.append({'name': name, 'listen': f'127.0.0.1:{port}'})
                else:
                    nodes.append({'name': name, 'status': f'127.0.0.1:{port}', 'link': f'tcp://127.0.0.1:{next(ports)}',
                                  'transfer': f'127.0.0.1:{next(ports)}'})
            if count:
                pools[pool] = {**(own or {}), 'nodes': nodes}
        self.yaml = {'cluster': {'name': 'test', 'secret': 'open sesame'}, 'model': {'path': model, 'name': 'm'},
                     'engine': {'chunk_tokens': 128, 'max_sequences': 8}, 'threads': 1, **pools}
        for key, value in (settings or {}).items():
            self.yaml[key] = {**self.yaml.get(key, {}), **value} if isinstance(value, dict) else value
        self.write(self.yaml)

    def write(self, yaml, name='cluster.yaml'):
        path = os.path.join(self.folder, name)
        with open(path, 'w') as f:
            json.dump(yaml, f, indent=1)
        os.chmod(path, 0o600)
        return path

    def __getitem__(self, name):
        return self.programs[name]

    def of(self, role):
        return [p for p in self.programs.values() if p.role == role]

    @property
    def router(self):
        return self.of('router')[0]

    @property
    def http(self):
        return self.router.http

    def start(self, *names):
        for name in names or self.programs:
            self[name].start()
        return self

    def fail(self, words):
        logs = '\n'.join(f'--- {p.name}\n{p.text()[-1500:]}' for p in self.programs.values() if p.process)
        pytest.fail(f'{words}\n{logs}')

    def wait_for(self, what, condition, seconds=30):
        until = time.monotonic() + seconds
        while not condition():
            dead = [p for p in self.programs.values() if p.process and not p.runs() and p.process.returncode not in (0, -9)]
            if dead:
                self.fail(f'{dead[0].name} ended with {dead[0].process.returncode} while waiting for {what}')
            if time.monotonic() > until:
                self.fail(f'{what} did not come about within {seconds} s')
            time.sleep(0.02)

    def view(self, router=None):
        """GET /v1/cluster of a router: its nodes by name."""
        return {n['name']: n for n in (router or self.router).http.get('/v1/cluster').json()['nodes']}

    def is_paired(self):
        """Does every decode node that runs fetch from every prefill node that runs, and do the routers know?"""
        prefill, decode = ({p.name for p in self.of(role) if p.runs()} for role in ('prefill', 'decode'))
        for d in self.of('decode'):
            if d.runs() and not prefill <= {s['name'] for s in d.node().get('sources', ()) if s['state'] == 'ready'}:
                return False
        for router in self.of('router'):
            view = self.view(router) if router.runs() else None
            if view and (any(view[n]['state'] != 'ready' for n in prefill | decode) or
                         any(not prefill <= set(view[d].get('fetches_from', ())) for d in decode)):
                return False
        return True

    def wait_ready(self, seconds=60):
        """All that run are ready, know each other, and can exchange blocks."""
        for p in self.programs.values():
            if p.runs():
                self.wait_for(f'readiness of {p.name}', p.is_ready, seconds)
        self.wait_for('readiness of all pairs', self.is_paired, seconds)
        return self

    def is_idle(self):
        for p in self.programs.values():
            if not p.runs():
                continue
            names = {'router': ('num_requests_running', 'num_requests_waiting', 'answers_open', 'router_leak'),
                     'prefill': ('kv_leak_blocks', 'prompts_waiting', 'prompts_reading', 'prompts_holding'),
                     'decode': ('kv_leak_blocks', 'sequences_waiting', 'sequences_fetching', 'sequences_prefilling',
                                'sequences_decoding', 'transfer_fetches')}[p.role]
            if p.role == 'decode' and not self.of('prefill'):
                names = names[:-1]
            if any(p.metric('baton:' + n) for n in names):
                return False
        return True

    def wait_idle(self, seconds=40):
        """Everything has come home, and nothing leaked."""
        self.wait_for('idleness', self.is_idle, seconds)

    def total(self, role, metric):
        return sum(p.metric(metric) for p in self.of(role) if p.runs())

    def chat(self, content='Hello there', **more):
        return self.http.post('/v1/chat/completions', json={'messages': [{'role': 'user', 'content': content}], **more})

    def complete(self, prompt='Hello', **more):
        return self.http.post('/v1/completions', json={'prompt': prompt, **more})

    def stop(self):
        """Each ends by itself, with code 0. Routers go first, as an operator would."""
        for p in self.programs.values():
            if p.runs():
                p.stop()

    def kill(self):
        for p in self.programs.values():
            if p.process and p.runs():
                p.process.kill()
                p.process.wait(10)
