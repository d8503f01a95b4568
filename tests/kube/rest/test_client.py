"""Calls to an API server: verbs, errors, read_timeout, connections."""

import asyncio
import contextlib

import msgspec
import pytest

from tessera.kube.access.cluster import Cluster, Credential, ServerAddress
from tessera.kube.errors import ApiError, BadResponse, Unreachable, error_of
from tessera.kube.rest.client import Client, PatchType, path_of
from tessera.serving.http_messages import HangUp
from tessera.simulation.control_plane.store import StatusError
from tests.kube.apiserver import MisbehavingApiServer, status
from tests.kube.clock import FakeClock

SECRETS = path_of("v1", "secrets", namespace="gpu-webhook")
SECRET = path_of("v1", "secrets", namespace="gpu-webhook", name="ca")


def decode(body: bytes):
    return msgspec.json.decode(body)


async def test_verbs():
    """An object is made, read, changed in each way there is, and removed."""
    async with await MisbehavingApiServer().start() as server, Client(server.cluster) as client:
        made = decode(await client.create(SECRETS, {"metadata": {"name": "ca"}, "data": {"a": "MQ=="}}))
        assert made["kind"] == "Secret"
        assert made["metadata"]["namespace"] == "gpu-webhook"
        made["data"]["b"] = "Mg=="
        changed = decode(await client.update(SECRET, made))
        assert changed["metadata"]["resourceVersion"] != made["metadata"]["resourceVersion"]
        await client.patch(SECRET, {"data": {"a": None}})
        await client.patch(SECRET, [{"op": "add", "path": "/data/x~1y", "value": "Mw=="}], PatchType.JSON)
        await client.patch(SECRET, {"data": {"z": "NA=="}}, PatchType.STRATEGIC)
        found = decode(await client.get(SECRET))
        assert found["data"] == {"b": "Mg==", "x/y": "Mw==", "z": "NA=="}
        await client.delete(SECRET)
        with pytest.raises(ApiError) as caught:
            await client.get(SECRET)
        assert caught.value.is_not_found
        assert str(caught.value) == 'the API server answered 404 NotFound: secrets "ca" not found'


async def test_what_is_not_there_is_not_found():
    """That it is not there is no error; that it may not be read is one."""
    async with await MisbehavingApiServer().start() as server, Client(server.cluster) as client:
        assert await client.find(SECRET) is None
        await client.create(SECRETS, {"metadata": {"name": "ca"}})
        assert await client.find(SECRET) == await client.get(SECRET)
        server.intercept = lambda _: status(StatusError(403, "Forbidden", "no right"))
        with pytest.raises(ApiError, match="403 Forbidden"):
            await client.find(SECRET)


async def test_conflicts():
    """The first to create wins, and an update of an old version fails with a conflict."""
    async with await MisbehavingApiServer().start() as server, Client(server.cluster) as client:
        made = decode(await client.create(SECRETS, {"metadata": {"name": "ca"}}))
        with pytest.raises(ApiError) as caught:
            await client.create(SECRETS, {"metadata": {"name": "ca"}})
        assert (caught.value.code, caught.value.reason) == (409, "AlreadyExists")
        await client.update(SECRET, {**made, "data": {"a": ""}})
        with pytest.raises(ApiError) as caught:
            await client.update(SECRET, {**made, "data": {"b": ""}})
        assert (caught.value.code, caught.value.reason) == (409, "Conflict")
        assert caught.value.is_conflict


async def test_webhook_configuration_patch():
    """The CA bundle of one webhook is patched by its name, the others stay."""
    async with await MisbehavingApiServer().start() as server, Client(server.cluster) as client:
        collection = path_of("admissionregistration.k8s.io/v1", "mutatingwebhookconfigurations")
        one = path_of("admissionregistration.k8s.io/v1", "mutatingwebhookconfigurations", name="x")
        hooks = [{"name": "a.example.com", "clientConfig": {"url": "u"}}, {"name": "b.example.com"}]
        await client.create(collection, {"metadata": {"name": "x"}, "webhooks": hooks})
        patch = {"webhooks": [{"name": "a.example.com", "clientConfig": {"caBundle": "Q0E="}}]}
        patched = decode(await client.patch(one, patch, PatchType.STRATEGIC))
        assert patched["webhooks"] == [
            {"name": "a.example.com", "clientConfig": {"url": "u", "caBundle": "Q0E="}},
            {"name": "b.example.com"},
        ]


