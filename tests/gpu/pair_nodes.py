"""The nodes and routers of pair.py: their files, what they will take of each device, their start. Needs the bundle's or the repository's
tests/fault/cluster.py."""
import json, os, sys, time

HERE = os.path.dirname(os.path.abspath(__file__))
for fault in (os.path.join(HERE, 'tests', 'fault'), os.path.join(HERE, '..', 'fault')):  # in a bundle, in the repository
    sys.path.insert(0, fault)
os.environ.setdefault('BATON', next((p for p in (os.path.join(HERE, 'bin', 'baton'),) if os.path.exists(p)),
                                    os.path.join(HERE, '..', '..', 'build', 'release', 'baton')))
if os.path.isdir(os.path.join(HERE, 'lib')):  # what the bundle's programs need
    os.environ['LD_LIBRARY_PATH'] = ':'.join(filter(None, (os.path.join(HERE, 'lib'), os.environ.get('LD_LIBRARY_PATH'))))
from cluster import BATON, Program  # noqa: E402
from pair_steps import processes, run, say  # noqa: E402
from ports import free_port  # noqa: E402


class Config:
    """A file that programs are started with."""

    def __init__(self, folder, name):
        self.folder, self.config = folder, os.path.join(folder, name + '.yaml')

    def write(self, value):
        with open(self.config, 'w', opener=lambda path, flags: os.open(path, flags, 0o600)) as f:  # a secret is in it
            json.dump(value, f, indent=1)  # JSON is YAML


class Node(Program):
    def __init__(self, file, role, name, device, transport):
        self.link, self.transfer, status = free_port(), free_port(), free_port()
        super().__init__(file, role, name, ('127.0.0.1', status))
        self.entry = {'name': name, 'device': device, 'transport': transport, 'link': f'tcp://127.0.0.1:{self.link}', 'transfer': f'127.0.0.1:{self.transfer}',
                      'status': f'127.0.0.1:{status}'}


class Router(Program):
    def __init__(self, file, name):
        super().__init__(file, 'router', name, ('127.0.0.1', free_port()))
        self.nodes = []
        self.entry = {'name': name, 'listen': '127.0.0.1:%d' % self.address[1]}


