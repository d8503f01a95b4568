"""The demo's scheduler beside the real one: random nodes, devices and claims, and the same choice by both.

Which of several nodes with equally good alternatives a pod gets is left to the real scheduler; everything else is compared: whether
the pod gets a node, whether that is one of the best, which alternatives, and which devices. No pod goes while a case lasts, for how
fast a scheduler hears of that is another matter.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import pytest

from e2e import dra
from e2e.cluster import BUSYBOX, Client, pods_path
from e2e.cluster.api import Object
from tessera.protocol.kubernetes.lean_pod import decode_lean_pod, pod_of
from tessera.protocol.kubernetes.nodes import decode_node, node_of
from tessera.simulation.control_plane.kinds import (
    DEVICE_CLASSES,
    NODES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    ResourceType,
)
from tessera.simulation.control_plane.scheduler import Claimed, Round
from tessera.simulation.control_plane.store import Store

DRIVER = "stand-in.example.com"
TYPES = ("1g", "2g", "3g")
SEEN = "seen"  # a device that each node has beside the others: a claim for it shows that the scheduler knows the node
CASES = 12  # a second each
PODS = 12  # in each case: more than most find devices for


@dataclass(frozen=True, slots=True)
class Wish:
    """What a pod asks for: a claim with these requests, or an extended resource."""

    requests: Sequence[Object] = ()
    extended: Mapping[str, int] = field(default_factory=dict)


class Case:
    """Some nodes on the real cluster, and the same in a store."""

    def __init__(self, cluster: Client, namespace: str, seed: int) -> None:
        self.cluster, self.namespace = cluster, namespace
        self.name = f"case-{seed}-{namespace}"
        self.chosen = random.Random(seed)
        self.store = Store()
        self.nodes: list[str] = []
        self._claims = f"{dra.RESOURCES}/namespaces/{namespace}/resourceclaims"

    def make(self) -> None:
        """Two or three nodes, some of whose devices share counters; wait until the scheduler knows them."""
        for kind in (*TYPES, SEEN):
            expression = f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].type == '{kind}'"
            spec = {
                "selectors": [{"cel": {"expression": expression}}],
                "extendedResourceName": self._extended(kind),
            }
            self._both(DEVICE_CLASSES, dra.CLASSES, {"metadata": {"name": self._class(kind)}, "spec": spec})
        for number in range(self.chosen.randint(2, 3)):
            node = f"{self.name}-{number}"
            made = self.cluster.add_node(node, labels={"case": self.name})
            self.store.create(NODES, _plain(made))
            self.nodes.append(node)
            for one in self._slices(node):
                self._both(RESOURCE_SLICES, dra.SLICES, one)
        for node in self.nodes:
            wish = Wish([{"name": "seen", "exactly": {"deviceClassName": self._class(SEEN)}}])
            assert self.submit(f"seen-{node}", wish, node=node) == node

    def remove(self) -> None:
        """Leave nothing that has no namespace."""
        for kind, path in ((RESOURCE_SLICES, dra.SLICES), (DEVICE_CLASSES, dra.CLASSES)):
            for one in self.store.list(kind):
                self.cluster.api.delete(f"{path}/{one.key[1]}")
        for node in self.nodes:
            self.cluster.remove_node(node)

    def _class(self, kind: str) -> str:
        return f"{self.name}-{kind}"

    def _extended(self, kind: str) -> str:
        return f"{DRIVER}/{self.name}-{kind}"

    def _slices(self, node: str) -> list[Object]:
        """The last slice comes first by name; the scheduler takes them by name."""
        counted = self.chosen.random() < 0.5
        contents: list[Object] = [{"devices": [_device(SEEN, SEEN)]}]
        for part in range(self.chosen.randint(1, 2)):
            devices = [self._some_device(f"d{part}{n}", counted) for n in range(self.chosen.randint(1, 3))]
            contents.append({"devices": devices})
        if counted:
            card = {"name": "card", "counters": {"slices": {"value": str(self.chosen.randint(2, 6))}}}
            contents.append({"sharedCounters": [card]})
        pool = {"name": node, "generation": 1, "resourceSliceCount": len(contents)}
        spec = {"driver": DRIVER, "nodeName": node, "pool": pool}
        return [
            {"metadata": {"name": f"{node}-{len(contents) - number}"}, "spec": {**spec, **content}}
            for number, content in enumerate(contents)
        ]

    def _some_device(self, name: str, counted: bool) -> Object:
        kind = self.chosen.choice(TYPES)
        device = _device(f"{name}-{kind}", kind)
        if counted:
            takes = {"slices": {"value": kind[0]}}
            device["consumesCounters"] = [{"counterSet": "card", "counters": takes}]
        if self.chosen.random() < 0.1:
            device["taints"] = [{"key": "ill", "effect": "NoSchedule"}]
        return device

    def wish(self) -> Wish:
        """One or two requests, with alternatives or without; or an extended resource, which DRA serves."""
        if self.chosen.random() < 0.2:
            return Wish(extended={self._extended(self.chosen.choice(TYPES)): 1})
        return Wish([self._request(f"r{number}") for number in range(self.chosen.choice((1, 1, 2)))])

    def _request(self, name: str) -> Object:
        alternatives = [
            {"name": kind, "deviceClassName": self._class(kind), "count": self.chosen.choice((1, 1, 1, 2))}
            for kind in self.chosen.sample(TYPES, self.chosen.randint(1, 3))
        ]
        if len(alternatives) > 1:
            return {"name": name, "firstAvailable": alternatives}
        [exactly] = alternatives
        del exactly["name"]
        return {"name": name, "exactly": exactly}

    def submit(self, name: str, wish: Wish, *, node: str = "") -> str:
        """A pod with a claim of its name: the node that it gets on the real cluster, or why it gets none."""
        if wish.requests:
            self._both(RESOURCE_CLAIMS, self._claims, self._claim(name, wish))
        pod = self._pod(name, wish)
        pod["spec"]["nodeSelector"] = {"case": self.name} | ({"kubernetes.io/hostname": node} if node else {})
        self.cluster.api.create(pods_path(self.namespace), pod)
        made = self.cluster.wait_for_pod(
            name, _told, namespace=self.namespace, what=f"a word of the scheduler about {name}"
        )
        self._take_over(made, name)
        return _told(made)

    def _take_over(self, pod: Object, name: str) -> None:
        """What the real scheduler has given to the pod's claim holds in the store, too."""
        extended = pod["status"].get("extendedResourceClaimStatus")
        if extended or "resourceClaims" in pod["spec"]:
            claim = self.cluster.api.get(f"{self._claims}/{(extended or {}).get('resourceClaimName', name)}")
            if extended:
                body = {"metadata": {"name": name, "namespace": self.namespace}, "spec": claim["spec"]}
                self.store.create(RESOURCE_CLAIMS, body)
            status = {"status": claim.get("status") or {}}
            self.store.update(RESOURCE_CLAIMS, name, status, self.namespace, status=True)

    def found(self, name: str, wish: Wish) -> dict[str, Claimed]:
        """What the stand-in finds for a pod that is yet to come, on each node that has it."""
        store = self.store.snapshot()
        if wish.requests:
            store.create(RESOURCE_CLAIMS, self._claim(name, wish))
        pod = self._pod(name, wish)
        pod["metadata"] |= {"namespace": self.namespace, "uid": "new"}
        asks = pod_of(decode_lean_pod(msgspec.json.encode(pod)), self.namespace)
        found = {}
        for stored in store.list(NODES):
            node, round_ = node_of(decode_node(stored.encoded)), Round(store)
            claimed = round_.find(pod, asks, round_.claims(pod), round_.served(asks, node), node)
            if isinstance(claimed, Claimed):
                found[node.name] = claimed
        return found

    def given(self, name: str) -> list[tuple[str, str]]:
        """What the real scheduler has given to a pod's claim."""
        allocation = self.store.get(RESOURCE_CLAIMS, name, self.namespace).document["status"]["allocation"]
        return [(one["request"], one["device"]) for one in allocation["devices"]["results"]]

    def _claim(self, name: str, wish: Wish) -> Object:
        spec = {"devices": {"requests": list(wish.requests)}}
        return {"metadata": {"name": name, "namespace": self.namespace}, "spec": spec}

    def _pod(self, name: str, wish: Wish) -> Object:
        container: Object = {"name": "main", "image": BUSYBOX}
        spec: Object = {"terminationGracePeriodSeconds": 0, "containers": [container]}
        if wish.requests:
            container["resources"] = {"claims": [{"name": "gpu"}]}
            spec["resourceClaims"] = [{"name": "gpu", "resourceClaimName": name}]
        else:
            container["resources"] = {"limits": dict(wish.extended)}
        return {"metadata": {"name": name}, "spec": spec}

    def _both(self, kind: ResourceType, path: str, body: Object) -> None:
        self.cluster.api.create(path, body)
        self.store.create(kind, body, body["metadata"].get("namespace", ""))


