"""A MigLayout's status as people may be shown it: texts are cut and printable, lists have an end."""

from itertools import islice
from typing import Any, Final, TypeVar

import msgspec
from msgspec import structs

from tessera.core.text import printable, shortened
from tessera.protocol.mig.autopilot import AutopilotStatus
from tessera.protocol.mig.miglayout import LayoutStatus, MigLayout

T = TypeVar("T", bound=msgspec.Struct)

# entries of each list: as many as the controller writes
_MOST: Final = {"nodes": 20, "conditions": 4, "demand": 32, "recuts": 20, "refusals": 10, "history": 30}
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
