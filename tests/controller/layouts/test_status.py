"""When the status of a MigLayout is written: decisions at once, mere numbers now and then."""

import asyncio
import json

import pytest

from tessera.controller.layouts import reconciler
from tessera.controller.layouts.status import News, Pace, news
from tessera.protocol.mig.miglayout import AutopilotStatus, DemandRow, HistoryRow, MigLayout, RefusalRow
from tessera.simulation.control_plane.kinds import NODES
from tests.controller.layouts.cluster import FastClock, cluster, layout
from tests.controller.layouts.test_auto import auto

READY = {"type": "Ready", "status": "False", "reason": "Incomplete", "message": "1 of 2 nodes"}
CHANGING = {"name": "a", "state": "Updating", "reason": "Cordoned"}
STATUS = {
    "controller": "one",
    "desired": 2,
    "current": 1,
    "failed": 0,
    "updatingCount": 1,
    "updating": ["a"],
    "nodes": [CHANGING],
    "conditions": [READY],
}


def stored(status, autopilot=None):
    more = {} if autopilot is None else {"autopilot": autopilot}
    document = {"metadata": {"name": "m"}, "status": {**status, **more}}
    return MigLayout.read(json.dumps(document).encode())


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, News.NOTHING),
        ({"current": 2}, News.NUMBERS),
        ({"desired": 3}, News.NUMBERS),
        ({"nodes": [{**CHANGING, "name": "b", "state": "Pending"}, CHANGING]}, News.NUMBERS),
        ({"nodes": [{**CHANGING, "reason": "the old layout is written again"}]}, News.DECISION),
        ({"nodes": []}, News.DECISION),
        ({"conditions": [{**READY, "message": "2 of 2 nodes"}]}, News.NUMBERS),
        ({"conditions": [{**READY, "status": "True"}]}, News.DECISION),
        ({"conditions": [{**READY, "reason": "Complete"}]}, News.DECISION),
        ({"updating": [], "current": 2}, News.DECISION),
        ({"failed": 1}, News.DECISION),
        ({"controller": "two"}, News.DECISION),
        ({"observedGeneration": 2}, News.DECISION),
    ],
)
def test_what_is_news(change, expected):
    """Slots, conditions, failures and every word of nodes that are being changed are a decision; how many nodes are as they should be, and other words, are numbers. In both modes."""
    assert news(stored(STATUS), {**STATUS, **change}, None) is expected
    said = AutopilotStatus()
    assert news(stored(STATUS, {}), {**STATUS, **change}, said) is expected


ROW = HistoryRow("2027-01-15T07:00:00Z", "n", 0, "", "", {}, "", "Done")


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (AutopilotStatus(), News.NOTHING),
        (AutopilotStatus(past='{"at":1}'), News.MEMORY),
        (AutopilotStatus(demand=[DemandRow("1g.10gb", forecast=0.1)]), News.NUMBERS),
        (AutopilotStatus(summary="Nothing."), News.NUMBERS),
        (AutopilotStatus(refusals=[RefusalRow("1g.10gb", 1, "budget", "")]), News.DECISION),
        (AutopilotStatus(history=[ROW]), News.DECISION),
        (AutopilotStatus(dry_run=False), News.DECISION),
        (None, News.DECISION),  # the mode is Fixed now
    ],
)
def test_what_of_the_autopilot_is_news(said, expected):
    """What it decides, and what became of it, is written at once; what it says of demand now and then; what it remembers seldom."""
    assert news(stored(STATUS, {}), STATUS, said) is expected


def test_the_pace():
    """Numbers are written at once after a quiet minute, then after 10, 20, 30 seconds and so on; decisions at any time, which holds no numbers up."""
    pace, written = Pace(), []
    for now in range(200):  # something changes every second
        if pace.due("m", News.NUMBERS, now) <= now:
            written.append(now)
            pace.written("m", News.NUMBERS, now)
        assert pace.due("m", News.DECISION, now) == now
        assert pace.due("m", News.NOTHING, now) > 1e9
        pace.written("m", News.DECISION, now)
    assert written == [0, 10, 30, 60, 90, 120, 150, 180]
    assert pace.due("other", News.NUMBERS, 200) == 200
    assert pace.due("m", News.NUMBERS, 240) <= 240
    pace.written("m", News.NUMBERS, 240)
    assert pace.due("m", News.NUMBERS, 241) == 250, "it was quiet for a minute"
    assert pace.due("m", News.MEMORY, 241) == 540


@pytest.mark.parametrize("document", [layout(paused=True), auto()])
def test_500_changes_of_nodes_are_few_writes(document, monkeypatch):
    """Five nodes a second come, for 100 seconds: a write every 30 seconds, and a few at first, not one for each. The last one is written, too, although nothing changes any more."""
    monkeypatch.setattr(reconciler, "_REST", 1e6)

    async def main():
        async with cluster("gpu-0", "gpu-1", document=document) as one:
            one.lead("one")
            await one.until(lambda: one.status().get("desired") == 2)
            before, plain, clock = one.writes, one.node("gpu-0"), FastClock()
            began = clock.now()
            for number in range(500):
                node = json.loads(json.dumps(plain))
                node["metadata"] = {"name": f"more-{number}", "labels": node["metadata"]["labels"]}
                one.store.create(NODES, node)
                await asyncio.sleep(0.002)  # 0.2 s of the cluster's
            assert 2 <= one.writes - before <= 5 + (clock.now() - began) / 30
            await one.until(lambda: one.status()["desired"] == 502)
            assert one.writes - before <= 6 + (clock.now() - began) / 30

    asyncio.run(main())
