#!/usr/bin/env python3
"""pair.py [link] [cluster] [long] [serve] [more] [options]: what issue 5 asks of two GPUs of one host; all parts where none is named.
pair.py trace --requests N --prompt P --answer A --rate R: the requests of `serve` for `baton sim`, on stdout.

link   KV of a long prompt from one GPU into the other, two processes, beside plain copies of the same run
cluster  `run.sh two_gpus`, while the nodes of long and serve are loaded
long   a long prompt in 1P1D: time to its first token, and what of it is the transfer
serve  1P1D against two nodes that read and write, by a Poisson process and with all slots busy
more   other directions and sizes of link

With one device (--devices cuda:0) both nodes are on it, and `serve` compares nothing. `--devices cpu,cpu --shape tiny` rehearses all of it
without a GPU. Every step has a limit and --until one for all; a step that fails does not stop the others. Each figure is a line of JSON in
$OUT/pair.jsonl as soon as it is there; a table comes last. The standard library only."""
import argparse, atexit, json, os, random, shutil, signal, subprocess, sys, tempfile, threading

from pair_nodes import BATON, HERE, lay_out, plan, programs_of, start, usable
from pair_steps import OUT, keep, kill_group, lines, processes, run, say, step, steps

VOCABULARY = {'tiny': 1024, 'smollm2-135m': 49152, 'llama-1b': 128256, 'llama-3b': 128256, 'llama-8b': 128256}
GOODPUT = ((500, 10), (1000, 25), (2000, 50))  # ms to the first token, ms a token


# ---- link -----------------------------------------------------------------------------------------------------------------------

def link_once(a, name, limit, devices, *options):
    on_gpus = devices[0] != 'cpu'
    command = [BATON, 'bench', 'transfer', '--json', '--checksum', '--shape', a.transfer_shape, '--context', a.long_prompt, '--repeat', a.repeat]
    command += ['--device', ','.join(devices), *options] if on_gpus else ['--way', 'host-shm']
    for line in run(command, limit, name).splitlines():
        p = json.loads(line)
        keep({'link': name, **p})
        say('  %s %s: %.1f GB/s, %.1f %% of a plain copy (%.1f)' % (name, p['way'], p['gb_per_s'], 100 * p['of_plain'], p['plain_gb_per_s']))


def link(a):
    # A device that stands first owns the blocks.
    for way in ('cuda', 'cuda-kernel'):
        step(a, f'link {way}', 40, lambda limit: link_once(a, way, limit, a.devices, '--way', way))


def more(a):
    d = a.devices if len(a.devices) == 2 else a.devices * 2
    variants = [('piece 16', d, '--piece', 16), ('piece 32', d, '--piece', 32), ('piece 128', d, '--piece', 128),
                ('piece 256', d, '--piece', 256), ('runs of 64 blocks', d, '--run', 64), ('the other way round', d[::-1]),
                ('one gpu', [d[0], d[0]])]
    if d[0] == 'cpu':
        variants = variants[-1:]
    for name, devices, *options in variants:
        step(a, f'link, {name}', 30, lambda limit: link_once(a, name, limit, devices, '--way', 'cuda', *options))


# ---- equality -------------------------------------------------------------------------------------------------------------------

def begin_cluster(a):
    script = os.path.join(HERE, 'run.sh')
    if len(a.devices) < 2 or a.devices[0] == 'cpu' or not os.path.exists(os.path.join(HERE, 'bin')):
        say('cluster: not without a bundle and two GPUs')
        return None
    p = subprocess.Popen(['bash', script, 'two_gpus'], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
                         env={**os.environ, 'OUT': a.folder, 'PROMPTS': str(a.trouble)})
    processes.append(p)
    return p


def end_cluster(p, limit):
    try:
        out, _ = p.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        kill_group(p)
        raise TimeoutError(f'two_gpus: no end in {limit:.0f} s') from None
    say('two_gpus:\n' + out)
    keep({'two_gpus': p.returncode, 'said': out})
    if p.returncode != 0:
        raise RuntimeError('not all passed')


# ---- load -----------------------------------------------------------------------------------------------------------------------

COUNTERS = ('baton:remote_prefills_total', 'baton:prompt_tokens_cached_total', 'baton:request_degraded_total', 'baton:engine_seconds_total',
            'baton:engine_steps_total', 'baton:transfer_bytes_total', 'baton:transfer_seconds_total', 'baton:handover_seconds_total',
            'baton:fetched_sequences_total', 'baton:time_to_first_token_phase_seconds_sum', 'baton:time_to_first_token_phase_seconds_count')


def counters(router):
    out = {}
    for p in (*router.nodes, router):
        for k, v in p.metrics().items():
            if k.startswith(COUNTERS):
                out[f'{p.name} {k[6:]}'] = v
    return out


seeds = iter(range(1000, 100000))


