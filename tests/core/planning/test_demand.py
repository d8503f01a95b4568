"""What pods wait for, and what they would rather have had."""

import pytest

from tessera.core.devices.capacity import PodUse
from tessera.core.planning.demand import demand_of, first_wishes
from tests.build import GPU, MIG, amounts

SINCE = "2026-11-15T00:00:00Z"
AFTER, BEFORE = "2026-11-15T09:00:00Z", "2026-11-14T23:59:59Z"


def claim(node="", record="", created=AFTER, ending=False, **asks):
    return PodUse("default", "p", node, amounts(asks), ending, created, record)


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
    """Waiting pods count, and pods that fell back since then; whole GPUs are told apart."""
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


@pytest.mark.parametrize(
    ("record", "wishes"),
    [
        ("", {}),
        ("2g.20gb->1g.10gb", {MIG + "1g.10gb": "2g.20gb"}),
        ("2g.20gb->1g.10gb,3g.30gb->gpu", {MIG + "1g.10gb": "2g.20gb", GPU: "3g.30gb"}),
        ("2g.20gb->1g.10gb,3g.30gb->1g.10gb", {MIG + "1g.10gb": "3g.30gb"}),
        ("3g.30gb->1g.10gb,2g.20gb->1g.10gb", {MIG + "1g.10gb": "3g.30gb"}),
        ("nonsense,->,a->b,2g.20gb,2g.20gb->,gpu->1g.10gb", {}),
    ],
)
def test_records(record, wishes):
    """A record is read backwards; what is none is passed over."""
    assert {resource: str(profile) for resource, profile in first_wishes(record).items()} == wishes
