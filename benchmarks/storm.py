"""A watch storm: nodes change while reviews are answered. How much later do answers come?"""

import time
from functools import partial
from typing import Final
from urllib.parse import urlencode

from benchmarks.results import PARTIAL, TESSERA, USUAL, Results, in_turns
from benchmarks.stage import ApiServer, Stage, load

RUN: Final = "storm"
P99: Final = "p99 ms"
BUSY: Final = "8 connections, as fast as answers come"
CALM: Final = "8 connections, 500 requests a second"
_RATES: Final = {BUSY: 0.0, CALM: 500.0}
_QUIET, _STORMY = "quiet", "storm"
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
    """Every server quiet and in the storm, in turns; alone each time, since every server that is there follows the storm too."""
    with stage.apiserver() as apiserver:
        for what, rate in _RATES.items():
            measures = {
                subject: partial(_measure, stage, apiserver, subject, rate)
                for subject in (TESSERA, USUAL, PARTIAL)
            }
            for subject, found in in_turns(stage.effort.rounds, measures).items():
                results.add(RUN, what, P99, quiet(subject), found[_QUIET])
                results.add(RUN, what, P99, stormy(subject), found[_STORMY])


def _measure(stage: Stage, apiserver: ApiServer, subject: str, rate: float) -> dict[str, float]:
    with stage.webhook(subject, apiserver.kubeconfig) as server:
        ask = partial(load, stage, server, stage.reviews("4 KB"), 8, seconds=max(1.0, stage.effort.seconds))
        ask(rate=rate)  # the first questions cost more than any storm
        calm = ask(rate=rate)["p99"]
        apiserver.storm(_STORM)
        try:
            time.sleep(0.2)
            return {_QUIET: calm, _STORMY: ask(rate=rate)["p99"]}
        finally:
            apiserver.storm("")
