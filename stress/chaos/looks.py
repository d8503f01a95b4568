"""What was seen of a fleet of nodes at one moment, and which promises it breaks. Pure: nothing here asks a cluster."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from tessera.core.resources import is_whole_or_mig
from tessera.protocol.mig.rollouts import ROLLOUT

Object = dict[str, Any]
BOUND_LONG: Final = (
    15.0  # seconds after which a rollout has seen a pod, also one whose leader was cut off meanwhile
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLook:
    """A node."""

    name: str
    pool: str
    is_cordoned: bool
    is_rolling_out: bool

    @classmethod
    def read(cls, node: Object) -> "NodeLook":
        metadata = node["metadata"]
        return cls(
            name=metadata["name"],
            pool=metadata["labels"].get("pool", ""),
            is_cordoned=bool(node["spec"].get("unschedulable")),
            is_rolling_out=ROLLOUT in metadata.get("annotations", {}),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PodLook:
    """A pod that has not ended."""

    uid: str
    name: str
    node: str
    amounts: Mapping[str, int]  # of the node's devices
    bound_for: float  # seconds

    @classmethod
    def read(cls, pod: Object, bound_for: float) -> "PodLook":
        amounts = dict[str, int]()
        for container in pod["spec"]["containers"]:
            for resource, amount in container.get("resources", {}).get("limits", {}).items():
                if is_whole_or_mig(resource):
                    amounts[resource] = amounts.get(resource, 0) + int(amount)
        return cls(
            uid=pod["metadata"]["uid"],
            name=pod["metadata"]["name"],
            node=pod["spec"].get("nodeName", ""),
            amounts=amounts,
            bound_for=bound_for,
        )


class Cut(NamedTuple):
    """Cards of a node that are cut now: what they had, and what they will have."""

    node: str
    before: Mapping[str, int]
    after: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Promises:
    """What was agreed for the fleet."""

    most_unavailable: Mapping[str, int]  # nodes at a time, by pool
    cordoned_by_admin: frozenset[str]
    untouched: Mapping[str, str]  # pods that nobody may evict, by UID: their names
    guarded: Mapping[str, str]  # pods that a PodDisruptionBudget guards now


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetLook:
    """Nodes, pods that have not ended, and cuts that begin."""

    nodes: Sequence[NodeLook]
    pods: Sequence[PodLook]
    cuts: Sequence[Cut] = ()


class Promise(NamedTuple):
    """Something that holds at any time, and how it is checked."""

    name: str
    complain: Callable[[FleetLook, Promises], list[str]]


def _too_many_unavailable(look: FleetLook, promises: Promises) -> list[str]:
    complaints = []
    for pool, most in promises.most_unavailable.items():
        unavailable = [
            node.name
            for node in look.nodes
            if node.pool == pool
            and (node.is_rolling_out or (node.is_cordoned and node.name not in promises.cordoned_by_admin))
        ]
        if len(unavailable) > most:
            complaints.append(f"{', '.join(unavailable)} are unavailable, {most} may be")
    return complaints


def _cordons_of_admin(look: FleetLook, promises: Promises) -> list[str]:
    return [
        f"{node.name} is not cordoned any more"
        for node in look.nodes
        if node.name in promises.cordoned_by_admin and not node.is_cordoned
    ]


def _evicted(look: FleetLook, pods: Mapping[str, str]) -> list[str]:
    present = {pod.uid for pod in look.pods}
    return [f"pod {name} is gone" for uid, name in pods.items() if uid not in present]


def _cut_under_pods(look: FleetLook, _: Promises) -> list[str]:
    complaints = []
    for cut in look.cuts:
        for resource, before in cut.before.items():
            after = cut.after.get(resource, 0)
            pods = [pod for pod in look.pods if pod.node == cut.node and pod.bound_for >= BOUND_LONG]
            held = sum(pod.amounts.get(resource, 0) for pod in pods)
            if after < min(before, held):
                complaints.append(f"{cut.node} is cut to {after} × {resource}, and pods hold {held}")
    return complaints


PROMISES: Final = (
    Promise("no more nodes at a time than maxUnavailable", _too_many_unavailable),
    Promise("a node that an admin cordoned stays so", _cordons_of_admin),
    Promise("no foreign pod is evicted", lambda look, promises: _evicted(look, promises.untouched)),
    Promise(
        "no pod is evicted against its PodDisruptionBudget",
        lambda look, promises: _evicted(look, promises.guarded),
    ),
    Promise("no device goes that a pod holds", _cut_under_pods),
)
