"""How nodes stand to a MigLayout in mode Auto."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from tessera.controller.layouts.auto.autopilot import Autopilot
from tessera.controller.layouts.plan import LayoutPlan, State
from tessera.core.autopilot.values import Charge, Past, Use
from tessera.inventory.wants import Situation
from tessera.protocol.mig.miglayout import write_past
from tessera.protocol.mig.rollouts import Owner, Result
from tessera.rollout.values import Outcome
from tests.controller.layouts.test_plan import NOW, end, read, seen


class Known:
    """A process that knows nothing of rollouts beside the nodes."""

    @property
    def outcomes(self) -> Mapping[str, Outcome]:
        return {}

    def put_off(self, node: str) -> str:
        return ""


@pytest.mark.parametrize("owner", [Owner("inference", "uid-inference"), Owner("inference", "uid-before")])
@pytest.mark.parametrize(
    ("result", "state", "reason"),
    [
        (Result.FAILED, State.FAILED, "why; left alone for 60 minutes"),
        (Result.IN_USE, State.PENDING, "InUse: why; left alone for 60 s"),
    ],
)
def test_why_a_node_is_left_alone_is_said(owner: Owner, result: Result, state: State, reason: str) -> None:
    """A node rests after a rollout that did not end well, and the status says so: also where the MigLayout was deleted, and made again."""
    pilot, node, plan = Autopilot(), seen("gpu-0", end(result, owner=owner)), LayoutPlan(read(mode="Auto"))
    pilot.plan(plan, [node], NOW + 10, {}, lambda _: "")
    assert pilot.left([node], NOW + 10, lambda _: "") == {"gpu-0": reason}
    assert plan.states == {"gpu-0": (state, reason)}


def test_what_the_metric_counts_is_bounded() -> None:
    """Twenty namespaces have a series of their own, those with most unused re-cuts; the others are counted together. Without such re-cuts there is none."""
    pilot, layout = Autopilot(), read(mode="Auto")
    question = pilot.question([layout], [layout], {}, NOW)
    pilot.take(question, question.decide(Situation((), {}, {}, {})))
    assert pilot.unused() == {}
    charges = [
        Charge(NOW, "", 0, f"n-{at:02}", (), NOW, Use.UNUSED) for at in range(30) for _ in range(1 + at // 10)
    ]
    document = {
        "autopilot": {"past": write_past(Past(NOW, charges=(*charges, replace(charges[0], use=Use.USED))))}
    }
    plan = LayoutPlan(replace(layout, raw_status=document))
    pilot.status(plan, {}, (), Known(), NOW + 300)
    unused = pilot.unused()
    assert len(unused) == 21
    assert (unused["n-29",], unused["n-10",], unused["other",]) == (3, 2, 10)
    pilot.status(plan, {}, (), Known(), NOW + 3600)
    assert pilot.unused() == {}
