"""What the autopilot says in the status of a MigLayout, and what it remembers there: `status.autopilot`."""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import chain, islice
from math import isfinite
from typing import Final

import msgspec

from tessera.core.autopilot.values import Levels, Past
from tessera.core.errors import InvalidInput
from tessera.core.mig.profile import InvalidProfile, MigProfile
from tessera.protocol.kubernetes.objects import decoder

UNDER_WAY: Final = "UnderWay"  # the results of a decision beside those of a rollout
DRY_RUN: Final = "DryRun"
GONE: Final = "Gone"  # the node was deleted
_MOST_LEVELS: Final = 256  # profiles of which demand is remembered: all products together have fewer


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
    """A card that would be re-cut."""

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
    """What stands in a status; of one that nobody of ours has written only what is remembered."""
    try:
        return msgspec.convert(given or {}, AutopilotStatus)
    except msgspec.ValidationError:
        past = given.get("past", "") if isinstance(given, Mapping) else ""
        return AutopilotStatus(past=past if isinstance(past, str) else "?")


@lru_cache(maxsize=16)  # of a few MigLayouts, again and again
def read_past(text: str) -> Past | None:
    """What an earlier leader remembered; None where that cannot be read."""
    try:
        past = _past(text.encode("utf-8", "replace")) if text else Past()
    except InvalidInput:
        return None
    numbers = (*(one.at for one in past.cuts), past.at or 0.0, *chain.from_iterable(past.levels.values()))
    return replace(past, levels=_profiles(past.levels)) if all(map(isfinite, numbers)) else None


def _profiles(levels: Levels) -> Levels:
    """What is remembered of profiles, of the largest demand if that is too much: a status can be edited."""
    largest = sorted(levels.items(), key=lambda one: one[1], reverse=True)
    return dict(islice((one for one in largest if _is_profile(one[0])), _MOST_LEVELS))


def _is_profile(name: str) -> bool:
    try:
        return str(MigProfile.parse(name)) == name
    except InvalidProfile:
        return False


def write_past(past: Past) -> str:
    return msgspec.json.encode(past).decode()