def load(a, arrangement, router, what, limit, prompt, answer, requests, concurrency, rate=0):
    """One load on one arrangement; prompts are new ones each time, arrivals the same."""
    log = os.path.join(a.folder, 'requests.jsonl')
    before = counters(router)
    out = run([BATON, 'bench', 'serve', '--url', 'http://127.0.0.1:%d' % router.address[1], '--ids', a.vocab, '--prompt-tokens', prompt, '--max-tokens',
               answer, '--requests', requests, '--concurrency', concurrency, '--rate', rate, '--seed', next(seeds), '--log', log, '--json'],
              limit, f'{arrangement}, {what}')
    b = json.loads(out.splitlines()[-1])
    after = counters(router)
    each = [json.loads(line) for line in open(log)]
    good = {f'{t}/{p}': sum(r['ttft_ms'] <= t and r['tpot_ms'] <= p for r in each) / requests for t, p in GOODPUT}
    wrong = sum(r['prompt_tokens'] != prompt or r['tokens'] != answer for r in each)
    result = {'arrangement': arrangement, 'load': what, **b, 'goodput': good, 'wrong_length': wrong,
              'stall_p99_ms': sorted(r['stall_ms'] for r in each)[int(0.99 * len(each))] if each else None,
              'counted': {k: round(after[k] - before.get(k, 0), 4) for k in after if after[k] != before.get(k, 0)}}
    keep(result)
    if b['errors'] or wrong:
        say('  %d errors, %d of another length than asked for' % (b['errors'], wrong))
    return result


def table(results):
    rows = ['%-24s %-12s %7s %17s %15s %15s %9s %23s %7s' % ('arrangement', 'load', 'tok/s', 'TTFT mean/p99', 'TPOT mean/p99', 'ITL mean/p99',
                                                          'stall p99', 'good ' + ' '.join('%d/%d' % g for g in GOODPUT), 'remote')]
    for r in results:
        remote = sum(v for k, v in r['counted'].items() if 'remote_prefills_total' in k and '{' not in k) / r['requests']
        rows.append('%-24s %-12s %7.0f %8.1f/%8.1f %7.2f/%7.2f %7.2f/%7.2f %9.1f %23s %6.0f%%' % (
            r['arrangement'], r['load'], r['tokens_per_s'], r['ttft_ms']['mean'], r['ttft_ms']['p99'], r['tpot_ms']['mean'], r['tpot_ms']['p99'],
            r['itl_ms']['mean'], r['itl_ms']['p99'], r['stall_p99_ms'] or 0, ' '.join('%5.1f%%' % (100 * g) for g in r['goodput'].values()), 100 * remote))
    return '\n'.join(rows)


def warm(a, routers):
    """Graphs of steps, algorithms, and the routers' rates."""
    def both(arrangement, router, limit):
        load(a, arrangement, router, 'warm-up', limit, a.prompt, 24, 16, 16)
    for arrangement, router in routers.items():
        if usable(router):
            step(a, f'warm-up of {arrangement}', 20, lambda limit: both(arrangement, router, limit))


def long(a, routers):
    arrangement, router = next(iter(routers.items()))

    def ask(limit):
        r = load(a, arrangement, router, 'long', limit, a.long_prompt, 4, a.long_requests, 1)
        c = {k.split(' ', 1)[1]: v for k, v in r['counted'].items() if k.startswith(('q1 ',))}
        moved = c.get('fetched_sequences_total', 0)
        best = [p['ms'] for p in lines if p.get('link') == 'cuda' or p.get('way') == 'host-shm']
        ttft = r['ttft_ms']['mean']
        share = {'long': a.long_prompt, 'ttft_ms': ttft, 'fetched': moved,
                 'transfer_ms': 1000 * c.get('transfer_seconds_total', 0) / moved if moved else None,
                 'after_last_offer_ms': 1000 * c.get('handover_seconds_total', 0) / moved if moved else None,
                 'bench_ms': min(best) if best else None}
        for k in ('transfer_ms', 'after_last_offer_ms', 'bench_ms'):
            if share[k] is not None:
                share[k.replace('_ms', '_of_ttft')] = share[k] / ttft
        keep(share)
        say('  ', json.dumps(share))
    if usable(router):
        step(a, 'long prompts', 40, ask)
    else:
        say('long prompts: its nodes are not there')


def serve(a, routers):
    results = []

    def one(arrangement, what, limit, needs=30, **more):
        if arrangement not in routers:
            return
        if not usable(routers[arrangement]):
            say(f'{arrangement}, {what}: its nodes are not there')
            steps.append((f'{arrangement}, {what}', 'no nodes', 0))
            return
        r = step(a, f'{arrangement}, {what}', limit,
                 lambda seconds: load(a, arrangement, routers[arrangement], what, seconds, a.prompt, a.answer, a.requests, **more), needs)
        if r is not None:
            results.append(r)
            print(table(results[-1:]), flush=True)
            keep({'cluster': arrangement, 'after': what, **json.loads(routers[arrangement].get('/v1/cluster')[1])})

    arrival_time = a.requests / a.rate
    paced = {'limit': arrival_time + 40, 'needs': arrival_time + 3, 'rate': a.rate, 'concurrency': a.requests}
    full = {'limit': 60, 'needs': 10, 'concurrency': a.sequences}
    always, pays, same, q4, w8 = '1P1D w8|q4, always', '1P1D w8|q4, as it pays', '1P1D w8, as it pays', '2D q4', '2D w8'
    for arrangement in (always, w8, q4, same):  # what matters most comes first: time may run out
        one(arrangement, 'paced', **paced)
    for arrangement in (always, w8, same, pays, q4):
        one(arrangement, 'full', **full)
    one(pays, 'paced', **paced)
    return results


