"""Programs that run until a signal stops them: their options, and how they run."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, Final

from tessera.cli.common.cluster import ClusterChoice, cluster_options
from tessera.cli.common.options import Listen, env_option, gathered, log_options
from tessera.serving.address import Address
from tessera.serving.ending import Signalled, until_signalled
from tessera.serving.health_server import health_server
from tessera.serving.logs import Log, choose, forwarding
from tessera.serving.metrics import Family


@dataclass(frozen=True, slots=True)
class ProcessChoice:
    """What the options say about such a program."""

    metrics_listen: Address | None
    cluster: ClusterChoice
    log_format: str
    log_level: str

    def run(self, work: Callable[[], Coroutine[Any, Any, None]]) -> int:
        """Work with logs set up until a signal comes, and then leave in good order."""
        with forwarding(Log(choose(self.log_format), self.log_level)), contextlib.suppress(Signalled):
            asyncio.run(until_signalled(work()))
        return 0

    async def serve(
        self,
        work: Coroutine[Any, Any, None],
        families: Callable[[], Iterable[Family]],
        health: Any,  # has `alive` and `ready`
        log: logging.Logger,
    ) -> None:
        """Answer probes and scrapes, if that is wanted, for as long as the work goes on."""
        server = health_server(families, lambda: health.alive, lambda: health.ready)
        try:
            if self.metrics_listen:
                taken = await server.start(self.metrics_listen)
                log.info("probes and metrics at %s", taken)
            await work
        finally:
            work.close()
            await server.stop()


process_options: Final = gathered(
    "process",
    ProcessChoice,
    env_option("--metrics-listen [HOST]:PORT", "Serve /metrics, /livez and /readyz there.", type=Listen()),
    cluster_options,
    log_options(),
)
