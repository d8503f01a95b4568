"""The MigLayout: which nodes have which layout, or that it follows demand, and how it is rolled out; and its status.

Its status says how far it is, and why. What is not written there is empty. `status.autopilot` is what the autopilot says,
and what it remembers.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import chain, islice
from math import isfinite
from operator import attrgetter
from typing import Any, Final

import msgspec

from tessera.core.autopilot.values import Charge, Levels, Limits, Past
from tessera.core.errors import InvalidInput
from tessera.core.mig.geometry import product_named
from tessera.core.mig.profile import InvalidProfile, MigProfile
from tessera.core.planning.configurations import is_label_value
from tessera.core.text import seconds_in
from tessera.protocol.kubernetes.objects import Condition, Metadata, Part, Texts, decoder
from tessera.protocol.mig import documents as mig
from tessera.protocol.mig.nodes import GpuNode

UNDER_WAY: Final = "UnderWay"  # the results of a decision beside those of a rollout
DRY_RUN: Final = "DryRun"
GONE: Final = "Gone"  # the node was deleted
_MOST_LEVELS: Final = 256  # profiles of which demand is remembered: all products together have fewer
_MOST_CHARGES: Final = 1000  # of the last hour: as many as recutsPerHour may be
_MOST_PROFILES: Final = 7  # that a card has devices of


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


class NamespaceRow(_Row, frozen=True, omit_defaults=True):
    """What a namespace has spent of the re-cuts of the last hour."""

    namespace: str
    used: int = 0  # a pod of the namespace took a device in time
    unused: int = 0
    undecided: int = 0  # the devices are not there yet, or were offered a short while ago
    free_at: str = ""  # its share is spent: when it may begin another re-cut, at the latest


class AutopilotStatus(msgspec.Struct, frozen=True, rename="camel"):
    """What the autopilot sees, would do or does, and did. Every field is written, so that a merge patch leaves nothing old."""

    dry_run: bool = True
    summary: str = ""
    demand: list[DemandRow] = []
    recuts: list[RecutRow] = []
    refusals: list[RefusalRow] = []
    namespaces: list[NamespaceRow] = []  # those that spent most first
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
    times = chain.from_iterable((charge.at, charge.offered or 0.0) for charge in past.charges)
    cut_times = (cut.at for cut in past.cuts)
    numbers = (*cut_times, past.at or 0.0, *times, *chain.from_iterable(past.levels.values()))
    if not all(map(isfinite, numbers)):
        return None
    charges = tuple(islice(filter(_is_charge, past.charges), _MOST_CHARGES))
    return replace(past, levels=_sound_levels(past.levels), charges=charges)


def _is_charge(charge: Charge) -> bool:
    """Whether the controller can have written it."""
    return is_label_value(charge.namespace) and len(charge.profiles) <= _MOST_PROFILES


def _sound_levels(levels: Levels) -> Levels:
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


class NodeStatus(Part):
    """A node that does not have its layout, and why."""

    name: str = ""
    state: str = ""
    reason: str = ""


class LayoutStatus(Part):
    """What the controller says of a MigLayout."""

    observed_generation: int = 0
    desired: int = 0
    current: int = 0
    updating_count: int = 0
    failed: int = 0
    nodes: list[NodeStatus] = msgspec.field(default_factory=list)
    conditions: list[Condition] = msgspec.field(default_factory=list)

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> "LayoutStatus":
        """Read a status as it was written; `InvalidInput` for what the controller would not write."""
        try:
            return msgspec.convert(raw, cls)
        except msgspec.MsgspecError as error:
            raise InvalidInput(f"status: {error}") from error

    def condition(self, type_: str) -> Condition:
        return next((one for one in self.conditions if one.type == type_), Condition())


API_VERSION: Final = "tessera.dev/v1alpha1"
KIND: Final = "MigLayout"
PLURAL: Final = "miglayouts"


class _Metadata(Metadata):
    generation: int = 0


class LayoutIn(Part):
    """One layout: for a product, or for any; as counts, as a document, or by the name of one of mig-manager's configurations."""

    product: str = ""
    per_card: dict[str, int] | None = None
    document: str = ""
    configuration: str = ""

    def fits(self, gpus: GpuNode) -> bool:
        """Whether it is for the cards of a node."""
        if not self.product or self.product == gpus.label:
            return True
        try:
            return gpus.product == product_named(self.product)
        except InvalidInput:
            return False

    @property
    def text(self) -> str:
        """The layout as a document."""
        if self.per_card is None:
            return self.document
        return ",".join(f"{profile}={number}" for profile, number in sorted(self.per_card.items()))

    def read(self) -> mig.MigDocument:
        return mig.read(self.text, "perCard" if self.per_card is not None else "document")


class _RolloutIn(Part):
    max_unavailable: int | str = 1
    when_in_use: str = "Wait"
    drain_timeout: str = "30m"
    timeout: str = "10m"

    @property
    def drain_seconds(self) -> float:
        return seconds_in(self.drain_timeout)

    @property
    def seconds(self) -> float:
        return seconds_in(self.timeout)

    @property
    def longest_phase(self) -> float:
        """How many seconds a phase of a node's rollout may take."""
        return max(self.drain_seconds, self.seconds)


