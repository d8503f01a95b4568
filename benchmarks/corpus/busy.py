"""A full cluster of any size, as the controller follows it: `varied` with its devices in use, and pods that wait for large slices.

All large slices are held, and three in ten of the small ones are idle, anywhere: the autopilot has cards to cut, nearly all different. A node has
twelve pods: its device plugin's, and eleven that run, most of them with slices. One in four nodes has a pod less, and a pod waits instead.
The number of nodes alone decides everything.
"""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final

from benchmarks.corpus import varied
from benchmarks.corpus.documents import Document, encoded
from benchmarks.corpus.varied import CARDS, PODS, object_named
from tessera.core.dra.slices import API_VERSION
from tessera.core.requests.alternatives import template_name
from tessera.core.resources import MIG_PREFIX, WHOLE_GPU
from tessera.protocol.mig.nodes import IN_USE, MAPPING, encode_in_use, encode_mapping, mapping_of

NAMESPACE: Final = "gpu-webhook"  # of the webhook and the controller
SERVICE: Final = "gpu-webhook"
WAITING: Final = 4  # nodes for each pod that waits
_HOLDING: Final = PODS - 2  # pods of a node that may hold devices
_SMALL: Final = ("1g", "2g")
_LARGE: Final = ("3g.71gb", "4g.71gb", "7g.141gb", "3g.40gb", "4g.40gb", "7g.80gb")
_IDLE: Final = 0.3  # of the small slices
_PRIORITIES: Final = 20


@dataclass(frozen=True, slots=True)
class Device:
    """A device of a node: its card, its name in a ResourceSlice, and its place as the device plugin reports it."""

    card: int
    name: str
    profile: str
    place: str


@dataclass(frozen=True, slots=True)
class Holding:
    """A running pod and what it holds: devices of one profile, or whole GPUs."""

    place: int
    devices: tuple[Device, ...] = ()
    gpus: int = 0

    @property
    def resource(self) -> str:
        """What it asks for; empty: no GPU."""
        return MIG_PREFIX + self.devices[0].profile if self.devices else WHOLE_GPU if self.gpus else ""


def objects(nodes: int) -> Iterator[bytes]:
    """Everything that the API server has."""
    for document in varied.cluster(nodes):
        yield encoded(_with_report(document) if document["kind"] == "Node" else document)
    for number in range(nodes):
        for pod in pods_of(number):
            yield encoded(pod)
        for claim in _claims_of(number):
            yield encoded(claim)
    yield from map(encoded, _templates(nodes))
    yield from map(encoded, varied.operator())
    yield encoded(object_named("v1", "Namespace", NAMESPACE))
    yield encoded(_endpoints())
    yield encoded(_mig_layout())


def pods_of(number: int) -> Iterator[Document]:
    """The pods of a node, and perhaps one that waits."""
    yield varied.plugin_pod(number)
    for holding in holdings(number):
        yield running_pod(number, holding)
    if number % WAITING == 3:
        yield _waiting_pod(number)
    else:
        yield running_pod(number, Holding(PODS - 1))


def running_pod(number: int, holding: Holding) -> Document:
    """A pod that runs on a node."""
    place = holding.place
    if varied.has_dra(number) and holding.devices:
        return varied.claiming_pod(number, place, _text(number, holding), _namespace(number, place))
    amount = len(holding.devices) or holding.gpus
    name, home = varied.pod_name(number, place), varied.node_name(number)
    uid = _uid(number, place)
    return varied.pod_asking(name, _namespace(number, place), uid, holding.resource, "2", home, None, amount)


