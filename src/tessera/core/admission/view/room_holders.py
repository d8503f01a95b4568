"""Who has a room, or should have one: pods that wait, by their shapes."""

from typing import TYPE_CHECKING

from tessera.core.admission.view.pods import Shape

if TYPE_CHECKING:
    from tessera.core.kubernetes.blocked import Block

Rank = tuple[int, float, str]  # priority (higher first), age, name


class RoomGroup:
    """The pods of one shape in a namespace: which nodes they may go to, and which of them have no room."""

    __slots__ = ("members", "namespace", "nodes", "queue", "shape", "tried", "version")

    def __init__(self, namespace: str, shape: Shape) -> None:
        self.namespace = namespace
        self.shape = shape
        self.members = 0
        self.queue: list[Rank] = []
        self.nodes, self.version = 0, -1  # right for this version of the view
        self.tried = -1  # in this round nothing fitted


class RoomHolder:
    """A pod that has a room, or should have one."""

    __slots__ = (
        "asked",
        "block",
        "group",
        "is_own",
        "judged",
        "key",
        "namespace",
        "node",
        "queued",
        "rank",
        "since",
        "verdict",
        "warned",
    )

    def __init__(self, key: str, group: RoomGroup, rank: Rank, verdict: str, asked: float) -> None:
        self.key = key
        self.namespace = group.namespace
        self.is_own = False  # its room counts against its own namespace alone
        self.group = group
        self.rank = rank
        self.node = ""  # where its room is; empty: it has none
        self.since = 0.0  # when the room was made
        self.verdict = verdict
        # since when the scheduler finds no place, as far as is known
        self.judged = asked if verdict else None
        self.warned: float | None = None  # when the verdict came while the room was there
        self.asked = asked  # since when it may have a room; of a blocked one, since when it is blocked
        self.block: Block | None = None
        self.queued = False  # in its group's queue

    @property
    def space(self) -> str:
        """The namespace that alone sees its room; empty: all do."""
        return self.namespace if self.is_own else ""

    def is_seen_by(self, namespace: str) -> bool:
        """Whether its room counts against a namespace."""
        return not self.is_own or self.namespace == namespace

    @property
    def created(self) -> float:
        return self.rank[1]
