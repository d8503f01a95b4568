"""How much is kept of a pod that is followed, whatever its author writes into it.

A pod may have a megabyte, and a process may follow 100,000 pods. A pod that has more than these bounds is followed in part: it asks for
`UNCOUNTED`, which no node has. So nothing that is free is kept for it, no card is cut for it, and what it takes of its node still counts.
The same holds for further large pods of a namespace whose large pods together have reached their bound.
"""

from collections.abc import Collection, Iterable
from typing import Final

from tessera.core.kubernetes.node import STATED_BY_EVERY_NODE
from tessera.core.kubernetes.pod import Pod
from tessera.core.mig.geometry import is_known
from tessera.core.resources import MIG_PREFIX, PODS, SHARED, WHOLE_GPU

UNCOUNTED: Final = (
    "(more than is counted)"  # in place of resources that are not kept; no resource's name has spaces
)
MOST_STATED: Final = 1000  # resources of nodes: a node's credentials can state any
_MOST_OTHERS: Final = 2048  # bytes of resources that no node with GPUs states: some ten of them
_MOST_PLACE: Final = 32 * 1024  # bytes of selectors, required node affinity and tolerations: 350 nodes' names
_ALWAYS: Final = STATED_BY_EVERY_NODE | {PODS}
_NOTHING_STATED: Final = frozenset[str]()
_EACH: Final = 80  # bytes of a text or of a resource's amount, besides its characters
LARGE: Final = 2048  # bytes from which the size of a pod counts: a usual pod has some hundred
_MOST_OF_NAMESPACE: Final = 2 * 1024 * 1024  # bytes of large pods: 64 of the largest


def is_counted(resource: str, stated: Collection[str] = _NOTHING_STATED) -> bool:
    """Whether an amount is kept in any case: some node states the resource, or a known card may have it."""
    if resource in _ALWAYS or resource in stated:
        return True
    device = resource.removesuffix(SHARED)
    return device == WHOLE_GPU or (device.startswith(MIG_PREFIX) and is_known(device[len(MIG_PREFIX) :]))


def kept_resources(resources: Iterable[str], stated: Collection[str] = _NOTHING_STATED) -> list[str]:
    """The resources of a pod that are kept: those that are counted, and the first of the others."""
    kept, left = list[str](), _MOST_OTHERS
    for resource in resources:
        if not is_counted(resource, stated):
            left -= _EACH + len(resource)
            if left < 0:
                continue
        kept.append(resource)
    return kept


def resource_bytes(resources: Iterable[str]) -> int:
    """About how many bytes it takes to keep amounts of resources."""
    return sum([_EACH + len(resource) for resource in resources])


def is_small_place(place: Pod) -> bool:
    """Whether it is kept where a pod may go."""
    return place_bytes(place) <= _MOST_PLACE


def place_bytes(place: Pod) -> int:
    """About how many bytes it takes to keep where a pod may go."""
    size = sum([2 * _EACH + len(key) + len(value) for key, value in place.node_selector.items()])
    for one in place.tolerations:
        size += 2 * _EACH + len(one.key) + len(one.operator) + len(one.value) + len(one.effect)
    for term in place.required_terms or ():
        size += _EACH
        for condition in (*term.expressions, *term.fields):
            size += 2 * _EACH + len(condition.key) + len(condition.operator)
            size += sum([_EACH + len(value) for value in condition.values])
    return size


class NamespaceBytes:
    """How many bytes each namespace has in objects that a consumer keeps. Small objects do not count: their number bounds them."""

    def __init__(self) -> None:
        self._by_namespace: dict[str, int] = {}
        self._by_object: dict[tuple[str, str], int] = {}  # the sizes of large objects

    def __bool__(self) -> bool:
        return bool(self._by_object)

    def take(self, namespace: str, name: str, size: int) -> bool:
        """Count an object in place of its older version; False: it does not fit, and does not count."""
        self.remove(namespace, name)
        if size < LARGE:
            return True
        total = self._by_namespace.get(namespace, 0) + size
        if total > _MOST_OF_NAMESPACE:
            return False
        self._by_namespace[namespace] = total
        self._by_object[namespace, name] = size
        return True

    def remove(self, namespace: str, name: str) -> None:
        """Forget an object, if it counts."""
        size = self._by_object.pop((namespace, name), 0)
        if size and size == self._by_namespace[namespace]:
            del self._by_namespace[namespace]
        elif size:
            self._by_namespace[namespace] -= size

    def clear(self) -> None:
        """Forget all objects."""
        self._by_namespace.clear()
        self._by_object.clear()