@cache
def holdings(number: int) -> tuple[Holding, ...]:
    """The running pods of a node that may hold devices."""
    if not varied.devices_of(number):
        return tuple(Holding(place, gpus=int(place < CARDS)) for place in range(_HOLDING))
    by_profile: dict[str, list[Device]] = {}
    rng = random.Random(number)
    for device in _devices(number):
        if rng.random() >= _IDLE or not device.profile.startswith(_SMALL):
            by_profile.setdefault(device.profile, []).append(device)
    few = next(
        few for few in range(1, 100) if sum(-(-len(one) // few) for one in by_profile.values()) <= _HOLDING
    )
    parts = [tuple(one[at : at + few]) for one in by_profile.values() for at in range(0, len(one), few)]
    parts += [()] * (_HOLDING - len(parts))
    return tuple(Holding(place, part) for place, part in enumerate(parts))


def _devices(number: int) -> Iterator[Device]:
    """The devices of a node that has slices."""
    layout = varied.layout_of(number)
    left = [list(card.instances) for card in layout.cards]
    for name, profile in varied.devices_of(number):
        card = int(name.split("-")[1])
        instance = next(one for one in left[card] if str(one.profile) == profile)
        left[card].remove(instance)
        yield Device(card, name, profile, f"{profile}@{instance.position}")


def has_plugin(number: int) -> bool:
    """Whether Tessera's device plugin reports what is in use on a node."""
    elsewhere = varied.has_dra(number) or varied.has_operator(number)
    return not elsewhere and bool(varied.devices_of(number))


def report_of(number: int, uids: Mapping[int, str]) -> str | None:
    """Which devices pods hold, as the device plugin reports it; `uids`: of pods that were made again, by their place."""
    published: dict[int, dict[str, str]] = {}
    for holding in holdings(number):
        uid = uids.get(holding.place) or _uid(number, holding.place)
        for device in holding.devices:
            published.setdefault(device.card, {})[device.place] = uid[:8]
    return encode_in_use(published)


def _with_report(node: Document) -> Document:
    number = int(node["metadata"]["name"].rpartition("-")[2])
    if has_plugin(number):
        mapping = mapping_of(varied.layout_of(number), varied.node_name(number))
        node["metadata"]["annotations"] |= {MAPPING: encode_mapping(mapping), IN_USE: report_of(number, {})}
    return node


def _claims_of(number: int) -> Iterator[Document]:
    if varied.has_dra(number):
        for holding in holdings(number):
            if holding.devices:
                names = [device.name for device in holding.devices]
                space = _namespace(number, holding.place)
                yield varied.claim_holding(number, holding.place, names, holding.devices[0].profile, space)


def _templates(nodes: int) -> Iterator[Document]:
    keys = {
        (_namespace(number, holding.place), _text(number, holding)): None
        for number in range(nodes)
        if varied.has_dra(number)
        for holding in holdings(number)
        if holding.devices
    }
    labels = {"app.kubernetes.io/managed-by": "tessera-controller"}
    for space, text in keys:
        name = template_name(text)
        yield object_named(
            API_VERSION, "ResourceClaimTemplate", name, space, labels=labels, spec={"spec": {}}
        )


def _waiting_pod(number: int) -> Document:
    """A pod of a ReplicaSet that no node has room for; three in ten ask for several devices."""
    rng = random.Random(number)
    several = rng.choice((2, 3, 4)) if rng.random() < 0.3 else 1
    zone, rack = f"zone-{rng.choice('abc')}", f"rack-{number // 20}"
    selector = rng.choice(({}, {"topology.kubernetes.io/zone": zone}, {"example.com/rack": rack}))
    name, space, uid = f"queued-{number}", varied.namespace_of(number // WAITING), _uid(number, PODS - 1)
    resource = MIG_PREFIX + rng.choice(_LARGE)
    pod = varied.pod_asking(name, space, uid, resource, "4", "", selector, several)
    pod["metadata"] |= {
        "generateName": "queued-",
        "ownerReferences": [
            {
                "apiVersion": "apps/v1",
                "kind": "ReplicaSet",
                "name": name,
                "uid": f"owner-{number}",
                "controller": True,
            }
        ],
    }
    pod["spec"]["priority"] = rng.randrange(_PRIORITIES)
    pod["status"]["conditions"][0]["lastTransitionTime"] = "2026-11-15T08:00:00Z"
    return pod


def _endpoints() -> Document:
    labels = {"kubernetes.io/service-name": SERVICE}
    ready = [{"addresses": ["10.0.0.1"], "conditions": {"ready": True}}]
    return object_named(
        "discovery.k8s.io/v1", "EndpointSlice", SERVICE, NAMESPACE, labels=labels, endpoints=ready
    )


def _mig_layout() -> Document:
    """A MigLayout of all nodes in mode Auto, a dry run: nothing is cut, so that every look finds the same cards."""
    layout = object_named(
        "tessera.dev/v1alpha1",
        "MigLayout",
        varied.LAYOUT,
        spec={"nodeSelector": {"kubernetes.io/os": "linux"}, "mode": "Auto"},
    )
    layout["metadata"]["generation"] = 1
    return layout


def _namespace(number: int, place: int) -> str:
    return varied.namespace_of(number % 4 + place * 4)


def _text(number: int, holding: Holding) -> str:
    """What a claim asks for: some hundred different texts, as classes of several teams make them."""
    profile = holding.devices[0].profile
    return f"{len(holding.devices)}*{profile}={profile}/team-{number % 20}"


def _uid(number: int, place: int) -> str:
    """The UID of a pod: its first eight letters are no other pod's."""
    return f"b{number:04x}{place:03x}-0000-4000-8000-000000000001"
