"""What a namespace holds by rooms against others: up to eight devices or a quarter of the resource, whichever is more.

A room beyond that is the namespace's own. It counts when a pod of that namespace is decided about, and nowhere else. So a namespace never takes
twice what is free, and cannot take it from others by pods that are not placed.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from tessera.core.admission.view.free_nodes import FreeNodes
from tessera.core.admission.view.room_holders import RoomHolder

_LEAST: Final = 8 * 10**9  # devices, in billionths
_PART: Final = 4  # of all devices of a resource
# Rooms of one namespace beyond its share. A decision in another namespace looks past each of them: some 10 us where they are on as many nodes.
MOST_OWN: Final = 256
_NOTHING: Final[Mapping[str, int]] = MappingProxyType({})


class RoomShares:
    """Which rooms count against all, and which against their own namespace alone."""

    def __init__(self, nodes: FreeNodes) -> None:
        self.least = _LEAST
        self._nodes = nodes
        self._shared: dict[str, dict[str, int]] = {}  # by namespace: devices of rooms that count against all
        self._own: dict[str, dict[str, RoomHolder]] = {}  # by namespace, oldest room first

    @property
    def own(self) -> int:
        """How many rooms count against their own namespace alone."""
        return sum(map(len, self._own.values()))

    @property
    def with_own(self) -> list[str]:
        """The namespaces that have such rooms."""
        return list(self._own)

    def is_full(self, namespace: str) -> bool:
        """Whether no more rooms are kept for a namespace."""
        return len(self._own.get(namespace, ())) >= MOST_OWN

    def keep(self, holder: RoomHolder) -> None:
        """Keep a room on the holder's node."""
        holder.is_own = not self.is_within(holder)
        if holder.is_own:
            self._own.setdefault(holder.namespace, {})[holder.key] = holder
        else:
            shared = self._shared.setdefault(holder.namespace, {})
            for resource, amount in holder.group.shape.gpus:
                shared[resource] = shared.get(resource, 0) + amount
        self._nodes.keep(holder.node, holder.group.shape.usage, holder.space)

    def give_back(self, holder: RoomHolder, node: str) -> None:
        """A room on a node ends."""
        self._nodes.give_back(node, holder.group.shape.usage, holder.space)
        if holder.is_own:
            own = self._own[holder.namespace]
            del own[holder.key]
            if not own:
                del self._own[holder.namespace]
            return
        shared = self._shared[holder.namespace]
        for resource, amount in holder.group.shape.gpus:
            shared[resource] -= amount
            if not shared[resource]:
                del shared[resource]
        if not shared:
            del self._shared[holder.namespace]

    def next_shared(self, namespace: str) -> RoomHolder | None:
        """The oldest room that was the namespace's own and counts against all from now on; None: none does."""
        own = self._own.get(namespace)
        if own is None or not self.is_within(holder := next(iter(own.values()))):
            return None
        freed = self._nodes.freed
        self.give_back(holder, holder.node)
        self.keep(holder)
        self._nodes.freed = freed  # no other pod is offered it
        return holder

    def is_within(self, holder: RoomHolder) -> bool:
        """Whether a pod's room would count against all."""
        held = self._shared.get(holder.namespace, _NOTHING)
        return all(
            held.get(resource, 0) + amount <= self._most(resource)
            for resource, amount in holder.group.shape.gpus
        )

    def _most(self, resource: str) -> int:
        return max(self.least, self._nodes.total(resource) // _PART)
