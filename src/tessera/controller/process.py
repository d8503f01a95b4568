"""The controller put together: one process of several leads, and runs the reconcilers."""

import asyncio
import socket
from typing import Final

from tessera.controller.claims.reconciler import ClaimReconciler
from tessera.controller.leader import RETRY, Leader
from tessera.controller.metrics import ControllerMetrics
from tessera.controller.ticket_keeper import TicketKeeper
from tessera.kube.events.recorder import Recorder
from tessera.kube.rest.client import Client
from tessera.kube.view.lease import CONTROLLER

COMPONENT: Final = "tessera-controller"  # as events name it
_HUNG_SECONDS: Final = 120.0  # a process that has not tried to get or renew the Lease for so long hangs


class Controller:
    """One process of the controller."""

    def __init__(self, client: Client, namespace: str, identity: str, *, retry: float = RETRY) -> None:
        self.metrics = ControllerMetrics()
        self._clock = client.clock
        self._able = False
        self._recorder = Recorder(client, COMPONENT, instance=socket.gethostname(), counts_up=False)
        keeper = TicketKeeper(client, namespace)
        self._claims = ClaimReconciler(client, self._recorder, self.metrics, keeper)
        self._leader = Leader(client, namespace, CONTROLLER, identity, retry=retry)
        self.metrics.leads = lambda: self._leader.leads
        self.metrics.events = lambda: self._recorder.counts

    @property
    def alive(self) -> bool:
        """Whether it still tries to get or keep the Lease, once there is a use in it."""
        return not self._able or self._clock.now() - self._leader.beat < _HUNG_SECONDS

    @property
    def ready(self) -> bool:
        """Whether it knows the cluster: as a leader, or to become one."""
        return self._claims.follower.missing() is None and bool(self._leader.leads or self._leader.holder)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._claims.follower.run())
            tasks.create_task(self._recorder.run())
            tasks.create_task(self._lead())

    async def _lead(self) -> None:
        await self._claims.able()
        self._able, self._leader.beat = True, self._clock.now()
        await self._leader.lead(lambda: self._claims.run(self._leader.fence))
