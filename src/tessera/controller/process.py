"""The controller put together: one process of several leads, and runs the reconcilers for what is there."""

import asyncio
import gc
import logging
import socket
from pathlib import Path
from typing import Final

from tessera.controller.claims.reconciler import ClaimReconciler
from tessera.controller.layouts.auto.looking import SOONEST
from tessera.controller.layouts.reconciler import LayoutReconciler
from tessera.controller.leader import DEFAULT_TIMES, Leader, LeaseTimes
from tessera.controller.metrics import ControllerMetrics
from tessera.controller.patience.reconciler import DEFAULT_PACE, Pace, PatienceReconciler
from tessera.controller.reconciler import Reconciler, ReconcilerParts
from tessera.controller.ticket_keeper import TicketKeeper
from tessera.kube.clock import first_of
from tessera.kube.event_recorder import Recorder
from tessera.kube.rest.client import Client
from tessera.kube.view.lease import CONTROLLER
from tessera.kube.view.policy import WEBHOOK
from tessera.kube.watch.follow import Follower
from tessera.protocol.configuration.webhook import Configuration, parse
from tessera.serving.reload import Followed

log = logging.getLogger(__name__)

COMPONENT: Final = "tessera-controller"  # as events name it
_HUNG_SECONDS: Final = 120.0  # a process that has not tried to get or renew the Lease for so long hangs
# Collections of younger objects between two of all objects; Python's default is 10. The copy of a large cluster has a
# million objects, and each collection of all goes through them: after 1,250 events of pods one finds 27 that are garbage.
_COLLECTIONS: Final = 1_000


class Controller:
    """One process of the controller."""

    def __init__(
        self,
        client: Client,
        namespace: str,
        identity: str,
        *,
        layouts: bool = False,
        soonest: float = SOONEST,
        lease: LeaseTimes = DEFAULT_TIMES,
        config: Path | None = None,
        service: str = WEBHOOK,
        pace: Pace = DEFAULT_PACE,
    ) -> None:
        """`layouts`: it also keeps the layouts of MigLayouts; `soonest`: seconds between two looks of their autopilot. `config`: the webhook's configuration, `service`: its Service, both for patience."""
        self.metrics = ControllerMetrics()
        self._clock = client.clock
        self._able = False
        self._recorder = Recorder(client, COMPONENT, instance=socket.gethostname(), counts_up=False)
        self._leader = Leader(client, namespace, CONTROLLER, identity, times=lease, reconcilers=self._run)
        self._follower = Follower(client)
        parts = ReconcilerParts(
            client=client,
            follower=self._follower,
            recorder=self._recorder,
            metrics=self.metrics,
            fence=self._leader.fence,
        )
        self._reconcilers: list[Reconciler] = [ClaimReconciler(parts, TicketKeeper(client, namespace))]
        if layouts:
            self._reconcilers.append(LayoutReconciler(parts, identity, soonest=soonest))
        self._configuration: Followed[Configuration] | None = None
        if config is not None:
            patience = PatienceReconciler(parts, namespace, service, pace)
            self._reconcilers.append(patience)
            self._configuration = Followed(
                "configuration", [config], parse, lambda read: patience.configure(read.policy), _report
            )
            self._configuration.load()
        self.metrics.leads = lambda: self._leader.leads
        self.metrics.runs = lambda: {one.name: self._leader.leads and one.able for one in self._reconcilers}
        self.metrics.events = lambda: self._recorder.counts

    @property
    def alive(self) -> bool:
        """Whether it still tries to get or keep the Lease, once there is a use in it."""
        return not self._able or self._clock.now() - self._leader.beat < _HUNG_SECONDS

    @property
    def ready(self) -> bool:
        """Whether it knows the cluster: as a leader, or to become one."""
        known = all(one.missing() is None for one in self._reconcilers)
        return known and bool(self._leader.leads or self._leader.holder)

    async def run(self) -> None:
        gc.set_threshold(*gc.get_threshold()[:2], _COLLECTIONS)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follower.run())
            for one in self._reconcilers:
                tasks.create_task(one.follow())
            if self._configuration is not None:
                tasks.create_task(self._configuration.follow())
            tasks.create_task(self._recorder.run())
            tasks.create_task(self._lead())

    async def _lead(self) -> None:
        """Lead once one of the reconcilers can work: the others begin when they can."""
        await first_of(*(one.until_able() for one in self._reconcilers))
        self._able, self._leader.beat = True, self._clock.now()
        await self._leader.lead(*(one.run for one in self._reconcilers))

    def _run(self) -> tuple[str, ...]:
        return tuple(one.name for one in self._reconcilers if one.able)


def _report(message: str, error: str | None) -> None:
    if error is None:
        log.info(message)
    else:
        log.error("%s: %s", message, error)
