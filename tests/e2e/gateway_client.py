"""The gateway as anybody would use it: pynng's Pair0, protobuf, and proto/gateway.proto alone."""
import socket, struct, subprocess, sys, tempfile
import pynng
from conftest import ROOT, Server, free_port

_generated = tempfile.mkdtemp(prefix='baton-proto-')
subprocess.check_call([sys.executable, '-m', 'grpc_tools.protoc', '-I', ROOT, f'--python_out={_generated}', 'proto/gateway.proto'])
sys.path.insert(0, _generated)
from proto import gateway_pb2 as g  # noqa: E402


def serve(model, *options, scheme='tcp', **settings):
    port = free_port()
    s = Server(model, *options, gateway=f'{scheme}://127.0.0.1:{port}', **settings)
    s.gateway_port = port
    s.gateway = f'{scheme}://127.0.0.1:{port}'
    return s


class Failed(Exception):
    def __init__(self, status):
        super().__init__(f'{g.Code.Name(status.code)}: {status.message}')
        self.status, self.code = status, g.Code.Name(status.code).removeprefix('CODE_')


class Client:
    def __init__(self, url, auth='', **more):
        self.socket = pynng.Pair0(dial=url, recv_timeout=20000, send_timeout=20000, recv_max_size=0, **more)
        self.auth, self.last = auth, 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def send(self, method, body=None, **fields):
        self.last += 1
        request = g.Request(**{'id': self.last, 'method': method, 'auth': self.auth, **fields})
        if body is not None:
            request.body = body.SerializeToString()
        self.socket.send(request.SerializeToString())
        return request.id

    def receive(self):
        return g.Reply.FromString(self.socket.recv())

    def ask(self, method, body, kind, **fields):
        id = self.send(method, body, **fields)
        reply = self.receive()
        assert reply.id == id and reply.HasField('status'), reply
        if reply.status.code:
            raise Failed(reply.status)
        return kind.FromString(reply.body)

    def tokenize(self, **fields):
        return self.ask(g.METHOD_TOKENIZE, g.TokenizeRequest(**fields), g.TokenizeReply)

    def health(self):
        return g.State.Name(self.ask(g.METHOD_HEALTH, None, g.HealthReply).state)

    def generate(self, credits=0, timeout_ms=0, name='', **fields):
        return Stream(self, self.send(g.METHOD_GENERATE, g.GenerateRequest(**fields), credits=credits, timeout_ms=timeout_ms,
                                      name=name))

    def answer(self, **fields):
        return self.generate(**fields).read()


class Stream:
    """What has come of one call: of each answer its text, ids, log-probabilities and finish."""

    def __init__(self, client, id):
        self.client, self.id = client, id
        self.text, self.ids, self.logprobs, self.tops, self.finish, self.prompt = {}, {}, {}, {}, {}, {}
        self.name, self.usage, self.replies, self.over, self.degraded = '', None, 0, False, False

    def take(self, reply):
        assert reply.id == self.id and not self.over
        self.replies += 1
        assert not (self.name and reply.name)
        self.name = self.name or reply.name
        self.over = reply.HasField('status')
        if self.over and reply.status.code:
            raise Failed(reply.status)
        body = g.GenerateReply.FromString(reply.body)
        self.degraded |= body.degraded
        for c in body.choices:
            assert c.index not in self.finish, 'something after the finish'
            self.text[c.index] = self.text.get(c.index, '') + c.text
            self.ids.setdefault(c.index, []).extend(c.tokens.ids)
            self.logprobs.setdefault(c.index, []).extend(c.tokens.logprobs)
            self.tops.setdefault(c.index, []).extend(split(c.tokens))
            self.prompt.setdefault(c.index, []).extend(zip(c.prompt.ids, c.prompt.logprobs))
            if c.finish:
                self.finish[c.index] = g.Finish.Name(c.finish)
        assert body.HasField('usage') == self.over
        self.usage = body.usage if self.over else None

    def read(self):
        while not self.over:
            self.take(self.client.receive())
            if not self.over:
                self.client.send(g.METHOD_CREDIT, id=self.id, credits=1)
        return self


def split(tokens):
    at = 0
    for count in tokens.top_counts:
        yield list(zip(tokens.top_ids[at:at + count], tokens.top_logprobs[at:at + count]))
        at += count


class Raw:
    """The bytes themselves."""

    def __init__(self, port, greeting=bytes.fromhex('0053500000100000')):
        self.s = socket.create_connection(('127.0.0.1', port))
        self.s.settimeout(20)
        self.s.sendall(greeting)

    def send(self, message):
        self.s.sendall(struct.pack('>Q', len(message)) + message)

    def exactly(self, n):
        got = b''
        while len(got) < n:
            part = self.s.recv(min(n - len(got), 1 << 20))
            if not part:
                raise EOFError
            got += part
        return got

    def receive(self):
        return g.Reply.FromString(self.exactly(struct.unpack('>Q', self.exactly(8))[0]))

    def is_closed(self):
        try:
            self.s.settimeout(10)
            while self.s.recv(65536):
                pass
            return True
        except ConnectionResetError:
            return True
        except TimeoutError:
            return False
