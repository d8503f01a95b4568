"""The demo's scheduler beside the real one: random nodes, devices and claims, and the same choice by both.

Which of several nodes with equally good alternatives a pod gets is left to the real scheduler; everything else is compared: whether
the pod gets a node, whether that is one of the best, which alternatives, and which devices. No pod goes while a case lasts, for how
fast a scheduler hears of that is another matter.
"""

import random
from collections.abc import Iterator

import pytest

from e2e import dra
from e2e.cluster import BUSYBOX, Client, pods_path
from e2e.cluster.api import Object
from tessera.core.kubernetes.pod import Pod
from tessera.protocol.kubernetes import objects
from tessera.simulation.control_plane.dra.scheduling import Claimed, Round
from tessera.simulation.control_plane.kinds import (
    DEVICE_CLASSES,
    NODES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Kind,
)
from tessera.simulation.control_plane.store import Store

DRIVER = "stand-in.example.com"
TYPES = ("1g", "2g", "3g")
SEEN = "seen"  # a device that each node has beside the others: a claim for it shows that the scheduler knows the node
PODS = 12  # in each case: more than most find devices for


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
            body = {"metadata": {"name": f"{self.name}-{kind}"}, "spec": {"selectors": [{"cel": {"expression": expression}}]}}  # fmt: skip
            self._both(DEVICE_CLASSES, dra.CLASSES, body)
        for number in range(self.chosen.randint(2, 3)):
            node = f"{self.name}-{number}"
            made = self.cluster.add_node(node, labels={"case": self.name})
            self.store.create(NODES, _plain(made))
            self.nodes.append(node)
            for one in self._slices(node):
                self._both(RESOURCE_SLICES, dra.SLICES, one)
        for node in self.nodes:
            self.claim(f"seen-{node}", [self._exactly("seen", SEEN)])
            assert self.submit(f"seen-{node}", node=node) == node

    def remove(self) -> None:
        """Leave nothing that has no namespace."""
        for kind, path in ((RESOURCE_SLICES, dra.SLICES), (DEVICE_CLASSES, dra.CLASSES)):
            for one in self.store.list(kind):
                self.cluster.api.delete(f"{path}/{one.key[1]}")
        for node in self.nodes:
            self.cluster.remove_node(node)

    def _slices(self, node: str) -> list[Object]:
        counted = self.chosen.random() < 0.5
        devices = []
        for number in range(self.chosen.randint(1, 4)):
            kind = self.chosen.choice(TYPES)
            device = _device(f"d{number}-{kind}", kind)
            if counted:
                takes = {"slices": {"value": kind[0]}}
                device["consumesCounters"] = [{"counterSet": "card", "counters": takes}]
            devices.append(device)
        pool = {"name": node, "generation": 1, "resourceSliceCount": 2 if counted else 1}
        spec = {"driver": DRIVER, "nodeName": node, "pool": pool}
        slices = [{"metadata": {"name": f"{node}-devices"}, "spec": {**spec, "devices": [*devices, _device(SEEN, SEEN)]}}]  # fmt: skip
        if counted:
            card = {"name": "card", "counters": {"slices": {"value": str(self.chosen.randint(2, 6))}}}
            slices.append({"metadata": {"name": f"{node}-counters"}, "spec": {**spec, "sharedCounters": [card]}})  # fmt: skip
        return slices

    def requests(self) -> list[Object]:
        """What a claim asks for: one or two requests, with alternatives or without."""
        return [self._request(f"r{number}") for number in range(self.chosen.choice((1, 1, 2)))]

    def _request(self, name: str) -> Object:
        kinds = self.chosen.sample(TYPES, self.chosen.randint(1, 3))
        counts = [self.chosen.choice((1, 1, 1, 2)) for _ in kinds]
        if len(kinds) == 1:
            return self._exactly(name, kinds[0], counts[0])
        alternatives = [
            {"name": kind, "deviceClassName": f"{self.name}-{kind}", "count": count}
            for kind, count in zip(kinds, counts, strict=True)
        ]
        return {"name": name, "firstAvailable": alternatives}

    def _exactly(self, name: str, kind: str, count: int = 1) -> Object:
        return {"name": name, "exactly": {"deviceClassName": f"{self.name}-{kind}", "count": count}}

    def claim(self, name: str, requests: list[Object]) -> None:
        """A claim, here and there."""
        body = {"metadata": {"name": name, "namespace": self.namespace}, "spec": {"devices": {"requests": requests}}}  # fmt: skip
        self._both(RESOURCE_CLAIMS, self._claims, body)

    def submit(self, name: str, *, node: str = "") -> str:
        """A pod with the claim of its name: the node that it gets on the real cluster, or why it gets none."""
        selector = {"case": self.name} | ({"kubernetes.io/hostname": node} if node else {})
        container = {"name": "main", "image": BUSYBOX, "resources": {"claims": [{"name": "gpu"}]}}
        spec = {
            "nodeSelector": selector,
            "terminationGracePeriodSeconds": 0,
            "resourceClaims": [{"name": "gpu", "resourceClaimName": name}],
            "containers": [container],
        }
        self.cluster.api.create(pods_path(self.namespace), {"metadata": {"name": name}, "spec": spec})
        pod = self.cluster.wait_for_pod(
            name, _told, namespace=self.namespace, what=f"a word of the scheduler about {name}"
        )
        status = self.cluster.api.get(f"{self._claims}/{name}").get("status") or {}
        self.store.update(RESOURCE_CLAIMS, name, {"status": status}, self.namespace, status=True)
        return _told(pod)

    def found(self, name: str) -> dict[str, Claimed]:
        """What the stand-in finds for a claim, on each node that has it."""
        pod = {
            "metadata": {"name": name, "namespace": self.namespace, "uid": ""},
            "spec": {"resourceClaims": [{"name": "gpu", "resourceClaimName": name}]},
        }
        found = {}
        for stored in self.store.list(NODES):
            node, round_ = objects.node_of(objects.decode_node(stored.encoded)), Round(self.store)
            claimed = round_.find(pod, Pod(), round_.claims(pod), {}, node)
            if isinstance(claimed, Claimed):
                found[node.name] = claimed
        return found

    def given(self, name: str) -> list[tuple[str, str]]:
        """What the real scheduler has given a claim."""
        allocation = self.store.get(RESOURCE_CLAIMS, name, self.namespace).document["status"]["allocation"]
        return [(one["request"], one["device"]) for one in allocation["devices"]["results"]]

    def _both(self, kind: Kind, path: str, body: Object) -> None:
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


@pytest.fixture(params=range(6))
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
        name, requests = f"p{number}", case.requests()
        case.claim(name, requests)
        expected = case.found(name)
        told = case.submit(name)
        seen = f"{name} asks for {requests}; real: {told}; stand-in: {expected}"
        if not expected:
            assert "cannot allocate all claims" in told, seen
            continue
        placed += 1
        best = max(one.score for one in expected.values())
        assert told in [node for node, one in expected.items() if one.score == best], seen
        [(_, given)] = expected[told].parts
        assert case.given(name) == [(one.alternative.request, one.device.id[1]) for one in given], seen
    assert placed, "some were given devices"