async def test_watch_lines():
    """A watch gives complete lines as bytes, also when they come in small pieces."""
    async with await MisbehavingApiServer().start() as server, Client(server.cluster) as client:
        server.piece_bytes = 7
        async with client.watch("/api/v1/nodes") as lines:
            for name in ("a", "b"):
                await client.create("/api/v1/nodes", {"metadata": {"name": name}})
            seen: list[str] = []
            while len(seen) < 2:
                seen += [decode(line)["object"]["metadata"]["name"] for line in await lines.batch()]
        assert seen == ["a", "b"]


async def test_kept_connection():
    """Short calls in a row share one connection; one that the server closed meanwhile is replaced unnoticed."""
    async with await MisbehavingApiServer().start() as server, Client(server.cluster) as client:
        for _ in range(3):
            await client.get("/version")
        assert server.connections == 1
        await server.restart()
        assert decode(await client.get("/version"))["major"] == "1"


async def test_a_lost_create_is_not_repeated():
    """A POST whose answer never came is reported, never sent twice; a GET is sent again."""
    async with await MisbehavingApiServer().start() as server, Client(server.cluster) as client:
        await client.get("/version")
        posts = 0

        def hang_up(request):
            nonlocal posts
            posts += request.method == "POST"
            raise HangUp

        server.intercept = hang_up
        with pytest.raises(Unreachable) as caught:
            await client.create(SECRETS, {"metadata": {"name": "ca"}})
        assert caught.value.kind == "closed"
        assert posts == 1


async def test_patience_when_asked_for():
    """A 429 is waited out as long as Retry-After says, a few times, and then given up."""
    clock = FakeClock(auto=True)
    async with await MisbehavingApiServer().start() as server, Client(server.cluster, clock=clock) as client:
        server.storm, server.retry_after = 3, 7
        await client.get("/version")
        assert clock.slept == [7, 7, 7]
        server.storm, server.retry_after = 100, None
        with pytest.raises(ApiError, match="429 TooManyRequests"):
            await client.get("/version")
        assert clock.slept[3:] == [1, 1, 1, 1, 1]


class Turnstile:
    """Credentials that count how often they were asked for new ones."""

    def __init__(self, *tokens: str) -> None:
        self.tokens = list(tokens)
        self.renewals = 0

    async def current(self) -> Credential:
        return Credential(token=self.tokens[0])

    async def renewed(self, refused: Credential) -> Credential | None:
        self.renewals += 1
        if len(self.tokens) > 1:
            self.tokens.pop(0)
            return Credential(token=self.tokens[0])
        return None


async def test_401_renews_once():
    """An expired token is renewed once and the call repeated; a second 401 is the caller's."""
    async with await MisbehavingApiServer().start() as server:
        server.tokens = {"new"}
        endpoint = ServerAddress.parse(server.url, where="test")
        async with Client(Cluster(endpoint, credentials=Turnstile("old", "new"))) as client:
            await client.get("/version")
        wrong = Turnstile("old", "older", "oldest")
        async with Client(Cluster(endpoint, credentials=wrong)) as client:
            with pytest.raises(ApiError, match="401 Unauthorized"):
                await client.get("/version")
        assert wrong.renewals == 1


async def test_refused_connection():
    """A server that is not there is one sentence and a kind."""
    async with await MisbehavingApiServer().start() as server:
        cluster = server.cluster
    async with Client(cluster) as client:
        with pytest.raises(Unreachable, match=r"^127\.0\.0\.1:\d+ refused the connection$") as caught:
            await client.get("/version")
        assert caught.value.kind == "refused"


async def test_slow_server():
    """An answer that does not come in time is given up."""
    async with await MisbehavingApiServer().start() as server:
        server.seconds_per_answer = 30
        async with Client(server.cluster, answer_timeout=0.05) as client:
            with pytest.raises(Unreachable, match=r"did not answer within 0\.05 s") as caught:
                await client.get("/version")
            assert caught.value.kind == "timeout"


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n", BadResponse, "does not speak HTTP/1.1"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000, BadResponse, "more than 64 KiB of headers"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n123", Unreachable, "in the middle of an answer"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", Unreachable, "in the middle"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 2000\r\n\r\n" + b"x" * 2000,
            BadResponse,
            "a body of more than",
        ),
        (
            b"HTTP/1.1 502 Bad\r\nContent-Length: 17\r\n\r\n<h1>\nNo way\n</h1>",
            ApiError,
            "502: <h1> No way </h1>",
        ),
        (b"HTTP/1.1 302 F\r\nContent-Length: 0\r\n\r\n", ApiError, "302: no explanation"),
    ],
)
async def test_bad_answers(answer, error, message):
    """Whatever answers in place of an API server, the error is one sentence."""
    async with raw_server(answer) as cluster, Client(cluster) as client:
        with pytest.raises(error, match=message):
            async with client.stream("GET", "/") as response:
                await response.read_all(1000)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhelloHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil",
    ],
)
async def test_bodies(answer):
    """A body is read by its length, in chunks or to the end; what follows it is no answer to anything."""
    async with raw_server(answer) as cluster, Client(cluster) as client:
        assert await client.get("/") == b"hello"
        assert await client.get("/") == b"hello"


