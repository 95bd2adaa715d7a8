"""Requests of one session, and those that begin alike, are answered where that was read already."""
import pytest
from cluster import Cluster
from test_cluster import pytestmark  # noqa: F401


def finished(c):
    return [d.metric('baton:node_finished_total') for d in c.of('decode')]


@pytest.mark.parametrize('how', ['header', 'user'])
def test_a_session_stays_at_one_node(tiny, tmp_path, how):
    c = Cluster(tiny, tmp_path, prefill=0, decode=3)
    try:
        c.start().wait_ready()
        for i in range(12):
            ask = dict(prompt=f'{i} is a number', max_tokens=2)
            r = c.http.post('/v1/completions', json=ask, headers={'X-Session-Id': 'me'}) if how == 'header' else \
                c.complete(**ask, user='me')
            assert r.status_code == 200, r.text
        assert sorted(finished(c)) == [0, 0, 12]
        for i in range(12):
            c.complete(prompt=f'{i} is nobody', max_tokens=2)
        assert sum(n > 0 for n in finished(c)) > 1
        c.stop()
    finally:
        c.kill()


def test_a_long_beginning_is_read_once(tiny, tmp_path):
    c = Cluster(tiny, tmp_path, prefill=0, decode=3)
    try:
        c.start().wait_ready()
        story = 'Once upon a time there was a fox. '
        while len(c.http.post('/tokenize', json={'prompt': story}).json()['tokens']) < 300:
            story += 'It jumped over a dog. '
        for i in range(6):
            usage = c.complete(prompt=f'{story} And then, {i},', max_tokens=2).json()['usage']
            assert usage['prompt_tokens'] > 300  # more than one entry of the router's table stands for
            if i > 0:
                assert usage['prompt_tokens_details']['cached_tokens'] > usage['prompt_tokens'] // 2, i
        assert sorted(finished(c)) == [0, 0, 6]
        c.stop()
    finally:
        c.kill()
