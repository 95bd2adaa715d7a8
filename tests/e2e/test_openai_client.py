"""The real openai client, typed by what OpenAI sends."""
import os, subprocess, sys, openai, pytest
from conftest import DATA, SMOL, Server


@pytest.fixture(scope='module')
def client(server):
    with openai.OpenAI(base_url=server.url + '/v1', api_key='any', max_retries=0, timeout=60) as c:
        yield c


M = [{'role': 'user', 'content': 'Hello'}]


def test_chat_and_stream(client):
    model = client.models.list().data[0].id
    a = client.chat.completions.create(model=model, messages=M, max_tokens=10, temperature=0)
    s = list(client.chat.completions.create(model=model, messages=M, max_tokens=10, temperature=0, stream=True,
                                            stream_options={'include_usage': True}))
    assert ''.join(c.choices[0].delta.content or '' for c in s if c.choices) == a.choices[0].message.content
    assert s[-1].usage.completion_tokens == a.usage.completion_tokens
    assert a.usage.prompt_tokens_details.cached_tokens >= 0


def test_errors_become_the_client_s_exceptions(client):
    with pytest.raises(openai.NotFoundError) as e:
        client.chat.completions.create(model='nope', messages=M)
    assert e.value.code == 'model_not_found' and e.value.param == 'model'
    with pytest.raises(openai.BadRequestError) as e:
        client.chat.completions.create(model='tiny', messages=M, temperature=3)
    assert e.value.param == 'temperature'


def test_async_clients_in_parallel(server):
    import asyncio

    async def main():
        async with openai.AsyncOpenAI(base_url=server.url + '/v1', api_key='x', max_retries=0, timeout=60) as c:
            rs = await asyncio.gather(*(c.completions.create(model='tiny', prompt='x', max_tokens=20, seed=i % 4, temperature=1)
                                        for i in range(32)))
            return [r.choices[0].text for r in rs]
    texts = asyncio.run(main())
    assert all(texts[i] == texts[i % 4] for i in range(32))


@pytest.mark.skipif(SMOL is None or DATA is None, reason='no SmolLM2 or no ../shared')
def test_verify_script_passes_on_a_real_model():
    s = Server(SMOL, engine__context=2048)
    try:
        subprocess.check_call([sys.executable, os.path.join(os.path.dirname(DATA), 'verify', 'openai_chat.py'), str(s.port)])
        s.wait_idle()
    finally:
        s.stop()
