"""Devices that are not there, and `baton plan`, which needs none."""
import json, os, subprocess
import pytest
from conftest import BATON, ROOT

CUDA = os.environ.get('BATON_CUDA', os.path.join(ROOT, 'build', 'cuda', 'baton'))  # CI builds it and has no GPU
needs_cuda = pytest.mark.skipif(not os.path.exists(CUDA), reason='no build with CUDA')
no_driver = pytest.mark.skipif(os.path.exists('/dev/nvidiactl'), reason='a driver is here')


def run(program, *args):
    r = subprocess.run([program, *args], capture_output=True, text=True, timeout=60)
    return r.returncode, r.stdout, r.stderr


def last_line(text):
    return text.strip().splitlines()[-1]


def plan(program, model, *args, code=0):
    got, out, err = run(program, 'plan', model, '--json', *args)
    assert got == code, err
    return json.loads(out)


def every_command(model):
    prompt = ['--prompt', 'x', '--max-tokens', '1']
    return [['run', model, *prompt], ['chat', model], ['eval', 'ppl', model, '--text', __file__, '--ctx', '16'],
            ['bench', 'engine', model, '--no-limits'], ['bench', 'transfer', '--context', '64'], ['plan', model]]


def refuses(program, model, device, words):
    for command in every_command(model):
        code, out, err = run(program, *command, '--device', device)
        assert code == 2 and out == '', (command, code, out, err)
        assert words in last_line(err) and f'device {device}' in last_line(err), (command, err)
    code, out, err = run(program, 'local', '--model', model, '--listen', '127.0.0.1:0', '--set', f'device={device}')
    assert code == 2 and words in last_line(err), err


def test_a_build_without_cuda_says_so(tiny):
    if run(BATON, 'plan', tiny, '--device', 'cuda:0', '--memory', '1G')[0] == 0:
        pytest.skip('this build has CUDA')
    refuses(BATON, tiny, 'cuda:3', 'was built without CUDA')


@pytest.mark.parametrize('option, names', [('--way', 'x'), ('--way', 'host-shm,cuda-x'), ('--way', ''), ('--shape', '8'), ('--shape', 'smollm2,,8b')])
def test_a_transfer_that_nobody_knows_is_not_measured_in_silence(option, names):
    code, out, err = run(BATON, 'bench', 'transfer', '--context', '64', '--device', 'cuda:3', option, names)
    assert code == 2 and out == '' and len(err.splitlines()) == 1 and option in err


@needs_cuda
@no_driver
def test_a_machine_without_a_driver_says_so(tiny):
    refuses(CUDA, tiny, 'cuda:0', 'no NVIDIA driver here')


def test_a_device_that_is_no_device_is_a_wrong_use(tiny):
    for device in ('cuda:', 'cuda:x', 'gpu', 'cuda:-1'):
        code, _, err = run(BATON, 'run', tiny, '--prompt', 'x', '--device', device)
        assert code == 2 and 'expected cpu or cuda:N' in err


def test_a_plan_is_what_the_engine_logs(tiny):
    p = plan(BATON, tiny, '--threads', '2', '--set', 'engine.max_sequences=3', '--kv', 'f16')
    code, _, err = run(BATON, 'run', tiny, '--prompt', 'x', '--max-tokens', '1', '--threads', '2', '--kv', 'f16', '--set',
                       'engine.max_sequences=3')
    assert code == 0
    assert f'weights {p["weights"] / 2**20:.1f} MiB' in err
    assert f'kv {p["kv"] / 2**20:.1f} MiB: {p["blocks"]} blocks of {p["block_bytes"]} bytes' in err
    assert f'scratch {p["scratch"] / 2**20:.1f} MiB, logits {p["logits"] / 2**20:.1f} MiB' in err
    assert f'total {p["total"] / 2**20:.1f} MiB of' in err
    assert p['sequences_at_full_context'] == 3 and p['fits']


def what_would_fit_fits(program, model, *args):
    p = plan(program, model, *args, code=2)
    assert not p['fits'] and p['total'] > p['limit'] and 'MiB' in p['reason']
    settings = [s.split() for s in p['would_fit'] if s.startswith('--')]
    assert p['would_fit'][-1].endswith('MiB free')
    for s in settings:
        assert plan(program, model, *args, *s)['fits'], s
    return settings


def test_what_would_make_it_fit_is_said_and_true(tiny):
    many = ['--set', 'engine.max_sequences=64', '--context', '4096', '--kv', 'f32', '--threads', '2']
    found = {' '.join(s[:1]) for s in what_would_fit_fits(BATON, tiny, '--memory', '3M', *many)}
    assert '--context' in found and '--set' in found
    assert what_would_fit_fits(BATON, tiny, '--memory', '2M', *many)
    found = what_would_fit_fits(BATON, tiny, '--memory', '10M', '--set', 'kv.blocks=99999')
    assert any('kv.blocks=' in s[1] for s in found)
    code, out, err = run(BATON, 'plan', tiny, '--memory', '20K')
    assert code == 2 and 'MiB free' in out and 'do not fit in memory' in err


@pytest.mark.parametrize('memory', ['', '0', 'x', '5Q', '-1', '1e99'])
def test_memory_is_a_number_of_bytes(tiny, memory):
    code, out, err = run(BATON, 'plan', tiny, '--memory', memory)
    assert code == 2 and out == '' and '--memory' in err


@needs_cuda
def test_a_gpu_is_planned_where_none_is(tiny):
    p = plan(CUDA, tiny, '--device', 'cuda:1', '--memory', '2G', '--set', 'engine.max_sequences=16')
    assert p['device'] == 'cuda:1' and p['kv'] % 2**21 == 0 and p['graphs_max'] > 0 and p['loading'] > 0
    assert p['total'] == p['weights'] + p['kv'] + p['scratch'] + p['logits'] + p['graphs_max']
    assert p['limit'] == p['free'] - p['spare']
    assert what_would_fit_fits(CUDA, tiny, '--device', 'cuda:1', '--memory', '400M', '--set', 'engine.max_sequences=512',
                               '--set', 'engine.chunk_tokens=8192', '--context', '200000', '--kv', 'f32')
