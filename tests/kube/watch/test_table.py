"""A table, filled by listing once and from files."""

from dataclasses import replace

import msgspec
import pytest

from tessera.core.errors import InvalidInput
from tessera.kube.errors import ApiError
from tessera.kube.object_files import objects_in_documents
from tessera.kube.rest.client import Client
from tessera.kube.watch.file_feed import take_files
from tessera.kube.watch.listing import list_once
from tessera.kube.watch.table import NAMESPACES, NODES, Key, Table, TableEntry, entry_by_key, entry_by_name
from tessera.simulation.control_plane import kinds
from tessera.simulation.control_plane.store import StatusError, expired
from tests.kube.apiserver import MisbehavingApiServer, status

FORBIDDEN = StatusError(403, "Forbidden", "nodes is forbidden")
ABSENT = StatusError(404, "NotFound", "the server could not find the requested resource")


def name_in(raw: bytes) -> str | None:
    name = str(msgspec.json.decode(raw)["metadata"]["name"])
    if name.startswith("odd"):
        raise InvalidInput("it is odd")
    return None if name.startswith("nothing") else name


class Log:
    """A consumer that remembers what it was given, in its order."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def streamed(self, title: str, **parts) -> TableEntry[str]:
        """An entry that takes objects as they come."""
        return TableEntry(
            name_in,
            lambda name: self.calls.append(f"{title} {name}"),
            begin=lambda: self.calls.append(f"{title} begin"),
            **parts,
        )

    def at_once(self, title: str) -> TableEntry[str]:
        """An entry that takes a whole list at once."""
        entry = self.streamed(title)
        return replace(entry, replace=lambda names: self.calls.append(f"{title} are {' '.join(names)}"))


def node(name: str, **labels: str):
    return {"kind": "Node", "metadata": {"name": name, "labels": labels}}


def space(name: str):
    return {"kind": "Namespace", "metadata": {"name": name}}


@pytest.mark.parametrize("with_namespace", [True, False])
def test_a_whole_list_replaces_what_is_known(with_namespace):
    """What is not in it is removed first, then all of it is put; a single object is removed by the key that the consumer has."""
    calls: list[object] = []

    def put(name: str) -> None:
        calls.append(("put", name))

    if with_namespace:
        entry = entry_by_key(
            name_in,
            put,
            calls.append,
            key=lambda name: Key("x", name),
            known=lambda: [Key("x", "a"), Key("x", "b")],
        )
    else:
        entry = entry_by_name(name_in, put, calls.append, key=str, known=lambda: ["a", "b"])
    entry.take_all(["b", "c"])
    entry.remove(Key("x", "c"))
    gone = [Key("x", "a"), Key("x", "c")] if with_namespace else ["a", "c"]
    assert calls == [gone[0], ("put", "b"), ("put", "c"), gone[1]]


def test_changes_are_reported():
    """A whole list is reported, and each object that is put or removed, unless the consumer says that nothing has changed."""
    known: set[str] = set()
    reports: list[None] = []

    def put(name: str) -> bool:
        before = len(known)
        known.add(name)
        return len(known) > before

    def remove(name: str) -> bool:
        before = len(known)
        known.discard(name)
        return len(known) < before

    entry = entry_by_name(name_in, put, remove, key=str, known=lambda: [*known]).reporting(
        lambda: reports.append(None)
    )
    counts = []
    for call, given in [
        (entry.take_all, []),
        (entry.put, "a"),
        (entry.put, "a"),
        (entry.remove, Key("", "b")),
        (entry.remove, Key("", "a")),
    ]:
        call(given)  # type: ignore[operator]
        counts.append(len(reports))
    assert counts == [1, 2, 2, 2, 3]


@pytest.mark.parametrize("takes_lists", [False, True])
def test_large_objects_of_a_namespace_are_shrunk_as_they_are_read(takes_lists):
    """The rest of a namespace's large objects is never whole in memory; what goes makes room again, and so does a new list."""
    known: dict[Key, bytes] = {}

    def key(text: bytes) -> Key:
        return Key("team", text[:4].decode())

    def replace_known(texts: list[bytes]) -> None:
        known.clear()
        known.update({key(text): text for text in texts})

    entry = TableEntry(
        bytes,
        lambda text: known.update({key(text): text}),
        lambda gone: known.pop(gone, None),
        begin=known.clear,
        replace=replace_known if takes_lists else None,
    ).bounded(key, len, lambda text: text[:10])

    def read(number: int) -> bytes:
        text = entry.decode(b"%04d" % number + b"x" * 2**20)
        assert text is not None
        return text

    whole = [read(number) for number in range(4)]
    assert [len(text) for text in whole] == [2**20 + 4, 10, 10, 10]
    entry.take_all(whole)
    assert [len(text) for text in known.values()] == [2**20 + 4, 10, 10, 10]
    entry.put(read(1))
    assert len(known[Key("team", "0001")]) == 10
    entry.remove(Key("team", "0000"))
    entry.put(read(1))
    assert len(known.pop(Key("team", "0001"))) == 2**20 + 4
    entry.take_all([])
    assert len(read(2)) == 2**20 + 4


