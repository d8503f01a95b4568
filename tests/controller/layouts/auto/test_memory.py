"""What the autopilot remembers in the status of a MigLayout, and what it makes of what it finds there."""

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.controller.layouts.auto.autopilot import Autopilot
from tessera.controller.layouts.auto.deciding import Look, Question
from tessera.controller.layouts.auto.memory import (
    Memory,
    is_readable,
    lately,
    note_ends,
    note_ends_in,
    sane,
    stored_cuts,
)
from tessera.core.autopilot.propose import propose
from tessera.core.autopilot.values import CardSupply, Charge, Cut, Limits, Past, Proposal, Want
from tessera.core.mig.profile import MigProfile
from tessera.protocol.mig import documents as mig
from tessera.protocol.mig.miglayout import HistoryRow, MigLayout, write_past
from tests.inventory.objects import LAYOUT
from tests.rollout.plugin import CARDS

NOW = 1_800_000_000.0
ROW = {
    "at": "2027-01-15T07:00:00Z",
    "node": "n",
    "card": 1,
    "before": "",
    "after": "",
    "serves": {},
    "reason": "",
    "result": "Done",
}


def layout(autopilot: Any, budget: int = 3, **spec: Any) -> MigLayout:
    document = {
        "metadata": {"name": "m", "uid": "u"},
        "spec": {"mode": "Auto", "autopilot": {"recutsPerHour": budget, **spec}},
        "status": {"autopilot": autopilot},
    }
    return MigLayout.read(json.dumps(document).encode())


def cuts_begun(past: Past, budget: int = 3) -> int:
    """How many cards would be cut for a demand without end."""
    cards = mig.read_layout(LAYOUT, CARDS).cards
    supply = [CardSupply(f"n-{at}", n, card) for at in range(9) for n, card in enumerate(cards)]
    wants = [Want(MigProfile.parse("7g.70gb"), f"team-{at}", NOW - 600) for at in range(18)]
    return len(propose(wants, supply, past, Limits(recuts_per_hour=budget), NOW).recuts)


def test_re_cuts_are_those_of_the_status_and_demand_is_our_own():
    """Another leader may have cut cards since; what was seen of demand is in this process."""
    memory = Memory()
    stored = Past(NOW - 60, {}, (Cut(NOW - 60, "n", 0),))
    one = layout({"past": write_past(stored)})
    assert memory.of(one, NOW) == stored
    memory.keep(one, Past(NOW - 5, {"1g.10gb": (1.0,)}, (Cut(NOW, "other", 0),)))
    assert memory.of(one, NOW) == Past(NOW - 5, {"1g.10gb": (1.0,)}, stored.cuts)
    memory.clear()
    assert memory.of(one, NOW) == stored


@pytest.mark.parametrize(
    "autopilot",
    [
        {"past": "{"},
        {"past": "[]"},
        {"past": '{"cuts": 3}'},
        {"past": '{"cuts": [{"at": 1e999, "node": "n", "number": 0}]}'},
        {"past": '{"levels": {"x": [1e999]}}'},
        {"past": '{"at": -1e999}'},
        {"past": "x" * 1_000_000},
        {"past": 7},
        {"past": "{", "history": "none"},
    ],
)
def test_fault_65_what_is_remembered_cannot_be_read(autopilot):
    """All that may be cut within an hour counts as cut now, so that no leader cuts more than the budget allows; an hour later it goes on."""
    one = layout(autopilot)
    past = Memory().of(one, NOW)
    assert not is_readable(one)
    assert stored_cuts(one) is None
    assert (cuts_begun(past), cuts_begun(Past())) == (0, 3)
    kept = layout({"past": write_past(past)})
    assert is_readable(kept)
    assert cuts_begun(sane(Memory().of(kept, NOW + 1), NOW)) == 0
    assert len([one for one in past.cuts if NOW + 3600 - one.at < 3600]) == 0


def test_fault_65_the_history_tells_of_cards_in_their_cool_down():
    """Where what is remembered cannot be read, cards that the history tells of are left alone for their cool-down; those that were never cut are not."""
    rows = [ROW, {**ROW, "card": 2, "result": "DryRun"}, {**ROW, "card": 3, "result": "NotBegun"}]
    past = Memory().of(layout({"past": "{", "history": rows}, budget=1), NOW)
    assert past.cuts == (Cut(1_799_996_400.0, "n", 1), Cut(NOW, "", 0))


def test_a_status_in_part_of_others_keeps_what_is_remembered():
    """Rows that cannot be read are forgotten, and re-cuts are not."""
    one = layout({"past": write_past(Past(cuts=(Cut(1.0, "n", 0),))), "history": [{"node": 3}]})
    assert (one.autopilot.history, stored_cuts(one)) == ([], (Cut(1.0, "n", 0),))


def test_what_counts_no_more_is_forgotten():
    """Re-cuts that are neither of the last hour nor in their cool-down are no longer kept when further ones begin: else 2,000 of them would end all re-cuts."""
    hours = [Cut(NOW - 3600.0 * age, "n", age) for age in (5, 3, 1)] + [Cut(NOW - 5, "n", 0)]
    one = layout({"past": write_past(Past(cuts=tuple(hours)))})
    assert lately(Memory().of(one, NOW), one, NOW).cuts == (hours[-1],)
    one = layout({"past": write_past(Past(cuts=tuple(hours)))}, coolDown="4h")
    assert lately(Memory().of(one, NOW), one, NOW).cuts == tuple(hours[1:])


