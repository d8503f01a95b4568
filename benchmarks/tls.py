"""The same server with our TLS (`webhook.http.tls`) and with the event loop's: what the one saves over the other.

Both run `tls_server.py`: the webhook's listener or the event loop's, the webhook's HTTP, and a handler that does nothing.
"""

import contextlib
import sys
from functools import partial
from pathlib import Path
from typing import Final

from e2e.cluster.pki import KeyPair

from benchmarks import connections, corpus
from benchmarks.processes import ROOT
from benchmarks.results import Results, in_turns
from benchmarks.stage import Server, Stage, load

RUN: Final = "tls"
OURS: Final = "our TLS"
LOOP: Final = "uvloop's TLS"
CPU: Final = "µs of processor time"
_WAYS: Final = {OURS: "ours", LOOP: "loop"}  # subject → argument of the program
_CONNECTIONS: Final = 64
_ROUNDS: Final = 6  # even: the one is first as often as the other


def run(stage: Stage, results: Results) -> None:
    """Processor time of a request with both servers running, in turns; then memory, each time started anew."""
    for size in corpus.SIZES:
        with contextlib.ExitStack() as stack:
            asked = {
                subject: partial(_asked, stage, stack.enter_context(_server(stage, subject)), size)
                for subject in _WAYS
            }
            found = in_turns(_ROUNDS, asked, warm=True)
        results.add_all(RUN, f"{size}, {_CONNECTIONS} connections", found)
    for size in corpus.SIZES:
        kept = {subject: partial(_kept, stage, subject, size) for subject in _WAYS}
        results.add_all(RUN, connections.case(size), in_turns(min(stage.effort.rounds, 3), kept))


def _server(stage: Stage, subject: str) -> contextlib.AbstractContextManager[Server]:
    def command(address: str, identity: KeyPair) -> list[str | Path]:
        program = ROOT / "tls_server.py"
        return [Path(sys.executable), program, _WAYS[subject], address, identity.certificate, identity.key]

    return stage.server(subject, command)


def _asked(stage: Stage, server: Server, size: str) -> dict[str, float]:
    report = load(stage, server, stage.reviews(size), _CONNECTIONS, seconds=stage.effort.seconds)
    return {CPU: report["server_cpu"] / max(report["requests"], 1) * 1e6}


def _kept(stage: Stage, subject: str, size: str) -> dict[str, float]:
    return connections.kept(stage, _server(stage, subject), size)
