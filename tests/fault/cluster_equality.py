#!/usr/bin/env python3
"""cluster_equality.py [--model PATH] [--prompts N] [--topology 1p1d,2p2d,…] [--kill prefill|decode|router|any|none] [--every S] [--troubles N] [--prefill-set KEY=VALUE]

The answers of a cluster of real processes against those of `baton local` with the same weights: text, tokens, log-probabilities,
byte for byte, while nodes are killed or frozen and come back. Topologies: NpMd; 0p1d is decode only; `two` is 2p2d with w8 that reads and q4
that writes (an answer that is marked as degraded may be that of q4 alone, or lie between: these are counted). With --kill the prompts
are asked again and again until --troubles have happened. Exit code 1 when anything was lost, repeated, different or leaked, or where what was
meant to be tried was not: no trouble, or no prompt read at a prefill node. A line of JSON a run on stdout."""
import argparse, json, os, random, re, sys, threading, time
from cluster import DATA, SMOL, TINY, Cluster, Failed, Local, Request, in_parallel
from prompts import draw


class Trouble(threading.Thread):
    """Kills (-9) or freezes one program after the other, and brings each back."""

    def __init__(self, cluster, who, every, seed, freeze_share=0.3):
        super().__init__(daemon=True)
        self.cluster, self.every, self.rng, self.freeze_share = cluster, every, random.Random(seed), freeze_share
        self.victims = {'prefill': cluster.prefill, 'decode': cluster.decode, 'router': cluster.routers,
                        'node': cluster.nodes, 'any': cluster.programs}[who]
        self.over, self.kills, self.freezes, self.error = threading.Event(), 0, 0, None

    def done(self, least):
        """Whether there was enough of it, or will be no more."""
        return self.error is not None or self.kills + self.freezes >= least

    def is_ready(self, program):
        try:
            return program.ready()
        except OSError:
            return False

    def hurt_one(self):
        ready = [v for v in self.victims if self.is_ready(v)]
        if not ready:
            return  # who is still loading would only load again
        victim = self.rng.choice(ready)
        if self.rng.random() < self.freeze_share:
            self.freezes += 1
            victim.freeze()
            self.over.wait(self.rng.choice((0.1, 0.5, 1.3, 2.3)) * self.every)
            victim.thaw()
            return
        self.kills += 1
        victim.kill()
        self.over.wait(self.rng.random() ** 2)
        victim.start()

    def run(self):
        try:
            while not self.over.wait(self.every * (0.5 + self.rng.random())):
                self.hurt_one()
        except BaseException as e:
            self.error = e

    def end(self):
        self.over.set()
        self.join()
        if self.error:
            raise self.error


class Tally:
    def __init__(self):
        self.lock = threading.Lock()
        self.counts = {'equal': 0, 'different': 0, 'lost': 0, 'repeated': 0, 'degraded': 0, 'between': 0, 'refused': 0, 'lost_with_router': 0}
        self.examples = []

    def add(self, what, example=None):
        with self.lock:
            self.counts[what] += 1
            if example and len(self.examples) < 10:
                self.examples.append(f'{what}: {example}')


def ask_until_answered(cluster, body, tally, routers_die, patience):
    """A refusal before the first token (429, 503 with Retry-After) is honest: asked again. What breaks later is lost, with its router
    when that was killed."""
    until = time.monotonic() + patience
    while True:
        a = None
        try:
            r = Request(cluster.router.address, body, timeout=patience)
            a = r.answer
            r.finish()
        except (OSError, ValueError, __import__('http').client.HTTPException) as e:
            if not routers_die:
                tally.add('lost', repr(e))
                return None
            if a is not None:
                tally.add('lost_with_router')
            time.sleep(0.1)
        else:
            if a.done and not a.error:
                return a
            if a.status in (429, 503) and 'retry-after' in a.headers:
                tally.add('refused')
                time.sleep(min(float(a.headers['retry-after']), 2))
            elif routers_die and a.status == 200:
                tally.add('lost_with_router')
            else:
                tally.add('lost', f'{a.status} {a.error} {len(a.tokens)} tokens')
                return None
        if time.monotonic() > until:
            tally.add('lost', 'no answer in time')
            return None


def compare(number, body, want, degraded_want, got, tally):
    if got is None:
        return
    if 'x-baton-degraded' in got.headers:
        tally.add('degraded')
        if degraded_want is None:
            return tally.add('different', f'{number}: marked as degraded with one kind of weights')
        # Neither's answer where q4 read on behind what w8 had left in a cache, or the answer had begun elsewhere: that is what is marked.
        return tally.add('equal' if got.same_as(degraded_want) else 'between')
    if got.same_as(want):
        return tally.add('equal')
    say = f'{number} {json.dumps(body)[:150]}: wanted {len(want.tokens)} {want.text!r} {want.finish}, got {len(got.tokens)} {got.text!r} {got.finish}'
    tally.add('repeated' if len(got.tokens) > len(want.tokens) else 'different', say)


def local_answers(model, bodies, workers, sets):
    with Local(model, *(s for s in sets if not s.startswith('cpu.isa='))) as local:  # every isa gives the same bits
        out = in_parallel(local.ask, bodies, workers)
    wrong = [a for a in out if not a.done]
    if wrong:
        raise Failed(f'baton local: {wrong[0].status} {wrong[0].error}')
    return out


