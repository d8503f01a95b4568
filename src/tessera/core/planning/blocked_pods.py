"""Which waiting pods are blocked: they could have had what is free, so they wait for something else (`core.kubernetes.blocked`).

They get nothing of what is free, and nothing is planned for them.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tessera.core.devices.capacity import PodUse
from tessera.core.kubernetes.blocked import ASKED_AGAIN, MOST_TURNS, PATIENT, Block, find_block
from tessera.core.kubernetes.quantity import Number
from tessera.core.planning.waiting import DemandGroup, NodeRoom, nodes_having, settle
from tessera.core.resources import is_any_gpu


@dataclass(frozen=True, slots=True)
class PodTimes:
    """The times of a pod that waits, in seconds."""

    asked: float  # since when it may hold something
    judged: float | None  # since when the scheduler finds no place; None: it has set no condition
    uid: str = ""


Times = Mapping[str, PodTimes]  # by namespace/name
Amounts = Mapping[str, Number]
_Kind = tuple[str, frozenset[tuple[str, Number]]]  # namespace, and the devices that each pod asks for


def without_pods(groups: Sequence[DemandGroup], names: Collection[str]) -> list[DemandGroup]:
    """The groups without some pods; groups may be empty then."""
    if not names:
        return list(groups)
    return [
        replace(group, names=tuple(name for name in group.names if name not in names)) for group in groups
    ]


class ReachedKinds:
    """Since when pods of a namespace that ask for the same devices have had one in reach, look by look.

    Such pods may be made again and again, so that none of them is old enough.
    """

    def __init__(self) -> None:
        self._since: dict[_Kind, float] = {}

    def note(self, kinds: Iterable[_Kind], now: float) -> None:
        """These have one in reach, and no others."""
        self._since = {kind: self._since.get(kind, now) for kind in kinds}

    def is_due(self, kind: _Kind, now: float) -> bool:
        return now - self._since.get(kind, now) >= PATIENT


def _kind_of(group: DemandGroup, name: str) -> _Kind:
    return name.partition("/")[0], frozenset((r, amount) for r, amount in group.asks.items() if is_any_gpu(r))


def blocked_by_reach(
    groups: Sequence[DemandGroup],
    may: Sequence[Sequence[int]],
    idle: Sequence[NodeRoom],
    times: Times,
    now: float,
    kinds: ReachedKinds,
) -> set[str]:
    """The pods that had a device in reach for long enough; `idle` is what was free on nodes all that time, `may` where each group may go."""
    reaching = _reaching(groups, may, idle)
    kinds.note({_kind_of(group, name) for group in reaching for name in group.names}, now)
    return {
        name
        for group in reaching
        for name in group.names
        if is_due(times.get(name), now) or kinds.is_due(_kind_of(group, name), now)
    }


def _reaching(
    groups: Sequence[DemandGroup], may: Sequence[Sequence[int]], idle: Sequence[NodeRoom]
) -> list[DemandGroup]:
    """The groups whose pods fit in what was free all the time."""
    having = nodes_having(idle)
    reaching = []
    for group, nodes in zip(groups, may, strict=True):
        if not group.waits or group.rejected:
            continue
        for asks in (group.asks, *group.instead):
            enough = having(asks)
            if any(i in enough and idle[i].fits(asks, 1) for i in nodes):
                reaching.append(group)
                break
    return reaching


def blocked_by_turns(
    groups: Sequence[DemandGroup],
    may: Sequence[Sequence[int]],
    rooms: Sequence[NodeRoom],
    times: Times,
    now: float,
) -> set[str]:
    """The same for a command that looks once: as if what is free now had always been free, and pods had taken turns at it."""
    blocked: set[str] = set()
    left = list(groups)
    for turn in range(MOST_TURNS):
        free = [NodeRoom(room.node, dict(room.free)) for room in rooms]
        rest, _ = settle(left, may, free)
        placed = [
            name
            for group, after in zip(left, rest, strict=True)
            for name in group.names[: len(group.names) - len(after.names)]
            if is_due(times.get(name), now, turn * PATIENT)
        ]
        if not placed:
            break
        blocked.update(placed)
        left = without_pods(left, blocked)
    return blocked


def is_due(pod: PodTimes | None, now: float, later: float = 0.0) -> bool:
    """Whether a pod is blocked if a device was in reach since the scheduler judged it, or so much later."""
    if pod is None or pod.judged is None:
        return False
    return find_block(now, asked=pod.asked, judged=pod.judged, reached=pod.judged + later) is not None


class IdleDevices:
    """What was free on nodes all the time, for `PATIENT` seconds or longer, as far as looks show it."""

    def __init__(self) -> None:
        self._since: float | None = None  # when the present while began
        self._lowest: dict[str, Amounts] = {}  # by node, in the present while
        self._before: dict[str, Amounts] = {}  # in the one before
        self._seen: dict[str, tuple[object, dict[str, Hashable]]] = {}  # and who held which GPUs

    def note(
        self, free: Mapping[str, tuple[object, Amounts]], holders: Callable[[str, str], Hashable], now: float
    ) -> None:
        """Look at what is free now on nodes that take pods: with an object that is the same as long as nothing changes there."""
        present: dict[str, Amounts] = {}
        seen: dict[str, tuple[object, dict[str, Hashable]]] = {}
        for name, (state, amounts) in free.items():
            known = self._seen.get(name)
            if known is not None and known[0] is state:
                seen[name], present[name] = known, self._lowest.get(name, amounts)
                continue
            hold = {resource: holders(name, resource) for resource in filter(is_any_gpu, amounts)}
            seen[name] = state, hold
            lowest, held = self._lowest.get(name, amounts), hold if known is None else known[1]
            present[name] = {
                # a device that went to another pod meanwhile was free only for a moment
                resource: min(amount, lowest.get(resource, 0))
                if held.get(resource) == hold.get(resource)
                else 0
                for resource, amount in amounts.items()
            }
        self._lowest, self._seen = present, seen
        self._before = {name: amounts for name, amounts in self._before.items() if name in free}
        if self._since is None:
            self._since = now
        elif now - self._since >= PATIENT:
            self._since, self._before = now, present
            self._lowest = {name: amounts for name, (_, amounts) in free.items()}

    def on(self, name: str) -> dict[str, Number]:
        """What was free on a node all the time."""
        before, lowest = self._before.get(name, {}), self._lowest.get(name, {})
        return {
            resource: min(amount, lowest[resource])
            for resource, amount in before.items()
            if resource in lowest
        }


class BlockedUntil:
    """The pods that were found to wait for something else, by uid: why, and since when. Only of pods that are there."""

    def __init__(self) -> None:
        self._since: dict[str, tuple[Block, float]] = {}

    def sort_out(
        self,
        waiting: Mapping[str, PodUse],
        judged_until: str,
        seconds: Callable[[str], float | None],
        now: float,
    ) -> tuple[dict[str, Block], dict[str, PodTimes]]:
        """Which pods are blocked whatever is free, by namespace/name; and the times of all others. All other pods are forgotten.

        `judged_until` is the latest creation of a pod that the scheduler has judged; `seconds` reads a time as the API writes it.
        """
        uids = {use.uid for use in waiting.values()}
        self._since = {uid: known for uid, known in self._since.items() if uid in uids}
        blocked, times = dict[str, Block](), dict[str, PodTimes]()
        latest = seconds(judged_until) or 0.0
        for name, use in waiting.items():
            judged, asked = seconds(use.judged), seconds(use.created) or 0.0
            later = 0 < asked < latest
            block, since = self._since.get(use.uid, (None, 0.0))
            if block is Block.SILENT and judged is not None:
                del self._since[use.uid]
            elif block is not None:
                asked = since + ASKED_AGAIN
            if use.gated:
                blocked[name] = Block.HELD
            elif block is not None and now < asked:
                blocked[name] = block
            elif find_block(now, asked=asked, judged=judged, later_judged=later):
                blocked[name] = Block.SILENT
                self.put(use.uid, Block.SILENT, now)
            else:
                times[name] = PodTimes(asked, judged, use.uid)
        return blocked, times

    def put(self, uid: str, block: Block, now: float) -> None:
        self._since[uid] = block, now
