"""Whether a pod without a node waits for something else than a free device. Then it is blocked, and nothing is held for it.

This is the one rule for the webhook's rooms, the autopilot's demand, patience, `tessera mig plan` and `tessera why`. All times are seconds
of one clock. Whoever asks knows since when a device was in reach: one node that the pod may go to had all that it asks for free.

A scheduler that finds a place binds within a second. One that tried shortly before waits up to 10 s for the next try (kube-scheduler,
podMaxBackoffSeconds), and looks at all pods again every 5 min (podMaxInUnschedulablePodsDuration).
"""

from enum import StrEnum
from typing import Final

PATIENT: Final = 30.0  # seconds that a pod may hold what it does not take
ANSWERED: Final = 2.0  # seconds after the scheduler has refused a pod, while a device was in reach
ASKED_AGAIN: Final = 300.0  # seconds until a blocked pod may hold something again
# How often pods can take turns of `PATIENT` at one device before the first of them is asked again.
MOST_TURNS: Final = int((PATIENT + ASKED_AGAIN) / PATIENT)


class Block(StrEnum):
    """Why a pod is blocked."""

    HELD = "held"  # it has scheduling gates or another scheduler, or asks for more than is counted
    IN_REACH = "in_reach"  # a device was in reach, and the pod did not get it
    SILENT = "silent"  # the scheduler has set no condition, and has set some for pods that were created later


BLOCKED: Final = {
    Block.HELD: "scheduling gates keep the scheduler from it",
    Block.IN_REACH: "a free device was in reach for 30 s and it did not get it",
    Block.SILENT: "the scheduler has said nothing for 30 s and places pods that were created later",
}


def find_block(
    now: float,
    *,
    asked: float,
    judged: float | None,
    reached: float | None = None,
    answered: float | None = None,
    later_judged: bool = False,
) -> Block | None:
    """Why a pod is blocked; None: it is not.

    `asked`: since when it may hold something: since its creation, or since it was asked again. `judged`: since when the scheduler
    finds no place; None: it has set no condition. `reached`: since when a device is in reach. `answered`: when the scheduler refused it meanwhile. `later_judged`: the scheduler has set the
    condition of a pod that was created later. While no pod gets a condition, the scheduler is away, and nobody is blocked.
    """
    if judged is None:
        return Block.SILENT if later_judged and now - asked >= PATIENT else None
    if reached is None:
        return None
    is_refused = answered is not None and now - answered >= ANSWERED
    return Block.IN_REACH if is_refused or now - max(reached, asked, judged) >= PATIENT else None
