"""Which of the free devices to take.

Three wishes, in this order: a container's devices lie on as few cards as can be; what is left keeps the largest
holes, and of holes of one size the leftmost, so that the largest profile could still be cut; and cards that are begun
are finished before whole ones.
A wish, not a promise: the kubelet decides.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from tessera.core.devices.device import Card, Device, DeviceSet, Span
from tessera.core.mig.geometry import Product


@dataclass(slots=True)
class _CardState:
    card: Card
    free: list[Device]
    taken: list[Span] = field(default_factory=list)

    def largest_hole(self, also: Sequence[Span] = ()) -> tuple[int, int]:
        """The size of the largest place that is free, and how far to the left it is: only there does 4g fit."""
        left = self._open(also)
        return (left[0].size, -left[0].start) if left else (0, 0)

    def _open(self, also: Sequence[Span]) -> list[Span]:
        occupied = [*self.taken, *also]
        return [block for block in self.card.blocks if not any(block.overlaps(span) for span in occupied)]

    def _merit(self, chosen: Sequence[Span]) -> tuple[tuple[int, ...], int]:
        """The sizes of what stays free, and how far to the left its largest place is."""
        left = self._open(chosen)
        return tuple(block.size for block in left), -left[0].start if left else 0

    def best(self, count: int) -> list[Device]:
        """That many free devices, chosen one by one so that the largest holes stay."""
        if not self.card.blocks:
            return self.free[:count]
        left, chosen, spans = list(self.free), list[Device](), list[Span]()
        for _ in range(min(count, len(left))):
            device = max(left, key=lambda candidate: self._merit([*spans, *_span(candidate)]))
            left.remove(device)
            chosen.append(device)
            spans += _span(device)
        return chosen

    def take(self, device: Device) -> None:
        self.free.remove(device)
        self.taken += _span(device)


@lru_cache(maxsize=64)
def blocks_of(product: Product) -> tuple[Span, ...]:
    """Every place where a profile of the product can lie, largest first."""
    spans = {Span(start, shape.size) for shape in product.shapes for start in shape.starts}
    return tuple(sorted(spans, key=lambda span: (-span.size, span.start)))


def least_harmful(devices: Iterable[Device]) -> list[Device]:
    """Devices of one card in the order in which handing them out one by one keeps the largest holes; else from the right."""
    free = sorted(devices, key=lambda device: -device.place.span.start if device.place else 0)
    places = [device.place for device in free if device.place]
    return _CardState(places[0].card, free).best(len(free)) if places else free


def preferred(
    devices: DeviceSet,
    available: Iterable[str],
    must_include: Sequence[str],
    size: int,
    in_use_elsewhere: Iterable[Device] = (),
) -> list[str]:
    """The ids to take, `size` of them where there are so many; those that must be included come first.

    `in_use_elsewhere` are devices of other resources that lie on the same cards and are taken. Ids that are not
    known here (the list may just have changed) are left out.
    """
    chosen = [device for device_id in must_include if (device := devices.get(device_id))]
    cards = _cards(devices, set(available) - set(must_include), in_use_elsewhere)
    while len(chosen) < size:
        card = _next_card(cards, chosen, size - len(chosen))
        if card is None:
            break
        for device in card.best(size - len(chosen)):
            card.take(device)
            chosen.append(device)
    return [device.id for device in chosen[:size]]


def _cards(devices: DeviceSet, free: set[str], in_use_elsewhere: Iterable[Device]) -> list[_CardState]:
    """The cards as they are now; devices that lie on no card are together on one that has no index."""
    cards: dict[int | None, _CardState] = {}
    for device in (*devices, *in_use_elsewhere):
        card = device.place.card if device.place else Card(-1)
        state = cards.setdefault(card.index, _CardState(card, []))
        if device.resource == devices.resource and device.id in free:
            state.free.append(device)
        else:
            state.taken += _span(device)
    return list(cards.values())


def _next_card(cards: list[_CardState], chosen: list[Device], need: int) -> _CardState | None:
    usable = [card for card in cards if card.free]
    if not usable:
        return None
    begun = {device.place.card.index for device in chosen if device.place}
    numa = {node for device in chosen for node in device.numa}
    near: dict[tuple[int, ...], int] = {}  # free devices by NUMA node
    for card in usable:
        near[card.free[0].numa] = near.get(card.free[0].numa, 0) + len(card.free)

    def holes_after(taken: _CardState) -> list[tuple[int, int]]:
        spans = [span for device in taken.best(need) for span in _span(device)]
        return sorted((card.largest_hole(spans if card is taken else ()) for card in cards), reverse=True)

    def rank(card: _CardState) -> tuple[object, ...]:
        return (
            card.card.index in begun,  # the container's other devices are there
            min(need, len(card.free)),  # as few cards as can be
            bool(numa.intersection(card.free[0].numa)),
            near[card.free[0].numa] >= need,  # one NUMA node could serve all that is asked for
            holes_after(card),
            -len(card.free),  # cards that are begun before whole ones
            -card.card.index,
        )

    return max(usable, key=rank)


def _span(device: Device) -> list[Span]:
    return [device.place.span] if device.place else []
