"""The page's server: what it hands out, to whom, and what it refuses."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest

from tessera.core.errors import InvalidInput, TesseraError
from tessera.dashboard.board import Board
from tessera.dashboard.history import Admission
from tessera.dashboard.server import HOST, Page
from tessera.serving.address import Address
from tests.dashboard.objects import node

DEADLINE = 10.0
MODULES = (
    "app",
    "autopilot",
    "capacity",
    "demand",
    "dom",
    "filters",
    "heat",
    "lists",
    "miglayouts",
    "mosaic",
    "nodes",
    "pages",
    "try",
    "why",
)


async def explain(text):
    if "bad" in text:
        raise InvalidInput("line 1: this is bad")
    return f"explained: {text}"


async def why(namespace, pod):
    if pod == "gone":
        raise TesseraError("no pod gone")
    return f"{namespace}/{pod} waits"


@asynccontextmanager
async def running(*names):
    board = Board("a test", all_admissions=True)
    page = Page(board, explain, names, why)
    url = await page.start(Address(HOST, 0))
    sending = asyncio.create_task(page.run())
    try:
        yield board, int(url.rstrip("/").rpartition(":")[2])
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        await page.stop()


async def ask(port, request):
    """Send bytes; status, headers and body of the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(DEADLINE):
            writer.write(request)
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            headers = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if line)
            return int(head.split()[1]), headers, await reader.readexactly(int(headers["Content-Length"]))
    finally:
        writer.close()


def get(path, host="127.0.0.1", version="1.1", **more):
    extra = "".join(f"{name}: {value}\r\n" for name, value in more.items())
    return f"GET {path} HTTP/{version}\r\nHost: {host}\r\n{extra}\r\n".encode()


def asking(query, **more):
    extra = "".join(f"{name}: {value}\r\n" for name, value in more.items())
    return f"POST /why?{query} HTTP/1.1\r\nHost: localhost:1\r\nContent-Length: 0\r\n{extra}\r\n".encode()


def post(body, kind="application/yaml", host="localhost:1", **more):
    extra = "".join(f"{name}: {value}\r\n" for name, value in more.items())
    head = f"POST /explain HTTP/1.1\r\nHost: {host}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{extra}\r\n"
    return head.encode() + body


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "text/html"),
        *((f"/{name}.js", "text/javascript") for name in MODULES),
        ("/style.css", "text/css"),
        ("/icon.svg", "image/svg+xml"),
    ],
)
async def test_files(path, kind):
    """The page and all it needs; nothing of it names another server, and nothing else may be loaded."""
    async with running() as (_, port):
        status, headers, body = await ask(port, get(path))
    assert status == 200
    assert headers["Content-Type"].startswith(kind)
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'self';")
    assert "unsafe" not in policy
    assert headers["X-Content-Type-Options"] == "nosniff"
    without_names = body.replace(b"http://www.w3.org/", b"")  # the names of SVG's elements
    assert b"http://" not in without_names
    assert b"https://" not in without_names
    assert b"innerHTML" not in body


@pytest.mark.parametrize(
    ("request_", "status", "words"),
    [
        (get("/nope"), 404, "nothing here"),
        (get("/../../etc/passwd"), 404, "nothing here"),
        (get("/", host="evil.example"), 403, "for this machine"),
        (get("/", host="127.0.0.1.evil.example:80"), 403, "for this machine"),
        (get("/", host="["), 403, "for this machine"),
        (get("/state", host="localhost:8765"), 200, "about"),
        (get("/state", host="[::1]:8765"), 200, "about"),
        (get("/state", Origin="http://evil.example"), 403, "asked by another page"),
        (get("/state", Origin="http://["), 403, "asked by another page"),
        (b"DELETE / HTTP/1.1\r\nHost: localhost\r\n\r\n", 405, "only GET"),
        (b"nonsense\r\n\r\n", 400, "not HTTP/1.1"),
        (get("/", **{"X-Long": "x" * 200_000}), 431, "too large"),
        (get("/explain"), 405, "POST a pod"),
        (post(b"a: 1"), 200, "explained: a: 1"),
        (get("/metrics"), 200, "# TYPE tessera_namespace_watched_seconds_total counter"),
        (get("/why?namespace=n&pod=p"), 405, "POST here"),
        (asking("namespace=n&pod=p"), 200, "n/p waits"),
        (asking("namespace=n&pod=gone"), 502, "no pod gone"),
        (asking("namespace=n"), 400, "name the pod"),
        (asking("namespace=n&pod=p", Origin="http://evil.example"), 403, "asked by another page"),
        (post(b"bad"), 400, "line 1: this is bad"),
        (post(b"\xff"), 400, "no UTF-8"),
        (post(b"a: 1", kind="text/plain"), 415, "application/yaml"),
        (post(b"a: 1", Origin="http://localhost:1"), 200, "explained"),
        (post(b"a: 1", Origin="http://localhost:2"), 403, "asked by another page"),
        (post(b"x" * 300_000), 413, "more than 256 KiB"),
    ],
)
async def test_answers(request_, status, words):
    """What does not come from this machine's own page is refused; what is wrong is said in a sentence."""
    async with running() as (_, port):
        answered, _, body = await ask(port, request_)
        assert (answered, words in body.decode()) == (status, True), body[:200]
        assert (await ask(port, get("/state")))[0] == 200, "the next one is served"


