"""The controller on a large, full cluster: all three reconcilers, and one MigLayout of all nodes in mode Auto.

The controller is the command itself, in a process of its own. It follows a stand-in API server, which is another process. A round starts
it, waits for the autopilot's first look, changes pods and nodes for a while, and then allows 1,000 re-cuts an hour, so that the autopilot
looks again.
"""

import argparse
import asyncio
import contextlib
import hashlib
import json
import os
import re
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.corpus import busy, varied
from benchmarks.corpus.documents import write_list
from benchmarks.corpus.serving import WATCHES, ServedCluster, served
from benchmarks.processes import FOLDER, SERVER_CORE, Running, Unavailable, on_core
from benchmarks.results import TESSERA, Results, in_turns
from benchmarks.stage import Stage, free_port
from tessera.cli.common.options import ClusterChoice
from tessera.kube.rest.client import Client, path_of
from tessera.protocol.mig.miglayout import API_VERSION, PLURAL
from tessera.protocol.mig.nodes import IN_USE

RUN: Final = "controller"
NODES: Final = 4_000
SMALL: Final = 400  # nodes

START: Final = "s of processor time until the first look"
EVENTS: Final = "s of processor time for the events"
REST: Final = "percent of a core while nothing changes"
LOOK: Final = "s of processor time of a look with 1,000 re-cuts an hour"
PEAK: Final = "MiB at most"
AFTER: Final = "MiB after the events"
OPEN: Final = "watches open"
TOOK: Final = "s by the clock for the events"

_CONFIGURATION: Final = "fallback: {when: full, patience: 5m}\n"
_POD_EVENTS: Final = 5_000  # of 4,000 nodes
_EVENTS_A_SECOND: Final = 125
_SETTLING: Final = 10.0  # seconds after the events: the autopilot looks every 10 s while something changes
# Seconds. Pods that wait are looked at every 30 s and at most 10 are evicted a minute: a shorter window may miss all of it or not.
_RESTING: Final = 60.0
_RECUTS: Final = 1_000  # an hour
_FIRST_RECUTS: Final = 20  # an hour: the default
_PATIENCE: Final = 1_800.0  # seconds: a look may take minutes on a busy machine
# The command. A version that gives up a look after two minutes gets more time: a busy machine may need it.
_COMMAND: Final = """
import contextlib
with contextlib.suppress(ImportError):
    import tessera.controller.reconciler as reconciler
    reconciler._LONGEST_WORK = 3600.0
from tessera.cli import main
main()
"""


def case(nodes: int = NODES) -> str:
    """How a cluster is called."""
    return f"{nodes:,} nodes, {nodes * varied.PODS:,} pods"


def run(stage: Stage, results: Results) -> None:
    """A small cluster, which `make bench-check` measures again; and the large one."""
    measure(results, {TESSERA: None}, SMALL, 1)
    if not stage.effort.short:
        measure(results, {TESSERA: None}, NODES, 2)


def measure(results: Results, sources: dict[str, Path | None], nodes: int, rounds: int) -> None:
    """Measure the source of one or several checkouts, in turns; None: what is installed."""
    file = _cluster_file(nodes)
    subjects = {name: partial(_measure_round, source, file, nodes) for name, source in sources.items()}
    results.add_all(RUN, case(nodes), in_turns(rounds, subjects))
    count = _POD_EVENTS * nodes // NODES
    results.note(
        f"{RUN}, {case(nodes)}: one pod waits for every {busy.WAITING} nodes. {count:,} events of pods come at {_EVENTS_A_SECOND} a second, and "
        f"{count // 10:,} of nodes. What the controller does until {_SETTLING:g} s afterwards counts, looks included. Load average {os.getloadavg()[0]:.1f} at the end"
    )


