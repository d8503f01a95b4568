"""What became of a node."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tessera.protocol.mig.rollouts import Result
from tessera.rollout.machine.values import Outcome


class RolloutResult(StrEnum):
    """How the rollout ended for a node."""

    DONE = "done"
    WRITTEN = "written"  # and not waited for
    PUT_BACK = "put back"  # failed or interrupted, and the node has its old layout again
    FAILED = "failed"  # and nothing of ours is left to put back, or it could not be
    REFUSED = "refused"  # and nothing was written
    NOT_BEGUN = "not begun"


@dataclass(frozen=True, slots=True)
class NodeRollout:
    """What became of a node."""

    node: str
    result: RolloutResult
    reason: str = ""


_RESULTS: Final = {
    Result.DONE: RolloutResult.DONE,
    Result.FAILED: RolloutResult.PUT_BACK,
    Result.NOT_READY: RolloutResult.FAILED,
    Result.IN_USE: RolloutResult.REFUSED,
    Result.OVERTAKEN: RolloutResult.FAILED,
    Result.CANCELLED: RolloutResult.FAILED,
}


def ended(node: str, outcome: Outcome) -> NodeRollout:
    """What became of a node, by how its rollout ended."""
    return NodeRollout(node, _RESULTS[outcome.result], outcome.reason)
