"""What the autopilot says in the status of a MigLayout, and what it remembers there: `status.autopilot`."""

from typing import Final

import msgspec

from tessera.core.autopilot.values import Past
from tessera.core.errors import InvalidInput
from tessera.protocol.kubernetes.objects import decoder

UNDER_WAY: Final = "UnderWay"  # the results of a decision beside those of a rollout
DRY_RUN: Final = "DryRun"
GONE: Final = "Gone"  # the node was deleted


class _Row(msgspec.Struct, frozen=True, rename="camel"):
    """What stands in a list of the status; lists are written whole."""


class DemandRow(_Row, frozen=True):
    """How much is wanted of a profile, and how much there is."""

    profile: str
    waiting: int = 0
    fell_back: int = 0
    rejected: int = 0
    in_use: int = 0
    idle: int = 0
    forecast: float = 0.0


class RecutRow(_Row, frozen=True, omit_defaults=True):
    """A card that would be cut anew."""

    node: str
    card: int
    before: str
    after: str
    serves: dict[str, int]
    takes: dict[str, int]
    gain: float
    cost: float
    reason: str
    waits: str = ""  # why it is not carried out now


class RefusalRow(_Row, frozen=True):
    """What is wanted and gets no room."""

    profile: str
    number: int
    why: str
    reason: str


class HistoryRow(_Row, frozen=True, omit_defaults=True):
    """A decision, and what became of it."""

    at: str
    node: str
    card: int
    before: str
    after: str
    serves: dict[str, int]
    reason: str
    result: str
    told: str = ""  # why it ended so


class AutopilotStatus(msgspec.Struct, frozen=True, rename="camel"):
    """What the autopilot sees, would do or does, and did. Every field is written, so that a merge patch leaves nothing old."""

    dry_run: bool = True
    summary: str = ""
    demand: list[DemandRow] = []
    recuts: list[RecutRow] = []
    refusals: list[RefusalRow] = []
    history: list[HistoryRow] = []  # the newest first
    past: str = ""


_past: Final = decoder(Past)


def read_status(given: object) -> AutopilotStatus:
    """What stands in a status; nothing where that cannot be read."""
    try:
        return msgspec.convert(given or {}, AutopilotStatus)
    except msgspec.ValidationError:
        return AutopilotStatus()


def read_past(text: str) -> Past:
    """What an earlier leader remembered; nothing where that cannot be read."""
    try:
        return _past(text.encode()) if text else Past()
    except InvalidInput:
        return Past()


def write_past(past: Past) -> str:
    return msgspec.json.encode(past).decode()
