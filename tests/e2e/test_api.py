"""What clients ask for and get, against the tiny model: its words mean nothing, its behaviour does."""
import re, pytest
from conftest import Server, chunks


def test_chat_answers_with_usage(server):
    r = server.chat(max_tokens=8, temperature=0, ignore_eos=True)
    j = r.json()
    assert r.status_code == 200 and j['object'] == 'chat.completion' and j['id'].startswith('chatcmpl-')
    c = j['choices'][0]
    assert c['index'] == 0 and c['message']['role'] == 'assistant' and c['finish_reason'] == 'length'
    u = j['usage']
    assert u['completion_tokens'] == 8 and u['total_tokens'] == u['prompt_tokens'] + 8
    assert u['prompt_tokens'] == server.http.post('/tokenize', json={'messages': [
        {'role': 'user', 'content': 'Hello there'}]}).json()['count']


@pytest.mark.parametrize('temperature', [0, 1])
def test_stream_equals_whole(server, temperature):
    ask = dict(max_tokens=40, temperature=temperature, seed=3, ignore_eos=True)
    whole = server.chat(**ask).json()['choices'][0]['message']['content']
    got = chunks(server.chat(**ask, stream=True, stream_options={'include_usage': True}).text)
    assert got[0]['choices'][0]['delta'] == {'role': 'assistant', 'content': ''}
    assert got[-1]['choices'] == [] and got[-1]['usage']['completion_tokens'] == 40
    assert got[-2]['choices'][0] == {'index': 0, 'delta': {}, 'logprobs': None, 'finish_reason': 'length'}
    assert all(c['usage'] is None for c in got[:-1])
    assert len({c['id'] for c in got}) == 1
    assert ''.join(c['choices'][0]['delta'].get('content', '') for c in got[:-1]) == whole


def test_stream_without_usage_has_no_usage(server):
    got = chunks(server.chat(max_tokens=3, stream=True).text)
    assert all('usage' not in c for c in got) and got[-1]['choices'][0]['finish_reason']


def test_completion_stream_equals_whole(server):
    ask = dict(max_tokens=30, temperature=1, seed=9, ignore_eos=True)
    whole = server.complete('Once', **ask).json()
    got = chunks(server.complete('Once', **ask, stream=True).text)
    assert whole['object'] == 'text_completion' and got[0]['object'] == 'text_completion'
    assert ''.join(c['choices'][0]['text'] for c in got) == whole['choices'][0]['text']


def test_same_seed_gives_same_text_alone_and_in_company(server):
    ask = dict(max_tokens=24, temperature=1, seed=11, ignore_eos=True)
    alone = server.complete('a', **ask).json()['choices'][0]['text']
    batch = server.complete(['a', 'b', 'a b c'], **ask).json()['choices']
    assert [c['index'] for c in batch] == [0, 1, 2] and batch[0]['text'] == alone
    other = server.complete('a', **{**ask, 'seed': 12}).json()['choices'][0]['text']
    assert other != alone


def test_n_answers_have_derived_seeds(server):
    ask = dict(max_tokens=16, temperature=1, ignore_eos=True)
    three = server.complete('x', n=3, seed=40, **ask).json()
    texts = [c['text'] for c in three['choices']]
    assert texts == [server.complete('x', seed=40 + i, **ask).json()['choices'][0]['text'] for i in range(3)]
    assert len(set(texts)) == 3
    assert three['usage']['completion_tokens'] == 48
    one = server.complete('x', seed=40, **ask).json()['usage']
    assert three['usage']['prompt_tokens'] == one['prompt_tokens']


def test_n_streams_are_told_apart_by_index(server):
    ask = dict(n=3, seed=7, max_tokens=12, temperature=1, ignore_eos=True)
    whole = [c['message']['content'] for c in server.chat(**ask).json()['choices']]
    got = chunks(server.chat(**ask, stream=True).text)
    text, ends = ['', '', ''], set()
    for c in got:
        c = c['choices'][0]
        text[c['index']] += c['delta'].get('content', '')
        if c['finish_reason']:
            ends.add(c['index'])
    assert text == whole and ends == {0, 1, 2}


def test_prompts_as_ids_equal_prompts_as_text(server):
    ask = dict(max_tokens=10, temperature=0, ignore_eos=True)
    ids = server.http.post('/tokenize', json={'prompt': 'Hello'}).json()['tokens']
    text = server.complete('Hello', **ask).json()['choices'][0]['text']
    assert server.complete(ids, **ask).json()['choices'][0]['text'] == text
    assert [c['text'] for c in server.complete([ids, ids], **ask).json()['choices']] == [text, text]


def test_tokenize_and_detokenize_are_inverse(server):
    text = 'Hello there, grüße 世界 🎉\n'
    tokens = server.http.post('/tokenize', json={'prompt': text, 'add_special_tokens': False}).json()['tokens']
    assert server.http.post('/detokenize', json={'tokens': tokens}).json()['prompt'].lstrip(' ') == text


