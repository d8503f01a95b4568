"""MigLayouts: what they ask for, and what the autopilot wrote."""

import json

import msgspec
import pytest

from tessera.core.autopilot.values import Cut, Limits, Past
from tessera.core.errors import InvalidInput
from tessera.core.mig.profile import MigProfile
from tessera.protocol.mig.miglayout import (
    AutopilotStatus,
    HistoryRow,
    MigLayout,
    find_keepers,
    read_past,
    write_past,
)


def read(spec=None, status=None):
    return MigLayout.read(
        json.dumps({"metadata": {"name": "a"}, "spec": spec or {}, "status": status or {}}).encode()
    )


def test_the_autopilot_s_limits():
    """Mode Fixed and a dry run are the defaults; counts are of profiles, the cool-down is a duration."""
    plain = read()
    assert (plain.follows_demand, plain.spec.autopilot.dry_run, plain.spec.autopilot.limits) == (
        False,
        True,
        Limits(),
    )
    asks = {"dryRun": False, "minimum": {"1g.18gb": 8}, "maximum": {"7g.141gb": 0}, "keepWhole": 2}
    one = read({"mode": "Auto", "autopilot": {**asks, "recutsPerHour": 3, "coolDown": "1h"}})
    assert one.follows_demand
    assert not one.spec.autopilot.dry_run
    minimum, maximum = {MigProfile(1, 18): 8}, {MigProfile(7, 141): 0}
    assert one.spec.autopilot.limits == Limits(minimum, maximum, 2, 3, 3600.0)


@pytest.mark.parametrize(
    ("asks", "said"),
    [
        ({"minimum": {"big": 1}}, "big"),
        ({"coolDown": "soon"}, "soon"),
        ({"minimum": {"1g.18gb+me": 1, "1g.18gb.me": 2}}, "1g.18gb\\+me is there twice, once as 1g.18gb.me"),
        (
            {"minimum": {"1g.18gb+me": 3}, "maximum": {"1g.18gb.me": 2}},
            "the minimum of 1g.18gb\\+me is 3, its maximum 2",
        ),
    ],
)
def test_limits_that_are_wrong(asks, said):
    """What is wrong is said, should the API server have let it in: it does not know that a profile has two names."""
    with pytest.raises(InvalidInput, match=said):
        _ = read({"autopilot": asks}).spec.autopilot.limits


def test_what_the_autopilot_wrote_is_read_again():
    """Its status comes back as it was written; one that cannot be read is as none. What it remembers and cannot be read is not taken for nothing."""
    row = HistoryRow("2026-11-16T20:00:00Z", "n", 0, "empty", "1g.18gb ×1", {"1g.18gb": 1}, "why", "Done")
    past = Past(3.0, {"1g.18gb": (1.0, 2.5)}, (Cut(1.0, "n", 3),))
    status = AutopilotStatus(dry_run=False, history=[row], past=write_past(past))
    assert read(status={"autopilot": msgspec.to_builtins(status)}).autopilot == status
    assert read_past(status.past) == past
    assert read(status={"autopilot": {"history": [{"node": 3}]}}).autopilot == AutopilotStatus()
    assert read().autopilot == AutopilotStatus()
    assert (read_past(""), read_past("{")) == (Past(), None)


def test_who_keeps_a_node():
    """Of the MigLayouts that select a node the oldest comes first, by name where they are of one age; one without a selector selects none."""

    def made(name, created, **selector):
        metadata = {"name": name, "creationTimestamp": f"{created}-01-01T00:00:00Z"}
        document = {"metadata": metadata, "spec": {"nodeSelector": selector}}
        return MigLayout.read(json.dumps(document).encode())

    layouts = [
        made("c", 2026, pool="a"),
        made("b", 2025, pool="a"),
        made("a", 2025, pool="a", zone="x"),
        made("other", 2024, pool="b"),
        made("all", 2023),
    ]
    assert [layout.name for layout in find_keepers(layouts, {"pool": "a", "zone": "x"})] == ["a", "b", "c"]
    assert [layout.name for layout in find_keepers(layouts, {"pool": "a"})] == ["b", "c"]
    assert find_keepers(layouts, None) == []
