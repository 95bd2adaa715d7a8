"""`baton top` on a real cluster: for scripts, for a pipe, in a terminal of any size, and where there is no router."""
import fcntl, json, os, pty, random, re, select, signal, struct, subprocess, termios, threading, time
import pytest
from cluster import Cluster
from conftest import BATON, Server
from test_cluster import TWO_WEIGHTS, pytestmark, words  # noqa: F401


@pytest.fixture(scope='module')
def pair(tiny, tmp_path_factory):
    c = Cluster(tiny, tmp_path_factory.mktemp('top'), prefill=1, decode=1, settings={'placement': {'remote_tokens_min': 16}},
                **TWO_WEIGHTS)  # every prompt is read at the prefill node, however fast the two are
    try:
        yield c.start().wait_ready()
    finally:
        c.kill()


def top(*args, code=0, **more):
    done = subprocess.run([BATON, 'top', *args], capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL, **more)
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


def test_once_is_one_object_with_rates(pair):
    stop = threading.Event()

    def load():
        rng = random.Random(1)
        while not stop.is_set():
            pair.complete(words(rng, 40), max_tokens=20, ignore_eos=True)
    thread = threading.Thread(target=load)
    thread.start()
    try:
        view = json.loads(top(pair.router.url, '--once', '--json', '--interval', '0.5'))
    finally:
        stop.set()
        thread.join()
    assert (view['cluster'], view['router'], view['model'], view['state']) == ('test', 'r1', 'm', 'ready')
    assert view['requests_per_s'] > 0 and view['tokens_per_s'] > 0 and view['prompt_tokens_per_s'] > 0
    assert view['latencies_of'] == 'recent' and 0 < view['ttft_p50_ms'] <= view['ttft_p99_ms'] < 10_000
    nodes = {n['name']: n for n in view['nodes']}
    assert set(nodes) == {'p1', 'd1'} and all(n['state'] == 'ready' and n['breaker'] == 'closed' for n in nodes.values())
    assert nodes['p1']['role'] == 'prefill' and nodes['p1']['tokens_per_s'] > 0
    assert nodes['d1']['tokens_per_s'] > 0 and nodes['d1']['transfer_gb_per_s'] > 0
    assert nodes['d1']['transport'] and nodes['d1']['transport_gb_per_s'] > 0 and 0 <= nodes['d1']['hit_rate'] <= 1
    assert view['failed'] == 0 and 0 <= nodes['d1']['blocks_used'] <= nodes['d1']['blocks']


def test_without_a_terminal_pictures_follow_each_other_until_it_is_told_to_stop(pair):
    for sig in (signal.SIGINT, signal.SIGTERM):
        p = subprocess.Popen([BATON, 'top', pair.router.url, '--interval', '0.1'], stdout=subprocess.PIPE, text=True,
                             stdin=subprocess.DEVNULL)
        lines = [p.stdout.readline() for _ in range(20)]
        p.send_signal(sig)
        rest = p.communicate(timeout=10)[0]
        assert p.returncode == 0
        text = ''.join(lines) + rest
        assert '\033' not in text and text.count('test  router r1 ready') >= 2
        assert re.search(r'^d1 +decode +ready +\d+ +\d+ +\d+/\d+ .*from p1$', text, re.M)
    p = subprocess.Popen([BATON, 'top', pair.router.url, '--json', '--interval', '0.1'], stdout=subprocess.PIPE, text=True)
    views = [json.loads(p.stdout.readline()) for _ in range(3)]
    p.stdout.close()  # as `| head -3` does
    assert p.wait(10) in (0, 1) and [v['router'] for v in views] == ['r1'] * 3
    once = top(pair.router.url, '--once', '--interval', '0.1')
    assert len(once.splitlines()) == 6 + 2 and once.startswith('test  router r1 ready, up ')