class _AutopilotIn(Part):
    dry_run: bool = True
    minimum: dict[str, int] | None = None
    maximum: dict[str, int] | None = None
    keep_whole: int = 0
    recuts_per_hour: int = 20
    cool_down: str = "10m"

    @property
    def limits(self) -> Limits:
        """What the autopilot must keep to; `InvalidInput` says what is wrong."""
        minimum, maximum = _profiles(self.minimum), _profiles(self.maximum)
        for one in minimum.keys() & maximum.keys():
            if minimum[one] > maximum[one]:
                raise InvalidInput(f"the minimum of {one} is {minimum[one]}, its maximum {maximum[one]}")
        return Limits(minimum, maximum, self.keep_whole, self.recuts_per_hour, seconds_in(self.cool_down))


def _profiles(counts: Mapping[str, int] | None) -> dict[MigProfile, int]:
    """Counts by profile; one that is there under two of its names is an error, for either number would be a guess."""
    found: dict[MigProfile, int] = {}
    for name, number in (counts or {}).items():
        profile = MigProfile.parse(name)
        if profile in found:
            raise InvalidInput(f"{profile} is there twice, once as {name}")
        found[profile] = number
    return found


class _SpecIn(Part):
    node_selector: Texts = None
    mode: str = "Fixed"
    layouts: list[LayoutIn] = msgspec.field(default_factory=list)
    rollout: _RolloutIn = msgspec.field(default_factory=_RolloutIn)
    paused: bool = False
    autopilot: _AutopilotIn = msgspec.field(default_factory=_AutopilotIn)


class Slot(Part, omit_defaults=True):
    """A node that may be cordoned."""

    name: str
    # whether somebody else had cordoned the node, so that it stays cordoned; None: it is not known that the
    # controller has cordoned it
    cordoned_before: bool | None = None


class _StatusIn(Part):
    controller: str = ""
    updating: list[Slot | str] | None = None  # names: as earlier versions wrote it
    conditions: list[Condition] | None = None


class _MigLayoutIn(Part):
    metadata: _Metadata
    spec: _SpecIn = msgspec.field(default_factory=_SpecIn)
    status: _StatusIn = msgspec.field(default_factory=_StatusIn)


_decode: Final = decoder(_MigLayoutIn)
_status: Final = decoder(dict[str, Any])


@dataclass(frozen=True)
class MigLayout:
    """A MigLayout at one version."""

    metadata: _Metadata
    spec: _SpecIn
    status: _StatusIn
    raw_status: Mapping[str, Any]  # as it was written

    @classmethod
    def read(cls, raw: bytes) -> "MigLayout":
        found = _decode(raw)
        return cls(found.metadata, found.spec, found.status, _status(raw).get("status") or {})

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def uid(self) -> str:
        return self.metadata.uid

    @property
    def version(self) -> str:
        return self.metadata.resource_version

    @cached_property
    def age(self) -> tuple[str, str]:
        """Of two for one node, the one with the lesser age keeps it: it was made first."""
        return self.metadata.creation_timestamp or "", self.name

    @property
    def ends(self) -> bool:
        """Whether it is deleted, and there only until its finalizers are gone."""
        return self.metadata.deletion_timestamp is not None

    @property
    def follows_demand(self) -> bool:
        """Mode Auto: the autopilot decides the layouts."""
        return self.spec.mode == "Auto"

    @cached_property
    def autopilot(self) -> AutopilotStatus:
        """What the autopilot has written; empty where it has not, or where that cannot be read."""
        return read_status(self.raw_status.get("autopilot"))

    @property
    def updating(self) -> Sequence[str]:
        """The nodes that have a slot: none of the others may be cordoned."""
        return tuple(self.slots)

    @cached_property
    def slots(self) -> Mapping[str, Slot]:
        """The slots, by node."""
        slots = (Slot(slot) if isinstance(slot, str) else slot for slot in self.status.updating or ())
        return {slot.name: slot for slot in slots}

    @property
    def selector(self) -> str:
        """The labels of its nodes, as kubectl takes them."""
        return ",".join(f"{key}={value}" for key, value in (self.spec.node_selector or {}).items())

    def selects(self, labels: Mapping[str, str]) -> bool:
        selector = self.spec.node_selector or {}
        return bool(selector) and selector.items() <= labels.items()

    def condition(self, type_: str) -> Condition:
        return next((one for one in self.status.conditions or () if one.type == type_), Condition())


def find_keepers(layouts: Iterable[MigLayout], labels: Mapping[str, str] | None) -> list[MigLayout]:
    """The MigLayouts that select a node with these labels, the oldest first: that one keeps the node's layout."""
    selecting = [layout for layout in layouts if layout.selects(labels or {})]
    return sorted(selecting, key=attrgetter("age"))
