"""Several profiles on one node: the search finds what trying everything in order finds."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.core.admission.fallback import together
from tessera.core.admission.fallback.candidates import Candidate, Step
from tessera.core.admission.fallback.together import MOST_COMBINATIONS, NO_RULES, Injecting, Together
from tessera.core.admission.limits import Work
from tests.examples import examples

ASKED = ("a", "b", "c", "d")
RESOURCES = (*ASKED, "e", "whole")
steps = st.sampled_from(list(Step)[1:])
lists = st.fixed_dictionaries({
    asked: st.dictionaries(st.sampled_from([one for one in RESOURCES if one != asked]), steps, max_size=4)
    for asked in ASKED
})  # fmt: skip
needs = st.fixed_dictionaries({asked: st.integers(1, 4) for asked in ASKED})
nodes = st.lists(st.dictionaries(st.sampled_from(RESOURCES), st.integers(0, 7)), min_size=1, max_size=6)
refused = st.sets(st.tuples(st.sampled_from(ASKED), st.sampled_from(RESOURCES)), max_size=2)


def candidates(asked, others):
    """As asked for, then by step."""
    ordered = sorted(others.items(), key=lambda one: one[1])
    return [
        Candidate(asked, Step.AS_ASKED, Step.AS_ASKED),
        *(Candidate(to, step, step) for to, step in ordered),
    ]


def walked(lists, fits, accepts):
    """The first of all combinations that fits: by the worst step, the number of changes, and the order of candidates."""
    every = [
        (max(one.order for one in some), sum(one.order > 0 for one in some), number, some)
        for number, some in enumerate(product(*lists.values()))
    ]
    for _, changes, _, some in sorted(every, key=lambda one: one[:3]):
        chosen = {asked: one.resource for asked, one in zip(lists, some, strict=True)}
        if changes and fits(chosen) and accepts(chosen):
            return chosen
    return None


@pytest.mark.parametrize("one_trial", [-1, 3, together._ONE_TRIAL])
@pytest.mark.parametrize("combinations_before_trials", [0, 5, together._COMBINATIONS_BEFORE_TRIALS])
@given(lists, needs, nodes, refused, st.sets(st.sampled_from(RESOURCES), max_size=2), st.integers(1, 8))
@settings(max_examples=examples(150))
def test_like_trying_everything(
    combinations_before_trials, one_trial, lists, needs, nodes, refused, ruled, cpu
):
    """However soon the search begins to try ahead or to work nodes out, it finds the mildest combination that fits on one node and is accepted.

    Also where injection wants so much of a node for what becomes the only resource with a rule, and nothing for two of them.
    """
    lists = {asked: candidates(asked, others) for asked, others in lists.items()}

    def room(to, sources):
        need = sum(needs[one] for one in sources)
        return sum(1 << place for place, has in enumerate(nodes) if has.get(to, 0) >= need)

    def large_enough(_to, sources):
        return sum(
            1 << place
            for place in range(len(nodes))
            if cpu * (place + 1) >= sum(needs[one] for one in sources)
        )

    def accepts(chosen, among):
        used = {to for to in chosen.values() if to in ruled}
        if len(used) == 1:
            among &= large_enough("", [one for one, to in chosen.items() if to in used])
        return bool(among) and not refused & set(chosen.items())

    def alone(chosen):
        loads: dict[str, int] = {}
        for asked, to in chosen.items():
            loads[to] = loads.get(to, 0) + needs[asked]
        return sum(
            1 << at
            for at, has in enumerate(nodes)
            if all(has.get(to, 0) >= load for to, load in loads.items())
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(together, "_COMBINATIONS_BEFORE_TRIALS", combinations_before_trials)
        patch.setattr(together, "_ONE_TRIAL", one_trial)
        injecting = Injecting(frozenset(ruled), large_enough) if ruled or refused else NO_RULES
        every = (1 << len(nodes)) - 1
        first, found = (
            look(Together(lists, room, accepts, Work(), injecting), every)
            for look in (Together.first, Together.best)
        )
    assert first is None or first == found
    assert found == walked(lists, alone, lambda chosen: accepts(chosen, alone(chosen)))


def test_eight_profiles_that_fit_nowhere_are_seen_through(monkeypatch):
    """Six small profiles, and two large ones of which a node has room for one: that nothing fits shows after few looks, not after thousands."""
    counts = {"large": 9} | dict.fromkeys([f"small{n}" for n in range(7)], 3)
    needs = dict.fromkeys([f"p{n}" for n in range(6)], 1) | {"p6": 9, "p7": 9}
    others = [Candidate(to, Step.SMALLER, Step.SMALLER) for to in counts]
    lists = {one: [Candidate(one, Step.AS_ASKED, Step.AS_ASKED), *others] for one in needs}

    def room(to, sources):
        return int(counts.get(to, 0) >= sum(needs[one] for one in sources))

    search = Together(lists, room, lambda *_: True, Work())
    assert search.best(1) is None
    assert search.combinations + search._tried < 500
    monkeypatch.setattr(together, "_MOST_TRIED", -1)  # neither trials nor nodes worked out
    without = Together(lists, room, lambda *_: True, Work())
    assert without.best(1) is None
    assert without.combinations > MOST_COMBINATIONS
