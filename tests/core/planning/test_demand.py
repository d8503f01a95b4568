"""What pods wait for, and what they would rather have had."""

from dataclasses import replace

import pytest

from tessera.core.devices.capacity import pod_use
from tessera.core.mig.profile import MigProfile
from tessera.core.planning.demand import MOST_MISSED, demand_of, most_wanted
from tessera.core.requests.record import ASKED_ANNOTATION, RECORD_ANNOTATION
from tests.build import MIG, container, pod

SINCE = "2026-11-15T00:00:00Z"
AFTER, BEFORE = "2026-11-15T09:00:00Z", "2026-11-14T23:59:59Z"


def claim(node="", record="", created=AFTER, ending=False, asked="", namespace="default", **asks):
    annotations = {RECORD_ANNOTATION: record, ASKED_ANNOTATION: asked} if record else {}
    one = pod(container(**asks), node_name=node, annotations=annotations, namespace=namespace)
    return replace(pod_use(one, "Running", deleted=ending), created=created)


def counts(given):
    return {str(profile): number for profile, number in given.items()}


@pytest.mark.parametrize(
    ("claims", "waiting", "fell_back", "whole"),
    [
        ([], {}, {}, 0),
        ([claim(**{"2g.20gb": 2}), claim(**{"2g.20gb": 1, "3g.30gb": 1})], {"2g.20gb": 3, "3g.30gb": 1}, {}, 0),
        ([claim(gpu=3, cpu=4)], {}, {}, 3),
        ([claim("a", **{"2g.20gb": 2})], {}, {}, 0),
        # one that waits after falling back wants what it asked for first
        ([claim(record="3g.30gb->2g.20gb", **{"2g.20gb": 2})], {"3g.30gb": 2}, {}, 0),
        ([claim(record="3g.30gb->gpu", gpu=1)], {"3g.30gb": 1}, {}, 0),
        # one that runs with something else, and was made lately
        ([claim("a", "3g.30gb->2g.20gb", **{"2g.20gb": 1})], {}, {"3g.30gb": 1}, 0),
        ([claim("a", "3g.30gb->2g.20gb", BEFORE, **{"2g.20gb": 1})], {}, {}, 0),
        ([claim("a", "3g.30gb->2g.20gb", ending=True, **{"2g.20gb": 1})], {}, {}, 0),
        ([claim("a", "3g.30gb->2g.20gb", **{"1g.10gb": 1})], {}, {}, 0),
    ],
)  # fmt: skip
def test_demand(claims, waiting, fell_back, whole):
    """Waiting pods count, and pods that fell back since then; whole GPUs are distinguished."""
    demand = demand_of(claims, SINCE)
    assert (counts(demand.waiting), counts(demand.fell_back), demand.whole_gpus) == (
        waiting,
        fell_back,
        whole,
    )


def test_both_together():
    """The demand is what waits and what fell back."""
    claims = [claim(**{"2g.20gb": 1}), claim("a", "2g.20gb->1g.10gb", **{"1g.10gb": 2})]
    assert counts(demand_of(claims, SINCE).all) == {"2g.20gb": 3}


@pytest.mark.parametrize("record", ["nonsense", "->", "a->b", "2g.20gb", "2g.20gb->", "gpu->1g.10gb"])
def test_what_is_no_record(record):
    """Nothing was asked for in place of what a pod has where its annotation is none of the webhook's."""
    assert counts(demand_of([claim("a", record, **{"1g.10gb": 1})], SINCE).all) == {}


@pytest.mark.parametrize(
    ("asked", "has", "found"),
    [
        ("2g.20gb", {"1g.10gb": 2}, {"2g.20gb": 2}),
        # what its author wrote and its record or its devices do not bear out counts for nothing: the record alone does
        ("7g.80gb", {"1g.10gb": 2}, {"3g.30gb": 2}),
        ("2g.20gb", {"1g.10gb": 3}, {"3g.30gb": 3}),
    ],
)
def test_what_was_asked_counts_where_it_agrees(asked, has, found):
    """Several profiles became the same one: which it was stands in `asked`, as far as record and devices agree with it."""
    record = "3g.30gb->1g.10gb,2g.20gb->1g.10gb"
    use = claim("a", record, asked=f'{{"main":{{"{MIG}{asked}":"2"}}}}', **has)
    assert counts(demand_of([use], SINCE).fell_back) == found


@pytest.mark.parametrize("node", ["", "a"])
def test_a_namespace_has_so_much_say(node):
    """What pods of one namespace say that they asked for counts for so many devices; others' counts as ever."""
    many = [claim(node, "7g.80gb->1g.10gb", **{"1g.10gb": 10}) for _ in range(MOST_MISSED // 10 + 5)]
    other = claim(node, "3g.30gb->2g.20gb", namespace="other", **{"2g.20gb": 1})
    rest = {} if node else {"1g.10gb": 50}
    assert counts(demand_of([*many, other], SINCE).all) == {**rest, "3g.30gb": 1, "7g.80gb": MOST_MISSED}


def test_most_wanted():
    """By what is wanted in all, then by what pods have; of equals the larger goes first."""
    one, two, three, four = (MigProfile.parse(name) for name in ("1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb"))
    assert most_wanted({one: 2, three: 5, two: 2}, {one: 1, four: 3}) == (three, one, two, four)
    assert most_wanted({}, {one: 1, two: 1}) == (two, one)
