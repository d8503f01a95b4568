"""What is free on each node with GPUs, in the bits of the view: allocatable, less what bound pods take, less the rooms that are kept.

Sums change at once; the columns follow when they are looked at, so that many changes of one node cost one move.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from tessera.core.admission.view.pods import Usage
from tessera.core.admission.view.usable import Column, OfferColumns, move_columns
from tessera.core.kubernetes.node import NO_OFFER, STATED_BY_EVERY_NODE, Node, Offer
from tessera.core.kubernetes.scheduling import is_passing
from tessera.core.resources import PODS

_ONE: Final = 10**9  # of a resource, in billionths
_UNLIMITED_BY_DEFAULT: Final = STATED_BY_EVERY_NODE | {
    PODS
}  # of these a node that says nothing has any amount
_NOTHING: Final = Column()
_NO_SUMS: Final[Mapping[str, int]] = {}


class _FreeNode:
    """A node with GPUs: what it has, and what of it is in the columns."""

    __slots__ = ("bit", "has", "in_others", "kept", "lent", "offer", "offered", "others", "shut")

    def __init__(self, bit: int) -> None:
        self.bit = bit
        self.offered = NO_OFFER  # in the columns
        self.in_others: Mapping[str, int] = {}
        self.kept: dict[str, int] = {}  # rooms

    def take(self, node: Node, offer: Offer, others: Mapping[str, int], transient: tuple[str, ...]) -> None:
        self.offer = offer
        self.others = others
        self.has: Mapping[str, int] = {r: count * _ONE for r, count in offer.counts} | dict(others)
        # within its grace a resource is as if nothing of it were taken
        self.lent = frozenset(
            name for name in node.unavailable if not node.allocatable.get(name) and not node.is_served(name)
        )
        self.shut = not node.ready or any(
            one.effect in ("NoSchedule", "NoExecute") and is_passing(one.key, transient)
            for one in node.taints
        )


class FreeNodes:
    """The columns of what is free, and the sums behind them."""

    def __init__(self, transient: tuple[str, ...] = ()) -> None:
        self.columns = OfferColumns()
        self.others: dict[str, Column] = {}
        self.freed = 0  # the nodes that may have room for more than before
        self._every = 0
        self._transient = transient
        self._nodes: dict[str, _FreeNode] = {}
        self._names: dict[int, str] = {}
        self._taken: dict[str, dict[str, int]] = {}  # by bound pods, of nodes without GPUs too
        self._stale: set[str] = set()  # nodes whose columns are to be brought up to date
        self._totals: Counter[str] = Counter()  # of all nodes, by GPU resource
        self._own: dict[str, dict[str, dict[str, int]]] = {}  # rooms that one namespace sees, by it and node
        self._seen_by = ""  # whose own rooms are in the columns; empty: nobody's

    def __contains__(self, name: str) -> bool:
        return name in self._nodes

    def bit(self, name: str) -> int:
        return self._nodes[name].bit

    def put(self, name: str, bit: int, node: Node, offer: Offer, others: Mapping[str, int]) -> None:
        """A node with GPUs is new or changed; `others` is what it has beside those, in billionths."""
        one = self._nodes.get(name)
        if one is None:
            one = self._nodes[name] = _FreeNode(bit)
            self._names[bit] = name
            self._every |= bit
        else:
            self._totals.subtract(dict(one.offer.counts))
        self._totals.update(dict(offer.counts))
        one.take(node, offer, others, self._transient)
        self._touch(name, one)

    def remove(self, name: str) -> None:
        """A node is gone, or has no GPUs any more; no pod has a room there."""
        one = self._nodes.pop(name)
        self._stale.discard(name)
        self._totals.subtract(dict(one.offer.counts))
        self._move(one, NO_OFFER, _NO_SUMS)
        self._every ^= one.bit
        self.freed &= ~one.bit
        del self._names[one.bit]

    def bind(self, name: str, usage: Usage) -> None:
        """A pod is bound to a node."""
        _add(self._taken.setdefault(name, {}), usage)
        if name in self._nodes:
            self._stale.add(name)

    def unbind(self, name: str, usage: Usage) -> None:
        taken = self._taken[name]
        _subtract(taken, usage)
        if not taken:
            del self._taken[name]
        if (one := self._nodes.get(name)) is not None:
            self._touch(name, one)

    def total(self, resource: str) -> int:
        """How much of a GPU resource all nodes have together, in billionths."""
        return self._totals[resource] * _ONE

    def keep(self, name: str, usage: Usage, space: str = "") -> None:
        """Keep a room on a node; `space`: the namespace that alone sees it."""
        _add(self._own.setdefault(space, {}).setdefault(name, {}) if space else self._nodes[name].kept, usage)
        self._stale.add(name)

    def give_back(self, name: str, usage: Usage, space: str = "") -> None:
        one = self._nodes[name]
        if space:
            nodes = self._own[space]
            _subtract(nodes[name], usage)
            if not nodes[name]:
                del nodes[name]
            if not nodes:
                del self._own[space]
        else:
            _subtract(one.kept, usage)
        self._touch(name, one)

    def look_as(self, namespace: str) -> None:
        """From now on the columns have the rooms that this namespace sees."""
        if not self.looks_as(namespace):
            space = namespace if namespace in self._own else ""
            self._stale.update(self._own.get(self._seen_by, ()), self._own.get(space, ()))
            self._seen_by = space

    def looks_as(self, namespace: str) -> bool:
        """Whether the columns have the rooms that this namespace sees."""
        return self._seen_by == (namespace if namespace in self._own else "")

    def spaces_on(self, name: str) -> list[str]:
        """The namespaces that have rooms on a node which they alone see."""
        return [space for space, nodes in self._own.items() if name in nodes] if self._own else []

    @property
    def has_own(self) -> bool:
        """Whether some room is seen by its own namespace alone."""
        return bool(self._own)

    def lacks(self, name: str, space: str = "") -> list[str]:
        """Of what more is taken and kept than the node has; of everything that is kept where it has nothing free.

        `space`: of what this namespace alone sees.
        """
        one, taken = self._nodes[name], self._taken.get(name, _NO_SUMS)
        kept = self._own.get(space, {}).get(name, _NO_SUMS) if space else one.kept
        if one.shut:
            return list(kept)
        return [
            resource
            for resource, amount in kept.items()
            if resource not in one.lent
            and (has := one.has.get(resource, _default_of(resource))) is not None
            and has < amount + taken.get(resource, 0) + (one.kept.get(resource, 0) if space else 0)
        ]

    def left(self, name: str, resource: str, namespace: str = "") -> int | None:
        """How much of a resource is free on a node, in billionths, as a namespace sees it; None: any amount."""
        one = self._nodes[name]
        has = one.has.get(resource, _default_of(resource))
        if one.shut or has is None or resource in one.lent:
            return 0 if one.shut else has
        own = self._own.get(namespace, {}).get(name, _NO_SUMS).get(resource, 0)
        return has - self._taken.get(name, _NO_SUMS).get(resource, 0) - one.kept.get(resource, 0) - own

    def would_fit(self, name: str, usage: Usage, namespace: str, without: Sequence[Usage] = ()) -> bool:
        """Whether a node has all of it free, as a namespace sees it, once these are given back."""
        for resource, amount in usage:
            left = self.left(name, resource, namespace)
            if left is None or left >= amount:
                continue
            if left + sum(given for back in without for kept, given in back if kept == resource) < amount:
                return False
        return True

    def first(self, among: int, usage: Usage, namespace: str = "") -> str | None:
        """The first of some nodes that has all of it free, as a namespace sees it."""
        self.look_as(namespace)
        if self._stale:
            self.refresh()
        counts, others = self.columns.counts, self.others
        for resource, amount in usage:
            column = others.get(resource)
            if column is not None:
                having = column.at_least(amount)
                among &= having | ~column.all if resource in _UNLIMITED_BY_DEFAULT else having
            elif resource not in _UNLIMITED_BY_DEFAULT:
                among &= counts.get(resource, _NOTHING).at_least(-(-amount // _ONE))
            if not among:
                return None
        return self._names[among & -among]

    def find_free(self, among: int, requests: Iterable[Usage]) -> list[Usage]:
        """The requests for GPUs that one of some nodes has free. They are many, and the nodes are mostly one."""
        self.look_as("")
        if self._stale:
            self.refresh()
        name = self._names.get(among)
        most = self.columns.most(among) if name is None else dict(self._nodes[name].offered.counts)
        found = []
        for gpus in requests:
            for resource, amount in gpus:
                if most.get(resource, 0) * _ONE < amount:
                    break
            else:
                if name is not None or self.first(among, gpus) is not None:
                    found.append(gpus)
        return found

    def refresh(self) -> None:
        """Bring the columns up to date."""
        own = self._own.get(self._seen_by, {})
        for name in self._stale:
            one = self._nodes[name]
            taken = self._taken.get(name, _NO_SUMS)
            if name in own:
                taken = {**taken}
                _add(taken, own[name].items())
            self._move(one, _free_offer(one, taken), _free_others(one, taken))
        self._stale.clear()

    def _touch(self, name: str, one: _FreeNode) -> None:
        self._stale.add(name)
        self.freed |= one.bit

    def _move(self, one: _FreeNode, offer: Offer, others: Mapping[str, int]) -> None:
        if offer != one.offered:
            self.columns.move(one.offered, offer, one.bit)
            one.offered = offer
        if others != one.in_others:
            move_columns(self.others, one.in_others, others, one.bit)
            one.in_others = others


def _free_offer(one: _FreeNode, taken: Mapping[str, int]) -> Offer:
    """What of a node's GPUs is free; nothing where no other pod finds a place."""
    offer, kept, lent = one.offer, one.kept, one.lent
    places = one.has.get(PODS)
    if one.shut or (places is not None and places - taken.get(PODS, 0) - kept.get(PODS, 0) < _ONE):
        return NO_OFFER
    counts = tuple(
        (resource, free)
        for resource, count in offer.counts
        if (
            free := count
            if resource in lent
            else count - -(-(taken.get(resource, 0) + kept.get(resource, 0)) // _ONE)
        )
        > 0
    )
    if counts == offer.counts:
        return offer
    if not counts:
        return NO_OFFER
    dra = offer.dra and offer.dra.intersection(resource for resource, _ in counts)
    return Offer(counts, offer.card_memory_gb, offer.whole, dra)


def _free_others(one: _FreeNode, taken: Mapping[str, int]) -> Mapping[str, int]:
    kept, lent = one.kept, one.lent
    return {
        resource: amount
        if resource in lent
        else max(0, amount - taken.get(resource, 0) - kept.get(resource, 0))
        for resource, amount in one.others.items()
    }


def _default_of(resource: str) -> int | None:
    return None if resource in _UNLIMITED_BY_DEFAULT else 0


def _add(sums: dict[str, int], usage: Iterable[tuple[str, int]]) -> None:
    for resource, amount in usage:
        sums[resource] = sums.get(resource, 0) + amount


def _subtract(sums: dict[str, int], usage: Usage) -> None:
    for resource, amount in usage:
        left = sums[resource] - amount
        if left:
            sums[resource] = left
        else:
            del sums[resource]