class Terminal:
    def __init__(self, *args, columns=100, rows=20):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ['TERM'] = 'xterm'
            os.execv(BATON, [BATON, 'top', *args])
        self.resize(columns, rows, tell=False)
        self.text = ''

    def resize(self, columns, rows, tell=True):
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack('HHHH', rows, columns, 0, 0))
        if tell:
            os.kill(self.pid, signal.SIGWINCH)

    def read_until(self, condition, seconds=10):
        until = time.monotonic() + seconds
        while not condition(self.text):
            assert time.monotonic() < until, self.text[-2000:]
            if select.select([self.fd], [], [], 0.1)[0]:
                try:
                    self.text += os.read(self.fd, 65536).decode()
                except OSError:  # it has ended
                    break

    def end(self):
        self.read_until(lambda text: text.endswith('\033[?1049l'))
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@pytest.mark.parametrize('how', ['q', 'ctrl-c', 'sigterm'])
def test_in_a_terminal_it_draws_over_itself_and_leaves_no_trace(pair, how):
    t = Terminal(pair.router.url, '--interval', '0.2')
    t.read_until(lambda text: text.count('\033[H') >= 3)
    assert t.text.startswith('\033[?1049h\033[?25l') and 'router r1 ready' in t.text
    if how == 'sigterm':
        os.kill(t.pid, signal.SIGTERM)
    else:
        os.write(t.fd, b'q' if how == 'q' else b'\x03')
    assert t.end() == 0
    assert t.text.endswith('\033[?25h\033[?1049l')


def test_it_follows_the_terminals_size(pair):
    t = Terminal(pair.router.url, '--interval', '30')
    t.read_until(lambda text: '\033[J' in text)
    t.text = ''
    t.resize(30, 5)
    t.read_until(lambda text: '\033[J' in text)  # long before the next look
    picture = re.sub(r'\033\[[0-9;?]*[a-zA-Z]', '', t.text[:t.text.index('\033[J')])
    lines = picture.split('\r\n')
    assert len(lines) <= 5 and max(map(len, lines)) <= 30
    os.write(t.fd, b'q')
    assert t.end() == 0


def test_where_no_router_is_it_says_so(pair, tiny):
    for address in ('http://127.0.0.1:1', 'localhost:1', 'http://no-such-host.invalid'):
        for more in ((), ('--once',), ('--once', '--json')):
            words_ = top(address, *more, code=1)
            assert words_.startswith(f'baton top: no router answers at {address}: ') and len(words_.splitlines()) == 1
    assert 'not a router of baton' in top(pair['d1'].url, '--once', code=1)
    assert 'expected http://HOST:PORT' in top('https://127.0.0.1', code=2)
    assert '--interval' in top(pair.router.url, '--interval', '0', code=2)
    s = Server(tiny, auth__keys='sesame')
    try:
        assert '--key' in top(s.url, '--once', code=1)
        view = json.loads(top(s.url, '--once', '--json', '--interval', '0.1', env={**os.environ, 'BATON_KEY': 'sesame'}))
        assert view['router'] == 'local' and view['nodes'][0]['tokens_per_s'] == 0
        assert 'sesame' not in top('--help', env={**os.environ, 'BATON_KEY': 'sesame'})
    finally:
        s.stop()


def test_a_router_that_goes_and_comes_back_is_shown_again(tiny, tmp_path):
    c = Cluster(tiny, tmp_path, prefill=0, decode=2)
    try:
        c.start().wait_ready()
        c['d2'].stop()
        c.wait_for('the loss', lambda: c.view()['d2']['state'] == 'down')
        nodes = {n['name']: n for n in json.loads(top(c.router.url, '--once', '--json', '--interval', '0.2'))['nodes']}
        assert nodes['d2']['state'] == 'down' and nodes['d2']['tokens_per_s'] is None and nodes['d1']['state'] == 'ready'
        t = Terminal(c.router.url, '--interval', '0.1')
        t.read_until(lambda text: 'router r1 ready' in text)
        c.router.kill()
        t.read_until(lambda text: 'Connection refused' in text)
        c.router.start()
        c.wait_ready()
        t.text = ''
        t.read_until(lambda text: 'router r1 ready' in text and 'refused' not in text[text.rindex('\033[H'):])
        os.write(t.fd, b'\x03')
        assert t.end() == 0
    finally:
        c.kill()
