"""`baton bench serve`: what it sends, and what it says of the answers. And tests/gpu/pair.py, rehearsed on two CPU nodes."""
import json, os, subprocess, sys
from conftest import BATON, ROOT

PAIR = os.path.join(ROOT, 'tests', 'gpu', 'pair.py')


def bench(server, *options, code=0):
    r = subprocess.run([BATON, 'bench', 'serve', '--url', server.url, '--json', *map(str, options)], capture_output=True, text=True, timeout=60)
    assert r.returncode == code, r.stderr
    return json.loads(r.stdout) if code == 0 else r.stderr


def test_prompts_of_ids_have_the_length_asked_for_and_share_nothing(server, tmp_path):
    log = tmp_path / 'requests.jsonl'
    got = bench(server, '--ids', 256, '--prompt-tokens', 61, '--max-tokens', 5, '--requests', 6, '--concurrency', 2, '--log', log)
    assert (got['prompt_tokens'], got['completion_tokens'], got['errors']) == (6 * 61, 6 * 5, 0)
    each = [json.loads(line) for line in log.read_text().splitlines()]
    assert len(each) == 6 and all((r['prompt_tokens'], r['tokens']) == (61, 5) for r in each)
    assert all(0 < r['ttft_ms'] <= r['e2e_ms'] and r['stall_ms'] >= r['tpot_ms'] >= 0 for r in each)


def test_goodput_counts_who_had_both_in_time(server):
    common = ('--prompt-tokens', 8, '--max-tokens', 4, '--requests', 5)
    assert bench(server, *common, '--slo-ttft', 60000, '--slo-tpot', 60000)['good'] == 5
    assert bench(server, *common, '--slo-ttft', 0.0001, '--slo-tpot', 60000)['good'] == 0
    assert bench(server, *common, '--slo-ttft', 60000, '--slo-tpot', 0)['good'] == 0


def test_a_chat_has_no_ids(server):
    assert 'which has no ids' in bench(server, '--ids', 256, '--chat', code=2)


def test_two_gpus_are_rehearsed_on_two_cpu_nodes(tmp_path):
    r = subprocess.run([sys.executable, PAIR, 'link', 'long', 'serve', '--devices', 'cpu,cpu', '--shape', 'tiny', '--requests', '8', '--prompt', '600',
                        '--answer', '8', '--rate', '20', '--sequences', '4', '--chunk', '512', '--prefill-chunk', '512', '--prefill-blocks', '256',
                        '--long-prompt', '2048', '--long-requests', '2', '--transfer-shape', 'smollm2', '--repeat', '1', '--threads', '1',
                        '--until', '150'], capture_output=True, text=True, timeout=180, env={**os.environ, 'OUT': str(tmp_path), 'BATON': BATON})
    assert r.returncode == 0, r.stdout[-4000:] + r.stderr[-2000:]
    lines = [json.loads(line) for line in (tmp_path / 'pair.jsonl').read_text().splitlines()]
    loads = [l for l in lines if l.get('load') in ('paced', 'full')]
    assert len(loads) == 10 and all(l['errors'] == l['wrong_length'] == 0 for l in loads)
    remote = {(l['arrangement'], l['load']): sum(v for k, v in l['counted'].items() if k.endswith('remote_prefills_total')) for l in loads}
    assert remote['1P1D w8|q4, always', 'paced'] == 8 and remote['2D q4', 'paced'] == remote['2D w8', 'full'] == 0
    assert [l['fetched'] for l in lines if 'long' in l] == [2]
