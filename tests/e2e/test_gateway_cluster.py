"""The gateway of `baton router`, in front of a whole cluster."""
import json, signal, subprocess
import pytest
from cluster import Cluster
from ports import free_ports
from conftest import BATON
from test_cluster import TWO_WEIGHTS
from gateway_client import Client, Failed, g


@pytest.fixture
def cluster(tiny, tmp_path):
    port = free_ports(1)[0]
    c = Cluster(tiny, tmp_path, prefill=1, decode=2, settings={'placement': {'heartbeat': '100ms', 'node_silence': '1s'}},
                decode_settings={'cpu': {'isa': 'ref'}})
    c.gateway = f'tcp://127.0.0.1:{port}'
    c.yaml['routers']['nodes'][0]['gateway'] = c.gateway
    c.write(c.yaml)
    yield c
    c.kill()


def test_a_cluster_s_gateway_says_what_its_http_and_one_process_say(cluster, tiny):
    c = cluster.start().wait_ready()
    with Client(c.gateway) as client:
        for seed in range(3):
            ask = dict(max_tokens=60, temperature=1, seed=seed, ignore_eos=True)
            got = client.answer(prompt='Once upon a time ' * 5, **ask)
            assert got.text[0] == c.complete('Once upon a time ' * 5, **ask).json()['choices'][0]['text']
            alone = json.loads(subprocess.check_output(
                [BATON, 'run', tiny, '--prompt', 'Once upon a time ' * 5, '--max-tokens', '60', '--temperature', '1', '--seed', str(seed),
                 '--ignore-eos', '--json']))
            assert got.ids[0] == alone['ids']
        stats = client.ask(g.METHOD_STATS, None, g.StatsReply)
        assert stats.nodes == 3
    c.wait_idle()


def test_a_stream_goes_on_when_its_decode_node_is_killed(cluster):
    c = cluster.start().wait_ready()
    with Client(c.gateway) as client:
        ask = dict(prompt='Once', max_tokens=450, n=4, temperature=1, seed=9, ignore_eos=True)
        whole = client.answer(**ask)
        stream = client.generate(**ask, credits=100000)
        while sum(map(len, stream.ids.values())) < 40:
            stream.take(client.receive())
        nodes = c.view()
        c[max(('d1', 'd2'), key=lambda n: nodes[n].get('running', 0))].kill(signal.SIGKILL)
        while not stream.over:
            stream.take(client.receive())
        assert stream.ids == whole.ids and stream.text == whole.text
    c.wait_idle()


def test_a_degraded_answer_is_marked(tiny, tmp_path):
    c = Cluster(tiny, tmp_path, prefill=1, decode=1, settings={'placement': {'degrade_after': '300ms'}}, **TWO_WEIGHTS)
    gateway = c.yaml['routers']['nodes'][0]['gateway'] = f'tcp://127.0.0.1:{free_ports(1)[0]}'
    c.write(c.yaml)
    try:
        c.start().wait_ready()
        with Client(gateway) as client:
            assert not client.answer(prompt='the quick brown fox', max_tokens=4, ignore_eos=True).degraded
            c['p1'].kill()
            assert client.answer(prompt='seven old wizards', max_tokens=4, ignore_eos=True).degraded
    finally:
        c.kill()


def test_without_nodes_calls_are_unavailable_and_what_needs_none_is_answered(cluster):
    c = cluster.start('r1')
    c.wait_for('the router', lambda: 'GATEWAY-LISTENS' in c['r1'].text())
    with Client(c.gateway) as client:
        c.wait_for('the tokenizer', lambda: client.health() == 'STATE_NO_NODE')
        with pytest.raises(Failed) as e:
            client.answer(prompt='x')
        assert e.value.code == 'UNAVAILABLE' and e.value.status.retry_after_ms >= 1000
        assert client.tokenize(prompt='Hello').ids


def test_a_router_that_is_killed_costs_its_streams_and_no_more(cluster):
    c = cluster.start().wait_ready()
    client = Client(c.gateway)
    client.generate(prompt='x', max_tokens=450, n=4, ignore_eos=True)
    client.receive()
    run = subprocess.Popen([BATON, 'run', '--server', c.gateway, '--prompt', 'x', '--max-tokens', '480', '--ignore-eos', '--temperature', '1'],
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert run.stdout.read(1)
    c['r1'].kill(signal.SIGKILL)
    out, err = run.communicate(timeout=30)
    assert run.returncode in (0, 1), err
    assert run.returncode == 0 or b'connection to the router was lost' in err
    c['r1'].start()
    c.wait_ready()
    with Client(c.gateway) as other:
        assert len(other.answer(prompt='x', max_tokens=5, ignore_eos=True).ids[0]) == 5
    client.socket.close()
    c.wait_idle()