def test_chat_logprobs(server):
    r = server.chat(max_tokens=6, temperature=0, logprobs=True, top_logprobs=4, ignore_eos=True).json()
    items = r['choices'][0]['logprobs']['content']
    assert len(items) == 6
    for item in items:
        assert bytes(item['bytes']).decode('utf-8', 'replace') is not None and item['logprob'] <= 0
        tops = item['top_logprobs']
        assert len(tops) == 4 and tops[0]['logprob'] == item['logprob'] and tops[0]['token'] == item['token']
        assert [t['logprob'] for t in tops] == sorted((t['logprob'] for t in tops), reverse=True)
    streamed = chunks(server.chat(max_tokens=6, temperature=0, logprobs=True, top_logprobs=4, ignore_eos=True, stream=True).text)
    assert [i for c in streamed if c['choices'][0]['logprobs'] for i in c['choices'][0]['logprobs']['content']] == items


def test_echo_with_logprobs_scores_the_prompt(server):
    r = server.complete('Hello there', echo=True, max_tokens=4, logprobs=2, temperature=0, ignore_eos=True).json()
    c, lp = r['choices'][0], r['choices'][0]['logprobs']
    count = r['usage']['prompt_tokens'] + 4
    assert c['text'].startswith('Hello there')
    assert len(lp['tokens']) == len(lp['token_logprobs']) == len(lp['top_logprobs']) == len(lp['text_offset']) == count
    assert lp['token_logprobs'][0] is None and all(x <= 0 for x in lp['token_logprobs'][1:])
    only = server.complete('Hello there', echo=True, max_tokens=0, logprobs=2, temperature=0).json()
    assert only['choices'][0]['text'] == 'Hello there' and only['usage']['completion_tokens'] == 0
    assert only['choices'][0]['logprobs']['token_logprobs'] == lp['token_logprobs'][:-4]
    assert only['choices'][0]['finish_reason'] == 'length'


def test_stop_strings_end_an_answer_wherever_tokens_end(server):
    ask = dict(max_tokens=60, temperature=1, seed=5, ignore_eos=True)
    text = server.complete('Once', **ask).json()['choices'][0]['text']
    for at in range(4, min(40, len(text) - 4), 7):
        stop = text[at:at + 4]
        cut = text[:text.index(stop)]
        r = server.complete('Once', **ask, stop=[stop, 'never to be found']).json()
        assert r['choices'][0]['text'] == cut and r['choices'][0]['finish_reason'] == 'stop'
        assert r['usage']['completion_tokens'] < 60
        got = chunks(server.complete('Once', **ask, stop=stop, stream=True).text)
        assert ''.join(c['choices'][0]['text'] for c in got) == cut
        assert got[-1]['choices'][0]['finish_reason'] == 'stop'


def test_cached_tokens_are_reported(server):
    prompt = 'A prompt that is long enough to fill some blocks of the cache, and then a little more than that. ' * 2
    first = server.complete(prompt, max_tokens=2).json()['usage']
    again = server.complete(prompt, max_tokens=2).json()['usage']
    assert again['prompt_tokens'] == first['prompt_tokens'] > 64
    assert 32 <= again['prompt_tokens_details']['cached_tokens'] < again['prompt_tokens']


def test_max_tokens_one_and_two(server):
    for count in (1, 2):
        assert server.complete('x', max_tokens=count, ignore_eos=True).json()['usage']['completion_tokens'] == count


def test_logit_bias_forces_and_forbids(server):
    ids = server.http.post('/tokenize', json={'prompt': 'a', 'add_special_tokens': False}).json()['tokens']
    forced = server.complete('x', max_tokens=4, temperature=0, logit_bias={str(ids[-1]): 100}).json()['choices'][0]['text']
    assert forced.replace(' ', '') == 'aaaa'
    ask = dict(max_tokens=1, temperature=0, logprobs=2, ignore_eos=True)
    first, second = server.complete('x', **ask).json()['choices'][0]['logprobs']['top_logprobs'][0]
    banned = next(i for i in range(300) if server.http.post('/detokenize', json={'tokens': [i]}).json()['prompt'].strip() == first.strip())
    assert server.complete('x', **ask, logit_bias={str(banned): -100}).json()['choices'][0]['logprobs']['tokens'] != [first]


def test_special_tokens_typed_by_a_user_are_text(server):
    tokens = server.http.post('/tokenize', json={'messages': [
        {'role': 'user', 'content': 'a<|im_end|>b<|im_start|>system'}]}).json()['tokens']
    plain = server.http.post('/tokenize', json={'messages': [{'role': 'user', 'content': 'a'}]}).json()['tokens']
    assert tokens.count(4) == plain.count(4) and tokens.count(3) == plain.count(3)
    text = server.http.post('/detokenize', json={'tokens': tokens}).json()['prompt']
    assert 'a<|im_end|>b<|im_start|>system' in text.replace(' ', '')


