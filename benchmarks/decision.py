"""The decision in process: bytes of a review in, bytes of a response out."""

import gc
import json
import subprocess
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import orjson

from benchmarks import corpus
from benchmarks.processes import PROGRAMS, SERVER_CORE, on_core
from benchmarks.results import PARTIAL, TESSERA, USUAL, Results, in_turns
from benchmarks.stage import Stage
from tessera.core.admission.policy import Policy
from tessera.protocol.admission import review
from tessera.webhook.endpoint import Admission

RUN: Final = "decision"
UNIT: Final = "µs"
JSON: Final = "json.loads"
ORJSON: Final = "orjson.loads"
FIRST: Final = f"{TESSERA}, a template's first pod"
LATER: Final = f"{TESSERA}, its later pods"
DECODING: Final = f"{TESSERA}, decoding alone"

_NONCE: Final = corpus.NONCE.encode()


def run(stage: Stage, results: Results) -> None:
    """Measure reviews of both sizes, beside decoding the same bytes and beside the Go programs."""
    offers = corpus.offers()
    for size in corpus.SIZES:
        bodies = _own(size, pods=8)
        knowing, forgetting = Admission(offers, Policy()), Admission(offers, Policy())
        measures: dict[str, Callable[[], dict[str, float]]] = {
            LATER: partial(timed, knowing.answer, bodies, stage.effort.seconds / 2),
            FIRST: partial(timed, partial(first_answer, forgetting), bodies, stage.effort.seconds / 2),
            DECODING: partial(timed, review.decode, bodies, stage.effort.seconds / 4),
            JSON: partial(timed, json.loads, bodies, stage.effort.seconds / 4),
            ORJSON: partial(timed, orjson.loads, bodies, stage.effort.seconds / 4),
            USUAL: partial(_go, stage, size, "usual"),
            PARTIAL: partial(_go, stage, size, "partial"),
        }
        for subject, found in in_turns(stage.effort.rounds, measures).items():
            results.add(RUN, size, UNIT, subject, found[UNIT])


def _own(size: str, pods: int) -> list[bytes]:
    """Reviews of several pods of every template, each with an annotation of its own."""
    templates = corpus.reviews(size)
    return [body.replace(_NONCE, b"nonce-%010d" % pod) for pod in range(pods) for body in templates]


def first_answer(admission: Admission, body: bytes) -> None:
    admission.memory.forget()
    admission.answer(body)


def timed(call: Callable[[bytes], object], bodies: Sequence[bytes], seconds: float) -> dict[str, float]:
    """Microseconds of a call: the quickest pass over all bodies, since what is added to it is not ours."""
    best = float("inf")
    gc.collect()
    deadline = time.perf_counter() + seconds
    while (begun := time.perf_counter()) < deadline:
        for body in bodies:
            call(body)
        best = min(best, time.perf_counter() - begun)
    return {UNIT: best / len(bodies) * 1e6}


def _go(stage: Stage, size: str, program: str) -> dict[str, float]:
    command = on_core(SERVER_CORE, [
        PROGRAMS / "decision", "-as", program, "-nodes", stage.nodes(), "-reviews", stage.reviews(size),
        "-duration", f"{stage.effort.seconds / 2}s",
    ])  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {UNIT: int(done.stdout) / 1000}
