"""Whether the controller is at work, for who looks once and follows nothing: `tessera admit`.

The webhook follows the controller's Lease, and takes it as held while it keeps changing. Who looks once takes its word that it
was renewed lately, and where two clocks disagree looks a few times more, for a change.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Final

from tessera.kube.errors import ApiError
from tessera.kube.rest.client import Client
from tessera.kube.rest.paths import path_of
from tessera.kube.view.lease import CONTROLLER
from tessera.protocol.kubernetes.lease import API_VERSION, Lease

_FORBIDDEN: Final = 403
_MORE_LOOKS: Final = 4  # a second apart: the controller renews its Lease every two seconds


async def controller_at_work(client: Client, namespace: str) -> bool | None:
    """Whether the controller is at work, by its Lease in a namespace; None where the Lease may not be read."""
    path = path_of(API_VERSION, "leases", namespace=namespace, name=CONTROLLER)
    try:
        first = Lease.read(await client.get(path))
        if not first.holder or _renewed_lately(first, client.clock.wall()):
            return bool(first.holder)
        for _ in range(_MORE_LOOKS):
            await client.clock.sleep(1.0)
            again = Lease.read(await client.get(path))
            if again.beat != first.beat:
                return bool(again.holder)
    except ApiError as error:
        if not error.is_not_found and error.code != _FORBIDDEN:
            raise
        return False if error.is_not_found else None
    return False


def controller_in(leases: Iterable[bytes]) -> bool | None:
    """Whether the controller is at work by Leases from files, which no clock goes with: it names a holder; None without it."""
    found = [one for one in map(Lease.read, leases) if one.name == CONTROLLER]
    return any(one.holder for one in found) if found else None


def _renewed_lately(lease: Lease, wall: float) -> bool:
    try:
        return wall - datetime.fromisoformat(lease.renewed).timestamp() < lease.seconds
    except ValueError:
        return False
