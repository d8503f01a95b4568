"""The inventory: nodes and pods read once each, from files or from a cluster, and added up."""

import json
from contextlib import contextmanager

import pytest

from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.scheduling import LabelSelector
from tessera.core.resources import is_any_gpu
from tessera.inventory.inventory import Inventory
from tessera.kube.object_files import objects_in_documents
from tessera.kube.rest.client import Client
from tessera.serving.http_messages import Response
from tessera.simulation.control_plane.kinds import NODES, PODS
from tessera.simulation.control_plane.store import StatusError
from tests.build import GPU, MIG
from tests.inventory.objects import OBJECTS, node
from tests.kube.apiserver import MisbehavingApiServer, status
from tests.kube.clock import FakeClock


def taken(*documents, selector="", holds=lambda pod: True):
    inventory = Inventory(is_any_gpu, LabelSelector.parse(selector), holds)
    inventory.take(objects_in_documents(documents, "f"))
    return inventory


def numbers(inventory):
    """Node and resource → allocatable and allocated."""
    return {
        (one.node.name, resource): (int(usage.allocatable.value), int(usage.allocated.value))
        for one in inventory.capacity.nodes()
        for resource, usage in one.resources.items()
    }


def store_all(server):
    for one in OBJECTS[:-1]:
        kind = NODES if one["kind"] == "Node" else PODS
        server.store.create(kind, one, one["metadata"].get("namespace", ""))


def test_sums_and_pods():
    """Pods are added up on their nodes; those that have ended hold nothing, those being deleted hold what they have."""
    found = taken(*OBJECTS)
    assert numbers(found) == {
        ("sim-0", GPU): (0, 0),
        ("sim-0", MIG + "2g.20gb"): (4, 2),
        ("sim-0", MIG + "3g.30gb"): (2, 1),
        ("sim-1", MIG + "2g.20gb"): (4, 1),
        ("sim-1", MIG + "3g.30gb"): (2, 0),
        ("v100", GPU): (8, 4),
    }
    assert {name: int(amount.value) for name, amount in found.capacity.asked.items()} == {
        MIG + "2g.20gb": 3,
        MIG + "1g.10gb": 1,
    }
    assert [one.name for one in found.pods] == ["a", "b", "c", "going", "waits", "nowhere"]
    assert sorted(found.gpus) == ["sim-0", "sim-1", "v100"]
    assert found.used("sim-0") == {GPU: 0, MIG + "2g.20gb": 2, MIG + "3g.30gb": 1}


def test_an_object_counts_once():
    """However often a file has it; the kinds that were there are reported."""
    inventory = Inventory(is_any_gpu)
    assert inventory.take(objects_in_documents([*OBJECTS, *OBJECTS], "f")) == {"Node", "Pod"}
    assert numbers(inventory) == numbers(taken(*OBJECTS))
    assert Inventory(is_any_gpu).take(objects_in_documents(OBJECTS[-1:], "f")) == set()


def test_selected_nodes():
    """Nodes that the selector leaves out are not there; pods on them hold nothing that counts."""
    found = taken(*OBJECTS, selector="nvidia.com/zone=a", holds=lambda pod: pod.namespace == "ml")
    assert numbers(found) == {("v100", GPU): (8, 4)}
    assert [one.name for one in found.pods] == ["c", "nowhere"]


def test_a_node_that_no_longer_speaks_of_gpus_is_forgotten():
    """A later version of a node replaces what an earlier one said."""
    found = taken(*OBJECTS)
    found.put(found.decode_node(json.dumps(node("sim-0", {})).encode()))
    assert "sim-0" not in found.gpus
    found.remove_node("sim-1")
    assert sorted(found.gpus) == ["v100"]
    assert "sim-1" not in found.capacity


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (b"kind: Service", "no nodes and no pods"),
        (b"kind: Node\nmetadata: 5", "metadata: expected object, got int"),
        (b"kind: Pod\nmetadata: []", "metadata: expected object, got array"),
        (b'{"kind": "\xff"}', "not UTF-8 text (byte 10)"),
        (b'{"kind": "Pod", "metadata": {"name": "\xff"}}', "not UTF-8 text (byte 0)"),
    ],
)
def test_files_that_say_nothing(tmp_path, text, complaint):
    """A file without nodes and pods, and one with what is none, are refused by name."""
    file = tmp_path / "objects.yaml"
    file.write_bytes(text)
    with pytest.raises(InvalidInput) as caught:
        Inventory(is_any_gpu).read_files([str(file)])
    assert str(caught.value) == f"{file}: {complaint}"


