"""Reads a node, and carries out the steps of its rollout."""

from collections.abc import Awaitable, Callable
from typing import Final

from tessera.core.errors import InvalidInput
from tessera.kube.errors import ApiError
from tessera.kube.rest.client import Client, PatchType, evict, is_name, path_of
from tessera.protocol.kubernetes.nodes import NodeIn, decode_node
from tessera.protocol.kubernetes.pod import decode_pod
from tessera.protocol.mig.rollouts import ROLLOUT, Phase, RolloutRecord
from tessera.rollout.config_map import MANAGER
from tessera.rollout.conflicts import MOST_TRIES, Conflicts
from tessera.rollout.in_use import ClaimedDevices, uses_of
from tessera.rollout.progress import offered_by, offered_on
from tessera.rollout.values import Evict, NodeSnapshot, NotUnderWay, Outcome, Patch, Step, Wait

_MOST_STEPS: Final = 8  # of one node before others have their turn: a rollout writes four times
CHANGES_ALL_THE_TIME: Final = (
    f"the node changed {MOST_TRIES} times in a row while it was written to; "
    "tried again in some minutes, later from time to time"
)


class Carrier:
    """Reads and writes nodes for rollouts; `fence` is called before every write, and raises where nothing may be written any more."""

    # seconds after a cordon in which pods may still come that the scheduler had placed before
    settles = 2.0

    def __init__(self, client: Client, fence: Callable[[], None] = lambda: None) -> None:
        self._conflicts = Conflicts(client.clock.now)
        self._client = client
        self._fence = fence
        self._claimed = ClaimedDevices(client)
        self._refused: dict[str, str] = {}  # by node: why a pod was not evicted
        self._cordoned: dict[
            str, tuple[float, float]
        ] = {}  # by node: which rollout, and when it was first seen

    async def drive(
        self,
        name: str,
        decide: Callable[[], Awaitable[tuple[NodeSnapshot | None, Step | Outcome]]],
        write: Callable[[NodeSnapshot, Patch], Awaitable[bool]],
    ) -> Outcome | Wait | None:
        """Take the next steps of a node until its rollout ends or waits; None where it has none, or more can follow at the next look.

        `decide` looks at the node and says what is next; `write` says whether a write went through.
        """
        for _ in range(_MOST_STEPS):
            if self.is_resting(name):
                return Wait(CHANGES_ALL_THE_TIME)
            if self._conflicts.is_pausing(name):
                return None
            seen, found = await decide()
            if isinstance(found, Outcome):
                return found
            if seen is None or isinstance(found, NotUnderWay):
                return None
            if isinstance(found, Patch):
                if await write(seen, found) and found.outcome is not None:
                    return found.outcome
                continue
            if isinstance(found, Evict):
                await self.evict(seen, found)
            return Wait(found.reason)
        return None

    def is_resting(self, name: str) -> bool:
        """Whether a node is left alone for a while, since it changed whenever it was written to."""
        return self._conflicts.is_resting(name)

    def try_at_once(self, name: str) -> None:
        """Write to a node again that is left alone for a while."""
        self._conflicts.forget(name)

    async def look(self, name: str) -> NodeSnapshot | None:
        """A node and what its pods hold, as they are now; None where there is no such node."""
        if not is_name(name):
            return None
        began = self._client.clock.now()
        raw = await self._client.find(_path(name))
        if raw is None:
            self._refused.pop(name, None)
            self._cordoned.pop(name, None)
            self.try_at_once(name)
            return None
        node = decode_node(raw)
        waits = _waiting(node)
        settled = self._is_settled(name, waits, began)
        unowned = ROLLOUT not in (node.metadata.annotations or {})
        # who holds devices is of no interest where nobody waits for it, and many nodes are looked at every few seconds
        asked = (waits.touched, waits.places) != ((), {}) if waits is not None else unowned
        uses = await uses_of(self._client, name) if asked else []
        offered = await offered_on(self._client, node)
        # also where nothing is offered just now: a DRA driver that is away does not take what claims hold
        by_claims = asked and ((waits is not None and waits.label) or not offered_by(node))
        claimed = await self._claimed.on(name, began) if by_claims else {}
        return NodeSnapshot(node, uses, self._refused.get(name, ""), offered, claimed, settled)

    def _is_settled(self, name: str, record: RolloutRecord | None, began: float) -> bool:
        """Whether what is read of a node from `began` on is read long enough after its cordon.

        That counts from when the cordon was first seen: when it was written, nobody knows, for a write may arrive late.
        """
        if record is None:
            self._cordoned.pop(name, None)
            return False
        since, seen = self._cordoned.get(name, (None, 0.0))
        if since != record.since:
            self._cordoned[name] = record.since, self._client.clock.now()
            return False
        return began >= seen + self.settles

    async def write(
        self, seen: NodeSnapshot, patch: Patch, ensure: Callable[[], Awaitable[object]] | None = None
    ) -> NodeIn | None:
        """Write to a node; None where it has changed since it was seen, or is gone. `ensure` sees that mig-manager has the configuration."""
        if patch.cuts and ensure is not None:
            await ensure()
        self._fence()
        try:
            after = decode_node(
                await self._client.patch(_path(seen.name), patch.body, PatchType.MERGE, MANAGER)
            )
        except ApiError as error:
            if error.is_conflict:
                self._conflicts.note(seen.name)
            elif not error.is_not_found:
                raise
            return None
        self._conflicts.forget(seen.name)
        if patch.outcome is not None:
            self._refused.pop(seen.name, None)
        return after

    async def evict(self, seen: NodeSnapshot, evict: Evict) -> None:
        """Evict pods from a node, as far as PodDisruptionBudgets allow it now."""
        refused = ""
        for pod in evict.pods:
            refused = await self._evicted(seen.name, pod) or refused
        self._refused[seen.name] = refused

    async def _evicted(self, node: str, pod: str) -> str:
        """Why a pod was not evicted; empty where it was, or need not be any more."""
        namespace, _, name = pod.partition("/")
        path = path_of("v1", "pods", namespace=namespace, name=name)
        if self._conflicts.is_resting(path):
            return f"{pod} is not evicted: it changed {MOST_TRIES} times in a row meanwhile"
        try:
            found = decode_pod(await self._client.get(path))
            if found.spec.node_name != node or found.metadata.deletion_timestamp:
                return ""
            owner = found.metadata.controller
            if owner is not None and owner.kind == "DaemonSet":  # which heeds no cordon
                return f"{pod} is not evicted: DaemonSet {owner.name} would make it again here"
            if owner is not None and owner.kind == "Node":  # what is evicted is its mirror only
                return f"{pod} is not evicted: it is a static pod, which the kubelet runs on"
            self._fence()
            # no successor of its name
            if await evict(self._client, namespace, name, {"uid": found.metadata.uid}):
                self._conflicts.forget(path)
            else:
                self._conflicts.note(path)
        except InvalidInput as error:
            return f"{pod} cannot be read: {error}"
        except ApiError as error:
            if error.is_not_found:
                return ""
            if error.is_too_many:
                return f"{pod} is not evicted: {error.message}"
            return f"{pod} cannot be evicted: {error}"
        return ""


def _path(node: str) -> str:
    return path_of("v1", "nodes", name=node)


def _waiting(node: NodeIn) -> RolloutRecord | None:
    """The rollout of a node that has nothing written yet; None where it has none."""
    try:
        record = NodeSnapshot(node).record
    except InvalidInput:
        return None
    return record if record is not None and record.phase in (Phase.CORDONED, Phase.WAITING) else None