def _measure_round(source: Path | None, file: Path, nodes: int) -> dict[str, float]:
    with served(str(file)) as cluster, _controller(source, cluster) as controller:
        controller.wait(lambda: controller.proposed() > 0)
        quantities = {START: controller.process.cpu_seconds()}
        time.sleep(_SETTLING)
        watches = _watches(cluster)
        quantities |= {OPEN: sum(watches.values())}
        quantities |= {f"{OPEN}: {kind}": number for kind, number in sorted(watches.items())}
        begun, clock = controller.process.cpu_seconds(), time.monotonic()
        asyncio.run(_play_events(cluster, nodes))
        quantities[TOOK] = time.monotonic() - clock
        time.sleep(_SETTLING)
        quantities[EVENTS] = controller.process.cpu_seconds() - begun
        quantities |= {PEAK: controller.process.memory("VmHWM"), AFTER: controller.process.memory()}
        controller.wait_for_quiet()
        begun = controller.process.cpu_seconds()
        time.sleep(_RESTING)
        quantities[REST] = (controller.process.cpu_seconds() - begun) / _RESTING * 100
        controller.wait_for_quiet()
        before, begun = controller.proposed(), controller.process.cpu_seconds()
        asyncio.run(_allow_recuts(cluster))
        controller.wait(lambda: controller.proposed() > max(before, _FIRST_RECUTS))
        quantities[LOOK] = controller.process.cpu_seconds() - begun
    return quantities


# the controller


@dataclass(frozen=True, slots=True)
class _MeasuredController:
    """A controller's process, and where it answers."""

    process: Running
    url: str

    def proposed(self) -> float:
        """The cards that the autopilot would cut, by its metrics."""
        with contextlib.suppress(OSError):
            text = _read(f"{self.url}/metrics").decode()
            if shown := re.search(r"^tessera_controller_autopilot_proposed (\S+)", text, re.MULTILINE):
                return float(shown[1])
        return 0.0

    def wait(self, is_over: Callable[[], bool]) -> None:
        """Wait until something is true."""
        deadline = time.monotonic() + _PATIENCE
        while not is_over():
            self.process.check()
            if time.monotonic() > deadline:
                raise Unavailable(f"the controller took longer than {_PATIENCE:g} s; see {_log()}")
            time.sleep(0.5)

    def wait_for_quiet(self) -> None:
        """Wait until no look is under way, so that the next one is measured alone."""

        def is_quiet() -> bool:
            begun = self.process.cpu_seconds()
            time.sleep(2.0)
            return self.process.cpu_seconds() - begun < 0.4

        self.wait(is_quiet)


def _log() -> Path:
    return FOLDER / "controller.log"


@contextmanager
def _controller(source: Path | None, cluster: ServedCluster) -> Iterator[_MeasuredController]:
    """The controller of some source; its log is written to a file."""
    configuration, address = FOLDER / "controller.yaml", f"127.0.0.1:{free_port()}"
    configuration.write_text(_CONFIGURATION)
    command = [
        sys.executable, "-c", _COMMAND, "controller", "--layouts", f"--kubeconfig={cluster.kubeconfig}",
        f"--tessera-namespace={busy.NAMESPACE}", f"--service={busy.SERVICE}", f"--config={configuration}",
        f"--metrics-listen={address}",
    ]  # fmt: skip
    if source is not None:
        command = ["env", f"PYTHONPATH={source / 'src'}", *command]
    process = Running(on_core(SERVER_CORE, ["sh", "-c", f'exec "$@" 2>"{_log()}"', "sh", *command]))
    try:
        yield _MeasuredController(process, f"http://{address}")
    finally:
        process.stop()


# the cluster


def _cluster_file(nodes: int) -> Path:
    """A file with the cluster, made once for all runs."""
    sources = (Path(varied.__file__), Path(busy.__file__))
    edition = hashlib.sha256(b"".join(one.read_bytes() for one in sources)).hexdigest()[:12]
    file = FOLDER / f"busy-{edition}-{nodes}.json"
    if not file.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_suffix(".new")
        write_list(unfinished, busy.objects(nodes))
        unfinished.replace(file)
    return file