@pytest.mark.parametrize(
    "text", ["", "{", write_past(Past(NOW, {}, (Cut(NOW + 5, "n", 1), Cut(1.0, "n", 2))))]
)
def test_who_decides_nothing_changes_no_time(text):
    """What is remembered stays to the letter, whatever it is; only a re-cut that was not begun is taken out."""
    rows = [HistoryRow("", "n", 1, "", "", {}, "", "UnderWay")] * 2
    assert note_ends_in(text, [(rows[0], rows[1])], NOW) == text
    after = msgspec.structs.replace(rows[1], result="NotBegun")
    expected = write_past(Past(NOW, {}, (Cut(1.0, "n", 2),))) if len(text) > 1 else text
    assert note_ends_in(text, [(rows[0], after)], NOW) == expected


def test_times_that_are_yet_to_come():
    """A clock that was a year ahead has written them: they count as now, and are over after an hour, as others are."""
    year = 365 * 86400.0
    ahead = Past(NOW + year, {}, (Cut(NOW - 5, "n", 0), Cut(NOW + year, "n", 1)))
    assert sane(ahead, NOW) == Past(NOW, {}, (Cut(NOW - 5, "n", 0), Cut(NOW, "n", 1)))
    assert Memory().of(layout({"past": write_past(ahead)}), NOW).at == NOW


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["at", "cuts", "levels", "node", "number", "x"]), inner, max_size=4)
    ),
    max_leaves=8,
)


@given(JSON, JSON)
def test_fault_65_whatever_stands_there(past, history):
    """Anything at all in the status is read, and what comes of it can be decided with and written."""
    text = msgspec.json.encode(past).decode(errors="replace")
    one = layout({"past": text, "history": history})
    found = Memory().of(one, NOW)
    assert all(cut.at <= NOW for cut in found.cuts)
    assert cuts_begun(found) <= 3
    assert is_readable(layout({"past": write_past(found)}))


def test_of_what_somebody_wrote_into_a_status_only_profiles_are_remembered():
    """However many names stand there: what is no profile's goes, and of those that could be, the largest demand stays. So a status does not grow, nor a look's work."""
    some = {f"{one}g.{gigabytes}gb": (1.0, 2.0) for one in range(1, 8) for gigabytes in range(1, 2000)}
    wrong = {"": (9.0, 99.0), "large": (9.0, 99.0), "1g.10gb.me": (9.0, 99.0), "01g.10gb": (9.0, 99.0)}
    text = write_past(Past(NOW, {**some, **wrong, "4g.40gb": (3.0, 10.0), "1g.10gb+me": (2.0, 5.0)}))
    levels = Memory().of(layout({"past": text}), NOW).levels
    assert len(levels) == 256
    assert list(levels)[:2] == ["4g.40gb", "1g.10gb+me"]
    assert not {*wrong} & {*levels}
    assert len(write_past(propose([], [], Past(NOW, levels), Limits(), NOW + 10).past)) < 2**14


OPEN = Charge(NOW - 40, "n", 1, "team", ("1g.10gb",))


@pytest.mark.parametrize(
    ("result", "cuts", "charges"),
    [
        ("Done", 1, (replace(OPEN, offered=NOW),)),
        ("Failed", 1, ()),
        ("NotReady", 1, ()),
        ("Gone", 1, ()),
        ("Cancelled", 1, ()),
        ("NotBegun", 0, ()),
        ("InUse", 0, ()),
        ("Overtaken", 0, ()),
        ("UnderWay", 1, (OPEN,)),
    ],
)
def test_how_a_re_cut_ends(result: str, cuts: int, charges: tuple[Charge, ...]) -> None:
    """One that is done is offered from then on. One that came to nothing is nobody's, and costs nothing of the budget where no card was cut."""
    row = HistoryRow("", "n", 1, "", "", {}, "", "UnderWay")
    past = Past(NOW, {}, (Cut(NOW - 40, "n", 1),), (OPEN,))
    ended = note_ends(past, [(row, msgspec.structs.replace(row, result=result))], NOW)
    assert (len(ended.cuts), ended.charges) == (cuts, charges)


def test_fault_65_what_somebody_wrote_of_namespaces():
    """Names that no namespace can have are forgotten, and no more is kept than may be of an hour."""
    wrong = [replace(OPEN, namespace=name) for name in ("", "a b", "\x1b[31m", "n" * 64, '"', "-")]
    many = [replace(OPEN, namespace=f"n-{number}") for number in range(1500)]
    past = Memory().of(layout({"past": write_past(Past(NOW, charges=(*wrong, *many)))}), NOW)
    assert [one.namespace for one in past.charges] == [f"n-{number}" for number in range(1000)]
    assert stored_cuts(layout({"past": '{"charges": [{"at": 1e999}]}'})) is None


def test_mig_layouts_that_are_gone_are_forgotten() -> None:
    """The demand that was seen of a MigLayout is remembered as long as that is there, whichever are decided for."""
    autopilot, seen = Autopilot(), Past(NOW, {"1g.10gb": (3.0, 9.0, 0.0)})
    there = layout({})
    look = Look(0, (), frozenset(), Proposal(past=seen))
    autopilot.take(Question((there,), (there,), {}, {}, NOW), {there.uid: look})
    autopilot.take(Question((), (there,), {}, {}, NOW), {})
    assert autopilot.question([there], [there], {}, NOW).past[there.uid].levels == seen.levels
    autopilot.take(Question((), (), {}, {}, NOW), {})
    assert autopilot.question([there], [there], {}, NOW).past[there.uid].levels == {}
