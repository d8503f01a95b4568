"""What a node says about a rollout of its layout: two annotations.

`tessera.dev/rollout` stands there while the rollout is under way, and holds all that must survive a restart. `tessera.dev/rollout-result` says
why the last one did not end well; the next one removes it.
"""

from collections.abc import Mapping
from enum import StrEnum
from hashlib import sha256
from typing import Annotated, Final

import msgspec

from tessera.core.errors import InvalidInput
from tessera.protocol.kubernetes.objects import decoder
from tessera.protocol.mig.documents import PARTED_CONFIG, RUNAI_CONFIG

MOST_TRIES: Final = 64
CLOCKS_DIFFER: Final = 60.0  # seconds, at most, between clocks that are kept right
ROLLOUT: Final = "tessera.dev/rollout"
RESULT: Final = "tessera.dev/rollout-result"


class Phase(StrEnum):
    """How far a node's rollout is."""

    CORDONED = "Cordoned"  # no new pods come; those that hold devices which go are waited for
    WAITING = "Waiting"  # the same on a node that the rollout does not cordon
    WRITTEN = "Written"  # the new layout is on the node, which is to show it
    RETRYING = (
        "Retrying"  # mig-manager did not know the configuration yet: its label names another, for a moment
    )
    PUTTING_BACK = "PuttingBack"  # the old layout is on the node again, which is to show it

    @property
    def words(self) -> str:
        """What is done and what is waited for, where nobody says it more exactly."""
        return _WORDS[self]


_WORDS: Final = {
    Phase.CORDONED: "cordoned; the pods that hold devices which go are waited for",
    Phase.WAITING: "the pods that hold devices which go are waited for",
    Phase.WRITTEN: "the new layout is written; the node is to show it",
    Phase.RETRYING: "mig-manager does not know the configuration yet; it is given again",
    Phase.PUTTING_BACK: "the old layout is written again; the node is to show it",
}


class Result(StrEnum):
    """How a node's rollout ended."""

    DONE = "Done"
    FAILED = "Failed"  # the node did not take the layout
    IN_USE = "InUse"  # pods did not let go of devices in time
    NOT_READY = "NotReady"  # the node is dead
    OVERTAKEN = "Overtaken"  # another client changed the node meanwhile
    CANCELLED = "Cancelled"  # it was no longer wanted, before anything was written
    NOT_BEGUN = "NotBegun"  # the node had its slot, and was not cordoned


class Owner(msgspec.Struct, frozen=True):
    """Who rolls out: a MigLayout, by its name and UID; or `mig apply`, by who called it, without a UID."""

    name: str
    uid: str = ""

    def __str__(self) -> str:
        return f"MigLayout {self.name}" if self.uid else f"tessera mig apply ({self.name})"


class RolloutRecord(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """A rollout that is under way; times are Unix time."""

    owner: Owner
    phase: Phase
    since: float  # of the phase
    until: float  # then the phase has taken too long
    timeout: float  # seconds that the node may take to show its layout
    after: str  # what is to be written
    before: str | None = None  # what was there
    label: bool = False  # into mig-manager's label; else into the annotation
    state: str = ""  # the state of the old layout
    cordoned: bool = False  # the node was cordoned before, and stays so
    cordons: bool = True  # the node is cordoned meanwhile
    drain: bool = False  # evict the pods that hold devices which go
    auto: bool = False  # the autopilot decided it: no pod is waited for
    touched: tuple[str, ...] | None = None  # the resources of which devices go; None: any may
    places: dict[int, tuple[str, ...]] | None = None  # which devices go: card → places; None: it is not known
    offered: dict[str, int] = {}  # what the node had
    expected: dict[str, int] | None = None  # what it will have; None: unknown
    late: float = 0.0  # until then mig-manager may not know the configuration yet
    tries: Annotated[int, msgspec.Meta(ge=0, le=MOST_TRIES)] = (
        0  # how often its label was changed away and back
    )
    begun: bool = False  # mig-manager was seen at work
    result: Result = Result.DONE  # while it is put back: how it ends
    reason: str = ""

    @property
    def key(self) -> str:
        return PARTED_CONFIG if self.label else RUNAI_CONFIG

    @property
    def target(self) -> str:
        return target_of(self.key, self.after)

    @property
    def uncordons(self) -> bool:
        """Whether the node is uncordoned at the end: not one that somebody else has cordoned."""
        return self.cordons and not self.cordoned

    def say_whose(self, instead: str = "") -> str:
        """Who changes the node, and what to do about a command that was killed: it does not go on by itself."""
        text = f"{self.owner} is changing it"
        if self.owner.uid:
            return text
        uncordon = " and uncordon it" if self.uncordons else ""
        return f"{text}; if that was killed, {instead}remove the node's annotation {ROLLOUT}{uncordon}"

    @property
    def configurations(self) -> set[str]:
        """Those of mig-manager that the node needs until the end: it may come back to the old one."""
        return {one for one in (self.before, self.after) if one and self.label}

    def by_clock(self, now: float) -> "RolloutRecord":
        """The same with times that are not yet to come: where the clock that wrote it was ahead, the phase begins now."""
        if not is_ahead(self.since, now):
            return self
        ahead = self.since - now
        until, late = max(now, self.until - ahead), max(0.0, self.late - ahead)
        return msgspec.structs.replace(self, since=now, until=until, late=late)

    def within(self, longest: float) -> "RolloutRecord":
        """The same with no phase that takes longer than so many seconds, whoever wrote the record."""
        until, timeout = min(self.until, self.since + longest), min(self.timeout, longest)
        if (until, timeout) == (self.until, self.timeout):
            return self
        return msgspec.structs.replace(self, until=until, timeout=timeout)


class RolloutEnd(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """A rollout that did not end well."""

    owner: Owner
    target: str
    result: Result
    at: float
    reason: str = ""
    fenced: float = 0.0  # when another leader than the one who wrote it gave the slot back

    def is_within(self, seconds: float, now: float) -> bool:
        """Whether it ended within these last seconds; not where a clock that was ahead has written it, for that would hold for long."""
        return now < self.at + seconds and not is_ahead(self.at, now)


def is_ahead(at: float, now: float) -> bool:
    """Whether a time was written by a clock that is ahead of ours, by more than clocks differ that are kept right."""
    return at > now + CLOCKS_DIFFER


def target_of(key: str, value: str) -> str:
    """A short name of what was to be written."""
    return sha256(f"{key}={value}".encode()).hexdigest()[:12]


_record: Final = decoder(RolloutRecord)
_end: Final = decoder(RolloutEnd)


def record_of(annotations: Mapping[str, str] | None) -> RolloutRecord | None:
    """The rollout that is under way on a node, by the node's annotations; `InvalidInput` where ours cannot be read."""
    text = (annotations or {}).get(ROLLOUT)
    if text is None:
        return None
    try:
        return _record(text.encode("utf-8", "replace"))
    except InvalidInput as error:
        raise InvalidInput(f"annotation {ROLLOUT}: {error}") from error


SeenRollout = RolloutRecord | str  # a text: why the node's annotation cannot be read


def read_rollout(annotations: Mapping[str, str] | None) -> SeenRollout | None:
    """The same for people: where ours cannot be read, the error's text is the answer."""
    try:
        return record_of(annotations)
    except InvalidInput as error:
        return str(error)


def read_end(text: str) -> RolloutEnd | None:
    """None for an annotation that is none of ours: such a node is tried again."""
    try:
        return _end(text.encode("utf-8", "replace"))
    except InvalidInput:
        return None


def written(one: RolloutRecord | RolloutEnd) -> str:
    return msgspec.json.encode(one).decode()
