"""Mode Auto at random, and what is said of it: at every write of the status, `tessera why`, the dashboard, the summary and the conditions agree."""

import asyncio
import os
import random
from contextlib import suppress
from functools import partial

import msgspec
import pytest

from tessera.dashboard.layouts_part import layouts_part
from tessera.diagnosis.layouts.gather import LayoutEvidence
from tessera.diagnosis.layouts.layout_diagnosis import LayoutCause, diagnose_layout
from tessera.diagnosis.layouts.words import NOT_DECIDED
from tessera.protocol.mig.miglayout import MigLayout
from tessera.simulation.control_plane.kinds import MIG_LAYOUTS, PODS
from tessera.simulation.control_plane.store import StatusError
from tests.build import MIG
from tests.controller.layouts.cluster import cluster
from tests.controller.layouts.test_auto import auto
from tests.inventory.objects import pod
from tests.kube.apiserver import status

PROFILES = [MIG + one for one in ("1g.10gb", "2g.20gb", "3g.30gb", "7g.70gb")]
SEEDS = 4 if os.environ.get("CI") == "true" else 1
STEPS = 25
UNDECIDED = ("not known", "cannot decide")


def contradictions(document):
    """What is said of a MigLayout that cannot be true together."""
    said, what = document["status"], document["status"].get("autopilot") or {}
    if not said.get("conditions"):
        return
    layout = MigLayout.read(msgspec.json.encode(document))
    found = diagnose_layout(LayoutEvidence(layout, now=1.8e9, selected=3, namespace="n"))
    (row,) = layouts_part([layout], "")["first"]
    moves = layout.condition("Progressing").reason
    undecided = any(one in what.get("summary", "") for one in UNDECIDED)
    under_way = {one["node"] for one in what.get("history", ()) if one["result"] == "UnderWay"}
    if undecided:
        yield "a plan that nobody has", what["recuts"] or what["refusals"]
        nothing = (LayoutCause.COMPLETE, LayoutCause.NO_ROOM)
        yield "it cannot decide, and all is well", found.cause in nothing
    if found.cause is LayoutCause.COMPLETE:
        yield "complete, and nobody has looked", not what["summary"]
        yield "complete, and something is to be done", what["recuts"] or what["refusals"] or under_way
    yield "under way without a slot", not under_way <= {*layout.updating}
    yield "nodes are changed, and it does not move", said["updatingCount"] and moves != "RollingOut"
    yield "no room, or room", ("o room for" in what.get("summary", "")) is not bool(what.get("refusals"))
    shown = row["autopilot"]
    if shown is not None and found.autopilot is not None:
        counts = [
            len(shown[one]) == len(getattr(found.autopilot, one)) for one in ("recuts", "refusals", "history")
        ]
        yield (
            "the dashboard says something else",
            not all(counts) or shown["summary"] != (what["summary"] or NOT_DECIDED),
        )


def refusing(kind, request):
    """RBAC that has lost a right."""
    refuses = request.method == "GET" and kind in request.path
    return status(StatusError(403, "Forbidden", "no")) if refuses else None


@pytest.mark.parametrize("seed", range(SEEDS))
def test_what_is_said_of_a_mig_layout_is_one_answer(seed):
    """Whatever happens: pods come and go, limits change, it is paused, rights are taken away and given back, leaders die."""

    async def main():
        draw, wrong, leaders = random.Random(seed), list[str](), 0
        async with cluster("gpu-0", "gpu-1", "gpu-2", document=auto(coolDown="1s")) as one:

            def changed(change):
                if change.type != "DELETED" and "status" in (document := change.after.document):
                    wrong.extend(f"{what}: {document}" for what, holds in contradictions(document) if holds)

            one.store.follow(MIG_LAYOUTS, one.store.version, changed)
            one.lead("0")
            for step in range(STEPS):
                match draw.choice(["come", "come", "go", "pause", "limit", "refuse", "allow", "die"]):
                    case "come":
                        waits = pod(f"p-{step}", "", draw.choice(PROFILES), phase="Pending")
                        one.store.create(PODS, waits, "default")
                    case "go":
                        with suppress(StatusError):
                            one.store.delete(PODS, f"p-{draw.randrange(STEPS)}", "default")
                    case "pause":
                        one.change(paused=draw.random() < 0.5)
                    case "limit":
                        limits = draw.choice(
                            [
                                {},
                                {"minimum": {"2g.20gb": 5}},
                                {"maximum": {"1g.10gb": 0}},
                                {"minimum": {"2g.20gb": 9}, "maximum": {"2g.20gb": 1}},
                            ]
                        )
                        one.change(autopilot={"dryRun": draw.random() < 0.3, "coolDown": "1s", **limits})
                    case "refuse":
                        kind = draw.choice(["resourceclaims", "events", "nodes"])
                        one.server.intercept = partial(refusing, kind)
                        one.server.gone_mid_stream()
                    case "allow":
                        one.server.intercept = lambda request: None
                    case "die":
                        one.kill(str(leaders))
                        leaders += 1
                        one.lead(str(leaders))
                await asyncio.sleep(draw.uniform(0.01, 0.2))
            assert not wrong, wrong[0]

    asyncio.run(main())
