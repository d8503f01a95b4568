"""What the autopilot is told, and what it says."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from tessera.core.mig.layout import CardLayout
from tessera.core.mig.placement import Instance
from tessera.core.mig.profile import MigProfile
from tessera.core.planning.changes import Way
from tessera.core.planning.kinds import ANYWHERE

Level = tuple[
    float, float, float
]  # of a profile: its mean demand, the mean of its square; mean devices waited for
Levels = Mapping[str, tuple[float, ...]]  # by the profile's name, as they were stored


class Kind(StrEnum):
    """How a want shows."""

    WAITING = "waiting"  # a pod waits
    FELL_BACK = "fell back"  # a pod runs on something else
    REJECTED = "rejected"  # the pod was never created


class Why(StrEnum):
    """Why something that is wanted gets no room."""

    NO_ROOM = "no-room"  # nothing idle that it fits on
    NO_NODE = "no-node"  # no node has room for all devices that one pod wants of it
    BUDGET = "budget"
    SHARE = "share"  # its namespace has re-cuts that none of its pods has taken, and no more of the budget
    COOL_DOWN = "cool-down"
    MINIMUM = "minimum"
    MAXIMUM = "maximum"
    KEEP_WHOLE = "keep-whole"
    NOT_WORTH_IT = "not-worth-it"
    NAMESPACE = "namespace"  # one namespace wants more than it may count


@dataclass(frozen=True, slots=True)
class CardSupply:
    """One card of the autopilot's nodes. Whoever fills this in gives the same object to cards that are cut alike: that is faster."""

    node: str
    number: int  # of the card on its node
    layout: CardLayout  # as it is cut now
    held: tuple[Instance, ...] = ()  # in use, given out, or not proven idle: these stay
    way: Way = Way.ANNOTATION  # mig-manager clears a card whole: it is cut only if nothing is held
    queues: frozenset[int] = frozenset({ANYWHERE})  # whom devices on its node serve
    fixed: str = ""  # why it must not be cut now (a whole GPU in use, a rollout, …); empty: it may


@dataclass(frozen=True, slots=True)
class Want:
    """Devices of one profile that a pod wants and does not have, after free ones were given out."""

    profile: MigProfile
    namespace: str
    since: float  # seconds, on the clock of `now`
    queue: int = ANYWHERE
    priority: int = 0
    kind: Kind = Kind.WAITING
    number: int = 1  # devices
    together: int = 1  # of these on one node: one pod wants so many


@dataclass(frozen=True, slots=True)
class Limits:
    """What the autopilot must keep to: `spec.autopilot` of a MigLayout."""

    minimum: Mapping[MigProfile, int] = field(default_factory=dict)  # devices, used or idle
    maximum: Mapping[MigProfile, int] = field(default_factory=dict)
    keep_whole: int = 0  # cards that stay whole GPUs
    recuts_per_hour: int = 20  # cards
    cool_down: float = 600.0  # seconds in which a card is not cut again


@dataclass(frozen=True, slots=True)
class Cut:
    """A card that was cut, and when."""

    at: float
    node: str
    number: int


class Use(StrEnum):
    """What became of a re-cut that was made for a namespace."""

    OPEN = ""  # not known yet
    USED = "used"  # a pod of the namespace took a device in time
    UNUSED = "unused"


@dataclass(frozen=True, slots=True)
class Charge:
    """A re-cut, charged to the namespace whose pods wanted it."""

    at: float
    node: str
    number: int  # of the card
    namespace: str
    profiles: tuple[str, ...]  # that it made for pods
    offered: float | None = None  # since when the node offers its devices; None: not yet
    use: Use = Use.OPEN


@dataclass(frozen=True, slots=True)
class Past:
    """All that the autopilot remembers: plain numbers, few of them."""

    at: float | None = None  # when it last looked; None: never
    levels: Levels = field(default_factory=dict)  # what demand has been
    cuts: tuple[Cut, ...] = ()  # within the last hour or the cool-down, oldest first
    charges: tuple[Charge, ...] = ()  # within the last hour, oldest first

    def after(self, recuts: "Collection[Recut]", now: float) -> "Past":
        """With these re-cuts begun: they count against budget, shares and cool-down. Say so of every re-cut that is begun."""
        cuts = (Cut(now, recut.node, recut.number) for recut in recuts)
        charges = (
            Charge(now, recut.node, recut.number, recut.namespace, tuple(map(str, recut.serves)))
            for recut in recuts
            if recut.namespace
        )
        return replace(self, cuts=(*self.cuts, *cuts), charges=(*self.charges, *charges))


@dataclass(frozen=True, slots=True)
class Recut:
    """A card, how it is cut now and how it shall be. What is held stays where it is."""

    node: str
    number: int
    before: CardLayout
    after: CardLayout
    serves: Mapping[
        MigProfile, int
    ]  # wants that it makes room for; none where it keeps room for what is expected
    takes: Mapping[MigProfile, int]  # idle devices that go
    gain: float  # what it serves: the pods' part of the devices that would have to come free first, weighted
    cost: float  # how many devices more are expected to be lacking at a time
    reason: str  # one sentence
    together: int = 1  # devices of one node that each pod wants which it serves
    namespace: str = ""  # of the first pod that it serves: the re-cut is charged to it

    @property
    def brings(self) -> dict[MigProfile, int]:
        """Devices that come."""
        had = self.before.counts
        return {
            one: more for one, number in self.after.counts.items() if (more := number - had.get(one, 0)) > 0
        }


@dataclass(frozen=True, slots=True)
class Refusal:
    """Devices that are wanted and get no room."""

    profile: MigProfile
    number: int
    why: Why
    reason: str  # one sentence
    until: float | None = None  # when this ends by itself at the latest; None: nobody knows


@dataclass(frozen=True, slots=True)
class ProfileDemand:
    """How many devices of a profile are wanted, and how many there are."""

    waiting: int = 0
    fell_back: int = 0
    rejected: int = 0
    in_use: int = 0
    idle: int = 0
    forecast: float = 0.0  # devices in use and wanted at a time, as it has been lately


@dataclass(frozen=True, slots=True)
class Proposal:
    """What to cut, what not and why, and what to remember. `past` does not have the re-cuts: see `Past.after`."""

    recuts: tuple[Recut, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    past: Past = Past()
    demand: Mapping[MigProfile, ProfileDemand] = field(default_factory=dict)  # smallest profile first