def blocks_of(a, sequences):
    return sequences * ((a.prompt + a.answer + 31) // 32) + 64


def file_of(a, name, prefill, prefill_weights, decode, decode_weights, router, exact=True):
    """One cluster's file. Nodes may stand in several: a node is started with the first, and routers of the others call it too."""
    file = Config(a.folder, name)
    context = max(a.long_prompt + 64, a.prompt + a.answer + 64)
    value = {'cluster': {'name': 'pair', 'secret': 'two GPUs of one host'}, 'model': {'path': a.model, 'name': 'm'}, 'log': {'level': 'info'},
             'kv': {'format': 'int8', 'block_tokens': 32}, 'placement': {'exact': exact},
             'routers': {'http': {'connections': 1024, 'requests': 512, 'queue': 512, 'text_workers': 2}, 'nodes': [router.entry]},
             'decode': {'weights': decode_weights, 'threads': a.threads,
                        'engine': {'chunk_tokens': a.chunk, 'prefill_share': a.share, 'max_sequences': a.sequences, 'context': context,
                                   'hasty_weights': True},
                        'kv': {'blocks': max(blocks_of(a, a.sequences), context // 32 + 64)}, 'nodes': [n.entry for n in decode]}}
    if prefill:
        value['prefill'] = {'weights': prefill_weights, 'threads': a.threads,
                            'engine': {'chunk_tokens': a.prefill_chunk, 'max_sequences': 16, 'context': context, 'hasty_weights': True},
                            'kv': {'blocks': max(a.prefill_blocks, context // 32 + 64)}, 'nodes': [n.entry for n in prefill]}
    file.write(value)
    for program in (*prefill, *decode, router):
        if program.cluster is None:
            program.cluster, program.log_path = file, os.path.join(a.folder, program.name + '.log')
    router.nodes = [*prefill, *decode]
    return router


def lay_out(a):
    """{arrangement: router}. Nodes of all arrangements are loaded beside each other: idle ones cost memory alone."""
    first, second = a.devices[0], a.devices[-1]
    unplaced = Config(a.folder, 'none')  # gives programs a folder until a file has them

    def node(role, name, device):
        n = Node(unplaced, role, name, device, a.transport)
        n.cluster = None
        return n

    def router(name):
        r = Router(unplaced, name)
        r.cluster = None
        return r

    p, q1 = node('prefill', 'p', first), node('decode', 'q1', second)
    out = {'1P1D w8|q4, always': file_of(a, 'always', [p], 'w8', [q1], 'q4', router('r-always'))}
    out['1P1D w8|q4, as it pays'] = file_of(a, 'pays', [p], 'w8', [q1], 'q4', router('r-pays'), exact=False)
    if len(a.devices) == 2:
        q0, w0, w1 = node('decode', 'q0', first), node('decode', 'w0', first), node('decode', 'w1', second)
        out['1P1D w8, as it pays'] = file_of(a, 'same', [p], 'w8', [w1], 'w8', router('r-same'))
        out['2D q4'] = file_of(a, 'two-q4', [], None, [q0, q1], 'q4', router('r-two-q4'))
        out['2D w8'] = file_of(a, 'two-w8', [], None, [w0, w1], 'w8', router('r-two-w8'))
    return out


def programs_of(routers):
    return list(dict.fromkeys([n for r in routers.values() for n in r.nodes])) + list(routers.values())


def plan(a, routers):
    """What the engines of each device take, by `baton plan` (which asks no device)."""
    for device in sorted(set(a.devices)):
        total = 0
        for n in (p for p in programs_of(routers) if p.role != 'router' and p.entry['device'] == device):
            c = json.load(open(n.cluster.config))[n.role]
            out = json.loads(run([BATON, 'plan', a.model, '--device', device, '--memory', '139G', '--weights', c['weights'], '--json',
                                  '--set', 'engine.hasty_weights=true', '--set', 'kv.blocks=%d' % c['kv']['blocks'],
                                  *(x for k in ('chunk_tokens', 'max_sequences', 'context') for x in ('--set', f'engine.{k}={c["engine"][k]}'))],
                                 30, 'plan'))
            total += out['total']
            say('  %s %s %s: %.1f GiB, of which KV %.1f' % (device, n.name, c['weights'], out['total'] / 2**30, out['kv'] / 2**30))
        say('  %s: %.1f GiB, and 0.5 a program' % (device, total / 2**30))


def start(a, routers, limit):
    """Waits for all; for a router no longer than 20 s behind its nodes, and not at all where one of them has ended."""
    programs = programs_of(routers)
    waiting, ended, nodes_ready = set(programs), [], False
    until = time.monotonic() + limit
    for p in programs:
        p.start()
        processes.append(p.process)
    while waiting and time.monotonic() < until:
        for p in [p for p in programs if p in waiting]:
            if not p.alive():
                say(p.name, 'has ended:', p.log()[-1500:])
                ended.append(p.name)
                waiting -= {p, *(r for r in routers.values() if p in r.nodes)}
                continue
            try:
                if p.ready():
                    say('  ready:', p.name)
                    waiting.discard(p)
            except OSError:
                pass
        if not nodes_ready and all(p.role == 'router' for p in waiting):
            until, nodes_ready = min(until, time.monotonic() + 20), True
        time.sleep(0.05)
    if waiting or ended:
        raise RuntimeError('ended: %s; not ready in time: %s' % (' '.join(ended) or 'none', ' '.join(p.name for p in waiting) or 'none'))


def usable(router):
    try:
        return all(p.alive() and p.ready() for p in (*router.nodes, router))
    except OSError:
        return False