# ---- all ------------------------------------------------------------------------------------------------------------------------

def trace(a):
    chance, at = random.Random(1), 0
    print('arrived_at,num_prefill_tokens,num_decode_tokens')
    for _ in range(a.requests):
        print(f'{at:.6f},{a.prompt},{a.answer}')
        at += chance.expovariate(a.rate)


def leave():
    for p in processes:
        if p.poll() is None:
            p.kill()


def save_logs(a):
    with open(os.path.join(OUT, 'pair.log'), 'a') as out:
        for name in sorted(os.listdir(a.folder)):
            if name.endswith(('.log', '.yaml')):
                out.write(f'\n==== {name}\n' + open(os.path.join(a.folder, name), errors='replace').read()[-20000:])
        if shutil.which('nvidia-smi'):
            out.write(subprocess.run(['nvidia-smi', 'topo', '-m'], capture_output=True, text=True, timeout=20).stdout)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('parts', nargs='*', help='link cluster long serve more; trace')
    p.add_argument('--devices', default='cuda:0,cuda:1', help='of reading and of writing')
    p.add_argument('--shape', default='llama-8b')
    p.add_argument('--model', help='a file instead')
    p.add_argument('--until', type=float, default=450, help='seconds for everything')
    p.add_argument('--requests', type=int, default=200)
    p.add_argument('--prompt', type=int, default=8000)
    p.add_argument('--answer', type=int, default=200)
    p.add_argument('--rate', type=float, default=3.6)
    p.add_argument('--sequences', type=int, default=72, help='of a decode node; so many are asked at once to fill them')
    p.add_argument('--chunk', type=int, default=4096, help='tokens of a decode node\'s step')
    p.add_argument('--share', type=float, default=0.5, help='of it for prompts while answers are written')
    p.add_argument('--prefill-chunk', type=int, default=8192)
    p.add_argument('--prefill-blocks', type=int, default=8192)
    p.add_argument('--long-prompt', type=int, default=32768)
    p.add_argument('--long-requests', type=int, default=5)
    p.add_argument('--transfer-shape', default='8b')
    p.add_argument('--repeat', type=int, default=10)
    p.add_argument('--transport', default='auto', help='of blocks: host where the GPUs cannot read each other')
    p.add_argument('--trouble', type=int, default=300, help='prompts of `cluster` while nodes are killed')
    p.add_argument('--threads', type=int, default=8, help='of each node, for loading')
    a = p.parse_args()
    if a.parts == ['trace']:
        return trace(a)
    a.devices = a.devices.split(',')
    a.vocab = VOCABULARY[a.shape]
    a.parts = a.parts or ['link', 'cluster', 'long', 'serve', 'more']
    a.folder = tempfile.mkdtemp(prefix='baton-pair-')
    atexit.register(leave)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    results, routers = [], {}
    nodes = 'long' in a.parts or 'serve' in a.parts
    making = threading.Thread(target=lambda: step(a, 'synth', 90, lambda limit: run(
        [BATON, 'synth', a.shape, os.path.join(a.folder, 'model.gguf'), '--type', 'q8_0'], limit, 'synth')))
    try:
        if nodes and a.model is None:
            a.model = os.path.join(a.folder, 'model.gguf')
            making.start()
        if 'link' in a.parts:
            link(a)
        equality = begin_cluster(a) if 'cluster' in a.parts else None
        if nodes:
            making.join() if making.ident else None
            routers = lay_out(a)
            if 'serve' not in a.parts:
                routers = dict(list(routers.items())[:1])
            step(a, 'plan', 40, lambda limit: plan(a, routers)) if a.devices[0] != 'cpu' else None
            step(a, 'nodes', 150, lambda limit: start(a, routers, limit))
        if equality is not None:
            step(a, 'two_gpus', 100, lambda limit: end_cluster(equality, limit))
        if nodes:
            warm(a, routers)
        if 'long' in a.parts:
            long(a, routers)
        if 'serve' in a.parts:
            results = serve(a, routers)
        for program in programs_of(routers):
            program.kill() if program.process else None
        if 'more' in a.parts:
            more(a)
    finally:
        leave()
        save_logs(a)
        shutil.rmtree(a.folder, ignore_errors=True)
    print('\n%-46s %8s' % ('step', 'seconds'))
    for name, word, seconds in steps:
        print('%-46s %8.1f  %s' % (name, seconds, word))
    for l in lines:
        if 'link' in l:
            print('link %-20s %-11s %7.1f GB/s, %5.1f %% of a plain copy' % (l['link'], l['way'], l['gb_per_s'], 100 * l['of_plain']))
        elif 'long' in l:
            print(json.dumps(l))
    if results:
        print(table(results))
    return 1 if any(word != 'ok' for _, word, _ in steps) else 0


if __name__ == '__main__':
    sys.exit(main())