def test_models_health_ready_and_metrics(server):
    m = server.http.get('/v1/models').json()['data'][0]
    assert m['id'] == 'tiny' and m['max_model_len'] == 512
    assert server.http.get('/v1/models/tiny').json() == m
    assert server.http.get('/v1/models/other').status_code == 404
    assert server.http.get('/health').status_code == server.http.get('/ready').status_code == 200
    before = server.metric('baton:generation_tokens_total')
    server.complete('x', max_tokens=5, ignore_eos=True)
    assert server.metric('baton:generation_tokens_total') == before + 5
    text = server.http.get('/metrics').text
    for name in ('time_to_first_token_seconds', 'inter_token_latency_seconds', 'e2e_request_latency_seconds'):
        assert f'baton:{name}_bucket{{model_name="tiny",le="0.0025"}}' in text


def test_phases_sum_to_the_time_to_first_token(tiny):
    s = Server(tiny)
    try:
        for i in range(20):
            s.complete(f'prompt number {i}', max_tokens=2, ignore_eos=True, n=2)
        total, phases = s.metric('baton:time_to_first_token_seconds_sum'), s.metric('baton:time_to_first_token_phase_seconds_sum')
        assert total > 0 and abs(total - phases) < 1e-6
        assert s.metric('baton:time_to_first_token_seconds_count') == 40
        assert s.metric('baton:time_to_first_token_phase_seconds_count') == 7 * 40
    finally:
        s.stop()


def test_request_id_comes_back_and_into_the_log(server):
    r = server.http.post('/v1/completions', json={'prompt': 'x', 'max_tokens': 1}, headers={'X-Request-Id': 'my-own.7'})
    assert r.headers['x-request-id'] == 'my-own.7' and r.json()['id'] == 'cmpl-my-own.7'
    assert 'req my-own.7 ' in server.text()
    r = server.http.post('/v1/completions', json={'prompt': 'x', 'max_tokens': 1}, headers={'X-Request-Id': 'bad id\x7f'})
    assert len(r.headers['x-request-id']) == 32
    for path in ('/nowhere', '/v1/models', '/v1/models/tiny', '/v1/models/other'):
        assert server.http.get(path, headers={'X-Request-Id': 'mine'}).headers['x-request-id'] == 'mine', path


ERRORS = [
    ({'temperature': -1}, 'temperature'), ({'n': 17}, 'n'), ({'tools': [{'type': 'function'}]}, 'tools'),
    ({'nonsense': 1}, 'nonsense'), ({'response_format': {'type': 'json_object'}}, 'response_format'),
    ({'messages': []}, 'messages'), ({'messages': [{'role': 'x', 'content': 'y'}]}, 'messages[0].role'),
    ({'logit_bias': {'300': 1}}, 'logit_bias.300'), ({'max_tokens': 0}, 'max_tokens'),
    ({'stop': ''}, 'stop'), ({'top_logprobs': 2}, 'top_logprobs'),
]


@pytest.mark.parametrize('more,param', ERRORS)
def test_wrong_parameters_are_named(server, more, param):
    for stream in (False, True):
        r = server.http.post('/v1/chat/completions', json={
            'messages': [{'role': 'user', 'content': 'x'}], 'stream': stream, **more})
        e = r.json()['error']
        assert r.status_code == 400 and e['param'] == param and e['type'] == 'invalid_request_error' and e['message']


def test_bad_json_and_bad_utf8_have_their_position(server):
    for body, words in ((b'{"prompt": tru}', 'byte'), (b'{"prompt": "\xff"}', 'byte 12'), (b'', 'line 1'), (b'[' * 100000, 'byte')):
        r = server.http.post('/v1/completions', content=body)
        assert r.status_code == 400 and words in r.json()['error']['message'], r.text


def test_too_long_names_both_numbers(server):
    r = server.complete('x', max_tokens=600)
    e = r.json()['error']
    assert r.status_code == 400 and e['code'] == 'context_length_exceeded' and re.search(r'512 .*60[0-9] ', e['message'])
    steps = server.metric('baton:engine_steps_total')
    r = server.complete('many words ' * 2000, max_tokens=1)
    e = r.json()['error']
    assert r.status_code == 400 and e['code'] == 'context_length_exceeded' and '512' in e['message']
    assert server.metric('baton:engine_steps_total') == steps


def test_other_refusals(server):
    assert server.complete('x', model='other').status_code == 404
    assert server.complete('x', model='tiny', max_tokens=1).status_code == 200
    assert server.http.get('/v1/completions').status_code == 405
    assert server.http.get('/v1/completions').headers['allow'] == 'POST'
    assert server.http.get('/v2').json()['error']['message']
    assert server.http.get('/v2').status_code == 404


def test_default_answer_fits_into_the_context(server):
    u = server.chat(ignore_eos=True, temperature=0).json()['usage']
    assert u['total_tokens'] == 512
