"""A MigLayout's status and its nodes' rollouts as people may be shown them: texts are cut and printable, lists have an end."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from heapq import nsmallest
from itertools import islice
from typing import Any, Final, TypeVar

import msgspec
from msgspec import structs

from tessera.core.text import printable, shortened
from tessera.protocol.kubernetes.objects import moment
from tessera.protocol.mig.miglayout import AutopilotStatus, LayoutStatus, MigLayout, NodeStatus
from tessera.protocol.mig.rollouts import Phase, SeenRollout

T = TypeVar("T", bound=msgspec.Struct)

# entries of each list: as many as the controller writes
_MOST: Final = {
    "nodes": 20,
    "conditions": 4,
    "demand": 32,
    "recuts": 20,
    "refusals": 10,
    "namespaces": 20,
    "history": 30,
}
_MOST_FIELDS: Final = 32  # of a mapping: a row has ten, a card fewer profiles
_LONGEST: Final = 300  # characters of a text


def cut(text: str) -> str:
    """A text of a status or an annotation."""
    return shortened(printable(text), _LONGEST)


def shown_status(layout: MigLayout) -> LayoutStatus:
    """How far it is; `InvalidInput` for a status that the controller would not write."""
    return _bounded(LayoutStatus.of(layout.raw_status))


def shown_autopilot(layout: MigLayout) -> AutopilotStatus | None:
    """What its autopilot sees, would do and did; None where the layouts do not follow demand."""
    return _bounded(structs.replace(layout.autopilot, past="")) if layout.follows_demand else None


def _bounded(one: T) -> T:
    some = {name: value[: _MOST[name]] for name, value in structs.asdict(one).items() if name in _MOST}
    return msgspec.convert(_plain(msgspec.to_builtins(structs.replace(one, **some))), type(one))


def _plain(value: Any) -> Any:
    match value:
        case str():
            return cut(value)
        case list():
            return [_plain(one) for one in value]
        case dict():
            return {cut(key): _plain(one) for key, one in islice(value.items(), _MOST_FIELDS)}
    return value


_LAST: Final = 2.0**36  # seconds: no time is later
_PHASES: Final = frozenset(map(str, Phase))


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
    rollouts: Mapping[str, SeenRollout], nodes: Iterable[NodeStatus], most: int | None = None
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


def _shown(node: str, one: SeenRollout, told: str) -> ShownRollout:
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