async def test_listed_once_in_the_order_of_the_table():
    """Objects go to their entry as they come, or the whole list at once, as the entry wants it."""
    async with await MisbehavingApiServer().start() as server, Client(server.cluster) as client:
        for name in ("a", "b", "nothing to us"):
            server.store.create(kinds.NODES, node(name))
            server.store.create(kinds.NAMESPACES, space(name))
        log = Log()
        table: Table = {NAMESPACES: log.at_once("spaces"), NODES: log.streamed("nodes")}
        await list_once(client, table)
        assert log.calls == ["spaces are a b", "nodes begin", "nodes a", "nodes b"]


async def test_a_list_that_begins_again_half_way():
    """The consumer begins again, too: nothing is there twice, and no object is reported twice as odd."""
    async with await MisbehavingApiServer().start() as server, Client(server.cluster) as client:
        for number in range(600):
            server.store.create(kinds.NODES, node(f"n{number}"))
        server.store.create(kinds.NODES, node("a"))
        server.store.create(kinds.NODES, node("odd"))
        server.intercept = lambda request: status(expired()) if request.query.get("continue") else None
        log, odd = Log(), dict[str, list[str]]()
        names: list[str] = []
        at_once = TableEntry(name_in, names.append, replace=names.extend)
        await list_once(client, {NODES: log.streamed("nodes")}, odd=odd)
        assert (log.calls.count("nodes begin"), log.calls.count("nodes a")) == (2, 2)
        assert len(log.calls) - log.calls[1:].index("nodes begin") == 603
        await list_once(client, {NODES: at_once}, odd=odd)
        assert (len(names), odd) == (601, {"nodes": ["odd: it is odd"]})


@pytest.mark.parametrize("refusal", [FORBIDDEN, ABSENT], ids=["forbidden", "absent"])
async def test_what_may_not_be_read_is_reported_for_each_collection(refusal):
    """The others are read; a collection that does not exist is empty. A caller that does not ask for this gets the error."""
    async with await MisbehavingApiServer().start() as server, Client(server.cluster) as client:
        server.store.create(kinds.NAMESPACES, space("x"))
        server.intercept = lambda request: status(refusal) if "nodes" in request.path else None
        log, unseen = Log(), dict[str, str]()
        table: Table = {NODES: log.at_once("nodes"), NAMESPACES: log.at_once("spaces")}
        await list_once(client, table, unseen=unseen)
        assert log.calls == ["spaces are x"]
        assert unseen == ({"nodes": "nodes is forbidden"} if refusal is FORBIDDEN else {})
        with pytest.raises(ApiError):
            await list_once(client, table)


async def test_what_cannot_be_read_is_the_callers_error_or_left_out():
    """Without a place for odd objects the first one is an error."""
    async with await MisbehavingApiServer().start() as server, Client(server.cluster) as client:
        for name in ("a", "odd"):
            server.store.create(kinds.NODES, node(name))
        log = Log()
        with pytest.raises(InvalidInput, match="it is odd"):
            await list_once(client, {NODES: log.at_once("nodes")})
        await list_once(client, {NODES: log.at_once("nodes")}, odd={})
        assert log.calls == ["nodes are a"]


def test_files_go_to_the_same_table():
    """Objects go as they come, the first of those with the same key; whole lists follow in the table's order. Others are passed over."""
    log = Log()
    table: Table = {NAMESPACES: log.at_once("spaces"), NODES: log.streamed("nodes", key=str)}
    documents = [
        node("a"),
        space("x"),
        {"kind": "Pod", "metadata": {"name": "p"}},
        node("nothing to us"),
        node("b"),
        node("a"),
        space("y"),
    ]
    assert take_files(objects_in_documents(documents, "f"), table) == {"Node", "Namespace"}
    assert log.calls == ["nodes begin", "nodes a", "nodes b", "spaces are x y"]
    log.calls.clear()
    assert take_files([], table) == set()
    assert log.calls == ["nodes begin", "spaces are "]


def test_a_resources_labels_select_in_files_too():
    """What an API server would not send is not taken from a file either."""
    log = Log()
    selected = replace(NODES, labels="pool=a")
    documents = [node("a", pool="a"), node("b", pool="b"), node("c")]
    for entry in (log.streamed("nodes"), log.at_once("nodes")):
        take_files(objects_in_documents(documents, "f"), {selected: entry})
    assert log.calls == ["nodes begin", "nodes a", "nodes are a"]


def test_what_is_wrong_in_a_file_is_said_with_its_name():
    """However the entry takes its objects."""
    log = Log()
    for entry in (log.streamed("nodes"), log.at_once("nodes")):
        with pytest.raises(InvalidInput, match=r"^f: it is odd$"):
            take_files(objects_in_documents([node("odd")], "f"), {NODES: entry})
