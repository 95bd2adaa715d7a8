"""Prompts that are read by other weights than they should be say so: in the headers, or in the stream where those are out."""
from cluster import Cluster
from test_cluster import SLOW, TWO_WEIGHTS, pytestmark  # noqa: F401

ASK = dict(prompt='the quick brown fox jumps', max_tokens=4, temperature=0, ignore_eos=True)


def is_marked(http, **more):
    r = http.post('/v1/completions', json={**ASK, **more})
    assert r.status_code == 200, r.text
    return r.headers.get('x-baton-degraded') == '1'


def test_without_a_prefill_node_answers_are_marked_until_it_is_back(tiny, tmp_path):
    c = Cluster(tiny, tmp_path, prefill=1, decode=1, settings={'placement': {'degrade_after': '300ms'}}, **TWO_WEIGHTS)
    try:
        c.start().wait_ready()
        assert not is_marked(c.http) and not is_marked(c.http, stream=True)
        c['p1'].kill()
        assert is_marked(c.http, prompt='seven old wizards')
        assert is_marked(c.http, prompt='nobody in town knows why', stream=True)
        assert c.router.metric('baton:request_degraded_total') == 2
        assert 'REQ-DEGRADED' in c.router.text()
        c['p1'].start()
        c.wait_ready()
        assert not is_marked(c.http, prompt='rain falls up on Sundays')
        assert c.router.metric('baton:request_degraded_total') == 2
        c.wait_idle()
        c.stop()
    finally:
        c.kill()


def test_an_answer_that_is_degraded_on_its_way_says_so_in_the_stream(tiny, tmp_path):
    c = Cluster(tiny, tmp_path, prefill=1, decode=2, settings={'placement': {'degrade_after': '300ms'}, **SLOW}, **TWO_WEIGHTS)
    try:
        c.start().wait_ready()
        text = ''
        with c.http.stream('POST', '/v1/completions',
                           json={**ASK, 'prompt': 'Once upon a time', 'max_tokens': 450, 'stream': True}) as r:
            assert 'x-baton-degraded' not in r.headers
            for part in r.iter_text():
                if not text:  # who writes it?
                    c['p1'].process.kill()
                    writers = lambda: [d for d in c.of('decode') if d.metric('baton:sequences_decoding')]
                    c.wait_for('an answer to be written', writers)
                    writers()[0].kill()
                text += part
        assert text.endswith('data: [DONE]\n\n') and text.count(': x-baton-degraded: 1\n\n') == 1
        assert c.router.metric('baton:request_degraded_total') == 1
    finally:
        c.kill()


def test_metrics_say_what_became_of_requests_and_nodes(tiny, tmp_path):
    c = Cluster(tiny, tmp_path, prefill=1, decode=1, settings={'placement': {'remote_tokens_min': 1}})
    try:
        c.start().wait_ready()
        assert c.complete(**ASK).status_code == 200
        text = c.http.get('/metrics').text
        for line in ('baton:remote_prefills_total{', 'baton:request_moves_total{', 'cause="node_lost"',
                     'baton:request_retries_total{', 'baton:node_breaker{', 'node="d1",role="decode"} 0',
                     'node="p1",role="prefill"} 1'):
            assert line in text, f'{line} is not in\n{text}'
        assert c.view()['d1']['breaker'] == 'closed'
        c.stop()
    finally:
        c.kill()
