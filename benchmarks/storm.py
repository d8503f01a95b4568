"""A watch storm: nodes change while reviews are answered. How much later do answers come?"""

import contextlib
import time
from functools import partial
from typing import Final
from urllib.parse import urlencode

from benchmarks.results import PARTIAL, TESSERA, USUAL, Results, in_turns
from benchmarks.stage import ApiServer, Server, Stage, load

RUN: Final = "storm"
P99: Final = "p99 ms"
BUSY: Final = "8 connections, as fast as answers come"
CALM: Final = "8 connections, 500 requests a second"
_RATES: Final = {BUSY: 0.0, CALM: 500.0}
# Of ten updates nine are heartbeats, and one takes a device away from a node, or gives it back. No answer changes
# by it, but everything that was remembered is void.
_STORM: Final = urlencode(
    {
        "perMinute": 5000,
        "every": 10,
        "from": '"nvidia.com/mig-2g.20gb":"8"',
        "to": '"nvidia.com/mig-2g.20gb":"7"',
    }
)


def quiet(subject: str) -> str:
    """A subject that is left alone."""
    return f"{subject}, quiet"


def stormy(subject: str) -> str:
    """A subject in the storm."""
    return f"{subject}, storm"


def run(stage: Stage, results: Results) -> None:
    """Every server quiet and in the storm, in turns."""
    with contextlib.ExitStack() as stack:
        apiserver = stack.enter_context(stage.apiserver())
        servers = [
            stack.enter_context(stage.webhook(subject, apiserver.kubeconfig))
            for subject in (TESSERA, USUAL, PARTIAL)
        ]
        for what, rate in _RATES.items():
            measures = {}
            for server in servers:
                measures[quiet(server.subject)] = partial(_measure, stage, apiserver, server, rate, "")
                measures[stormy(server.subject)] = partial(_measure, stage, apiserver, server, rate, _STORM)
            for subject, found in in_turns(stage.effort.rounds, measures).items():
                results.add(RUN, what, P99, subject, found[P99])


def _measure(stage: Stage, apiserver: ApiServer, server: Server, rate: float, storm: str) -> dict[str, float]:
    if storm:
        apiserver.storm(storm)
        time.sleep(0.2)
    try:
        report = load(
            stage, server, stage.reviews("4 KB"), 8, seconds=max(1.0, stage.effort.seconds), rate=rate
        )
    finally:
        if storm:
            apiserver.storm("")
    return {P99: report["p99"]}
