"""Devices by DRA: the claims of a pod that waits, their classes, and whether any ResourceSlice has such devices.

Only the scheduler knows whether a device is free: its words are reported. A class whose expressions cannot be evaluated may have
any device.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tessera.core.dra.slices import DRIVER, DeviceClass, serving
from tessera.core.text import first_of
from tessera.diagnosis.remedy import Remedy
from tessera.protocol.dra.objects import SliceReader, class_of
from tessera.protocol.dra.selectors import Selectors
from tessera.protocol.kubernetes.dra import ClaimIn, DeviceClassIn, SliceIn

_MOST_NAMED: Final = 3
# what a device plugin would call a device: an attribute of our driver's
_CALLED: Final = (
    "device.driver == 'gpu.tessera.dev' && device.attributes['gpu.tessera.dev'].resource == '{resource}'"
)
# The kubelet's words (seen on 1.36.3) where it takes a resource that DRA serves for one of a device plugin that has gone.
_NOT_IN_CACHE: Final = "no devices found allocated in local cache"


@dataclass(frozen=True, slots=True)
class ClassRequest:
    """A class of which a device would do, and the expressions that must hold besides."""

    device_class: str
    expressions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SeenClaim:
    """A claim of the pod: what it asks for, request by request, each with what would do."""

    allocated: bool
    requests: Mapping[str, tuple[ClassRequest, ...]]


@dataclass(frozen=True, slots=True)
class SeenDevices:
    """What DRA has for the pods that are asked about."""

    # by namespace and name; None: it is not there
    claims: Mapping[tuple[str, str], SeenClaim | None] = field(default_factory=dict)
    classes: tuple[str, ...] | None = None  # None: they could not be read
    none_of: frozenset[ClassRequest] = (
        frozenset()
    )  # of what is wanted, that of which surely no slice has a device
    serving: Mapping[str, str] = field(default_factory=dict)  # extended resource asked for → its class
    unserved: frozenset[str] = frozenset()  # those that slices have devices of, and no class stands for
    own: frozenset[str] = frozenset()  # the classes of devices of Tessera's driver


def seen_claim(found: ClaimIn) -> SeenClaim:
    requests = {}
    for one in found.spec.devices.requests or ():
        wanted = [one.exactly] if one.exactly else one.first_available or []
        requests[one.name] = tuple(
            ClassRequest(each.device_class_name, tuple(each.cel.expression for each in each.selectors or ()))
            for each in wanted
        )
    return SeenClaim(found.status.allocation is not None, requests)


def devices_for(
    claims: Mapping[tuple[str, str], SeenClaim | None],
    resources: Collection[str],
    classes: Sequence[DeviceClassIn] | None,
    slices: Sequence[SliceIn] | None,
) -> SeenDevices:
    """What these classes and slices have for claims and for extended resources; None: they could not be read."""
    if classes is None:
        return SeenDevices(claims)
    known = {one.name: one for one in map(class_of, classes)}
    by_resource = serving(known)
    serves = {name: by_resource[name].name for name in resources if name in by_resource}
    there = filter(None, claims.values())
    wanted = {one for claim in there for some in claim.requests.values() for one in some}
    wanted |= {ClassRequest(name) for name in serves.values()}
    tried: dict[ClassRequest | str, DeviceClass] = {
        one: DeviceClass(one.device_class, known[one.device_class].selectors + one.expressions)
        for one in wanted
        if one.device_class in known
    }
    tried |= {
        name: DeviceClass(name, (_CALLED.format(resource=name),)) for name in resources if name not in serves
    }
    found = _selected(tried, slices) if slices is not None else {}
    none_of = frozenset(one for one, some in found.items() if isinstance(one, ClassRequest) and some is False)
    unserved = frozenset(one for one, some in found.items() if isinstance(one, str) and some is True)
    own = frozenset(name for name, one in known.items() if any(DRIVER in text for text in one.selectors))
    return SeenDevices(claims, tuple(sorted(known)), none_of, serves, unserved, own)


def _selected(
    tried: Mapping[ClassRequest | str, DeviceClass], slices: Sequence[SliceIn]
) -> dict[ClassRequest | str, bool | None]:
    """Whether some device is selected by each; None where that cannot be said."""
    selectors, reader = Selectors(), SliceReader(with_devices=True)
    reader.names = selectors.use(list(tried.values()))
    kinds = {kind for one in slices for _, kind in reader.slice_of(one).contents.devices}
    found: dict[ClassRequest | str, bool | None] = {}
    for what, one in tried.items():
        verdicts = {selectors.selects(one, kind) for kind in kinds}
        found[what] = True if True in verdicts else None if None in verdicts else False
    return found


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why no scheduler can find devices for a pod, and what would help."""

    cause: str
    answer: str
    remedy: str
    command: str
    classes: frozenset[str] = frozenset()  # of which no ResourceSlice has a device


def obstacle(seen: SeenDevices, namespace: str, claims: Mapping[str, str | None]) -> Obstacle | None:
    """The first of a pod's claims (its own name for each → the claim's) that nothing can be allocated for, whatever is free."""
    for own, name in claims.items():
        claim = seen.claims.get((namespace, name)) if name else None
        if name and (namespace, name) not in seen.claims:
            continue  # it may not be read
        if claim is None:
            answer = f"its resource claim {name or own} is not there"
            command = "kubectl get resourceclaims,resourceclaimtemplates"
            return Obstacle("claim-missing", answer, f"the claim {name or own} is made", command)
        for request, wanted in claim.requests.items() if not claim.allocated else ():
            where = f"claim {name}, request {request}"
            for one in wanted:
                if seen.classes is not None and one.device_class not in seen.classes:
                    there = first_of(seen.classes, _MOST_NAMED) or "there is none"
                    answer = f"device class {one.device_class} is not there ({where})"
                    remedy = f"the class is made, or the claim names another one ({there})"
                    return Obstacle("class-missing", answer, remedy, "kubectl get deviceclasses")
            if wanted and seen.none_of.issuperset(wanted):
                names = first_of([one.device_class for one in wanted], _MOST_NAMED)
                answer = f"no ResourceSlice has a device that would do, of class {names} ({where})"
                remedy = "the DRA driver of a node offers such a device"
                wishes = frozenset(one.device_class for one in wanted)
                return Obstacle("no-devices", answer, remedy, "kubectl get resourceslices", wishes)
    return None


def standing_for(seen: SeenDevices, resource: str) -> str:
    """What DRA has to do with an extended resource that no node offers; empty where nothing."""
    name = seen.serving.get(resource, "")
    if name and ClassRequest(name) in seen.none_of:
        return f"no ResourceSlice has a device of class {name}, which stands for it"
    if name:
        return f"device class {name} stands for it, of whose devices the scheduler found none for this pod"
    if resource in seen.unserved:
        return f"ResourceSlices have such devices, but no device class has extendedResourceName: {resource}"
    return ""


def on_start(node: str, told: str) -> tuple[Remedy, ...]:
    """What helps a container that its kubelet does not start, by the kubelet's words."""
    if _NOT_IN_CACHE not in told:
        return ()
    text = (
        f"the kubelet of node {node} forgets the device plugin that served this before the node moved to DRA: five minutes after "
        "the plugin stopped, or when the kubelet is restarted; it tries again by itself"
    )
    return (Remedy("wait", text, (f"systemctl restart kubelet   # on node {node}",)),)
