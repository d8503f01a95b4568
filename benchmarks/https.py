"""HTTPS: the server on one core, the load from another; throughput, latencies, processor time of a request.

Beside the webhooks stands a floor: event loop and TLS alone, answering whatever comes with the same bytes. Two webhooks on
usual Python servers decide with our own decision, answers remembered: what they cost more is the server, and JSON.
"""

import contextlib
import sys
from functools import partial
from pathlib import Path
from typing import Final

from e2e.cluster.pki import KeyPair

from benchmarks import corpus
from benchmarks.answers import check_answers
from benchmarks.processes import ROOT
from benchmarks.results import NAIVE, PARTIAL, TESSERA, USUAL, Results, in_turns
from benchmarks.stage import PYTHON_WEBHOOKS, Server, Stage, load

RUN: Final = "https"
THROUGHPUT: Final = "requests/s"
P50: Final = "p50 ms"
P99: Final = "p99 ms"
CPU: Final = "µs of processor time"
KERNEL: Final = "µs of it in the kernel"
CONNECTIONS: Final = (1, 8, 64)
_BUSY: Final = 0.95  # of a core: beyond this the load generator is what is measured
FLOOR: Final = "floor"
ANEW: Final = f"{TESSERA}, nothing remembered"


def _floor(address: str, identity: KeyPair) -> list[str | Path]:
    return [Path(sys.executable), ROOT / "floor.py", address, identity.certificate, identity.key]


def case(size: str, connections: int) -> str:
    """How a case is called."""
    return f"{size}, {connections} connection{'s' * (connections > 1)}"


def run(stage: Stage, results: Results) -> None:
    """Every size with every number of connections, in turns; the naive webhook alone, since it needs seconds."""
    with contextlib.ExitStack() as stack:
        apiserver = stack.enter_context(stage.apiserver())
        servers = {
            subject: stack.enter_context(stage.webhook(subject, apiserver.kubeconfig))
            for subject in (TESSERA, USUAL, PARTIAL)
        }
        servers[FLOOR] = stack.enter_context(stage.server(FLOOR, _floor))
        if not stage.effort.short:
            for subject in PYTHON_WEBHOOKS:
                servers[subject] = stack.enter_context(stage.python_webhook(subject))
        for size in corpus.SIZES:
            for connections in CONNECTIONS[-1:] if stage.effort.short else CONNECTIONS:
                measure(stage, results, size, connections, servers)
        if stage.effort.short:
            return
        anew = partial(_load, stage, results, servers[TESSERA], "4 KB", 64, "new question")
        results.add_all(RUN, case("4 KB", 64), {ANEW: in_turns(stage.effort.rounds, {ANEW: anew})[ANEW]})
        naive = stack.enter_context(stage.webhook(NAIVE, apiserver.kubeconfig))
        found = in_turns(1, {NAIVE: partial(_load, stage, results, naive, "4 KB", 1, seconds=5)})
        results.add_all(RUN, case("4 KB", 1), found)


def measure(stage: Stage, results: Results, size: str, connections: int, servers: dict[str, Server]) -> None:
    """One case, all servers in turns."""
    found = in_turns(
        stage.effort.rounds,
        {
            subject: partial(_load, stage, results, server, size, connections)
            for subject, server in servers.items()
        },
    )
    results.add_all(RUN, case(size, connections), found)


def _load(
    stage: Stage,
    results: Results,
    server: Server,
    size: str,
    connections: int,
    kind: corpus.Kind = "own annotation",
    seconds: float | None = None,
) -> dict[str, float]:
    report = load(
        stage, server, stage.reviews(size, kind), connections, seconds=seconds or stage.effort.seconds
    )
    if server.subject != FLOOR:
        check_answers(server.subject, report["references"], size, kind)
    if report["cpu"] > _BUSY * report["seconds"]:
        results.note(f"{RUN}, {case(size, connections)}, {server.subject}: the load generator was the limit")
    if (size, connections, kind) == ("4 KB", 64, "own annotation"):
        results.curves.setdefault("latency", {})[server.subject] = report["histogram"]
    return {
        THROUGHPUT: report["requests"] / report["seconds"],
        P50: report["p50"],
        P99: report["p99"],
        CPU: report["server_cpu"] / max(report["requests"], 1) * 1e6,
        KERNEL: report["server_kernel"] / max(report["requests"], 1) * 1e6,
    }
