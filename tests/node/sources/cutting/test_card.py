"""One card's cut: the steps, refusals, and a process that is killed at any call."""

import random
from collections.abc import Callable
from itertools import chain, count
from pathlib import Path

import pytest

from tessera.core.mig.cutting import Cut
from tessera.core.mig.layout import CardLayout
from tessera.core.mig.placement import Instance, Wish, every_place
from tessera.core.mig.profile import MigProfile
from tessera.node.sources.cutting.card import Busy, Done, Failed, Order, Outcome, ResetNeeded, cut
from tessera.node.sources.cutting.journal import Journal, Lock
from tessera.node.sources.cutting.port import DriverRefused
from tests.examples import examples
from tests.node.sources.cutting.fake import H200, FakeCard, Killed, MemoryJournal, fits


def layout(*wishes: str) -> tuple[Instance, ...]:
    """`3g.71gb@4`, or without a place."""
    asked = [(MigProfile.parse(w.partition("@")[0]), w.partition("@")[2]) for w in wishes]
    return CardLayout.cut(H200, [Wish(p, int(at) if at else None) for p, at in asked]).instances


def order(card: FakeCard, goal: Cut, held: frozenset[int] = frozenset(), *, switch: bool = False) -> Order:
    return Order(card.uuid, H200, goal, frozenset(card.instances) - held, switch)


FIRST = Cut(layout("2g.35gb@0", "2g.35gb@2", "3g.71gb@4"))
SEVEN = Cut(layout(*["1g.18gb"] * 7))


def test_what_stays_is_never_touched() -> None:
    """Slices that both layouts have keep their number; each other one costs the calls that it needs, and none more."""
    card, journal = FakeCard().add(*FIRST.instances), MemoryJournal()
    goal = Cut(layout("1g.18gb@0", "1g.18gb@1", "2g.35gb@2", "3g.71gb@4"))
    assert cut(order(card, goal), card, journal) == Done()
    assert card.cut == goal
    assert card.complete
    assert {2, 3} < card.instances.keys()
    changes = [name for name in card.calls if name not in ("modes", "made")]
    assert changes == ["destroy_compute", "destroy", *["create", "create_compute"] * 2]
    card.calls.clear()
    assert cut(order(card, goal), card, journal) == Done()
    assert {*card.calls} == {"modes", "made"}


def test_slices_that_pods_hold_stay_and_what_fits_beside_comes() -> None:
    """The rest of the layout waits; there is no refusal of NVML to learn that from."""
    card = FakeCard().add(*FIRST.instances)
    assert cut(order(card, SEVEN, frozenset({3})), card, MemoryJournal()) == Done()
    assert [str(one) for one in card.cut.instances] == [
        "1g.18gb at 0", "1g.18gb at 1", "1g.18gb at 2", "1g.18gb at 3", "3g.71gb at 4",
    ]  # fmt: skip


def test_a_slice_that_another_program_uses_stays_with_nvmls_words() -> None:
    """The rest is carried out; it is tried again later."""
    card = FakeCard().add(*FIRST.instances)
    card.in_use = {3}
    message = "3g.71gb at 4: nvmlComputeInstanceDestroy: In use by another client"
    assert cut(order(card, SEVEN), card, MemoryJournal()) == Busy(message)
    assert len(card.instances) == 5
    card.in_use = set()
    assert cut(order(card, SEVEN), card, MemoryJournal()) == Done()
    assert card.cut == SEVEN


@pytest.mark.parametrize("name", ["create", "create_compute"])
def test_where_nvml_refuses_what_was_there_before_is_put_back(name: str) -> None:
    """`Failed` with NVML's words; the slices that stayed are the same ones."""
    card, journal = FakeCard().add(*FIRST.instances), MemoryJournal()
    numbers = count()

    def refuse(called: str, number: int) -> None:
        if called == name and number > 0 and next(numbers) == 2:
            raise DriverRefused(f"{name}: Insufficient Resources")

    card.fault = refuse
    goal = Cut(layout("2g.35gb@0", *[f"1g.18gb@{n}" for n in range(2, 7)]))
    assert cut(order(card, goal), card, journal) == Failed(f"{name}: Insufficient Resources")
    assert card.cut == FIRST
    assert card.complete
    assert 1 in card.instances
    assert journal.cards == {}


