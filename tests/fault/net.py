"""Network namespaces on one machine, joined by a hub that this process becomes: links that are cut, lossy or slow.

    net = Net('r1', 'p1', 'd1')             this process now lives in a network namespace of its own, and forwards between the hosts
    Cluster(model, hosts=net.hosts)
    net.cut('p1', 'd1'); net.heal()         also one way; loss('p1', 'd1', 0.05)

Nothing is left behind: the namespaces end with the processes in them. Needs root, `ip`, `iptables`, `nsenter`."""
import ctypes, os, shutil, signal, subprocess, sys

CLONE_NEWNET = 0x40000000
PR_SET_PDEATHSIG = 1
libc = ctypes.CDLL(None, use_errno=True)


class Unsupported(Exception):
    pass


def sh(*words):
    r = subprocess.run(words, capture_output=True, text=True)
    if r.returncode:
        raise Unsupported(f'{" ".join(words)}: {r.stderr.strip()}')


def die_with_parent():
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Net:
    def __init__(self, *names):
        for tool in ('ip', 'iptables', 'nsenter', 'unshare'):
            if not shutil.which(tool):
                raise Unsupported(f'{tool} is not installed')
        if libc.unshare(CLONE_NEWNET) != 0:
            raise Unsupported('a network namespace needs root')
        sh('ip', 'link', 'set', 'lo', 'up')
        try:
            with open('/proc/sys/net/ipv4/ip_forward', 'w') as f:
                f.write('1')
        except OSError as e:
            raise Unsupported(str(e))
        sh('iptables', '-L', 'FORWARD')
        self.sleepers, self.addresses, self.hosts = {}, {}, {}
        for i, name in enumerate(names):
            self.add(i, name)

    def add(self, i, name):
        sleeper = subprocess.Popen(['unshare', '--net', 'sleep', 'infinity'], preexec_fn=die_with_parent)
        self.sleepers[name], self.addresses[name] = sleeper, f'10.77.{i}.2'
        own = os.readlink('/proc/self/ns/net')
        while os.readlink(f'/proc/{sleeper.pid}/ns/net') == own:
            os.sched_yield() if sleeper.poll() is None else sys.exit('unshare ended')
        inside = ['nsenter', '-t', str(sleeper.pid), '-n']
        sh('ip', 'link', 'add', f'v{i}', 'type', 'veth', 'peer', 'name', 'eth0', 'netns', str(sleeper.pid))
        sh('ip', 'addr', 'add', f'10.77.{i}.1/30', 'dev', f'v{i}')
        sh('ip', 'link', 'set', f'v{i}', 'up')
        for words in (['addr', 'add', f'10.77.{i}.2/30', 'dev', 'eth0'], ['link', 'set', 'eth0', 'up'], ['link', 'set', 'lo', 'up'],
                      ['route', 'add', 'default', 'via', f'10.77.{i}.1']):
            sh(*inside, 'ip', *words)
        self.hosts[name] = (self.addresses[name], inside)

    def rule(self, frm, to, *more):
        sh('iptables', '-A', 'FORWARD', '-s', self.addresses[frm], '-d', self.addresses[to], *more, '-j', 'DROP')

    def cut(self, a, b, one_way=False):
        self.rule(a, b)
        if not one_way:
            self.rule(b, a)

    def loss(self, a, b, share):
        for frm, to in ((a, b), (b, a)):
            self.rule(frm, to, '-m', 'statistic', '--mode', 'random', '--probability', str(share))

    def heal(self):
        sh('iptables', '-F', 'FORWARD')

    def slow(self, name, rate):
        """What reaches this host comes at so many bits a second: '20mbit'; None ends it."""
        device = 'v' + self.addresses[name].split('.')[2]
        if rate is None:
            sh('tc', 'qdisc', 'del', 'dev', device, 'root')
        else:
            sh('tc', 'qdisc', 'replace', 'dev', device, 'root', 'tbf', 'rate', rate, 'burst', '64kb', 'latency', '200ms')

    def close(self):
        for s in self.sleepers.values():
            s.kill()
            s.wait()
