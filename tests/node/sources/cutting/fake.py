"""A driver in memory: cards that NVML could have, and every fault that a test wants at any call."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from tessera.core.mig.cutting import Cut, GpuInstance
from tessera.core.mig.geometry import Product, product_named
from tessera.core.mig.placement import Instance, within_limits
from tessera.node.sources.cutting.journal import Journal
from tessera.node.sources.cutting.port import CardInUse, DriverRefused, NeedsReset
from tessera.node.sources.nvml_card import NvmlCard, NvmlMigDevice
from tessera.node.sources.nvml_library import NvmlEvent

H200 = product_named("H200")


def fits(product: Product, there: Sequence[Instance], more: Instance) -> bool:
    shapes = [shape for one in (*there, more) if (shape := product.shape(one.profile))]
    return not any(one.mask & more.mask for one in there) and within_limits(product, shapes)


class Killed(BaseException):
    """The process ended here."""


@dataclass
class FakeCard:
    """A card; it refuses what a real one would, and more where a test says so."""

    index: int = 0
    product: Product = H200
    mig: bool = True
    after_reset: bool | None = None  # the mode then; None: as now
    reset_needed: bool = False
    instances: dict[int, tuple[Instance, list[int]]] = field(default_factory=dict)
    in_use: set[int] = field(default_factory=set)
    busy: bool = False
    lost: str = ""
    made_so_far: int = 0
    # called before the nth call takes effect with its name and n, and after that with -n
    fault: Callable[[str, int], None] = lambda name, number: None
    calls: list[str] = field(default_factory=list)
    on_call: Callable[[str], None] = lambda name: None

    @property
    def uuid(self) -> str:
        return f"GPU-{self.index}"

    def copy(self) -> "FakeCard":
        copied = FakeCard(self.index, self.product, self.mig, self.after_reset, self.reset_needed)
        copied.instances = {number: (one, [*computes]) for number, (one, computes) in self.instances.items()}
        copied.in_use = {*self.in_use}
        copied.made_so_far = self.made_so_far
        return copied

    def add(self, *instances: Instance, computes: int = 1) -> "FakeCard":
        for one in instances:
            number = self._new(one)
            self.instances[number][1].extend(range(computes))
        return self

    @property
    def cut(self) -> Cut:
        placed = sorted((one for one, _ in self.instances.values()), key=lambda one: one.position)
        return Cut(tuple(placed), self.mig)

    @property
    def complete(self) -> bool:
        """Whether every GPU instance has its compute instance."""
        return all(len(computes) == 1 for _, computes in self.instances.values())

    def uuid_of(self, number: int, compute: int = 0) -> str:
        return f"MIG-{self.index}-{number}-{compute}"

    # the port

    def modes(self) -> tuple[bool, bool]:
        with self._calling("modes"):
            return self.mig, self.mig if self.after_reset is None else self.after_reset

    def switch(self, *, on: bool) -> None:
        with self._calling("switch"):
            if self.busy or self.instances:
                raise CardInUse("nvmlDeviceSetMigMode: In use by another client")
            if self.reset_needed:
                self.after_reset = on
                raise NeedsReset("nvmlDeviceSetMigMode: the card must be reset")
            self.mig = on

    def made(self) -> Sequence[GpuInstance]:
        with self._calling("made"):
            return [
                GpuInstance(number, one, tuple(computes), len(computes) == 1)
                for number, (one, computes) in sorted(self.instances.items())
            ]

    def create(self, instance: Instance) -> int:
        with self._calling("create"):
            assert self.mig
            if not fits(self.product, [one for one, _ in self.instances.values()], instance):
                raise DriverRefused("nvmlDeviceCreateGpuInstanceWithPlacement: Insufficient Resources")
            return self._new(instance)

    def create_compute(self, gpu_instance: int) -> None:
        with self._calling("create_compute"):
            assert not self.instances[gpu_instance][1]
            self.instances[gpu_instance][1].append(0)

    def destroy_compute(self, gpu_instance: int, compute_instance: int) -> None:
        with self._calling("destroy_compute"):
            if gpu_instance in self.in_use:
                raise CardInUse("nvmlComputeInstanceDestroy: In use by another client")
            self.instances[gpu_instance][1].remove(compute_instance)

    def destroy(self, gpu_instance: int) -> None:
        with self._calling("destroy"):
            if self.instances[gpu_instance][1]:
                raise CardInUse("nvmlGpuInstanceDestroy: In use by another client")
            del self.instances[gpu_instance]

    def _new(self, instance: Instance) -> int:
        self.made_so_far += 1
        number = self.made_so_far  # never the same twice: a UUID that stays means that the slice stayed
        self.instances[number] = (instance, [])
        return number

    @contextmanager
    def _calling(self, name: str) -> Iterator[None]:
        self.on_call(name)
        self.calls.append(name)
        number = len(self.calls)
        if self.lost:
            raise DriverRefused(f"{name}: {self.lost}")
        self.fault(name, number)
        yield
        if name not in ("modes", "made"):  # after a look is before the next call
            self.fault(name, -number)


class MemoryJournal(Journal):
    """A journal that tests can keep by the thousand."""

    def __init__(self) -> None:
        self.cards: dict[str, Cut] = {}

    def before(self, card: str) -> Cut | None:
        return self.cards.get(card)

    def begin(self, card: str, before: Cut) -> None:
        self.cards[card] = before

    def end(self, card: str) -> None:
        self.cards.pop(card, None)


class FakeDriver:
    """NVML for reading and for cutting, over the same cards."""

    def __init__(self, *cards: FakeCard) -> None:
        self.fakes = {card.uuid: card for card in cards}
        self.open_for_reading = False
        self.unanswered: dict[str, str] = {}
        self.instead: dict[str, NvmlCard] = {}  # what is read of some cards
        self.open_at_cut: list[bool] = []  # whether we had the library open when a card was cut

    def cards(self, busy: Collection[str] = ()) -> Sequence[NvmlCard]:
        self.open_for_reading = True
        return [self.instead.get(uuid) or self._card(card) for uuid, card in self.fakes.items()]

    def events(self) -> Sequence[NvmlEvent]:
        return ()

    def close(self) -> None:
        self.open_for_reading = False

    def product(self, uuid: str) -> Product:
        return self.fakes[uuid].product

    @contextmanager
    def open(self, uuid: str, on_call: Callable[[str], None]) -> Iterator[FakeCard]:
        self.open_at_cut.append(self.open_for_reading)
        self.fakes[uuid].on_call = on_call
        yield self.fakes[uuid]

    @staticmethod
    def _card(card: FakeCard) -> NvmlCard:
        return NvmlCard(
            card.index,
            card.uuid,
            card.product.name,
            143771,
            minor=card.index,
            mig_enabled=card.mig,
            mig_devices=tuple(
                NvmlMigDevice(
                    card.uuid_of(number, compute),
                    str(one.profile) if len(computes) == 1 else f"1c.{one.profile}",
                    number,
                    compute,
                    0,
                    one.position,
                    one.size,
                )
                for number, (one, computes) in card.instances.items()
                for compute in computes
            ),
            problem=f"does not answer: {card.lost}" if card.lost else "",
        )
