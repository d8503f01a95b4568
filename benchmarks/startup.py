"""Starting: the command, and the server until it is ready in a small cluster."""

import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.processes import SERVER_CORE, on_core
from benchmarks.results import PARTIAL, TESSERA, USUAL, Results, in_turns
from benchmarks.stage import Stage

RUN: Final = "startup"
COMMAND: Final = "tessera --help"
SERVER: Final = "webhook until ready, 10 nodes"
UNIT: Final = "ms"
PYTHON: Final = "Python, empty program"
_TESSERA: Final = Path(sys.executable).parent / "tessera"


def run(stage: Stage, results: Results) -> None:
    """Several starts each, in turns, files already in the kernel's cache."""
    starts: dict[str, list[str | Path]] = {
        TESSERA: [_TESSERA, "--help"],
        PYTHON: [Path(sys.executable), "-c", "pass"],
    }
    measures = {subject: partial(_start, command) for subject, command in starts.items()}
    for subject, found in in_turns(2 * stage.effort.rounds, measures, warm=True).items():
        results.add(RUN, COMMAND, UNIT, subject, found[UNIT])
    with stage.apiserver(nodes=10) as apiserver:
        servers = {
            subject: partial(_serve, stage, subject, apiserver.kubeconfig)
            for subject in (TESSERA, USUAL, PARTIAL)
        }
        for subject, found in in_turns(stage.effort.rounds, servers, warm=True).items():
            results.add(RUN, SERVER, UNIT, subject, found[UNIT])


def _start(command: list[str | Path]) -> dict[str, float]:
    begun = time.perf_counter()
    subprocess.run(on_core(SERVER_CORE, command), stdout=subprocess.DEVNULL, check=True)
    return {UNIT: (time.perf_counter() - begun) * 1000}


def _serve(stage: Stage, subject: str, kubeconfig: Path) -> dict[str, float]:
    with stage.webhook(subject, kubeconfig) as server:
        return {UNIT: server.seconds * 1000}