def cluster_of(a, topology):
    shape = '2p2d' if topology == 'two' else topology
    p, d = map(int, re.fullmatch(r'(\d)p(\d)d', shape).groups())
    pools = ({'prefill_settings': {'weights': 'w8'}, 'decode_settings': {'weights': 'q4'}} if topology == 'two' else {})
    settings = {'placement': {'remote_tokens_min': a.remote_tokens_min}, 'engine': {'max_sequences': a.clients}}
    merge_sets(settings, a.set)
    for pool, sets in (('prefill_settings', a.prefill_set), ('decode_settings', a.decode_set)):
        merge_sets(pools.setdefault(pool, {}), sets)
    return Cluster(a.model, prefill=p, decode=d, settings=settings, log=a.log, **pools)


def merge_sets(settings, pairs):
    for pair in pairs:
        key, value = pair.split('=', 1)
        at = settings
        for part in key.split('.')[:-1]:
            at = at.setdefault(part, {})
        at[key.split('.')[-1]] = value


def run_through(a, cluster, bodies, wanted, degraded, tally, who):
    """All prompts through the cluster, with trouble meanwhile, in as many rounds as that takes; returns what happened."""
    trouble = Trouble(cluster, who, a.every, a.seed) if who != 'none' else None
    if trouble:
        trouble.start()
    begin, rounds = time.monotonic(), 0
    work = lambda i: ask_until_answered(cluster, bodies[i], tally, who in ('router', 'any'), a.patience)
    while rounds == 0 or trouble and not trouble.done(a.troubles):
        rounds += 1
        for i, answer in enumerate(in_parallel(work, range(len(bodies)), a.clients)):
            compare(i, bodies[i], wanted[i], degraded[i] if degraded else None, answer, tally)
    seconds = time.monotonic() - begin
    if trouble:
        trouble.end()
    cluster.wait_ready()
    cluster.wait_idle(45)  # leases of what killed programs held are 30 s
    leaked = sum(int(abs(p.metrics().get(k, 0))) for p in cluster.programs for k in ('baton:kv_leak_blocks', 'baton:router_leak'))
    return {'rounds': rounds, 'leaked': leaked, 'seconds': round(seconds, 1), 'kills': trouble.kills if trouble else 0,
            'freezes': trouble.freezes if trouble else 0}


def counters(cluster):
    names = ('baton:request_moves_total', 'baton:remote_prefills_total', 'baton:remote_prefills_failed_total')
    m = cluster.router.metrics()
    return {n[6:].removesuffix('_total'): int(m[n]) for n in names if n in m}


def one(a, topology, who, bodies, wanted, degraded):
    tally = Tally()
    with cluster_of(a, topology) as cluster:
        cluster.wait_ready(seconds=120).wait_met()
        what = run_through(a, cluster, bodies, wanted, degraded, tally, who)
        what.update(counters(cluster))
        cluster.end()
    out = {'topology': topology, 'kill': who, 'prompts': len(bodies), **tally.counts, **what}
    print(json.dumps(out), flush=True)
    for e in tally.examples:
        print('  ' + e, file=sys.stderr)
    tried = what['kills'] + what['freezes'] > 0 if who != 'none' else what.get('remote_prefills', 0) > 0 or topology.startswith('0p')
    if not tried:
        print('  nothing was tried: ' + ('no trouble' if who != 'none' else 'no prompt was read at a prefill node'), file=sys.stderr)
    return tried and tally.counts['equal'] + tally.counts['between'] == len(bodies) * what['rounds'] and out['leaked'] == 0


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument('--model', default=SMOL or TINY)
    p.add_argument('--prompts', type=int, default=500)
    p.add_argument('--clients', type=int, default=12)
    p.add_argument('--max-tokens', type=int, default=32)
    p.add_argument('--characters', type=int, default=6000, help='of the longest prompt')
    p.add_argument('--topology', default='1p1d,2p2d,0p1d,two')
    p.add_argument('--kill', default='none', help='none, prefill, decode, router, node or any; several with commas')
    p.add_argument('--every', type=float, default=3)
    p.add_argument('--troubles', type=int, default=3, help='with --kill: kills and freezes at least')
    p.add_argument('--remote-tokens-min', type=int, default=96)
    p.add_argument('--patience', type=float, default=300)
    p.add_argument('--seed', type=int, default=1)
    p.add_argument('--set', action='append', default=[], help='for `baton local` and the nodes')
    p.add_argument('--prefill-set', action='append', default=[], help='for prefill nodes, as in device=cuda:0')
    p.add_argument('--decode-set', action='append', default=[], help='for decode nodes')
    p.add_argument('--log', default='info')
    a = p.parse_args()
    bodies = draw(a.prompts, a.seed, None if os.path.realpath(a.model) == TINY else DATA, a.characters, a.max_tokens)
    plain = two = q4 = None
    fine = True
    for topology in a.topology.split(','):
        if topology == 'two' and two is None:
            q4 = local_answers(a.model, bodies, a.clients, a.set + ['weights=q4'])
            two = local_answers(a.model, bodies, a.clients, a.set + ['weights=q4', 'prompt_weights=w8'])
        elif topology != 'two' and plain is None:
            plain = local_answers(a.model, bodies, a.clients, a.set)
        for who in a.kill.split(','):
            fine &= one(a, topology, who, bodies, two if topology == 'two' else plain, q4 if topology == 'two' else None)
    return 0 if fine else 1


if __name__ == '__main__':
    try:
        sys.exit(main())
    except Failed as e:
        print(e, file=sys.stderr)
        sys.exit(1)