def test_what_cannot_be_put_back_is_said_and_stays_in_the_journal() -> None:
    """Both words of NVML are reported; the next cut still knows what was there before."""
    card, journal = FakeCard().add(*FIRST.instances), MemoryJournal()

    def refuse(called: str, number: int) -> None:
        if called == "create":
            raise DriverRefused("create: Unknown Error")

    card.fault = refuse
    outcome = cut(order(card, SEVEN), card, journal)
    assert outcome == Failed(
        "create: Unknown Error; what was there before could not be put back: create: Unknown Error"
    )
    assert journal.cards == {card.uuid: FIRST}
    card.fault = lambda name, number: None
    assert cut(order(card, journal.cards[card.uuid]), card, journal) == Done()
    assert card.cut == FIRST


def test_mig_mode() -> None:
    """Switched only where that is allowed; a reset is said, not done."""
    card = FakeCard(mig=False)
    assert cut(order(card, SEVEN), card, MemoryJournal()) == Busy("MIG mode is off")
    card.busy = True
    message = "nvmlDeviceSetMigMode: In use by another client"
    assert cut(order(card, SEVEN, switch=True), card, MemoryJournal()) == Busy(message)
    assert card.cut == Cut(mig=False)
    card.busy = False
    assert cut(order(card, SEVEN, switch=True), card, MemoryJournal()) == Done()
    assert card.cut == SEVEN
    assert cut(order(card, Cut(mig=False), switch=True), card, MemoryJournal()) == Done()
    assert card.cut == Cut(mig=False)
    card.reset_needed = True
    for _ in range(2):  # once set, it is not set again
        outcome = cut(order(card, SEVEN, switch=True), card, MemoryJournal())
        assert isinstance(outcome, ResetNeeded)
        assert "after a reset of the card" in outcome.message
    assert card.calls.count("switch") == 4
    assert not card.mig


def test_leftovers_and_smaller_compute_instances() -> None:
    """A GPU instance that a killed cut left without a device is completed or removed; smaller devices in it give way, unless held."""
    (two, *_), (three,) = layout("2g.35gb@0", "2g.35gb@2"), layout("3g.71gb@4")
    card = FakeCard().add(two, computes=0).add(three, computes=3)
    goal = Cut((three,))
    assert cut(Order(card.uuid, H200, goal), card, MemoryJournal()) == Done()
    assert card.instances == {2: (three, [0, 1, 2])}
    assert cut(order(card, goal), card, MemoryJournal()) == Done()
    assert card.instances == {2: (three, [0])}
    empty = FakeCard().add(three, computes=0)
    assert cut(Order(empty.uuid, H200, goal), empty, MemoryJournal()) == Done()
    assert empty.instances == {1: (three, [0])}


def test_nothing_changes_without_a_journal() -> None:
    """A disk that is full or read-only leaves the card alone."""

    class Full(MemoryJournal):
        def begin(self, card: str, before: Cut) -> None:
            raise OSError("No space left on device")

    card = FakeCard().add(*FIRST.instances)
    outcome = cut(order(card, SEVEN), card, Full())
    assert isinstance(outcome, Failed)
    assert "No space left" in outcome.message
    assert card.cut == FIRST


PLACES = [*every_place(H200)]


def random_cut(random_: random.Random) -> Cut:
    """Some slices that fit, from none to a full card."""
    chosen: tuple[Instance, ...] = ()
    for one in random_.sample(PLACES, random_.randrange(1, len(PLACES))):
        if fits(H200, chosen, one):
            chosen = (*chosen, one)
    return Cut(tuple(sorted(chosen, key=lambda one: one.position)))


def killed_at(at: int, names: set[str]) -> Callable[[str, int], None]:
    def fault(name: str, number: int) -> None:
        if number == at:
            names.add(name)
            raise Killed

    return fault


def refusing_once(call: str) -> Callable[[str, int], None]:
    numbers = count()

    def fault(name: str, number: int) -> None:
        if name == call and number > 0 and next(numbers) == 0:
            raise DriverRefused(f"{name}: Unknown Error")

    return fault


def no_fault(name: str, number: int) -> None:
    pass


