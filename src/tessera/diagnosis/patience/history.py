"""What was evicted before: by owner, and in the last minute; and in which namespaces that did not help.

It must outlive the process, or a controller that restarts would begin again with each owner's first patience, and with ten evictions. So it is
written to a ConfigMap of the controller's own, before the evictions that it counts: what is not written is not done. The write carries the version that
was read: of two processes that both take themselves for the leader, one fails to write.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

import msgspec

from tessera.core.errors import InvalidInput
from tessera.protocol.kubernetes.webhook import decode_config_map

CONFIG_MAP: Final = "tessera-patience"
_DOUBTS_THAT_COUNT: Final = 2  # namespaces: what the pods of one do says nothing about the others
_KEY: Final = "evictions.json"
# owners that are remembered: at ten evictions a minute the last hour and a half at least; 1,000 take some 60 KiB
_MOST_OWNERS: Final = 1000
_REMEMBERED: Final = 86400.0  # seconds for which an eviction in vain counts, at least


class Tries(NamedTuple):
    """Evictions of one owner's pods that helped nobody yet."""

    times: int
    at: float  # of the last one; Unix time
    patience: float  # of the pod, seconds: as configured

    @property
    def wait(self) -> float:
        """How long the owner's next pod waits before it is evicted."""
        return float(self.patience * 2**self.times)

    def is_over(self, now: float) -> bool:
        """Whether they are so long ago that they do not count any more: an owner whose pods were evicted again and again is never forgotten between two.

        The next eviction may come long after the wait is over: when something comes free, and never sooner than the last successor is given up.
        """
        return now - self.at > max(_REMEMBERED, 2 * self.wait)


class Doubt(NamedTuple):
    """A pod came in the place of an evicted one without the webhook's decision: so may others there."""

    pod: str  # its name
    created: float  # Unix time
    until: float  # no pod of the namespace is evicted
    counts_until: float  # it counts for other namespaces, too: if two doubts do, no pod is evicted anywhere


class _Text(msgspec.Struct):
    owners: dict[str, Tries] = {}
    recent: list[tuple[float, str]] = []
    doubts: dict[str, Doubt] = {}


_text: Final = msgspec.json.Decoder(_Text)


@dataclass(slots=True)
class History:
    """The evictions that count for the next ones."""

    version: str = ""  # of the ConfigMap; empty: there is none
    owners: dict[str, Tries] = field(default_factory=dict)  # by uid
    recent: list[tuple[float, str]] = field(default_factory=list)  # when, and in which namespace
    doubts: Mapping[str, Doubt] = field(default_factory=dict)  # by namespace; in Unix time

    @classmethod
    def read(cls, raw: bytes) -> "History":
        """The history in a ConfigMap; `InvalidInput` where someone has written something else to it."""
        one = decode_config_map(raw)
        try:
            text = _text.decode((one.data or {}).get(_KEY, "{}"))
        except msgspec.MsgspecError as error:
            raise InvalidInput(f"ConfigMap {CONFIG_MAP}, key {_KEY}: {error}") from error
        return cls(one.metadata.resource_version, text.owners, text.recent, text.doubts)

    def document(self, namespace: str) -> dict[str, Any]:
        """The ConfigMap; with its version, a write fails when another was first."""
        version = {"resourceVersion": self.version} if self.version else {}
        text = msgspec.json.encode(_Text(self.owners, self.recent, dict(self.doubts))).decode()
        return {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": CONFIG_MAP, "namespace": namespace, **version},
            "data": {_KEY: text},
        }

    def wait(self, owner: str, patience: float) -> float:
        """How long a pod of an owner waits before it is evicted: twice as long after each eviction in vain."""
        tries = self.owners.get(owner)
        return patience if tries is None else float(patience * 2**tries.times)

    def left(self, now: float, most: int, window: float) -> int:
        """How many more may be evicted now, of so many within a time."""
        return max(0, most - sum(now - at < window for at, _ in self.recent))

    def lately(self, now: float, window: float) -> Counter[str]:
        """How many were evicted within a time, by namespace."""
        return Counter(namespace for at, namespace in self.recent if now - at < window)

    def with_doubts(self, doubts: Mapping[str, Doubt]) -> "History":
        """The same evictions, and what is doubted now."""
        return replace(self, doubts=doubts)

    def with_evictions(
        self, evicted: Iterable[tuple[str, str, float]], now: float, window: float
    ) -> "History":
        """The history once these were evicted too: owner, namespace and patience of each."""
        owners = {uid: tries for uid, tries in self.owners.items() if not tries.is_over(now)}
        recent = [one for one in self.recent if now - one[0] < window]
        for uid, namespace, patience in evicted:
            before = owners.pop(uid, None)
            owners[uid] = Tries(before.times + 1 if before else 1, now, patience)
            recent.append((now, namespace))
        for uid in list(owners)[: max(0, len(owners) - _MOST_OWNERS)]:
            del owners[uid]
        return History(self.version, owners, recent, self.doubts)

    def helped(self, owner: str) -> None:
        """A pod of an owner was evicted and has a place now: that eviction was not in vain, and its others need not wait longer."""
        self.owners.pop(owner, None)

    def undone(self, owner: str) -> None:
        """A pod that was to be evicted was not."""
        tries = self.owners.get(owner)
        if tries is not None:
            self.owners[owner] = tries._replace(times=tries.times - 1)
            if tries.times <= 1:
                del self.owners[owner]


def doubting(doubts: Mapping[str, Doubt], now: float) -> list[str]:
    """The namespaces for whose doubts no pod is evicted anywhere; none where there are too few."""
    counting = [namespace for namespace, doubt in doubts.items() if now < doubt.counts_until]
    return counting if len(counting) >= _DOUBTS_THAT_COUNT else []
