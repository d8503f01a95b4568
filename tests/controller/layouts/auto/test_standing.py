"""How nodes stand to a MigLayout in mode Auto."""

import pytest

from tessera.controller.layouts.auto.autopilot import Autopilot
from tessera.controller.layouts.plan import LayoutPlan, State
from tessera.protocol.mig.rollouts import Owner, Result
from tests.controller.layouts.test_plan import NOW, end, read, seen


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