def test_fault_49_killed_at_every_call_of_random_changes() -> None:
    """Whichever call a process was killed at, before or after it took effect: no held slice is lost, and the next start finishes.

    Where NVML refuses at that next start, the card is as it was before the first change.
    """
    random_, names, runs, refusals = random.Random(27), set[str](), 0, 0
    for _ in range(examples(320)):
        before, goal = random_cut(random_), random_cut(random_)
        start = FakeCard().add(*before.instances)
        held = frozenset(random_.sample([*start.instances], random_.randrange(len(start.instances) + 1)))
        kept = {number: start.instances[number] for number in held}
        whole = start.copy()
        assert cut(order(whole, goal, held), whole, MemoryJournal()) == Done()
        expected = whole.cut
        for at in chain.from_iterable((number, -number) for number in count(1)):
            card, journal = start.copy(), MemoryJournal()
            card.fault = killed_at(at, names)
            try:
                cut(order(start, goal, held), card, journal)
                if len(card.calls) < abs(at):
                    break  # it was done before that call
                continue  # after a look nothing is different
            except Killed:
                pass
            runs += 1
            assert kept.items() <= card.instances.items()
            refused, kept_journal = card.copy(), MemoryJournal()
            kept_journal.cards = {**journal.cards}
            card.fault = no_fault
            card.calls.clear()
            assert cut(order(card, goal, held), card, journal) == Done()
            assert (card.cut, card.complete, journal.cards) == (expected, True, {})
            assert kept.items() <= card.instances.items()
            if not kept_journal.cards:
                continue
            # the next start meets a refusal, or learns that nothing is wanted any more: what was there before comes back
            if runs % 2:
                refused.fault = refusing_once("create")
                if cut(order(refused, goal, held), refused, kept_journal) == Done():
                    continue  # there was nothing left to create
                refusals += 1
            else:
                goal_before = kept_journal.cards[refused.uuid]
                assert cut(order(refused, goal_before, held), refused, kept_journal) == Done()
            assert (refused.cut, refused.complete, kept_journal.cards) == (before, True, {})
            assert kept.items() <= refused.instances.items()
    assert names == {"modes", "made", "create", "create_compute", "destroy_compute", "destroy"}
    assert runs > examples(5000)
    assert refusals > examples(1000)


def test_fault_50_refused_at_every_call() -> None:
    """Wherever NVML refuses once, the card is as before or as wanted, and no held slice is lost."""
    random_, seen = random.Random(28), set[type[Outcome]]()
    for _ in range(100):
        before, goal = random_cut(random_), random_cut(random_)
        start = FakeCard().add(*before.instances)
        held = frozenset(random_.sample([*start.instances], random_.randrange(len(start.instances) + 1)))
        kept = {number: start.instances[number] for number in held}
        for at in count(1):
            card, journal = start.copy(), MemoryJournal()

            def fault(name: str, number: int, at: int = at) -> None:
                if number == at:
                    raise DriverRefused(f"{name}: Unknown Error")

            card.fault = fault
            try:
                outcome = cut(order(start, goal, held), card, journal)
            except DriverRefused:  # before the first change: the card does not answer
                assert (card.cut, journal.cards) == (before, {})
                continue
            assert kept.items() <= card.instances.items()
            assert (card.complete, journal.cards) == (True, {})
            seen.add(type(outcome))
            if isinstance(outcome, Failed):
                assert card.cut == before
            if len(card.calls) < at:
                break
    assert seen == {Done, Failed}


def test_the_journal_on_disk(tmp_path: Path) -> None:
    """It outlives its process, not its boot; what cannot be read counts as none."""
    boot = tmp_path / "boot_id"
    boot.write_text("a\n")
    journal = Journal(tmp_path / "cut", boot)
    assert [journal.new_boot(), journal.new_boot()] == [True, False]
    with_media = Cut(layout("1g.18gb+me@0", "3g.71gb@4"))
    journal.begin("GPU-0", with_media)
    assert Journal(tmp_path / "cut", boot).before("GPU-0") == with_media
    assert journal.before("GPU-1") is None
    (tmp_path / "cut" / "GPU-2.json").write_text("{")
    assert journal.before("GPU-2") is None
    boot.write_text("b\n")
    assert Journal(tmp_path / "cut", boot).before("GPU-0") is None
    assert Journal(tmp_path / "cut", boot).new_boot()
    assert Journal(boot / "cut", boot).new_boot(), "its folder cannot be written: nobody knows"
    assert not list((tmp_path / "cut").glob("*.json"))
    journal.begin("GPU-0", with_media)
    journal.end("GPU-0")
    assert journal.before("GPU-0") is None


def test_two_processes_never_cut_the_same_cards(tmp_path: Path) -> None:
    """The second one has no lock while the first one lives."""
    first, second = Lock(tmp_path / "cut" / "lock"), Lock(tmp_path / "cut" / "lock")
    assert [first.objection(), first.objection()] == ["", ""]
    assert second.objection() == "another process of Tessera cuts the cards of this node"
    first.release()
    assert second.objection() == ""
    second.release()
    (tmp_path / "file").touch()
    assert "without it no card is cut" in Lock(tmp_path / "file" / "lock").objection()
