#!/usr/bin/env python3
"""soak.py [--seconds N] [--clients N] [--model PATH] [--url URL]: clients that ask, stream, read and leave at random.

Without --url it starts `baton local` itself (build/release/baton, or $BATON) on MODEL. Prints a line every interval: time,
RSS, requests, aborts, gauges. At the end all clients stop, and it is an error (exit code 1) when a request failed, something
still runs or leaks, or RSS in the last third is more than 5 % + 8 MiB above the second third."""
import argparse, json, os, random, re, socket, struct, subprocess, sys, threading, time, urllib.request

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'support'))
from ports import free_port  # noqa: E402

WORDS = 'time people way water day man world life hand part child eye woman place work week case point home room'.split()


class Soak:
    def __init__(self, host, port, seed):
        self.address, self.seed, self.stop = (host, port), seed, threading.Event()
        self.done = self.left = self.refused = 0
        self.wrong, self.lock = [], threading.Lock()

    def get(self, path):
        with urllib.request.urlopen(f'http://{self.address[0]}:{self.address[1]}{path}', timeout=30) as r:
            return r.read().decode()

    def metric(self, text, name):
        return sum(float(v) for v in re.findall(rf'^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$', text, re.M))

    def gauges(self):
        text = self.get('/metrics')
        names = {'running': 'baton:num_requests_running', 'waiting': 'baton:num_requests_waiting', 'calls': 'baton:http_calls_open',
                 'leak': 'baton:kv_leak_blocks', 'router_leak': 'baton:router_leak', 'rss': 'process_resident_memory_bytes'}
        return {k: self.metric(text, v) for k, v in names.items()}

    def one(self, rng):
        stream, chat, leave = rng.random() < 0.7, rng.random() < 0.5, rng.random() < 0.3
        text = ' '.join(rng.choice(WORDS) for _ in range(rng.choice((3, 10, 30, 70))))
        body = {'max_tokens': rng.choice((1, 8, 32, 64)), 'temperature': rng.choice((0, 1)), 'stream': stream, 'n': rng.choice((1, 1, 1, 2))}
        body.update({'messages': [{'role': 'user', 'content': text}]} if chat else {'prompt': text})
        if rng.random() < 0.2:
            body['stop'] = ['e', 'ing ']
        if rng.random() < 0.2:
            body['logprobs'] = True if chat else 3
        raw = json.dumps(body).encode()
        s = socket.create_connection(self.address, timeout=120)
        try:
            s.sendall(b'POST /v1/%scompletions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n'
                      % (b'chat/' if chat else b'', len(raw)))
            if leave and rng.random() < 0.1:
                raw = raw[:rng.randrange(len(raw))]
            s.sendall(raw)
            if leave:  # in whatever phase this is then
                s.settimeout(rng.random() ** 3 * 3 + 0.001)
                try:
                    while s.recv(4096):
                        pass
                except TimeoutError:
                    pass
                if rng.random() < 0.5:
                    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
                return 'left'
            got = b''
            while part := s.recv(65536):
                got += part
            if b' 429 ' in got[:20]:
                return 'refused'
            if not got.startswith(b'HTTP/1.1 200') or (b'[DONE]' if stream else b'"usage":{') not in got or b'"error":' in got:
                raise RuntimeError(got[-300:])
            return 'done'
        finally:
            s.close()

    def client(self, number):
        rng = random.Random(self.seed * 1000 + number)
        while not self.stop.is_set():
            try:
                how = self.one(rng)
                with self.lock:
                    setattr(self, how, getattr(self, how) + 1)
            except Exception as e:
                with self.lock:
                    self.wrong.append(f'client {number}: {e!r}')
                if len(self.wrong) > 20:
                    self.stop.set()

    def run(self, seconds, clients, interval):
        threads = [threading.Thread(target=self.client, args=(i,)) for i in range(clients)]
        begin, rss = time.monotonic(), []
        [t.start() for t in threads]
        while time.monotonic() - begin < seconds and not self.stop.is_set():
            time.sleep(min(interval, max(0, seconds - (time.monotonic() - begin))))
            g = self.gauges()
            rss.append(g['rss'])
            print(f"{time.monotonic() - begin:7.0f} s  rss {g['rss'] / 2**20:7.1f} MiB  done {self.done} left {self.left} refused "
                  f"{self.refused} wrong {len(self.wrong)}  running {g['running']:.0f} waiting {g['waiting']:.0f} leak {g['leak']:.0f}", flush=True)
        self.stop.set()
        [t.join() for t in threads]
        return rss

    def settle(self):
        until = time.monotonic() + 30
        while time.monotonic() < until:
            g = self.gauges()
            if not any(v for k, v in g.items() if k != 'rss'):
                break
            time.sleep(0.1)
        return g


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument('--seconds', type=float, default=60)
    p.add_argument('--clients', type=int, default=8)
    p.add_argument('--interval', type=float, default=10)
    p.add_argument('--seed', type=int, default=1)
    p.add_argument('--model', help='the tiny one if not given')
    p.add_argument('--url')
    p.add_argument('options', nargs='*', help='for `baton local`, after --')
    a = p.parse_args()
    server = None
    if a.url:
        host, port = a.url.split('//')[1].strip('/').split(':')
    else:
        root = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..')
        model = a.model or os.path.join(root, 'tests', 'data', 'tiny-q8_0.gguf')
        host, port = '127.0.0.1', free_port()
        server = subprocess.Popen([os.environ.get('BATON', os.path.join(root, 'build/release/baton')), 'local', '--model', model,
                                   '--listen', f'{host}:{port}', '--set', 'log.level=warn', *a.options])
    soak = Soak(host, int(port), a.seed)
    while True:
        try:
            soak.get('/ready')
            break
        except OSError:
            if server and server.poll() is not None:
                sys.exit(1)
            time.sleep(0.05)
    rss = soak.run(a.seconds, a.clients, a.interval)
    end = soak.settle()
    third = len(rss) // 3
    middle, last = (max(rss[third:2 * third] or [0]), max(rss[2 * third:] or [0]))
    faults = list(soak.wrong[:5])
    if any(v for k, v in end.items() if k != 'rss'):
        faults.append(f'not idle at the end: {end}')
    if third and last > middle * 1.05 + 8 * 2**20:
        faults.append(f'RSS grew from {middle / 2**20:.1f} to {last / 2**20:.1f} MiB')
    if server:
        server.terminate()
        if server.wait(60) != 0:
            faults.append(f'exit code {server.returncode}')
    print(json.dumps({'seconds': a.seconds, 'clients': a.clients, 'done': soak.done, 'left': soak.left, 'refused': soak.refused,
                      'wrong': len(soak.wrong), 'rss_mib': [round(r / 2**20, 1) for r in (rss[0], middle, last)] if rss else [],
                      'leak': end['leak'], 'faults': faults}))
    sys.exit(bool(faults))


main()
