"""Each namespace's share of the budget: what it may spend on re-cuts that none of its pods takes.

A namespace begins no further re-cut while as many of its re-cuts of the last hour as its share were not taken by its pods, or not yet. Re-cuts that its pods
took do not count: pods take a device within seconds, so a namespace whose pods take what they want gets the whole budget.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from operator import attrgetter
from typing import Final

from tessera.core.autopilot.values import Charge, Use, Want
from tessera.core.mig.profile import MigProfile

HOUR: Final = 3600.0  # seconds that the budget is for
_PART: Final = 4  # a namespace's share is a quarter of the budget, and at least one re-cut
_TAKEN_WITHIN: Final = 120.0  # seconds after it was offered


def share_of(recuts_per_hour: int) -> int:
    """How many re-cuts of a namespace may be unused, or not taken yet, within an hour."""
    return max(1, recuts_per_hour // _PART)


def count_lately(charges: Iterable[Charge], now: float) -> tuple[Charge, ...]:
    """The re-cuts of the last hour. Times that are yet to come, which a clock that was ahead has written, count as now."""
    clamped = (
        charge
        if max(charge.at, charge.offered or charge.at) <= now
        else replace(charge, at=min(charge.at, now), offered=charge.offered and min(charge.offered, now))
        for charge in charges
    )
    return tuple(charge for charge in clamped if now - charge.at < HOUR)


class Allowances:
    """How many re-cuts each namespace may begin."""

    def __init__(self, charges: Iterable[Charge], recuts_per_hour: int) -> None:
        """`charges`: those of the last hour."""
        self._share = share_of(recuts_per_hour)
        self._spent: dict[str, list[float]] = {}  # by namespace: when its re-cuts began, the oldest first
        self._refused = Counter[tuple[MigProfile, str]]()  # devices, by profile and namespace
        for charge in sorted(charges, key=lambda charge: charge.at):
            if charge.use is not Use.USED:
                self.spend(charge.namespace, charge.at)

    def left(self, namespace: str) -> int:
        """How many more re-cuts the namespace may begin now."""
        return self._share - len(self._spent.get(namespace, ()))

    def free_at(self, namespace: str) -> float | None:
        """When a namespace that has spent its share may begin another re-cut, at the latest; None: now."""
        return None if self.left(namespace) > 0 else self._spent[namespace][-self._share] + HOUR

    def spend(self, namespace: str, at: float) -> int:
        """A re-cut begins for the namespace; returns how many more it may begin."""
        self._spent.setdefault(namespace, []).append(at)
        return self.left(namespace)

    def admit(self, wants: Iterable[Want]) -> list[Want]:
        """The wants of namespaces that may begin a re-cut; the others are refused."""
        admitted = []
        for want in wants:
            if self.left(want.namespace) > 0:
                admitted.append(want)
            else:
                self.refuse(want.namespace, want.profile, want.number)
        return admitted

    def refuse(self, namespace: str, profile: MigProfile, number: int) -> None:
        """Devices that the namespace wants get no room, since it has spent its share."""
        if number:
            self._refused[profile, namespace] += number

    def refused(self) -> dict[MigProfile, tuple[int, float | None]]:
        """The devices that were refused, and when the first of their namespaces may begin another re-cut, at the latest."""
        numbers, moments = Counter[MigProfile](), dict[MigProfile, list[float]]()
        for (profile, namespace), number in self._refused.items():
            numbers[profile] += number
            free_at = self.free_at(namespace)
            moments.setdefault(profile, []).extend(() if free_at is None else (free_at,))
        return {profile: (number, min(moments[profile], default=None)) for profile, number in numbers.items()}


@dataclass(frozen=True, slots=True)
class Taker:
    """A pod that holds devices of a node, or held some until lately."""

    namespace: str
    at: float  # when it was bound to the node
    devices: Mapping[str, int]  # by profile


def settle(
    charges: Sequence[Charge], takers: Callable[[str], Sequence[Taker]], now: float
) -> tuple[Charge, ...]:
    """What became of the re-cuts of the last hour. `takers`: by node, the pods that hold its devices.

    The scheduler does not know for whom a device was made. So two namespaces whose pods took each other's devices exchange their re-cuts.
    """
    settling = _Settling([*count_lately(charges, now)], takers)
    settling.note_taken()
    if settling.exchange():
        settling.note_taken()
    undecided_since = dict[
        str, float
    ]()  # by node: when the first of its re-cuts began that may still be taken
    for charge in settling.charges:
        if not _is_decided(charge, now):
            undecided_since[charge.node] = min(charge.at, undecided_since.get(charge.node, charge.at))
    return tuple(
        _forget_place(charge) if _is_over(charge, undecided_since, now) else charge
        for charge in settling.charges
    )


def _is_decided(charge: Charge, now: float) -> bool:
    return charge.offered is not None and now > charge.offered + _TAKEN_WITHIN


def _is_over(charge: Charge, undecided_since: Mapping[str, float], now: float) -> bool:
    """Whether nothing more is asked about a re-cut: also no device that it has could count for a later one of its node."""
    if charge.offered is None or not _is_decided(charge, now):
        return False
    first = undecided_since.get(charge.node, inf)
    return charge.use is not Use.USED or first >= charge.offered + _TAKEN_WITHIN


def _forget_place(charge: Charge) -> Charge:
    """A re-cut whose time is over, without what is not asked for any more: names of nodes are long."""
    use = Use.USED if charge.use is Use.USED else Use.UNUSED
    return replace(charge, node="", profiles=(), use=use)


class _Settling:
    def __init__(self, charges: list[Charge], takers: Callable[[str], Sequence[Taker]]) -> None:
        self.charges = charges
        nodes = {charge.node for charge in charges if _is_awaited(charge)}
        # by node: its pods in the order in which they came, each with the devices that count for no re-cut yet
        self._takers = {
            node: [(taker, dict(taker.devices)) for taker in sorted(takers(node), key=attrgetter("at"))]
            for node in nodes
        }
        for charge in charges:
            if charge.use is Use.USED and charge.node in nodes:
                self._take_device(charge.namespace, charge)

    def note_taken(self) -> None:
        """Mark the re-cuts of which pods of their own namespace have a device."""
        awaited = [place for place, charge in enumerate(self.charges) if _is_awaited(charge)]
        for place in sorted(awaited, key=lambda place: len(self.charges[place].profiles)):
            charge = self.charges[place]
            if self._take_device(charge.namespace, charge):
                self.charges[place] = replace(charge, use=Use.USED)

    def exchange(self) -> bool:
        """Let a namespace have the re-cut whose device its pod took, for one of its own; returns whether any did."""
        exchanged = False
        for place, charge in enumerate(self.charges):
            if not _is_awaited(charge):
                continue
            for namespace in dict.fromkeys(taker.namespace for taker, _ in self._takers[charge.node]):
                other_place = self._find_open(namespace, charge)
                if other_place is not None and self._take_device(namespace, charge):
                    other = self.charges[other_place]
                    self.charges[other_place] = replace(other, namespace=charge.namespace)
                    self.charges[place] = replace(charge, namespace=namespace, use=Use.USED)
                    exchanged = True
                    break
        return exchanged

    def _find_open(self, namespace: str, charge: Charge) -> int | None:
        """A re-cut of the namespace, for the same profile, that nobody has taken."""
        for place, other in enumerate(self.charges):
            is_alike = other.namespace == namespace and not {*other.profiles}.isdisjoint(charge.profiles)
            if is_alike and other.use is Use.OPEN and other is not charge:
                return place
        return None

    def _take_device(self, namespace: str, charge: Charge) -> bool:
        """Count a device that a pod of the namespace took for a re-cut; False where no device is left that could."""
        if charge.offered is None:
            return False
        latest = charge.offered + _TAKEN_WITHIN
        for taker, left in self._takers[charge.node]:
            if taker.namespace == namespace and charge.at < taker.at <= latest:
                for profile in charge.profiles:
                    if left.get(profile, 0) > 0:
                        left[profile] -= 1
                        return True
        return False


def _is_awaited(charge: Charge) -> bool:
    """Whether the devices are there, and pods may still take them."""
    return charge.use is Use.OPEN and charge.offered is not None