@pytest.mark.parametrize(
    ("head", "seconds"),
    [
        (b"Date: Sun, 15 Nov 2026 17:22:17 GMT\r\n", 1794763337.0),
        (b"Date: yesterday\r\n", None),
        (b"", None),
    ],
)
async def test_server_date(head, seconds):
    """The API server's clock is handed on as it was said last, with good answers and bad ones; or it is not known."""
    for line in (b"200 OK", b"403 Forbidden"):
        answer = b"HTTP/1.1 " + line + b"\r\n" + head + b"Content-Length: 0\r\n\r\n"
        async with raw_server(answer) as cluster, Client(cluster) as client:
            assert client.server_date is None
            with contextlib.suppress(ApiError):
                await client.get("/")
            assert client.server_date == seconds


async def test_clock_offset():
    """The API server's clock beside ours as it is now: time that passes changes nothing, a clock that jumps shows at once, and a slow answer proves nothing."""
    answer = b"HTTP/1.1 200 OK\r\nDate: Sun, 15 Nov 2026 17:22:17 GMT\r\nContent-Length: 0\r\n\r\n"
    clock = FakeClock(wall=1794763337.0)
    async with raw_server(answer) as cluster, Client(cluster, clock=clock) as client:
        assert client.clock_offset == 0.0
        await client.get("/")
        assert client.clock_offset == 0.0
        clock.time += 500.0
        assert client.clock_offset == 0.0
        clock.offset += 7200.0
        assert client.clock_offset == -7200.0
        clock.offset -= 10000.0
        assert client.clock_offset == 2800.0


class raw_server:  # noqa: N801 # used as a function
    """A server that says one thing to every client, and closes."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer

    async def __aenter__(self) -> Cluster:
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        port = self.server.sockets[0].getsockname()[1]
        return Cluster(ServerAddress("http", "127.0.0.1", port))

    async def serve(self, reader, writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(self.answer)
        await writer.drain()
        writer.close()

    async def __aexit__(self, *_) -> None:
        self.server.close()


@pytest.mark.parametrize(
    ("body", "retry_after", "expired", "too_large", "wait"),
    [
        (b'{"kind":"Status","code":410,"reason":"Expired","message":"old"}', None, True, False, None),
        (b'{"kind":"Status","code":504,"reason":"Timeout","message":"Too large resource version: 9"}', None, False, True, None),
        (b'{"kind":"Status","code":504,"details":{"causes":[{"reason":"ResourceVersionTooLarge"}]}}', None, False, True, None),
        (b'{"kind":"Status","code":429,"details":{"retryAfterSeconds":4}}', None, False, False, 4),
        (b'{"kind":"Status","code":429}', "9", False, False, 9),
        (b'{"kind":"Status","code":503}', "2", False, False, 2),
        (b'{"kind":"Status","code":503}', "Wed, 21 Oct 2015 07:28:00 GMT", False, False, 1),
    ],
)  # fmt: skip
def test_errors(body, retry_after, expired, too_large, wait):
    """A Status says what can be done about it."""
    code = msgspec.json.decode(body)["code"]
    error = error_of(code, body, retry_after)
    assert (error.is_expired, error.is_too_large_version, error.retry_after) == (expired, too_large, wait)
    assert error.kind == f"http_{code}"


def test_paths():
    """A name stays a name, whatever is in it."""
    assert path_of("v1", "nodes", name="a/../b") == "/api/v1/nodes/a%2F..%2Fb"
    assert path_of("apps/v1", "deployments", namespace="x") == "/apis/apps/v1/namespaces/x/deployments"
    assert path_of("v1", "pods", namespace="x", name="y", subresource="status").endswith("/pods/y/status")
