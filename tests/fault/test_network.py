#!/usr/bin/env python3
"""Links that are cut, heal, lose packets or crawl, between programs in network namespaces (net.py). Exit code 77 where those are not
permitted. Blocks travel as between hosts: over sockets."""
import random, sys, threading, time, unittest
import net as networks
from cluster import TINY, wait_for, in_parallel
from prompts import draw
from test_nodes import SLOW, Case, Trouble, retried, yardstick

NAMES = ('r1', 'p1', 'd1', 'd2')
HOSTS = {**SLOW, 'transfer_path': 'stream'}
net = None


class Network(Case):
    BODIES = draw(60, 41, characters_max=400, max_tokens=24)

    def setUp(self):
        self.addCleanup(net.heal)
        self.want = yardstick(TINY, self.BODIES, 'kv.block_tokens=16')
        self.c = self.running(prefill=1, decode=2, settings=HOSTS, hosts=net.hosts)

    def all_answers_are_right(self):
        for got, w, body in zip(in_parallel(lambda b: retried(self.c, b, 120), self.BODIES, 8), self.want, self.BODIES):
            self.assert_same(got, w, body)

    def everything_heals(self):
        net.heal()
        self.c.wait_ready()
        before = self.c.prefill[0].metrics()['baton:prefix_cache_misses_total']

        def used():
            self.all_answers_are_right()
            return self.c.prefill[0].metrics()['baton:prefix_cache_misses_total'] > before
        wait_for('use of the prefill node', used, 60)  # one found slow is believed faster after half a minute
        self.c.wait_idle(15)

    def test_between_hosts_the_blocks_travel_and_the_answers_are_the_same(self):
        self.all_answers_are_right()
        fetched = sum(d.metrics()['baton:transfer_blocks_total'] for d in self.c.decode)
        self.assertGreater(fetched, 0)
        self.c.wait_idle()

    def cut_while_working(self, a, b, one_way):
        cut = threading.Timer(0.3, net.cut, (a, b, one_way))
        cut.start()
        self.all_answers_are_right()
        cut.join()
        self.everything_heals()

    def test_a_cut_between_router_and_a_decode_node_moves_its_answers(self):
        self.cut_while_working('r1', 'd1', False)

    def test_a_cut_between_router_and_the_prefill_node_leaves_the_reading_to_others(self):
        self.cut_while_working('r1', 'p1', False)

    def test_a_cut_between_prefill_and_decode_node_leaves_the_reading_to_others(self):
        self.cut_while_working('p1', 'd1', False)

    def test_a_one_way_cut_from_a_decode_node_to_the_router_is_a_cut(self):
        self.cut_while_working('d1', 'r1', True)

    def test_a_one_way_cut_from_the_router_to_a_decode_node_is_a_cut(self):
        self.cut_while_working('r1', 'd1', True)

    def test_a_one_way_cut_from_prefill_to_decode_node_costs_no_answer(self):
        self.cut_while_working('p1', 'd1', True)

    def test_links_that_flap_cost_no_answer(self):
        rng = random.Random(5)
        pairs = [('r1', 'd1'), ('r1', 'd2'), ('r1', 'p1'), ('p1', 'd1'), ('p1', 'd2')]

        def hurt():
            net.cut(*rng.choice(pairs), one_way=rng.random() < 0.3)
            time.sleep(rng.choice((0.1, 0.5, 4)))
            net.heal()
        trouble = Trouble(hurt, 0.3)
        for _ in range(2):
            self.all_answers_are_right()
        trouble.end()
        self.everything_heals()

    def test_with_every_twentieth_packet_lost_everything_is_slower_and_right(self):
        for a, b in (('r1', 'd1'), ('r1', 'd2'), ('r1', 'p1'), ('p1', 'd1'), ('p1', 'd2')):
            net.loss(a, b, 0.05)
        self.all_answers_are_right()
        self.everything_heals()

    def test_A9_a_slow_link_between_prefill_and_decode_nodes_stalls_nobody(self):
        for d in ('d1', 'd2'):
            net.slow(d, '4mbit')
            self.addCleanup(net.slow, d, None)
        self.all_answers_are_right()
        self.c.wait_idle(15)


if __name__ == '__main__':
    try:
        net = networks.Net(*NAMES)
    except networks.Unsupported as e:
        print(f'no network namespaces here: {e}')
        sys.exit(77)
    unittest.main()
