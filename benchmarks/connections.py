"""Connections that are kept, as API servers keep them: the memory that each takes once it has asked."""

import contextlib
import http.client
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks import corpus
from benchmarks.processes import Unavailable
from benchmarks.results import PARTIAL, TESSERA, USUAL, Results, in_turns
from benchmarks.stage import Server, Stage

RUN: Final = "connections"
UNIT: Final = "KiB"
_FEW, _MANY = 8, 256
_NODES: Final = 10


def case(size: str) -> str:
    """How a case is called."""
    return f"{_MANY} connections, each has asked with {size}"


def run(stage: Stage, results: Results) -> None:
    """Both sizes of reviews, the webhooks in turns, each time started anew."""
    with stage.apiserver(nodes=_NODES) as apiserver:
        for size in corpus.SIZES:
            measures = {
                subject: partial(_webhook, stage, subject, apiserver.kubeconfig, size)
                for subject in (TESSERA, USUAL, PARTIAL)
            }
            for subject, found in in_turns(min(stage.effort.rounds, 3), measures).items():
                results.add(RUN, case(size), UNIT, subject, found[UNIT])


def _webhook(stage: Stage, subject: str, kubeconfig: Path, size: str) -> dict[str, float]:
    return kept(stage, stage.webhook(subject, kubeconfig), size)


def kept(stage: Stage, starting: contextlib.AbstractContextManager[Server], size: str) -> dict[str, float]:
    """What a fresh server takes for each connection that is kept."""
    body = stage.reviews(size).read_bytes().splitlines()[0]
    with starting as server, contextlib.ExitStack() as stack:
        for _ in range(_FEW):  # what only the first ones need
            stack.enter_context(contextlib.closing(_ask(stage, server, body)))
        before = server.process.memory()
        for _ in range(_MANY):
            stack.enter_context(contextlib.closing(_ask(stage, server, body)))
        return {UNIT: (server.process.memory() - before) * 1024 / _MANY}


def _ask(stage: Stage, server: Server, body: bytes) -> http.client.HTTPSConnection:
    connection = http.client.HTTPSConnection(server.address, context=stage.tls, timeout=5)
    connection.request("POST", "/mutate?timeout=10s", body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    if answer.status != http.client.OK:
        raise Unavailable(f"{server.subject} answered {answer.status} to a review")
    answer.read()
    return connection
