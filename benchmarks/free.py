"""What is free: the webhook that follows pods (`fallback.when: full`), beside a Go informer that holds the same nodes and pods.

Until it is ready and how large it is; processor time while pods come, wait, are bound and end; the longest event; and the same with many
pods that wait. `full` measures decisions.
"""

import gc
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import cycle
from typing import TYPE_CHECKING, Final

from benchmarks import corpus
from benchmarks.processes import FOLDER, PROGRAMS, SERVER_CORE, Running, on_core
from benchmarks.results import TESSERA, USUAL, Results, in_turns
from benchmarks.stage import ApiServer, Stage
from tessera.core.admission.view.offers import Offers
from tessera.core.admission.view.pods import ViewedPod
from tessera.protocol.admission.viewed_pod import read_viewed_pod

if TYPE_CHECKING:
    from pathlib import Path

RUN: Final = "free"
PODS: Final = 100_000
WAITING: Final = 10_000
SECONDS: Final = "s until ready"
SPENT: Final = "s of processor time until ready"
PEAK: Final = "MiB at most"
STEADY: Final = "MiB then"
CPU: Final = "percent of a core"
WORST: Final = "ms of processor time of one event at most"
_CONFIGURATION: Final = "fallback: {when: full}\n"
_EVENTS: Final = 2000  # a second
_CALM: Final = 2.0  # seconds after being ready: garbage is collected, buffers are given back


def held(waiting: int = 0) -> str:
    """How the case is called in which so many pods wait besides."""
    return f"{corpus.NODES:,} nodes, {PODS:,} pods" + (f", {waiting:,} wait" if waiting else "")


def stormy(waiting: int = 0) -> str:
    """The same in a storm."""
    return f"{held(waiting)}, {_EVENTS:,} events a second"


def run(stage: Stage, results: Results) -> None:
    """Processes first, beside the informer; then events in process."""
    for waiting in (0, WAITING):
        with stage.apiserver(pods=PODS, waiting=waiting) as apiserver:
            ours = {TESSERA: partial(_process, stage, apiserver, _webhook)}
            peer = {USUAL: partial(_process, stage, apiserver, _informer)}  # a minute of processor time each
            once = waiting or stage.effort.short
            found = in_turns(1 if once else 3, ours) | in_turns(0 if waiting else 1, peer)
            for subject, quantities in found.items():
                if not quantities:
                    continue
                results.add(RUN, stormy(waiting), CPU, subject, quantities.pop(CPU))
                results.add_all(RUN, held(waiting), {subject: quantities})
    for waiting in (0, WAITING):
        _in_process(stage, results, waiting)
    results.note(
        f"{RUN}: two in five nodes have GPUs; of five events of a pod three change what is free, and up to 500 pods wait at a time besides; "
        f"load average {os.getloadavg()[0]:.1f} at the end, so that seconds until ready are what the machine left"
    )


def _process(
    stage: Stage,
    apiserver: ApiServer,
    follower: Callable[[Stage, ApiServer], Iterator[tuple[Running, float]]],
) -> dict[str, float]:
    with contextmanager(follower)(stage, apiserver) as (process, seconds):
        spent = process.cpu_seconds()
        time.sleep(_CALM)
        found = {SECONDS: seconds, SPENT: spent, PEAK: process.memory("VmHWM"), STEADY: process.memory()}
        apiserver.storm(f"podsPerSecond={_EVENTS}")
        try:
            time.sleep(1.0)
            begun, before = time.monotonic(), process.cpu_seconds()
            time.sleep(max(5.0, 5 * stage.effort.seconds))
            found[CPU] = (process.cpu_seconds() - before) / (time.monotonic() - begun) * 100
        finally:
            apiserver.storm("")
        return found


def _webhook(stage: Stage, apiserver: ApiServer) -> Iterator[tuple[Running, float]]:
    file = FOLDER / "full.yaml"
    file.write_text(_CONFIGURATION)
    with stage.webhook(TESSERA, apiserver.kubeconfig, "--config", file) as server:
        yield server.process, server.seconds


def _informer(_: Stage, apiserver: ApiServer) -> Iterator[tuple[Running, float]]:
    command: list[str | Path] = [PROGRAMS / "informer", apiserver.kubeconfig]
    process = Running(on_core(SERVER_CORE, command))
    try:
        process.line()
        yield process, time.monotonic() - process.started
    finally:
        process.stop()


def _in_process(stage: Stage, results: Results, waiting: int) -> None:
    offers = corpus.offers()
    pods = dict(map(read_viewed_pod, corpus.running_pods(PODS, waiting)))
    viewed = {key: pod for key, pod in pods.items() if pod is not None}
    offers.follow_pods().replace_pods(viewed.items(), 0.0)
    results.add(
        RUN, held(waiting), WORST, TESSERA, [_longest(offers, viewed) for _ in range(stage.effort.rounds)]
    )


def _longest(offers: Offers, pods: dict[str, ViewedPod]) -> float:
    """Milliseconds of the longest of many events, each with a look at what is free: pods end, and come again."""
    free = offers.free
    assert free is not None
    gc.collect()
    gc.disable()
    longest = 0.0
    keys = cycle([key for number, key in enumerate(pods) if number % 50 == 0])
    try:
        for _ in range(1000):
            key = next(keys)
            for event in (partial(free.remove_pod, key), partial(free.put_pod, key, pods[key], 1.0)):
                begun = time.process_time()
                event()
                offers.now()
                longest = max(longest, time.process_time() - begun)
    finally:
        gc.enable()
    return longest * 1000
