"""Lists cut up while they arrive."""

import json
from contextlib import asynccontextmanager

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.kube.errors import ApiError, BadResponse
from tessera.kube.rest.client import Client
from tessera.kube.watch import listing
from tessera.kube.watch.listing import ListCutter, list_all
from tessera.kube.watch.table import NODES
from tessera.simulation.control_plane.store import StatusError, expired
from tests.kube.apiserver import MisbehavingApiServer, status
from tests.kube.clock import FakeClock

# texts that look like what is cut at, and objects that contain such places
texts = st.text() | st.sampled_from(['},{"metadata":', '"items":[', "]}", '"', "\\", "}]}"])
values = st.recursive(
    texts | st.integers() | st.none(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(texts, inner, max_size=3)
        | st.lists(st.fixed_dictionaries({"metadata": inner}), max_size=3)
    ),
    max_leaves=8,
)
objects = st.lists(
    st.fixed_dictionaries({"metadata": st.fixed_dictionaries({"name": texts}), "spec": values}), max_size=5
)


def cut(body: bytes, size: int) -> tuple[list[object], str]:
    taken: list[object] = []
    cutter = ListCutter(lambda raw: taken.append(json.loads(raw)))
    for start in range(0, len(body), size):
        cutter.feed(body[start : start + size])
    return taken, cutter.finish().version


@given(objects=objects, size=st.integers(1, 400), typed=st.booleans(), compact=st.booleans())
def test_objects_come_out_however_they_are_cut(objects, size, typed, compact):
    """Whatever a list holds and however it is cut on its way, its objects come out, each once, in order."""
    metadata = {"resourceVersion": "7"}
    head = {"kind": "NodeList", "apiVersion": "v1", "metadata": metadata, "items": objects}
    if not typed:  # as the API server prints what it has no type for: sorted
        head = {"apiVersion": "v1", "items": objects, "kind": "List", "metadata": metadata}
    body = json.dumps(head, separators=(",", ":") if compact else None).encode() + b"\n"
    assert cut(body, size) == (objects, "7")


def test_objects_come_early():
    """An object is handed out when the next one begins, not when the list is over."""
    taken: list[bytes] = []
    cutter = ListCutter(taken.append)
    cutter.feed(
        b'{"kind":"NodeList","metadata":{"resourceVersion":"7"},"items":[{"metadata":{"name":"a"}},{"meta'
    )
    assert taken == []
    cutter.feed(b'data":{"name":"b"}}')
    assert taken == [b'{"metadata":{"name":"a"}}']
    cutter.feed(b"]}")
    assert cutter.finish().version == "7"
    assert len(taken) == 2


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"[]",
        b'{"items":7}',
        b'{"metadata":{"resourceVersion":"\xff"},"items":[]}',
        b'{"metadata":{},"items":[{"metadata":{}},{"metadata":',
        b'{"metadata":{},"items":[{"metadata":{}}',
        b'{"metadata":{},"items":[' + b"[" * 100_000,
        b'{"items":' + b"[" * 100_000,
    ],
)
def test_no_list(body):
    """What is no list, or half of one, is refused in one sentence."""
    with pytest.raises(BadResponse, match="a list"):
        cut(body, 1000)


@pytest.mark.parametrize(
    "body", [b'{"metadata":{"resourceVersion":"7"},"items":%b}' % items for items in (b"null", b"[]")]
)
def test_empty(body):
    """An empty list is a list."""
    assert cut(body, 10) == ([], "7")


@pytest.mark.parametrize(
    ("head", "more", "message"),
    [
        (b'{"metadata":{},"items":[{"a":"', b"x", "an object of more than 16 MiB"),
        (b"", b" ", "a list of more than 64 MiB"),
    ],
)
def test_endless_objects_and_heads_are_given_up(head, more, message):
    """One endless object is given up, and so is an endless head."""
    with pytest.raises(BadResponse, match=message):
        cut(head + more * 70_000_000, 1_000_000)


def test_many_separators_are_not_quadratic():
    """An object full of places that look like its end is read in reasonable time."""
    inner = [{"metadata": {"n": number}} for number in range(300)]
    body = msgspec.json.encode(
        {"metadata": {"resourceVersion": "1"}, "items": [{"metadata": {}, "list": inner}] * 3}
    )
    assert cut(body, 4096) == ([{"metadata": {}, "list": inner}] * 3, "1")


def name_of(raw: bytes) -> str:
    return str(msgspec.json.decode(raw)["metadata"]["name"])


@asynccontextmanager
async def seven_nodes(monkeypatch):
    """A server with seven nodes, read three at a time."""
    monkeypatch.setattr(listing, "PAGE", 3)
    clock = FakeClock(auto=True)
    async with await MisbehavingApiServer().start() as server, Client(server.cluster, clock=clock) as client:
        for number in range(7):
            await client.create("/api/v1/nodes", {"metadata": {"name": f"n{number}"}})
        server.requests.clear()
        yield server, client


ALL = [f"n{number}" for number in range(7)]


async def test_pages(monkeypatch):
    """A list is read in pages that together are the whole list, each object once."""
    async with seven_nodes(monkeypatch) as (server, client):
        assert await list_all(client, NODES, name_of) == ALL
        assert len(server.requests) == 3


async def test_pages_that_expire_half_way(monkeypatch):
    """410 in the middle of a list: it is read again from its beginning, and nothing is there twice."""
    async with seven_nodes(monkeypatch) as (server, client):
        server.intercept = lambda request: status(expired()) if len(server.requests) == 3 else None
        assert await list_all(client, NODES, name_of) == ALL
        assert len(server.requests) == 4


async def test_pages_in_a_storm(monkeypatch):
    """429 in the middle of a list: after the time that the server asks for, the whole list is read again."""
    async with seven_nodes(monkeypatch) as (server, client):
        many = StatusError(429, "TooManyRequests", "too many requests")
        server.intercept = lambda request: status(many) if len(server.requests) == 2 else None
        assert await list_all(client, NODES, name_of) == ALL
        assert len(server.requests) == 5


async def test_a_refused_list(monkeypatch):
    """A refusal is the caller's."""
    async with seven_nodes(monkeypatch) as (server, client):
        server.intercept = lambda request: status(StatusError(403, "Forbidden", "no"))
        with pytest.raises(ApiError, match="403 Forbidden: no"):
            await list_all(client, NODES, name_of)