def _watches(cluster: ServedCluster) -> dict[str, int]:
    """The watches that are open, by what they watch."""
    counts: dict[str, int] = json.loads(_read(cluster.url + WATCHES))
    return counts


def _read(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=60) as answer:  # noqa: S310 - of our own processes
        body: bytes = answer.read()
        return body


async def _allow_recuts(cluster: ServedCluster) -> None:
    path = path_of(API_VERSION, PLURAL, name=varied.LAYOUT)
    async with ClusterChoice(kubeconfig=cluster.kubeconfig).connected() as client:
        await client.patch(path, {"spec": {"autopilot": {"recutsPerHour": _RECUTS}}})


async def _play_events(cluster: ServedCluster, nodes: int) -> None:
    """Change pods and nodes at a constant rate. Of ten events of pods eight are of a status; a pod is removed and made again, and its node reports it."""
    steps = _POD_EVENTS * nodes // NODES // 10
    begun = time.monotonic()
    with_plugin = [number for number in range(nodes) if busy.has_plugin(number)]
    async with ClusterChoice(kubeconfig=cluster.kubeconfig).connected() as client:
        for step in range(steps):
            for number in range(step * 8, step * 8 + 8):
                await _change_status(client, number * 37 % nodes, number % 10, number)
            await _make_again(client, with_plugin[step * 13 % len(with_plugin)])
            late = time.monotonic() - begun - (step + 1) * 10 / _EVENTS_A_SECOND
            await asyncio.sleep(max(0.0, -late))


async def _change_status(client: Client, node: int, place: int, number: int) -> None:
    """A pod that runs gets another address."""
    pod = busy.running_pod(node, busy.holdings(node)[place])
    status = {"podIP": f"10.{number // 65536}.{number // 256 % 256}.{number % 256}"}
    await client.patch(_path(pod, "status"), {"status": status})


async def _make_again(client: Client, node: int) -> None:
    """A pod with devices ends, and one of the same name gets them; the device plugin reports it."""
    holding = busy.holdings(node)[0]
    pod = busy.running_pod(node, holding)
    await client.delete(_path(pod))
    made: dict[str, Any] = json.loads(await client.create(_path(pod, name=""), pod))
    report = busy.report_of(node, {holding.place: made["metadata"]["uid"]})
    path = path_of("v1", "nodes", name=varied.node_name(node))
    await client.patch(path, {"metadata": {"annotations": {IN_USE: report}}})


def _path(pod: dict[str, Any], subresource: str = "", *, name: str | None = None) -> str:
    metadata = pod["metadata"]
    name = metadata["name"] if name is None else name
    return path_of("v1", "pods", namespace=metadata["namespace"], name=name, subresource=subresource)


def main(arguments: Iterable[str] | None = None) -> int:
    """Compare this checkout's controller with another's, in turns; nothing is put on record."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.controller", description=main.__doc__)
    parser.add_argument("--source", type=Path, metavar="DIR", help="another checkout, beside this one")
    parser.add_argument("--alone", action="store_true", help="measure the other checkout only")
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--rounds", type=int, default=1)
    chosen = parser.parse_args(arguments if arguments is None else [*arguments])
    sources: dict[str, Path | None] = {} if chosen.alone else {TESSERA: None}
    if chosen.source is not None:
        sources[str(chosen.source)] = chosen.source.resolve()
    results = Results()
    try:
        measure(results, sources, chosen.nodes, chosen.rounds)
    except Unavailable as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 1
    for series in results.series:
        ratio = results.ratio(RUN, series.what, series.unit, TESSERA, series.subject)
        values = ", ".join(f"{value:.2f}" for value in series.values)
        beside = f"  (this checkout's, by it: {ratio})" if ratio and series.subject != TESSERA else ""
        print(f"{series.subject:24} {series.unit:60} {values}{beside}")
    print(*results.notes, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
