"""Filling the view: from the start of a process until it is ready, and the memory that it takes for it."""

import sys
import time
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks import corpus
from benchmarks.processes import PROGRAMS, SERVER_CORE, Running, on_core
from benchmarks.results import PARTIAL, TESSERA, USUAL, Results, in_turns
from benchmarks.stage import Stage

RUN: Final = "view"
SECONDS: Final = "s until ready"
PEAK: Final = "MiB at most"
STEADY: Final = "MiB then"
OWN: Final = "MiB for the nodes"
WEBHOOK: Final = f"webhook, {corpus.NODES:,} nodes"
_FEW: Final = 10  # nodes: what a webhook takes without them
_CALM: Final = 1.5  # seconds after being ready: garbage is collected, buffers are given back


def with_pods(count: int) -> str:
    """How the case is called in which pods are held too."""
    return f"view alone, {corpus.NODES:,} nodes and {count:,} pods"


def run(stage: Stage, results: Results) -> None:
    """The webhooks with their nodes; then nodes and pods, which capacity needs."""
    with stage.apiserver() as apiserver:
        measures = {
            subject: partial(_webhook, stage, subject, apiserver.kubeconfig)
            for subject in (TESSERA, USUAL, PARTIAL)
        }
        results.add_all(RUN, WEBHOOK, in_turns(min(stage.effort.rounds, 3), measures))
    with stage.apiserver(nodes=_FEW) as apiserver:
        measures = {
            subject: partial(_webhook, stage, subject, apiserver.kubeconfig)
            for subject in (TESSERA, USUAL, PARTIAL)
        }
        for subject, quantities in in_turns(min(stage.effort.rounds, 3), measures).items():
            many = results.find(RUN, WEBHOOK, STEADY, subject)
            if many is not None:
                own = [all_ - few for all_, few in zip(many.values, quantities[STEADY], strict=True)]
                results.add(RUN, WEBHOOK, OWN, subject, own)
    for pods in () if stage.effort.short else (20_000, 100_000):
        with stage.apiserver(pods=pods) as apiserver:
            followers: dict[str, list[str | Path]] = {
                TESSERA: [Path(sys.executable), "-m", "benchmarks.follow", apiserver.kubeconfig],
                USUAL: [PROGRAMS / "informer", apiserver.kubeconfig],
            }
            measures = {subject: partial(_follower, command) for subject, command in followers.items()}
            results.add_all(RUN, with_pods(pods), in_turns(3 if pods == 20_000 else 1, measures))


def _webhook(stage: Stage, subject: str, kubeconfig: Path) -> dict[str, float]:
    with stage.webhook(subject, kubeconfig) as server:
        return _sizes(server.process, server.seconds)


def _follower(command: list[str | Path]) -> dict[str, float]:
    process = Running(on_core(SERVER_CORE, command))
    try:
        process.line()
        return _sizes(process, time.monotonic() - process.started)
    finally:
        process.stop()


def _sizes(process: Running, seconds: float) -> dict[str, float]:
    time.sleep(_CALM)
    return {SECONDS: seconds, PEAK: process.memory("VmHWM"), STEADY: process.memory()}