def _device(name: str, kind: str) -> Object:
    return {"name": name, "attributes": {"type": {"string": kind}}}


def _plain(document: Object) -> Object:
    metadata = {key: document["metadata"][key] for key in ("name", "labels")}
    return {"metadata": metadata, "spec": document["spec"], "status": document["status"]}


def _told(pod: Object) -> str:
    """The pod's node, or what the scheduler says; empty before it has looked at the pod's claim."""
    conditions = pod.get("status", {}).get("conditions") or ()
    messages = [one.get("message", "") for one in conditions if one["type"] == "PodScheduled"]
    return pod["spec"].get("nodeName") or next((one for one in messages if "cannot allocate" in one), "")


@pytest.fixture(params=range(CASES))
def case(control_plane: Client, namespace: str, request: pytest.FixtureRequest) -> Iterator[Case]:
    """A case that goes when it is over."""
    made = Case(control_plane, namespace, request.param)
    try:
        made.make()
        yield made
    finally:
        made.remove()


def test_both_choose_alike(case: Case) -> None:
    """Pod after pod, the real scheduler does what the stand-in would do in its place."""
    placed = 0
    for number in range(PODS):
        name, wish = f"p{number}", case.wish()
        expected = case.found(name, wish)
        told = case.submit(name, wish)
        seen = f"{name} asks for {wish}; real: {told}; stand-in: {expected}"
        if not expected:
            assert "cannot allocate all claims" in told, seen
            continue
        placed += 1
        best = max(one.score for one in expected.values())
        assert told in [node for node, one in expected.items() if one.score == best], seen
        [(_, given)] = expected[told].parts
        assert case.given(name) == [(one.alternative.request, one.device.id[1]) for one in given], seen
    assert placed, "some were given devices"
