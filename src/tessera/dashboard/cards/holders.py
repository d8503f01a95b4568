"""Who holds the devices of a node."""

from collections.abc import Collection, Iterable
from typing import Final

from tessera.core.kubernetes.node import Node
from tessera.core.kubernetes.resources import is_whole_or_mig
from tessera.dashboard.cards.layout import Claimed
from tessera.dashboard.observed import DashboardPod

MOST_LOOSE: Final = 64  # tiles of one resource; of what comes in larger numbers only the numbers are shown


class Holders:
    """Who holds what on a node, and has not been put onto a tile yet."""

    def __init__(self, pods: Iterable[DashboardPod], node: Node, claimed: Claimed) -> None:
        self._by_claim = dict(claimed)
        self.by_id: dict[tuple[str, str], str] = {}  # resource and device → pod
        self._somewhere: dict[str, list[str]] = {}  # resource → pods, as often as they hold one
        for pod in pods:
            name = f"{pod.use.namespace}/{pod.use.name}"
            for key in pod.held:
                self.by_id[key] = name
            for resource, amount in pod.use.amounts.items():
                if node.is_served(resource) or (pod.use.claim and is_whole_or_mig(resource)):
                    continue  # by claims, which name the very devices
                known = sum(one == resource for one, _ in pod.held)
                unknown = min(int(amount.value), MOST_LOOSE) - known
                self._somewhere.setdefault(resource, []).extend([name] * unknown)

    def resources(self) -> set[str]:
        """What is held and not on a tile yet."""
        return {resource for resource, _ in self.by_id} | {r for r, pods in self._somewhere.items() if pods}

    def on(self, resource: str, device: str) -> str:
        """The pod that holds this very device."""
        return self.by_id.pop((resource, device), "")

    def forget_ids(self, resources: Collection[str]) -> None:
        """Of devices whose ids do not tell where they lie, only who holds some is known."""
        for resource, device in [key for key in self.by_id if key[0] in resources]:
            self._somewhere.setdefault(resource, []).append(self.on(resource, device))

    def by_claim(self, name: str) -> str:
        """Who holds a device by a claim, by the name that DRA has for it."""
        held = self._by_claim.pop(name, None)
        return held.by if held else ""

    def claimed(self, resource: str) -> list[str]:
        """Devices of this resource that claims hold and that are not on a tile yet."""
        return sorted(name for name, held in self._by_claim.items() if resource in held.resources)

    def some(self, resource: str) -> str:
        """A pod that holds one of these; which one is not known."""
        pods = self._somewhere.get(resource)
        return pods.pop(0) if pods else ""
