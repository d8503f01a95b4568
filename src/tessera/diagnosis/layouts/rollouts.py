"""The rollouts that nodes are in, as the nodes' annotations and the MigLayout's status say it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from heapq import nsmallest
from typing import Final

from tessera.core.errors import InvalidInput
from tessera.diagnosis.layouts.status import cut
from tessera.protocol.kubernetes.objects import moment
from tessera.protocol.mig.miglayout import NodeStatus
from tessera.protocol.mig.rollouts import Phase, RolloutRecord, record_of

Rollout = RolloutRecord | str  # a text: why the node's annotation cannot be read

_LAST: Final = 2.0**36  # seconds: no time is later
_PHASES: Final = frozenset(map(str, Phase))


def rollout_on(annotations: Mapping[str, str] | None) -> Rollout | None:
    """What a node's annotations say of a rollout; None where none is under way."""
    try:
        return record_of(annotations)
    except InvalidInput as error:
        return str(error)


@dataclass(frozen=True, slots=True)
class ShownRollout:
    """A node whose layout is being changed. Texts; empty where it is not known."""

    node: str
    words: str  # what is done, and what is waited for
    owner: str = ""
    phase: str = ""
    since: str = ""  # of the phase, as the API server writes times
    until: str = ""  # then the phase has taken too long
    reason: str = ""  # why the old layout is put back

    @property
    def well(self) -> bool:
        """Whether it goes on as it should."""
        return self.phase not in ("", Phase.PUTTING_BACK)


def shown_rollouts(
    rollouts: Mapping[str, Rollout], nodes: Iterable[NodeStatus], most: int | None = None
) -> list[ShownRollout]:
    """Those that have been in their phase for longest first; `nodes` say what they wait for, in the controller's words."""
    # a phase by itself says less than its words
    told = {one.name: one.reason for one in nodes if one.state == "Updating" and one.reason not in _PHASES}
    first = nsmallest(
        len(rollouts) if most is None else most,
        rollouts.items(),
        key=lambda item: (0.0 if isinstance(item[1], str) else item[1].since, item[0]),
    )
    return [_shown(name, one, told.get(name, "")) for name, one in first]


def _shown(node: str, one: Rollout, told: str) -> ShownRollout:
    if isinstance(one, str):
        return ShownRollout(cut(node), cut(one))
    return ShownRollout(
        cut(node),
        cut(told) or one.phase.words,
        cut(str(one.owner)),
        one.phase,
        _time(one.since),
        _time(one.until),
        cut(one.reason),
    )


def _time(seconds: float) -> str:
    return moment(seconds) if 0 <= seconds < _LAST else ""
