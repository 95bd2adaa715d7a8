"""Devices that are not there, and `baton plan`, which needs none."""
import json, os, struct, subprocess
import pytest
from conftest import BATON, ROOT

CUDA = os.environ.get('BATON_CUDA', os.path.join(ROOT, 'build', 'cuda', 'baton'))  # CI builds it and has no GPU
needs_cuda = pytest.mark.skipif(not os.path.exists(CUDA), reason='no build with CUDA')
no_driver = pytest.mark.skipif(os.path.exists('/dev/nvidiactl'), reason='a driver is here')


def run(program, *args, **env):
    r = subprocess.run([program, *args], capture_output=True, text=True, timeout=60, env={**os.environ, **env})
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


# A model of one layer, nothing but zeros.
def write_llama(folder, heads, kv_heads, head_dim=16, hidden=64, ffn=64, vocab=32):
    config = {'architectures': ['LlamaForCausalLM'], 'model_type': 'llama', 'hidden_size': hidden, 'intermediate_size': ffn,
              'num_hidden_layers': 1, 'num_attention_heads': heads, 'num_key_value_heads': kv_heads, 'head_dim': head_dim,
              'vocab_size': vocab, 'max_position_embeddings': 256, 'rms_norm_eps': 1e-5, 'rope_theta': 10000.0,
              'tie_word_embeddings': True, 'torch_dtype': 'bfloat16'}
    q, kv, layer = heads * head_dim, kv_heads * head_dim, 'model.layers.0.'
    shapes = {'model.embed_tokens.weight': [vocab, hidden], 'model.norm.weight': [hidden], layer + 'input_layernorm.weight': [hidden],
              layer + 'post_attention_layernorm.weight': [hidden], layer + 'self_attn.q_proj.weight': [q, hidden],
              layer + 'self_attn.k_proj.weight': [kv, hidden], layer + 'self_attn.v_proj.weight': [kv, hidden],
              layer + 'self_attn.o_proj.weight': [hidden, q], layer + 'mlp.gate_proj.weight': [ffn, hidden],
              layer + 'mlp.up_proj.weight': [ffn, hidden], layer + 'mlp.down_proj.weight': [hidden, ffn]}
    header, at = {}, 0
    for name, shape in shapes.items():
        size = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {'dtype': 'BF16', 'shape': shape, 'data_offsets': [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    folder.mkdir()
    (folder / 'config.json').write_text(json.dumps(config))
    (folder / 'model.safetensors').write_bytes(struct.pack('<Q', len(text)) + text + bytes(at))
    return str(folder)


@needs_cuda
def test_a_model_that_a_gpu_has_no_kernel_for_is_refused_before_it_is_loaded(tmp_path):
    many, most = write_llama(tmp_path / 'many', 34, 2), write_llama(tmp_path / 'most', 32, 2)
    gpu = ['--device', 'cuda:0', '--memory', '2G']
    assert plan(CUDA, many, '--memory', '2G')['fits'] and plan(CUDA, most, *gpu)['fits']
    code, out, err = run(CUDA, 'plan', many, *gpu)
    assert code == 2 and out == '' and 'up to 16 query heads that share a KV head' in last_line(err) and '17 of 16' in last_line(err)
    wide = write_llama(tmp_path / 'wide', 2, 2, ffn=65600)
    assert plan(CUDA, wide, '--memory', '2G')['fits']
    code, out, err = run(CUDA, 'plan', wide, *gpu)
    assert code == 2 and out == '' and 'up to 65536 columns: this model has one of 65600' in last_line(err)


@needs_cuda
@pytest.mark.parametrize('names', ['fewer', 'few,deco', 'wide, gemm', 'Prompt', 'few,,wide'])
def test_a_kernel_that_is_misspelt_is_not_left_out_in_silence(tiny, names):
    code, _, err = run(CUDA, 'run', tiny, '--prompt', 'x', '--device', 'cuda:0', BATON_CUDA_WITHOUT=names)
    assert code == 2 and 'expected some of few, wide, deep, gemm, decode, single, stream, meet, prompt, squad, not ' in last_line(err)


@needs_cuda
@pytest.mark.parametrize('capability', ['older', '8', '8,9', '7.5', '8.', '8.9a', '8.-1'])
def test_a_gpu_is_taken_for_an_older_one_only_by_a_compute_capability(tiny, capability):
    code, _, err = run(CUDA, 'run', tiny, '--prompt', 'x', '--device', 'cuda:0', BATON_CUDA_AS=capability)
    assert code == 2 and f"expected a compute capability from 8.0 on, as in 8.9, not '{capability}'" in last_line(err)


@needs_cuda
@pytest.mark.parametrize('seconds', ['long', '0', '-5', '10s', '1.5', '100000'])
def test_a_gpu_is_waited_for_only_whole_seconds(tiny, seconds):
    code, _, err = run(CUDA, 'run', tiny, '--prompt', 'x', '--device', 'cuda:0', BATON_CUDA_PATIENCE=seconds)
    assert code == 2 and f"BATON_CUDA_PATIENCE: expected seconds, 1 to 99999, not '{seconds}'" in last_line(err)


MIXED = """
cluster: {{name: mixed, secret: "0123456789abcdef0123456789abcdef"}}
model: {{path: {model}}}
routers: {{nodes: [{{name: r1, listen: "127.0.0.1:0"}}]}}
decode:
  nodes:
    - {{name: d1, link: "tcp://127.0.0.1:7100", transfer: "127.0.0.1:7200"}}
    - {{name: d2, link: "tcp://127.0.0.1:7101", transfer: "127.0.0.1:7201", device: "cuda:0", cuda: {{activations: {activations}}}}}
"""


@pytest.mark.parametrize('kind, activations, fits', [('bf16', 'auto', False), ('f16', 'auto', False), ('bf16', 'f32', True), ('q8_0', 'auto', True)])
def test_a_pool_rounds_16_bit_layers_in_one_way(tmp_path, kind, activations, fits):
    model, file = str(tmp_path / 'm.gguf'), tmp_path / 'c.yaml'
    assert run(BATON, 'synth', 'tiny', model, '--type', kind)[0] == 0
    file.write_text(MIXED.format(model=model, activations=activations))
    file.chmod(0o600)
    router = subprocess.Popen([BATON, 'router', '--config', str(file)], stderr=subprocess.PIPE, text=True)
    said = []
    try:
        for line in router.stderr:  # ends with the router
            said.append(line)
            if 'ROUTER-OPEN' in line:
                break
    finally:
        router.terminate()
        code = router.wait(20)
    assert fits == ('ROUTER-OPEN' in said[-1]), said
    if not fits:
        assert code == 2 and 'd1 (device: cpu) and d2 (device: cuda:0) are of one pool' in said[-1]


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
    assert p['host_pool'] == (p['blocks'] + 2) * p['block_bytes'] and plan(BATON, tiny)['host_pool'] == 0
    assert what_would_fit_fits(CUDA, tiny, '--device', 'cuda:1', '--memory', '400M', '--set', 'engine.max_sequences=512',
                               '--set', 'engine.chunk_tokens=8192', '--context', '200000', '--kv', 'f32')


@pytest.mark.parametrize('setting, words', [('cuda.activations=f16', "cuda.activations: expected auto or f32, not 'f16'"),
                                            ('kv.equalise=', "kv.equalise: expected on or off, not ''"),
                                            ('weights.smooth=Off', "weights.smooth: expected on or off, not 'Off'"),
                                            ('engine.hasty_weights=1', "engine.hasty_weights: expected false or true, not '1'"),
                                            ('cuda.activation=f32', "'cuda.activation' is no setting of this command")])
def test_a_setting_of_two_words_refuses_a_third(tiny, setting, words):
    code, _, err = run(BATON, 'run', tiny, '--prompt', 'x', '--set', setting)
    assert code == 2 and words in err


@pytest.mark.parametrize('setting', ['cuda.activations=auto', 'kv.equalise=on', 'weights.smooth=on', 'engine.hasty_weights=false'])
def test_a_setting_of_two_words_takes_its_default(tiny, setting):
    code, _, err = run(BATON, 'run', tiny, '--prompt', 'x', '--max-tokens', '1', '--set', setting)
    assert code == 0, err
