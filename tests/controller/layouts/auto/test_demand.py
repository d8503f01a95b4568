"""The nodes that mode Auto looks at."""

import gc
import json
import weakref

from tessera.controller.layouts.auto.looking import DemandFollower
from tessera.controller.layouts.plan import SeenNode
from tessera.controller.reconciler import Beside
from tessera.kube.access.cluster import Cluster, ServerAddress
from tessera.kube.rest.client import Client
from tessera.kube.watch.follow import Follower
from tessera.protocol.kubernetes.nodes import decode_node
from tests.build import GPU


def node(name, amount):
    document = {
        "metadata": {"name": name},
        "status": {"allocatable": {GPU: amount}, "capacity": {GPU: amount}},
    }
    return SeenNode.of(decode_node(json.dumps(document).encode()))


def test_nothing_is_held_once_it_is_stopped():
    """What was followed goes at once, whenever Python would collect it."""
    client = Client(Cluster(ServerAddress.parse("http://127.0.0.1:1", where="test")))
    demand = DemandFollower(client, Follower(client), {}, Beside())
    gc.disable()
    try:
        demand.start()
        assert demand._followed is not None
        inventory = weakref.ref(demand._followed)
        demand.stop()
        assert inventory() is None
    finally:
        gc.enable()


def test_nodes_are_taken_as_they_are_now(caplog):
    """Those that come, change and go; of one that cannot be read the last good state stays, and the others go on."""
    client = Client(Cluster(ServerAddress.parse("http://127.0.0.1:1", where="test")))
    demand = DemandFollower(client, Follower(client), {}, Beside())
    demand.start()
    followed = demand._followed
    assert followed is not None

    def taken(**amounts):
        demand.take_nodes({name: node(name, amount) for name, amount in amounts.items()})
        capacity = followed.inventory.capacity
        return {name: str(one.allocatable[GPU]) for name, one in capacity.items()}

    assert taken(a="1", b="2") == {"a": "1", "b": "2"}
    assert followed.changed.is_set()
    assert taken(a="many", b="3", c="4") == {"a": "1", "b": "3", "c": "4"}
    assert "many" in caplog.text
    assert taken(b="3") == {"b": "3"}