async def test_a_cluster_is_as_files():
    """Read from an API server it is the same, also when its pages expire half-way; progress is told of each list."""
    seen: list[tuple[str, int, list[int]]] = []

    @contextmanager
    def progress(what, number):
        counts: list[int] = []
        seen.append((what, number, counts))
        yield counts.append

    async with await MisbehavingApiServer().start() as server, Client(server.cluster) as client:
        store_all(server)
        found = Inventory(is_any_gpu, holds=lambda pod: True)
        await found.read_cluster(client, progress=progress)
        assert numbers(found) == numbers(taken(*OBJECTS))
        # one of the seven pods has ended, and is not read
        assert seen == [("nodes", 4, [1, 2, 3, 4]), ("pods", 7, [1, 2, 3, 4, 5, 6])]
        await found.read_cluster(client)
        assert numbers(found) == numbers(taken(*OBJECTS)), "read again it is not counted twice"


async def test_a_server_that_is_busy():
    """429 with Retry-After in the middle of a list: after that time the whole list is read again, and nothing counts twice."""
    clock = FakeClock(auto=True)
    async with await MisbehavingApiServer().start() as server, Client(server.cluster, clock=clock) as client:
        store_all(server)
        busy = StatusError(429, "TooManyRequests", "too many requests")
        server.intercept = lambda request: status(busy) if len(server.requests) in (1, 3) else None
        found = Inventory(is_any_gpu, holds=lambda pod: True)
        await found.read_cluster(client)
        assert numbers(found) == numbers(taken(*OBJECTS))
        assert clock.slept == [1.0, 1.0]


@pytest.mark.parametrize(
    "page",
    [b"{", b'{"metadata":{"remainingItemCount":"many"}}', b'{"x":' + b"[" * 100_000],
    ids=["half", "text", "deep"],
)
async def test_a_number_that_cannot_be_read(page):
    """How many objects there are is for the progress alone: without it, or with junk, the list is read all the same."""
    seen: list[tuple[str, int]] = []

    @contextmanager
    def progress(what, number):
        seen.append((what, number))
        yield lambda _: None

    async with await MisbehavingApiServer().start() as server, Client(server.cluster) as client:
        store_all(server)
        server.intercept = lambda request: Response(page) if request.query.get("limit") == "1" else None
        found = Inventory(is_any_gpu, holds=lambda pod: True)
        await found.read_cluster(client, progress=progress)
    assert numbers(found) == numbers(taken(*OBJECTS))
    assert seen == [("nodes", 0), ("pods", 0)]


async def test_nodes_alone():
    """Where pods do not matter they are not asked for."""
    async with await MisbehavingApiServer().start() as server, Client(server.cluster) as client:
        store_all(server)
        found = Inventory(is_any_gpu)
        await found.read_cluster(client, pods=False)
        assert set(numbers(found).values()) == {(0, 0), (4, 0), (2, 0), (8, 0)}
        assert server.asked("/api/v1/pods") == []


def test_a_slice_that_cannot_be_read_is_named_with_its_file():
    """What is wrong in an object of DRA is said with the file and the place in it, as for nodes and pods."""
    device = {"name": "d", "capacity": {"memory": {"value": "many"}}}
    broken = {
        "kind": "ResourceSlice",
        "metadata": {"name": "s"},
        "spec": {"driver": "x", "devices": [device]},
    }
    with pytest.raises(InvalidInput, match=r'^f: spec\.devices\[0\]\.capacity\[\.\.\.\].*"many" is not'):
        Inventory(is_any_gpu).take(objects_in_documents([broken], "f"))
