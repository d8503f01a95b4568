"""What is kept of the pods of a cluster, to know what is free: what a bound pod takes of its node, and where one that waits may go.

There may be a hundred thousand of them: what pods have in common is made once by who reads them.
"""

from collections.abc import Collection
from typing import Final

from tessera.core.admission.view.view import nanos
from tessera.core.devices.followed import UNCOUNTED, kept_resources
from tessera.core.kubernetes.pod import Pod, needs
from tessera.core.resources import PODS, is_any_gpu
from tessera.core.values import value

Usage = tuple[tuple[str, int], ...]  # resource and billionths of it, never zero; GPU resources first
_PLACE: Final = (PODS, 10**9)
_MORE: Final = (UNCOUNTED, 10**9)  # of a pod that is followed in part


@value
class Origin:
    """By what a pod that was admitted is known when it is there: it has no uid yet, and may have no name."""

    namespace: str
    owner: str  # the uid of its controller; empty: it has none
    name: str  # its generateName, or its name


class Shape:
    """Where a pod may go and what it takes there. For pods of equal shape the same nodes have room."""

    __slots__ = ("_hash", "_key", "gpus", "placement", "usage")

    def __init__(self, placement: Pod, usage: Usage) -> None:
        self.placement = placement
        self.usage = usage
        self.gpus = gpus_of(usage)
        selector = frozenset(placement.node_selector.items())
        self._key = (
            placement.node_name,
            selector,
            placement.required_terms,
            placement.tolerations,
            usage,
        )
        self._hash = hash(self._key)

    @classmethod
    def of(cls, pod: Pod) -> "Shape":
        return cls(pod, usage_of(pod))

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Shape) and self._hash == other._hash and self._key == other._key
        )

    def __hash__(self) -> int:
        return self._hash


@value
class BoundPod:
    """A pod that has a node: it takes so much there until it is gone."""

    node: str
    usage: Usage
    origin: Origin | None = None  # None: it asks for no GPU

    @property
    def is_partial(self) -> bool:
        """Whether it takes more than is counted here."""
        return is_partial(self.usage)


@value
class WaitingPod:
    """A pod that asks for GPUs and has no node yet."""

    shape: Shape
    origin: Origin
    priority: int = 0
    created: float = 0.0  # Unix time
    verdict: str = ""  # the scheduler's words, if it found no place
    # No room is kept for it: the scheduler does not look at it, since it has gates or another scheduler's name, or it asks for more
    # than is counted.
    held: bool = False
    judged: float | None = (
        None  # since when the scheduler finds no place, in Unix time; None: it has said nothing
    )

    @property
    def usage(self) -> Usage:
        return self.shape.usage

    @property
    def is_partial(self) -> bool:
        """Whether it asks for more than is counted here: then the scheduler alone knows where it may go."""
        return is_partial(self.shape.usage)


ViewedPod = BoundPod | WaitingPod


def usage_of(pod: Pod) -> Usage:
    """What a pod takes of its node, and its place among the node's pods."""
    return ordered({resource: nanos(amount) for resource, amount in needs(pod).items()})


def ordered(amounts: dict[str, int]) -> Usage:
    """The usage of a pod that needs these amounts."""
    gpus, others = list[tuple[str, int]](), list[tuple[str, int]]()
    for name in sorted(amounts):
        if (amount := amounts[name]) > 0:
            (gpus if is_any_gpu(name) else others).append((name, amount))
    return (*gpus, *others, _PLACE)


def bounded(usage: Usage, stated: Collection[str]) -> Usage:
    """What is kept of a pod's usage; `stated` is what nodes state."""
    kept = frozenset(kept_resources([resource for resource, _ in usage], stated))
    return (
        usage if len(kept) == len(usage) else without_place(tuple([one for one in usage if one[0] in kept]))
    )


def without_place(usage: Usage) -> Usage:
    """The same usage of a pod that asks for more than is counted."""
    return usage if is_partial(usage) else (*usage[:-1], _MORE, usage[-1])


def is_partial(usage: Usage) -> bool:
    """Whether a pod asks for more than is counted."""
    return _MORE in usage


def gpus_of(usage: Usage) -> Usage:
    """The GPUs of a usage, which come first there."""
    for number, (resource, _) in enumerate(usage):
        if not is_any_gpu(resource):
            return usage[:number]
    return usage