async def test_names_that_are_allowed():
    """Behind a proxy the page has another name; it answers to that one, and to no other."""
    async with running("GPUs.example.com") as (_, port):
        for host, status in (
            ("gpus.example.com", 200),
            ("gpus.example.com:8443", 200),
            ("127.0.0.1", 200),
            ("example.com", 403),
        ):
            assert (await ask(port, get("/state", host=host)))[0] == status, host
        same = {"Origin": "https://gpus.example.com"}
        assert (await ask(port, get("/state", host="gpus.example.com", **same)))[0] == 200
        assert (await ask(port, get("/state", host="127.0.0.1", **same)))[0] == 403


async def test_mosaics_are_sent_to_those_who_ask():
    """The cards of the nodes that a browser names; a node that is not there is left out."""
    async with running() as (board, port):
        for name in ("a", "b"):
            board.put_node(node(name, "1g.10gb=7"))
        status, _, body = await ask(port, get("/mosaics?nodes=b%2Cgone"))
        found = json.loads(body)
        assert (status, list(found)) == (200, ["b"])
        assert [tile["what"] for tile in found["b"]["cards"][0]["tiles"]] == ["1g.10gb"] * 7
        assert json.loads((await ask(port, get("/mosaics")))[2]) == {}


async def read_event(reader):
    async with asyncio.timeout(DEADLINE):
        text = (await reader.readuntil(b"\n\n")).decode()
    kind, data = text.strip().split("\n")
    return kind.removeprefix("event: "), json.loads(data.removeprefix("data: "))


async def test_the_stream():
    """Everything at first, then each change as it happens; the state is the same for a client that comes later."""
    async with running() as (board, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(get("/events", version="1.0"))
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"Content-Type: text/event-stream" in head
        kind, first = await read_event(reader)
        assert (kind, first["gone"]) == ("all", [])
        board.put_node(node("n", "1g.10gb=7"))
        board.admitted(Admission("now", "ml", "<b>\n", "rejected"))
        kind, change = await read_event(reader)
        assert (kind, sorted(change["set"])) == ("change", ["admissions", "node/n", "totals"])
        assert change["set"]["admissions"][0]["pod"] == "<b>\n"
        board.remove_node("n")
        _, change = await read_event(reader)
        assert change["gone"] == ["node/n"]
        _, _, state = await ask(port, get("/state"))
        expected = {**first["set"], "admissions": json.loads(state)["admissions"], "totals": []}
        assert json.loads(state) == expected
        writer.close()


async def test_many_listeners():
    """Every listener hears every change, whenever it came."""
    async with running() as (board, port):
        readers = []
        for number in range(3):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(get("/events", version="1.0"))
            await reader.readuntil(b"\r\n\r\n")
            assert (await read_event(reader))[0] == "all"
            readers.append((reader, writer))
            board.put_node(node(f"n{number}", "1g.10gb=7"))
            for each, _ in readers:
                assert f"node/n{number}" in (await read_event(each))[1]["set"]
        for _, writer in readers:
            writer.close()


async def test_a_port_in_use():
    """One sentence that says what to do."""
    async with running() as (board, port):
        with pytest.raises(
            TesseraError, match=f"^cannot listen on 127.0.0.1:{port}: something else listens there; "
        ):
            await Page(board, explain).start(Address(HOST, port))
