"""One card, cut: journal, steps, verified; where NVML refuses, what was there before is put back.

Everything is looked up on the card itself, never remembered, so a cut that was killed at any point is taken up by the next
one: it finishes it, or puts back what the journal says was there before the first of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tessera.core.mig.cutting import Cut, GpuInstance, Steps, steps
from tessera.core.mig.geometry import Product
from tessera.node.sources.cutting.journal import Journal
from tessera.node.sources.cutting.port import CardInUse, DriverRefused, NeedsReset, RefusedForGood, Writer


@dataclass(frozen=True, slots=True)
class Done:
    """The card is as it was wanted, as far as what is kept has room for it."""


@dataclass(frozen=True, slots=True)
class Busy:
    """Some program that is no pod uses what was to go; try again later."""

    message: str


@dataclass(frozen=True, slots=True)
class ResetNeeded:
    message: str


@dataclass(frozen=True, slots=True)
class Failed:
    """NVML refused; the card is as it was before, unless the message says otherwise."""

    message: str
    lasting: bool = False  # whether it would refuse the same again


Outcome = Done | Busy | ResetNeeded | Failed


@dataclass(frozen=True, slots=True)
class Order:
    """What is to become of a card."""

    card: str  # UUID
    product: Product
    goal: Cut
    free: frozenset[int] = (
        frozenset()
    )  # numbers of the GPU instances that may go, if the goal does not want them
    switch: bool = False  # whether MIG mode may be switched: no program uses the card


def cut(order: Order, card: Writer, journal: Journal) -> Outcome:
    before, goal = journal.before(order.card), order.goal
    now, after = card.modes()
    if now != goal.mig and after == goal.mig:
        return ResetNeeded(_reset(on=goal.mig))
    if now != goal.mig and not order.switch:
        return Busy(f"MIG mode is {'on' if now else 'off'}")
    made = card.made() if now else ()
    work = _Cut(order, card)
    if now == goal.mig and not work.steps(goal, made):
        journal.end(order.card)
        return Done()
    before = before or Cut(tuple(one.instance for one in made), now)
    try:
        journal.begin(order.card, before)
    except OSError as error:
        return Failed(f"nothing was changed, because the journal cannot be written: {error}")
    try:
        work.carry_out(goal)
    except NeedsReset:
        journal.end(order.card)
        return ResetNeeded(_reset(on=goal.mig))
    except DriverRefused as error:
        return _put_back(work, before, journal, error)
    journal.end(order.card)
    return Busy("; ".join(work.busy.values())) if work.busy else Done()


def _reset(*, on: bool) -> str:
    return (
        f"MIG mode will be {'on' if on else 'off'} after a reset of the card (nvidia-smi --gpu-reset) or a reboot, "
        "which is left to you"
    )


def _put_back(work: "_Cut", before: Cut, journal: Journal, error: DriverRefused) -> Outcome:
    work.busy.clear()
    try:
        work.carry_out(before)
    except DriverRefused as worse:
        return Failed(f"{error}; what was there before could not be put back: {worse}")
    if work.busy:
        stuck = "; ".join(work.busy.values())
        return Failed(f"{error}; what was there before could not be put back whole: {stuck}")
    journal.end(work.order.card)
    return (
        Busy(str(error))
        if isinstance(error, CardInUse)
        else Failed(str(error), isinstance(error, RefusedForGood))
    )


class _Cut:
    """One cut of one card."""

    def __init__(self, order: Order, card: Writer) -> None:
        self.order = order
        self.busy: dict[int, str] = {}  # GPU instances that some program uses, with NVML's message: they stay
        self._card = card
        self._ours: set[int] = set()  # made here: no pod was given them yet

    def carry_out(self, goal: Cut) -> None:
        card = self._card
        now, _ = card.modes()
        if goal.mig and not now:
            card.switch(on=True)
        if goal.mig or now:
            for one in self.steps(goal, card.made()).destroy:
                self._destroy(one)
            todo = self.steps(goal, card.made())
            for one in todo.complete:
                if self._emptied(one):
                    card.create_compute(one.id)
            for instance in todo.create:
                number = card.create(instance)
                self._ours.add(number)
                card.create_compute(number)
            left = self.steps(goal, card.made())
            if left:
                raise DriverRefused(f"the card is not as it was cut: {_describe(left)}")
        if now and not goal.mig and not card.made():
            card.switch(on=False)

    def steps(self, goal: Cut, made: Sequence[GpuInstance]) -> Steps:
        free = self.order.free | self._ours
        # what has no compute instance is no device, so no program can use it: a cut that was killed left it
        kept = {one.id for one in made if one.computes and one.id not in free} | {*self.busy}
        return steps(self.order.product, made, goal.instances, kept)

    def _emptied(self, one: GpuInstance) -> bool:
        """Destroy the compute instances of a GPU instance; False: some program uses one."""
        try:
            for number in one.computes:
                self._card.destroy_compute(one.id, number)
        except CardInUse as error:
            self.busy[one.id] = f"{one.instance}: {error}"
        return one.id not in self.busy

    def _destroy(self, one: GpuInstance) -> None:
        if not self._emptied(one):
            return
        try:
            self._card.destroy(one.id)
        except CardInUse as error:
            self.busy[one.id] = f"{one.instance}: {error}"


def _describe(left: Steps) -> str:
    missing = [str(one) for one in left.create] + [str(one.instance) for one in left.complete]
    too_many = [str(one.instance) for one in left.destroy]
    lacks = f"it lacks {', '.join(missing)}" if missing else ""
    has = f"it still has {', '.join(too_many)}" if too_many else ""
    return " and ".join(filter(None, (lacks, has)))
